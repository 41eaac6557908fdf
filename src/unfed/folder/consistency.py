"""What the files of a run folder say of each other.

They say it so that none can be changed, shortened or lost without a word.

    state/…   vouches for   its own place          the job that it is the state of
                            run.json               SHA-256 of the file that the job ran under
                            trajectory.jsonl       SHA-256 of its first `offset` bytes
                            models/…               fingerprint of the model that came out, once the job has ended
                            trust/                 which log of signed requests was kept when it was saved, if one was
    filed.jsonl             lists every request that was filed, with the SHA-256 of what it asks for
    tombstones.json         lists what was taken away on purpose: file, SHA-256, request, date

These are sums, not signatures: they find what was damaged, edited or lost, not who rewrites all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unfed import json_checks as its
from unfed import storage
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.folder.schema import STATE, STATE_MAY, TOMBSTONE, checked
from unfed.requests.entry import Entry

_CHUNK = 1 << 20
TOMBSTONES = "tombstones.json"
FILED = "filed.jsonl"


class Prefix:
    """SHA-256 of the first bytes of a file that only grows: each byte is read once."""

    def __init__(self, path: Path) -> None:
        self.path, self._hash, self._length = path, hashlib.sha256(), 0

    def digest(self, length: int) -> str | None:
        """Of the first `length` bytes; None if there are fewer."""
        if length < self._length:
            self._hash, self._length = hashlib.sha256(), 0
        if not self.path.exists():
            return self._hash.hexdigest() if length == 0 else None
        storage.refuse_no_file(self.path)
        with open(self.path, "rb") as file:
            file.seek(self._length)
            while self._length < length:
                chunk = file.read(min(_CHUNK, length - self._length))
                if not chunk:
                    return None
                self._hash.update(chunk)
                self._length += len(chunk)
        return self._hash.hexdigest()

    def forget(self) -> None:
        """Read everything again: the file was cut, or may have been changed."""
        self._hash, self._length = hashlib.sha256(), 0


def file_digest(path: Path) -> str | None:
    """SHA-256 of a file, as `sha256sum` says it; None where there is none."""
    storage.refuse_no_file(path)
    if not path.exists():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def gone(model: Path) -> str:
    """What is said where a model that a job left is not there any more."""
    return f"The model {model} is gone, though its job has ended; restore it from a copy."


def log_kept(folder: Path) -> dict[str, str]:
    """What a state says of the log of signed requests that a run keeps: its origin; nothing without one."""
    path = folder / "trust" / "operator.json"
    told = storage.read_json(path, "description of the operator") if path.exists() else None
    origin = told.get("origin") if isinstance(told, dict) else None
    return {"log": origin} if isinstance(origin, str) else {}


def of_its_job(raw: Any, path: Path) -> dict[str, Any]:
    """The numbers of a saved state; one that is another job's, put in its place, is refused."""
    numbers = checked(raw, f"The saved state {path}", STATE, STATE_MAY)
    job = (numbers.get("bound") or {}).get("job")
    if job and Path("state", job).parts != path.with_suffix("").parts[-1 - len(Path(job).parts) :]:
        raise UnfedError(f"The saved state {path} is that of another job, {job}; restore it from a copy.")
    return numbers


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a path in a folder ends somewhere else, by a link."""
    return not _real(path).is_relative_to(_real(folder))


def _real(path: Path) -> Path:
    """Where a path ends; links that lead in a circle end at themselves."""
    return Path(os.path.realpath(path))


def request_digest(request: Request) -> str:
    """SHA-256 of what a request asks for; by which file its samples were listed is no part of that."""
    plain = {name: value for name, value in request.to_json().items() if name != "listed"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# --- tombstones -------------------------------------------------------------------------------------------------------


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


def tombstones(folder: Path) -> dict[str, Tombstone]:
    """What was taken away, by its path."""
    path = folder / TOMBSTONES
    if not path.exists():
        return {}
    raw = storage.read_json(path, "list of tombstones")
    listed = raw.get("tombstones") if isinstance(raw, dict) else None
    if not isinstance(listed, list) or raw.get("schema") != 1:
        raise UnfedError(f"{path} is no list of tombstones of layout 1; restore it from a copy.")
    found = [Tombstone(**_only(checked(one, f"A tombstone in {path}", TOMBSTONE))) for one in listed]
    return {one.file: one for one in found}


def tombstone_of(folder: Path, path: Path) -> Tombstone | None:
    """The tombstone of a file of a run folder, however its path is written."""
    whole, file = _real(folder), _real(path)
    return tombstones(folder).get(file.relative_to(whole).as_posix()) if file.is_relative_to(whole) else None


def sentence(folder: Path, grave: Tombstone) -> str:
    """What became of a file that has a tombstone."""
    return (
        f"{folder / grave.file} was purged for request {grave.request!r} on {grave.date} (its SHA-256 was"
        f" {grave.sha256}, says {TOMBSTONES})"
    )


def _only(raw: Mapping[str, Any]) -> dict[str, str]:
    return {name: raw[name] for name in TOMBSTONE}


def bury(folder: Path, graves: Iterable[Tombstone]) -> None:
    """Add tombstones; to be written before the files themselves are taken away."""
    every = {**tombstones(folder), **{one.file: one for one in graves}}
    listed = [asdict(one) for one in every.values()]
    storage.write_json(folder / TOMBSTONES, {"schema": 1, "tombstones": listed})


# --- the list of what was filed ---------------------------------------------------------------------------------------


def note_filed(folder: Path, entries: Iterable[Entry]) -> None:
    """List requests that are not listed yet.

    This comes after their files are written, so that a killed process lists too few and never too many.
    """
    path = folder / FILED
    if path.exists():  # half a line that a killed process left would glue itself to the next
        whole = storage.content(path).rfind(b"\n") + 1
        if whole < path.stat().st_size:
            storage.cut(path, whole)
    known = filed_list(folder)
    for entry in entries:
        if entry.number not in known:
            line = {"number": entry.number, "id": entry.request.id, "sha256": request_digest(entry.request)}
            storage.append_line(folder / FILED, json.dumps(line, separators=(",", ":")))


Filed = Mapping[int, tuple[str, str]]
"""What was filed, by its number: id, and SHA-256 of what it asks for."""


_FILED = its.table_with({"number": its.is_count, "id": its.is_text, "sha256": its.is_text})


def missing(folder: Path, entries: Iterable[Entry], filed: Filed) -> list[str]:
    """A sentence for every request that was filed and is not there as it was asked.

    The list must have been read before the entries were, or somebody who files in between is taken for lost.
    """
    there = {entry.number: entry for entry in entries}
    buried, said = tombstones(folder), []
    for number, (name, digest) in filed.items():
        file = f"requests/{number:04d}-{name}.json"
        if number not in there:
            if file not in buried:
                said.append(
                    f"The request {name!r} was filed here (number {number}) and its file {folder / file} is"
                    " gone: without it its rows would be trained on again; restore it from a copy."
                )
        elif request_digest(there[number].request) != digest:
            said.append(
                f"The request {name!r} in {folder / file} asks for something else than what was filed;"
                " restore it from a copy."
            )
    return said


def filed_list(folder: Path) -> Filed:
    """The list of what was filed here."""
    path = folder / FILED
    if not path.exists():
        return {}
    found: dict[int, tuple[str, str]] = {}
    whole, _, _ = storage.content(path).rpartition(b"\n")
    for place, text in enumerate(whole.split(b"\n") if whole else (), 1):
        try:
            line = its.parsed(text)
        except ValueError:
            line = None
        if not _FILED(line) or line["number"] in found:
            raise UnfedError(f"Line {place} of {path} is damaged; restore the file.")
        found[line["number"]] = line["id"], line["sha256"]
    return found
