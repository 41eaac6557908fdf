"""Looking on while a run works: a progress display, a heartbeat for `unfed status`, or none.

A watch hears when a job begins, of each model that it reaches, after each of its rounds and saves, and when it ends;
who wants to know what clients are asked gives an observer. It can change nothing but when a state is saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from unfed.engines.base import Observer
from unfed.federation.history import History
from unfed.federation.state import State
from unfed.folder import locks
from unfed.folder.folder import RunFolder
from unfed.requests.entry import Job


class Watch:
    """Hears of a run's progress and does nothing with it; derive from it to do something."""

    def observer(self, job: Job) -> Observer | None:
        """Who listens to the engines of a job, from before its method begins; asked once."""
        return None

    def begins(self, job: Job, round: int, rounds: int) -> None:
        """The job stands at this round of so many, begun just now or gone on with."""

    def reached(self, job: Job, state: State, asked: Collection[str]) -> None:
        """The job came to this state, not saved yet, and asked these clients to train on the way."""

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        """A round is over; `line` is what was measured, if it was, and is passed on once it is on the disk.

        That may be while the next round is at work, but before anything of that one is passed on.
        """

    def wants_save(self, job: Job) -> bool:
        """Whether the state is to be saved whatever the config says; asked after each round but the last."""
        return False

    def saved(self, job: Job, state: State, histories: Mapping[str, History]) -> None:
        """This state lies in the folder, with these histories."""

    def ends(self, job: Job, outcome: str) -> None:
        """The job is over, and why."""


class PassingWatch(Watch):
    """Stands before another watch and passes everything on; who wants to do more derives from it."""

    def __init__(self, watch: Watch) -> None:
        """`watch` is who hears it."""
        self._watch = watch

    def observer(self, job: Job) -> Observer | None:
        """What the other one lends."""
        return self._watch.observer(job)

    def begins(self, job: Job, round: int, rounds: int) -> None:
        """Pass it on to the other watch."""
        self._watch.begins(job, round, rounds)

    def reached(self, job: Job, state: State, asked: Collection[str]) -> None:
        """Pass it on to the other watch."""
        self._watch.reached(job, state, asked)

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        """Pass it on to the other watch."""
        self._watch.goes_on(job, round, rounds, line)

    def wants_save(self, job: Job) -> bool:
        """As the other one says."""
        return self._watch.wants_save(job)

    def saved(self, job: Job, state: State, histories: Mapping[str, History]) -> None:
        """Pass it on to the other watch."""
        self._watch.saved(job, state, histories)

    def ends(self, job: Job, outcome: str) -> None:
        """Pass it on to the other watch."""
        self._watch.ends(job, outcome)


class OutOfTime(KeyboardInterrupt):
    """The time that a command was given is spent; like an interruption, but just after a save."""


class Deadline(PassingWatch):
    """Has the work saved after the round in which a moment passes, and stops it there."""

    def __init__(self, watch: Watch, passed: Callable[[], bool]) -> None:
        """`passed` says whether it has."""
        super().__init__(watch)
        self._passed = passed

    def wants_save(self, job: Job) -> bool:
        """As the other one says; at once, when the moment has passed."""
        return self._passed() or self._watch.wants_save(job)

    def saved(self, job: Job, state: State, histories: Mapping[str, History]) -> None:
        """Pass it on; then the time is looked at."""
        self._watch.saved(job, state, histories)
        if self._passed():
            raise OutOfTime


class Clock:
    """How long the rest will take.

    It is rounds left × seconds per round, measured over this process's own rounds.
    """

    def __init__(self, jobs: Sequence[tuple[Job, int]]) -> None:
        self._rounds = dict(jobs)
        self._done: dict[Job, int] = {}
        self._began = time.monotonic()
        self._counted = 0

    def at(self, job: Job, round: int, rounds: int, counted: bool) -> None:
        """The job stands at this round; `counted` if the round was done just now."""
        self._rounds[job], self._done[job] = rounds, round
        self._counted += counted

    def ended(self, job: Job) -> None:
        self._done[job] = self._rounds.get(job, 0)

    @property
    def left(self) -> int:
        """Rounds that are still to do."""
        return sum(max(0, rounds - self._done.get(job, 0)) for job, rounds in self._rounds.items())

    @property
    def total(self) -> int:
        return sum(self._rounds.values())

    @property
    def seconds_left(self) -> float | None:
        """None until a round was done."""
        if self._counted == 0:
            return None
        return self.left * (time.monotonic() - self._began) / self._counted


class Heartbeat(PassingWatch):
    """Tells the folder, once a second, where the work is, and passes everything on."""

    def __init__(self, folder: RunFolder, jobs: Sequence[tuple[Job, int]], watch: Watch) -> None:
        super().__init__(watch)
        self._folder, self._clock = folder, Clock(jobs)
        for job, _ in jobs:
            if folder.finished(job):
                self._clock.ended(job)
        self._last = 0.0

    def begins(self, job: Job, round: int, rounds: int) -> None:
        self._clock.at(job, round, rounds, counted=False)
        self._beat(job, round, rounds, force=True)
        super().begins(job, round, rounds)

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        self._clock.at(job, round, rounds, counted=True)
        self._beat(job, round, rounds)
        super().goes_on(job, round, rounds, line)

    def ends(self, job: Job, outcome: str) -> None:
        self._clock.ended(job)
        super().ends(job, outcome)

    def _beat(self, job: Job, round: int, rounds: int, force: bool = False) -> None:
        if force or time.monotonic() - self._last >= 1.0:
            self._last = time.monotonic()
            where = {"seed": job.seed, "request": job.request, "method": job.label, "round": round, "rounds": rounds}
            left = {"rounds_left": self._clock.left, "seconds_left": self._clock.seconds_left}
            locks.beat(self._folder.path, {**where, **left})
