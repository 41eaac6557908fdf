"""Putting a traced function into a graph of operations, in the place of a node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

aten: Any = torch.ops.aten
VIEWS = (aten.view.default, aten._unsafe_view.default)
OVER_ROWS = (([0], True), ([0], True, None))


def insert(graph: Graph, before: Node, function: Any, *arguments: Any) -> Any:
    """Copy what `function` does into the graph; the nodes that stand for what it returns. Arguments are nodes of the
    graph, or constants."""
    tensors = [a for a in arguments if isinstance(a, Node)]

    def bound(*values: Tensor) -> Any:
        given = iter(values)
        return function(*(next(given) if isinstance(a, Node) else a for a in arguments))

    traced = make_fx(bound)(*(t.meta["val"] for t in tensors))
    places, copies = iter(tensors), dict[Node, Any]()
    result: Any = None
    with graph.inserting_before(before):
        for inner in traced.graph.nodes:
            if inner.op == "placeholder":
                copies[inner] = next(places)
            elif inner.op == "output":
                result = _nodes(inner.args[0], copies)
            else:
                copies[inner] = graph.node_copy(inner, copies.__getitem__)
    return result


def replace(graph: Graph, node: Node, result: Any) -> None:
    """Whoever used the node uses the result; where the node makes several tensors, each of them."""
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            place: Any = user.args[1]
            found = result[place] if place < len(result) else None
            if found is not None:
                user.replace_all_uses_with(found)
            graph.erase_node(user)  # what nobody asked for has no users
    graph.erase_node(node)


def sums(node: Node, columns: int) -> list[Node]:
    """Who adds up the rows of a tensor that is a linear layer's gradient: as [rows, columns], over the rows."""
    shape, found = node.meta["val"].shape, list[Node]()
    for user in node.users:
        if user.target in VIEWS:
            found += sums(user, columns)
        elif user.target is aten.sum.dim_IntList and user.args[1:] in OVER_ROWS and tuple(shape[1:]) == (columns,):
            found.append(user)
    return found


def _nodes(result: Any, copies: dict[Node, Any]) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(_nodes(r, copies) for r in result)
    return copies[result] if isinstance(result, Node) else result
