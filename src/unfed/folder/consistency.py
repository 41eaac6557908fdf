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
import os
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import UnfedError
from unfed.folder.schema import STATE, STATE_MAY, checked

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
