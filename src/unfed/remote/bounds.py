"""How much a client can have counted, by what it said it holds.

Its weight, the ledger and every metric are sums of such counts, so nobody's may be larger than its census allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unfed.client import objectives
from unfed.client.plan import Phase, Plan
from unfed.data import ClientData
from unfed.data.scope import VIEWS, View
from unfed.remote.replies import MOST_ROWS


@dataclass(frozen=True)
class Held:
    """The most rows of each view that a client can have."""

    rows: Mapping[View, int]

    @staticmethod
    def of(client: ClientData | None, exact: bool) -> Held:
        """By its outline; where it has not said yet which rows a request concerns, each may be either kind."""
        if client is None:
            return Held(dict.fromkeys(VIEWS, MOST_ROWS))
        views = {view: len(client.view(view)) for view in VIEWS}
        return Held(views if exact else {**views, "retain": views["all"], "forget": views["all"]})

    def covered(self, plan: Plan) -> int:
        """The rows that a plan's views cover: the weight in the average."""
        views = {phase.view for phase in plan.phases}
        return sum(self.rows[view] for view in (views - {"retain", "forget"} if "all" in views else views))

    def trained(self, plan: Plan) -> int:
        """The rows that go forward and backward in a plan's phases."""
        return sum(self._passed(plan))

    def forwarded(self, plan: Plan) -> int:
        """The rows that go through context models."""
        found = [objectives.find(phase.objective.name) for phase in plan.phases]
        times = [objective.forwards + objective.forget_forwards for objective in found]
        return sum(rows * each for rows, each in zip(self._passed(plan), times, strict=True))

    def _passed(self, plan: Plan) -> list[int]:
        return [_passed(phase, self.rows[phase.view]) for phase in plan.phases]


def _passed(phase: Phase, rows: int) -> int:
    """The most rows that can go through a phase.

    A last batch of one row joins the one before it, see `bounds`.
    """
    batch = min(rows, phase.batch + 1)
    if phase.steps is not None:
        return phase.steps * batch
    return phase.epochs * (rows if phase.cap is None else min(rows, phase.cap * batch))
