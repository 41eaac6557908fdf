"""Whoever watches a run and writes down who took part: a leaf for every model that a job reaches.

    round   job, round, digest of the model, root over the sorted pseudonyms of those who were asked to train for it

It is written before the job saves, so no round is kept in the folder that is not in the log. A job that is killed
repeats rounds; what comes out the same has its leaf already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unfed.engines.observed import Observer
from unfed.federation.history import History
from unfed.federation.state import State
from unfed.model.digest import digests, fingerprint
from unfed.requests.entry import Job, now
from unfed.runs.progress import PassingWatch, QuietWatch, Watch
from unfed.runs.run import Run
from unfed.trust import story
from unfed.trust.folder import TrustFolder
from unfed.trust.participation import ROUND


class LoggedWatch(PassingWatch):
    """Passes everything on, and logs it."""

    def __init__(self, run: Run, trust: TrustFolder, watch: Watch) -> None:
        super().__init__(watch)
        self._run, self._trust = run, trust
        self._rounds: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        for leaf in trust.log.leaves:
            if leaf["type"] == ROUND:
                self._rounds[_where(leaf)] = leaf

    def logs(self, run: Path) -> bool:
        """Whether it is this run that is logged."""
        return self._run.folder.path.absolute() == run.absolute()

    def observer(self, job: Job) -> Observer | None:
        """Whoever the other one lends. What was asked for is entered before the method begins."""
        story.enter(self._run.folder, self._trust)
        return super().observer(job)

    def reached(self, job: Job, state: State, asked: Collection[str]) -> None:
        """A model, and who was asked to train for it."""
        trust = self._trust
        told: dict[str, Any] = {"seed": job.seed, "request": job.request, "method": job.label, "round": state.round}
        told |= {"model": fingerprint(digests(state.params))}
        told |= {"participants": trust.participants.root(trust.pseudonyms.of(asked).values())}
        last = self._rounds.get(_where(told), {})
        if any(last.get(name) != value for name, value in told.items()):
            leaf = {"type": ROUND, "at": now(), **told}
            trust.log.append(leaf)
            self._rounds[_where(leaf)] = leaf
        super().reached(job, state, asked)

    def saved(self, job: Job, state: State, histories: Mapping[str, History]) -> None:
        """What is saved is signed for."""
        self._trust.log.sign(self._trust.key)
        super().saved(job, state, histories)


@contextmanager
def logged(run: Run, watch: Watch | None = None) -> Iterator[Watch]:
    """A watch to work with in a run that keeps a log; what happened is entered before and after.

    Without the operator's key no work is done. A watch that logs this run already is as it was.
    """
    if isinstance(watch, LoggedWatch) and watch.logs(run.folder.path):
        yield watch
        return
    trust = TrustFolder(run.folder.path)
    story.enter(run.folder, trust)
    try:
        yield LoggedWatch(run, trust, watch or QuietWatch())
    finally:
        story.enter(run.folder, trust)


def _where(leaf: Mapping[str, Any]) -> tuple[Any, ...]:
    return leaf.get("seed"), leaf.get("request"), leaf.get("method"), leaf.get("round")
