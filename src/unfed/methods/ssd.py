"""SSD: shrink the weights that matter more to D_u than to the data as a whole. One shot, no training.

    I_S = mean over batches b of S of (∇_θ mean_b CE)²          a diagonal Fisher, model in eval mode

    where I_{D_u} > α I_D:      θ_i ← θ_i · min(λ I_D / I_{D_u}, 1)             D = D_r ∪ D_u

Everything else, buffers included, stays. The batch size sets the scale of I, so both passes use the same
(`client/scores.py:measure` sums the squares).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from unfed.client.plan import Measure
from unfed.data.scope import View
from unfed.errors import UnfedError
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import Central, option, register
from unfed.model.params import Params


@register
@dataclass(frozen=True)
class SelectiveSynapticDampening(Central):
    """Dampening of the weights that the forgotten data needs most."""

    name: ClassVar[str] = "ssd"
    title: ClassVar[str] = "SSD"
    cite: ClassVar[str] = "Foster et al., Fast Machine Unlearning Without Retraining, AAAI 2024"
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "forget"})

    alpha: float = option(0.5, "α: choose weights that matter α times more to D_u (original: 10)", "paper")
    lam: float = option(0.5, "λ: smaller leaves less of a chosen weight (original: 1)", "paper")

    def __post_init__(self) -> None:
        if not (self.alpha >= 0 and self.lam >= 0):
            raise UnfedError(
                f"SSD takes an alpha and a lam of at least 0, not {self.alpha} and {self.lam}; 0.5 and 0.5 are the"
                " paper's."
            )

    def begin(self, server: Server) -> State:
        forget = _importance(server, "forget", server.owners)
        whole = _importance(server, "all", server.clients)
        dampened = dampen(server.params, forget, whole, self.alpha, self.lam)
        return State(dampened, done=True)


def _importance(server: Server, view: View, clients: Sequence[str]) -> Params:
    """I over a view; sums over clients and batches are all that leaves a client."""
    sums = server.measure(Measure("squared_gradient", view, server.base.batch), server.params, clients)
    return {name: sums[name] / sums["batches"].to(sums[name]) for name in server.template.trainable}


def dampen(params: Params, forget: Params, whole: Params, alpha: float, lam: float) -> Params:
    """The rule itself; a weight without importance to D_u is never chosen."""
    out = dict(params)
    for name, own in forget.items():
        # ∞ · 0 is no number: an infinite α chooses nothing, whatever I_D is.
        chosen = own > (alpha * whole[name]).nan_to_num(nan=torch.inf)
        shrink = (lam * whole[name] / own).clamp(max=1.0)
        out[name] = torch.where(chosen, params[name] * shrink, params[name])
    return out
