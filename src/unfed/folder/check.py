"""Check whether a run folder is whole: compare all files with what the others say of them.

    run.json ─ states ─ trajectory ─ models ─ requests ─ samples ─ what was measured of models ─ what was handed out

Each fault is one sentence. What was purged has a tombstone and is no fault, nor is what an interrupted process left (a
torn last line, temporary files): it is cut off or swept when work goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.config.config import Config
from unfed.errors import UnfedError, typed
from unfed.folder import carriers, consistency, deny, study_results
from unfed.folder.folder import RunFolder, left_out_at, saved_at
from unfed.folder.histories import HistoryLog
from unfed.folder.layout import client_list, flower_runs
from unfed.folder.purge import pending
from unfed.requests import book as books
from unfed.requests.entry import SHARED, Entry
from unfed.requests.saved_state import SavedState


@dataclass
class Found:
    """What a look through a folder found."""

    findings: list[str] = field(default_factory=list)
    """One sentence for each thing that is wrong."""
    counted: dict[str, int] = field(default_factory=dict)
    """How much of what was looked through."""

    @property
    def whole(self) -> bool:
        return not self.findings


def check(folder: RunFolder) -> Found:
    """Look through a folder. Nothing is changed, nothing that it names is built."""
    found = Found()
    description = _try(found, folder.description)
    if description is None:
        return found
    _try(found, Config.kept, description.config, str(folder.path / "run.json"))
    buried = _try(found, books.tombstones, folder.path) or {}
    filed = _try(found, books.filed_list, folder.path)
    entries = _try(found, folder.filed)
    if entries is not None and filed is not None:
        found.findings += _try(found, books.missing, folder.path, entries, filed) or []
    states = _states(found, folder, buried)
    lines = _try(found, folder.lines) or []
    _models(found, folder, states, buried)
    for path, graves in (_try(found, pending, folder.path) or {}).items():
        found.findings.append(
            f"{path} was to be purged for request {graves[0].request!r} and is still there;"
            f" `{typed('purge', folder.path, '--request', graves[0].request, '--yes')}` goes on."
        )
    samples = list(_files(folder.path / "samples"))
    for path in samples:
        _try(found, storage.load, path, "scores")
        _try(found, left_out_at, path)
    _beside(found, folder)
    found.findings += _links(folder.path)
    if entries is not None:
        named = {line["request"] for line in lines} | {_request_of(folder, path) for path in states}
        known = {asked.id for asked in description.requests} | {entry.request.id for entry in entries} | {None}
        known |= {f"{SHARED}{entry.number}" for entry in entries}
        of_graves = {grave.request for grave in buried.values()}
        for name in sorted(str(one) for one in named - known - of_graves):
            lost = f"{folder.path} has work on a request {name!r} that is not filed here"
            found.findings.append(f"{lost}; restore requests/ from a copy.")
        found.findings += _try(found, _promised, folder, entries) or []
    found.counted |= {"lines": len(lines), "states": len(states), "samples": len(samples)}
    found.counted["requests"] = len(entries or [])
    return found


def _beside(found: Found, folder: RunFolder) -> None:
    """What was measured of models, what was handed out, clients elsewhere, and the deny list's key.

    The first are probes, studies and judged populations.
    """
    for path in sorted((folder.path / "undo").rglob("*.json")):
        _try(found, study_results.read_at, path)
    for path in study_results.study_files(folder):
        _try(found, study_results.studied, path)
    for read in (study_results.of_run, carriers.handed):
        _try(found, read, folder)
    for own in (client_list, flower_runs, deny.key_in):
        _try(found, own, folder.path)


def _links(folder: Path) -> Iterator[str]:
    """What lies elsewhere: it is not copied with the folder, and would outlive a purge."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and (consistency.leads_out(folder, path) or not path.exists()):
            yield f"{path} is a link out of the folder, or to nothing; put the file in its place."


def _try(found: Found, read: Callable[..., Any], *of: Any) -> Any:
    """What `read` returns of these, or None with a finding."""
    try:
        return read(*of)
    except UnfedError as error:
        if str(error) not in found.findings:
            found.findings.append(str(error))
    except (OSError, RecursionError) as error:
        found.findings.append(f"Something could not be read ({error}); restore it from a copy.")
    return None


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.rglob("*.safetensors"))


def _states(found: Found, folder: RunFolder, buried: Container[str]) -> dict[Path, SavedState]:
    states: dict[Path, SavedState] = {}
    for path in _files(folder.path / "state"):
        _try(found, storage.verify, path, "saved state")
        saved = _try(found, saved_at, path)
        if saved is not None:
            states[path] = saved
            log = path.with_name(path.name if saved.log is None else saved.log.file)
            if log.relative_to(folder.path).as_posix() not in buried:
                _try(found, HistoryLog(path).verify, saved)
        for kept in folder.kept_states(path).values():
            _try(found, storage.verify, kept, "kept state")
    return states


def _request_of(folder: RunFolder, state: Path) -> str | None:
    parts = state.relative_to(folder.path / "state").parts
    return parts[1] if len(parts) > 2 else None


def _models(
    found: Found,
    folder: RunFolder,
    states: dict[Path, SavedState],
    buried: dict[str, books.Tombstone],
) -> None:
    """Every model is the one that its state vouches for, and none that a state vouches for is missing."""
    models = {path.relative_to(folder.path / "models"): path for path in _files(folder.path / "models")}
    found.counted["models"] = len(models)
    of_state = {path.relative_to(folder.path / "state"): saved for path, saved in states.items()}
    for job, saved in of_state.items():
        file = f"models/{job.as_posix()}"
        if saved.bound.model and saved.finished and job not in models and file not in buried:
            found.findings.append(consistency.gone(folder.path / file))
    for job, path in models.items():
        _try(found, consistency.model_at, path, of_state.get(job))
        if job not in of_state and f"state/{job.as_posix()}" not in buried:
            found.findings.append(f"No state vouches for the model {path}; restore state/ from a copy.")


def _promised(folder: RunFolder, entries: list[Entry]) -> list[str]:
    """Requests that are fulfilled by a model, or by other requests, that are not there."""
    done, found = {entry.request.id for entry in entries if entry.state == "fulfilled"}, []
    for entry in entries:
        name, model = entry.request.id, folder.model_file(entry.job)
        for other in (one for one in entry.left_by if one not in done):
            found.append(f"Request {name!r} is fulfilled by request {other!r}, which is not; restore requests/.")
        by_model = name in done and not entry.left_by
        if by_model and not model.exists() and not folder.buried(entry.job):
            found.append(f"Request {name!r} is fulfilled by {model}, which is gone; restore it.")
    return found
