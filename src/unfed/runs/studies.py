"""What a run folder knows of the paper's claims about its models, and of which layer to take.

    theory/SEED/REQUEST.json         verdicts on the models of a request (`unfed theory RUN`)
    advice/SEED.json                 which layer of the model in force to perturb, and how (`unfed suggest RUN`)

Nothing is built to read it. A file speaks of the models whose digests it names; once one of them is another, or gone,
it is not shown any more. Files hold no date and no duration: the same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import UnfedError
from unfed.runs.folder import Job, RunFolder
from unfed.runs.undo_results import model_digest

SCHEMA = 1
THEORY, ADVICE = "theory", "advice"


def theory_file(folder: RunFolder, seed: int, request: str) -> Path:
    """Where the verdicts on the models of a request are kept."""
    return folder.path / THEORY / str(seed) / f"{request}.json"


def advice_file(folder: RunFolder, seed: int) -> Path:
    """Where the advice on a repetition's model is kept."""
    return folder.path / ADVICE / f"{seed}.json"


def models_of(folder: RunFolder, jobs: Mapping[str, Job]) -> dict[str, dict[str, Any]]:
    """Which models a study speaks of: by role, the job that left it and the digest of its file."""
    return {
        role: {"job": [job.seed, job.request, job.label], "digest": model_digest(folder, job)}
        for role, job in jobs.items()
    }


def _models(path: Path, study: Mapping[str, Any]) -> list[tuple[Job, str | None]]:
    """The models that a study speaks of, as it read them."""
    try:
        return [(Job(*one["job"]), one["digest"]) for one in study["models"].values()]
    except (KeyError, TypeError, AttributeError) as error:
        raise UnfedError(f"{path} does not say which models it speaks of; delete it, and ask again.") from error


def keep(path: Path, found: Mapping[str, Any]) -> None:
    """Write a study down."""
    storage.write_json(path, {"schema": SCHEMA, **found})


def files(folder: RunFolder, seed: int) -> Iterator[tuple[Path, list[Job]]]:
    """The studies of a repetition, and the jobs whose models each speaks of."""
    for path in (*sorted((folder.path / THEORY / str(seed)).glob("*.json")), advice_file(folder, seed)):
        if path.exists():
            yield path, [job for job, _ in _models(path, storage.read_json(path, "study"))]


def read(folder: RunFolder, path: Path) -> dict[str, Any] | None:
    """A study of the models that lie in the folder now.

    None where they are others, or its layout is.
    """
    found: dict[str, Any] = storage.read_json(path, "study")
    if found.get("schema") != SCHEMA:
        return None
    return found if all(model_digest(folder, job) == was for job, was in _models(path, found)) else None


def of_run(folder: RunFolder) -> dict[str, list[dict[str, Any]]]:
    """All studies that still speak of this folder's models."""
    return {
        what: [one for path in sorted((folder.path / what).rglob("*.json")) if (one := read(folder, path)) is not None]
        for what in (THEORY, ADVICE)
    }
