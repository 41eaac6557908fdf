"""The line of an evaluated round, written when its slowest number is there.

    round r ─► evaluate ─► round r + 1 ─────────────► write the line of r, tell of it ─► evaluate …
                   └──── the attack, in a thread ────┘

The membership attack reads losses that lie on the host, so it is computed beside the next round. One line waits at
most. It is written, in its place, before another round is noted, before anything is saved, and whatever ends the job:
what a folder holds after a save is the same as if nobody had waited.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from unfed.measures.trajectory import Line
from unfed.runs.folder import RunFolder
from unfed.runs.job_notes import JobNotes
from unfed.values import Value


class LateLine:
    """At most one line that waits for its MIA, and who is to be told of it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="unfed-attack")
        self._waiting: tuple[Line, JobNotes, Future[Value] | None] | None = None
        self._tell: Callable[[], None] | None = None

    def expect(self, line: Line, diary: JobNotes, attack: Callable[[], Value] | None) -> None:
        """Begin to compute what the line lacks."""
        self.settle()
        self._waiting = line, diary, None if attack is None else self._thread.submit(attack)

    def then(self, tell: Callable[[], None]) -> None:
        """Call this once the line is written; at once where none waits."""
        self._tell = tell
        if self._waiting is None or self._waiting[2] is None:
            self.settle()

    def settle(self) -> None:
        """Write what waits, and tell of it."""
        if self._waiting is not None:
            line, diary, attack = self._waiting
            self._waiting = None
            if attack is not None:
                line["mia"] = attack.result()
            diary.offset = self._folder.append(line)
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()

    def close(self) -> None:
        """Nothing waits any more, and no thread is left."""
        try:
            self.settle()
        finally:
            self._thread.shutdown()
