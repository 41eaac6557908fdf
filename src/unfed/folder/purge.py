"""Purge what still carries a fulfilled request, and prune what nothing needs.

Purging takes files, or parts of them, away for good and writes a tombstone for each:

    models, scores, probes, exposure  deleted
    histories                         deleted
    another request's scores, probes  only what they tell of its rows goes: its single rows, means over few of them
    trajectory, request files         means go that tell of fewer than 10 rows (`subtraction.py`); means of many stay
    states                            their tensors go; the numbers stay (rounds, costs, what they vouch for)
    states of models without it       what their methods kept beside the model goes

All tombstones are written first: they are the intent. A file that is still there with the SHA-256 of its tombstone is
taken away by the next process in the folder, so a purge that is killed is finished later. The request itself stays,
with its rows as keyed hashes (`deny.py`), and no score of a single row of it is written again. Backups, snapshots and
what a disk keeps of deleted files are not reached.

Pruning takes away old scores of single rows, and tensors of ended jobs' states that `models/` holds too. Nothing is
forgotten by it, and nothing that can be asked of the folder changes.
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
from unfed.errors import UnfedError, listed
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
from unfed.requests.book import Book, Tombstone
from unfed.requests.entry import Entry, Job, now

KINDS = ("models", "state", "samples", "undo", "theory", "advice", "population")
"""The folders in which something can be purged."""
WHOLE = "*"


class RecordedRun(Protocol):
    """What is known of a run from its folder; nothing is built."""

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


def purge(run: RecordedRun, request: str, dry_run: bool = False, agreed: Collection[str] | None = None) -> PurgeOutcome:
    """Take away what still carries a fulfilled request; purging twice is purging once.

    `agreed` are the tombstones that were shown before someone said yes: nothing else goes.
    """
    folder = run.folder
    with folder.work():
        if not dry_run:
            finish(folder)
        with folder.lock("requests", wait=True):  # no one files a request that needs it between the look and the word
            book = folder.book()
            entries = book.entries
            entry = _fulfilled(run, book, request)
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


def _fulfilled(run: RecordedRun, book: Book, request: str) -> Entry:
    """The request, refused unless there is a model without it."""
    entry = book.named(request)
    if entry.owed:
        raise UnfedError(f"Request {request!r} is {entry.standing} and left no model in force: {run.way_out(entry)}.")
    if entry.state != "fulfilled":
        then = "nothing has to go" if entry.state == "revoked" else f"serve it first with {run.going_on}"
        raise UnfedError(f"Request {request!r} is {entry.standing}; {then}.")
    if left := [one for one in entry.left_by if not book.named(one).purged]:
        first = listed((f"`{run.command('purge', '--request', one)}`" for one in left), last="and")
        raise UnfedError(f"The rows of request {request!r} had left before by others; purge these first: {first}.")
    return entry


# --- what goes --------------------------------------------------------------------------------------------------------

Doomed = Mapping[str, tuple[str, ...]]
"""Files that go, by their path in the folder: which groups of tensors, or WHOLE."""


def _doomed(folder: RunFolder, found: Sequence[Carrier], entries: Sequence[Entry]) -> Doomed:
    doomed: dict[str, list[str]] = {}
    served = {e.job.path for e in entries if e.state == "fulfilled"}
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
            raise UnfedError(f"{path} is a link out of the folder and cannot be purged; put the file in its place.")
        if (digest := consistency.file_digest(path)) is None:
            raise UnfedError(f"{path} is to be purged and is not there; restore it from a copy.")
        for part in parts:
            yield Tombstone(file if part == WHOLE else f"{file}#{part}", digest, request, date)


def _refuse_if_needed(run: RecordedRun, entry: Entry, doomed: Doomed, entries: Sequence[Entry]) -> None:
    """Refuse where a later step needs what would go."""
    folder = run.folder
    filed = {Job(e.seed, name, e.method) for e in entries for name in e.names}
    for job, _ in run.jobs():
        if job.seed == entry.seed and job not in filed and not folder.finished(job):
            unfinished = f"The comparison is not finished ({job.name}) and needs what would be purged"
            raise UnfedError(f"{unfinished}; first go on with {run.going_on}.")
    histories = any(f".{HISTORY}-" in file for file in doomed)
    for other in entries:
        if other.seed != entry.seed or not (other.waiting or other.owed):
            continue
        name, needs = other.request.id, run.about(other.method, other).needs
        if other.waiting and other.begun is not None:
            why, first = "was begun beside what would be purged", f"go on with {run.going_on}"
        elif histories and (needs is None or "history" in needs):
            why, first = "needs the history that would be purged", f"serve it (`{run.command('forget', '--id', name)}`)"
        else:
            continue
        raise UnfedError(f"Request {name!r} is {other.standing} and {why}; first {first}, or {run.letting_go(name)}.")


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
        elif kind != "state" or path.suffix != ".safetensors":
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
        where = folder / books.TOMBSTONES
        raise UnfedError(f"{where} names {grave.file!r}, which is no file of this folder; restore it from a copy.")
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


# --- pruning ----------------------------------------------------------------------------------------------------------


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
    with folder.work():
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
    if saved is None or saved.pruned or saved.purged or not (saved.finished and saved.bound.model and model.exists()):
        return None
    consistency.model_at(model, saved)
    tensors, numbers = storage.load(path, "saved state")
    groups = storage.part(tensors)
    same = (n for n in (BEST, PARAMS) if n in groups and fingerprint(digests(groups[n])) == saved.bound.model)
    if (twice := next(same, None)) is None:
        return None
    left = storage.join({name: group for name, group in groups.items() if name != twice})
    data = storage.packed(left, {**numbers, PRUNED: twice})
    freed = Freed(path.relative_to(folder.path).as_posix(), path.stat().st_size - len(data), "model in state")
    if not dry_run:
        storage.write_bytes(path, data)
    return freed
