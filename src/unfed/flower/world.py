"""A federation whose data is elsewhere: the server knows names, counts and what each node allows; never a row.

    look ─► census (how many rows of each view) ─► outlines: clients with as many places as rows, and nothing in them

Methods and jobs see the same `World` as in a simulation; the only difference is that an outline cannot be read. A
request for classes or samples is answered by the owners themselves, who alone can tell which rows it concerns; of a
request for a client nobody is asked, for it concerns everything that client holds.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from unfed.data import ClientData, Dataset, Request, Source
from unfed.engines.base import Engine
from unfed.errors import Refused, UnfedError
from unfed.flower.engine import Flower
from unfed.flower.evaluator import Memory, RemoteEvaluator
from unfed.flower.nodes import Census, Directory
from unfed.flower.post import Failure
from unfed.flower.shard import describe
from unfed.flower.wire import CENSUS, Ask, own_part
from unfed.model.flops import forward_flops
from unfed.model.networks import build
from unfed.runs.config import Config
from unfed.runs.world import DTYPES, Seeds, World, pick_device, small_step, template_of

log = logging.getLogger("flwr")

NOTHING = Census(0, 0, 0, 0, (), 0)


class Elsewhere:
    """A source that cannot be read: its rows lie at a client."""

    resident = augments = False

    def __init__(self, name: str, count: int, shape: tuple[int, ...], classes: int) -> None:
        self._name, self.shape, self.classes = name, shape, classes
        self.labels = torch.zeros(count, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        raise UnfedError(f"The rows of client {self._name!r} lie at the client; ask it with a plan or a measure.")


class Roster(dict[str, ClientData]):
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


class FlowerWorld(World):
    """The world as a Flower server can know it."""

    def __init__(
        self,
        config: Config,
        seed: int,
        directory: Directory,
        dataset: Dataset | None = None,
        public: ClientData | None = None,
        known: Mapping[str, Census] | None = None,
        order: Sequence[str] = (),
        holds_data: bool = False,
    ) -> None:
        if config.setting == "central":
            raise UnfedError("A centralised setting has no clients elsewhere; use unfed.unlearn, or drop `setting`.")
        self.config, self.seed, self.directory = config, seed, directory
        self.seeds = Seeds.of(config, seed)
        self.device, self.dtype = pick_device(config.device), DTYPES[config.engine.precision]
        self.repaired = ()
        self._own, self._public = dataset or (self._load() if holds_data else None), public
        self._known = {**(known or {}), **directory.seen}
        self._counts: dict[str, Census] = {}
        self.heard = Memory()
        self.refused: dict[str, str] = {}
        """Clients that take no part because they hold something else or did not say what, and why."""
        self._met: set[int] = set()
        """Nodes that said what they hold, or would not: each is asked once."""
        self.noted: Callable[[FlowerWorld], None] = lambda world: None
        """Who writes down that somebody joined."""
        self._order = (*order, *(name for name in directory.names if name not in order))
        self._introduce()
        self._met |= {node for name in directory.names if (node := directory.node(name)) is not None}
        self.shape, self.classes = self._agree()
        self.clients = self._outlines()
        self.template = template_of(config, self._module(0), self.shape, self.device)
        self.forward_flops = forward_flops(self.template)
        threads = config.engine.threads or (1 if small_step(config.training.batch, self.forward_flops) else None)
        self.shard = describe(config, seed, self.shape, self.classes, threads)
        self.parameters = sum(self.template.like[n].numel() for n in self.template.trainable)
        self.initial = self._initial()

    @property
    def held_out(self) -> Source | None:
        return None if self._own is None else self._own.test

    @property
    def dataset(self) -> Dataset:
        """The server's own data; only its test part is ever read."""
        if self._own is None:
            raise UnfedError("The server holds no data set of its own; set server-data to let it load one.")
        return self._own

    @dataset.setter
    def dataset(self, value: Dataset) -> None:
        self._own = value

    # --- who is there -------------------------------------------------------------------------------------------------

    def _introduce(self) -> None:
        """Ask those who have a registered name, and so were not asked yet, what they hold."""
        bare = describe(self.config, self.seed)
        unknown = [n for n in self._order if n not in self._known]
        for name, found in self._ask_census({name: Ask(CENSUS, name, bare) for name in unknown}).items():
            if isinstance(found, Failure):
                self.refused[name] = found.reason
            else:
                self._known[name] = found

    def _ask_census(self, asks: Mapping[str, Ask]) -> dict[str, Census | Failure]:
        nodes = {name: node for name in asks if (node := self.directory.node(name)) is not None}
        delivery = self.directory.post.send({nodes[name]: asks[name] for name in nodes})
        self.directory.silent(delivery.silent)
        self._met |= set(nodes.values()) - delivery.silent
        found: dict[str, Census | Failure] = {}
        for name in asks:
            answer = delivery.answers[nodes[name]] if name in nodes else Failure(self.directory.why_not(name))
            found[name] = answer if isinstance(answer, Failure) else Census.of(answer)
        return found

    def _agree(self) -> tuple[tuple[int, ...], int]:
        """The shape and the classes of this federation; who has others is named and takes no part."""
        told = {name: self._known[name] for name in self._order if name in self._known}
        if self._own is not None:
            shape, classes = tuple(self._own.train.shape), self._own.train.classes
        elif not told:
            raise Refused("No node says what its samples look like, so no model can be built; start SuperNodes.")
        else:
            shape = Counter(census.shape for census in told.values()).most_common(1)[0][0]
            classes = max(census.classes for census in told.values() if census.shape == shape)
        misfits = {name: _misfit(census, shape, classes) for name, census in told.items()}
        self.refused |= {name: reason for name, reason in misfits.items() if reason}
        if told and all(name in self.refused for name in told):
            name, reason = next(iter(self.refused.items()))
            raise Refused(f"No node fits this federation (client {name}: {reason}); mend the nodes' data.")
        return shape, classes

    def admit(self, requests: Sequence[Request]) -> bool:
        """Take in who joined since the last time, but nobody whom these requests name; whether there was anybody.

        Who joins stands last in the federation's order, for good: answers are averaged in that order.
        """
        directory = self.directory
        directory.look(self.shard)
        recounted = self._recount(requests)
        new = [n for n in directory.names if self._base(n) is NOTHING and not self._leaves(n, requests)]
        new = [name for name in new if directory.node(name) not in self._met]
        found: dict[str, Census | Failure] = {name: directory.seen[name] for name in new if name in directory.seen}
        self._met |= {node for name in found if (node := directory.node(name)) is not None}
        unsaid = [name for name in new if name not in found]
        found |= self._ask_census({name: Ask(CENSUS, name, self.shard) for name in unsaid}) if unsaid else {}
        joined = []
        for name in new:
            census = found[name]
            reason = census.reason if isinstance(census, Failure) else _misfit(census, self.shape, self.classes)
            if isinstance(census, Failure) or reason:
                self.refused[name] = reason
                log.warning("unfed: client %s takes no part: %s", name, reason)
                continue
            self.refused.pop(name, None)
            self._known[name] = census
            joined.append(name)
        if joined:
            self._order = (*self._order, *(name for name in joined if name not in self._order))
            self.clients = self._outlines()
            self.noted(self)
            log.info("unfed: client %s takes part from now on", ", ".join(joined))
        return bool(joined) or recounted

    def _recount(self, requests: Sequence[Request]) -> bool:
        """Ask those again who counted more rows than they said they hold; whether anybody holds others than before."""
        grown = [n for n in self._order if n in self.directory.grown and not self._leaves(n, requests)]
        self.directory.grown.clear()
        changed = False
        for name, census in self._ask_census({n: Ask(CENSUS, n, self.shard) for n in grown}).items() if grown else ():
            if isinstance(census, Failure) or census == self._known.get(name):
                continue
            log.warning(
                "unfed: client %s now says it holds %d rows (%d before)", name, census.all, self._base(name).all
            )
            self._known[name], changed = census, True
            self._counts = {key: found for key, found in self._counts.items() if json.loads(key)[0] != name}
        if changed:
            self.clients = self._outlines()
            self.noted(self)
        return changed

    def _base(self, name: str) -> Census:
        """What a client holds before any request; nothing where it never said, or does not fit."""
        return NOTHING if name in self.refused else self._known.get(name, NOTHING)

    @property
    def known(self) -> Mapping[str, Census]:
        return self._known

    @property
    def order(self) -> tuple[str, ...]:
        """Everybody who ever took part, in the order in which answers are averaged."""
        return self._order

    def knows(self, name: str) -> bool:
        """Whether a client is connected, or was when this run began."""
        return name in self._order

    def allows(self, name: str, kind: str) -> bool:
        return kind in self._base(name).allow

    # --- requests -----------------------------------------------------------------------------------------------------

    def scoped(self, requests: Sequence[Request], gone: Sequence[Request] = ()) -> Roster:
        """Outlines under these requests; who alone can tell is asked."""
        self._check_names(requests)
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
        return Roster(outlines, requests, gone, dropped)

    def holds(self, request: Request, gone: Sequence[Request]) -> bool:
        """Whether a row that a request asks for is still in, as far as can be told: who is away is taken to hold it."""
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
            for name in request.clients:
                self.directory.check_target(name)
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
        for name, found in self._ask_census(asks).items() if asks else ():
            if not isinstance(found, Failure):
                self._counts[self._key(name, requests, gone)] = found

    def _unsaid(self, name: str, requests: Sequence[Request], gone: Sequence[Request]) -> bool:
        """Whether only the client can tell which of its rows are meant, and has not told yet (it may be away)."""
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
        return tuple(self._outline(name, self._base(name)) for name in self._order)

    def _outline(self, name: str, census: Census) -> ClientData:
        places = torch.arange(census.all + census.val)
        source = Elsewhere(name, len(places), self.shape, self.classes)
        forget = places < census.forget
        return ClientData(name, source, places, places[: census.all], places[census.all :], forget)

    # --- what jobs ask a world for ------------------------------------------------------------------------------------

    def engine(self, clients: Mapping[str, ClientData]) -> Engine:
        if isinstance(clients, Roster):
            known = {n: count for n, count in clients.dropped.items() if self._base(n) is not NOTHING}
            like = self.template.like
            return Flower(self.directory, self.shard, like, clients.requests, clients.gone, known, clients)
        return Flower(self.directory, self.shard, self.template.like, clients=clients)

    def evaluator(self, requests: Sequence[Request]) -> RemoteEvaluator:
        return RemoteEvaluator(self, self.scoped(requests), requests)

    def public(self, clients: Mapping[str, ClientData]) -> ClientData | None:
        """Unlabelled data that the server holds itself; clients' rows cannot stand in for it here."""
        return self._public

    def _module(self, seed: int) -> torch.nn.Module:
        model = self.config.model
        return build(model.name, shape=self.shape, classes=self.classes, seed=seed, **model.options)


def _misfit(census: Census, shape: tuple[int, ...], classes: int) -> str:
    """Why a client cannot take part; empty if it can."""
    if census.shape != shape:
        return f"its samples have the shape {census.shape}, the federation's {shape}"
    if census.classes > classes:
        return f"it holds {census.classes} classes, the federation's model tells {classes} apart"
    return ""
