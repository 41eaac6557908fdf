"""Who leaves, and a grid without them.

    [3939…]                        node ids, as `flwr supernode ls` shows them: where SuperNodes have keys
    registered("north")            the name a key was registered under
    node_with(partition_id=0)      what a node's config says: partition_id, client, client_name; the client app must
                                   answer who it is (`introduce(app)`, one line)
    denied(RUN or FILE)            whoever was forgotten before; need not be there (`deny=…` of Unlearn and SubsetGrid)

Whoever is meant is looked for whenever somebody looks at the grid, so a leaver that comes back under another id stays
out. An exclusion that matches nobody is an error before the first message: a typing error would else train everybody.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from unfed.errors import Refused, UnfedError
from unfed.flower.connected import connected, tells_names
from unfed.flower.identity import ALLOW, ANSWER, QUESTION
from unfed.flower.speech import SPEECH
from unfed.remote.denied import Denied
from unfed.remote.naming import KEYS
from unfed.remote.replies import attempt, said
from unfed.runs.deny import clients_on

log = logging.getLogger("flwr")

Find = Callable[[Grid], Collection[int]]


@dataclass
class Leaver:
    """Whom an exclusion means, in words, and how they are found among the nodes that are connected."""

    words: str
    find: Find
    unknown: Callable[[], Collection[int]] = frozenset
    """Connected nodes that did not say who they are; they are left out too, for one of them might be meant."""
    remedy: str = "check it"
    names: Collection[str] = ()
    """What the leaver goes by, where it was said: a later run keeps it out by these."""
    needed: bool = True
    """Whether somebody must be found: of those who were forgotten before, nobody need be there."""
    willing: Callable[[], Collection[int]] = frozenset
    """Who of them gave leave, in its own node config, to be asked what a model is worth on its rows."""
    absent: str = "nobody is connected, and if it comes back it stays out"
    """What the log says where nobody is found and nobody need be."""

    def __call__(self, grid: Grid) -> Collection[int]:
        return self.find(grid)


Exclude = Collection[int | Leaver] | Leaver | Find | int
"""Node ids and leavers, one or several, or a function that finds ids among those connected, whenever somebody looks."""


def registered(*names: str) -> Leaver:
    """The nodes that were registered under these names.

    They were if `flwr supernode register KEY FEDERATION --name NAME` was called for them.
    """

    def found(grid: Grid) -> Collection[int]:
        nodes = connected(grid, "exclude by node_with(partition_id=…) or by node id")
        if nodes and not any(node.name for node in nodes):
            raise UnfedError(
                "No connected node has a registered name, so the leaver cannot be told apart; register the nodes' keys"
                " with --name, or exclude by node_with(partition_id=…) or by node id."
            )
        return [node.node_id for node in nodes if node.name in names]

    words = " or ".join(repr(name) for name in names)
    return Leaver(f"a node registered as {words}", found, remedy="see the names with flwr supernode ls", names=names)


def node_with(timeout: float = 300.0, **config: str | int) -> Leaver:
    """The node whose config says so: `node_with(partition_id=0)`, `node_with(client_name="site-1")`.

    Every node is asked, and starts a process for it: `timeout` is how many seconds that may take on a busy machine.
    """
    wanted = {key.replace("_", "-"): str(value) for key, value in config.items()}
    odd = next((key for key in wanted if key not in KEYS), None)
    if odd is not None or not wanted:
        raise UnfedError(f"node_with takes {', '.join(k.replace('-', '_') for k in KEYS)}, not {odd or 'nothing'}.")
    roll = _Roll(timeout)

    def found(grid: Grid) -> Collection[int]:
        roll.look(grid)
        return [node for node, own in roll.known.items() if wanted.items() <= own.items()]

    def willing() -> Collection[int]:
        return [node for node in roll.willing if wanted.items() <= roll.known[node].items()]

    words = " and ".join(f"{key}={value}" for key, value in wanted.items())
    return Leaver(
        f"a node with {words}",
        found,
        lambda: roll.silent.keys(),
        "see what the nodes' configs say",
        [*wanted.values()],
        willing=willing,
    )


def denied(path: str | Path, timeout: float = 300.0) -> Leaver:
    """Whoever was forgotten before.

    The clients on the deny list of a run or evidence folder, or in a file with one name per line. They are known by a
    registered name or by what their node config says; a node that has neither might be one of them, and is left out.
    """
    listed, roll = Denied(clients_on(path), SPEECH), _Roll(timeout)
    named: set[int] = set()

    def found(grid: Grid) -> Collection[int]:
        if not listed.names:
            return ()
        for info in grid.get_nodes() if tells_names(grid) else ():
            if info.name:
                named.add(info.node_id)
                listed.refuses(info.node_id, [info.name])
        roll.look(grid, listed.nodes)
        for node, own in roll.known.items():
            listed.refuses(node, own.values())
        return listed.nodes.keys()

    def unknown() -> Collection[int]:
        return [node for node in roll.silent if node not in named]

    words = f"whoever is on the deny list {path} ({', '.join(sorted(listed.names)) or 'which is empty'})"
    return Leaver(words, found, unknown, names=listed.names, needed=False)


@dataclass
class _Roll:
    """What nodes said of themselves, each asked once; who was silent is asked again, twice at most."""

    timeout: float
    known: dict[int, dict[str, str]] = field(default_factory=dict)
    silent: dict[int, str] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    willing: set[int] = field(default_factory=set)

    def look(self, grid: Grid, but: Collection[int] = ()) -> None:
        nodes = [node for node in grid.get_node_ids() if node not in but]
        self.silent = {node: why for node, why in self.silent.items() if node in nodes}
        asked = [n for n in nodes if n not in self.known and self.tries.get(n, 0) < 3]
        if not asked:
            return
        ttl = self.timeout
        messages = [Message(RecordDict({"who": ConfigRecord({"asked": 1})}), n, QUESTION, ttl=ttl) for n in asked]
        self.tries |= {node: self.tries.get(node, 0) + 1 for node in asked}
        self.silent |= dict.fromkeys(asked, f"it did not answer within {ttl:g} s")
        for reply in grid.send_and_receive(messages, timeout=ttl):
            node = reply.metadata.src_node_id
            if node not in asked:
                continue
            if reply.has_error():
                self.silent[node], self.tries[node] = "its client app does not answer who it is", 3
                continue
            own = attempt(lambda reply=reply: _words(reply))  # type: ignore[misc]
            if isinstance(own, dict) and (name := {key: own[key] for key in KEYS if key in own}):
                self.known[node] = name
                if "forget" in (word.strip() for word in own.get(ALLOW, "").split(",")):
                    self.willing.add(node)
                del self.silent[node]
            else:
                self.silent[node], self.tries[node] = "its node config does not say who it is", 3


def _words(reply: Message) -> dict[str, str]:
    record = reply.content.config_records[ANSWER]
    return {key: said(record[key], 100) for key in (*KEYS, ALLOW) if key in record}


class SubsetGrid(Grid):
    """A grid without some of its nodes: they are not listed, not sent to, and not listened to.

    `gone` says that the leaver need not be connected. `least` nodes must stay; who waits for them waits no longer than
    `wait` seconds. `deny` names the run in which others were forgotten before (see `denied`).
    """

    def __init__(
        self,
        grid: Grid,
        exclude: Exclude = (),
        gone: bool = False,
        least: int = 0,
        wait: float = 30.0,
        deny: str | Path | None = None,
    ) -> None:
        self._grid, self._gone, self._least, self._wait = grid, gone, least, wait
        before = () if deny is None else (denied(deny),)
        nobody = not callable(exclude) and not isinstance(exclude, int) and not exclude and bool(before)
        self._leavers = (*(() if nobody else _leavers(exclude)), *before)
        self._out: set[int] = set()
        self._settled, self._short_since = False, 0.0

    @property
    def excluded(self) -> frozenset[int]:
        """Whoever has left, under every id seen so far; nodes that will not say who they are count as left."""
        if not self._settled:
            self.settle()
        for leaver in self._leavers:
            self._out |= set(leaver(self._grid))
        return frozenset(self._out) | self._unknown()

    @property
    def whole(self) -> Grid:
        """The grid with everybody on it."""
        return self._grid

    @property
    def leavers(self) -> Sequence[Leaver]:
        """Who is left out, each as it was named."""
        return self._leavers

    def _unknown(self) -> frozenset[int]:
        return frozenset(node for leaver in self._leavers for node in leaver.unknown())

    def settle(self) -> None:
        """See who is meant, before anything is sent to anybody."""
        until = time.monotonic() + self._wait
        while True:
            found = {leaver.words: sorted(leaver(self._grid)) for leaver in self._leavers}
            missing = next((one for one in self._leavers if one.needed and not found[one.words]), None)
            if self._gone or missing is None:
                break
            if time.monotonic() >= until:
                raise UnfedError(self._nobody(missing))
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))
        connected = set(self._grid.get_node_ids())
        if connected and connected == self._unknown():
            raise UnfedError(self._nobody(self._leavers[0]))
        for one in self._leavers:
            log.info("unfed: %s has left: %s", one.words, ", ".join(map(str, found[one.words])) or one.absent)
        for node in sorted(self._unknown()):
            log.warning("unfed: node %s is left out: it does not say who it is, so it might be the leaver", node)
        self._settled = True

    def _nobody(self, leaver: Leaver) -> str:
        count, unknown = len(list(self._grid.get_node_ids())), len(leaver.unknown())
        if unknown:
            return (
                f"{leaver.words.capitalize()} cannot be told apart: {unknown} of {count} connected nodes do not say who"
                " they are; make the client app with introduce(ClientApp()) and give every node its config."
            )
        return (
            f"{leaver.words.capitalize()} is not among the {count} nodes that are connected, so nobody would be left"
            f" out; {leaver.remedy}, or pass gone=True if the leaver is not there any more."
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
        out = self.excluded
        found = [node for node in self._grid.get_node_ids() if node not in out]
        self._enough(len(found))
        return found

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

    def get_nodes(self) -> Iterable[NodeInfo]:
        out = self.excluded
        return [node for node in self._grid.get_nodes() if node.node_id not in out]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(self._allowed(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._heard(self._grid.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self._heard(self._grid.send_and_receive(self._allowed(messages), timeout=timeout))

    def _allowed(self, messages: Iterable[Message]) -> list[Message]:
        found = list(messages)
        self._refuse([message.metadata.dst_node_id for message in found])
        return found

    def _refuse(self, nodes: Iterable[int]) -> None:
        out = self.excluded
        for node in nodes:
            if node in out:
                raise UnfedError(f"Node {node} has left this federation, so no message goes to it; choose other nodes.")

    def _heard(self, replies: Iterable[Message]) -> list[Message]:
        out = self.excluded
        return [reply for reply in replies if reply.metadata.src_node_id not in out]


def _leavers(exclude: Exclude) -> Sequence[Leaver]:
    """Each part of an exclusion by itself: each of them must match somebody."""
    if callable(exclude) and not isinstance(exclude, Leaver):
        return (Leaver("whoever the given function finds", exclude),)
    several = [exclude] if isinstance(exclude, Leaver | int | str) else exclude or ()
    found = tuple(one if isinstance(one, Leaver) else _node(one) for one in several)
    if not found:
        raise UnfedError(
            "exclude names nobody, so nobody would be left out; name who leaves, by node_with(…) or an id, or who left"
            " before, by deny=…."
        )
    return found


def _node(number: int) -> Leaver:
    if not isinstance(number, int):
        name = repr(str(number))
        raise UnfedError(
            f"exclude takes node ids as numbers, not {number!r}; a name is registered({name}) or"
            f" node_with(client={name}), a partition is node_with(partition_id=…)."
        )
    remedy = (
        "ids are drawn anew in every run of Flower's simulator and for every SuperNode without a key, so name it by"
        " node_with(partition_id=…)"
    )
    absent = "nobody is connected under this id; without a key it would come back under another one, and be asked"
    found: Find = lambda grid: [n for n in grid.get_node_ids() if n == number]  # noqa: E731
    return Leaver(f"node {number}", found, remedy=remedy, absent=absent)
