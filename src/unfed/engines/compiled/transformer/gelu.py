"""GELU of half-precision activations.

Its backward pass comes together with the gradient of the bias in front of it.

    gelu(x) = x Φ(x)        dx = dy (Φ(x) + x φ(x))        db = Σ dx        φ(x) = exp(−x²/2) / √2π

    Φ(x) = h(|x|) for x < 0, else 1 − h(|x|)               h(x) = ½ exp(−x²/2) (a₁t + … + a₅t⁵),   t = 1 / (1 + px/√2)

A perceptron's activations are the largest tensors of a vision transformer. Left to the compiler, the exact error
function costs more time than the memory it works on, and the bias's gradient reads everything once more. Here one
exponential serves Φ and φ (Abramowitz & Stegun 7.1.26, absolute error below 1.5e-7, a hundredth of a half's rounding
wherever the result is not next to zero), and the kernel that makes dx adds it up, in a fixed order. `rewrite` finds
the places in a traced step; float32 and float64 are left as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from unfed.engines.compiled import graph_edits, handwritten, kernels
from unfed.engines.compiled.kernels import HALVES
from unfed.engines.compiled.transformer import launch

aten: Any = torch.ops.aten


@torch.library.custom_op("unfed::gelu", mutates_args=())
def gelu(x: Tensor) -> Tensor:
    """x Φ(x), of any shape."""
    x = x.contiguous()
    return launch.gelu(x) if kernels.usable(x) else aten.gelu(x)


@gelu.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("unfed::gelu_backward", mutates_args=())
def gelu_backward(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """dx of [rows, columns], and its sums over the rows in float32, in partial sums [parts, columns]."""
    dy, x = dy.contiguous(), x.contiguous()
    if kernels.usable(x):
        return launch.gelu_backward(dy, x)
    dx = aten.gelu_backward(dy, x)
    return dx, dx.sum(0, keepdim=True, dtype=torch.float32)


@gelu_backward.register_fake
def _(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    parts = launch.gelu_parts(x) if kernels.usable(x) else 1
    return x.new_empty(x.shape), x.new_empty((parts, x.shape[1]), dtype=torch.float32)


def with_sums(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """dx in the shape of x, and its sums over everything but the last dimension, [1, columns]."""
    dx, parts = gelu_backward(dy.reshape(-1, x.shape[-1]), x.reshape(-1, x.shape[-1]))
    return dx.view(x.shape), parts.sum(0, keepdim=True).to(x.dtype)


def rewrite(module: GraphModule) -> int:
    """Replace the GELUs of half-precision activations, and those of their gradients that a bias adds up.

    It gives the number of GELUs that were replaced.
    """
    changed = 0
    for node in list(module.graph.nodes) if handwritten.chosen.gelu else ():
        if node.op != "call_function" or node.kwargs.get("approximate", "none") != "none":
            continue
        if node.target is aten.gelu.default and _half(node.args[0]):
            graph_edits.replace(module.graph, node, graph_edits.insert(module.graph, node, gelu, node.args[0]))
            changed += 1
        elif (
            node.target is aten.gelu_backward.default
            and _half(node.args[1])
            and (sums := graph_edits.sums(node, _columns(node)))
        ):
            dx, total = graph_edits.insert(module.graph, node, with_sums, *node.args)
            for found in sums:
                graph_edits.replace(module.graph, found, total)
            graph_edits.replace(module.graph, node, dx)
            changed += 1
    module.graph.eliminate_dead_code()
    module.recompile()
    return changed


def _columns(node: Any) -> int:
    return int(node.meta["val"].shape[-1])


def _half(node: Any) -> bool:
    return node.meta["val"].dtype in HALVES
