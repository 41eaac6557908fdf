"""Hostile clients for tests and benchmarks: one client lies, in the simulator or over messages.

    with attacked(Batched, "1", Attacker("1e30")): run.execute()           # the simulator: client 1's updates
    HostileNodes(configs, {2: Attacker("scale")})                          # clients in this process: node 2's answers
    Attacker("3.4e38").answer(ask, honest)                                 # anywhere else: one answer, spoilt

An attack is a name of `ATTACKS`. Those of `OUTSIDE` cannot come from honest training; those of `INSIDE` look like it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unfed.data import ClientData
from unfed.engines.base import Block
from unfed.model.params import Params
from unfed.remote.client import answered
from unfed.remote.codec import decode_ask, decode_reply, encode_answer, encode_ask
from unfed.remote.messages import CENSUS, TRAIN, Answer, Ask, Reply
from unfed.remote.transport import Failure, Replies

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "transport"))
from direct import Direct, log

OUTSIDE = ("scale", "1e30", "3.4e38", "noise", "weight", "census")
REPEATED = ("stale", "replay")
INSIDE = ("flip", "labels", "old")
SPOILING = ("climb",)
"""Just inside the bound: up its own loss, by as much as the model is long."""
ATTACKS = OUTSIDE + REPEATED + INSIDE + SPOILING
WEIGHT = 10**12
ROWS = 9_000_000
"""How many rows a client claims that lies in the census; a reply may claim as many then."""


@dataclass
class Attacker:
    """One hostile client: it trains honestly, and sends something else from round `begins` on (at most `ends`)."""

    attack: str
    begins: int = 1
    ends: int = 10**9
    _first: Params | None = field(default=None, repr=False)
    _last: Answer | None = field(default=None, repr=False)

    def acts(self, round: int) -> bool:
        return self.begins <= round <= self.ends

    def model(self, start: Params, honest: Params, round: int) -> Params:
        """What is sent in the place of a model that was trained honestly from `start`."""
        sent = self._spoilt(start, honest, round) if self.acts(round) else honest
        self._first = self._first or honest
        return sent

    def _spoilt(self, start: Params, honest: Params, round: int) -> Params:
        if self.attack == "old" and self._first is not None:
            return self._first  # what it learned in its first round
        change: Callable[[str, Any, Any], Any] | None = {
            "scale": lambda name, old, new: old + 1e6 * (new - old),
            "1e30": lambda name, old, new: torch.full_like(new, 1e30),
            "noise": lambda name, old, new: torch.randn(new.shape, generator=_draws(round), dtype=new.dtype) * 10,
            "flip": lambda name, old, new: old - (new - old),
        }.get(self.attack)
        floating = {name: t for name, t in honest.items() if t.is_floating_point()}
        if self.attack == "climb":
            size, step = (
                sum(float(f(n).norm()) ** 2 for n in floating) ** 0.5
                for f in (start.__getitem__, _moved(start, honest))
            )
            return honest | {n: start[n] - 0.99 * size / step * (t - start[n]) for n, t in floating.items()}
        if change is not None:
            return honest | {name: change(name, start[name], t) for name, t in floating.items()}
        if self.attack == "3.4e38":
            name = next(iter(floating))
            spoilt = floating[name].clone()
            spoilt.view(-1)[0] = 3.4e38
            return honest | {name: spoilt}
        return honest

    def answer(self, ask: Ask, honest: Callable[[], Answer]) -> Answer:
        """What is answered to a question, for which `honest` makes the answer that it should get."""
        found = honest()
        if ask.kind == CENSUS and self.attack == "census":
            claimed = dict.fromkeys(("all", "retain", "rows"), ROWS)
            return replace(found, numbers={"counts": {**found.numbers["counts"], **claimed}})
        if ask.kind != TRAIN or "params" not in found.tensors:
            return found
        round = int(json.loads(ask.body)["round"])
        if self.attack in REPEATED:  # the whole answer to an earlier question: the last one, or its first
            sent = self._last if self._last and self.acts(round) else found
            self._last = self._last if self._last and self.attack == "stale" else found
            return sent
        params = self.model(ask.tensors["params"], found.tensors["params"], round)
        counts = dict(found.numbers["counts"])
        if self.acts(round) and self.attack in ("weight", "census"):
            counts["samples"] = WEIGHT if self.attack == "weight" else ROWS
        return replace(found, tensors={**found.tensors, "params": params}, numbers={"counts": counts})


def _moved(start: Params, honest: Params) -> Callable[[str], Any]:
    return lambda name: honest[name] - start[name]


def _draws(round: int) -> torch.Generator:
    return torch.Generator().manual_seed(round)


class HostileNodes(Direct):
    """Clients in this process, some of them hostile: by the number of the node, from 1 on."""

    def __init__(self, configs: Iterable[Mapping[str, Any]], hostile: Mapping[int, Attacker]) -> None:
        super().__init__(configs)
        self.hostile = dict(hostile)
        self.deaf: set[int] = set()
        """Who is connected and never answers when it is asked to train."""

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        there = [node for node in asks if node in self.configs and not (node in self.deaf and asks[node].kind == TRAIN)]
        return Replies({node: self._answer(node, asks[node]) for node in there})

    def _answer(self, node: int, ask: Ask) -> Reply | Failure:
        question = encode_ask(ask)

        def honest() -> Answer:
            return answered(lambda: decode_ask(question), self.configs[node], log)

        found = self.hostile[node].answer(ask, honest) if node in self.hostile else honest()
        return decode_reply(encode_answer(found))


@contextmanager
def attacked(engine: Any, client: str, attacker: Attacker) -> Iterator[None]:
    """While this lasts, `client` is hostile on an engine class of the simulator.

    The simulator counts rows itself, so there a client cannot lie about its weight or its census.
    """
    train = engine.train

    def hostile(self: Any, plan: Any, params: Params, *rest: Any) -> Iterator[Any]:
        for block in train(self, plan, params, *rest):
            yield _with(block, client, attacker, params, plan.round)

    engine.train = hostile
    try:
        yield
    finally:
        engine.train = train


def _with(block: Any, client: str, attacker: Attacker, params: Params, round: int) -> Any:
    if not isinstance(block, Block) or client not in block.clients:
        return block
    place, stacks = block.clients.index(client), {name: stack.clone() for name, stack in block.params.items()}
    own = {name: stack.clone() for name, stack in block.of(place).items()}
    for name, tensor in attacker.model(params, own, round).items():
        stacks[name][place] = tensor
    return replace(block, params=stacks)


@contextmanager
def mislabelled(client: ClientData) -> Iterator[None]:
    """While this lasts, every label that a client holds is the next class's."""
    labels, rows = client.source.labels, client.rows
    before = labels[rows].clone()
    labels[rows] = (before + 1) % client.source.classes
    try:
        yield
    finally:
        labels[rows] = before
