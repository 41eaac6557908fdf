"""SalUn: RandL, but only the weights that D_u is most sensitive to may move.

    begin:  m = 1 for the ⌊ratio · P⌋ largest entries of |Σ_b ∇_θ mean_b CE(θ*; D_u)|, over all weights at once; else 0
    round:  RandL; after each step  θ ← m ⊙ θ + (1 − m) ⊙ θ*

Putting the masked-out weights back after each step is all there is to it: for an elementwise optimiser that is
bit-equal to masking the gradients and the momentum as well, and weight decay cannot move them. Norm statistics are no
weights and move freely. The sums of gradients are `client/scores.py:measure`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from unfed.client.plan import Measure, term
from unfed.errors import UnfedError
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import Lineage, option, register
from unfed.methods.randl import RandL
from unfed.model.params import Params


@register
@dataclass(frozen=True)
class SalUn(RandL):
    """Random labels for the salient weights."""

    name: ClassVar[str] = "salun"
    title: ClassVar[str] = "SalUn"
    cite: ClassVar[str] = "Fan et al., SalUn, ICLR 2024"
    # Its rounds go by a mask that their plan does not hold.
    lineage: ClassVar[Lineage] = "ends"

    ratio: float = option(0.2, "the share of weights that may move", "paper")

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise UnfedError(f"SalUn's ratio is a share of the weights between 0 and 1, not {self.ratio}; try 0.2.")

    def begin(self, server: Server) -> State:
        sums = server.measure(Measure("gradient", "forget", server.base.batch), server.params, server.owners)
        saliency = {name: sums[name] for name in server.template.trainable}
        return State(server.params, tensors={"mask": most(saliency, self.ratio)})

    def round(self, server: Server, state: State) -> State:
        # A round starts with the masked-out weights at θ*, so "back to the start" is back to θ* for ever.
        held = replace(server.base, after=(term("hold", mask="mask", of="start"),))
        mask = {"mask": state.tensors["mask"]}
        asked = server.participants(state.round + 1, server.clients)
        return server.advance(state, asked, self.mislabelled(held), held, context=mask)


def most(saliency: Params, share: float) -> Params:
    """True for the ⌊share · P⌋ entries of largest magnitude among all tensors; earlier entries win ties."""
    flat = torch.cat([t.flatten().abs() for t in saliency.values()])
    chosen = torch.zeros_like(flat, dtype=torch.bool)
    chosen[flat.argsort(descending=True, stable=True)[: int(share * len(flat))]] = True
    parts = torch.split_with_sizes(chosen, [t.numel() for t in saliency.values()])
    return {name: part.view(t.shape) for (name, t), part in zip(saliency.items(), parts, strict=True)}
