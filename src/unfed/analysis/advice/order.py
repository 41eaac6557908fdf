"""Which layers of a module use what which others answer: the partial order of its weights.

by running    one forward pass on an example; autograd remembers what was made of what. Any control flow will do.
by tracing    torch.fx follows a symbol through `forward`; no example is needed, but no branch on data may occur.
by position   where neither works, parameters in the order of their definition, which is said.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from unfed.model.calling import logits_in
from unfed.model.tensor_table import WEIGHTS, table_of


@dataclass(frozen=True)
class Order:
    """For each weight, those whose answers it uses, at once or later."""

    before: Mapping[str, frozenset[str]]
    doubt: str = ""
    """Why the order is only a guess, where it is one."""

    @property
    def first(self) -> tuple[str, ...]:
        """Weights that use no other's answers."""
        return tuple(name for name, earlier in self.before.items() if not earlier)

    @property
    def last(self) -> tuple[str, ...]:
        """Weights whose answers no other uses: maximal elements."""
        used = set[str]().union(*self.before.values())
        return tuple(name for name in self.before if name not in used)


def order_of(module: nn.Module, example: Tensor | None = None) -> Order:
    """The order of a module's convolution, dense and embedding weights."""
    names = [t.name for t in table_of(module).tensors.values() if t.kind in WEIGHTS]
    reasons = []
    if example is not None:
        try:
            return _whole(_by_running(module, example, names), names)
        except Exception as error:  # a module of anybody's, which may fail in any way
            reasons.append(f"it cannot be run on the example ({_short(error)})")
    try:
        return _whole(_by_tracing(module, names), names)
    except Exception as error:
        reasons.append(f"it cannot be traced ({_short(error)})")
    guessed = {name: frozenset(names[:i]) for i, name in enumerate(names)}
    told = " and ".join(reasons)
    return Order(guessed, f"{told[0].upper()}{told[1:]}, so its layers are taken in the order of their definition")


def _whole(found: Mapping[str, set[str]], names: Iterable[str]) -> Order:
    """What was seen; a weight that took no part in it, of a branch not taken, has no place."""
    wanted = set(names)
    return Order({name: frozenset(found[name] & wanted) for name in names if name in found})


def _by_running(module: nn.Module, example: Tensor, names: list[str]) -> dict[str, set[str]]:
    own = copy.deepcopy(module).eval().requires_grad_(True)
    labels = {id(p): name for name, p in own.named_parameters()}
    with torch.enable_grad():
        out = own(example)
    begin = logits_in(out).grad_fn
    made: dict[Any, set[str]] = {}
    found: dict[str, set[str]] = {}
    for node in _inputs_first(begin):
        ways = [below for below, _ in node.next_functions if below is not None]
        alone = {way: _parameter(way, labels) for way in ways}
        reached = set[str]().union(*(made[way] for way in ways if alone[way] is None))
        for name in filter(None, alone.values()):
            found.setdefault(name, set()).update(reached)
        made[node] = reached | {name for name in alone.values() if name is not None}
    return {name: found[name] - {name} for name in names if name in found}


def _inputs_first(begin: Any) -> Iterator[Any]:
    """Autograd's nodes, each after those it was made of; without recursion, for networks are deep."""
    seen, waiting = set[Any](), [(begin, False)]
    while waiting:
        node, done = waiting.pop()
        if done:
            yield node
        elif node not in seen:
            seen.add(node)
            waiting.append((node, True))
            waiting += [(below, False) for below, _ in node.next_functions if below is not None]


def _parameter(node: Any, labels: Mapping[int, str]) -> str | None:
    """The parameter that a node hands on, as it is or in another shape; None if something was computed."""
    while True:
        if hasattr(node, "variable"):
            return labels.get(id(node.variable))
        if len(node.next_functions) != 1 or node.next_functions[0][0] is None:
            return None
        node = node.next_functions[0][0]


def _by_tracing(module: nn.Module, names: list[str]) -> dict[str, set[str]]:
    graph, parts = fx.symbolic_trace(module).graph, dict(module.named_modules())
    held = {name: {n for n in names if n.startswith(f"{name}.")} for name in parts if name}
    made: dict[fx.Node, set[str]] = {}
    found: dict[str, set[str]] = {}
    for node in graph.nodes:
        reached = set[str]().union(*(made[way] for way in node.all_input_nodes))
        own = held.get(str(node.target), set()) if node.op == "call_module" else set[str]()
        if node.op == "get_attr" and node.target in names:
            own = {str(node.target)}
        for name in own:
            found.setdefault(name, set()).update(reached)
        made[node] = reached | own
    return {name: earlier - {name} for name, earlier in found.items()}


def _short(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:100]}" if text else type(error).__name__
