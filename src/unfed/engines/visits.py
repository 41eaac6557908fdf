"""What several federations ask of their clients at the same time, as one stack.

θ      = [θ⁰, θ⁰, …, θ¹, θ¹, …]          each client starts from its own federation's model
stack  ─► [block of federation 0, block of federation 1, …]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from unfed.engines.base import Block, PerClient, Visit, context_of
from unfed.engines.vectorised import stack
from unfed.model.params import Params


def filled(places: Sequence[int], sizes: Sequence[int], room: int) -> list[list[int]]:
    """The places in their order, cut into stacks that have room for the largest of them everywhere.

    Stacks of equal size share one recorded step, so they are made equal where that costs at most half of the room.
    """
    count, most = len(places), max(1, room // max(1, *(sizes[place] for place in places)))
    least = -(-count // most)
    stacks = next((n for n in range(least, 2 * least + 1) if count % n == 0), least)
    each = -(-count // stacks)
    return [list(places[i : i + each]) for i in range(0, count, each)]


def spread(visits: Sequence[Visit]) -> Params:
    """Every federation's model as often as it has clients, stacked."""
    counts = [len(visit.clients) for visit in visits]
    names = visits[0].params
    return {
        name: torch.cat([v.params[name].expand(n, *v.params[name].shape) for v, n in zip(visits, counts, strict=True)])
        for name in names
    }


def contexts(visits: Sequence[Visit], start: Params) -> tuple[dict[str, Params], dict[str, Params]]:
    """What all clients of a stack have in common, and what each has of its own, stacked."""
    (first, *others) = visits
    if others:
        each = [context_of(visit.context, name) for visit in visits for name in visit.clients]
        return {}, {name: stack([context[name] for context in each]) for name in first.context} | {"start": start}
    shared = {n: c for n, c in first.context.items() if not isinstance(c, PerClient)} | {"start": start}
    own = {n: c.params for n, c in first.context.items() if isinstance(c, PerClient)}
    return shared, {n: stack([params[k] for k in first.clients]) for n, params in own.items()}


def parted(block: Block, sizes: Sequence[int]) -> list[Block]:
    """The block of a stack as those of its federations."""
    if len(sizes) == 1:
        return [block]
    found, at = [], 0
    for size in sizes:
        own = slice(at, at + size)
        found.append(
            Block(
                block.clients[own],
                {name: t[own] for name, t in block.params.items()},
                block.samples[own],
                block.trained[own],
                block.forwarded[own],
                None if block.optimiser is None else {name: t[own] for name, t in block.optimiser.items()},
            )
        )
        at += size
    return found
