"""Convolutions of a stack of clients, as matrix products instead of groups.

    y[c, m, o] = Σ_{i, r} x[c, window(m) + i·row + r] · w[c, (i, r), o]        r = (column, channel), one run of memory

`vmap` turns a convolution into one with C groups, and the weight gradient of a grouped convolution is the slowest
kernel of the whole step. Here images lie channels-last and padded, so a window is KH runs of KW·CI neighbouring
numbers: no index arithmetic per element, no border masks, and every client is one batched matrix product.

Two custom operators (input → output, and their product for the weights) are enough: the gradient for the input is the
first one again, with the kernel turned around. On CUDA they are Triton kernels, elsewhere one unfold and one `bmm`.
`rewrite` puts them into a traced step in the place of PyTorch's grouped convolutions. It also cuts long sums: the last
layer has thousands of features and ten classes, so ten clients make too few tiles to keep a GPU busy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from unfed.engines.compiled import graph_edits, handwritten, kernels
from unfed.engines.compiled.kernels import sums_in

aten: Any = torch.ops.aten


def windows(x: Tensor, kh: int, kw: int, step: int = 1) -> Tensor:
    """Windows of padded images [C, B, H, W, I] as [C, B·OH·OW, KH·KW·I]: one view, one copy.

    They are `step` pixels apart in a line.
    """
    clients, images, height, width, channels = x.shape
    oh, ow = height - kh + 1, (width - kw) // step + 1
    s = x.stride()
    view = x.as_strided((clients, images, oh, ow, kh, kw * channels), (s[0], s[1], s[2], step * s[3], s[2], 1))
    return view.reshape(clients, images * oh * ow, kh * kw * channels)


@torch.library.custom_op("unfed::stacked_conv", mutates_args=())
def stacked_conv(x: Tensor, w: Tensor, kh: int, kw: int) -> Tensor:
    """Padded images [C, B, H, W, I] and weights [C, KH·KW·I, O] to [C, B, OH, OW, O]."""
    x, w = x.contiguous(), w.contiguous()
    shape = _outputs(x, w.shape[2], kh, kw)
    if not kernels.usable(x):
        return torch.bmm(windows(x, kh, kw), w).view(shape)
    y = x.new_empty(shape)
    kernels.convolve(x, w, y, kh, kw)
    return y


@stacked_conv.register_fake
def _(x: Tensor, w: Tensor, kh: int, kw: int) -> Tensor:
    return x.new_empty(_outputs(x, w.shape[2], kh, kw))


@torch.library.custom_op("unfed::stacked_conv_weight", mutates_args=())
def stacked_conv_weight(x: Tensor, dy: Tensor, kh: int, kw: int, margin: int) -> Tensor:
    """Σ over windows of x ⊗ dy, in partial sums [parts, C, KH·KW·I, O], at least float32.

    `dy` has `margin` zeros around.
    """
    x, dy = x.contiguous(), dy.contiguous()
    height, width = _outputs(x, dy.shape[4], kh, kw)[2:4]
    if kernels.usable(x):
        return kernels.weight(x, dy, kh, kw, margin, height, width)
    inner = dy[:, :, margin : margin + height, margin : margin + width].flatten(1, 3)
    return torch.bmm(windows(x, kh, kw).transpose(1, 2), inner).to(sums_in(x))[None]


@stacked_conv_weight.register_fake
def _(x: Tensor, dy: Tensor, kh: int, kw: int, margin: int) -> Tensor:
    clients, _, height, width, leaving = _outputs(x, dy.shape[4], kh, kw)
    parts = kernels.parts(x, leaving, kh, kw, height, width) if kernels.usable(x) else 1
    return x.new_empty((parts, clients, kh * kw * x.shape[4], leaving), dtype=sums_in(x))


def _outputs(x: Tensor, leaving: int, kh: int, kw: int) -> tuple[int, int, int, int, int]:
    """The shape of what a convolution makes of padded images."""
    return (*x.shape[:2], x.shape[2] - kh + 1, x.shape[3] - kw + 1, leaving)


# --- the same thing, in the terms of a grouped convolution ------------------------------------------------------------


def padded(x: Tensor, groups: int, padding: int) -> Tensor:
    """[B, C·I, H, W] to [C, B, H + 2p, W + 2p, I]."""
    stacked = x.reshape(x.shape[0], groups, -1, *x.shape[2:]).permute(1, 0, 3, 4, 2)
    around: Tensor = aten.constant_pad_nd(stacked, [0, 0, padding, padding, padding, padding], 0.0)
    return around.contiguous()


def grouped(y: Tensor) -> Tensor:
    """[C, B, H, W, O] to [B, C·O, H, W]."""
    return y.permute(1, 0, 4, 2, 3).flatten(1, 2)


def convolve(x: Tensor, w: Tensor, padding: int, groups: int) -> Tensor:
    """`torch.convolution` of a stack: x [B, C·I, H, W], w [C·O, I, KH, KW]."""
    kh, kw = w.shape[2:]
    flat = w.reshape(groups, -1, *w.shape[1:]).permute(0, 3, 4, 2, 1).flatten(1, 3)
    return grouped(stacked_conv(padded(x, groups, padding), flat, kh, kw))


def convolve_backward(
    dy: Tensor, x: Tensor, w: Tensor, padding: int, groups: int, wants: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients for x and w."""
    kh, kw = w.shape[2:]
    margin = kh - 1 - padding
    around = padded(dy, groups, margin)
    each = w.reshape(groups, -1, *w.shape[1:])
    dx = dw = None
    if wants[0]:
        turned = each.flip(3, 4).permute(0, 3, 4, 1, 2).flatten(1, 3)
        dx = grouped(stacked_conv(around, turned, kh, kw))
    if wants[1]:
        parts = stacked_conv_weight(padded(x, groups, padding), around, kh, kw, margin)
        found = parts.sum(0).reshape(groups, kh, kw, x.shape[1] // groups, -1)
        dw = found.permute(0, 4, 3, 1, 2).flatten(0, 1).to(w.dtype)
    return dx, dw


# --- long sums --------------------------------------------------------------------------------------------------------


def in_pieces(a: Tensor, b: Tensor, pieces: int) -> Tensor:
    """`torch.bmm(a, b)` as Σₛ aₛ bₛ over so many pieces s of its sum, which are computed side by side."""
    # A linear layer's weights come transposed: along the sum, both lie in one run of memory.
    left, right = (t.unflatten(2, (pieces, -1)).transpose(1, 2).flatten(0, 1) for t in (a, b.transpose(1, 2)))
    each = torch.bmm(left, right.transpose(1, 2)).unflatten(0, (-1, pieces))
    found: Tensor = each.sum(1, dtype=sums_in(a)).to(a.dtype)
    return found


def pieces_of(a: Tensor, b: Tensor) -> int:
    """Enough pieces to keep an H200 busy (160 tiles of 64 × 64 results), none shorter than 256 numbers."""
    pieces, tiles = 1, a.shape[0] * -(-a.shape[1] // 64) * -(-b.shape[2] // 64)
    while pieces * tiles < 160 and a.shape[2] % (2 * pieces) == 0 and a.shape[2] // (2 * pieces) >= 256:
        pieces *= 2
    return pieces


# --- rewriting a traced step ------------------------------------------------------------------------------------------


def rewrite(module: GraphModule, stack: int) -> int:
    """Replace the grouped convolutions of a stack, and cut its long sums; how many nodes were replaced."""
    changed = 0
    for node in list(module.graph.nodes) if handwritten.chosen.products else ():
        if node.op != "call_function":
            continue
        if node.target is aten.convolution.default and _fits(node.args[1:9], stack):
            x, w, bias, _, padding, *_, groups = node.args
            if bias is None:
                _replace(module.graph, node, convolve, x, w, padding[0], groups)
                changed += 1
        elif node.target is aten.convolution_backward.default and _fits(node.args[2:10], stack):
            dy, x, w, _, _, padding, *_, groups, wants = node.args
            if not wants[2]:
                _replace(module.graph, node, convolve_backward, dy, x, w, padding[0], groups, list(wants))
                changed += 1
        elif node.target is aten.bmm.default and (pieces := pieces_of(*(n.meta["val"] for n in node.args))) > 1:
            _replace(module.graph, node, in_pieces, *node.args, pieces)
            changed += 1
    module.graph.eliminate_dead_code()
    module.recompile()
    return changed


def _fits(arguments: Any, stack: int) -> bool:
    """What the operators are made for: stride 1, no dilation, square, one group per client."""
    w, _, stride, padding, dilation, transposed, _, groups = arguments
    value = w.meta["val"]
    square = len(stride) == 2 and value.shape[2] == value.shape[3] and len(set(padding)) == 1
    plain = set(stride) == {1} and set(dilation) == {1} and not transposed
    return bool(plain and square and groups == stack and stack > 1 and padding[0] < value.shape[2])


def _replace(graph: Graph, node: Node, function: Any, *arguments: Any) -> None:
    graph_edits.replace(graph, node, graph_edits.insert(graph, node, function, *arguments))
