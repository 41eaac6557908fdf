"""Which layers of a module use what which others answer: the partial order of its weights.

by running    one forward pass on an example; autograd remembers what was made of what. Any control flow will do.
by tracing    torch.fx follows a symbol through `forward`; no example is needed, but no branch on data may occur.
by position   where neither works, parameters in the order of their definition, which is said.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from unfed.model.calling import logits_in
from unfed.model.tensor_table import WEIGHTS, table_of

LOOKED_UP = ("Embedding", "Index", "Gather")
"""Autograd's names of what reads rows of a table."""
ADDED = ("AddBackward", "SubBackward")
ADDING = (operator.add, operator.sub, operator.iadd, operator.isub, torch.add, torch.sub)


@dataclass(frozen=True)
class Order:
    """For each weight, those whose answers it uses, at once or later."""

    before: Mapping[str, frozenset[str]]
    last: tuple[str, ...]
    """Weights with an answer that no other uses: maximal elements. A weight that two layers share answers twice."""
    doubt: str = ""
    """Why the order is only a guess, where it is one."""

    @property
    def first(self) -> tuple[str, ...]:
        """Weights that use no other's answers."""
        return tuple(name for name, earlier in self.before.items() if not earlier)


Use = tuple[str, int]
"""A weight, and which of its uses: a tied weight has several."""


def order_of(module: nn.Module, example: Tensor | None = None) -> Order:
    """The order of a module's convolution, dense and embedding weights."""
    names = [t.name for t in table_of(module).tensors.values() if t.kind in WEIGHTS]
    reasons = []
    if example is not None:
        try:
            return _whole(_by_running(module, example), names)
        except Exception as error:  # a module of anybody's, which may fail in any way
            reasons.append(f"it cannot be run on the example ({_short(error)})")
    try:
        return _whole(_by_tracing(module), names)
    except Exception as error:
        reasons.append(f"it cannot be traced ({_short(error)})")
    guessed = {name: frozenset(names[:i]) for i, name in enumerate(names)}
    told = " and ".join(reasons)
    in_a_row = [first for first in table_of(module).aliases.values() if first in names]  # a tied weight again and again
    last = tuple(in_a_row[-1:])
    return Order(
        guessed, last, f"{told[0].upper()}{told[1:]}, so its layers are taken in the order of their definition"
    )


def _whole(found: Mapping[Use, set[Use]], names: list[str]) -> Order:
    """What was seen; a weight that took no part in it, of a branch not taken, has no place."""
    seen = {use: {other for other in reached if other[0] in names} for use, reached in found.items() if use[0] in names}
    followed = set[Use]().union(*seen.values())
    before = {name: {n for (own, _), reached in seen.items() if own == name for n, _ in reached} for name in names}
    there = [name for name in names if (name, 0) in seen]
    last = tuple(name for name in there if any(own == name and (own, i) not in followed for own, i in seen))
    return Order({name: frozenset(before[name] - {name}) for name in there}, last)


def _by_running(module: nn.Module, example: Tensor) -> dict[Use, set[Use]]:
    own = copy.deepcopy(module).eval().requires_grad_(True)
    labels = {id(p): name for name, p in own.named_parameters()}
    with torch.enable_grad():
        out = own(example)
    begin = logits_in(out).grad_fn
    made: dict[Any, set[Use]] = {}
    found: dict[Use, set[Use]] = {}
    times = Counter[str]()
    for node in _inputs_first(begin):
        ways = [below for below, _ in node.next_functions if below is not None]
        alone = {way: _parameter(way, labels) for way in ways}
        reached = set[Use]().union(*(made[way] for way in ways if alone[way] is None))
        handed = _parameter(node, labels) is not None  # not used yet, only passed on in another shape
        uses = set() if handed else {(name, times[name]) for name in alone.values() if name is not None}
        times.update(name for name, _ in uses)
        beside = node.name().startswith(ADDED)  # what is added to an answer, as positions are, does not use it
        found |= {use: set() if beside else reached for use in uses}
        made[node] = reached | uses
    return found


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
    """The parameter that a node hands on, as it is or in another shape; None if something was computed.

    A row that was looked up in a table is the table's answer, although nothing but the table went into it.
    """
    while True:
        if hasattr(node, "variable"):
            return labels.get(id(node.variable))
        if len(node.next_functions) != 1 or node.next_functions[0][0] is None or node.name().startswith(LOOKED_UP):
            return None
        node = node.next_functions[0][0]


def _by_tracing(module: nn.Module) -> dict[Use, set[Use]]:
    graph, parts, names = fx.symbolic_trace(module).graph, dict(module.named_modules()), table_of(module).aliases
    held = {name: {first for n, first in names.items() if n.startswith(f"{name}.")} for name in parts if name}
    made: dict[fx.Node, set[Use]] = {}
    found: dict[Use, set[Use]] = {}
    times = Counter[str]()
    handed: dict[fx.Node, str] = {}  # a weight that a layer of an own class takes into its hands, as it is or turned
    for node in graph.nodes:
        ways = node.all_input_nodes
        if node.op == "get_attr" and node.target in names:
            handed[node] = names[str(node.target)]
        elif len(ways) == 1 and ways[0] in handed and node.op in ("call_function", "call_method"):
            handed[node] = handed[ways[0]]
        if node in handed:
            made[node] = set()
            continue
        reached = set[Use]().union(*(made[way] for way in ways))
        inside = held.get(str(node.target), set()) if node.op == "call_module" else set[str]()
        uses = {(name, times[name]) for name in inside | {handed[way] for way in ways if way in handed}}
        times.update(name for name, _ in uses)
        beside = node.target in ADDING or node.target in ("add", "sub")
        found |= {use: set() if beside else reached for use in uses}
        made[node] = reached | uses
    return found


def _short(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:100]}" if text else type(error).__name__
