"""The clients of a federation whose data is elsewhere: names, counts and what each node allows.

There is never a row among them.

    look ─► census (how many rows of each view) ─► outlines: clients with as many places as rows, and nothing in them

A request for classes or samples is answered by the owners themselves, who alone can tell which rows it concerns; of a
request for a client nobody is asked, for it concerns everything that client holds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

import torch
from torch import Tensor

from unfed.data import ClientData, Request
from unfed.data.scope import no_numbers
from unfed.errors import Refused, UnfedError
from unfed.model.calling import Inputs
from unfed.remote.messages import CENSUS, Ask, own_part
from unfed.remote.nodes import Census, Directory
from unfed.remote.replies import USUAL_CLASSES, Failure

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
    """Who writes down that somebody joined."""


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
    told = {name: held[name] for name in order if name in held}
    if own is not None:
        shape, classes = own
    elif not told:
        raise Refused(
            f"No node says what its samples look like, so no model can be built; start {directory.speech.nodes}."
        )
    else:
        shape = Counter(census.shape for census in told.values()).most_common(1)[0][0]
        stated = [census.classes for census in told.values() if census.shape == shape]
        most = max(USUAL_CLASSES, 10 * median_low(stated))
        classes = max(number for number in stated if number <= most)
    misfits = {name: _misfit(census, shape, classes) for name, census in told.items()}
    refused |= {name: reason for name, reason in misfits.items() if reason}
    if told and all(name in refused for name in told):
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
        """Take in who joined since the last time, but nobody whom these requests name.

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
        """Whether a row that a request asks for is still in, as far as can be told.

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
                        f"Client {name!r} of request {request.id!r} is not connected and never took part here; check"
                        " the name, or say deleted=true if it has left with its data."
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
        """Whether only the client can tell which of its rows are meant, and has not told yet.

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
