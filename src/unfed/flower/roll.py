"""What nodes say of themselves, each asked once after it connected.

`introduce` in the client app answers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from unfed.flower.connected import since
from unfed.flower.identity import ALLOW, ANSWER, PARTS, QUESTION
from unfed.flower.sentences import UNANSWERED, asking
from unfed.remote.messages import NAMED_BY
from unfed.remote.replies import attempt, said

JUST_CONNECTED = "it has only just connected"
TRIES = 3
"""How often a node is asked that lets the question time out."""


@dataclass
class Roll:
    """Who is who among the nodes.

    One that went away and is back is asked again, for its config may be another.
    """

    timeout: float
    known: dict[int, dict[str, str]] = field(default_factory=dict)
    silent: dict[int, str] = field(default_factory=dict)
    """Connected nodes that did not say who they are, and why."""
    parts: dict[int, str] = field(default_factory=dict)
    """Of how many partitions a node says it plays one."""
    willing: set[int] = field(default_factory=set)
    _tries: dict[int, int] = field(default_factory=dict)
    _heard: set[int] = field(default_factory=set)
    _came: dict[int, str] = field(default_factory=dict)

    def look(self, grid: Grid, but: Collection[int] = ()) -> None:
        """Ask whoever has connected since the last look, but for some."""
        nodes = {node: came for node, came in since(grid).items() if node not in but}
        for node in [node for node, came in self._came.items() if nodes.get(node) != came]:  # it went, or came anew
            self.silent.pop(node, None)
            self._tries.pop(node, None)
            self._heard.discard(node)
        self._came = nodes
        asked = [n for n in nodes if n not in self._heard and self._tries.get(n, 0) < TRIES]
        if not asked:
            return
        ttl = self.timeout
        messages = [Message(RecordDict({"who": ConfigRecord({"asked": 1})}), n, QUESTION, ttl=ttl) for n in asked]
        self._tries |= {node: self._tries.get(node, 0) + 1 for node in asked}
        self.silent |= dict.fromkeys(asked, f"it did not answer within {ttl:g} s")
        with asking():
            replies = list(grid.send_and_receive(messages, timeout=ttl))
        for reply in replies:
            if reply.metadata.src_node_id in asked:
                self._meet(reply.metadata.src_node_id, reply)

    def doubt(self, node: int) -> str | None:
        """Why a node cannot be told apart from a leaver; None where it can."""
        return self.silent.get(node) if node in self.known else self.silent.get(node, JUST_CONNECTED)

    def _meet(self, node: int, reply: Message) -> None:
        if reply.has_error():
            self.silent[node], self._tries[node] = _failure(reply), TRIES
            return
        own = attempt(lambda: _words(reply))
        if isinstance(own, dict) and (name := {key: own[key] for key in NAMED_BY if key in own}):
            self.known[node], self.parts[node] = name, own.get(PARTS, "")
            self.willing.discard(node)
            if "forget" in (word.strip() for word in own.get(ALLOW, "").split(",")):
                self.willing.add(node)
            self._heard.add(node)
            del self.silent[node]
        else:
            self.silent[node] = "its node config does not say who it is; give every node its partition-id or client"
            self._tries[node] = TRIES


def _failure(reply: Message) -> str:
    """What a client app that answered with an error is to be told."""
    reason = reply.error.reason or ""
    if any(words in reason for words in UNANSWERED):
        return "its client app does not answer who it is; make that with introduce(ClientApp())"
    last = reason.strip().splitlines()[-1] if reason.strip() else f"error {reply.error.code}"
    return f"its client app failed when it was asked who it is ({said(last, 200)})"


def _words(reply: Message) -> dict[str, str]:
    record = reply.content.config_records[ANSWER]
    return {key: str(record[key]) for key in (*NAMED_BY, PARTS, ALLOW) if key in record}
