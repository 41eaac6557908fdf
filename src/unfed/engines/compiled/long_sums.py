"""Products with long sums and few results, in pieces that are computed side by side.

    a b = Σₛ a[:, s] b[s]          s: pieces of the sum

The last layer of a small network has thousands of features and ten classes. Ten clients make a few dozen tiles of it,
so most of a GPU's multiprocessors would wait. `rewrite` cuts such products in a traced step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from unfed.engines.compiled import graph_edits, handwritten
from unfed.engines.compiled.kernels import sums_in

aten: Any = torch.ops.aten

SHORTEST = 256
"""Entries of a piece."""
ENOUGH = 160
"""Tiles of 64 × 64 results that keep an H200 busy."""


def in_pieces(a: Tensor, b: Tensor, pieces: int) -> Tensor:
    """`torch.bmm(a, b)`, the sums in so many pieces."""
    left = a.unflatten(2, (pieces, -1)).transpose(1, 2).flatten(0, 1)
    right = b.unflatten(1, (pieces, -1)).flatten(0, 1)
    each = torch.bmm(left, right).unflatten(0, (-1, pieces))
    found: Tensor = each.sum(1, dtype=sums_in(a)).to(a.dtype)
    return found


def pieces_of(a: Tensor, b: Tensor) -> int:
    """How many pieces: as many as it takes to fill the device, none shorter than is worth a kernel."""
    pieces, tiles = 1, a.shape[0] * -(-a.shape[1] // 64) * -(-b.shape[2] // 64)
    while pieces * tiles < ENOUGH and a.shape[2] % (2 * pieces) == 0 and a.shape[2] // (2 * pieces) >= SHORTEST:
        pieces *= 2
    return pieces


def rewrite(module: GraphModule) -> None:
    """Cut the products of a stack."""
    products = module.graph.find_nodes(op="call_function", target=aten.bmm.default)
    for node in products if handwritten.chosen.products else ():
        pieces = pieces_of(*(given.meta["val"] for given in node.args))
        if pieces > 1:
            cut = graph_edits.insert(module.graph, node, in_pieces, *node.args, pieces)
            graph_edits.replace(module.graph, node, cut)
    module.recompile()
