"""GA: climb the loss on D_u for a moment, then fine-tune on D_r.

    round r ≤ epochs:  θ ← θ + η ∇ CE(θ; D_u)          gradient ascent; stopped where the loss leaves ±limit
    after that:        FT on D_r, with fresh momentum

Ascent has no minimum to run into: a little forgets, a little more destroys. Hence one epoch, and the stop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from unfed.client.plan import term
from unfed.errors import UnfedError
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import Central, Lineage, option, register


@register
@dataclass(frozen=True)
class GradientAscent(Central):
    """Gradient ascent on the forgotten data, then fine-tuning."""

    name: ClassVar[str] = "ga"
    title: ClassVar[str] = "GA"
    cite: ClassVar[str] = "Thudi et al., Unrolling SGD, EuroS&P 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "forget"})
    lineage: ClassVar[Lineage] = "goes on"

    epochs: int = option(1, "epochs of ascent, the first of the budget", "paper")
    limit: float = option(1e4, "the ascent stops before the loss exceeds this", "ours")

    def __post_init__(self) -> None:
        if self.epochs < 0 or not self.limit > 0:
            raise UnfedError(
                f"GA takes epochs of at least 0 and a positive limit, not {self.epochs} and {self.limit}; 1 and 1e4 are"
                " the defaults."
            )

    def begin(self, server: Server) -> State:
        return State(server.params)

    def round(self, server: Server, state: State) -> State:
        if state.round >= self.epochs:
            return server.recover(state)
        up = replace(
            server.base, objective=term("ascend"), view="forget", stop=term("loss_above", limit=float(self.limit))
        )
        after = server.advance(state, server.owners, up)
        # Momentum that points uphill would spoil the first steps down.
        return replace(after, tensors={}) if after.round == self.epochs else after
