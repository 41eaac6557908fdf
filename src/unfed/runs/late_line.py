"""The line of an evaluated round, finished and written beside the next round.

    round r ─► evaluate ─► round r + 1 ───────────────────────► tell of the line of r ─► evaluate …
                   └──── a thread: the attack, then the line ────┘

The membership attack reads losses that lie on the host, and a line is on the disk before anybody hears of it; a device
that trains need not wait for either. One line is on its way at most. It is waited for before another round is noted,
before anything is saved, and whatever ends the job: what a folder holds after a save is the same as if nobody had gone
on.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from unfed.folder.folder import RunFolder
from unfed.folder.job_notes import JobNotes
from unfed.measures.trajectory import Line
from unfed.values import Value


class LateLine:
    """At most one line that is on its way to the disk, and who is to be told of it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="unfed-attack")
        self._waiting: tuple[JobNotes, Future[int]] | None = None
        self._tell: Callable[[], None] | None = None

    def expect(self, line: Line, diary: JobNotes, attack: Callable[[], Value] | None) -> None:
        """Begin to compute what the line lacks, and to write it."""
        self.settle()
        self._waiting = diary, self._thread.submit(self._written, line, attack)

    def _written(self, line: Line, attack: Callable[[], Value] | None) -> int:
        if attack is not None:
            line["mia"] = attack()
        return self._folder.append(line)

    def then(self, tell: Callable[[], None]) -> None:
        """Call this once the line is written; at once where none is on its way."""
        self._tell = tell
        if self._waiting is None:
            self.settle()

    def settle(self) -> None:
        """Wait for the line, and tell of it."""
        if self._waiting is not None:
            diary, written = self._waiting
            self._waiting = None
            diary.offset = written.result()
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()

    def close(self) -> None:
        """Nothing is on its way any more, and no thread is left."""
        try:
            self.settle()
        finally:
            self._thread.shutdown()
