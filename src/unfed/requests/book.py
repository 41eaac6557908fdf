"""The book of a run: every deletion request, where it stands, and what was purged or handed out.

    requests/NUMBER-ID.json   one request each, with its state; NUMBER is the order in which they were filed
    filed.jsonl               lists every request that was filed, with the SHA-256 of what it asks for
    tombstones.json           lists what was taken away on purpose: file, SHA-256, request, date

    book = folder.book()              read once: a file is read again only after it has changed
    book.in_force(seed)               questions are pure: they read nothing, and change nothing
    folder.put_request(entry)         the only write of a request, under the lock `requests`

The files are the only truth about the queue.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from unfed import records, storage
from unfed.config.config import Config
from unfed.config.reading import check_id, check_label
from unfed.data import Request
from unfed.errors import UnfedError, listed, typed
from unfed.records import Count, JsonRecord
from unfed.requests.entry import Entry, Job, now
from unfed.requests.saved_state import SavedState

TOMBSTONES = "tombstones.json"
FILED = "filed.jsonl"


@dataclass(frozen=True)
class Tombstone:
    """What stood here and was taken away on purpose."""

    file: str
    """Its path inside the run folder, with slashes; `PATH#GROUP` where only a group of its tensors went."""
    sha256: str
    """Of the whole file as it was when it was taken away."""
    request: str
    """The id of the request for which it went."""
    date: str

    def sentence(self, folder: Path) -> str:
        """What became of the file."""
        return f"{folder / self.file} was purged for request {self.request!r} on {self.date} (see {TOMBSTONES})"


@dataclass(frozen=True)
class Book:
    """What a run folder knows of requests at one moment."""

    folder: Path
    config: Config
    entries: tuple[Entry, ...]
    """Every request as it stands, in the order of filing."""
    tombstones: Mapping[str, Tombstone]
    """What was purged, by its path inside the folder."""
    state: Callable[[Job], SavedState | None] = field(repr=False, compare=False)
    """What a job's saved state says besides its tensors; None where there is none."""

    def find(self, name: str) -> Entry | None:
        return next((e for e in self.entries if e.request.id == name), None)

    def named(self, name: str) -> Entry:
        """The request with this id; refused where it was only compared, or there is none."""
        if (entry := self.find(name)) is not None:
            return entry
        if name in self.config.request_ids():
            again = f"`{typed('forget', self.folder)}` under another --id"
            raise UnfedError(f"Request {name!r} was only compared, not served; serve it with {again}.")
        known = listed(e.request.id for e in self.entries) or "no requests"
        raise UnfedError(f"This run has no request {name!r}; it has {known}.")

    def accepted(self, seed: int) -> list[Entry]:
        """Everything that must stay out of this repetition's training, in the order in which it was asked."""
        return [e for e in self.entries if e.accepted and e.seed == seed]

    def besides(self, seed: int, known: Collection[str] = ()) -> list[Request]:
        """Accepted requests that a job with these requests does not know: it must leave their rows out too."""
        return [e.request for e in self.accepted(seed) if e.request.id not in known]

    def mates(self, entry: Entry) -> list[Entry]:
        """The other requests that its job served."""
        numbers = {*entry.together} - {entry.number}
        return [e for e in self.entries if e.number in numbers]

    def in_force(self, seed: int, besides: Collection[str] = ()) -> list[Entry]:
        """The requests that were fulfilled by a model, in order of service; the last one's model is in force."""
        return in_force(e for e in self.accepted(seed) if e.request.id not in besides)

    def turn(self, ready: Collection[int], put_off: Collection[int] = ()) -> Entry | None:
        """Whose turn it is among the seeds that are ready: what was begun, else what was asked first.

        A request that was put off (by number) has had its turn.
        """
        waiting = [e for e in self.entries if e.waiting and e.seed in ready and e.number not in put_off]
        return min(waiting, key=lambda e: (e.state != "in_progress", e.number), default=None)

    @property
    def next_place(self) -> int:
        """The place of the next request that is fulfilled."""
        return 1 + max((e.served or 0 for e in self.entries), default=0)

    @property
    def next_number(self) -> int:
        """The number of the next request that is filed; none is ever given twice."""
        return 1 + max((e.number for e in self.entries), default=0)

    def purged(self, file: Path) -> Tombstone | None:
        """The tombstone of a file of the folder, however its path is written."""
        whole, full = self.folder.resolve(), file.resolve()
        return self.tombstones.get(full.relative_to(whole).as_posix()) if full.is_relative_to(whole) else None


def in_force(entries: Iterable[Entry]) -> list[Entry]:
    """The requests, of these, that were fulfilled by a model, in the order in which they were.

    Each began at the model of the one before; those that share a job have one place, and one model.
    """
    done = (e for e in entries if e.state == "fulfilled" and not e.left_by)
    return sorted(done, key=lambda e: (e.served or 0, e.number))


def owners(request: Request) -> set[str]:
    """Whose rows a request names; empty where that is not said."""
    return {*request.clients, *(name for name, _ in request.samples)}


def overlap(one: set[str], other: set[str]) -> bool:
    """Whether requests of these owners may name the same row.

    Nothing is built to tell, so the answer is no only where they are others.
    """
    return not (one and other) or bool(one & other)


# --- request files ----------------------------------------------------------------------------------------------------


def request_file(folder: Path, entry: Entry) -> Path:
    return folder / "requests" / f"{entry.number:04d}-{check_id(entry.request.id, 'request id')}.json"


def filed_here(folder: Path) -> tuple[Entry, ...]:
    """Every request whose file is there, in its order."""
    names = sorted(os.listdir(folder / "requests")) if (folder / "requests").is_dir() else []
    read = [storage.unchanged(folder / "requests" / name, _entry) for name in names if name.endswith(".json")]
    moment = now()
    entries = [one.at(moment) for one in sorted((one for one in read if one is not None), key=lambda e: e.number)]
    # A purge that was killed may have come to its tombstones alone.
    dates = {grave.request: grave.date for grave in tombstones(folder).values()}
    return tuple(e.buried(dates[e.request.id]) if e.request.id in dates else e for e in entries)


def _entry(file: Path) -> Entry:
    entry = Entry.from_json(storage.read_json(file, "request"), f"The request file {file}")
    check_id(entry.request.id, f"request id in {file}")
    check_label(entry.method, f"method in {file}")
    return entry


def write_entry(folder: Path, entry: Entry) -> None:
    """Write a request's file; the lock `requests` must be held."""
    file, said = request_file(folder, entry), entry.to_json()
    storage.write_json(file, said)
    storage.wrote(file, _entry, Entry.from_json(json.loads(json.dumps(said))))


# --- the list of what was filed ---------------------------------------------------------------------------------------

Filed = Mapping[int, tuple[str, str]]
"""What was filed, by its number: id, and SHA-256 of what it asks for."""


class FiledLine(JsonRecord):
    """A line of `filed.jsonl`."""

    number: Count
    id: str
    sha256: str


def filed_list(folder: Path) -> Filed:
    """The list of what was filed here."""
    return storage.unchanged(folder / FILED, _filed) or {}


def _filed(path: Path) -> dict[int, tuple[str, str]]:
    found: dict[int, tuple[str, str]] = {}
    whole, _, _ = storage.content(path).rpartition(b"\n")
    for place, text in enumerate(whole.split(b"\n") if whole else (), 1):
        line = records.read_text(FiledLine, text, f"Line {place} of {path}", "restore the file")
        if line.number in found:
            raise UnfedError(f"Line {place} of {path} is damaged; restore the file.")
        found[line.number] = line.id, line.sha256
    return found


def note_filed(folder: Path, entries: Iterable[Entry]) -> None:
    """List requests that are not listed yet.

    This comes after their files are written, so that a killed process lists too few and never too many.
    """
    path, known = folder / FILED, dict(filed_list(folder))
    new = [entry for entry in entries if entry.number not in known]
    if new and path.exists():  # half a line that a killed process left would glue itself to the next
        whole = storage.content(path).rfind(b"\n") + 1
        if whole < path.stat().st_size:
            storage.cut(path, whole)
    for entry in new:
        known[entry.number] = entry.request.id, request_digest(entry.request)
        name, digest = known[entry.number]
        line = {"number": entry.number, "id": name, "sha256": digest}
        storage.append_line(path, json.dumps(line, separators=(",", ":")))
    if new:
        storage.wrote(path, _filed, known)


def missing(folder: Path, entries: Iterable[Entry], filed: Filed) -> list[str]:
    """A sentence for every request that was filed and is not there as it was asked.

    The list must have been read before the entries were, or a request that is filed in between is taken for lost.
    """
    there = {entry.number: entry for entry in entries}
    purged, said = tombstones(folder), []
    for number, (name, digest) in filed.items():
        file = f"requests/{number:04d}-{name}.json"
        if number not in there:
            if file not in purged:
                what = f"The request {name!r} was filed, but its file {folder / file} is gone"
                said.append(f"{what}; restore it from a copy, or its rows would be trained on again.")
        elif request_digest(there[number].request) != digest:
            what = f"The request {name!r} in {folder / file} asks for something else than what was filed"
            said.append(f"{what}; restore it from a copy.")
    return said


@lru_cache(maxsize=4096)
def request_digest(request: Request) -> str:
    """SHA-256 of what a request asks for; by which file its samples were listed is no part of that."""
    plain = {name: value for name, value in request.to_json().items() if name != "listed"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# --- tombstones -------------------------------------------------------------------------------------------------------


def tombstones(folder: Path) -> Mapping[str, Tombstone]:
    """What was taken away, by its path."""
    return storage.unchanged(folder / TOMBSTONES, _tombstones) or {}


def _tombstones(path: Path) -> dict[str, Tombstone]:
    raw = storage.read_json(path, "list of tombstones")
    if not isinstance(raw, dict) or raw.get("schema") != 1:
        raise UnfedError(f"{path} is no list of tombstones of layout 1; restore it from a copy.")
    return {one.file: one for one in records.read(list[Tombstone], raw.get("tombstones"), f"A tombstone in {path}")}


def bury(folder: Path, graves: Iterable[Tombstone]) -> None:
    """Add tombstones; to be written before the files themselves are taken away."""
    every = {**tombstones(folder), **{one.file: one for one in graves}}
    storage.write_json(folder / TOMBSTONES, {"schema": 1, "tombstones": [asdict(one) for one in every.values()]})
    storage.wrote(folder / TOMBSTONES, _tombstones, every)


# --- whose model is meant ---------------------------------------------------------------------------------------------


def method_of_request(entries: Iterable[Entry], config: Config, seed: int, request: str) -> str:
    """The method that served the request, or the only one compared on it; of several none is guessed."""
    served = [entry.method for entry in entries if (entry.seed, entry.request.id) == (seed, request)]
    labels = served or list(config.methods.run)
    if len(labels) > 1 and request in config.request_ids():
        raise UnfedError(f"Methods were compared on request {request!r}; say which with --method, {listed(labels)}.")
    return labels[0] if labels else "not"
