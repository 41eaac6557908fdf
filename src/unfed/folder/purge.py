"""Purging: what still carries a fulfilled request goes for good, and a tombstone says that it did.

    look ──► tombstones.json (file, SHA-256, request, date) ──► take away ──► nothing left that a tombstone names
      └── refused where a later step needs what would go

The tombstones are written first, all at once: they are the intent. What they name and is still there, with that very
SHA-256, is taken away by the same command again, or by the next process in the folder, so a process killed at any
moment has done all of it or will.

    models, scores, probes, exposure  deleted
    histories                         deleted
    another request's scores, probes  only what they tell of its rows goes: its single rows, means over few of them
    trajectory, request files         means go that tell of fewer than 10 rows (`subtraction.py`); means of many stay
    states                            their tensors go; the numbers stay (rounds, costs, what they vouch for)
    states of models without it       what their methods kept beside the model goes

What exclusion needs stays: the request itself, with clients by name, and single rows as keyed hashes (`deny.py`).
Deleting takes a file's name away: backups, snapshots and what a disk keeps are not reached.

Purged is for good: the request's file says so, and from then on no score of a single row of it is written,
no matter who leaves next. What is measured again of it is a share of all its rows (`measures/evaluator.py`).

Pruning: a run folder keeps what results, requests and resuming need, and no more.

    samples/…      scores of single rows: those of each job's last round stay, or none; nothing is computed from them
    state/…        of a job that has ended: the tensors that `models/…` holds too go, and are read from there

Nothing that can be asked of the folder changes: a job that is asked for more rounds goes on from the same bytes. Each
file is taken away or written again by itself, so a process killed at any moment leaves a whole folder, and the next
pruning goes on. Nothing is forgotten by it: that is what `purge.py` is for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

import torch

from unfed import storage
from unfed.config.config import Config
from unfed.errors import UnfedError, listed, typed
from unfed.folder import carriers, consistency, subtraction
from unfed.folder.carriers import Carrier
from unfed.folder.consistency import TRAJECTORY
from unfed.folder.folder import BEST, OVER, PARAMS, PRUNED, WITHOUT, RunFolder, saved_at
from unfed.folder.histories import HISTORY
from unfed.folder.layout import MethodFacts
from unfed.folder.study_results import read_at
from unfed.measures.evaluator import WHOSE
from unfed.model.params import digests, fingerprint
from unfed.requests import book as books
from unfed.requests.book import Tombstone
from unfed.requests.entry import Entry, Job, now

# --- purging: what still carries a fulfilled request goes for good, and a tombstone says that it did ------------------


KINDS = ("models", "state", "samples", "undo", "theory", "advice", "population")
"""The folders in which something can be purged."""
WHOLE = "*"


class Purged(Protocol):
    """What a purge needs of a run; nothing is built."""

    folder: RunFolder
    config: Config

    def jobs(self) -> list[tuple[Job, int]]: ...

    def about(self, label: str, entry: Entry | None = None) -> MethodFacts: ...

    def way_out(self, entry: Entry) -> str: ...

    def letting_go(self, name: str) -> str: ...

    @property
    def going_on(self) -> str: ...

    def command(self, name: str, *arguments: object) -> str: ...


@dataclass(frozen=True)
class PurgeOutcome:
    """What a purge took away, or would."""

    entry: Entry
    gone: tuple[Tombstone, ...]
    """What it took away now."""
    before: tuple[Tombstone, ...]
    """What had been purged for the same request already."""


def purge(run: Purged, request: str, dry_run: bool = False, agreed: Collection[str] | None = None) -> PurgeOutcome:
    """Take away what still carries a fulfilled request; purging twice is purging once.

    `agreed` are the tombstones that were shown before someone said yes: nothing else goes.
    """
    folder = run.folder
    with folder.lock() as free:
        if not free:
            raise UnfedError(
                f"Another process is at work in {folder.path} and may need what would be purged; wait for it"
                f" (`{run.command('status')}`)."
            )
        if not dry_run:
            finish(folder)
        with folder.lock("requests", wait=True):  # no one files a request that needs it between the look and the word
            book = folder.book()
            entries = book.entries
            entry = _fulfilled(run, request, entries)
            found = carriers.carriers(folder, book, entry)
            doomed = _doomed(folder, found, entries)
            if doomed:
                _refuse_if_needed(run, entry, doomed, entries)
            before = [grave for grave in books.tombstones(folder.path).values() if grave.request == request]
            graves = tuple(_graves(folder, request, doomed))
            if agreed is not None and {grave.file for grave in graves} - {*agreed}:
                raise UnfedError(f"{folder.path} has changed since the list was shown; look at it again.")
            if not dry_run:
                if graves:
                    books.bury(folder.path, graves)
                # Also where others took along all that carried it, or where a purge was stopped after its tombstones.
                folder.put_request(entry.buried(now()))
        if not dry_run:
            finish(folder)
    return PurgeOutcome(entry, graves, tuple(before))


def _fulfilled(run: Purged, request: str, entries: Sequence[Entry]) -> Entry:
    """The request that is meant, if there is a model without it."""
    entry = next((e for e in entries if e.request.id == request), None)
    if entry is None:
        if request in run.config.request_ids():
            raise UnfedError(
                f"Request {request!r} was only compared, not served; serve it with `{run.command('forget')}` under"
                " another --id, then purge that."
            )
        known = listed(e.request.id for e in entries) or "no requests"
        raise UnfedError(f"This run has no request {request!r}; it has {known}.")
    if entry.owed:
        raise UnfedError(
            f"Request {request!r} is {entry.standing}, so no model was put in force for it and nothing can go:"
            f" {run.way_out(entry)}."
        )
    if entry.state == "revoked":
        raise UnfedError(f"Request {request!r} was withdrawn, so nothing has to go.")
    if entry.state != "fulfilled":
        raise UnfedError(
            f"Request {request!r} is {entry.standing}, and starts from what would go; serve it first with"
            f" {run.going_on}."
        )
    if left := [one for one in entry.left_by if not any(e.purged for e in entries if e.request.id == one)]:
        first = listed((f"`{run.command('purge', '--request', one)}`" for one in left), last="and")
        raise UnfedError(
            f"Request {request!r} took nothing out itself: every training row of it had left before, and what carries"
            f" them goes by {first}; purge {request!r} after that."
        )
    return entry


# --- what goes --------------------------------------------------------------------------------------------------------

Doomed = Mapping[str, tuple[str, ...]]
"""Files that go, by their path in the folder: which groups of tensors, or WHOLE."""


def _doomed(folder: RunFolder, found: Sequence[Carrier], entries: Sequence[Entry]) -> Doomed:
    doomed: dict[str, list[str]] = {}
    served = {Job(e.seed, e.request.id, e.method).path for e in entries if e.state == "fulfilled"}
    for file, part in (pair for one in found for pair in _parts(folder, one)):
        # What was tried in vain could not go on without the part: it begins again when it is asked for again.
        tried = file != TRAJECTORY and Path(file).parts[0] == "state"
        whole = part == WHOLE or (tried and Path(file).relative_to("state").with_suffix("") not in served)
        doomed.setdefault(file, []).append(WHOLE if whole else part)
    return {file: (WHOLE,) if WHOLE in parts else tuple(dict.fromkeys(parts)) for file, parts in doomed.items()}


def _parts(folder: RunFolder, one: Carrier) -> Iterator[tuple[str, str]]:
    """The files of a carrier, and what of each goes."""
    if one.kind == "statistics":  # part of the model in force: they stay
        return
    if one.kind == "samples":
        for path in sorted((folder.path / one.file).glob("*.safetensors")):
            yield path.relative_to(folder.path).as_posix(), one.part or WHOLE
        return
    yield one.file, one.part or WHOLE
    if one.kind == "history":  # its state must not count what is gone
        yield one.file.rpartition(f".{HISTORY}-")[0] + ".safetensors", HISTORY


def _graves(folder: RunFolder, request: str, doomed: Doomed) -> Iterator[Tombstone]:
    date = now()
    for file, parts in sorted(doomed.items()):
        path = folder.path / file
        if consistency.leads_out(folder.path, path):
            raise UnfedError(
                f"{path} is a link out of the folder, and what it leads to would stay; put the file in its place."
            )
        if (digest := consistency.file_digest(path)) is None:
            raise UnfedError(f"{path} is to be purged and is not there; restore it from a copy.")
        for part in parts:
            yield Tombstone(file if part == WHOLE else f"{file}#{part}", digest, request, date)


def _refuse_if_needed(run: Purged, entry: Entry, doomed: Doomed, entries: Sequence[Entry]) -> None:
    """Refuse where a later step needs what would go."""
    folder = run.folder
    filed = {Job(e.seed, name, e.method) for e in entries for name in e.names}
    for job, _ in run.jobs():
        if job.seed == entry.seed and job not in filed and not folder.finished(job):
            raise UnfedError(
                f"The comparison of this run is not finished ({job.path.as_posix()}) and begins at what would be"
                f" purged; first go on with {run.going_on}."
            )
    histories = any(f".{HISTORY}-" in file for file in doomed)
    for other in entries:
        if other.seed != entry.seed or not (other.waiting or other.owed):
            continue
        name = other.request.id
        if other.waiting and other.begun is not None:
            raise UnfedError(
                f"Request {name!r} is {other.standing} and was begun beside what would be purged; first go on"
                f" with {run.going_on}, or {run.letting_go(name)}."
            )
        needs = run.about(other.method, other).needs
        if histories and (needs is None or "history" in needs):
            raise UnfedError(
                f"Request {name!r} is {other.standing}, and {other.method} needs the history that would be purged;"
                f" serve it first (`{run.command('forget', '--id', name)}`), or {run.letting_go(name)}."
            )


# --- taking away ------------------------------------------------------------------------------------------------------


def finish(folder: RunFolder) -> None:
    """Take away what a tombstone names and is still there as it was.

    The caller holds the lock of the work.
    """
    waiting = pending(folder.path)
    # States first: one that has lost its history no longer counts it.
    for path, graves in sorted(waiting.items(), key=lambda pair: pair[0].suffix != ".safetensors"):
        parts = [part for grave in graves if (part := grave.file.partition("#")[2])]
        kind = path.relative_to(folder.path).parts[0]
        if path == folder.trajectory:
            subtraction.take_out(folder)
        elif kind == "samples" and parts:
            _cut_rows(path, parts)
        elif kind == "undo" and parts:
            if (probe := read_at(path)) is not None:
                storage.write_json(path, subtraction.as_it_stands(folder).of_probe(probe).to_json())
        elif path.relative_to(folder.path).parts[0] != "state" or path.suffix != ".safetensors":
            storage.remove(path)
            for empty in (path.parent, path.parent.parent):  # folders of scores and probes, once nothing is in them
                with contextlib.suppress(OSError):
                    empty.rmdir()
        elif parts:
            _strip(path, parts)
        else:
            _empty(path, graves[0].request)
    with folder.lock("requests", wait=True):
        entries = folder.book().entries
        if any(entry.purged for entry in entries):
            about = subtraction.as_it_stands(folder)
            for entry in entries:
                if (less := about.of_entry(entry)) != entry:
                    folder.put_request(less)


def pending(folder: Path) -> dict[Path, list[Tombstone]]:
    """The files that have tombstones and are there all the same, as they were.

    A purge of them was begun and not ended.
    """
    named: dict[Path, list[Tombstone]] = {}
    for grave in books.tombstones(folder).values():
        own = _inside(folder, grave)
        if own.parts[0] in (*KINDS, TRAJECTORY):
            named.setdefault(folder / own, []).append(grave)
    found: dict[Path, list[Tombstone]] = {}
    for path, graves in named.items():
        digest = consistency.file_digest(path)
        if still := [grave for grave in graves if grave.sha256 == digest]:
            found[path] = still
    return found


def _inside(folder: Path, grave: Tombstone) -> PurePosixPath:
    """The path of what was purged, which leads nowhere outside the folder."""
    path = PurePosixPath(grave.file.partition("#")[0])
    if path.is_absolute() or ".." in path.parts or (len(path.parts) < 2 and str(path) != TRAJECTORY):
        raise UnfedError(
            f"A tombstone in {folder / books.TOMBSTONES} names {grave.file!r}, which is no file of this folder;"
            " restore it from a copy."
        )
    return path


def _empty(path: Path, request: str) -> None:
    """Leave of a state its numbers: how far it came, what it cost, and what it vouches for."""
    numbers = {**storage.numbers_of(path), "histories": {}, "numbers": {}, "purged": request}
    for gone in ("log", PRUNED):
        numbers.pop(gone, None)
    storage.save(path, {}, numbers)


def _cut_rows(path: Path, requests: Sequence[str]) -> None:
    """Take the rows of purged requests out of the scores that another request kept."""
    scores, numbers = storage.load(path, "file of scores")
    gone = torch.tensor([numbers[OVER].index(name) for name in requests], dtype=scores[WHOSE].dtype)
    keep = ~torch.isin(scores[WHOSE], gone)
    left = {name: column[keep] if name.startswith("forget/") else column for name, column in scores.items()}
    storage.save(path, left, {**numbers, WITHOUT: list(dict.fromkeys([*numbers.get(WITHOUT, ()), *requests]))})


def _strip(path: Path, parts: Sequence[str]) -> None:
    """Take groups of tensors out of a state."""
    tensors, numbers = storage.load(path, "saved state")
    left = {name: tensor for name, tensor in tensors.items() if name.partition("/")[0] not in parts}
    if HISTORY in parts:
        numbers = {**numbers, "histories": {}}
        numbers.pop("log", None)
    storage.save(path, left, numbers)


# --- pruning: a run folder keeps what results, requests and resuming need, and no more --------------------------------


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
    folder.description()  # what is no run folder is refused
    with folder.lock() as free:
        if not free:
            raise UnfedError(
                f"Another process is at work in {folder.path} and may need what would be pruned; wait for it"
                f" (`{typed('status', folder.path)}`)."
            )
        if not dry_run:
            finish(folder)  # a tombstone names a file by its SHA-256, which pruning changes
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
