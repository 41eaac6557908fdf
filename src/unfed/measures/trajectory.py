"""A line of a run's trajectory: one evaluated round of one job, as it stands in `trajectory.jsonl`.

    {"seed": 0, "request": "r1", "method": "not", "round": 3, "done": false, "model": true, "retain": 97.1, …}

`line` makes one, `write` and `read` bring it to the file and back. `Line` says which keys there are and of which type;
a key that is not known is kept as it is, so that a later version may add some.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Required, Unpack, cast

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict  # the one that pydantic reads on Python 3.11

from unfed import records
from unfed.errors import UnfedError
from unfed.records import Count, Whole
from unfed.values import Value


def _one_of(kind: Any) -> AfterValidator:
    """Check a value against types that its readers need not tell apart."""

    def same(value: Any) -> Any:
        if not records.fits(kind, value):
            raise ValueError("it should be a number, a text, or a list or table of these")
        return value

    return AfterValidator(same)


Metric = Value | list[Value]
Metrics = dict[str, Annotated[Any, _one_of(Metric)]]
"""What a Flower app says of a model, under its own names."""
Said = dict[str, Annotated[Any, _one_of(str | dict[str, Metric])]]
"""Metrics of each client, or the reason why there are none."""


class RefusedUpdate(TypedDict):
    """An update that was not averaged."""

    round: Whole
    client: str
    reason: str


class Watched(TypedDict):
    """What a rule that stops at `forgotten` saw: the verdict, in words, and its checks by name."""

    verdict: str
    said: str
    checks: dict[str, Any]


class LeftOut(TypedDict):
    """How many rows of each class that left a client left out, and of how many."""

    rows: dict[str, Whole]
    of: Whole


class TurnedBack(TypedDict, total=False):
    """What an app says of the last model with the perturbation taken back, or the reason why nothing."""

    evaluate: Metrics
    server: Metrics
    leaver: Said
    reason: str


class OfApp(TypedDict, total=False):
    """What a Flower app that is not unfed's own says of a round's model, under its own names."""

    fingerprint: str
    """Of the model after the round."""
    train: Metrics
    evaluate: Metrics
    """What those who stay say, as the app's strategy sums it up."""
    evaluated: list[str]
    """Who of them was asked."""
    server: Metrics
    """What the server's own evaluation says."""
    leaver: Said
    """What each who left says, with its leave; or why it says nothing."""
    left_out: dict[str, LeftOut]
    """By client."""
    heavy: list[str]
    """Replies with more than half of the weight of all."""
    turned_back: TurnedBack
    unmeasured: dict[str, str]
    """What could not be measured of the last model, and why."""


class Notes(TypedDict, total=False):
    """What stands in a line only where there is something to say."""

    asked: dict[Annotated[str, Field(pattern=r"^[0-9]{1,15}$")], list[str]]
    """Round → the clients that were asked, since the line before."""
    refused: list[RefusedUpdate]
    earlier: dict[str, Value]
    """Accuracy on what each earlier request takes out, by its id."""
    own: Value | None
    """Accuracy on what the request itself takes out, where others left before it and `forget` counts theirs too."""
    rows: dict[str, Annotated[int, Field(ge=1)]]
    """How many rows an accuracy is of, by its name; the MIA compares equally many of `forget` and `test`."""
    start: Annotated[int, Field(ge=1)]
    """From 2 on where a job was begun again at another model in force."""
    keep_model: str
    """Which epoch's model counts, where it is not the last."""
    app: OfApp
    """What an app that is not unfed's own measured."""
    watched: Watched
    """How far the request is forgotten, on the half of its rows that the rule that stops looks at."""


class Line(Notes, total=False):
    """One evaluated round."""

    seed: Required[Whole]
    request: Required[str | None]
    method: Required[str]
    round: Required[Count]
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


def read(text: str | bytes, where: str) -> Line:
    """The line that `write` wrote, or one sentence that names the place and the field."""
    try:
        raw = records.parsed(text)
    except ValueError as error:
        raise UnfedError(f"{where} is damaged ({error}); restore the file.") from error
    records.read(Line, raw, where, "restore the file")
    return cast(Line, raw)  # as it was written, with the keys of a later version


JobKey = tuple[int, str | None, str]
"""(seed, request, method)."""


def job_of(line: Line) -> JobKey:
    """The job that a line belongs to."""
    return line["seed"], line["request"], line["method"]


def last_of_each(lines: Sequence[Line]) -> dict[JobKey, Line]:
    """The last line of every job."""
    return {job_of(line): line for line in lines}
