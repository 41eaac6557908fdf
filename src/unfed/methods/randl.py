"""RandL: teach the model random labels on D_u, and the true ones on D_r, over and over.

    round: one pass over D_u on  CE(θ; x, u),  u ~ Uniform{0, …, C−1} drawn for every row of every pass,
           then one pass over D_r on  CE(θ; x, y),  with one optimiser

The drawn label may be the true one, as in the published code; `exclude_true` draws among the wrong ones only. With
D_u = ∅ the round is FT's, bit for bit, because a draw's address holds the view and not the number of the phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from unfed.client.plan import Phase, term
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import Central, Lineage, option, register


@register
@dataclass(frozen=True)
class RandL(Central):
    """Random labels on the forgotten data, true labels on the rest."""

    name: ClassVar[str] = "randl"
    title: ClassVar[str] = "RandL"
    cite: ClassVar[str] = "Golatkar et al., Eternal Sunshine of the Spotless Net, CVPR 2020"
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "forget"})
    lineage: ClassVar[Lineage] = "goes on"

    exclude_true: bool = option(False, "draw only wrong labels (amnesiac unlearning)", "original")

    def begin(self, server: Server) -> State:
        return State(server.params)

    def round(self, server: Server, state: State) -> State:
        asked = server.participants(state.round + 1, server.clients)
        return server.advance(state, asked, self.mislabelled(server.base), server.base)

    def mislabelled(self, base: Phase) -> Phase:
        """The pass over D_u."""
        return replace(base, objective=term("random_label", exclude_true=self.exclude_true), view="forget")
