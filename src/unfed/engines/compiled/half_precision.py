"""What a traced step computes otherwise in half precision: GELU, and weights that are turned.

    gelu(x) = x Φ(x)   ─►   x σ(x (a + b s + c s²)),   s = min(x², 36)
    half(wᵀ)           ─►   half(w)ᵀ

The exact Φ takes longer to compute than its tensor takes to move. With the logistic function in its place x Φ(x) is at
most 3e-5 off and the derivative 1e-4, where bf16 rounds a number near 1 by up to 4e-3. A weight that is turned before
it is rounded is stored turned, too: then it is read or written column by column.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from unfed import rng
from unfed.engines.compiled import graph_edits
from unfed.engines.compiled.kernels import HALVES

aten: Any = torch.ops.aten
TURN = aten.transpose.int
A, B, C = 1.59497871, 0.0739729857, -0.00069436927
"""log Φ(x) / Φ(−x) = x (A + B x² + C x⁴), nearly: the least largest error of x Φ(x) and its derivative."""


def rewrite(module: GraphModule) -> int:
    """Replace GELUs of halves, and weights that are turned before they are rounded.

    It gives the number of nodes that were replaced.
    """
    changed = 0
    for node in list(module.graph.nodes):
        if node.op != "call_function" or getattr(node.meta.get("val"), "dtype", None) not in HALVES:
            continue
        source: Any = node.args[0] if node.args else None
        if node.target is aten.gelu.default and not node.kwargs:  # the keyword is another approximation
            made = graph_edits.insert(module.graph, node, gelu, source)
        elif node.target is aten.gelu_backward.default and not node.kwargs:
            made = graph_edits.insert(module.graph, node, gelu_backward, *node.args)
        elif node.target is aten._to_copy.default and [*node.kwargs] == ["dtype"] and source.target is TURN:
            (w, *dims), dtype = source.args, node.kwargs["dtype"]
            made = graph_edits.insert(module.graph, node, lambda w, t=dtype, d=dims: w.to(t).transpose(*d), w)
        else:
            continue
        graph_edits.replace(module.graph, node, made)
        changed += 1
    module.graph.eliminate_dead_code()
    module.recompile()
    return changed


def gelu(x: Tensor) -> Tensor:
    """x Φ(x)."""
    wide = x.float()
    return (wide * _normal(wide)[0]).to(x.dtype)


def gelu_backward(dy: Tensor, x: Tensor) -> Tensor:
    """dy (Φ(x) + x φ(x)), stored: the sum over it, the bias's gradient, would compute it again."""
    wide = x.float()
    below, density = _normal(wide)
    return rng.stored((dy.float() * (below + wide * density)).to(x.dtype))


def _normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Φ(x), and its derivative φ(x)."""
    s = (x * x).clamp(max=36)
    below = torch.sigmoid(x * (A + s * (B + s * C)))
    return below, below * (1 - below) * (A + s * (3 * B + s * (5 * C)))
