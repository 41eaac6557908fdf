"""Questions out, answers back.

This is what carries them (a transport is whatever has `nodes` and `send`), and one round trip with a time-out and a
reason for every failure.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from unfed.engines.base import Traffic
from unfed.errors import UnfedError
from unfed.model.params import tensor_bytes
from unfed.remote.messages import Ask, Failure, Reply, attempt, said

__all__ = ["Connected", "Delivery", "Failure", "Messenger", "Replies", "Speech", "Transport"]


@dataclass(frozen=True)
class Connected:
    """A node that a transport can reach now."""

    id: int
    name: str = ""
    """Whose it is, where the transport vouches for it; empty where the node itself is to be asked."""
    alive: float = 0.0
    """Another number after every sign of life; 0 where the transport does not tell."""
    since: str = ""
    """Another word whenever it connects again under this id; empty where the transport does not tell."""
    key: str = ""
    """The key that it proved to hold, as a digest; empty where the transport asks for none."""


@dataclass(frozen=True)
class Replies:
    """What came back in time; who is not in it did not answer."""

    found: Mapping[int, Reply | Failure]
    packed_bytes: int = 0
    """The bytes of all questions and replies as the transport packs them."""


class Transport(Protocol):
    """Carries questions to nodes, and their answers back.

    A node keeps its number while it is connected. Bytes arrive as they were sent; the reader checks everything else.
    Encryption is the transport's part.
    """

    def nodes(self) -> Sequence[Connected]:
        """Who is connected now."""
        ...

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        """One question to each of these nodes, and what they answered within so many seconds.

        A node that is gone, dead or too late is simply missing from the replies; one that failed is a `Failure` with
        its reason. It never takes longer than the time-out. To keep large replies out of memory, pass each through one
        `Spool().keep`. Groups of tensors that several questions share are one and the same object in all of them.
        """
        ...


@dataclass(frozen=True)
class Speech:
    """How a server speaks of its nodes.

    It says what they are called, what can be done about them, and in which log.
    """

    engine: str = "remote"
    """What carries the plans, for the run folder and the report."""
    nodes: str = "nodes"
    naming: str = "its own client=… in its node config"
    """How a node is given a name."""
    or_else: str = ""
    """Another way to give names, after a comma."""
    expel: str = "see that it does not connect again"
    """What to do about a node, {node}, that goes by a forgotten name."""
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("unfed.remote"))


@dataclass(frozen=True)
class Delivery:
    """What came back, by node, and what crossed on the way."""

    answers: Mapping[int, Reply | Failure]
    traffic: Traffic
    silent: frozenset[int] = frozenset()
    """Who did not answer in time."""


class Messenger:
    """Sends asks to nodes and waits, but never longer than the time-out."""

    def __init__(self, transport: Transport, timeout: float) -> None:
        if not timeout > 0:
            raise UnfedError(f"The time-out of a round must be a positive number of seconds, not {timeout}.")
        self.transport, self.timeout = transport, timeout

    def send(self, asks: Mapping[int, Ask]) -> Delivery:
        """One question per node, and every answer or the reason why there is none."""
        replies = self.transport.send(asks, self.timeout) if asks else Replies({})
        late = Failure(f"it did not answer within {self.timeout:g} s")
        answers: dict[int, Reply | Failure] = dict.fromkeys(asks, late)
        crossed = sum(tensor_bytes(group) for ask in asks.values() for group in ask.tensors.values())
        for node, reply in replies.found.items():
            if node not in asks:
                continue
            answers[node] = reply if isinstance(reply, Failure) else attempt(partial(_usable, reply, asks[node]))
            crossed += 0 if isinstance(reply, Failure) else reply.tensor_bytes
        silent = frozenset(node for node, answer in answers.items() if answer is late)
        return Delivery(answers, Traffic(crossed, replies.packed_bytes), silent)


def _usable(reply: Reply, ask: Ask) -> Reply | Failure:
    if reply.words is None:
        return Failure("its answer was not made by unfed")
    refused = reply.words.get("refused.all")
    if refused:
        return Failure(said(refused))
    if reply.words.get("digest") != ask.digest:
        return Failure("it answered another question than it was asked (the digest of the plan is wrong)")
    return reply
