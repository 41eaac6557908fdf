"""NoT: negate chosen layers of the converged model, then let the remaining clients fine-tune.

    begin: θ' = (−θ*_ℓ)_{ℓ ∈ L_neg} ⊕ (θ*_ℓ)_{ℓ ∉ L_neg}          (Eq. 3)
    round: FedAvg over D_r                                          (Algorithm 1)

No stored history, no access to the forgotten data. Negation breaks the co-adaptation between layers, so the loss is
high and the gradients are large, while each layer by itself stays as good as it was: recovery is fast.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from unfed.errors import UnfedWarning
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import Lineage, Method, Recipe, option, register
from unfed.model.layers import cancellations, choose, frozen, refuse_both_halves
from unfed.model.params import Params, params_of
from unfed.model.perturb import Perturbed, perturb


@register
@dataclass(frozen=True)
class NoT(Method):
    """Weight negation (Eq. 3), then fine-tuning on the retained data (Algorithm 1)."""

    name: ClassVar[str] = "not"
    title: ClassVar[str] = "NoT"
    cite: ClassVar[str] = "Khalil et al., NoT: Federated Unlearning via Weight Negation, CVPR 2025"
    lineage: ClassVar[Lineage] = "carried"
    # Negation moves the model far away, so the paper brings it back with large steps and then hardly moves it.
    recipe: ClassVar[Recipe] = Recipe(lr=0.1, minimum=1e-5, over=10)

    layers: tuple[str | int, ...] = option(("paper",), "L_neg: which tensors are perturbed", "paper")
    perturbation: str = option("negate", "what is done to them", "paper")
    include_bias: bool = option(False, "also the bias of each chosen weight", "paper")
    scale: float = option(1.0, "with 'noise': its size, in standard deviations", "ours")

    def begin(self, server: Server) -> State:
        return State(self._perturbed(server.template.module, server.params, server.seed, server.fresh))

    def check(self, module: nn.Module) -> None:
        params = params_of(module)
        self._perturbed(module, params, 0, lambda seed: params)
        chosen = choose(module, self.layers, self.include_bias)
        undone = cancellations(module, chosen) if self.perturbation == "negate" else []
        if self.perturbation == "negate":
            refuse_both_halves(chosen)
        for sentence in (*frozen(module, chosen), *undone):
            warnings.warn(sentence, UnfedWarning, stacklevel=2)

    def perturbed(self, module: nn.Module) -> Perturbed | None:
        chosen = choose(module, self.layers, self.include_bias)
        return Perturbed(self.perturbation, chosen, seeded=True, scale=self.scale) if chosen else None

    def carry(self, module: nn.Module, sums: Params, seed: int) -> Params:
        """The recorded sums after the perturbation: −(θ⁰ + Σ S_k) = −θ⁰ + Σ −S_k.

        The same holds for every perturbation, less what it adds: noise or a fresh layer.
        """
        chosen = [choice for choice in choose(module, self.layers, self.include_bias) if choice.name in sums]
        nothing = {choice.name: torch.zeros_like(sums[choice.name]) for choice in chosen}
        numbers = {"scale": 0.0} if self.perturbation == "noise" else {}
        return perturb(sums, chosen, self.perturbation, seed=seed, fresh=lambda _: nothing, **numbers)

    def _perturbed(self, module: nn.Module, params: Params, seed: int, fresh: Callable[[int], Params]) -> Params:
        chosen = choose(module, self.layers, self.include_bias)
        numbers = {"scale": self.scale} if self.perturbation == "noise" else {}
        return perturb(params, chosen, self.perturbation, seed=seed, fresh=fresh, **numbers)
