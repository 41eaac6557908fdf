"""The engine contract: what goes in, what comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from unfed.client.plan import Measure, Plan
from unfed.model.params import Params


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

    def of(self, index: int) -> Params:
        return {name: t[index] for name, t in self.params.items()}

    def pick(self, keep: Sequence[int]) -> Block:
        """The block with only these places."""
        if len(keep) == len(self.clients):
            return self
        index = torch.tensor(list(keep), dtype=torch.int64)

        def rows(tensors: Params) -> Params:
            return {n: t[index.to(t.device)] for n, t in tensors.items()}

        return Block(
            tuple(self.clients[i] for i in keep),
            rows(self.params),
            tuple(self.samples[i] for i in keep),
            tuple(self.trained[i] for i in keep),
            tuple(self.forwarded[i] for i in keep),
            None if self.optimiser is None else rows(self.optimiser),
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


@runtime_checkable
class Metered(Protocol):
    """An engine that sends real messages, and counts itself what crossed."""

    def settle(self) -> Traffic:
        """What crossed since the last time it was asked."""
        ...


class Engine(Protocol):
    """Trains and measures on clients, wherever they are."""

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
