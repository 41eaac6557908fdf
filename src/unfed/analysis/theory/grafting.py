"""Models made of several models' layers, and layers that fit together: Definition 3, Definition 4.

    θ̄ is a grafting of θ⁽¹⁾, θ⁽²⁾, …  if for every layer ℓ there is an i with  θ̄_ℓ = θ⁽ⁱ⁾_ℓ              (Eq. 6)
    its layers are co-adapted         if N^θ̄ is optimal

Layers of one optimal model are co-adapted. Taken from two optimal models they usually are not, and that is what
negation is after: where −θ*_ℓ is a layer of another optimal model (`compensation`), the negated model is a grafting of
two optimal ones whose layers do not fit. In the demo's model (test accuracy 98.3 %) the first weight of Retrain leaves
18.9 % and the negated one 9.2 %: negation breaks the fit as a stranger's layer does.

`unfed.model.perturb.graft` makes a grafting; the functions here recognise one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unfed.errors import UnfedError


def origins(grafted: Mapping[str, Tensor], models: Mapping[str, Mapping[str, Tensor]]) -> dict[str, tuple[str, ...]]:
    """For each tensor, the models it was taken from, to the bit (Definition 3, Eq. 6)."""
    return {
        name: tuple(label for label, params in models.items() if name in params and torch.equal(params[name], tensor))
        for name, tensor in grafted.items()
    }


def is_grafting(grafted: Mapping[str, Tensor], models: Mapping[str, Mapping[str, Tensor]]) -> bool:
    """Whether every tensor comes from one of the models (Definition 3, Eq. 6)."""
    return all(origins(grafted, models).values())


def are_coadapted(loss: float, optimum: float, within: float = 0.0) -> bool:
    """Whether a grafting's layers fit together: its loss is the optimum's, up to `within` (Definition 4)."""
    if within < 0:
        raise UnfedError(f"How far above the optimum a loss may lie cannot be negative, as {within} is.")
    return loss <= optimum + within
