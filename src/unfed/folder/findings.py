"""What a run folder knows of which layer to take.

    advice/SEED.json                 which layer of the model in force to perturb, and how (`unfed suggest RUN`)
    theory/SEED/REQUEST.json         written by older versions: not shown any more, and a purge still takes it along

Nothing is built to read it. A file speaks of the models whose digests it names; once one of them is another, or gone,
it is not shown any more. Files hold no date and no duration: the same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unfed import json_checks as its
from unfed import storage
from unfed.config.reading import check_id, check_label
from unfed.errors import UnfedError
from unfed.folder.folder import RunFolder
from unfed.folder.schema import COUNT, Fits, checked
from unfed.folder.undo_results import model_digest
from unfed.requests.entry import Job

SCHEMA = 1
THEORY, ADVICE = "theory", "advice"


def _is_job(value: Any) -> bool:
    """Whether these are the words of a job, none of which leads out of the folder."""
    try:
        seed, request, label = value
        check_label(label)
        return its.is_count(seed) and (request is None or bool(check_id(request, "request id")))
    except (TypeError, ValueError, UnfedError):
        return False


MODELS: dict[str, Fits] = {
    "models": (
        "a table of models, each with its job and digest",
        its.table_of(its.table_with({"job": _is_job, "digest": its.or_null(its.is_text)})),
    )
}
_TEXTS = its.list_of(its.is_text)
_ADVISED = its.table_with(
    {"layer": its.is_text, "perturbation": its.is_text, "why": _TEXTS, "doubts": _TEXTS},
)
STUDY: dict[str, dict[str, Fits]] = {
    THEORY: MODELS,
    ADVICE: {**MODELS, "seed": COUNT, "advice": ("a table with layer, perturbation, why and doubts", _ADVISED)},
}
AGAIN = "delete it, and ask again"


def advice_file(folder: RunFolder, seed: int) -> Path:
    """Where the advice on a repetition's model is kept."""
    return folder.path / ADVICE / f"{seed}.json"


def models_of(folder: RunFolder, jobs: Mapping[str, Job]) -> dict[str, dict[str, Any]]:
    """Which models a study speaks of: by role, the job that left it and the digest of its file."""
    return {
        role: {"job": [job.seed, job.request, job.label], "digest": model_digest(folder, job)}
        for role, job in jobs.items()
    }


def _models(study: Mapping[str, Any]) -> list[tuple[Job, str | None]]:
    """The models that a study speaks of, as it read them."""
    return [(Job(*one["job"]), one["digest"]) for one in study["models"].values()]


def keep(path: Path, found: Mapping[str, Any]) -> None:
    """Write a study down."""
    storage.write_json(path, {"schema": SCHEMA, **found})


def files(folder: RunFolder, seed: int) -> Iterator[tuple[Path, list[Job]]]:
    """The studies of a repetition, and the jobs whose models each speaks of."""
    for path in (*sorted((folder.path / THEORY / str(seed)).glob("*.json")), advice_file(folder, seed)):
        if path.exists():
            found = checked(storage.read_json(path, "study"), str(path), MODELS, remedy=AGAIN)
            yield path, [job for job, _ in _models(found)]


def read(folder: RunFolder, path: Path) -> dict[str, Any] | None:
    """A study of the models that lie in the folder now.

    None where they are others, or its layout is.
    """
    found = checked(storage.read_json(path, "study"), str(path), {"schema": COUNT}, remedy=AGAIN)
    if found["schema"] != SCHEMA:
        return None
    checked(found, str(path), STUDY[path.relative_to(folder.path).parts[0]], remedy=AGAIN)
    return found if all(model_digest(folder, job) == was for job, was in _models(found)) else None


def of_run(folder: RunFolder) -> list[dict[str, Any]]:
    """The advice that still speaks of this folder's models."""
    found = (read(folder, path) for path in sorted((folder.path / ADVICE).rglob("*.json")))
    return [one for one in found if one is not None]
