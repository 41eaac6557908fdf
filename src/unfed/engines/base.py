"""The engine contract, observers of an engine, and visits of several federations as one stack.

An engine trains and measures on clients, wherever they are. An observer changes nothing; it hears which rows were
trained on, what went in and what came back. It is for engines that work here: a transport counts its own messages.

    θ      = [θ⁰, θ⁰, …, θ¹, θ¹, …]          each client starts from its own federation's model
    stack  ─► [block of federation 0, block of federation 1, …]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch import Tensor

from unfed.client.plan import Measure, Plan
from unfed.data import ClientData, Source
from unfed.engines.stack import stack
from unfed.model.params import Params

# --- the engine contract: what goes in, what comes back ---------------------------------------------------------------


@dataclass(frozen=True)
class PerClient:
    """A context that differs per client."""

    params: Mapping[str, Params]


Context = Mapping[str, Params | PerClient]


class Drawn(dict[str, Params | PerClient]):
    """A context of fresh models, each a function of its seed.

    Where messages are real, the seed travels instead.
    """

    def __init__(self, models: Mapping[str, Params], seeds: Mapping[str, int]) -> None:
        super().__init__(models)
        self.seeds = dict(seeds)


@dataclass(frozen=True)
class Visit:
    """What one federation asks some of its clients at one time."""

    plan: Plan
    params: Params
    """Where every one of them starts."""
    clients: tuple[str, ...]
    context: Context
    optimiser: Mapping[str, Params] | None = None


@dataclass(frozen=True)
class Moved:
    """How far the clients of a block moved, for every floating-point tensor."""

    start: Params
    """θ."""
    sums: list[Tensor]
    """Σ_k n_k (θ_k − θ)."""
    mean: list[Tensor]
    """θ + Σ_k n_k (θ_k − θ) / Σ_k n_k."""
    sizes: Tensor
    """The mean's largest entry, ‖θ_k − θ‖ of every client, ‖θ‖: none of them finite where an entry is not."""


@dataclass(frozen=True)
class Block:
    """The updates of some clients, stacked along a first axis in the order of `clients`."""

    clients: tuple[str, ...]
    params: Params
    samples: tuple[int, ...]
    """Rows the plan covers at each client: its weight in the average."""
    trained: tuple[int, ...]
    """Rows that went forward and backward."""
    forwarded: tuple[int, ...]
    """Rows that went through context models."""
    optimiser: Params | None = None
    """The optimisers' state, stacked, where the plan says keep."""
    moved: Moved | None = None
    """How far they moved, where that is known and the mean is finite."""

    def of(self, index: int) -> Params:
        return {name: t[index] for name, t in self.params.items()}

    def pick(self, keep: Sequence[int]) -> Block:
        """The block with only these places."""
        if len(keep) == len(self.clients):
            return self
        index = torch.tensor(list(keep), dtype=torch.int64)
        return self.some(keep, lambda t: t[index.to(t.device)])

    def some(self, places: Sequence[int], rows: Callable[[Tensor], Tensor], moved: Moved | None = None) -> Block:
        """The block with these places, whose rows of every tensor `rows` gives."""

        def each(params: Params) -> Params:
            return {name: rows(t) for name, t in params.items()}

        return Block(
            tuple(self.clients[i] for i in places),
            each(self.params),
            tuple(self.samples[i] for i in places),
            tuple(self.trained[i] for i in places),
            tuple(self.forwarded[i] for i in places),
            None if self.optimiser is None else each(self.optimiser),
            moved,
        )


@dataclass(frozen=True)
class Refusal:
    """A client without a usable answer, and why: it was not averaged, or it did not answer at all."""

    round: int
    client: str
    reason: str
    absurd: bool = False
    """Whether no honest training makes such an update."""


@dataclass(frozen=True)
class Traffic:
    """What messages really carried."""

    wire_bytes: int = 0
    """The tensors in them."""
    serialised_bytes: int = 0
    """The whole messages, as the transport packs them."""


class Engine(Protocol):
    """Trains and measures on clients, wherever they are.

    One that sends real messages has `settle() -> Traffic` as well: what crossed since it was asked last.
    """

    name: str

    def train(
        self,
        plan: Plan,
        params: Params,
        clients: Sequence[str],
        context: Context,
        optimiser: Mapping[str, Params] | None = None,
    ) -> Iterator[Block | Refusal]:
        """Every client starts from `params` and runs the plan; blocks come in any order.

        A client elsewhere may be away, too late or unwilling: then its refusal comes in the place of a block.
        """
        ...

    def measure(
        self, what: Measure, params: Params, clients: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, Tensor]] | Refusal]:
        """Every client answers with sums over its view, in the order in which they were asked, or not at all."""
        ...


def context_of(context: Context, client: str) -> dict[str, Params]:
    """The context as one client sees it."""
    return {n: c.params[client] if isinstance(c, PerClient) else c for n, c in context.items()}


# --- listening to an engine: what went in, what came back, which rows were read to train on ---------------------------


class Observer(Protocol):
    """A listener that hears which rows are read for training."""

    def read(self, rows: Tensor) -> None:
        """These rows of the data set are read to train on them."""

    def trained(self, params: Params, context: Context, block: Block) -> None:
        """Clients started from these params, with this context, and answered with a block."""

    def measured(self, what: Measure, params: Params, sums: Mapping[str, Tensor]) -> None:
        """A client measured these params and answered with sums."""


class ObservedEngine:
    """An engine that tells an observer what goes through it."""

    def __init__(self, engine: Engine, observer: Observer) -> None:
        self._engine, self._observer, self.name = engine, observer, engine.name

    def train(
        self,
        plan: Plan,
        params: Params,
        clients: Sequence[str],
        context: Context,
        optimiser: Mapping[str, Params] | None = None,
    ) -> Iterator[Block | Refusal]:
        for answer in self._engine.train(plan, params, clients, context, optimiser):
            if not isinstance(answer, Refusal):
                self._observer.trained(params, context, answer)
            yield answer

    def measure(
        self, what: Measure, params: Params, clients: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, Tensor]] | Refusal]:
        for answer in self._engine.measure(what, params, clients):
            if not isinstance(answer, Refusal):
                self._observer.measured(what, params, answer[1])
            yield answer


def observed_clients(clients: Mapping[str, ClientData], observer: Observer) -> dict[str, ClientData]:
    """The same clients, but an observer hears which rows they read to train on.

    Who shared a source still shares one.
    """
    heard: dict[int, Source] = {}
    for client in clients.values():
        heard.setdefault(id(client.source), _ObservedSource(client.source, observer))
    return {name: replace(client, source=heard[id(client.source)]) for name, client in clients.items()}


class _ObservedSource:
    """A source that tells which rows were fetched for training."""

    def __init__(self, source: Source, observer: Observer) -> None:
        self._source, self._observer = source, observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if draws is not None:  # who only measures draws nothing
            self._observer.read(rows)
        return self._source.fetch(rows, draws)


# --- what several federations ask of their clients at the same time, as one stack -------------------------------------


def filled(places: Sequence[int], sizes: Sequence[int], room: int) -> list[list[int]]:
    """The places in their order, cut into stacks that have room for the largest of them everywhere.

    Stacks of equal size share one recorded step, so they are made equal where that costs at most half of the room.
    """
    count, most = len(places), max(1, room // max(1, *(sizes[place] for place in places)))
    least = -(-count // most)
    stacks = next((n for n in range(least, 2 * least + 1) if count % n == 0), least)
    each = -(-count // stacks)
    return [list(places[i : i + each]) for i in range(0, count, each)]


def moved(
    stacked: Params, starts: Sequence[Params], samples: Sequence[tuple[int, ...]], size: Tensor | None = None
) -> list[Moved]:
    """How far the clients of each federation moved from its start.

    `size` is ‖θ‖ where it is known. What can be computed for all of them at once is: on a GPU every operation on these
    small tensors is a launch.
    """
    names = [name for name, old in starts[0].items() if old.is_floating_point()]
    counts = [len(own) for own in samples]
    spans = [slice(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]
    # Never waiting for the device, which is still at work on the block.
    rows = torch.tensor([[n for own in samples for n in own]]).to(starts[0][names[0]].device, non_blocking=True)
    weights = {dtype: rows.to(dtype) for dtype in {starts[0][name].dtype for name in names}}
    sums, lengths = [list[Tensor]() for _ in starts], []
    for name in names:
        first = starts[0][name]
        begin = first if len(starts) == 1 else _spread([start[name] for start in starts], counts)
        apart = (stacked[name] - begin).reshape(sum(counts), first.numel())
        lengths.append(torch.linalg.vector_norm(apart, dim=1))
        for own, span in zip(sums, spans, strict=True):
            own.append((weights[first.dtype][:, span] @ apart[span]).view_as(first))
    far, found = torch.linalg.vector_norm(torch.stack(lengths), dim=0), []
    for start, own, n, span in zip(starts, sums, samples, spans, strict=True):
        mean = mean_of(own, sum(n), [start[name] for name in names])
        parts = [largest(mean).to(far.dtype)[None], far[span], length_of(start) if size is None else size]
        found.append(Moved(start, own, mean, torch.cat(parts)))
    return found


def mean_of(sums: list[Tensor], total: int, start: list[Tensor]) -> list[Tensor]:
    """θ + Σ n_k (θ_k − θ) / Σ n_k."""
    return list(torch._foreach_add(start, torch._foreach_div(sums, total)))


def largest(tensors: Sequence[Tensor]) -> Tensor:
    """The largest size of an entry.

    It is finite exactly if every entry is: unlike a sum of sizes it cannot overflow.
    """
    some = [t for t in tensors if t.numel()]
    return torch.stack(torch._foreach_norm(some, math.inf)).max() if some else tensors[0].new_zeros(())


def length_of(params: Params) -> Tensor:
    """‖θ‖ over all floating-point entries, as one number that the device may still be working on."""
    norms = torch.stack(torch._foreach_norm([t for t in params.values() if t.is_floating_point()]))
    length: Tensor = torch.linalg.vector_norm(norms, keepdim=True)
    return length


def spread(visits: Sequence[Visit]) -> Params:
    """Every federation's model as often as it has clients, stacked."""
    counts = [len(visit.clients) for visit in visits]
    return {name: _spread([visit.params[name] for visit in visits], counts) for name in visits[0].params}


def _spread(tensors: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    return torch.cat([t.expand(n, *t.shape) for t, n in zip(tensors, counts, strict=True)])


def contexts(visits: Sequence[Visit], start: Params) -> tuple[dict[str, Params], dict[str, Params]]:
    """What all clients of a stack have in common, and what each has of its own, stacked."""
    (first, *others) = visits
    if others:
        each = [context_of(visit.context, name) for visit in visits for name in visit.clients]
        return {}, {name: stack([context[name] for context in each]) for name in first.context} | {"start": start}
    shared = {n: c for n, c in first.context.items() if not isinstance(c, PerClient)} | {"start": start}
    own = {n: c.params for n, c in first.context.items() if isinstance(c, PerClient)}
    return shared, {n: stack([params[k] for k in first.clients]) for n, params in own.items()}


def parted(block: Block, visits: Sequence[Visit]) -> list[Block]:
    """The block of a stack as those of its federations.

    Each comes with what its server asks about it first.
    """
    if len(visits) == 1:
        return [block]
    ends = list(accumulate(len(visit.clients) for visit in visits))
    spans = [slice(end - len(visit.clients), end) for visit, end in zip(visits, ends, strict=True)]
    far = moved(block.params, [visit.params for visit in visits], [block.samples[own] for own in spans])
    sizes = torch.cat([one.sizes for one in far]).cpu().split([len(one.sizes) for one in far])  # one wait for all
    known = [replace(one, sizes=own) if math.isfinite(own[0]) else None for one, own in zip(far, sizes, strict=True)]
    return [block.some(range(own.start, own.stop), itemgetter(own), one) for own, one in zip(spans, known, strict=True)]
