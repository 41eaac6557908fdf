"""Flower's grid as a transport: who is connected, and one round trip of messages.

GridTransport      of unfed's own app: questions as Flower's messages
Introductions      of any other app: the one question who a node is, which `introduce` in the client app answers
"""

from __future__ import annotations

import gc
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from unfed.flower.introduction import ALLOW, ANSWER, KEYS, PARTS, QUESTION
from unfed.flower.wire import MESSAGE_TYPES, ask_records, reply_of, serialised_bytes_of
from unfed.model.params import tensor_bytes
from unfed.remote.messages import Ask, Failure, Reply, Unreadable, attempt, said
from unfed.remote.transport import IN_MEMORY, Connected, Replies, Speech, Spool

log = logging.getLogger("flwr")
"""What is logged here is what `flwr log` and `flwr run --stream` show, and a node's own record of what it was asked."""

SPEECH = Speech(
    engine="flower",
    nodes="SuperNodes",
    naming="its own client=… in --node-config",
    or_else=", or register their keys with --name",
    expel="take its key out for good with `flwr supernode unregister {node} FEDERATION`",
    log=log,
)

_PAUSES = (0.2, 3.0)
"""Seconds between two looks for replies: the first, and the longest, which is Flower's own."""
UNANSWERED = ("No query function registered with name 'unfed'", "Invalid message type: query.unfed")
"""How Flower's client apps, of functions and of a client function, say that they cannot answer who they are."""


class GridTransport:
    """Questions as Flower's messages, over the grid of a server app."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Sequence[Connected]:
        return list(map(_connected, self._grid.get_nodes()))

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        shared: dict[int, ArrayRecord] = {}
        contents = {node: ask_records(ask, shared) for node, ask in asks.items()}
        messages = [
            # A message that is not picked up in time must not be worked on later: it lives as long as we wait.
            Message(contents[node], node, MESSAGE_TYPES[ask.kind], group_id=ask.group, ttl=timeout)
            for node, ask in asks.items()
        ]
        crossed, most = [*map(_packed_bytes, contents.values())], max(map(_largest, asks.values()), default=0)
        found, spool = dict[int, Reply | Failure](), Spool()

        def take(reply: Message) -> None:
            node = reply.metadata.src_node_id
            if node in asks:
                answer = attempt(partial(_read, reply))
                found[node] = answer if isinstance(answer, Failure) else spool.keep(answer)
                crossed.append(_packed_bytes(reply.content) if reply.has_content() else 0)

        del contents
        _exchange(self._grid, messages, timeout, max(1, IN_MEMORY // max(1, most)), take)
        return Replies(found, sum(crossed))


def _exchange(
    grid: Grid, messages: list[Message], timeout: float, at_once: int, take: Callable[[Message], None]
) -> None:
    """Send messages, and hand each reply on as it arrives, a few at a time.

    `Grid.send_and_receive` returns all replies together, so that a server holds as many models as it has clients.
    """
    until, pause = time.monotonic() + timeout, _PAUSES[0]
    waiting = [name for name in grid.push_messages(messages) if name] if messages else []
    messages.clear()
    while waiting:
        heard = set[str]()
        for first in range(0, len(waiting), at_once):
            for reply in grid.pull_messages(waiting[first : first + at_once]):
                heard.add(reply.metadata.reply_to_message_id)
                take(reply)
                del reply
            if at_once < len(waiting):
                gc.collect(1)  # Flower's records refer to each other: without this a reply's memory stays for long
        waiting = [name for name in waiting if name not in heard]
        if not waiting or time.monotonic() >= until:
            return
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause = min(2 * pause, _PAUSES[1])


def _largest(ask: Ask) -> int:
    """The bytes of the largest group of tensors in a question; a reply is about as large."""
    return max(map(tensor_bytes, ask.tensors.values()), default=0)


class Introductions:
    """Asks the nodes of an app that is not unfed's own who they are; nothing else can be asked by it."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.registered: dict[int, str] = {}
        """The name of each node's key, of every node that was ever listed."""

    def nodes(self) -> Sequence[Connected]:
        found = [*map(_connected, self.grid.get_nodes())]
        self.registered |= {node.id: node.name for node in found}
        return found

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        messages = [Message(RecordDict({"who": ConfigRecord({"asked": 1})}), n, QUESTION, ttl=timeout) for n in asks]
        with asking():
            replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        heard = {reply.metadata.src_node_id: reply for reply in replies}
        return Replies({n: attempt(partial(_introduced, heard[n], ask)) for n, ask in asks.items() if n in heard})


def _introduced(reply: Message, ask: Ask) -> Reply:
    """What a node says of itself, as unfed's own clients would say it."""
    if reply.has_error():
        raise Unreadable(_unanswered(reply))
    record = reply.content.config_records[ANSWER]
    own = {key: str(record[key]) for key in (*KEYS, PARTS, ALLOW) if key in record}
    name = next((own[key] for key in KEYS if key in own), None)
    if name is None:
        raise Unreadable("its node config does not say who it is; give every node its partition-id or client")
    return Reply({**own, "name": name, "digest": ask.digest})


def _unanswered(reply: Message) -> str:
    """Why a client app could not say who its node is, and what helps."""
    reason = reply.error.reason or ""
    if any(words in reason for words in UNANSWERED):
        return "its client app does not answer who it is; make that with introduce(ClientApp())"
    last = reason.strip().splitlines()[-1] if reason.strip() else f"error {reply.error.code}"
    return f"its client app failed when it was asked who it is ({said(last, 200)})"


@contextmanager
def asking() -> Iterator[None]:
    """Hide the errors of client apps that cannot say who they are, as long as they are asked.

    In Flower's simulator clients' errors stand in the server's log. The server says it in a sentence of its own.
    """
    log.addFilter(_answerable)
    try:
        yield
    finally:
        log.removeFilter(_answerable)


def _answerable(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR or not any(words in record.getMessage() for words in UNANSWERED)


def _connected(info: NodeInfo) -> Connected:
    key = f"key:{hashlib.sha256(info.public_key).hexdigest()[:32]}" if info.public_key else ""
    return Connected(info.node_id, info.name, info.online_until, info.last_activated_at, key)


def _packed_bytes(records: RecordDict) -> int:
    """What records take as Flower packs them; what cannot be packed cannot have crossed."""
    found = attempt(partial(serialised_bytes_of, records))
    return 0 if isinstance(found, Failure) else found


def _read(reply: Message) -> Reply | Failure:
    if reply.has_error():
        lines = (reply.error.reason or "").strip().splitlines()
        return Failure(f"it failed with error {reply.error.code}" + (f" ({said(lines[-1])})" if lines else ""))
    return reply_of(reply.content)
