"""Changing a graph of operations: a traced function in the place of a node, constants as inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx


def insert(graph: Graph, before: Node, function: Any, *arguments: Any) -> Any:
    """Copy what `function` does into the graph; the nodes that stand for what it returns.

    Arguments are nodes of the graph, or constants.
    """
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
    """Users of the node use the result; where the node makes several tensors, each of them."""
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            place: Any = user.args[1]
            found = result[place] if place < len(result) else None
            if found is not None:
                user.replace_all_uses_with(found)
            graph.erase_node(user)  # an output that is not used has no users
    graph.erase_node(node)


def lift(module: GraphModule, device: torch.device) -> list[Tensor]:
    """Make inputs of all tensors that a trace found outside of its inputs.

    Such a tensor is a data set, or a number that was written into a tensor. It gives the tensors, on the device, in the
    order in which they are to follow the other inputs.

    As attributes they trip the compiler where one lies on the host, and no CUDA graph can read one there.
    """
    graph, found = module.graph, dict[str, Node]()
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        if not isinstance(getattr(module, node.target, None), Tensor):  # the body of an operator that takes functions
            continue
        if node.target not in found:
            with graph.inserting_after(last):
                last = found[node.target] = graph.placeholder(f"constant_{len(found)}")
            last.meta = dict(node.meta)
        node.replace_all_uses_with(found[node.target])
        graph.erase_node(node)
    tensors = [getattr(module, name).detach().to(device) for name in found]
    for name in found:
        delattr(module, name)
    module.recompile()
    return tensors


def _nodes(result: Any, copies: dict[Node, Any]) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(_nodes(r, copies) for r in result)
    return copies[result] if isinstance(result, Node) else result
