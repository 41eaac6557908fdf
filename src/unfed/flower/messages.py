"""Questions out, answers back.

This is one round trip over Flower's grid, with a time-out, and a reason for every failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from unfed.engines.base import Traffic
from unfed.errors import UnfedError
from unfed.flower.replies import Failure, attempt, said
from unfed.flower.wire import MESSAGE_TYPES, Ask, serialised_bytes_of, tensor_bytes_of

__all__ = ["Delivery", "Failure", "Messenger"]


@dataclass(frozen=True)
class Delivery:
    """What came back, by node, and what crossed on the way."""

    answers: Mapping[int, RecordDict | Failure]
    traffic: Traffic
    silent: frozenset[int] = frozenset()
    """Who did not answer in time."""


class Messenger:
    """Sends asks to nodes and waits, but never longer than the time-out."""

    def __init__(self, grid: Grid, timeout: float) -> None:
        if not timeout > 0:
            raise UnfedError(f"The time-out of a round must be a positive number of seconds, not {timeout}.")
        self.grid, self.timeout = grid, timeout

    def send(
        self, asks: Mapping[int, Ask], group: str = "", packed: Mapping[str, ArrayRecord] | None = None
    ) -> Delivery:
        """One message per node; `packed` are arrays that all of them carry."""
        contents = {node: ask.content(packed) for node, ask in asks.items()}
        messages = [
            # A message that is not picked up in time must not be worked on later: it lives as long as we wait.
            Message(contents[node], node, MESSAGE_TYPES[ask.kind], group_id=group, ttl=self.timeout)
            for node, ask in asks.items()
        ]
        replies = list(self.grid.send_and_receive(messages, timeout=self.timeout)) if messages else []
        late = Failure(f"it did not answer within {self.timeout:g} s")
        answers: dict[int, RecordDict | Failure] = dict.fromkeys(asks, late)
        crossed = list(contents.values())
        for reply in replies:
            node = reply.metadata.src_node_id
            if node in asks:
                answers[node] = attempt(partial(_read, reply, asks[node]))
                crossed += [reply.content] if reply.has_content() else []
        traffic = Traffic(sum(map(tensor_bytes_of, crossed)), sum(map(_packed_bytes, crossed)))
        return Delivery(answers, traffic, frozenset(node for node, answer in answers.items() if answer is late))


def _packed_bytes(records: RecordDict) -> int:
    """What records take as Flower packs them; what cannot be packed cannot have crossed."""
    found = attempt(partial(serialised_bytes_of, records))
    return 0 if isinstance(found, Failure) else found


def _read(reply: Message, ask: Ask) -> RecordDict | Failure:
    if reply.has_error():
        lines = (reply.error.reason or "").strip().splitlines()
        return Failure(f"it failed with error {reply.error.code}" + (f" ({said(lines[-1])})" if lines else ""))
    words = reply.content.config_records.get("answer")
    if words is None:
        return Failure("its answer was not made by unfed")
    refused = words.get("refused.all")
    if refused:
        return Failure(said(refused))
    if words.get("digest") != ask.digest:
        return Failure("it answered another question than it was asked (the digest of the plan is wrong)")
    return reply.content
