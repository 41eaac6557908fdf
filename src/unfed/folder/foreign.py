"""What an unlearning in a foreign Flower app leaves in its folder, as it is read.

    DIR/unlearning.json ─► every field by its type ─► the report's page, a deny list, the next start of the same app

`flower/evidence.py` writes it. Nothing of Flower is imported to read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unfed import json_checks as its
from unfed import storage
from unfed.errors import UnfedError
from unfed.folder.schema import TEXT, TEXTS, Fits, checked, is_probed, or_none

FILE = "unlearning.json"
SCHEMA = 1

_NODES = its.list_of(its.is_whole)
_METRIC = its.either(its.is_number, its.is_text, its.list_of(its.either(its.is_number, its.is_text)))
_METRICS = its.table_of(_METRIC)
_ANSWERS = its.list_of(
    its.either(
        its.table_with({"node": its.is_whole, "metrics": _METRICS}),
        its.table_with({"node": its.is_whole, "why": its.is_text}),
    )
)
_LEFT_OUT = its.table_with({"node": its.is_whole, "rows": its.table_of(its.is_count), "of": its.is_count})
_ROUND = its.table_with(
    {
        "round": its.is_count,
        "train": _NODES,
        "evaluate": _NODES,
        "refused": its.list_of(its.is_text),
        "arrays": its.or_null(its.is_text),
        "metrics": its.table_of(_METRICS),
    },
    {"leaver": _ANSWERS, "left_out": its.list_of(_LEFT_OUT), "heavy": its.list_of(its.is_text)},
)
_ROUNDS: Fits = ("a list of rounds, each with who was asked and what came of it", its.list_of(_ROUND))
_DIGEST = its.either(its.is_text, its.list_of(its.is_text))
_UNDONE = its.either(
    its.table_with({"reason": its.is_text}),
    its.table_with(
        {"evaluate": its.or_null(_METRICS), "server": its.or_null(_METRICS), "leaver": _ANSWERS}, {"asked": _NODES}
    ),
)

MUST: dict[str, Fits] = {
    "created": TEXT,
    "strategy": TEXT,
    "leavers": (
        "a list of leavers, each with who it is and its nodes",
        its.list_of(its.table_with({"who": its.is_text, "nodes": _NODES})),
    ),
    "forgotten": TEXTS,
    "arrays": (
        "a table of digests, before and perturbed among them",
        lambda value: (
            its.table_of(_DIGEST)(value) and its.table_with({"before": its.is_text, "perturbed": its.is_text})(value)
        ),
    ),
    "before": (
        "a table of who was asked and what they said",
        its.table_of(its.table_with({"asked": _NODES, "metrics": its.or_null(_METRICS)})),
    ),
    "rounds": _ROUNDS,
    "finished": or_none(TEXT),
}
_CLASSES: Fits = ("a list of class numbers", its.list_of(its.is_count))
MAY: dict[str, Fits] = {
    "unnamed": TEXTS,
    "classes": _CLASSES,
    "classes_before": _CLASSES,
    "turned": TEXTS,
    "abandoned": _ROUNDS,
    "recover": or_none(TEXT),
    "until_forgotten": or_none(TEXT),
    "leaver": ("a table of answers, each with its node", its.table_of(_ANSWERS)),
    "undo": ("a table of answers, or of the reason why there are none", _UNDONE),
    "unmeasured": ("a table of reasons", its.table_of(its.is_text)),
    "probes": (
        "a table of what was measured of each model",
        its.table_with({"measured": lambda value: its.table_of(is_probed)(value) and its.is_plain(value)}),
    ),
}


def evidence(folder: Path) -> dict[str, Any]:
    """What stands in the folder, with every field that is read of its type."""
    path = folder / FILE
    found = checked(storage.read_json(path, "evidence of an unlearning"), str(path), MUST, MAY)
    if found.get("schema") != SCHEMA:
        raise UnfedError(f"{path} was written in another layout; use the version of unfed that wrote it.")
    return found
