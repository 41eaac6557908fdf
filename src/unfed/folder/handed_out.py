"""What left a run folder: exports, reports, comparisons, indexes and bundles, entered beforehand.

    handed-out.jsonl      {what, file, sha256, at, seed, request, method}      one line per file and content

So that it can be said years later which files carry whom. A line is written first: a process killed in between has
entered a file that is not there, and never the other way round. A report that is written anew takes its line's place;
an export under the same name does not, because the earlier one may have been passed on.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from unfed import storage
from unfed.errors import Halted, UnfedError, UnfedWarning
from unfed.folder import locks as presence
from unfed.folder.folder import RunFolder
from unfed.folder.schema import COUNT, TEXT, Fits, checked, or_none
from unfed.json_checks import parsed
from unfed.requests.entry import Job, now

FILE = "handed-out.jsonl"
What = Literal["export", "report", "comparison", "index", "evidence"]
LINE: dict[str, Fits] = {"what": TEXT, "file": TEXT, "sha256": TEXT, "at": TEXT}
LINE |= {"seed": or_none(COUNT), "request": or_none(TEXT), "method": or_none(TEXT)}


@dataclass(frozen=True)
class Handed:
    """A file that was written from what is in a run folder."""

    what: str
    file: str
    """Its path inside the run folder, or from the root of the disk."""
    sha256: str
    at: str
    seed: int | None = None
    request: str | None = None
    method: str | None = None
    """Of an export, whose model it is."""

    @property
    def job(self) -> Job | None:
        if self.seed is None or self.method is None:
            return None
        return Job(self.seed, self.request, self.method)

    def path(self, folder: Path) -> Path:
        return folder / self.file


def hand_out(folder: RunFolder, what: What, path: Path, data: bytes, job: Job | None = None) -> None:
    """Enter a file in a run folder, and write it."""
    enter(folder, what, path, data, job)
    storage.deliver(path, data)


def enter(folder: RunFolder, what: What, path: Path, data: bytes, job: Job | None = None) -> None:
    """Enter a file that is about to be written; where nothing can be written down, that is said."""
    about: dict[str, Any] = {} if job is None else {"seed": job.seed, "request": job.request, "method": job.label}
    one = Handed(what, _name(folder.path, path), hashlib.sha256(data).hexdigest(), now(), **about)
    try:
        with presence.held(folder.path, "requests", wait=-1):
            storage.sweep(folder.path.glob(f".{FILE}.*.tmp"))
            lines = [line for line in listed(folder) if not _same(line, one)]
            text = "".join(json.dumps(asdict(line), separators=(",", ":")) + "\n" for line in [*lines, one])
            storage.write_bytes(folder.path / FILE, text.encode())
    except Halted as error:
        warnings.warn(f"{path} is not entered in {folder.path / FILE}: {error}", UnfedWarning, stacklevel=3)


def _name(folder: Path, path: Path) -> str:
    """How a file is called in the list: a folder that is moved takes its own files along."""
    full, own = path.absolute(), folder.absolute()
    return full.relative_to(own).as_posix() if full.is_relative_to(own) else str(full)


def _same(known: Handed, new: Handed) -> bool:
    """Whether an entry stands for another: of an export, only the same content does."""
    same = (known.what, known.file) == (new.what, new.file)
    return same and (new.what != "export" or known.sha256 == new.sha256)


def listed(folder: RunFolder) -> list[Handed]:
    """What left a run folder, in the order in which it was last written."""
    path = folder.path / FILE
    if not path.exists():
        return []
    lines = storage.content(path).splitlines() or [b""]  # it is begun with its first line
    return [_read(text, f"Line {n} of {path}") for n, text in enumerate(lines, 1)]


def _read(text: bytes, where: str) -> Handed:
    try:
        raw: Mapping[str, Any] = checked(parsed(text), where, LINE)
    except ValueError as error:
        raise UnfedError(f"{where} is damaged; restore the file.") from error
    return Handed(**{name: raw[name] for name in LINE})
