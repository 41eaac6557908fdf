"""The server of a job: it asks clients, refuses bad updates, averages the others, counts the cost.

    P_r ← participants(r) of the retained clients
    θ   ← average(θ, train(plan(r), θ, P_r))           each k ∈ P_r trains one epoch on D_r^k

What a method sees of it is `federation/protocol.py`. It never sees data: it asks the engine, which asks the clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from unfed import rng
from unfed.client.plan import Measure, Phase, Plan
from unfed.data import ClientData
from unfed.engines.base import Block, Context, Engine, Refusal, Traffic, context_of, length_of
from unfed.engines.sequential import Sequential
from unfed.errors import Refused, Unanswered, UnfedError
from unfed.federation.aggregate import CheckedUpdate
from unfed.federation.history import FinishedRound, History, Recorder
from unfed.federation.robust import Lengths, Usual, kind_of
from unfed.federation.state import OPTIMISER, STAGE, Ledger, Settings, State, Transfer
from unfed.model.functional import Flops, Template
from unfed.model.params import Params, tensor_bytes

AsItWas = Callable[[Sequence[Mapping[str, Any]]], Engine]
"""Who reaches the clients as they were under these requests (as JSON), to repeat a round that is over."""


@dataclass(frozen=True)
class Setup:
    """What a server knows of its surroundings, whatever it is asked to do."""

    template: Template
    fresh: Callable[[int], Params]
    """Makes a new initialisation from a seed."""
    forward_flops: Flops
    """What one row costs on its way through the model."""
    wired: bool = True
    """Whether clients are elsewhere: without a wire (one model, one data set) no byte is counted."""
    as_it_was: AsItWas | None = None
    """None where no round can be repeated."""


@dataclass(frozen=True)
class Members:
    """The clients: they change when a further request marks more rows, or a client joins."""

    clients: Mapping[str, ClientData]
    engine: Engine
    """Who reaches them."""
    public: ClientData | None = None
    """Unlabelled data of the server's own."""


@dataclass(frozen=True)
class _Asking:
    """How a server asks, where it is not as always."""

    transfer: Transfer = field(default_factory=Transfer)
    patient: bool = False
    engine: Engine | None = None
    optimiser: Mapping[str, Params] | None = None


class JobServer:
    """The server that a method meets. It serves one job: a training, or one method on one request."""

    def __init__(
        self,
        setup: Setup,
        members: Members,
        params: Params,
        settings: Settings,
        seed: int,
        history: History | None = None,
    ) -> None:
        self.template, self.fresh, self.settings, self.seed = setup.template, setup.fresh, settings, seed
        self.params = params
        self.ledger = Ledger()
        self._setup, self._history = setup, history
        self.recorders: dict[str, Recorder] = {}
        """Who keeps history of the rounds from now on, by label."""
        self.scope: tuple[Mapping[str, Any], ...] = ()
        """The requests in force, as JSON: what a recorded round is replayed under."""
        self.asked: dict[int, list[str]] = {}
        self.refusals: list[Refusal] = []
        self.usual: Usual = {}
        """How long updates were in earlier rounds of this job."""
        self.aside: frozenset[str] = frozenset()
        """Clients that are not asked any more in this job: they spoiled a round."""
        self.keeps = False
        """Whether the updates that are averaged are kept until the next average."""
        self.kept: tuple[Params, list[Block]] | None = None
        self.attempt = 0
        """How often the round at hand has failed for want of answers: who did not answer then may answer now."""
        self._public: ClientData | None = None
        self.look_at(members)

    def look_at(self, members: Members) -> None:
        """Note which client holds what; called again when a request marks more rows, or a client joined."""
        clients, self.engine = members.clients, members.engine
        self._public = members.public or self._public
        self._place = {name: place for place, name in enumerate(clients)}.__getitem__
        self.clients: Sequence[str] = tuple(n for n, c in clients.items() if c.holds("all"))
        self._retained = tuple(n for n, c in clients.items() if c.holds("retain"))
        self.owners: Sequence[str] = tuple(n for n, c in clients.items() if c.holds("forget"))
        self.leave_out(self.aside)
        if not self._retained:
            raise UnfedError("Every client would be forgotten, so no client is left to train; ask for fewer.")

    def leave_out(self, clients: Iterable[str]) -> None:
        """Ask these clients for nothing more in this job, but for what they themselves asked to forget."""
        self.aside = frozenset(clients)
        self.retained: Sequence[str] = tuple(name for name in self._retained if name not in self.aside)

    # --- what a plan is made of -----------------------------------------------------------------------------------

    @property
    def base(self) -> Phase:
        """The configured phase: cross-entropy on retained data, one local epoch."""
        return self.settings.phase

    def plan(self, round: int, *phases: Phase, keep: bool = False) -> Plan:
        """The plan of round r; without phases the base phase at the round's learning rate."""
        return Plan(self.seed, round, phases or (self.scheduled(self.base, round),), keep)

    def scheduled(self, phase: Phase, round: int, stage: Sequence[int | None] = (0, None)) -> Phase:
        """The phase at the learning rate of round r, where the schedule goes over these rounds."""
        first, last = stage[0] or 0, stage[1] or self.settings.rounds
        rate = self.settings.schedule.rate(phase.optimiser.lr, round - first, last - first)
        return phase.with_optimiser(lr=rate)

    def init(self, purpose: str = "init") -> Params:
        """A fresh random initialisation, a function of this job's seed."""
        return self.fresh(rng.key(self.seed, purpose))

    @property
    def history(self) -> History:
        """What this job's method recorded on the way to `params`."""
        if self._history is None:
            raise UnfedError("No history came with this job; record it with training.record and train again.")
        return self._history

    # --- asking ---------------------------------------------------------------------------------------------------

    def participants(self, round: int, among: Sequence[str]) -> tuple[str, ...]:
        """Who is asked in round r: a seeded share of the clients, in the federation's order."""
        if self.settings.participation >= 1.0:
            return tuple(among)
        count = max(1, round_half_up(self.settings.participation * len(among)))
        picked = rng.first(rng.key(self.seed, "participants", round), len(among), count)
        return tuple(among[i] for i in picked.tolist())

    def train(
        self,
        plan: Plan,
        params: Params,
        clients: Sequence[str],
        context: Context | None = None,
        *,
        transfer: Transfer = Transfer(),  # noqa: B008  (frozen)
        patient: bool = False,
    ) -> Iterator[Block]:
        """Ask clients to run a plan.

        What cannot be averaged is refused and named; below the quorum the round fails.

        A `patient` server waits for every answer: a leaver's own phase cannot go on without the leaver.
        """
        return self._train(plan, params, clients, context or {}, _Asking(transfer, patient))

    def _train(
        self, plan: Plan, params: Params, clients: Sequence[str], context: Context, how: _Asking
    ) -> Iterator[Block]:
        transfer, engine = how.transfer, how.engine or self.engine
        asked = sorted(clients, key=self._place)
        self.asked.setdefault(plan.round, []).extend(asked)
        contexts = [c for name in asked for n, c in context_of(context, name).items() if n not in transfer.seeded]
        down = len(asked) * tensor_bytes(params) + sum(map(tensor_bytes, contexts))
        self._sent(engine, transfer.down * len(asked), down)
        answering = [name for name in asked if how.patient or not self._drops_out(name, plan.round)]
        there = set(answering)
        refused = [Refusal(plan.round, name, "it did not answer") for name in asked if name not in there]
        accepted, first = 0, list[Block]()
        # Where one place holds all data, that place decides.
        times = self.settings.robust.refuse_above if self._setup.wired else 0.0
        lengths = Lengths(times, self.usual.get(kind_of(plan), ()))
        for found in _checked(engine.train(plan, params, answering, context, how.optimiser), params, plan.round):
            if isinstance(found, Refusal):
                refused.append(found)
                continue
            block = found.block
            self.ledger.worked(self._setup.forward_flops, sum(block.trained), sum(block.forwarded))
            self._sent(engine, transfer.up * len(block.clients), tensor_bytes(block.params))
            good, bad = found.result()
            lengths.add(found)
            refused += bad
            if not lengths.known:
                first.append(good)  # judged once all are there
                continue
            good, bad = lengths.within(good, plan.round, lengths.limit)
            refused += bad
            accepted += len(good.clients)
            if good.clients:
                yield good
        limit = lengths.limit
        for block in first:
            good, bad = lengths.within(block, plan.round, limit)
            refused += bad
            accepted += len(good.clients)
            if good.clients:
                yield good
        self.refusals += refused
        if how.engine is None and (usual := lengths.usual()):  # a round that is repeated says nothing of this job
            self.usual[kind_of(plan)] = usual
        self._settle(engine)
        self._check_quorum(plan.round, asked, accepted, refused)

    def _check_quorum(self, round: int, asked: Sequence[str], accepted: int, refused: Sequence[Refusal]) -> None:
        """Refuse to go on with too few answers; where one place holds all data, with none."""
        need = max(1, math.ceil(self.settings.quorum * len(asked)))
        if accepted >= need:
            return
        if not self._setup.wired:
            reason = refused[0].reason.removeprefix("its update ") if refused else "holds no row to train on"
            raise UnfedError(
                f"After epoch {round} the model {reason}, because its loss is not finite; lower the learning rate (or"
                " the method's own strength)."
            )
        why = "; ".join(f"client {r.client}: {r.reason}" for r in refused[:3]) or "no client was asked"
        raise (Unanswered if asked else Refused)(
            f"Round {round} got {accepted} usable updates of {len(asked)} asked, the quorum is {need} ({why});"
            " mend these clients or lower training.quorum, then resume."
        )

    def replay(
        self, plan: Plan, params: Params, clients: Sequence[str], scope: Sequence[Mapping[str, Any]]
    ) -> Iterator[Block]:
        """Have clients repeat a recorded round, on the rows they held in it.

        The repetition is bit-equal, because draws have addresses.

        It stands for a model that a client with a memory would simply still have, so it counts in `flops` and
        `wire_bytes` and not among the paper's transfers.
        """
        if self._setup.as_it_was is None:
            raise UnfedError("This server cannot repeat a round that is over; run the method inside a run folder.")
        engine = self._setup.as_it_was(scope)
        how = _Asking(Transfer(down=0, up=0), patient=True, engine=engine)
        return self._train(plan, params, clients, {}, how)

    def train_at_home(self, plan: Plan, params: Params, context: Mapping[str, Params]) -> Params:
        """Run a plan on the server's own unlabelled data: one more client, without messages."""
        if self._public is None:
            raise UnfedError("The server holds no data of its own; set partition.validation above 0.")
        home = Sequential(self.template, {self._public.name: self._public})
        (block,) = home.train(plan, params, [self._public.name], context)
        self.ledger.worked(self._setup.forward_flops, sum(block.trained), sum(block.forwarded))
        return block.of(0)

    def measure(self, what: Measure, params: Params, clients: Sequence[str]) -> dict[str, Tensor]:
        """Sums over the clients' views.

        Gradients cost what a training pass costs; counting correct answers is free.
        """
        total: dict[str, Tensor] = {}
        for answer in self.engine.measure(what, params, clients):
            if isinstance(answer, Refusal):
                # A sum over some of those who were asked would pass for the sum over all of them.
                raise Unanswered(f"Client {answer.client} did not answer with its {what.what}: {answer.reason}.")
            _, sums = answer
            total = {n: total[n] + t if total else t for n, t in sums.items()}
            if what.what != "correct":
                self.ledger.worked(self._setup.forward_flops, int(sums["count"]))
                self._sent(self.engine, 2, tensor_bytes(params) + tensor_bytes(sums))
        self._settle(self.engine)
        return total

    def average(self, params: Params, updates: Iterable[Block]) -> Params:
        """θ + Σ p_k (θ_k − θ), in the federation's order whatever order the answers came in."""
        return self._combined(params, self.settings.robust.entering(params, self._in_order(updates))[0])

    def _combined(self, params: Params, updates: list[Block]) -> Params:
        self.kept = (params, updates) if self.keeps else None
        return self.settings.robust.combined(params, updates)

    def _in_order(self, updates: Iterable[Block]) -> list[Block]:
        return sorted(updates, key=lambda block: self._place(block.clients[0]))

    def _record(self, plan: Plan, params: Params, updates: Sequence[Block], factors: Mapping[str, float]) -> None:
        for recorder in self.recorders.values():
            recorder(FinishedRound(plan, params, updates, self.template.trainable, self.scope, factors))

    def fedavg(self, params: Params, plan: Plan, clients: Sequence[str], context: Context | None = None) -> Params:
        """One round: train, then average."""
        return self.average(params, self.train(plan, params, clients, context))

    def recover(self, state: State) -> State:
        """The round of Algorithm 1, lines 11 to 14: FedAvg over the retained data of those who take part."""
        return self.advance(state, self.participants(state.round + 1, self.retained))

    def advance(
        self,
        state: State,
        clients: Sequence[str],
        *phases: Phase,
        context: Context | None = None,
        transfer: Transfer = Transfer(),  # noqa: B008  (frozen)
    ) -> State:
        """One round further.

        These clients run these phases (without any, the base phase) at the round's rate.
        """
        r, stage = state.round + 1, state.numbers.get(STAGE, (0, None))
        scheduled = tuple(self.scheduled(phase, r, stage) for phase in phases or (self.base,))
        plan = self.plan(r, *scheduled, keep=self.settings.keep)
        if not self.settings.keep:
            robust, start = self.settings.robust, state.params
            answers = [*self.train(plan, start, clients, context, transfer=transfer)]
            updates, factors = robust.entering(start, self._in_order(answers))
            if not context:  # a round with context could not be repeated from its plan alone
                self._record(plan, start, updates, factors)
            return replace(state, params=self._combined(start, updates), round=r)
        (name,) = clients  # only one place can go on with its own optimiser
        kept = {name: state.tensors[OPTIMISER]} if OPTIMISER in state.tensors else None
        (block,) = self._train(plan, state.params, clients, context or {}, _Asking(optimiser=kept))
        # Taken as it is: θ + (θ_1 − θ) would round, and a centralised run would not be the plain loop any more.
        tensors = {**state.tensors, OPTIMISER: {n: t[0] for n, t in (block.optimiser or {}).items()}}
        return replace(state, params=block.of(0), round=r, tensors=tensors)

    def _sent(self, engine: Engine, models: int, wire_bytes: int) -> None:
        """Count what crosses: models by the paper's rule, tensors where the engine does not itself."""
        if self._setup.wired:
            self.ledger.sent(models, self.template.parameters, 0 if hasattr(engine, "settle") else wire_bytes)

    def _settle(self, engine: Engine) -> None:
        """Take over what real messages carried."""
        settle: Callable[[], Traffic] | None = getattr(engine, "settle", None)
        if settle is not None:
            crossed = settle()
            self.ledger.wire_bytes += crossed.wire_bytes
            self.ledger.serialised_bytes += crossed.serialised_bytes

    def _drops_out(self, client: str, round: int) -> bool:
        if self.settings.drop_out == 0.0:
            return False
        again = ("attempt", self.attempt) if self.attempt else ()
        key = rng.as_key(rng.key(self.seed, "drop-out", round, client, *again))
        return bool(rng.chance(rng.words(key, torch.zeros((), dtype=torch.int64)), self.settings.drop_out))


def _checked(answers: Iterator[Block | Refusal], like: Params, round: int) -> Iterator[CheckedUpdate | Refusal]:
    """What comes back, under examination.

    An answer that a device is still working on is handed on when the next client is at work there, so that the device
    never waits for the server.
    """
    waiting = size = None
    for answer in answers:
        if size is None and not isinstance(answer, Refusal) and answer.moved is None:
            size = length_of(like)  # only now: the device is busy with the clients until then
        found = answer if isinstance(answer, Refusal) else CheckedUpdate(answer, like, round, size)
        if waiting is not None:
            yield waiting
        waiting = found if isinstance(found, CheckedUpdate) and found.event is not None else None
        if waiting is None:
            yield found
    if waiting is not None:
        yield waiting


def round_half_up(value: float) -> int:
    """3.5 → 4, also where Python's banker's rounding would not."""
    return math.floor(value + 0.5)
