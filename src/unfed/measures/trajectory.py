"""A line of a run's trajectory: one evaluated round of one job, as it stands in `trajectory.jsonl`.

    {"seed": 0, "request": "r1", "method": "not", "round": 3, "done": false, "model": true, "retain": 97.1, …}

`line` makes one, `write` and `read` bring it to the file and back: every key is written and checked here and nowhere
else. A key that is not known is kept as it is, so that a later version may add some.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Required, TypedDict, Unpack, cast

from unfed.errors import UnfedError
from unfed.measures.metrics import COLUMNS
from unfed.records import parsed
from unfed.values import Value


class RefusedUpdate(TypedDict):
    """An update that was not averaged."""

    round: int
    client: str
    reason: str


class Watched(TypedDict):
    """What a rule that stops at `forgotten` saw: the verdict, in words, and its checks by name."""

    verdict: str
    said: str
    checks: dict[str, Any]


class OfApp(TypedDict, total=False):
    """What a Flower app that is not unfed's own says of a round's model, under its own names."""

    fingerprint: str
    """Of the model after the round."""
    train: dict[str, Any]
    evaluate: dict[str, Any]
    """What those who stay say, as the app's strategy sums it up."""
    evaluated: list[str]
    """Who of them was asked."""
    server: dict[str, Any]
    """What the server's own evaluation says."""
    leaver: dict[str, Any]
    """What each who left says, with its leave; or why it says nothing."""
    left_out: dict[str, Any]
    """How many rows of each class that left each client left out, and of how many."""
    heavy: list[str]
    """Replies with more than half of the weight of all."""
    turned_back: dict[str, Any]
    """The same of the last model with the perturbation taken back (evaluate, server, leaver), or the reason why not."""
    unmeasured: dict[str, str]
    """What could not be measured of the last model, and why."""


class Notes(TypedDict, total=False):
    """What stands in a line only where there is something to say."""

    asked: dict[str, list[str]]
    """Round → the clients that were asked, since the line before."""
    refused: list[RefusedUpdate]
    earlier: dict[str, Value]
    """Accuracy on what each earlier request takes out, by its id."""
    own: Value | None
    """Accuracy on what the request itself takes out, where others left before it and `forget` counts theirs too."""
    rows: dict[str, int]
    """How many rows an accuracy is of, by its name; the MIA compares equally many of `forget` and `test`."""
    start: int
    """From 2 on where a job was begun again at another model in force."""
    keep_model: str
    """Which epoch's model counts, where it is not the last."""
    app: OfApp
    """What an app that is not unfed's own measured."""
    watched: Watched
    """How far the request is forgotten, on the half of its rows that the rule that stops looks at."""


class Line(Notes, total=False):
    """One evaluated round."""

    seed: Required[int]
    request: Required[str | None]
    method: Required[str]
    round: Required[int]
    done: bool
    model: bool
    retain: Value
    forget: Value
    test: Value
    mia: Value
    validation: Value
    validation_before: Value
    backdoor: Value
    retain_loss: Value
    forget_loss: Value
    test_loss: Value
    loss_gap: Value
    comm_bytes: Value
    wire_bytes: Value
    serialised_bytes: Value
    flops: Value
    stored_server_bytes: Value
    stored_original_bytes: Value
    seconds: Value
    undoes: list[str]
    """Added when it is read: the tensors that a comparison's method turned back to what they were earlier on."""


@dataclass(frozen=True)
class Point:
    """Where a line belongs, and whether the method is done and its params are a usable model."""

    seed: int
    request: str | None
    method: str
    round: int
    done: bool = True
    model: bool = True


def line(
    at: Point, numbers: Mapping[str, Value], before: Value, costs: Mapping[str, Value], **notes: Unpack[Notes]
) -> Line:
    """A line of the trajectory, without what says nothing.

    An empty `earlier` or `rows`, a first `start`, and an `own` or a `keep_model` of None are left out.
    """
    made: dict[str, Any] = {**vars(at), **numbers, "validation_before": before, **costs}
    silent: dict[str, tuple[Any, ...]] = {
        "earlier": ({}, None),
        "own": (None,),
        "rows": ({},),
        "start": (1, None),
        "keep_model": (None,),
    }
    made |= {name: value for name, value in notes.items() if value not in silent.get(name, ())}
    return cast(Line, made)


def forget_of(line: Mapping[str, Any]) -> Any:
    """Accuracy on what the line's own request takes out, no matter who left before it."""
    return line.get("own", line.get("forget"))


def write(line: Mapping[str, Any]) -> str:
    """A line as text, without its end."""
    return json.dumps(line, separators=(",", ":"))


_WHOLE = ("a whole number", lambda value: _whole(value))
_YES = ("true or false", lambda value: isinstance(value, bool))
_VALUE = ("a number, or the sentence that says why there is none", lambda value: _number(value) or _text(value))
_FIELDS: dict[str, tuple[str, Any]] = {
    "seed": _WHOLE,
    "request": ("a request's id, or null", lambda value: value is None or _text(value)),
    "method": ("a method's name", lambda value: _text(value)),
    "round": ("a whole number from 0 on", lambda value: _whole(value) and value >= 0),
    "done": _YES,
    "model": _YES,
    "validation_before": _VALUE,
    **dict.fromkeys(COLUMNS, _VALUE),
    "asked": ("a table of rounds, each with its clients", lambda value: _table(value, _names, whole_keys=True)),
    "refused": ("a list of updates, each with round, client and reason", lambda value: _refusals(value)),
    "earlier": ("a table of accuracies by request", lambda value: _table(value, _VALUE[1])),
    "own": _VALUE,
    "rows": ("a table of whole numbers from 1 on", lambda value: _table(value, lambda n: _whole(n) and n >= 1)),
    "start": ("a whole number from 1 on", lambda value: _whole(value) and value >= 1),
    "keep_model": ("a text", lambda value: _text(value)),
    "watched": ("a table with verdict, said and checks", lambda value: _seen(value)),
    "app": ("a table of what an app measured", lambda value: _of_app(value)),
    "undoes": ("a list of tensors", lambda value: _names(value)),
}


def read(text: str | bytes, where: str) -> Line:
    """The line that `write` wrote, or one sentence that names the place and the field."""
    try:
        raw = parsed(text)
    except ValueError as error:
        raise UnfedError(f"{where} is damaged ({error}); restore the file.") from error
    if not isinstance(raw, dict):
        raise UnfedError(f"{where} is damaged (it is no table of fields); restore the file.")
    for name in ("seed", "request", "method", "round"):
        if name not in raw:
            raise UnfedError(f"{where} is damaged (it has no {name}); restore the file.")
    for name, (what, fits) in _FIELDS.items():
        if name in raw and not fits(raw[name]):
            raise UnfedError(f"{where} has {str(raw[name])[:60]!r} as its {name}, not {what}; restore the file.")
    return cast(Line, raw)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _table(value: object, fits: Any, whole_keys: bool = False) -> bool:
    if not isinstance(value, dict):
        return False
    keys = not whole_keys or all(key.isascii() and key.isdigit() and len(key) < 16 for key in value)
    return keys and all(fits(own) for own in value.values())


def _seen(value: object) -> bool:
    return isinstance(value, dict) and _text(value.get("verdict")) and isinstance(value.get("checks"), dict)


def _of_app(value: object) -> bool:
    """Whether metrics are numbers, words or lists of these, by name, and reasons are texts."""
    rows = {"rows": lambda own: _table(own, _whole), "of": _whole}
    fits: dict[str, Any] = {
        **dict.fromkeys(("train", "evaluate", "server"), _metrics),
        **dict.fromkeys(("evaluated", "heavy"), _names),
        "fingerprint": _text,
        "leaver": lambda own: _table(own, lambda one: _text(one) or _metrics(one)),
        "left_out": lambda own: _table(own, lambda one: isinstance(one, dict) and _fields(one, rows) and len(one) == 2),
        "turned_back": lambda own: isinstance(own, dict) and _fields(own, {**fits, "reason": _text}),
        "unmeasured": lambda own: _table(own, _text),
    }
    return isinstance(value, dict) and _fields(value, fits)


def _fields(value: dict[str, Any], fits: Mapping[str, Any]) -> bool:
    return all(name not in value or fit(value[name]) for name, fit in fits.items())


def _metrics(value: object) -> bool:
    def plain(one: object) -> bool:
        return _number(one) or _text(one)

    return _table(value, lambda one: plain(one) or (isinstance(one, list) and all(map(plain, one))))


def _refusals(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict) and _whole(one.get("round")) and _text(one.get("client")) and _text(one.get("reason"))
        for one in value
    )


JobKey = tuple[int, str | None, str]
"""(seed, request, method)."""


def job_of(line: Line) -> JobKey:
    """The job that a line belongs to."""
    return line["seed"], line["request"], line["method"]


def last_of_each(lines: Sequence[Line]) -> dict[JobKey, Line]:
    """The last line of every job."""
    return {job_of(line): line for line in lines}
