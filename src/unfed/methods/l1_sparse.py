"""ℓ1-sparse: fine-tune on D_r while an ℓ1 penalty prunes what nothing holds in place.

    round t = 1, 2, …:  min  CE(θ; D_r) + α_t ‖θ‖_1,      α_t = α · max(0, 1 − (t−1)/E_1)

Over all parameters, biases and norms included; after E_1 epochs it is FT. With α = 0 it is FT bit for bit.
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
class L1Sparse(Central):
    """Fine-tuning with a decaying ℓ1 penalty."""

    name: ClassVar[str] = "l1-sparse"
    title: ClassVar[str] = "ℓ1-sparse"
    cite: ClassVar[str] = "Jia et al., Model Sparsity Can Simplify Machine Unlearning, NeurIPS 2023"
    lineage: ClassVar[Lineage] = "goes on"

    alpha: float = option(0.002, "α: the penalty of the first epoch", "paper")
    epochs: int = option(2, "E_1: the penalty falls to 0 linearly over these epochs", "paper")

    def __post_init__(self) -> None:
        if not self.alpha >= 0 or self.epochs < 0:
            raise UnfedError(
                f"ℓ1-sparse takes an alpha and epochs of at least 0, not {self.alpha} and {self.epochs};"
                " 0.002 and 2 are the defaults."
            )

    def begin(self, server: Server) -> State:
        return State(server.params)

    def round(self, server: Server, state: State) -> State:
        alpha = self.alpha * max(0.0, 1 - state.round / self.epochs) if self.epochs else 0.0
        if alpha == 0.0:
            return server.recover(state)
        sparse = replace(server.base, penalties=(term("l1", alpha=alpha),))
        return server.advance(state, server.participants(state.round + 1, server.retained), sparse)
