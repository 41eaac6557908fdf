"""A grid with some of its nodes: what a strategy sees of them.

    SubsetGrid(grid, allow=["north", "south"])     only these nodes, by name
    SubsetGrid(grid, deny=["east"])                all nodes but this one
    SubsetGrid(grid, exclude=node_with(…))         all nodes but those who leave (leaving.py)

Where classes left, every message that goes out names them, and a client that does not say that it left their rows out
is not aggregated (classes.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from unfed.errors import Refused, UnfedError
from unfed.flower.classes import Classes
from unfed.flower.leaving import JUST_CONNECTED, AppDirectory, Exclude, Leaver, denied, leavers_of, named

log = logging.getLogger("flwr")


class SubsetGrid(Grid):
    """A grid without some of its nodes: they are not listed, not sent to, and not listened to.

    Args:
        grid: The grid of the server app.
        exclude: Nodes that leave, by `node_with`, `registered` or id.
        gone: Whether nodes that are left out may be absent; without it, each must be found.
        least: How many nodes the strategy waits for; after `wait` seconds with fewer it is an error.
        wait: Seconds to wait for the nodes that are named.
        deny: Names of nodes to leave out; or a run folder or file whose clients were forgotten (see `denied`).
        allow: Names of the only nodes to take part. A node with a registered key goes by that name alone.

    Raises:
        UnfedError: A name belongs to no connected node (the message lists the names), or no node is named.
    """

    def __init__(
        self,
        grid: Grid,
        exclude: Exclude = (),
        gone: bool = False,
        least: int = 0,
        wait: float = 30.0,
        deny: str | Path | Leaver | Collection[str] | None = None,
        allow: Collection[str] | None = None,
    ) -> None:
        self._grid, self._gone, self._least, self._wait = grid, gone, least, wait
        before: Sequence[Leaver] = ()
        if isinstance(deny, Leaver):
            before = (deny,)
        elif deny is not None:
            before = (denied(deny),) if isinstance(deny, str | Path) else named("deny", deny)
        self._allow = None if allow is None else named("allow", allow, strict=True)
        none = not isinstance(exclude, int) and not exclude and (bool(before) or self._allow is not None)
        self._leavers: Sequence[Leaver] = (*(() if none else leavers_of(exclude)), *before)
        self.classes = Classes.of(self._leavers)
        asks = [one.timeout for one in (*self._leavers, *(self._allow or ())) if one.asks]
        self.nodes = AppDirectory(grid, max(asks, default=0) or 1.0, bool(asks))
        self.nodes.keep_out({name for one in self._leavers if not one.needed for name in one.names})
        self._out: set[int] = set()
        self._doubted: set[int] = set()
        self._settled, self._short_since = False, 0.0
        self._looks: list[float] = []
        """When a strategy looked for nodes since it last sent a message."""
        self._configuring = self._sending = self._hinted = False

    @property
    def excluded(self) -> frozenset[int]:
        """Those who left, under every id seen so far; nodes that will not say who they are count as left."""
        self._find()
        return frozenset(self._out | {node for node in self._grid.get_node_ids() if self._doubt(node)})

    @property
    def whole(self) -> Grid:
        """The grid with all its nodes."""
        return self._grid

    @property
    def leavers(self) -> Sequence[Leaver]:
        """Who is left out, each as it was named."""
        return self._leavers

    def leaving(self) -> dict[str, set[str]]:
        """Which clients leave now, and every name that each goes by."""
        found: dict[str, set[str]] = {}
        for one in (one for one in self._leavers if one.is_node):
            seen = self.nodes.known_as(one.find(self.nodes))
            named = [*one.names][:1] if one.asks else [*one.names] or [*seen] or [one.words]
            for name in named:
                found[name] = {*one.names, *(alias for names in seen.values() for alias in names)}
        return found

    def _find(self) -> None:
        """Look for those who left among the nodes that are connected now; the log names those that are new."""
        if not self._settled:
            self.settle()
        self.nodes.see()
        for leaver in self._leavers:
            self._note(leaver, set(leaver.find(self.nodes)))

    def _note(self, leaver: Leaver, found: set[int]) -> None:
        if self._settled and leaver.needed and (late := sorted(found - self._out)):  # a deny list speaks for itself
            log.warning("unfed: %s has left, and is connected again: %s", leaver.words, ", ".join(map(str, late)))
        self._out |= found

    def _doubt(self, node: int) -> str | None:
        """Why a node might be one of those who left; the log says it once."""
        why = next((why for leaver in self._leavers if (why := leaver.doubt(self.nodes, node)) is not None), None)
        if why not in (None, JUST_CONNECTED) and node not in self._out | self._doubted:
            self._doubted.add(node)
            log.warning("unfed: node %s is left out, for it might be the leaver: %s", node, why)
        return why

    def _stays(self, node: int) -> bool:
        """Whether a node is known and takes part; one that joined a moment ago waits."""
        return node not in self._out and self._chosen(node) and self._doubt(node) is None

    def _chosen(self, node: int) -> bool:
        return self._allow is None or any(node in one.find(self.nodes) for one in self._allow)

    def settle(self) -> None:
        """See who is meant, before anything is sent."""
        until = time.monotonic() + self._wait
        while True:
            self.nodes.see()
            found = {leaver.words: sorted(leaver.find(self.nodes)) for leaver in self._leavers}
            absent = [one for one in self._leavers if one.is_node and not found[one.words] and not self._gone]
            absent += [one for one in self._allow or () if not one.find(self.nodes)]
            missing = next(iter(absent), None)
            if missing is None:
                break
            if any(missing.doubt(self.nodes, node) == JUST_CONNECTED for node in self._grid.get_node_ids()):
                continue  # asking the others may have taken longer than we would wait
            if time.monotonic() >= until:
                raise UnfedError(self._unidentified(missing))
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))
        connected = list(self._grid.get_node_ids())
        if connected and all(any(one.doubt(self.nodes, node) for one in self._leavers) for node in connected):
            raise UnfedError(
                self._unidentified(next(one for one in self._leavers if one.doubt(self.nodes, connected[0])))
            )
        for one in self._leavers:
            log.info("unfed: %s has left: %s", one.words, ", ".join(map(str, found[one.words])) or one.absent)
            self._note(one, set(found[one.words]))
        self._settled = True
        for node in sorted(connected):
            self._doubt(node)

    def _unidentified(self, leaver: Leaver) -> str:
        connected = list(self._grid.get_node_ids())
        count, doubts = (
            len(connected),
            [why for node in connected if (why := leaver.doubt(self.nodes, node)) is not None],
        )
        who = leaver.words[0].upper() + leaver.words[1:]
        if doubts:
            return (
                f"{who} cannot be identified: {len(doubts)} of {count} connected nodes might be it. Of the first:"
                f" {doubts[0]}."
            )
        if leaver in (self._allow or ()):
            return f"{who} is not among the {count} connected nodes; {leaver.remedy(self.nodes)}."
        return (
            f"{who} is not among the {count} connected nodes; {leaver.remedy(self.nodes)}, or pass gone=True if the"
            " leaver is gone."
        )

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        self._refuse([dst_node_id])
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        self._find()
        connected = list(self._grid.get_node_ids())
        found = [node for node in connected if self._stays(node)]
        self._enough(len(found))
        self._waits_in_vain(len(found), len(connected) - len(found))
        return found

    def _waits_in_vain(self, left: int, hidden: int) -> None:
        """Refuse a strategy whose own minimum would wait for those who left; no node is asked.

        Where it is not known to be choosing nodes the log says it once: Flower's older API looks every few seconds.
        """
        if self._sending:
            return
        self._looks.append(time.monotonic())
        if len(self._looks) <= 3 or self._looks[-1] - self._looks[0] < self._wait:
            return
        if self._configuring:
            raise Refused(
                f"The strategy has waited {self._wait:g} s and asked no node; {left} nodes remain without the leaver:"
                " lower its minimum, or give Unlearn a longer wait."
            )
        if hidden and not self._hinted:
            self._hinted = True
            log.warning(
                "unfed: the strategy has asked no node for %g s; %d connected node%s out: wait for at most %d nodes,"
                " or set least=… of SubsetGrid",
                *(self._wait, hidden, " stays" if hidden == 1 else "s stay", left),
            )

    def _enough(self, left: int) -> None:
        """Refuse to let a stock strategy wait for a minimum of nodes that is not there.

        It would ask again and again, for ever where only the leaver made up the minimum.
        """
        if left >= self._least:
            self._short_since = 0.0
            return
        self._short_since = self._short_since or time.monotonic()
        if time.monotonic() - self._short_since >= self._wait:
            raise Refused(
                f"The strategy waits for {self._least} nodes, but without the leaver {left} are connected; start more,"
                " or lower its min_available_nodes, min_train_nodes and min_evaluate_nodes."
            )

    @contextmanager
    def configuring(self) -> Iterator[None]:
        """While a strategy says whom it asks: one that only looks waits for who will not come."""
        self._looks, self._configuring = [], True
        try:
            yield
        finally:
            self._configuring = False

    def get_nodes(self) -> Iterable[NodeInfo]:
        self._find()
        return [node for node in self._grid.get_nodes() if self._stays(node.node_id)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(self._allowed(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._heard(self._grid.pull_messages(message_ids), all_of_them=False)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        self._sending = True
        try:
            return self._heard(self._grid.send_and_receive(self._allowed(messages), timeout=timeout))
        finally:
            self._sending = False

    def _allowed(self, messages: Iterable[Message]) -> list[Message]:
        found = list(messages)
        self._looks = []
        self._refuse([message.metadata.dst_node_id for message in found])
        return [self.classes.told(message) for message in found if self._stays(message.metadata.dst_node_id)]

    def _refuse(self, nodes: Iterable[int]) -> None:
        self._find()
        for node in nodes:
            if node in self._out:
                raise UnfedError(f"Node {node} has left this federation, so no message goes to it; choose other nodes.")
            if not self._chosen(node):
                raise UnfedError(f"Node {node} is not on the allow list, so no message goes to it; choose other nodes.")

    def _heard(self, replies: Iterable[Message], all_of_them: bool = True) -> list[Message]:
        heard = list(replies)
        self._find()
        return self.classes.heeded([reply for reply in heard if self._listened_to(reply)], all_of_them)

    def _listened_to(self, reply: Message) -> bool:
        """Whether a reply is heard; an error may be the SuperLink's own, about a node that is gone."""
        node = reply.metadata.src_node_id
        return node not in self._out and self._chosen(node) if reply.has_error() else self._stays(node)
