"""Listening to an engine: what went in, what came back, which rows were read to train on.

An observer changes nothing and hears what really passed, whoever asked for it. It is for engines that work here; what
real messages carried, the messenger counts itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from unfed.client.plan import Measure, Plan
from unfed.data import ClientData, Source
from unfed.engines.base import Block, Context, Engine, Refusal
from unfed.model.params import Params


class Observer(Protocol):
    """A listener that is told which rows are read for training."""

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
    """The same clients, but an observer is told which rows they read to train on.

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
