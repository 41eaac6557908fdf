"""The trajectory of a run folder: a line per evaluated round, of whose beginning states vouch.

    a state     offset, and the SHA-256 of the trajectory's first `offset` bytes
    beyond it   what no state vouches for is cut off when work goes on

Lines are added, and never changed but by a purge (`subtraction.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import UnfedError
from unfed.folder import consistency
from unfed.measures import trajectory
from unfed.measures.trajectory import Line
from unfed.requests import book as books

TRAJECTORY = "trajectory.jsonl"
States = Sequence[tuple[Path, Mapping[str, Any]]]
"""Every saved state's file and numbers."""


class TrajectoryFile:
    """Reads and adds lines, and refuses what states do not vouch for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.path = folder, folder / TRAJECTORY
        self._prefix = consistency.Prefix(self.path)

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
        run = consistency.file_digest(self._folder / "run.json")
        for path, numbers in states:
            if (bound := numbers.get("bound")) and bound.get("run") not in (None, run):
                raise UnfedError(
                    f"{self._folder / 'run.json'} is not the one under which {path} was made: it was changed since;"
                    " restore it from a copy."
                )
        last = max(states, key=lambda state: state[1]["offset"], default=None)
        if last is None:
            return 0
        path, numbers = last
        offset = int(numbers["offset"])
        said = numbers.get("bound", {}).get("trajectory")
        short, other = self.length() < offset, bool(said) and not self._begins_with(offset, said)
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
        told = {grave.sha256 for file, grave in graves if file.startswith(f"{TRAJECTORY}#")}
        return bool(told) and consistency.file_digest(self.path) in told
