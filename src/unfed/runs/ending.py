"""When a job ends.

It is done, its goals are reached, nothing got better for long, or its rounds are used up.
"""

from __future__ import annotations

from dataclasses import dataclass

from unfed.errors import NotRecovered, Refused, option
from unfed.folder.job_notes import JobNotes
from unfed.measures.metrics import recovered
from unfed.measures.trajectory import Line
from unfed.methods import State
from unfed.requests.gate import NotForgotten
from unfed.requests.options import Until
from unfed.values import Value, is_measured


@dataclass(frozen=True)
class Ending:
    """What a job works for, and how long it may."""

    until: Until
    rounds: int
    """How many rounds it may take."""
    patience: int = 0
    """After how many rounds without a better validation accuracy it stops; 0 is never."""
    within: float = 0.5
    """How near to the validation accuracy before counts as recovered, in points."""

    def outcome(self, state: State, notes: JobNotes, line: Line | None = None) -> str | None:
        """Why the job ends here, or None."""
        if state.done:
            return f"not {notes.missing[0]}" if self.until.goals and notes.missing else "done"
        if self.until.goals and line is not None and not notes.missing:
            return self.until.reached
        if not state.model:
            return None  # nothing usable yet, whatever the number of rounds: the unlearning itself must end first
        stalled = bool(self.patience) and state.round - notes.best_round >= self.patience
        if stalled or state.round >= self.rounds:
            missing = [g for g in self.until.goals if notes.missing is None or g in notes.missing]
            return f"not {missing[0]}" if missing else "early stop" if stalled else "all rounds"
        return None

    def missing(self, state: State, line: Line, before: Value) -> list[str]:
        """Which goals are not reached by what a line says.

        `before` is the validation accuracy to come back to.
        """
        if not (state.model and (state.round >= 1 or state.done)):
            return list(self.until.goals)
        value, met = line.get("validation"), []
        if is_measured(value) and is_measured(before) and recovered(value, before, self.within):
            met.append("recovered")
        if "watched" in line and line["watched"]["verdict"] == "passed":
            met.append("forgotten")
        return [goal for goal in self.until.goals if goal not in met]

    def missed(self, request: str | None, state: State, notes: JobNotes, outcome: str, before: Value) -> Refused:
        """The sentence for a job whose rounds did not suffice."""
        took = f"{state.round} round{'' if state.round == 1 else 's'}"
        more = f"more rounds are given by {option('until', Until(self.until.goals, 2 * self.rounds).text)}"
        if state.done:
            leaves = f"{option('until', 'N')} leaves the model to the gate"
            more = f"its method has ended and takes no more rounds; {leaves}"
        elif state.round < self.rounds:
            more = f"it stopped because nothing got better for {self.patience} rounds (unlearning.patience)"
        if outcome == "not forgotten":
            return NotForgotten(f"Request {request!r} is not forgotten after {took} ({notes.watched}); {more}.")
        assert not isinstance(before, str)
        return NotRecovered(
            f"Request {request!r} is not recovered after {took}: the best validation accuracy was"
            f" {notes.best:.2f} % (round {notes.best_round}), it takes {before - self.within:.2f} %; {more}."
        )

    def enough(self, state: State, finished: str | None, notes: JobNotes) -> bool:
        """Whether a job has ended by what it is asked for now; one that is asked for more goes on."""
        if self.until == Until() or finished in (None, "done", "early stop"):
            return bool(finished)
        return notes.missing == [] if self.until.goals else state.round >= self.rounds
