"""What the files of a run folder say of each other, so that no change or loss goes unseen.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unfed import records, storage
from unfed.errors import UnfedError
from unfed.model.params import Params, digests, fingerprint
from unfed.requests import book as books
from unfed.requests.saved_state import SavedState

TRAJECTORY = "trajectory.jsonl"
States = Sequence[tuple[Path, SavedState]]
"""Every saved state's file and numbers."""


def digest_of_start(path: Path, length: int) -> str | None:
    """SHA-256 of a file's first bytes; None if it has fewer."""
    storage.refuse_no_file(path)
    data = storage.content(path) if path.exists() else b""
    return hashlib.sha256(data[:length]).hexdigest() if len(data) >= length else None


class DigestSoFar:
    """`digest_of_start` of a growing file, which reads on where it stopped. After a cut it must forget."""

    def __init__(self) -> None:
        self.forget()

    def forget(self, node: int = 0) -> None:
        self._node, self._length, self._sha = node, 0, hashlib.sha256()

    def of_start(self, path: Path, length: int) -> str | None:
        storage.refuse_no_file(path)
        if not path.exists() or (about := path.stat()).st_size < length:
            return digest_of_start(path, length)
        if about.st_ino != self._node or length < self._length:  # another file, put in its place
            self.forget(about.st_ino)
        self._sha.update(storage.content(path, start=self._length)[: length - self._length])
        self._length = length
        return self._sha.hexdigest()


def file_digest(path: Path) -> str | None:
    """SHA-256 of a file, as `sha256sum` gives it; None where there is none."""
    storage.refuse_no_file(path)
    if not path.exists():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def gone(model: Path) -> str:
    """The sentence for a model that a job left and that is not there any more."""
    return f"The model {model} is gone, though its job has ended; restore it from a copy."


def model_at(path: Path, saved: SavedState | None) -> Params:
    """The tensors of a model; refused if the job's state vouches for another."""
    params = storage.load(path, "model")[0]
    if saved is not None and saved.finished and saved.bound.model not in (None, "", fingerprint(digests(params))):
        raise UnfedError(f"The model {path} is not the one that its job left; restore it from a copy.")
    return params


def log_kept(folder: Path) -> dict[str, str]:
    """What a state says of the log of signed requests that a run keeps: its origin; nothing without one."""
    path = folder / "trust" / "operator.json"
    shown = storage.read_json(path, "description of the operator") if path.exists() else None
    origin = shown.get("origin") if isinstance(shown, dict) else None
    return {"log": origin} if isinstance(origin, str) else {}


def of_its_job(raw: Any, path: Path) -> SavedState:
    """What a saved state says; refused if it is another job's, put in its place."""
    saved = records.read(SavedState, raw, f"The saved state {path}")
    job = saved.bound.job
    if job and Path("state", job).parts != path.with_suffix("").parts[-1 - len(Path(job).parts) :]:
        raise UnfedError(f"The saved state {path} is that of another job, {job}; restore it from a copy.")
    return saved


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a path in a folder ends somewhere else, by a link; a circle of links ends at itself."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def vouched(folder: Path, states: States) -> int:
    """How many bytes of the trajectory the saved states vouch for.

    It is refused where it, or `run.json`, is not what they say.
    """
    run, file = file_digest(folder / "run.json"), folder / TRAJECTORY
    for path, saved in states:
        if saved.bound.run not in (None, run):
            raise UnfedError(f"{folder / 'run.json'} was changed since {path} was saved; restore it from a copy.")
    if not states:
        return 0
    path, saved = max(states, key=lambda state: state[1].offset)
    found = digest_of_start(file, saved.offset)
    if found is not None and saved.bound.trajectory in (None, found):
        return saved.offset
    if _is_being_purged(folder):  # some states vouch already for what it will be
        return file.stat().st_size
    what = f"something in its first {saved.offset} bytes was changed" if found else "its end is gone"
    raise UnfedError(f"{file} is not what {path} vouches for: {what}; restore it from a copy.")


def _is_being_purged(folder: Path) -> bool:
    """Whether a purge was to change the trajectory, and was killed before it did."""
    graves = books.tombstones(folder).items()
    shown = {grave.sha256 for file, grave in graves if file.startswith(f"{TRAJECTORY}#")}
    return bool(shown) and file_digest(folder / TRAJECTORY) in shown
