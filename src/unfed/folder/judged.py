"""What a run folder knows of populations: one file per request, which the report shows.

    population/REQUEST.json          what `unfed judge` found in a population of the run's config

Nothing is built to read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unfed import json_checks as its
from unfed import storage
from unfed.errors import UnfedError
from unfed.folder.folder import RunFolder
from unfed.folder.schema import COUNT, TEXT, Fits, checked
from unfed.measures.population.attacks import ATTACKS

SCHEMA = 1
FILE = "judged.json"
"""The same in a population's own folder."""
AGAIN = "delete it, and judge the population again with `unfed judge … --run`"

_REASON = its.is_text
_INTERVAL = its.table_with(dict.fromkeys(("value", "low", "high"), its.is_plain_number))
_CELL = its.either(
    its.is_plain_number,
    _REASON,
    its.table_with({"value": its.is_plain_number, "retrain": its.is_plain_number}),
    _INTERVAL,
)
_ATTACKED = its.table_with(
    {
        "auc": _INTERVAL,
        "tpr_0.01": its.either(_REASON, _INTERVAL),
        "tpr_0.001": its.either(_REASON, _INTERVAL),
        "worst_slice": its.either(_REASON, its.table_with({"name": its.is_text, "auc": its.is_plain_number})),
        "roc": its.list_of(lambda value: its.list_of(its.is_share)(value) and len(value) == 2, least=1),
    }
)
_EXPOSED = its.list_of(its.table_with({"row": its.is_text, "auc": its.is_plain_number}))
_ROW = {
    "attacks": its.table_with(dict.fromkeys(ATTACKS, its.either(_REASON, _ATTACKED))),
    "exposure": _EXPOSED,
    **dict.fromkeys(("distances", "singles", "accuracy"), its.table_of(_CELL)),
}
_MEASURED_SINCE = dict.fromkeys(("standing", "held_out"), its.table_of(_CELL))
_ANSWER = its.table_with({"kind": its.is_text, "sentence": its.is_text})
_VERDICT = its.either(_ANSWER, its.table_with({"remembers": _ANSWER, "unfinished": _ANSWER}))
"""Earlier versions gave one answer to both questions."""
_METHOD = its.table_with({"title": its.is_text, "verdict": _VERDICT, **_ROW}, _MEASURED_SINCE)
_TUNED = its.table_with(
    {"trials": its.is_count, "models": its.is_count, "on": its.is_text, "chosen": its.table_of(its.is_plain)},
    {"spoiled": its.is_yes, "best": its.or_null(its.table_with({}, {"drop": its.is_plain_number}))},
)
MUST: dict[str, Fits] = {
    "request": TEXT,
    "models": COUNT,
    "half": COUNT,
    "rows": ("a table of how many rows there are, forget among them", its.table_with({"forget": its.is_count})),
    "methods": (
        "a table of methods, at least one, each with its verdict and what was measured",
        lambda value: bool(value) and its.table_of(_METHOD)(value),
    ),
    "yardstick": ("what was measured of Retrain", its.table_with({"quarter": its.is_count, **_ROW}, _MEASURED_SINCE)),
    "distributions": (
        "a table of edges, and of shares between them",
        its.table_with(
            {"edges": its.list_of(its.is_number, least=2), "shares": its.table_of(its.list_of(its.is_share))}
        ),
    ),
}
MAY: dict[str, Fits] = {
    "unfinished": ("a table of how many models there are", its.table_of(its.is_count)),
    "tuned": ("a table of how each method was tuned", its.or_null(its.table_of(_TUNED))),
}


def file_of(folder: RunFolder, request: str) -> Path:
    """Where it is kept for a request."""
    return folder.path / "population" / f"{request}.json"


def of_run(folder: RunFolder) -> dict[str, Any]:
    """What is known of each request, by its id, in a layout that this version knows."""
    there = sorted((folder.path / "population").glob("*.json"))
    found = [_read(path) for path in there]
    return {str(one["request"]): one for one in found if one is not None}


def _read(path: Path) -> dict[str, Any] | None:
    """One file, with every field that is shown of its type; None where its layout is another."""
    found = checked(storage.read_json(path, "judged population"), str(path), {"schema": COUNT}, remedy=AGAIN)
    if found["schema"] != SCHEMA:
        return None
    checked(found, str(path), MUST, MAY, AGAIN)
    shares, bins = found["distributions"]["shares"], len(found["distributions"]["edges"]) - 1
    if any(len(shares.get(kind, ())) != bins for kind in ("before", "retrain", *found["methods"])):
        raise UnfedError(f"{path} has other distributions than methods; {AGAIN}.")
    return found
