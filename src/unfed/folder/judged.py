"""What a run folder knows of populations: one file per request, which the report shows.

    population/REQUEST.json          what `unfed judge` found in a population of the run's config

Nothing is built to read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from unfed import records, storage
from unfed.errors import UnfedError
from unfed.folder.folder import RunFolder
from unfed.measures.population.attacks import ATTACKS
from unfed.records import Count, Edition, JsonRecord, Number, Plain, Share

SCHEMA = 1
FILE = "judged.json"
"""The same in a population's own folder."""
AGAIN = "delete it, and judge the population again with `unfed judge … --run`"


class JudgedInterval(JsonRecord):
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


class BesideRetrain(JsonRecord):
    """A number beside Retrain's."""

    value: float
    retrain: float


Measured = float | str | JudgedInterval | BesideRetrain
"""A number, with what belongs to it, or why there is none."""


class Slice(JsonRecord):
    """The rows that an attack recognised best."""

    name: str
    auc: float


class Attacked(JsonRecord):
    """What one attack found."""

    auc: JudgedInterval
    at_1: str | JudgedInterval = Field(alias="tpr_0.01")
    at_01: str | JudgedInterval = Field(alias="tpr_0.001")
    worst_slice: str | Slice
    roc: Annotated[tuple[tuple[Share, Share], ...], Field(min_length=1)]


class ExposedRow(JsonRecord):
    """A row that many models tell."""

    row: str
    auc: float


class JudgedRow(JsonRecord):
    """What was measured of one method's models."""

    attacks: Mapping[str, str | Attacked]
    exposure: tuple[ExposedRow, ...]
    distances: Mapping[str, Measured]
    singles: Mapping[str, Measured]
    accuracy: Mapping[str, Measured]
    standing: Mapping[str, Measured] = {}
    held_out: Mapping[str, Measured] = {}

    @field_validator("attacks")
    @classmethod
    def _all(cls, found: Mapping[str, str | Attacked]) -> Mapping[str, str | Attacked]:
        if missing := [name for name in ATTACKS if name not in found]:
            raise ValueError(f"it has no {missing[0]}")
        return found


class VerdictSaid(JsonRecord):
    """An answer, and its sentence."""

    kind: str
    sentence: str


class TwoAnswers(JsonRecord):
    """Does it remember, and is it unfinished? Earlier versions gave one answer to both."""

    remembers: VerdictSaid
    unfinished: VerdictSaid


class JudgedMethod(JudgedRow):
    """A method with its verdict."""

    title: str
    verdict: VerdictSaid | TwoAnswers


class JudgedYardstick(JudgedRow):
    """Retrain against Retrain."""

    quarter: Count


class TunedBest(JsonRecord):
    """The best trial."""

    drop: float | None = None


class TunedBy(JsonRecord):
    """How a method was tuned."""

    trials: Count
    models: Count
    on: str
    chosen: Plain
    spoiled: bool = False
    best: TunedBest | None = None


class Distributions(JsonRecord):
    """How often a number fell between two edges, by kind of model."""

    edges: Annotated[tuple[Number, ...], Field(min_length=2)]
    shares: Mapping[str, tuple[Share, ...]]


class JudgedRows(JsonRecord):
    """How many rows there are."""

    forget: Count
    __pydantic_extra__: dict[str, Count]


class Judged(JsonRecord):
    """What `unfed judge` found."""

    request: str
    name: str = ""
    hardware: str = ""
    models: Count
    half: Count
    rows: JudgedRows
    methods: Annotated[Mapping[str, JudgedMethod], Field(min_length=1)]
    yardstick: JudgedYardstick
    distributions: Distributions
    unfinished: Mapping[str, Count] = {}
    tuned: Mapping[str, TunedBy] | None = None


def file_of(folder: RunFolder, request: str) -> Path:
    """Where it is kept for a request."""
    return folder.path / "population" / f"{request}.json"


def of_run(folder: RunFolder) -> dict[str, Judged]:
    """What is known of each request, by its id, in a layout that this version knows."""
    there = sorted((folder.path / "population").glob("*.json"))
    found = [_read(path) for path in there]
    return {one.request: one for one in found if one is not None}


def _read(path: Path) -> Judged | None:
    """One file, with every field that is shown of its type; None where its layout is another."""
    raw = storage.read_json(path, "judged population")
    if records.read(Edition, raw, str(path), AGAIN).number != SCHEMA:
        return None
    found = records.read(Judged, raw, str(path), AGAIN)
    shares, bins = found.distributions.shares, len(found.distributions.edges) - 1
    if any(len(shares.get(kind, ())) != bins for kind in ("before", "retrain", *found.methods)):
        raise UnfedError(f"{path} has other distributions than methods; {AGAIN}.")
    return found
