"""conv → norm → ReLU → max-pool, as one call.

    block(x, conv, norm, relu, pool) = pool(relu(norm(conv(x))))

Networks call it instead of the four layers, so that an engine that knows a better way to compute all four at once can
step in (`computed_by`) without the network knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

Better = Callable[[Tensor, nn.Module, nn.Module, nn.Module, nn.Module], Tensor | None]
"""The block's result, or None where the better way does not apply."""

_ways: list[Better] = []


def block(x: Tensor, conv: nn.Module, norm: nn.Module, relu: nn.Module, pool: nn.Module) -> Tensor:
    """The four layers one after another, unless somebody has a better way."""
    for way in reversed(_ways):
        found = way(x, conv, norm, relu, pool)
        if found is not None:
            return found
    out: Tensor = pool(relu(norm(conv(x))))
    return out


@contextmanager
def computed_by(way: Better) -> Iterator[None]:
    """Within, blocks are offered to `way` first."""
    _ways.append(way)
    try:
        yield
    finally:
        _ways.remove(way)
