"""How long a request is worked on: `recovered`, `forgotten`, both, or a number of rounds."""

from __future__ import annotations

from dataclasses import dataclass

from unfed.errors import UnfedError

GOALS = ("recovered", "forgotten")


@dataclass(frozen=True)
class Until:
    """What must be reached, or how many rounds are done whatever is reached."""

    goals: frozenset[str] = frozenset()
    rounds: int | None = None

    @staticmethod
    def of(text: str | None) -> Until:
        """`recovered`, `forgotten`, `recovered,forgotten` or a number; None asks for nothing."""
        if text is None:
            return Until()
        if text.isascii() and text.isdigit() and int(text) >= 1:
            return Until(rounds=int(text))
        goals = [goal.strip() for goal in text.split(",")]
        if not all(goal in GOALS for goal in goals):
            raise UnfedError(
                "--until takes 'recovered', 'forgotten', both with a comma between them, or a number of rounds, not"
                f" {text!r}."
            )
        return Until(frozenset(goals))

    @property
    def recovered(self) -> bool:
        return "recovered" in self.goals

    @property
    def forgotten(self) -> bool:
        return "forgotten" in self.goals
