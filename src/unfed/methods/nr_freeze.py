"""NR-Freeze: is a negated layer still optimal?

This is the paper's test of layer-wise optimality (Definition 2).

    begin: θ'_ℓ = −θ*_ℓ for ℓ ∈ L_neg, held there;      every other tensor drawn afresh, buffers too          (Eq. 88)
    round: FedAvg over D_r; after each step the held tensors are put back

If the rest can be trained to Retrain's accuracy around the frozen, negated layer, then that layer alone was as good
after the negation as before: what negation destroys is how layers fit together, not the layers.

It is a method like any other, given by its path, and compared with Retrain under the same number of rounds:

    unfed run experiment.toml --set 'methods.run=["retrain", "unfed.methods.nr_freeze:NRFreeze"]'
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from unfed.client.plan import term
from unfed.errors import UnfedError
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import Lineage, Method, option
from unfed.model.layers import choose
from unfed.model.perturb import Perturbed, graft, negate


@dataclass(frozen=True)
class NRFreeze(Method):
    """Negate and freeze chosen layers, start everything else again (Definition 2, Eq. 88)."""

    name: ClassVar[str] = "nr-freeze"
    title: ClassVar[str] = "NR-Freeze"
    cite: ClassVar[str] = (
        "Khalil et al., NoT: Federated Unlearning via Weight Negation, CVPR 2025, layer-wise optimality"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "init"})
    lineage: ClassVar[Lineage] = "moved"

    layers: tuple[str | int, ...] = option(("first",), "which tensors are negated and frozen", "paper")

    def begin(self, server: Server) -> State:
        chosen = choose(server.template.module, self.layers)
        return State(negate(graft(server.init("nr-freeze"), chosen, donor=server.params), chosen))

    def check(self, module: nn.Module) -> None:
        self._frozen(module)

    def perturbed(self, module: nn.Module) -> Perturbed | None:
        return Perturbed("negate", choose(module, self.layers))

    def round(self, server: Server, state: State) -> State:
        # What the model itself has frozen needs no holding.
        moving = [name for name in self._frozen(server.template.module) if name in server.template.trainable]
        held = (term("hold", of="start", names=",".join(moving)),) if moving else ()
        asked = server.participants(state.round + 1, server.retained)
        return server.advance(state, asked, replace(server.base, after=(*server.base.after, *held)))

    def rounds(self, unlearning: int, training: int) -> int:
        """As many as Retrain: nearly everything starts again."""
        return training

    def _frozen(self, module: nn.Module) -> tuple[str, ...]:
        chosen = choose(module, self.layers)
        if not chosen or any(choice.rows is not None for choice in chosen):
            raise UnfedError("NR-Freeze freezes whole tensors, at least one; name them without rows, such as 'first'.")
        return tuple(choice.name for choice in chosen)
