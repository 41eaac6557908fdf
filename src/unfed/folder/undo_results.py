"""What a run folder tells of undoing: which models could be probed, and what was measured of them.

    undo/SEED/REQUEST/METHOD.json          one file per model that was probed, beside Retrain and the model before

Nothing is built to read it. A file speaks of the models whose digests it names; once another model lies in the folder,
it is not shown any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfed import records, storage
from unfed.config.config import Config
from unfed.data import Request
from unfed.folder.folder import RunFolder, digests_at
from unfed.folder.layout import ScoresHeader, Undoing
from unfed.model.digest import fingerprint
from unfed.records import Count, Edition, JsonRecord
from unfed.requests import book as books
from unfed.requests.book import in_force
from unfed.requests.entry import Entry, Job

SCHEMA = 1


@dataclass(frozen=True)
class Target:
    """One model to be probed: what made it, under which requests, and at which model it began."""

    job: Job
    requests: tuple[Request, ...]
    previous: Job
    entry: Entry | None = None
    """The request as it was served, with hyperparameters of its own; None in a comparison."""

    @property
    def name(self) -> str:
        return "/".join(self.job.path.parts)


def targets(folder: RunFolder, config: Config) -> list[Target]:
    """Every model that a method left on a request, of the comparison and of what was served."""
    found: list[Target] = []
    asked = config.requests()
    for one in config.seed_list:
        trained, entries = Job(one, None, "train"), {e.request.id: e for e in folder.book().entries}
        for i, request in enumerate(asked):
            for label in config.methods.run:
                before = Job(one, asked[i - 1].id, label) if i else trained
                found.append(Target(Job(one, request.id, label), asked[: i + 1], before))
        previous, before, place = trained, trained, None
        for entry in in_force(e for e in entries.values() if e.seed == one):
            earlier = [entries[name].request for name in entry.earlier if name in entries]
            job = Job(one, entry.request.id, entry.method)
            mates = [e.request for e in entries.values() if e.number in entry.together and e.number != entry.number]
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
