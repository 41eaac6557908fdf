"""Who is who: node ids are numbers that a transport draws, requests speak of clients by name.

    the run's own table (`nodes`)     name -> node id, where somebody wrote it down
    the registered name               where the transport vouches for it: in Flower it is bound to the node's key
    what the node says                `client` or `partition-id` of its node config, asked once

A name that two nodes claim belongs to neither of them. A node that goes by a forgotten name, partition or key is not
asked (`Denied`), unless it is the leaver under its own name: its request says what it may be asked. Nodes may come
and go: each is found by its name when a round begins, under any id.

Staying out: a node with a forgotten name, partition or key is not asked again, in any run.

A node is known by everything it goes by: its key, the name of that key, and `client`, `client-name` and `partition-id`
of its node config. One of them on the list is enough, under any node id. The log names each node that is found, and how
to keep it out for good.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from unfed.errors import Refused, UnfedError
from unfed.folder.layout import names_of
from unfed.remote.messages import CENSUS, KINDS, NAMED_BY, Ask, Reply
from unfed.remote.replies import (
    MOST_CLASSES,
    MOST_PIXELS,
    MOST_ROWS,
    Failure,
    Unreadable,
    attempt,
    count,
    name_of,
    said,
)
from unfed.remote.transport import Messenger, Speech


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names sorted as a person would: numbers in them by their value."""

    def key(name: str) -> list[tuple[int, int, str]]:
        parts = re.findall(r"\d+|\D+", name)
        return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]

    return tuple(sorted(names, key=key))


def parse_bound(text: str) -> dict[str, int]:
    """`name=node id` pairs, separated by commas or spaces."""
    found: dict[str, int] = {}
    for pair in re.split(r"[,\s]+", text.strip()):
        name, separator, node = pair.partition("=")
        if not pair:
            continue
        if not separator or not name or not node.isdigit():
            raise UnfedError(f"nodes takes name=node-id pairs such as '0=123,1=456', not {pair!r}.")
        if name in found or int(node) in found.values():
            raise UnfedError(f"nodes names {pair!r} twice; give every client its own node.")
        found[name] = int(node)
    return found


class Denied:
    """The names on a deny list, and the nodes that were found to go by one of them."""

    def __init__(self, names: Collection[str] = (), speech: Speech | None = None) -> None:
        self.names, self._speech = frozenset(names), speech or Speech()
        self._nodes: dict[int, str] = {}

    @property
    def nodes(self) -> Mapping[int, str]:
        """Who is refused, under every id seen so far, and by which name."""
        return self._nodes

    def refuses(self, node: int, goes_by: Iterable[str], left: Collection[str] = ()) -> bool:
        """Whether a node goes by a name on the list, or by one that has `left` since; the log names it once."""
        name = next((own for own in goes_by if own in self.names or own in left), None)
        if node in self._nodes or name is None:
            return node in self._nodes
        self._nodes[node] = name
        log, expel = self._speech.log, self._speech.expel.format(node=node)
        log.warning("unfed: node %s goes by %r, which was forgotten, so it is not asked; %s", node, name, expel)
        same = [str(other) for other, own in self._nodes.items() if own == name]
        if len(same) > 1:
            log.warning("unfed: %d nodes went by the forgotten name %r: %s", len(same), name, ", ".join(same))
        return True


@dataclass(frozen=True)
class Census:
    """How many rows of each view a client holds, under some requests."""

    all: int
    retain: int
    forget: int
    val: int
    shape: tuple[int, ...]
    classes: int
    allow: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape), "allow": sorted(self.allow)}

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Census:
        return Census(**{**raw, "shape": tuple(raw["shape"]), "allow": frozenset(raw["allow"])})

    @staticmethod
    def of(reply: Reply, most: int = MOST_ROWS) -> Census | Failure:
        """A client's answer to a census, if it makes sense and states no more rows than `most`."""
        return attempt(lambda: Census._read(reply, most))

    @staticmethod
    def _read(reply: Reply, most: int) -> Census:
        counts, words = reply.numbers["counts"], reply.said
        rows = {name: count(counts, name) for name in ("all", "retain", "forget", "val")}
        shape, classes = counts["shape"], count(counts, "classes")
        if not isinstance(shape, list) or not 1 <= len(shape) <= 8 or any(size < 1 for size in shape):
            raise Unreadable("it does not say which shape its samples have")
        if rows["retain"] + rows["forget"] != rows["all"]:
            raise Unreadable("the counts it gives do not add up")
        total = rows["all"] + rows["val"]
        if total > most or classes > MOST_CLASSES or math.prod(shape) > MOST_PIXELS:
            raise Unreadable(
                f"it states {total} rows of the shape {said(tuple(shape), 80)} in {classes} classes;"
                f" the most are {most} rows (max-rows), {MOST_PIXELS} numbers in each, {MOST_CLASSES} classes"
            )
        sizes = tuple(int(size) for size in shape)
        allow = frozenset(str(words.get("allow", "")).split(",")) & frozenset(KINDS)
        return Census(rows["all"], rows["retain"], rows["forget"], rows["val"], sizes, classes, allow)


class Directory:
    """The nodes that are connected, by client name."""

    def __init__(
        self,
        messenger: Messenger,
        bound: Mapping[str, int] | None = None,
        speech: Speech | None = None,
        most_rows: int = MOST_ROWS,
    ) -> None:
        self.messenger, self.speech, self.most_rows = messenger, speech or Speech(), most_rows
        self._bound = {node: name for name, node in (bound or {}).items()}
        self._names: dict[int, str] = {}
        self._online: tuple[int, ...] = ()
        self._lives: dict[int, float] = {}
        self._silent: dict[int, float] = {}
        self._heard: set[int] = set()
        self._since: dict[int, str] = {}
        self.denied = Denied((), self.speech)
        self.leavers: set[str] = set()
        """Clients that requests of this run name."""
        self.goes_by: dict[str, set[str]] = {}
        """Every name, partition and key that a client ever went by."""
        self._own: dict[int, set[str]] = {}
        self._left: frozenset[str] = frozenset()
        self.seen: dict[str, Census] = {}
        """What a node told when it was asked who it is."""
        self.failures: dict[int, str] = {}
        """Connected nodes that could not say who they are, and why; each is asked once, and again if it was silent."""
        self.grown: set[str] = set()
        """Who counted more rows than it said it holds: its census is taken again before the next round."""

    def keep_out(self, names: Iterable[str]) -> None:
        """Refuse whoever goes by one of these names; registered nodes are then asked who they are, too."""
        self.denied = Denied(frozenset(names), self.speech)

    def look(self, shard: str) -> None:
        """See who is connected now; newcomers without a registered name are asked who they are."""
        nodes = self.messenger.transport.nodes()
        infos = {node.id for node in nodes}
        # A transport may list a node for a while after it died. One that let a question time out is asked again only
        # once it gave a new sign of life: a dead node costs one time-out, not one per round.
        self._lives = {node.id: node.alive for node in nodes}
        self._forget_who_went({node.id: node.since for node in nodes})
        silent = {n: at for n, at in self._silent.items() if at and self._lives.get(n) == at}
        awake, self._silent = self._silent.keys() - silent.keys(), silent
        self._left = names_of(self.leavers, self.goes_by) if self.leavers else frozenset()
        for one in nodes:
            name = self._bound.get(one.id) or one.name
            if name:
                self._names[one.id] = name
            self._goes_by(one.id, name, one.name, one.key)
        self._online = tuple(sorted(n for n in infos if n not in self._silent and n not in self.denied.nodes))
        self.failures = {n: reason for n, reason in self.failures.items() if n in infos and n not in awake}
        strangers = [node for node in self._online if self._strange(node) and node not in self.failures]
        delivery = self.messenger.send({node: Ask(CENSUS, self._names.get(node, ""), shard) for node in strangers})
        for node, found in delivery.answers.items():
            self._meet(node, found)
        self._heard |= set(strangers) - delivery.silent
        self.silent(delivery.silent)

    def _forget_who_went(self, here: dict[int, str]) -> None:
        """Ask nodes again that went away or connected anew: under one key there may be another config."""
        for node in [node for node, since in self._since.items() if here.get(node) != since]:
            self._names.pop(node, None)
            self._own.pop(node, None)
            self._heard.discard(node)
            self.failures.pop(node, None)
        self._since = here

    def silent(self, nodes: Iterable[int]) -> None:
        """Note who let a question time out: as long as it gives no sign of life, it counts as away."""
        self._silent |= {node: self._lives.get(node, 0.0) for node in nodes}
        self._online = tuple(n for n in self._online if n not in self._silent and n not in self.denied.nodes)

    def _strange(self, node: int) -> bool:
        """Whether a node must say who it is; a named one too, if it might go by a forgotten name."""
        name = self._names.get(node)
        wary = bool(self.denied.names or self.leavers)
        return name is None or (wary and name not in self.leavers and node not in self._heard)

    def _goes_by(self, node: int, name: str | None, *names: str) -> bool:
        """Note what a node of this client goes by; whether it may take part with that."""
        own = self._own.setdefault(node, set())
        own |= {one for one in names if one}
        if self.denied.refuses(node, sorted(own), self._left if name and name not in self.leavers else ()):
            return False
        if name:
            self.goes_by.setdefault(name, set()).update(own)
        return True

    def heard(self, node: int, words: Mapping[str, Any]) -> list[str]:
        """Note the names in a client's answer."""
        names = [said(words[key], 100) for key in ("name", *NAMED_BY) if key in words]
        if node in self._names:
            self._goes_by(node, self._names[node], *names)
        return names

    def _meet(self, node: int, found: Reply | Failure) -> None:
        if isinstance(found, Failure):
            if node not in self._names:
                self._fails(node, found.reason)
            return
        words, bound = found.said, self._names.get(node)
        name = bound or attempt(lambda: name_of(words.get("name", "")))
        if not self._goes_by(node, name if isinstance(name, str) else None, *self.heard(node, words)):
            return
        census = Census.of(found, self.most_rows)
        if isinstance(name, Failure):
            self._fails(node, name.reason)
        elif not name:
            self._fails(node, "it does not say who it is")
        elif isinstance(census, Failure):
            self._fails(node, f"as client {name!r}, {census.reason}")
        else:
            self._names[node] = name
            self.seen[name] = census

    def _fails(self, node: int, reason: str) -> None:
        """Note, for the log too, that a node takes no part: a run may go on without it."""
        self.failures[node] = reason
        self.speech.log.warning("unfed: node %s takes no part: %s", node, reason)

    @property
    def connected(self) -> tuple[int, ...]:
        """The nodes that are connected, by id; a node that is connected and silent too."""
        return tuple(self._since)

    @property
    def names(self) -> tuple[str, ...]:
        """Who can be told apart among those connected, in natural order (2 before 10)."""
        return in_order(name for name in {self._names.get(node) for node in self._online} if name and self.node(name))

    def nodes(self, name: str) -> list[int]:
        return [node for node in self._online if self._names.get(node) == name]

    def node(self, name: str) -> int | None:
        """The one node of that name, if there is exactly one."""
        found = self.nodes(name)
        return found[0] if len(found) == 1 else None

    def why_not(self, name: str) -> str:
        """Why a client cannot be reached."""
        found = self.nodes(name)
        if len(found) > 1:
            return f"{len(found)} nodes call themselves {name!r}, so it cannot be told which is meant"
        if any(self._names.get(node) == name for node in self._silent):
            return "it did not answer the last time and gave no sign of life since"
        return "it is not connected"

    def check_target(self, name: str) -> None:
        """Refuse to go on where the one who leaves might be among the others under another name."""
        found = self.nodes(name)
        if len(found) > 1:
            raise Refused(
                f"Client {name!r} cannot be told apart: {len(found)} nodes call themselves that; give each of them"
                f" {self.speech.naming}{self.speech.or_else}."
            )
        if not found and self.failures:
            node, reason = next(iter(self.failures.items()))
            raise Refused(
                f"Client {name!r} cannot be told apart: it did not show up under its name, but node {node} is connected"
                f" and {reason}; give every node {self.speech.naming}, or end that one."
            )

    def wait(self, minimum: int, shard: str, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Wait until enough clients are connected, but not for ever."""
        until, pause = time.monotonic() + seconds, min(1.0, seconds / 10)
        while True:
            self.look(shard)
            if len(self.names) >= minimum:
                return
            if time.monotonic() >= until:
                raise Refused(_too_few(self, minimum, seconds))
            sleep(pause)


def _too_few(directory: Directory, minimum: int, seconds: float) -> str:
    if not directory.names and not directory.failures:
        return (
            f"No node connected within {seconds:g} s; start at least {minimum} {directory.speech.nodes} and run again."
        )
    silent = "".join(f"; node {node}: {reason}" for node, reason in list(directory.failures.items())[:3])
    return (
        f"Only {len(directory.names)} of {minimum} clients are there after {seconds:g} s{silent}; start more"
        f" {directory.speech.nodes}, or lower min-nodes."
    )
