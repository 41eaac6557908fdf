"""Groups of layers as one call.

They are one call so that an engine that knows a better way to compute them can step in.

    block(x, conv, norm, relu, pool) = pool(relu(norm(conv(x))))
    attend(projected, heads)         = softmax(q kᵀ / √d) v        of every head; q, k, v side by side in `projected`

Networks call these instead of the layers. `computed_by` offers them to someone else first; no network knows of it.

Stochastic depth (Huang et al., ECCV 2016).

It drops a whole residual branch of a row, or scales what is kept.

    x · keep / (1 − p)          keep ~ Bernoulli(1 − p), one draw per row

`unfed.model.functional` swaps this layer for a keyed twin, as it does with dropout, so that a client alone and the same
client in a stack drop the same branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unfed.errors import UnfedError

# --- groups of layers as one call -------------------------------------------------------------------------------------


Better = Callable[..., Tensor | None]
"""Takes what the function takes; its result, or None where the better way does not apply."""

_ways: list[dict[str, Better]] = []


def block(x: Tensor, conv: nn.Module, norm: nn.Module, relu: nn.Module, pool: nn.Module) -> Tensor:
    """The four layers one after another, unless someone has a better way."""
    found = _offered("block", x, conv, norm, relu, pool)
    out: Tensor = pool(relu(norm(conv(x)))) if found is None else found
    return out


def attend(projected: Tensor, heads: int) -> Tensor:
    """Attention of sequences with themselves: [rows, length, 3 · width] to [rows, length, width]."""
    found = _offered("attend", projected, heads)
    if found is not None:
        return found
    rows, length, width = projected.shape
    query, key, value = projected.view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(rows, length, width // 3)


@contextmanager
def computed_by(**ways: Better) -> Iterator[None]:
    """Within, `block` and `attend` are offered to the functions given under their names."""
    _ways.append(ways)
    try:
        yield
    finally:
        _ways.remove(ways)


def _offered(what: str, *arguments: Any) -> Tensor | None:
    for ways in reversed(_ways):
        found = ways[what](*arguments) if what in ways else None
        if found is not None:
            return found
    return None


# --- stochastic depth (Huang et al., ECCV 2016) -----------------------------------------------------------------------


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
