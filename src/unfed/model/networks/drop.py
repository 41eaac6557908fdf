"""Stochastic depth (Huang et al., ECCV 2016).

It drops a whole residual branch of a row, or scales what is kept.

    x · keep / (1 − p)          keep ~ Bernoulli(1 − p), one draw per row

`unfed.model.functional` swaps this layer for a keyed twin, as it does with dropout, so that a client alone and the same
client in a stack drop the same branches.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unfed.errors import UnfedError


class StochasticDepth(nn.Module):
    """Drops the branch of each row with probability `p` while training; in eval mode it does nothing."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise UnfedError(f"The probability of stochastic depth must lie in [0, 1], not {p}; use 0 for none.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        keep = torch.rand(x.shape[:1] + (1,) * (x.dim() - 1), device=x.device, dtype=x.dtype) >= self.p
        return x * keep / (1.0 - self.p) if self.p < 1.0 else torch.zeros_like(x)
