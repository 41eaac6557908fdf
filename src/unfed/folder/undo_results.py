"""What a run folder tells of undoing: which models could be probed, and what was measured of them.

    undo/SEED/REQUEST/METHOD.json          one file per model that was probed, beside Retrain and the model before

Nothing is built to read it. A file speaks of the models whose digests it names; once another model lies in the folder,
it is not shown any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def read(folder: RunFolder, job: Job) -> dict[str, Any] | None:
    """What was measured of a model, in a layout that this version knows; None where nothing was."""
    path = file_of(folder, job)
    return read_at(path) if path.exists() else None


def read_at(path: Path) -> dict[str, Any] | None:
    """What a file of undoing says, every field of its type; None where its layout is another."""
    where = f"The undoing at {path}"
    raw = storage.read_json(path, "undoing")
    if records.read(Edition, raw, where).number != SCHEMA:
        return None
    records.read(Undoing, raw, where)
    return dict(raw)


def left_out(path: Path) -> tuple[str, ...]:
    """The requests of whose rows a file of undoing does not speak, whichever layout it has."""
    return records.read(ScoresHeader, storage.read_json(path, "undoing"), f"The undoing at {path}").without


def measured(folder: RunFolder, config: Config) -> list[dict[str, Any]]:
    """What is known of the models that lie in the folder now; what was measured of others is not shown."""
    if not (folder.path / "undo").exists():
        return []
    found = [(target.job, read(folder, target.job)) for target in targets(folder, config)]
    return [
        whole
        for job, whole in found
        if whole is not None and whole["models"].get("unlearned") == (model_digest(folder, job) or _purged(folder, job))
    ]


def _purged(folder: RunFolder, job: Job) -> str | None:
    """Which model lay there until it was purged, by its job's state."""
    return None if folder.buried(job) is None else folder.came_out(job)


def purged(folder: RunFolder) -> list[str]:
    """The requests of which a probe was purged and none was made since."""
    files = (file for file in books.tombstones(folder.path) if file.startswith("undo/") and "#" not in file)
    return sorted({Path(file).parts[2] for file in files if not (folder.path / file).exists()})


# --- advice on layers -------------------------------------------------------------------------------------------------


STUDY_SCHEMA = 1
THEORY, ADVICE = "theory", "advice"


class StudiedModel(JsonRecord):
    """A model that a study speaks of."""

    job: tuple[Count, str | None, str]
    digest: str | None

    def model_post_init(self, _: Any) -> None:
        Job(*self.job)  # none of its words leads out of the folder


class Study(JsonRecord):
    """The models that a study speaks of, by their roles."""

    models: Mapping[str, StudiedModel]


class Advised(JsonRecord):
    """Which layer to take, and how."""

    layer: str
    perturbation: str
    why: tuple[str, ...]
    doubts: tuple[str, ...]


class AdviceFile(Study):
    """What `unfed suggest RUN` found."""

    seed: Count
    advice: Advised


ASK_AGAIN = "delete it, and ask again"


def advice_file(folder: RunFolder, seed: int) -> Path:
    """Where the advice on a repetition's model is kept."""
    return folder.path / ADVICE / f"{seed}.json"


def models_of(folder: RunFolder, jobs: Mapping[str, Job]) -> dict[str, dict[str, Any]]:
    """Which models a study speaks of: by role, the job that left it and the digest of its file."""
    return {
        role: {"job": [job.seed, job.request, job.label], "digest": model_digest(folder, job)}
        for role, job in jobs.items()
    }


def _models(study: Study) -> list[tuple[Job, str | None]]:
    """The models that a study speaks of, as it read_study them."""
    return [(Job(*one.job), one.digest) for one in study.models.values()]


def keep_study(path: Path, found: Mapping[str, Any]) -> None:
    """Write a study down."""
    storage.write_json(path, {"schema": STUDY_SCHEMA, **found})


def study_files(folder: RunFolder, seed: int) -> Iterator[tuple[Path, list[Job]]]:
    """The studies of a repetition, and the jobs whose models each speaks of."""
    for path in (*sorted((folder.path / THEORY / str(seed)).glob("*.json")), advice_file(folder, seed)):
        if path.exists():
            found = records.read(Study, storage.read_json(path, "study"), str(path), ASK_AGAIN)
            yield path, [job for job, _ in _models(found)]


def read_study(folder: RunFolder, path: Path) -> dict[str, Any] | None:
    """A study of the models that lie in the folder now.

    None where they are others, or its layout is.
    """
    raw = storage.read_json(path, "study")
    if records.read(Edition, raw, str(path), ASK_AGAIN).number != STUDY_SCHEMA:
        return None
    kind = AdviceFile if path.relative_to(folder.path).parts[0] == ADVICE else Study
    found = records.read(kind, raw, str(path), ASK_AGAIN)
    return dict(raw) if all(model_digest(folder, job) == was for job, was in _models(found)) else None


def advice_of_run(folder: RunFolder) -> list[dict[str, Any]]:
    """The advice that still speaks of this folder's models."""
    found = (read_study(folder, path) for path in sorted((folder.path / ADVICE).rglob("*.json")))
    return [one for one in found if one is not None]
