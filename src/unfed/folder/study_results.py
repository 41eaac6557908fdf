"""What a run folder tells of undoing: which models could be probed, and what was measured of them.

    undo/SEED/REQUEST/METHOD.json          one file per model that was probed, beside Retrain and the model before

Nothing is built to read it. A file speaks of the models whose digests it names; once another model lies in the folder,
it is not shown any more.

What a run folder knows of populations: one file per request, which the report shows.

    population/REQUEST.json          what `unfed judge` found in a population of the run's config

Nothing is built to read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from unfed import records, storage
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.folder.folder import RunFolder, digests_at
from unfed.folder.layout import ScoresHeader, Undoing
from unfed.measures.population.attacks import ATTACKS
from unfed.model.params import fingerprint
from unfed.records import Count, Edition, JsonRecord, Number, Plain, Share
from unfed.requests import book as books
from unfed.requests.book import in_force
from unfed.requests.entry import Entry, Job

# --- what a run folder knows of populations: one file per request, which the report shows -----------------------------


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


def judged_file(folder: RunFolder, request: str) -> Path:
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


# --- what a run folder tells of undoing: which models could be probed, and what was measured of them ------------------


@dataclass(frozen=True)
class Target:
    """One model to be probed: what made it, under which requests, and at which model it began."""

    job: Job
    requests: tuple[Request, ...]
    previous: Job
    entry: Entry | None = None
    """The request as it was served, with hyperparameters of its own; None in a comparison."""


def targets(folder: RunFolder, config: Config) -> list[Target]:
    """Every model that a method left on a request, of the comparison and of what was served."""
    found: list[Target] = []
    asked, book = config.requests(), folder.book()
    entries = {e.request.id: e for e in book.entries}
    for one in config.seed_list:
        trained = Job(one, None, "train")
        for i, request in enumerate(asked):
            for label in config.methods.run:
                before = Job(one, asked[i - 1].id, label) if i else trained
                found.append(Target(Job(one, request.id, label), asked[: i + 1], before))
        previous, before, place = trained, trained, None
        for entry in in_force(e for e in entries.values() if e.seed == one):
            earlier = [entries[name].request for name in entry.earlier if name in entries]
            job = Job(one, entry.request.id, entry.method)
            mates = [e.request for e in book.mates(entry)]
            before, place = (previous, entry.served) if entry.served != place else (before, place)
            found.append(Target(job, (*earlier, *mates, entry.request), before, entry))
            previous = job
    return found


def model_digest(folder: RunFolder, job: Job) -> str | None:
    """Which model lies there, by its file's own header; None where none does."""
    path = folder.model_file(job)
    return fingerprint(digests_at(path) or {}) if path.exists() else None


def file_of(folder: RunFolder, job: Job) -> Path:
    """Where a model's undoing is kept."""
    path = folder.path / "undo" / job.path
    return path.with_name(path.name + ".json")


def read(folder: RunFolder, job: Job) -> Undoing | None:
    """What was measured of a model, in a layout that this version knows; None where nothing was."""
    path = file_of(folder, job)
    return read_at(path) if path.exists() else None


def read_at(path: Path) -> Undoing | None:
    """What a file of undoing says, every field of its type; None where its layout is another."""
    where = f"The undoing at {path}"
    raw = storage.read_json(path, "undoing")
    known = records.read(Edition, raw, where).number == SCHEMA
    return records.read(Undoing, raw, where) if known else None


def left_out(path: Path) -> tuple[str, ...]:
    """The requests of whose rows a file of undoing does not speak, whichever layout it has."""
    return records.read(ScoresHeader, storage.read_json(path, "undoing"), f"The undoing at {path}").without


def measured(folder: RunFolder, config: Config) -> list[Undoing]:
    """What is known of the models that lie in the folder now; what was measured of others is not shown."""
    if not (folder.path / "undo").exists():
        return []
    found = [(target.job, read(folder, target.job)) for target in targets(folder, config)]
    return [
        whole
        for job, whole in found
        if whole is not None and whole.models.get("unlearned") == (model_digest(folder, job) or _purged(folder, job))
    ]


def _purged(folder: RunFolder, job: Job) -> str | None:
    """Which model lay there until it was purged, by its job's state."""
    return None if folder.buried(job) is None else folder.came_out(job)


def purged(folder: RunFolder) -> list[str]:
    """The requests of which a probe was purged and none was made since."""
    files = (file for file in books.tombstones(folder.path) if file.startswith("undo/") and "#" not in file)
    return sorted({Path(file).parts[2] for file in files if not (folder.path / file).exists()})


# --- studies of older versions ----------------------------------------------------------------------------------------

STUDIES = ("theory", "advice")
"""Folders into which older versions wrote what they computed from models; they are checked and purged, not shown."""


class StudiedModel(JsonRecord):
    """A model that a study speaks of."""

    job: tuple[Count, str | None, str]
    digest: str | None

    def model_post_init(self, _: Any) -> None:
        Job(*self.job)  # none of its words leads out of the folder


class Study(JsonRecord):
    """The models that a study speaks of, by their roles."""

    models: Mapping[str, StudiedModel]


def studied(path: Path) -> list[Job]:
    """The jobs whose models a study speaks of."""
    found = records.read(Study, storage.read_json(path, "study"), str(path), "delete it")
    return [Job(*one.job) for one in found.models.values()]


def study_files(folder: RunFolder) -> list[Path]:
    """All studies in a folder."""
    return [path for kind in STUDIES for path in sorted((folder.path / kind).rglob("*.json"))]
