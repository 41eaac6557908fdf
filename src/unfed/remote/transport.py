"""The contract of a transport, and one round trip with a reason for every failure.

A transport is whatever has `nodes` and `send`. `Spool` keeps large replies out of memory.
"""

from __future__ import annotations

import logging
import mmap
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Protocol

from unfed.engines.base import Traffic
from unfed.errors import UnfedError
from unfed.model.params import tensor_bytes
from unfed.remote.messages import Ask, Failure, Packed, Reply, attempt, said

__all__ = ["IN_MEMORY", "Connected", "Delivery", "Failure", "Messenger", "Replies", "Speech", "Spool", "Transport"]


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


# --- large replies ----------------------------------------------------------------------------------------------------


IN_MEMORY = 32 * 2**20
"""Bytes of a round's replies that stay in memory."""
_ALIGNED = 64
"""Where an array may begin, so that its numbers can be read in place."""


class Spool:
    """Keeps the arrays of a round's replies out of memory, for one round trip.

    A server needs every update of a round at once. The first `IN_MEMORY` bytes stay in memory; further replies go to a
    file without a name, which vanishes with the process, and their arrays are read from it where they are needed. The
    numbers are the same bits either way. TMPDIR should lie on a disk.
    """

    def __init__(self, in_memory: int | None = None) -> None:
        self._left = IN_MEMORY if in_memory is None else in_memory
        self._file: IO[bytes] | None = None

    def keep(self, reply: Reply) -> Reply:
        """The same reply, with its arrays in the file if memory's share is used up."""
        every = [packed for group in reply.arrays.values() for packed in group.values()]
        size = sum(len(packed.data) for packed in every)
        if size <= self._left:
            self._left -= size
            return reply
        try:
            places = iter(self._written(every))
        except OSError as error:
            raise UnfedError(
                f"A client's reply of {size / 1e6:.0f} MB cannot be put into a temporary file ({error.strerror});"
                " point TMPDIR to a disk with more room and resume."
            ) from error
        arrays = {
            name: {n: replace(packed, data=next(places)) for n, packed in group.items()}
            for name, group in reply.arrays.items()
        }
        return replace(reply, arrays=arrays)

    def _written(self, every: list[Packed]) -> list[memoryview]:
        """The arrays, as they lie in the file; whatever is written into them stays in this process."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="unfed-")  # noqa: SIM115  (closed with the last array)
        file, begin = self._file, _rounded(self._file.seek(0, 2), mmap.ALLOCATIONGRANULARITY)
        places, end = [], begin
        for packed in every:
            end = _rounded(end, _ALIGNED)
            file.seek(end)
            file.write(packed.data)
            places.append((end - begin, end - begin + len(packed.data)))
            end += len(packed.data)
        file.truncate(end)  # an empty array may end it
        file.flush()
        mapped = memoryview(mmap.mmap(file.fileno(), end - begin, access=mmap.ACCESS_COPY, offset=begin))
        return [mapped[a:b] for a, b in places]


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step
