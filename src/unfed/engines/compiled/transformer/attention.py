"""Attention of short sequences, for one client in half precision.

It has the forward pass, and the backward pass with the bias's gradient.

    P = softmax(q kᵀ / √d)          o = P v             ℓ = log₂ Σ exp(q kᵀ / √d), kept instead of P

    dv = Pᵀ do                      dP = do vᵀ          dS = P ∘ (dP − (do · o))
    dq = dS k / √d                  dk = dSᵀ q / √d     db = Σ (dq, dk, dv)

A vision transformer's sequence (197 tokens at 224 pixels) is so short that one program can keep all keys and values of
a head on the chip, with what it adds up for them, so the gradient comes in one pass, in a fixed order. Libraries are
made for long sequences: around their kernel they need others, for do · o, for rounding dq, for bringing dq, dk and dv
side by side, and for adding them up. Here q, k and v are read as they lie behind the projection, and their gradients
are written in the same places. `short_attention` is what a network's `attend` calls while a step is recorded.
"""

from __future__ import annotations

import math
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from unfed.engines.compiled import graph_edits, handwritten, kernels
from unfed.engines.compiled.kernels import HALVES, sums_in
from unfed.engines.compiled.transformer import launch

LONGEST = 256
"""Tokens whose keys and values fit on a multiprocessor…"""
NEEDED = 100 * 1024
"""… that has this many bytes of shared memory."""


def short_attention(projected: Tensor, heads: int) -> Tensor | None:
    """[rows, length, 3 · width] to [rows, length, width], or None where it is not made for them."""
    if not handwritten.chosen.attention or not fits(projected, heads):
        return None
    found: Tensor = attention(projected.reshape(*projected.shape[:2], 3, heads, -1))[0]
    return found


def fits(projected: Tensor, heads: int) -> bool:
    """Whether this is one client's half-precision attention of sequences that fit on a multiprocessor."""
    if torch._C._functorch.is_batchedtensor(projected) or projected.dtype not in HALVES:
        return False
    if projected.is_cuda and not kernels.usable(projected):
        return False
    narrow = projected.shape[2] // (3 * heads) in (16, 32, 64)
    return narrow and projected.shape[1] <= LONGEST and kernels.shared_memory(projected.device) >= NEEDED


@torch.library.custom_op("unfed::attention", mutates_args=())
def attention(x: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, length, 3, heads, d] to [rows, length, heads · d], and ℓ [rows, heads, length]."""
    x = x.contiguous()
    return launch.attend(x) if kernels.usable(x) else forward(x)


@attention.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, length, _, heads, width = x.shape
    return x.new_empty((rows, length, heads * width)), x.new_empty((rows, heads, length), dtype=sums_in(x))


@torch.library.custom_op("unfed::attention_backward", mutates_args=())
def attention_backward(dout: Tensor, x: Tensor, out: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """dx, and its sums over rows and tokens in partial sums [parts, 3 · heads · d]."""
    run = launch.attend_backward if kernels.usable(x) else backward
    return run(dout.contiguous(), x.contiguous(), out, level)


@attention_backward.register_fake
def _(dout: Tensor, x: Tensor, out: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    parts = x.shape[0] if kernels.usable(x) else 1
    return x.new_empty(x.shape), x.new_empty((parts, 3 * x.shape[3] * x.shape[4]), dtype=sums_in(x))


def _keep(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx: Any, dout: Tensor, _: Any) -> Tensor:
    dx: Tensor = attention_backward(dout, *ctx.saved_tensors)[0]
    return dx


attention.register_autograd(_differentiate, setup_context=_keep)


def rewrite(module: GraphModule) -> int:
    """Let biases take their gradients from the partial sums instead of adding up dx once more.

    It gives the number of biases that do.
    """
    changed = 0
    for node in list(module.graph.nodes):
        if node.target is not torch.ops.unfed.attention_backward.default:
            continue
        made = {user.args[1]: user for user in node.users if user.target is getitem}
        heads, width = made[0].meta["val"].shape[3:]
        for found in graph_edits.sums(made[0], 3 * heads * width):
            parts = made.get(1) or _second(module, node)
            total = graph_edits.insert(module.graph, found, _total, parts, found.meta["val"].dtype)
            graph_edits.replace(module.graph, found, total)
            changed += 1
    module.recompile()
    return changed


def _second(module: GraphModule, node: Any) -> Any:
    with module.graph.inserting_after(node):
        parts = module.graph.call_function(getitem, (node, 1))
    parts.meta["val"] = node.meta["val"][1]
    return parts


def _total(parts: Tensor, dtype: torch.dtype) -> Tensor:
    return parts.sum(0, keepdim=True).to(dtype)


# --- the same, readable -----------------------------------------------------------------------------------------------


def forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """o and ℓ."""
    query, key, value = x.to(sums_in(x)).permute(2, 0, 3, 1, 4).unbind(0)
    scores = query @ key.transpose(2, 3) / math.sqrt(x.shape[4])
    attended = scores.softmax(3) @ value
    return attended.transpose(1, 2).flatten(2).to(x.dtype), scores.logsumexp(3) * math.log2(math.e)


def backward(dout: Tensor, x: Tensor, out: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient for q, k and v, in their places, and what it adds up to."""
    scale = 1 / math.sqrt(x.shape[4])
    query, key, value = x.to(sums_in(x)).permute(2, 0, 3, 1, 4).unbind(0)
    do, o = (t.to(sums_in(x)).view(*x.shape[:2], *x.shape[3:]).transpose(1, 2) for t in (dout, out))
    p = torch.exp2(query @ key.transpose(2, 3) * (scale * math.log2(math.e)) - level[..., None])
    ds = p * (do @ value.transpose(2, 3) - (do * o).sum(3, keepdim=True))
    each = (ds @ key * scale, ds.transpose(2, 3) @ query * scale, p.transpose(2, 3) @ do)
    dx = torch.stack(each).permute(1, 3, 0, 2, 4).to(x.dtype).contiguous()
    return dx, dx.sum((0, 1), dtype=sums_in(x)).flatten()[None]
