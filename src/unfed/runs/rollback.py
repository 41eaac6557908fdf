"""Going back when a round has spoiled the model.

    round ─► finite? ─► scored, if it is evaluated or saved ─► collapsed? ── no ──► the new good state
                                                                  └── yes ─► back to the last good state;
                                                                             again, each round scored, updates kept
                                                                             ─► who must be left out to mend it?

Validation accuracy has collapsed if it fell by more than half of its distance from chance, by more than 20 points, and
by more than 4 standard errors of as many held-out rows. It is compared with the last good state of the same job; what a
method's `begin` does to the model is never judged. The client without whose update the round would not have collapsed
is named and left out for the rest of the job. Where leaving out no single client helps, the round stands: honest
training swings too where clients hold different kinds of rows. The folder of a training keeps the last good states
until it has ended: `Run.go_back` goes on from them, and so does a job whose newest state is no use.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from unfed.engines.base import length_of
from unfed.errors import UnfedWarning
from unfed.federation.history import History
from unfed.federation.server import JobServer
from unfed.federation.state import State
from unfed.folder.job_notes import JobNotes
from unfed.measures.trajectory import RefusedUpdate
from unfed.model.params import Params
from unfed.values import Value, is_measured


@dataclass(frozen=True)
class Validation:
    """How validation accuracy is measured here, and how far it may fall."""

    score: Callable[[Params], Value]
    classes: int
    rows: int

    def collapsed(self, value: Value, good: float) -> bool:
        """Whether a model with this accuracy is broken, where the one before had `good`."""
        chance, noise = 100.0 / self.classes, 200.0 / math.sqrt(max(1, self.rows))
        return is_measured(value) and good - value > max(20.0, (good - chance) / 2, noise)


@dataclass(frozen=True)
class _Good:
    state: State
    histories: Mapping[str, History]
    usual: dict[str, list[float]]
    asked: dict[int, list[str]]
    refused: list[RefusedUpdate]


class Rollback:
    """Keeps the last good state of a job, and goes back to it."""

    def __init__(self, server: JobServer, validation: Validation) -> None:
        self._server, self._validation = server, validation
        self._good: _Good | None = None

    def keep(self, state: State, notes: JobNotes, value: Value | None = None) -> None:
        """Take this state for good, with its score where it has one."""
        histories = {label: recorder.history for label, recorder in self._server.recorders.items()}
        asked = {round: list(clients) for round, clients in notes.asked.items()}
        self._good = _Good(state, histories, dict(notes.usual), asked, list(notes.refused))
        if value is not None and is_measured(value) and state.model and state.round:
            notes.good = value
            if notes.fell is not None and not self._validation.collapsed(value, notes.fell):
                notes.fell = None

    def written(self) -> None:
        """Who was asked and refused up to the good state stands in a line by now."""
        if self._good is not None:
            self._good = replace(self._good, asked={}, refused=[])

    def spoilt(self, state: State, notes: JobNotes, value: Value | None) -> State | None:
        """The state to go on from, if this one is spoilt; None if it stands, or was not scored."""
        if value is None:
            return None
        before, judge = notes.good, self._validation
        if before is None or not state.model or not judge.collapsed(value, before):
            self.keep(state, notes, value)
            return None
        assert is_measured(value)
        if not self._server.keeps:
            notes.careful = state.round
            return self._back(notes)
        fell = f"validation fell from {before:.1f} to {value:.1f} %"
        culprit = self._culprit(before)
        if culprit is None:
            warnings.warn(
                f"In round {state.round} {fell}, and no single client explains it; see the report, or go back with"
                " `unfed resume RUN --back`.",
                UnfedWarning,
                stacklevel=3,
            )
            notes.fell = notes.fell or before
            self.keep(state, notes, value)
            return None
        back = self._back(notes)
        self.leave_out(notes, state.round, culprit, f"with its update {fell}; it is left out of the rest of this job")
        return back

    def leave_out(self, notes: JobNotes, round: int, client: str, reason: str) -> None:
        """Go on without a client, and say why."""
        notes.aside.append(client)
        notes.refused.append({"round": round, "client": client, "reason": reason})
        self._server.leave_out(notes.aside)

    def _back(self, notes: JobNotes) -> State:
        good = self._good
        assert good is not None
        for label, history in good.histories.items():
            self._server.recorders[label].history = history
        self._server.usual = notes.usual = dict(good.usual)
        notes.asked = {round: list(clients) for round, clients in good.asked.items()}
        notes.refused = list(good.refused)
        return good.state

    def _culprit(self, before: float) -> str | None:
        """The client without whose update the model would be best, if it would not have collapsed then."""
        if self._server.kept is None:
            return None
        start, blocks = self._server.kept
        found: dict[str, float] = {}
        for client in [client for block in blocks for client in block.clients]:
            rest = [block.pick([i for i, c in enumerate(block.clients) if c != client]) for block in blocks]
            if rest := [block for block in rest if block.clients]:
                value = self._validation.score(self._server.settings.robust.combined(start, rest))
                if is_measured(value) and not self._validation.collapsed(value, before):
                    found[client] = value
        return max(found, key=found.__getitem__, default=None)

    def why_poisoned(self, state: State, notes: JobNotes, scored: bool) -> str:
        """What is wrong with a saved state, in words; nothing if it is good.

        A state that was scored before it was saved is good if its norm is a number.
        """
        if not math.isfinite(float(length_of(state.params))):
            return "its norm is not a finite number"
        if scored or not (state.round and state.model):
            return ""
        value = self._validation.score(state.params)
        if not self._validation.collapsed(value, notes.best):
            return ""
        assert is_measured(value)
        return f"its validation accuracy is {value:.1f} % after {notes.best:.1f} %"
