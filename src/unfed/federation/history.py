"""What a server keeps from training, because a method will need it when a client leaves.

    past     = one round as it happened: plan, θ^{t−1}, the accepted updates, the requests in force
    history  = record(history, past), round after round

A history is tensors and numbers, like a state, and is saved in the same file as the state it belongs to: a killed run
goes on with the history of the very round it goes on with. What belongs to one client stands under its name, so that
purging a leaver is leaving out its record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from unfed.client.plan import Plan
from unfed.engines.base import Block
from unfed.errors import UnfedError
from unfed.model.params import Params, tensor_bytes


@dataclass(frozen=True)
class FinishedRound:
    """One round as it happened, before its updates are averaged."""

    plan: Plan
    params: Params
    """θ^{t−1}, from which every client started."""
    blocks: Sequence[Block]
    """The accepted updates as they enter the aggregate, in the federation's order."""
    trainable: tuple[str, ...]
    scope: tuple[Mapping[str, Any], ...] = ()
    """The requests in force in that round, as JSON, the one at work last: who replays it must see the same rows."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """By how much `training.robust` shortened a client's update; `blocks` holds it as it entered the aggregate."""

    def models(self) -> Iterator[tuple[str, int, Params]]:
        """(client, n_k, θ_k) of every accepted update."""
        for block in self.blocks:
            for index, client in enumerate(block.clients):
                yield client, block.samples[index], block.of(index)

    def update(self, params: Params) -> Params:
        """U_k = θ_k − θ^{t−1}, the trainable tensors only."""
        names = self.trainable
        found = torch._foreach_sub([params[name] for name in names], [self.params[name] for name in names])
        return dict(zip(names, found, strict=True))

    @property
    def samples(self) -> int:
        """Σ n_k over the accepted updates."""
        return sum(sum(block.samples) for block in self.blocks)


@dataclass(frozen=True)
class ClientRecord:
    """What belongs to one client."""

    tensors: Params = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """A method's memory of training."""

    rounds: int = 0
    """How many rounds were recorded."""
    shared: Mapping[str, Params] = field(default_factory=dict)
    """Models that belong to no client in particular."""
    own: Mapping[str, ClientRecord] = field(default_factory=dict)
    """What belongs to a client, by its name."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    purged: tuple[str, ...] = ()
    """Clients whose records were taken out; not the same as clients who never took part."""

    @property
    def stored_bytes(self) -> int:
        """What this takes on the server: its tensors, and its numbers as text."""
        tensors, numbers = self.pack()
        return tensor_bytes(tensors) + len(json.dumps(numbers, separators=(",", ":")))

    def without(self, clients: Collection[str]) -> History:
        """The history without these clients' records."""
        kept = {client: record for client, record in self.own.items() if client not in clients}
        out = tuple(client for client in self.own if client in clients)
        return replace(self, own=kept, purged=self.purged + out)

    def mapped(self, change: Callable[[Params], Params]) -> History:
        """The history with a change made to the tensors of every client's record."""
        return replace(self, own={c: replace(r, tensors=change(r.tensors)) for c, r in self.own.items()})

    def to(self, device: torch.device) -> History:
        def moved(tensors: Mapping[str, Tensor]) -> Params:
            return {name: t.to(device) for name, t in tensors.items()}

        shared = {group: moved(tensors) for group, tensors in self.shared.items()}
        own = {client: ClientRecord(moved(record.tensors), record.numbers) for client, record in self.own.items()}
        return replace(self, shared=shared, own=own)

    def pack(self) -> tuple[Params, dict[str, Any]]:
        """One flat dictionary of tensors, and the numbers; clients' names stay out of the tensors' names."""
        groups, clients = list(self.shared), list(self.own)
        tensors = {f"shared/{i}/{n}": t for i, group in enumerate(groups) for n, t in self.shared[group].items()}
        tensors |= {f"own/{i}/{n}": t for i, c in enumerate(clients) for n, t in self.own[c].tensors.items()}
        numbers = {
            "rounds": self.rounds,
            "groups": groups,
            "clients": clients,
            "own": [dict(self.own[c].numbers) for c in clients],
            "numbers": dict(self.numbers),
            "purged": list(self.purged),
        }
        return tensors, numbers


class Records(Protocol):
    """A method that keeps history of the rounds it is shown."""

    follows: ClassVar[Literal["", "sums", "rounds"]]

    def record(self, history: History, past: FinishedRound) -> History: ...

    def original_bytes(self, history: History, model_bytes: int) -> int: ...


@dataclass
class Recorder:
    """Called after every round, it keeps one method's history."""

    method: Records
    history: History = field(default_factory=History)
    _began: tuple[Params, Params] | None = None

    def __call__(self, past: FinishedRound) -> None:
        self.history = self.method.record(self.history, past)

    def begin(self, params: Params) -> None:
        """Note the model from which rounds are recorded from now on."""
        if self.method.follows == "sums":
            self._began = params, self._summed()[0]

    def check(self, params: Params) -> None:
        """Refuse a history of sums that does not lead to these params: θ⁰ + Σ_k S_k = θ.

        Both sides are sums of the same numbers in another order, so they may differ by rounding only: 1e-9 of what was
        summed in float64, 1000 ε (1.2e-4) in float32, where hundreds of rounds add up.
        """
        if self._began is None:
            return
        (start, before), (now, size) = self._began, self._summed()
        gap = 0.0
        for name, total in now.items():
            moved = params[name].double() - start[name].double()
            gap += float((moved - (total - before.get(name, torch.zeros_like(total)))).square().sum())
            size += float(start[name].double().norm())
        loose = max([1e-9, *(1000 * torch.finfo(params[name].dtype).eps for name in now if params[name].itemsize < 8)])
        if not math.sqrt(gap) <= loose * size:
            raise UnfedError(
                f"The recorded history does not add up to the model (off by {math.sqrt(gap):.2g}) and is not saved;"
                " train without training.record, and report this."
            )

    def _summed(self) -> tuple[Params, float]:
        """Σ_k S_k in float64, and Σ_k ‖S_k‖ over all tensors."""
        total: Params = {}
        size = 0.0
        for record in self.history.own.values():
            for name, own in record.tensors.items():
                total[name] = own.double() + total[name] if name in total else own.double()
                size += float(own.double().norm())
        return total, size
