"""Who is who: node ids are numbers that a transport draws, requests speak of clients by name.

    the run's own table (`nodes`)     name -> node id, where someone wrote it down
    the registered name               where the transport vouches for it: in Flower it is bound to the node's key
    what the node says                `client` or `partition-id` of its node config, asked once

A name that two nodes claim belongs to neither of them. A node that goes by a forgotten name, partition or key is not
asked (`Denied`), unless it is the leaver under its own name: its request says what it may be asked. Nodes may come
and go: each is found by its name when a round begins, under any id.

Staying out: a node with a forgotten name, partition or key is not asked again, in any run.

A node is known by everything it goes by: its key, the name of that key, and `client`, `client-name` and `partition-id`
of its node config. One of them on the list is enough, under any node id. The log names each node that is found, and how
to keep it out for good.

The clients of a federation whose data is elsewhere: names, counts and what each node allows.

There is never a row among them.

    look ─► census (how many rows of each view) ─► outlines: clients with as many places as rows, and nothing in them

A request for classes or samples is answered by the owners themselves, who alone can tell which rows it concerns; of a
request for a client no one is asked, for it concerns everything that client holds.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from unfed.data import ClientData, Request
from unfed.data.scope import no_numbers
from unfed.errors import Refused, UnfedError, listed
from unfed.folder.layout import names_of
from unfed.model.calling import Inputs
from unfed.remote.messages import (
    CENSUS,
    KINDS,
    MOST_CLASSES,
    MOST_PIXELS,
    MOST_ROWS,
    NAMED_BY,
    USUAL_CLASSES,
    Ask,
    Failure,
    Reply,
    Unreadable,
    attempt,
    count,
    name_of,
    own_part,
    said,
)
from unfed.remote.transport import Messenger, Speech

# --- who is who: node ids are numbers that a transport draws, requests speak of clients by name -----------------------


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
        """What a node said when it was asked who it is."""
        self.failures: dict[int, str] = {}
        """Connected nodes that could not say who they are, and why; each is asked once, and again if it was silent."""
        self.grown: set[str] = set()
        """Who counted more rows than it said it holds: its census is taken again before the next round."""

    def keep_out(self, names: Iterable[str]) -> None:
        """Refuse a node that goes by one of these names; registered nodes are then asked who they are, too."""
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
                f"Client {name!r} cannot be identified: {len(found)} nodes call themselves that; give each of them"
                f" {self.speech.naming}{self.speech.or_else}."
            )
        if not found and self.failures:
            node, reason = next(iter(self.failures.items()))
            raise Refused(
                f"Client {name!r} cannot be identified: its name did not show up, but node {node} is connected and"
                f" {reason}; give every node {self.speech.naming}, or end that one."
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


# --- the clients of a federation whose data is elsewhere: names, counts and what each node allows ---------------------


NOTHING = Census(0, 0, 0, 0, (), 0)


class Elsewhere:
    """A source that cannot be read: its rows lie at a client."""

    resident = augments = False
    inputs: Inputs | None = None

    def __init__(self, name: str, count: int, shape: tuple[int, ...], classes: int) -> None:
        self._name, self.shape, self.classes = name, shape, classes
        self.labels = torch.zeros(count, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        raise UnfedError(f"The rows of client {self._name!r} lie at the client; ask it with a plan or a measure.")


class ScopedClients(dict[str, ClientData]):
    """The clients under some requests, and the requests themselves: they travel with every message."""

    def __init__(
        self,
        outlines: Mapping[str, ClientData],
        requests: Sequence[Request],
        gone: Sequence[Request],
        dropped: Mapping[str, int],
    ) -> None:
        super().__init__(outlines)
        self.requests, self.gone, self.dropped = tuple(requests), tuple(gone), dict(dropped)


@dataclass(frozen=True)
class KnownClients:
    """What is known of a federation's clients from before: their order, and what each holds."""

    order: tuple[str, ...] = ()
    held: Mapping[str, Census] = field(default_factory=dict)
    names: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Every name, partition and key that each went by."""
    note: Callable[[KnownClients], None] = lambda past: None
    """Who writes down that someone joined."""


@dataclass
class Meeting:
    """Who is there when a world is built, and on which shape and classes they agree."""

    order: tuple[str, ...]
    held: dict[str, Census]
    refused: dict[str, str]
    """Clients that take no part because they hold something else or did not say what, and why."""
    met: set[int]
    """Nodes that said what they hold, or would not: each is asked once."""
    shape: tuple[int, ...]
    classes: int


def meet(
    directory: Directory, shard: str, past: KnownClients, own: tuple[tuple[int, ...], int] | None = None
) -> Meeting:
    """Ask those who were not asked yet what they hold; who does not fit is named and takes no part.

    `own` are the shape and the classes of the server's own data set, if it holds one.
    """
    order = (*past.order, *(name for name in directory.names if name not in past.order))
    held, refused, met = {**past.held, **directory.seen}, {}, set[int]()
    for name, names in past.names.items():
        directory.goes_by.setdefault(name, set()).update(names)
    asks = {name: Ask(CENSUS, name, shard) for name in order if name not in held}
    for name, found in ask_census(directory, asks, met).items():
        if isinstance(found, Failure):
            refused[name] = found.reason
        else:
            held[name] = found
    met |= {node for name in directory.names if (node := directory.node(name)) is not None}
    shown = {name: held[name] for name in order if name in held}
    if refused and not shown:
        name, reason = next(iter(refused.items()))
        raise Refused(f"No client takes part. The first of {len(refused)}, client {name!r}: {reason}.")
    if own is not None:
        shape, classes = own
    elif not shown:
        raise Refused(
            f"No node says what its samples look like, so no model can be built; start {directory.speech.nodes}."
        )
    else:
        shape = Counter(census.shape for census in shown.values()).most_common(1)[0][0]
        stated = [census.classes for census in shown.values() if census.shape == shape]
        most = max(USUAL_CLASSES, 10 * median_low(stated))
        classes = max(number for number in stated if number <= most)
    misfits = {name: _misfit(census, shape, classes) for name, census in shown.items()}
    refused |= {name: reason for name, reason in misfits.items() if reason}
    if shown and all(name in refused for name in shown):
        name, reason = next(iter(refused.items()))
        or_else = "" if own is None else ", or say server-data=false: so far the server's own data set says what fits"
        raise Refused(f"No node fits this federation (client {name}: {reason}); mend the nodes' data{or_else}.")
    return Meeting(order, held, refused, met, shape, classes)


def ask_census(directory: Directory, asks: Mapping[str, Ask], met: set[int]) -> dict[str, Census | Failure]:
    """What these clients say they hold; whose node answered is added to `met`."""
    nodes = {name: node for name in asks if (node := directory.node(name)) is not None}
    delivery = directory.messenger.send({nodes[name]: asks[name] for name in nodes})
    directory.silent(delivery.silent)
    met |= set(nodes.values()) - delivery.silent
    found: dict[str, Census | Failure] = {}
    for name in asks:
        answer = delivery.answers[nodes[name]] if name in nodes else Failure(directory.why_not(name))
        found[name] = answer if isinstance(answer, Failure) else Census.of(answer, directory.most_rows)
        if not isinstance(answer, Failure):
            directory.heard(nodes[name], answer.said)
    return found


class Nodes:
    """Clients that live on nodes: a population that can be asked, and never read."""

    def __init__(
        self, directory: Directory, shard: str, meeting: Meeting, note: Callable[[KnownClients], None]
    ) -> None:
        self.directory, self.shard = directory, shard
        self.shape, self.classes, self.refused = meeting.shape, meeting.classes, meeting.refused
        self._order, self._known, self._met = meeting.order, meeting.held, meeting.met
        self._note = note
        self._counts: dict[str, Census] = {}
        self._clients = self._outlines()

    # --- who is there -------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> tuple[ClientData, ...]:
        return self._clients

    @property
    def past(self) -> KnownClients:
        """Everybody who ever took part, in the order in which answers are averaged, and what each holds."""
        names = {name: sorted(self.directory.goes_by.get(name, ())) for name in self._order}
        return KnownClients(self._order, dict(self._known), names, self._note)

    def admit(self, requests: Sequence[Request]) -> bool:
        """Take in who joined since the last time, but none whom these requests name.

        It says whether there was anybody.

        Who joins stands last in the federation's order, for good: answers are averaged in that order.
        """
        directory, before = self.directory, self.past.names
        directory.leavers |= {name for request in requests for name in request.clients}
        directory.look(self.shard)
        recounted = self._recount(requests)
        new = [n for n in directory.names if self._base(n) is NOTHING and not self._leaves(n, requests)]
        new = [name for name in new if directory.node(name) not in self._met]
        found: dict[str, Census | Failure] = {name: directory.seen[name] for name in new if name in directory.seen}
        self._met |= {node for name in found if (node := directory.node(name)) is not None}
        unsaid = [name for name in new if name not in found]
        asks = {name: Ask(CENSUS, name, self.shard) for name in unsaid}
        found |= ask_census(directory, asks, self._met) if asks else {}
        joined = []
        for name in new:
            census = found[name]
            reason = census.reason if isinstance(census, Failure) else _misfit(census, self.shape, self.classes)
            if isinstance(census, Failure) or reason:
                self.refused[name] = reason
                self.directory.speech.log.warning("unfed: client %s takes no part: %s", name, reason)
                continue
            self.refused.pop(name, None)
            self._known[name] = census
            joined.append(name)
        if joined:
            self._order = (*self._order, *(name for name in joined if name not in self._order))
            self._clients = self._outlines()
            self.directory.speech.log.info("unfed: client %s takes part from now on", ", ".join(joined))
        if joined or self.past.names != before:
            self._note(self.past)
        return bool(joined) or recounted

    def _recount(self, requests: Sequence[Request]) -> bool:
        """Ask those again who counted more rows than they said they hold.

        It says whether anybody holds other rows than before.
        """
        grown = [n for n in self._order if n in self.directory.grown and not self._leaves(n, requests)]
        self.directory.grown.clear()
        changed, asks = False, {n: Ask(CENSUS, n, self.shard) for n in grown}
        for name, census in ask_census(self.directory, asks, self._met).items() if asks else ():
            if isinstance(census, Failure) or census == self._known.get(name):
                continue
            self.directory.speech.log.warning(
                "unfed: client %s now says it holds %d rows (%d before)", name, census.all, self._base(name).all
            )
            self._known[name], changed = census, True
            self._counts = {key: found for key, found in self._counts.items() if json.loads(key)[0] != name}
        if changed:
            self._clients = self._outlines()
            self._note(self.past)
        return changed

    def present(self, name: str) -> bool:
        """Whether a client is a part of this federation: not refused, and it said what it holds."""
        return self._base(name) is not NOTHING

    def _base(self, name: str) -> Census:
        """What a client holds before any request; nothing where it never said, or does not fit."""
        return NOTHING if name in self.refused else self._known.get(name, NOTHING)

    def knows(self, name: str) -> bool:
        """Whether a client is connected, or was when this run began."""
        return name in self._order

    def allows(self, name: str, kind: str) -> bool:
        return kind in self._base(name).allow

    # --- requests -----------------------------------------------------------------------------------------------------

    def scoped(self, requests: Sequence[Request], gone: Sequence[Request] = ()) -> ScopedClients:
        """Outlines under these requests; who alone can tell is asked."""
        self._check_names(requests)
        self.directory.leavers |= {name for request in (*requests, *gone) for name in request.clients}
        self._count(requests, gone)
        outlines, dropped = {}, {}
        for name in self._order:
            census = self._under(name, requests, gone)
            outlines[name] = self._outline(name, census)
            if not self._unsaid(name, requests, gone):
                dropped[name] = census.forget
        if requests and requests[-1] not in gone and not requests[-1].clients and not any(dropped.values()):
            raise UnfedError(
                f"Request {requests[-1].id!r} names no training row that any connected client holds, so there is"
                " nothing to unlearn; check what it asks for."
            )
        if requests and not any(len(c.view("retain")) for c in outlines.values()):
            raise UnfedError("The requests would remove every client that is connected; ask for less, or start more.")
        return ScopedClients(outlines, requests, gone, dropped)

    def holds(self, request: Request, gone: Sequence[Request]) -> bool:
        """Whether a row that a request asks for is still in, as far as can be seen.

        Who is away is taken to hold it.
        """
        everything = [*gone, request]
        self._check_names(everything)
        if request.clients:
            self._count(gone, ())
            staying = [name for name in request.clients if not self._leaves(name, gone)]
            return any(self._base(name) is NOTHING or self._under(name, gone, ()).retain for name in staying)
        self._count(everything, gone)
        unsaid = any(self._unsaid(name, everything, gone) for name in self._order)
        return unsaid or any(self._under(name, everything, gone).forget for name in self._order)

    def _check_names(self, requests: Sequence[Request]) -> None:
        """A target that might hide among the others is a reason to stop; one that is simply gone is not."""
        for request in requests:
            if request.rows:
                raise no_numbers(request)
            for name in request.clients:
                self.directory.check_target(name)
                if name in self.directory.denied.names:
                    raise UnfedError(
                        f"Client {name!r} of request {request.id!r} was forgotten before this run began (deny.run) and"
                        " never took part in it; leave the request out."
                    )
                if name not in self._order and not request.deleted:
                    raise UnfedError(
                        f"Client {name!r} of request {request.id!r} is not connected and never took part here, as"
                        f" {listed(self._order, 'and')} did; check the name, or set deleted=true if its data is gone."
                    )

    def _count(self, requests: Sequence[Request], gone: Sequence[Request]) -> None:
        asks = {}
        for name in self._order:
            if self._unsaid(name, requests, gone):
                scope, out = own_part(requests, name), own_part(gone, name)
                asks[name] = Ask(CENSUS, name, self.shard, scope, out)
        for name, found in ask_census(self.directory, asks, self._met).items() if asks else ():
            if not isinstance(found, Failure):
                self._counts[self._key(name, requests, gone)] = found

    def _unsaid(self, name: str, requests: Sequence[Request], gone: Sequence[Request]) -> bool:
        """Whether only the client can tell which of its rows are meant, and has not said yet.

        It may be away.
        """
        rows = [request for request in requests if not request.clients]
        if self._leaves(name, requests) or self._base(name) is NOTHING or not own_part(rows, name):
            return False
        return self._key(name, requests, gone) not in self._counts

    @staticmethod
    def _leaves(name: str, requests: Sequence[Request]) -> bool:
        return any(name in request.clients for request in requests)

    @staticmethod
    def _key(name: str, requests: Sequence[Request], gone: Sequence[Request]) -> str:
        parts = [[r.to_json() for r in own_part(part, name)] for part in (requests, gone)]
        return json.dumps([name, *parts])

    def _under(self, name: str, requests: Sequence[Request], gone: Sequence[Request]) -> Census:
        base = self._base(name)
        if base is NOTHING or self._leaves(name, gone):
            return NOTHING
        if self._leaves(name, requests):
            deleted = any(request.deleted for request in requests if name in request.clients)
            return NOTHING if deleted else Census(base.all, 0, base.all, 0, base.shape, base.classes, base.allow)
        return self._counts.get(self._key(name, requests, gone), base)

    def _outlines(self) -> tuple[ClientData, ...]:
        rows = {name: self._base(name).all for name in self._order if self.present(name)}
        for name in (name for name, own in rows.items() if len(rows) > 2 and 2 * own > sum(rows.values())):
            words = "unfed: client %s states %d of all %d rows, so it has more than half of the weight"
            self.directory.speech.log.warning(words, name, rows[name], sum(rows.values()))
        return tuple(self._outline(name, self._base(name)) for name in self._order)

    def _outline(self, name: str, census: Census) -> ClientData:
        places = torch.arange(census.all + census.val)
        source = Elsewhere(name, len(places), self.shape, self.classes)
        forget = places < census.forget
        return ClientData(name, source, places, places[: census.all], places[census.all :], forget)


def _misfit(census: Census, shape: tuple[int, ...], classes: int) -> str:
    """Why a client cannot take part; empty if it can."""
    if census.shape != shape:
        return f"its samples have the shape {census.shape}, the federation's {shape}"
    if census.classes > classes:
        return f"it holds {census.classes} classes, the federation's model tells {classes} apart"
    return ""
