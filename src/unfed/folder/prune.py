"""Pruning: a run folder keeps what results, requests and resuming need, and no more.

    samples/…      scores of single rows: those of each job's last round stay, or none; nothing is computed from them
    state/…        of a job that has ended: the tensors that `models/…` holds too go, and are read from there

Nothing that can be asked of the folder changes: a job that is asked for more rounds goes on from the same bytes. Each
file is taken away or written anew by itself, so a process killed at any moment leaves a whole folder, and the next
pruning goes on. Nothing is forgotten by it: that is what `purge.py` is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unfed import storage
from unfed.errors import UnfedError, typed
from unfed.folder import purge
from unfed.folder.folder import BEST, PARAMS, PRUNED, RunFolder, saved_at
from unfed.model.digest import digests, fingerprint

Keep = Literal["all", "last", "none"]


@dataclass(frozen=True)
class Freed:
    """What was taken away, or would be."""

    file: str
    """Its path inside the run folder, with slashes."""
    bytes: int
    what: Literal["scores", "model in state"]


def prune(folder: RunFolder, samples: Keep = "last", states: bool = True, dry_run: bool = False) -> list[Freed]:
    """Take away old scores of single rows, and second copies of models; pruning twice is pruning once."""
    folder.writable(folder.description())
    with folder.lock() as free:
        if not free:
            raise UnfedError(
                f"Another process is at work in {folder.path} and may need what would be pruned; wait for it"
                f" (`{typed('status', folder.path)}`)."
            )
        if not dry_run:
            purge.finish(folder)  # a tombstone names a file by its SHA-256, which pruning changes
        freed = [_removed(folder, path, dry_run) for path in _old_scores(folder, samples)]
        if states:
            paths = sorted((folder.path / "state").rglob("*.safetensors"))
            freed += [one for path in paths if (one := _slimmed(folder, path, dry_run)) is not None]
    return freed


def _old_scores(folder: RunFolder, keep: Keep) -> Iterator[Path]:
    rounds: dict[Path, list[Path]] = {}
    for path in sorted((folder.path / "samples").rglob("*.safetensors")):
        rounds.setdefault(path.parent, []).append(path)
    for paths in rounds.values():
        yield from {"all": [], "last": paths[:-1], "none": paths}[keep]


def _removed(folder: RunFolder, path: Path, dry_run: bool) -> Freed:
    freed = Freed(path.relative_to(folder.path).as_posix(), path.stat().st_size, "scores")
    if not dry_run:
        storage.remove(path)
    return freed


def _slimmed(folder: RunFolder, path: Path, dry_run: bool) -> Freed | None:
    """Leave out of a state what the model of its job holds, if that is the one it vouches for."""
    saved, model = saved_at(path), folder.path / "models" / path.relative_to(folder.path / "state")
    if saved is None or not (saved.finished and (said := saved.bound.model) and model.exists()):
        return None
    if saved.pruned is not None or saved.purged is not None:
        return None
    if fingerprint(digests(storage.load(model, "model")[0])) != said:
        raise UnfedError(f"The model {model} is not the one that its job left; see `{typed('check', folder.path)}`.")
    tensors, numbers = storage.load(path, "saved state")
    groups = storage.part(tensors)
    twice = next(
        (name for name in (BEST, PARAMS) if name in groups and fingerprint(digests(groups[name])) == said), None
    )
    if twice is None:
        return None
    left = storage.join({name: group for name, group in groups.items() if name != twice})
    data = storage.packed(left, {**numbers, PRUNED: twice})
    freed = Freed(path.relative_to(folder.path).as_posix(), path.stat().st_size - len(data), "model in state")
    if not dry_run:
        storage.write_bytes(path, data)
    return freed
