"""Flower's grid as a transport: who is connected, and one round trip of messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from unfed.flower.connected import connected
from unfed.flower.wire import MESSAGE_TYPES, ask_records, reply_of, serialised_bytes_of
from unfed.remote.messages import Ask, Reply
from unfed.remote.replies import Failure, attempt, said
from unfed.remote.transport import Connected, Replies


class GridTransport:
    """Questions as Flower's messages, over the grid of a server app."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Sequence[Connected]:
        infos = connected(self._grid, "take Unlearn into an app of your own")
        return [
            Connected(info.node_id, info.name, info.online_until, info.last_activated_at, _key(info.public_key))
            for info in infos
        ]

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        shared: dict[int, ArrayRecord] = {}
        contents = {node: ask_records(ask, shared) for node, ask in asks.items()}
        messages = [
            # A message that is not picked up in time must not be worked on later: it lives as long as we wait.
            Message(contents[node], node, MESSAGE_TYPES[ask.kind], group_id=ask.group, ttl=timeout)
            for node, ask in asks.items()
        ]
        found: dict[int, Reply | Failure] = {}
        crossed = list(contents.values())
        for reply in list(self._grid.send_and_receive(messages, timeout=timeout)) if messages else []:
            node = reply.metadata.src_node_id
            if node in asks:
                found[node] = attempt(partial(_read, reply))
                crossed += [reply.content] if reply.has_content() else []
        return Replies(found, sum(map(_packed_bytes, crossed)))


def _key(public: bytes) -> str:
    return f"key:{hashlib.sha256(public).hexdigest()[:32]}" if public else ""


def _packed_bytes(records: RecordDict) -> int:
    """What records take as Flower packs them; what cannot be packed cannot have crossed."""
    found = attempt(partial(serialised_bytes_of, records))
    return 0 if isinstance(found, Failure) else found


def _read(reply: Message) -> Reply | Failure:
    if reply.has_error():
        lines = (reply.error.reason or "").strip().splitlines()
        return Failure(f"it failed with error {reply.error.code}" + (f" ({said(lines[-1])})" if lines else ""))
    return reply_of(reply.content)
