"""The clients of a federation whose data is elsewhere: names, counts, permissions, never a row.

    Nodes ─► census (how many rows of each view) ─► outlines: clients with as many places as rows, and nothing in them

A request for classes or samples is answered by the owners themselves, who alone can tell which rows it concerns. A
request for a client concerns everything that client holds, so nothing is asked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median_low

import torch
from torch import Tensor

from unfed.data import ClientData, Request
from unfed.data.scope import no_numbers
from unfed.errors import Refused, UnfedError, listed
from unfed.folder.layout import ClientList, HeldRows
from unfed.model.calling import Inputs
from unfed.remote.directory import Directory, held_in
from unfed.remote.messages import CENSUS, USUAL_CLASSES, Ask, Failure, own_part

NOTHING = HeldRows.model_construct(all=0, retain=0, forget=0, val=0, classes=0, shape=(), allow=())


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


class Nodes:
    """Clients that live on nodes: they can be asked, and their rows never read."""

    def __init__(
        self,
        directory: Directory,
        shard: str,
        past: ClientList,
        own: tuple[tuple[int, ...], int] | None = None,
        note: Callable[[ClientList], None] = lambda found: None,
    ) -> None:
        """Ask new clients what they hold; those that do not fit are named and take no part.

        `past`: who took part before · `own`: shape and classes of the server's own data set, if it holds one ·
        `note`: writes down that a client joined.
        """
        self.directory, self.shard, self._note = directory, shard, note
        self.refused: dict[str, str] = {}
        """Clients that take no part because they hold something else or did not say what, and why."""
        self._met: set[int] = set()
        """Nodes that said what they hold, or would not: each is asked once."""
        self._counts: dict[str, HeldRows] = {}
        self._order = (*past.order, *(name for name in directory.names if name not in past.order))
        self._known = {**past.held, **directory.seen}
        for name, names in past.names.items():
            directory.goes_by.setdefault(name, set()).update(names)
        for name, found in self._ask([name for name in self._order if name not in self._known]).items():
            if isinstance(found, Failure):
                self.refused[name] = found.reason
            else:
                self._known[name] = found
        self._met |= {node for name in directory.names if (node := directory.node(name)) is not None}
        shown = {name: self._known[name] for name in self._order if name in self._known}
        if self.refused and not shown:
            name, reason = next(iter(self.refused.items()))
            raise Refused(f"No client takes part. The first of {len(self.refused)}, client {name!r}: {reason}.")
        self.shape, self.classes = own or _agreed(shown, directory.speech.nodes)
        self.refused |= {name: reason for name, held in shown.items() if (reason := self._misfit(held))}
        if shown and all(name in self.refused for name in shown):
            name, reason = next(iter(self.refused.items()))
            or_else = "" if own is None else ", or set server-data=false: the server's own data set says what fits"
            raise Refused(f"No node fits this federation (client {name}: {reason}); mend the nodes' data{or_else}.")
        self._clients = self._outlines()

    # --- who is there -------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> tuple[ClientData, ...]:
        return self._clients

    @property
    def past(self) -> ClientList:
        """All clients that ever took part, in the order in which answers are averaged, and what each holds."""
        names = {name: tuple(sorted(self.directory.goes_by.get(name, ()))) for name in self._order}
        return ClientList(order=self._order, held=dict(self._known), names=names)

    def admit(self, requests: Sequence[Request]) -> bool:
        """Take in clients that joined since the last time, except those that these requests name.

        It says whether there were any. A new client stands last in the federation's order, for good: answers are
        averaged in that order.
        """
        directory, before = self.directory, self.past.names
        directory.leavers |= {name for request in requests for name in request.clients}
        directory.look(self.shard)
        recounted = self._recount(requests)
        new = [n for n in directory.names if not self.present(n) and not self._leaves(n, requests)]
        new = [name for name in new if directory.node(name) not in self._met]
        found: dict[str, HeldRows | Failure] = {name: directory.seen[name] for name in new if name in directory.seen}
        self._met |= {node for name in found if (node := directory.node(name)) is not None}
        found |= self._ask([name for name in new if name not in found])
        joined = []
        for name in new:
            held = found[name]
            if reason := held.reason if isinstance(held, Failure) else self._misfit(held):
                self.refused[name] = reason
                directory.speech.log.warning("unfed: client %s takes no part: %s", name, reason)
            elif isinstance(held, HeldRows):
                self.refused.pop(name, None)
                self._known[name] = held
                joined.append(name)
        if joined:
            self._order = (*self._order, *(name for name in joined if name not in self._order))
            self._clients = self._outlines()
            directory.speech.log.info("unfed: client %s takes part from now on", ", ".join(joined))
        if joined or self.past.names != before:
            self._note(self.past)
        return bool(joined) or recounted

    def _recount(self, requests: Sequence[Request]) -> bool:
        """Ask again those that counted more rows than they said; return whether any holds other rows."""
        grown = [n for n in self._order if n in self.directory.grown and not self._leaves(n, requests)]
        self.directory.grown.clear()
        changed = False
        for name, held in self._ask(grown).items():
            if isinstance(held, Failure) or held == self._known.get(name):
                continue
            self.directory.speech.log.warning(
                "unfed: client %s now says it holds %d rows (%d before)", name, held.all, self._base(name).all
            )
            self._known[name], changed = held, True
            self._counts = {key: found for key, found in self._counts.items() if json.loads(key)[0] != name}
        if changed:
            self._clients = self._outlines()
            self._note(self.past)
        return changed

    def _ask(
        self, clients: Sequence[str], requests: Sequence[Request] = (), gone: Sequence[Request] = ()
    ) -> dict[str, HeldRows | Failure]:
        """What these clients say they hold under some requests, each by its own part of these."""
        directory = self.directory
        nodes = {name: node for name in clients if (node := directory.node(name)) is not None}
        asks = {
            node: Ask(CENSUS, name, self.shard, own_part(requests, name), own_part(gone, name))
            for name, node in nodes.items()
        }
        delivery = directory.messenger.send(asks)
        directory.silent(delivery.silent)
        self._met |= set(asks) - delivery.silent
        found: dict[str, HeldRows | Failure] = {}
        for name in clients:
            answer = delivery.answers[nodes[name]] if name in nodes else Failure(directory.why_not(name))
            found[name] = answer if isinstance(answer, Failure) else held_in(answer, directory.most_rows)
            if not isinstance(answer, Failure):
                directory.heard(nodes[name], answer.said)
        return found

    def present(self, name: str) -> bool:
        """Whether a client is a part of this federation: not refused, and it said what it holds."""
        return self._base(name) is not NOTHING

    def _base(self, name: str) -> HeldRows:
        """What a client holds before any request; nothing where it never said, or does not fit."""
        return NOTHING if name in self.refused else self._known.get(name, NOTHING)

    def knows(self, name: str) -> bool:
        """Whether a client is connected, or was when this run began."""
        return name in self._order

    def allows(self, name: str, kind: str) -> bool:
        return kind in self._base(name).allow

    # --- requests -----------------------------------------------------------------------------------------------------

    def scoped(self, requests: Sequence[Request], gone: Sequence[Request] = ()) -> ScopedClients:
        """Outlines under these requests; clients that alone can tell which rows are meant are asked."""
        self._check_names(requests)
        self.directory.leavers |= {name for request in (*requests, *gone) for name in request.clients}
        self._count(requests, gone)
        outlines, dropped = {}, {}
        for name in self._order:
            held = self._under(name, requests, gone)
            outlines[name] = self._outline(name, held)
            if not self._unsaid(name, requests, gone):
                dropped[name] = held.forget
        if requests and requests[-1] not in gone and not requests[-1].clients and not any(dropped.values()):
            raise UnfedError(f"No connected client holds a row of request {requests[-1].id!r}; check what it asks for.")
        if requests and not any(len(c.view("retain")) for c in outlines.values()):
            raise UnfedError("The requests would remove every client that is connected; ask for less, or start more.")
        return ScopedClients(outlines, requests, gone, dropped)

    def holds(self, request: Request, gone: Sequence[Request]) -> bool:
        """Whether a row that a request asks for is still in; a client that is away is taken to hold it."""
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
                if name in self.directory.denied:
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
        unsaid = [name for name in self._order if self._unsaid(name, requests, gone)]
        for name, found in self._ask(unsaid, requests, gone).items():
            if not isinstance(found, Failure):
                self._counts[self._key(name, requests, gone)] = found

    def _unsaid(self, name: str, requests: Sequence[Request], gone: Sequence[Request]) -> bool:
        """Whether only the client can tell which of its rows are meant, and has not said yet."""
        rows = [request for request in requests if not request.clients]
        if self._leaves(name, requests) or not self.present(name) or not own_part(rows, name):
            return False
        return self._key(name, requests, gone) not in self._counts

    @staticmethod
    def _leaves(name: str, requests: Sequence[Request]) -> bool:
        return any(name in request.clients for request in requests)

    @staticmethod
    def _key(name: str, requests: Sequence[Request], gone: Sequence[Request]) -> str:
        parts = [[r.to_json() for r in own_part(part, name)] for part in (requests, gone)]
        return json.dumps([name, *parts])

    def _under(self, name: str, requests: Sequence[Request], gone: Sequence[Request]) -> HeldRows:
        base = self._base(name)
        if base is NOTHING or self._leaves(name, gone):
            return NOTHING
        if self._leaves(name, requests):
            deleted = any(request.deleted for request in requests if name in request.clients)
            return NOTHING if deleted else base.model_copy(update={"retain": 0, "forget": base.all, "val": 0})
        return self._counts.get(self._key(name, requests, gone), base)

    def _outlines(self) -> tuple[ClientData, ...]:
        rows = {name: self._base(name).all for name in self._order if self.present(name)}
        for name in (name for name, own in rows.items() if len(rows) > 2 and 2 * own > sum(rows.values())):
            words = "unfed: client %s states %d of all %d rows, so it has more than half of the weight"
            self.directory.speech.log.warning(words, name, rows[name], sum(rows.values()))
        return tuple(self._outline(name, self._base(name)) for name in self._order)

    def _outline(self, name: str, held: HeldRows) -> ClientData:
        places = torch.arange(held.all + held.val)
        source = Elsewhere(name, len(places), self.shape, self.classes)
        return ClientData(name, source, places, places[: held.all], places[held.all :], places < held.forget)

    def _misfit(self, held: HeldRows) -> str:
        """Why a client cannot take part; empty if it can."""
        if held.shape != self.shape:
            return f"its samples have the shape {held.shape}, the federation's {self.shape}"
        if held.classes > self.classes:
            return f"it holds {held.classes} classes, the federation's model tells {self.classes} apart"
        return ""


def _agreed(shown: Mapping[str, HeldRows], nodes: str) -> tuple[tuple[int, ...], int]:
    """The shape that most clients have, and how many classes; one client cannot claim very many."""
    if not shown:
        raise Refused(f"No node says what its samples look like, so no model can be built; start {nodes}.")
    shape = Counter(held.shape for held in shown.values()).most_common(1)[0][0]
    stated = [held.classes for held in shown.values() if held.shape == shape]
    most = max(USUAL_CLASSES, 10 * median_low(stated))
    return shape, max(number for number in stated if number <= most)
