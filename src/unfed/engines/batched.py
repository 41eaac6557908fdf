"""All clients of a round as one model: the one step, mapped over a stack of clients.

    loss     = Σ_c f_c(θ_c)          `vmap` of the step's first half; one autograd pass gives every client's gradient
    carry    = advance(carry, ∇)     `vmap` of its second half; for plain SGD the same lines serve the stack as they are

Clients are sorted by their number of steps, so that the stack shrinks as they finish and nothing is computed in vain
(padding every client to the longest leaves 23 % useful work at 100 clients under Dirichlet 0.1). A client that a rule
stopped is frozen by `where`. Every draw is the hash that the client would draw alone, so this engine and the
sequential one take the same batches, masks and labels; tests hold them equal to 1e-9 in float64.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from unfed.client import objectives
from unfed.client.batch import bounds, covered
from unfed.client.plan import Measure, Phase, Plan
from unfed.client.scores import score
from unfed.client.step import Carry, gradients, mean
from unfed.client.step import start as begin
from unfed.data import ClientData
from unfed.engines.base import Block, Context, Visit, contexts, filled, parted, spread
from unfed.engines.compiled.capture import Untraceable
from unfed.engines.compiled.recorded import Replay, recordable
from unfed.engines.stack import (
    BatchDealer,
    Integers,
    PaddedRows,
    PhaseSteps,
    StackedPhase,
    at,
    cut,
    expand,
    join,
    mappable_attention,
    stack,
    stacked_step,
)
from unfed.errors import UnfedError, UnfedWarning
from unfed.model.functional import Template
from unfed.model.params import Params, tensor_bytes

# Memory for the activations and copies of one stack. A constant, not a reading of the machine: the number of clients
# in a stack changes the last bits of a result, so it must be the same when a run is resumed elsewhere. More gains
# nothing: the CPU is busy with 30 clients, an H200 with 128.
BUDGET_BYTES = {"cpu": 1 << 30, "cuda": 8 << 30}

# More clients of several federations than this gain nothing in one stack (two x86-64 cores, digits: 1.2 times one after
# another from 40 to 320 clients, a loss at 640, which leave the cache).
BUSY_CLIENTS = {"cpu": 96}

# Padded views of clients that were asked before, kept on the device up to this size.
HELD_BYTES = 1 << 28


class Batched:
    """Maps the one step over stacks of clients whose data lies on the device, a stack to a block."""

    name = "batched"

    def __init__(
        self,
        template: Template,
        clients: Mapping[str, ClientData],
        chunk: int | None = None,
        compile: bool | None = None,
    ) -> None:
        if template.draws_its_own:
            raise UnfedError(
                "The batched engine cannot run a model that draws its own random numbers; key them as nn.Dropout does,"
                ' or set engine.name to "sequential".'
            )
        if chunk is not None and chunk < 1:
            raise UnfedError(f"engine.chunk is a number of clients, at least 1, not {chunk}.")
        self._template, self._clients, self._chunk = template, clients, chunk
        self._device = template.device
        self._compile = self._device.type == "cuda" if compile is None else compile
        self._held: OrderedDict[tuple[object, ...], PaddedRows] = OrderedDict()
        self._held_bytes = 0
        self._kept_bytes: int | None = None

    def train(
        self,
        plan: Plan,
        params: Params,
        clients: Sequence[str],
        context: Context,
        optimiser: Mapping[str, Params] | None = None,
    ) -> Iterator[Block]:
        for names in self._stacks(plan, clients):
            yield self._visited([Visit(plan, params, names, context, optimiser)])[0]

    def train_together(self, visits: Sequence[Visit]) -> list[list[Block]]:
        """The blocks of several federations that ask at the same time.

        Those that ask for the same phases share stacks, each client starting from its own federation's model.
        """
        found: list[list[Block]] = [[] for _ in visits]
        for places in self._tables(visits):
            if len(places) == 1:
                own = visits[places[0]]
                found[places[0]] = list(self.train(own.plan, own.params, own.clients, own.context, own.optimiser))
                continue
            for place, block in zip(places, self._visited([visits[i] for i in places]), strict=True):
                found[place].append(block)
        return found

    def _visited(self, visits: Sequence[Visit]) -> list[Block]:
        """`visit`, operation by operation where this model's step cannot be compiled."""
        try:
            return self.visit(visits)
        except Untraceable as error:
            self._compile = False
            warnings.warn(
                f"this model's training step cannot be compiled ({error}), so it runs operation by operation; set"
                " engine.compile to false to do so from the start",
                UnfedWarning,
                stacklevel=4,
            )
            return self.visit(visits)

    def measure(
        self, what: Measure, params: Params, clients: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        for name in clients:
            self._resident(name)
        answer = self._scores if what.what == "correct" else self._gradients
        yield from answer(what, params, clients)

    # --- stacks -------------------------------------------------------------------------------------------------------

    def _resident(self, name: str) -> ClientData:
        client = self._clients[name]
        if not client.source.resident:
            raise UnfedError(
                f"The batched engine needs data on the device, but client {name!r} reads a data set of its own;"
                ' set engine.name to "sequential".'
            )
        return client

    def _stacks(self, plan: Plan, clients: Sequence[str]) -> list[tuple[str, ...]]:
        """Who is computed together: clients of one source, with similar numbers of steps."""
        steps = {name: 0 for name in clients}
        longest = 1
        for phase in plan.phases:
            counts = tuple(len(self._resident(name).view(phase.view)) for name in clients)
            longest = max([longest, *(min(n, phase.batch + 1) for n in counts)])
            for name, total in zip(clients, PhaseSteps.of(phase, counts).total, strict=True):
                steps[name] += int(total)
        sources: dict[int, list[str]] = {}
        for name in sorted(clients, key=lambda name: -steps[name]):
            sources.setdefault(id(self._clients[name].source), []).append(name)
        size, place = self.chunk(longest), {name: i for i, name in enumerate(clients)}
        cut = [group[i : i + size] for group in sources.values() for i in range(0, len(group), size)]
        return sorted((tuple(sorted(names, key=place.__getitem__)) for names in cut), key=lambda names: place[names[0]])

    def _tables(self, visits: Sequence[Visit]) -> list[list[int]]:
        """Which of these visits share a stack: whole federations that ask for the same, as many as fit."""
        alike: dict[Any, list[int]] = {}
        for place, visit in enumerate(visits):
            kind = self.kind(visit)
            alike.setdefault(place if kind is None else kind, []).append(place)
        found = []
        for places in alike.values():
            phases = visits[places[0]].plan.phases
            width = max([1, *(min(p.batch + 1, self._longest(visits[i], p)) for p in phases for i in places)])
            room = min(self.chunk(width), BUSY_CLIENTS.get(self._device.type, 1 << 30))
            found += filled(places, [len(visit.clients) for visit in visits], room)
        return found

    def kind(self, visit: Visit) -> tuple[object, ...] | None:
        """What visits that share a stack have in common; None of one that takes several stacks."""
        sources = {id(self._resident(name).source) for name in visit.clients}
        same = (visit.plan.phases, visit.plan.keep, tuple(visit.context), visit.optimiser is None)
        return (*same, *sources) if len(sources) == 1 else None

    def _longest(self, visit: Visit, phase: Phase) -> int:
        return max((len(self._clients[name].view(phase.view)) for name in visit.clients), default=0)

    def chunk(self, width: int) -> int:
        """How many clients share a stack, a function of the model and the batch's width alone."""
        if self._chunk is not None:
            return self._chunk
        if self._kept_bytes is None:
            self._kept_bytes = kept_bytes(self._template)
        # Weights, moments and gradients, each before and after; the backward pass holds about what the forward kept.
        copies = 6 * tensor_bytes(self._template.like)
        return max(1, BUDGET_BYTES[self._device.type] // (2 * width * self._kept_bytes + copies))

    def _view(self, names: tuple[str, ...], phase: Phase) -> PaddedRows:
        """The padded rows that these clients go over, kept: the next round may ask the same ones."""
        place = (phase.view, names)
        if place not in self._held:
            held = PaddedRows.of([self._clients[name] for name in names], phase, self._device)
            self._held[place] = held
            self._held_bytes += held.bytes
        self._held.move_to_end(place)
        while len(self._held) > 1 and self._held_bytes > HELD_BYTES:
            self._held_bytes -= self._held.popitem(last=False)[1].bytes
        return self._held[place]

    # --- training -----------------------------------------------------------------------------------------------------

    def visit(self, visits: Sequence[Visit]) -> list[Block]:
        """`step.visit` for a stack of clients, from one federation or several with the same phases."""
        asked = [(name, visit.plan) for visit in visits for name in visit.clients]
        names, plan, count = tuple(name for name, _ in asked), visits[0].plan, len(asked)
        start = visits[0].params if len(visits) == 1 else spread(visits)
        shared, own = contexts(visits, start)
        done = {phase.view: np.zeros(count, dtype=np.int64) for phase in plan.phases}
        trained, forwarded = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        carry = self._with_moments(visits)
        for number, phase in enumerate(plan.phases):
            if number and carry is not None:
                carry = self._begin_next(phase, carry)
            run = Replay if self._compile and recordable(phase) else Mapped
            at_work = run(self._template, phase, asked, self._view(names, phase), shared, own)
            carry, taken, marked = at_work(carry, done[phase.view])
            objective = objectives.find(phase.objective.name)
            rows = np.asarray(at_work.whole.samples(taken))
            trained += rows
            forwarded += objective.forwards * rows + objective.forget_forwards * np.asarray(marked)
            done[phase.view] += np.asarray(at_work.whole.passes(taken))
        stacked = expand(start, count) if carry is None else carry["params"] | carry["state"]
        block = Block(
            names,
            {name: stacked[name].contiguous() for name in self._template.like},
            tuple(covered(plan, self._clients[name]) for name in names),
            tuple(trained.tolist()),
            tuple(forwarded.tolist()),
            carry["optimiser"] if plan.keep and carry is not None else None,
        )
        return parted(block, visits)

    def _with_moments(self, visits: Sequence[Visit]) -> Carry | None:
        """The carry of a stack that goes on with moments of an earlier visit; None where no client has any."""
        moments = [None if v.optimiser is None else v.optimiser.get(name) for v in visits for name in v.clients]
        if not any(moments) or not visits[0].plan.phases:
            return None
        pairs = zip([visit.params for visit in visits for _ in visit.clients], moments, strict=True)
        carry: Carry = stack([begin(self._template, visits[0].plan.phases[0], one, own) for one, own in pairs])
        return carry

    def _begin_next(self, phase: Phase, carry: Carry) -> Carry:
        """The next phase goes on from where the last one left every client, moments included."""

        def one(params: Params, optimiser: Params) -> Carry:
            return begin(self._template, phase, params, optimiser)

        begun: Carry = vmap(one)(carry["params"] | carry["state"], carry["optimiser"])
        return begun

    # --- measuring ----------------------------------------------------------------------------------------------------

    def _scores(
        self, what: Measure, params: Params, clients: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        """Counts and losses. The model is the same for all, so rows of many clients share a batch."""
        views = [self._clients[name].view(what.view) for name in clients]
        for group in _by_source(self._clients, clients):
            mine = [views[i] for i in group]
            rows = torch.cat([self._clients[clients[i]].rows[p] for i, p in zip(group, mine, strict=True)])
            scores = score(self._template, params, self._clients[clients[group[0]]].source, rows, max(1024, what.batch))
            sizes = [len(p) for p in mine]
            correct, loss = (torch.split(column.double(), sizes) for column in (scores.correct, scores.loss))
            for i, right, lost in zip(group, correct, loss, strict=True):
                yield clients[i], {"count": _number(len(right)), "correct": right.sum(), "loss": lost.sum()}

    def _gradients(
        self, what: Measure, params: Params, clients: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        """Sums of batch gradients, mapped over the batches of one client after another."""
        weights = {name: params[name] for name in self._template.trainable}

        def loss(weights: Params, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            return mean(F.cross_entropy(self._template.bind(params | weights)(x), y, reduction="none"), weight)

        for name in clients:
            client = self._clients[name]
            positions = client.view(what.view)
            steps = bounds(len(positions), what.batch)
            sums = {n: torch.zeros_like(t) for n, t in weights.items()}
            size = self.chunk(what.batch + 1)
            for some in (steps[i : i + size] for i in range(0, len(steps), size)):
                wide = max(end - begin for begin, end in some)
                spans = torch.tensor(some)
                inside = torch.arange(wide) < (spans[:, 1] - spans[:, 0])[:, None]
                index = spans[:, :1] + torch.where(inside, torch.arange(wide), 0)
                x, y = client.source.fetch(client.rows[positions[index]], None)
                each = {n: t.detach().expand(len(some), *t.shape).requires_grad_() for n, t in weights.items()}
                with mappable_attention(x):
                    total = vmap(loss)(each, x, y, inside.to(x.device, x.dtype)).sum()
                for n, grad in gradients(total, each).items():
                    sums[n] += (grad if what.what == "gradient" else grad.square()).sum(0)
            yield name, {"count": _number(len(positions)), "batches": _number(len(steps)), **sums}


class Mapped(StackedPhase):
    """One phase on one stack, step by step."""

    def __call__(self, carry: Carry | None, done: Integers) -> tuple[Carry, list[int], list[int]]:
        """The carry after the phase, and the number of steps that each client took.

        It also gives the D_u rows that were seen, where those are counted.
        """
        total, phase = self.course.total, self.phase
        dealer = BatchDealer(self)
        step = stacked_step(self.template, phase, self.shared)
        active, finished = len(total), []
        device = self.held.rows.device
        carry, own, done = carry or self.begun(), self.own, done[self.order]
        if not self.sorted:
            carry, own = at(carry, self.places), at(own, self.places)
        taken = torch.zeros(active, dtype=torch.int64, device=device)
        marked = torch.zeros_like(taken)
        counts_marks = objectives.find(phase.objective.name).forget_forwards > 0
        dtype = next(iter(carry["params"].values())).dtype
        for t in range(int(total[0])):
            running = self.running(t)
            if running < active:
                finished.append(cut(carry, running, active))
                carry, own, active = cut(carry, 0, running), cut(own, 0, running), running
            dealer.turn(t, active, done)
            batch = dealer.batch(t, active, dtype)
            if phase.stop is not None:
                taken[:active] += carry["alive"]
            if counts_marks:
                marked[:active] += (batch["forget"] & carry["alive"][:, None]).sum(1)
            carry = step(carry, batch, own, t + 1)
            if phase.stop is not None and not bool(carry["alive"].any()):
                break
        carry = join([carry, *reversed(finished)])
        steps = taken if phase.stop is not None else torch.from_numpy(total).to(device)
        if not self.sorted:
            back = torch.argsort(self.places)
            carry, steps, marked = at(carry, back), steps[back], marked[back]
        return carry, steps.tolist(), marked.tolist()


def kept_bytes(template: Template) -> int:
    """Bytes that autograd keeps for one sample of a training step."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    weights = {n: template.like[n].detach().requires_grad_() for n in template.trainable}
    own = {t.untyped_storage().data_ptr() for t in template.like.values()}
    some = next(iter(weights.values()))
    x = template.blank(2)
    key = torch.zeros((), dtype=torch.int64, device=some.device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        state = {n: template.like[n].clone() for n in template.state}
        template.bind(weights | state, key=key)(x).square().sum()
    return sum(size for pointer, size in sizes.items() if pointer not in own) // 2 + x[0].numel() * x.element_size()


def _number(value: int) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


def _by_source(clients: Mapping[str, ClientData], names: Sequence[str]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(id(clients[name].source), []).append(place)
    return list(groups.values())
