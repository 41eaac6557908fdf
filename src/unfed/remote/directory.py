"""Who is who among the connected nodes.

A transport draws node ids; requests speak of clients by name. A client's name is the one that the transport vouches for
(in Flower: registered with the node's key), else what the node answers when it is asked: `client`, `client-name` or
`partition-id` of its node config. A name that two nodes claim belongs to neither of them.

A node is known by everything it goes by: key, registered name, and the three words of its config. If one of them is on
the deny list, or belongs to a client that left, the node is not asked again under any id; the log names it once.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import Refused
from unfed.folder.layout import ClientList, HeldRows, client_list, names_of
from unfed.remote.messages import (
    CENSUS,
    KINDS,
    MOST_CLASSES,
    MOST_PIXELS,
    MOST_ROWS,
    NAMED_BY,
    Ask,
    Failure,
    Reply,
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


def note_clients(folder: Path, found: ClientList) -> None:
    """Write down who takes part, what each holds and every name of each, beside what was known.

    It is written before the round in which a client is first asked, so a run that is resumed asks the same clients.
    """
    before = client_list(folder) or ClientList(order=(), held={})
    every = {*before.names, *found.names}
    names = {name: sorted({*before.names.get(name, ()), *found.names.get(name, ())}) for name in sorted(every)}
    order = [*before.order, *(name for name in found.order if name not in before.order)]
    held = {name: held.to_json() for name, held in {**before.held, **found.held}.items()}
    storage.write_json(folder / "clients.json", {"order": order, "held": held, "names": names})


def held_in(reply: Reply, most: int = MOST_ROWS) -> HeldRows | Failure:
    """A client's answer to a census, if it makes sense and states no more rows than `most`."""
    return attempt(lambda: _held_in(reply, most))


def _held_in(reply: Reply, most: int) -> HeldRows:
    counts = reply.numbers["counts"]
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
    allow = sorted({*str(reply.said.get("allow", "")).split(",")} & {*KINDS})
    return HeldRows(**rows, shape=tuple(int(size) for size in shape), classes=classes, allow=tuple(allow))


class Directory:
    """The nodes that are connected, by client name."""

    def __init__(self, messenger: Messenger, speech: Speech | None = None, most_rows: int = MOST_ROWS) -> None:
        self.messenger, self.speech, self.most_rows = messenger, speech or Speech(), most_rows
        self._names: dict[int, str] = {}
        self._online: tuple[int, ...] = ()
        self._lives: dict[int, float] = {}
        self._silent: dict[int, float] = {}
        self._heard: set[int] = set()
        self._since: dict[int, str] = {}
        self.denied: frozenset[str] = frozenset()
        """Names of forgotten clients."""
        self.expelled: dict[int, str] = {}
        """Nodes that go by a forgotten name, under every id seen so far, and that name."""
        self.leavers: set[str] = set()
        """Clients that requests of this run name."""
        self.goes_by: dict[str, set[str]] = {}
        """Every name, partition and key that a client ever went by."""
        self._own: dict[int, set[str]] = {}
        self._left: frozenset[str] = frozenset()
        self.seen: dict[str, HeldRows] = {}
        """What a node said when it was asked who it is."""
        self.failures: dict[int, str] = {}
        """Connected nodes that could not say who they are, and why; each is asked once, and again if it was silent."""
        self.grown: set[str] = set()
        """Clients that counted more rows than they said they hold: they are asked again before the next round."""

    def keep_out(self, names: Iterable[str]) -> None:
        """Refuse a node that goes by one of these names; registered nodes are then asked who they are, too."""
        self.denied, self.expelled = frozenset(names), {}

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
            if one.name:
                self._names[one.id] = one.name
            self._goes_by(one.id, one.name, one.name, one.key)
        self._online = tuple(sorted(n for n in infos if n not in self._silent and n not in self.expelled))
        self.failures = {n: reason for n, reason in self.failures.items() if n in infos and n not in awake}
        strangers = [node for node in self._online if self._strange(node) and node not in self.failures]
        delivery = self.messenger.send({node: Ask(CENSUS, self._names.get(node, ""), shard) for node in strangers})
        for node, found in delivery.answers.items():
            self._meet(node, found)
        self._heard |= set(strangers) - delivery.silent
        self.silent(delivery.silent)

    def _forget_who_went(self, here: dict[int, str]) -> None:
        """Ask nodes again that went away or connected again: under one key there may be another config."""
        for node in [node for node, since in self._since.items() if here.get(node) != since]:
            self._names.pop(node, None)
            self._own.pop(node, None)
            self._heard.discard(node)
            self.failures.pop(node, None)
        self._since = here

    def silent(self, nodes: Iterable[int]) -> None:
        """Note who let a question time out: as long as it gives no sign of life, it counts as away."""
        self._silent |= {node: self._lives.get(node, 0.0) for node in nodes}
        self._online = tuple(n for n in self._online if n not in self._silent and n not in self.expelled)

    def _strange(self, node: int) -> bool:
        """Whether a node must say who it is; a named one too, if it might go by a forgotten name."""
        name = self._names.get(node)
        wary = bool(self.denied or self.leavers)
        return name is None or (wary and name not in self.leavers and node not in self._heard)

    def _goes_by(self, node: int, name: str | None, *names: str) -> bool:
        """Note what a node of this client goes by; whether it may take part with that."""
        own = self._own.setdefault(node, set())
        own |= {one for one in names if one}
        forgotten = self.denied | self._left if name and name not in self.leavers else self.denied
        if self._expels(node, sorted(own), forgotten):
            return False
        if name:
            self.goes_by.setdefault(name, set()).update(own)
        return True

    def _expels(self, node: int, goes_by: Iterable[str], forgotten: Collection[str]) -> bool:
        """Whether a node goes by a forgotten name, now or when it was seen before; the log names it once."""
        name = next((own for own in goes_by if own in forgotten), None)
        if node in self.expelled or name is None:
            return node in self.expelled
        self.expelled[node] = name
        log, expel = self.speech.log, self.speech.expel.format(node=node)
        log.warning("unfed: node %s goes by %r, which was forgotten, so it is not asked; %s", node, name, expel)
        same = [str(other) for other, own in self.expelled.items() if own == name]
        if len(same) > 1:
            log.warning("unfed: %d nodes went by the forgotten name %r: %s", len(same), name, ", ".join(same))
        return True

    def heard(self, node: int, words: Mapping[str, Any]) -> list[str]:
        """Note the names in a client's answer."""
        names = [said(words[key], 100) for key in ("name", *NAMED_BY) if key in words]
        self._heard.add(node)
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
        held = held_in(found, self.most_rows)
        if isinstance(name, Failure):
            self._fails(node, name.reason)
        elif not name:
            self._fails(node, "it does not say who it is")
        elif isinstance(held, Failure):
            self._fails(node, f"as client {name!r}, {held.reason}")
        else:
            self._names[node] = name
            self.seen[name] = held

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
        """Who can be identified among those connected, in natural order (2 before 10)."""
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
            return f"{len(found)} nodes call themselves {name!r}, so it is unclear which is meant"
        if any(self._names.get(node) == name for node in self._silent):
            return "it did not answer the last time and gave no sign of life since"
        return "it is not connected"

    def check_target(self, name: str) -> None:
        """Refuse to go on where the one who leaves might be among the others under another name."""
        found = self.nodes(name)
        if len(found) > 1:
            raise Refused(
                f"Client {name!r} cannot be identified: {len(found)} nodes call themselves that; give each"
                f" {self.speech.naming}{self.speech.or_else}."
            )
        if not found and self.failures:
            node, reason = next(iter(self.failures.items()))
            raise Refused(
                f"Client {name!r} cannot be identified: its name did not show up, but node {node} is connected and"
                f" {reason}; give every node {self.speech.naming}, or end that one."
            )

    def wait(self, minimum: int, shard: str, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Wait until enough clients are connected; refuse after so many seconds."""
        until, pause = time.monotonic() + seconds, min(1.0, seconds / 10)
        while True:
            self.look(shard)
            if len(self.names) >= minimum:
                return
            if time.monotonic() >= until:
                found = [f"; node {node}: {reason}" for node, reason in self.failures.items()]
                raise Refused(
                    f"Only {len(self.names)} of {minimum} clients are there after {seconds:g} s{''.join(found[:3])};"
                    f" start more {self.speech.nodes}, or lower min-nodes."
                )
            sleep(pause)
