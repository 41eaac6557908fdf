"""What a traced step computes otherwise in half precision: rounded weights, and GELU.

    w₁, w₂, … (float32)  ─►  bf16(w₁), bf16(w₂), …
    gelu(x) = x Φ(x)     ─►  x σ(x (a + b s + c s²)),   s = min(x², 36)

Autocast rounds each weight where it is used, and each becomes a kernel of a few microseconds: a hundred of them in a
vision transformer's step, with a pause before each. `rewrite` finds those of linear layers in a traced step and moves
them to its start; a convolution's weights are brought into another layout anyway, and rounded on the way.

The exact Φ takes longer to compute than its tensor takes to move. The logistic function that stands for it is at most
3e-5 from it in x Φ(x) and 1e-4 in the derivative: a twentieth of what rounding to bf16 changes.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from unfed import rng
from unfed.engines.compiled import graph_edits, handwritten
from unfed.engines.compiled.kernels import HALVES

aten: Any = torch.ops.aten
VIEW_OPS = (aten.select.int, aten.view.default, aten.detach.default, aten.alias.default)
MANY = 16
"""Fewer than this are left where they are: the compiler may round them on the way to something else."""
A, B, C = 1.59497871, 0.0739729857, -0.00069436927
"""log Φ(x) / Φ(−x) = x (A + B x² + C x⁴), nearly: the least largest error of x Φ(x) and its derivative."""


@torch.library.custom_op("unfed::halves", mutates_args=())
def rounded(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Every tensor in another type."""
    found = [torch.empty_like(t, dtype=dtype, memory_format=torch.contiguous_format) for t in tensors]
    torch._foreach_copy_(found, tensors)
    return found


@rounded.register_fake
def _(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty_like(t, dtype=dtype, memory_format=torch.contiguous_format) for t in tensors]


def rewrite(module: GraphModule) -> int:
    """Round at the start what the step reads in float32 and uses as a half; how many tensors that are."""
    changed = 0
    for node in list(module.graph.nodes):
        function = {aten.gelu.default: gelu, aten.gelu_backward.default: gelu_backward}.get(node.target)
        if function and node.meta["val"].dtype in HALVES and not node.kwargs:  # the keyword is another approximation
            graph_edits.replace(module.graph, node, graph_edits.insert(module.graph, node, function, *node.args))
    for dtype in HALVES if handwritten.chosen.halves else ():
        _round_before_turning(module, dtype)
        casts = [node for node in module.graph.nodes if _rounds_an_input(node, dtype)]
        if len(casts) < MANY:
            continue
        computed = next(node for node in module.graph.nodes if node.op != "placeholder")
        with module.graph.inserting_before(computed):
            inputs = [_moved(module, node.args[0]) for node in casts]
            made = module.graph.call_function(torch.ops.unfed.halves.default, (inputs, dtype))
            made.meta["val"] = [node.meta["val"] for node in casts]
            for place, node in enumerate(casts):
                half = module.graph.call_function(getitem, (made, place))
                half.meta["val"] = node.meta["val"]
                node.replace_all_uses_with(half)
                module.graph.erase_node(node)
        changed += len(casts)
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


def _round_before_turning(module: GraphModule, dtype: torch.dtype) -> None:
    """half(wᵀ) as half(w)ᵀ: what is rounded is stored line by line, and so it is read line by line, too."""
    for node in list(module.graph.nodes):
        if node.target is aten._to_copy.default and node.kwargs.get("dtype") == dtype:
            turned: Any = node.args[0]
            if turned.target is aten.transpose.int:
                w, *dims = turned.args
                half = graph_edits.insert(module.graph, node, lambda w, d=dims: w.to(dtype).transpose(*d), w)
                graph_edits.replace(module.graph, node, half)


def _rounds_an_input(node: Node, dtype: torch.dtype) -> bool:
    if node.target is not aten._to_copy.default or node.kwargs.get("dtype") != dtype:
        return False
    source: Any = node.args[0]
    given, made = source.meta["val"], node.meta["val"]
    if given.dtype != torch.float32 or given.dim() > 2 or not made.is_contiguous():
        return False
    while source.target in VIEW_OPS:
        source = source.args[0]
    return bool(source.op == "placeholder")


def _moved(module: GraphModule, node: Any) -> Node:
    """The views between an input and its use, once more at the start."""
    if node.op == "placeholder":
        found: Node = node
        return found
    before = _moved(module, node.args[0])
    return module.graph.node_copy(node, lambda n: before if n is node.args[0] else n)
