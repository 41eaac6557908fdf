"""What a run folder's JSON must look like.

There are a table of fields for each kind, and one sentence for the first wrong one.

Only what is read is checked; a field that is not known is kept, so that a later version may add some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unfed import json_checks as its
from unfed.config.reading import check_id
from unfed.errors import UnfedError

Fits = tuple[str, Callable[[Any], bool]]


_texts = its.list_of(its.is_text)
_facts = its.table_of(its.table_with({"title": its.is_text, "rounds": its.is_whole}, {"needs": its.or_null(_texts)}))
_asked = its.list_of(its.table_with({"id": its.is_text}))
_HISTORY = its.table_with(
    {"clients": _texts}, {"groups": _texts, "rounds": its.is_count, "numbers": its.is_table, "purged": _texts}
)
_histories = its.table_of(_HISTORY)
_LOG = its.table_with({"file": its.is_name, "length": its.is_count, "sha256": its.is_text})
_scored = its.table_with(
    {},
    {
        **dict.fromkeys(("forget", "mia"), its.either(its.is_text, its.is_percent)),
        "rows": its.table_of(its.is_count),
    },
)
_parts = its.table_with({}, dict.fromkeys(("published", "flip"), _scored))


def is_probed(value: Any) -> bool:
    """What was measured of one model: tables, and in those whose noise is told, percents and rows."""
    return its.table_of(its.is_table)(value) and _parts(value)


_measured = its.table_with(dict.fromkeys(("unlearned", "retrain", "before"), is_probed))
_BEGINNING = its.table_with(
    {
        **dict.fromkeys(("went_in", "begun", "changes"), its.table_of(its.is_text)),
        "shapes": its.table_of(its.list_of(its.is_count)),
    }
)
_DIARY = its.table_with({}, {"beginning": its.or_null(_BEGINNING)})
TEXT: Fits = ("a text", its.is_text)
TABLE: Fits = ("a table", its.is_table)
COUNT: Fits = ("a whole number from 0 on", its.is_count)
YES: Fits = ("true or false", its.is_yes)
TEXTS: Fits = ("a list of texts", _texts)


def or_none(fits: Fits) -> Fits:
    return f"{fits[0]} or null", lambda value: value is None or fits[1](value)


DESCRIPTION: dict[str, Fits] = {
    "name": TEXT,
    "created": TEXT,
    "config": TABLE,
    "seeds": ("a list of whole numbers", its.list_of(its.is_whole)),
    "clients": TEXTS,
    "versions": ("a table of texts", lambda value: isinstance(value, dict) and _texts(list(value.values()))),
    "hardware": TEXT,
    "device": TEXT,
    "engine": TEXT,
    "parameters": COUNT,
    "requests": ("a list of tables, each with its id", _asked),
}
DESCRIPTION_MAY: dict[str, Fits] = {
    "initial": or_none(TEXT),
    "chunk": or_none(COUNT),
    "topped_up_clients": TEXTS,
    "methods": ("a table of methods, each with title, needs and rounds", _facts),
    "rounds": TABLE,
    "backdoor": or_none(TABLE),
    "recovered_within": ("a number", its.is_plain_number),
}
STATE: dict[str, Fits] = {"round": COUNT, "done": YES, "model": YES, "numbers": TABLE, "offset": COUNT}
STATE_MAY: dict[str, Fits] = {
    "finished": or_none(TEXT),
    "rounds": COUNT,
    "versions": ("a table of texts", its.table_of(its.is_text)),
    "diary": ("a table of notes, with the changes and shapes of the model that it began at", _DIARY),
    "histories": ("a table of histories, each with its clients", _histories),
    "log": ("a table with the file of the histories, its length and SHA-256", _LOG),
    "base": ("a table that names a model", its.table_with({}, {"model": its.or_null(its.is_text)})),
    "start": ("a whole number from 1 on", lambda value: its.is_whole(value) and value >= 1),
    "bound": ("a table of digests", its.table_of(its.or_null(its.is_text))),
    "purged": TEXT,
    "pruned": TEXT,
}
_MEMBER = {"round": its.is_count, "done": its.is_yes, "model": its.is_yes, "numbers": its.is_table, "groups": _texts}
COHORT: dict[str, Fits] = {
    "seeds": ("a list of whole numbers", its.list_of(its.is_whole)),
    "members": ("a list of states, one for each seed", its.list_of(its.table_with(_MEMBER))),
}
MODEL_MAY: dict[str, Fits] = {"sha256": ("a table of tensors' digests", its.table_of(its.is_text))}
SCORES_MAY: dict[str, Fits] = {"without": TEXTS, "over": TEXTS}
UNDOING: dict[str, Fits] = {
    "seed": COUNT,
    "request": TEXT,
    "method": TEXT,
    "title": TEXT,
    "models": TABLE,
    "measured": ("a table of three models, each with its measurements", _measured),
}
UNDOING_MAY: dict[str, Fits] = {"perturbed": or_none(TABLE), "effort": or_none(TABLE), "over": TEXTS, "without": TEXTS}
_CENSUS = its.table_with(
    {
        **dict.fromkeys(("all", "retain", "forget", "val", "classes"), its.is_count),
        "shape": its.list_of(its.is_count, least=1),
        "allow": its.list_of(its.is_text),
    }
)
CLIENTS: dict[str, Fits] = {
    "order": TEXTS,
    "held": ("a table of clients, each with the rows that it holds", its.table_of(_CENSUS)),
}
CLIENTS_MAY: dict[str, Fits] = {
    "names": ("a table of clients, each with every name that it went by", its.table_of(its.list_of(its.is_text)))
}
FLOWER_RUNS: dict[str, Fits] = {
    "runs": (
        "a list of Flower runs, each with its number and state",
        its.list_of(its.table_with({"run": its.is_text, "state": its.is_text})),
    )
}
TOMBSTONE: dict[str, Fits] = {"file": TEXT, "sha256": TEXT, "request": TEXT, "date": TEXT}


def checked(
    raw: Any,
    where: str,
    must: Mapping[str, Fits],
    may: Mapping[str, Fits] | None = None,
    remedy: str = "restore it from a copy",
) -> dict[str, Any]:
    """The table, if every field has its type; else one sentence that names the file and the field."""
    if not isinstance(raw, dict):
        raise UnfedError(f"{where} is damaged (it is no table of fields); {remedy}.")
    for name, (what, fits) in {**must, **(may or {})}.items():
        if name not in raw:
            if name in must:
                raise UnfedError(f"{where} has no {name}; {remedy}.")
        elif not fits(raw[name]):
            raise UnfedError(f"{where} has {str(raw[name])[:60]!r} as its {name}, not {what}; {remedy}.")
    return raw


def checked_description(raw: Any, where: str) -> dict[str, Any]:
    """What `run.json` says, with every field that is read of its type."""
    found = checked(raw, where, DESCRIPTION, DESCRIPTION_MAY)
    for asked in found["requests"]:
        check_id(asked["id"], f"request id in {where}")
    return found
