"""What the files of a run folder say of each other, and the file that only grows.

    state/…   vouches for   its own place          the job that it is the state of
                            run.json               SHA-256 of the file that the job ran under
                            trajectory.jsonl       SHA-256 of its first `offset` bytes
                            models/…               fingerprint of the model that came out, once the job has ended
                            trust/                 which log of signed requests was kept when it was saved, if one was
    filed.jsonl             lists every request that was filed, with the SHA-256 of what it asks for
    tombstones.json         lists what was taken away on purpose: file, SHA-256, request, date

So none can be changed, shortened or lost unseen. These are sums, not signatures: they find what was damaged, edited or
lost, not who rewrites all of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unfed import records, storage
from unfed.errors import UnfedError
from unfed.measures import trajectory
from unfed.measures.trajectory import Line
from unfed.requests import book as books
from unfed.requests.saved_state import SavedState

# --- what files say of each other -------------------------------------------------------------------------------------


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
    shown = storage.read_json(path, "description of the operator") if path.exists() else None
    origin = shown.get("origin") if isinstance(shown, dict) else None
    return {"log": origin} if isinstance(origin, str) else {}


def of_its_job(raw: Any, path: Path) -> SavedState:
    """What a saved state says; one that is another job's, put in its place, is refused."""
    saved = records.read(SavedState, raw, f"The saved state {path}")
    job = saved.bound.job
    if job and Path("state", job).parts != path.with_suffix("").parts[-1 - len(Path(job).parts) :]:
        raise UnfedError(f"The saved state {path} is that of another job, {job}; restore it from a copy.")
    return saved


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a path in a folder ends somewhere else, by a link."""
    return not _real(path).is_relative_to(_real(folder))


def _real(path: Path) -> Path:
    """Where a path ends; links that lead in a circle end at themselves."""
    return Path(os.path.realpath(path))


# --- the trajectory ---------------------------------------------------------------------------------------------------


TRAJECTORY = "trajectory.jsonl"
States = Sequence[tuple[Path, SavedState]]
"""Every saved state's file and numbers."""


class TrajectoryFile:
    """Reads and adds lines, and refuses what states do not vouch for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.path = folder, folder / TRAJECTORY
        self._prefix = Prefix(self.path)

    def append(self, line: Line) -> int:
        """Add a line; how long the file is then."""
        return storage.append_line(self.path, trajectory.write(line))

    def lines(self, vouched: int) -> tuple[list[Line], int]:
        """All whole lines, and how many of them are in its first `vouched` bytes.

        The last one may be torn if a process died while writing it.
        """
        data = storage.content(self.path) if self.path.exists() else b""
        texts = data.split(b"\n")[:-1]
        read = [trajectory.read(text, f"Line {number} of {self.path}") for number, text in enumerate(texts, 1)]
        return read, data.count(b"\n", 0, vouched)

    def length(self) -> int:
        """How long it is, in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def digest(self, length: int) -> str | None:
        """SHA-256 of its first bytes."""
        return self._prefix.digest(length)

    def reread(self) -> None:
        """Trust nothing that was read before: the file was cut, or changed."""
        self._prefix.forget()

    def vouched(self, states: States) -> int:
        """How much of it the saved states vouch for.

        It is refused where it, or `run.json`, is not what they say.
        """
        run = file_digest(self._folder / "run.json")
        for path, saved in states:
            if saved.bound.run not in (None, run):
                raise UnfedError(
                    f"{self._folder / 'run.json'} is not the one under which {path} was made: it was changed since;"
                    " restore it from a copy."
                )
        last = max(states, key=lambda state: state[1].offset, default=None)
        if last is None:
            return 0
        path, offset, said = last[0], last[1].offset, last[1].bound.trajectory
        short, other = self.length() < offset, said is not None and not self._begins_with(offset, said)
        if (short or other) and self._is_purged():  # some states vouch already for what it will be
            return self.length()
        if short:
            raise UnfedError(
                f"{self.path} has {self.length()} bytes, but {path} vouches for {offset}: its end is gone;"
                " restore it from a copy."
            )
        if other:
            raise UnfedError(
                f"{self.path} is not what {path} vouches for: something in its first {offset} bytes was changed;"
                " restore it from a copy."
            )
        return offset

    def _begins_with(self, offset: int, said: str) -> bool:
        """Whether its first bytes have this SHA-256; what was read before a purge is read again."""
        if self.digest(offset) != said:
            self.reread()
        return self.digest(offset) == said

    def _is_purged(self) -> bool:
        """Whether a purge has begun to change it, and was killed before it did."""
        graves = books.tombstones(self._folder).items()
        shown = {grave.sha256 for file, grave in graves if file.startswith(f"{TRAJECTORY}#")}
        return bool(shown) and file_digest(self.path) in shown
