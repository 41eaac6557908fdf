"""What attacks look at (`Scene`), and how they fit a few tensors of a model on a few rows (`fit`).

A scene is a functional model and views of data, nothing else: the same measurements run on a laptop, on CUDA, and over
a population of models. What cannot be measured says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from unfed import rng
from unfed.client.optimiser import update
from unfed.client.plan import Optimiser
from unfed.client.scores import Scores, Way, called, mean_gradient, score
from unfed.client.step import gradients
from unfed.data import Source
from unfed.engines.stack import mappable_attention
from unfed.measures.attacks import try_membership_inference
from unfed.model.functional import Template
from unfed.model.layers import weights_of
from unfed.model.networks import head_of
from unfed.model.params import Params
from unfed.values import Value, not_measured

# --- what an attacker and a judge look at: rows, and the numbers of a model on them -----------------------------------


NO_FORGET = not_measured("no forgotten row is there to be scored")
NO_TEST = not_measured("no held-out data")
NO_BACKDOOR = not_measured("no data was poisoned")


@dataclass(frozen=True, eq=False)
class View:
    """Some rows of a source."""

    source: Source
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def some(self, count: int, seed: int) -> View:
        """At most `count` of the rows: the first of an order that the seed draws."""
        return View(self.source, self.rows[rng.order(seed, len(self.rows))[:count].to(self.rows.device)])

    def tensors(self) -> tuple[Tensor, Tensor]:
        """(x, y) as evaluation sees them."""
        return self.source.fetch(self.rows, None)


@dataclass(frozen=True, eq=False)
class Scene:
    """A functional model, the data around one request, and where fresh layers come from."""

    template: Template
    retain: View
    forget: View
    test: View | None
    backdoor: View | None
    fresh: Callable[[int], Params]
    """The model's own initialisation under a seed."""
    seed: int = 0
    """Of the attacker's draws and of the membership attack."""
    batch: int = 1024
    stack: bool = False
    """Whether fits of a grid go as one stack: where the batched engine takes the network, it can."""
    way: Way = called
    """How the logits of a look are computed: as the run's own evaluation computes them."""
    classes: tuple[int, ...] = ()
    """The classes that were asked to leave."""

    def numbers(self, params: Params) -> dict[str, Any]:
        """Retain, Forget, Test, MIA and backdoor of a model, and of how many rows Forget and Test are."""
        forget, test = self._scores(params, self.forget), self._scores(params, self.test)
        mia: Value = NO_TEST if test is None else NO_FORGET
        if forget is not None and len(forget) and test is not None:
            mia = try_membership_inference(forget.loss, test.loss, seed=self.seed)
        rows = {name: len(seen) for name, seen in (("forget", forget), ("test", test)) if seen is not None}
        retain = self._scored(params, self.retain).accuracy
        return {"retain": retain, **self.quick(params, forget, test), "mia": mia, "rows": rows}

    def forgotten(self, params: Params) -> Value:
        """Forget alone."""
        seen = self._scores(params, self.forget)
        return seen.accuracy if seen is not None and len(seen) else NO_FORGET

    def quick(self, params: Params, forget: Scores | None = None, test: Scores | None = None) -> dict[str, Value]:
        """Forget, Test and backdoor alone: what a grid of attacks is judged by."""
        forget = forget or self._scores(params, self.forget)
        test = test or self._scores(params, self.test)
        stamped = self._scores(params, self.backdoor)
        return {
            "forget": forget.accuracy if forget is not None and len(forget) else NO_FORGET,
            "test": NO_TEST if test is None else test.accuracy,
            "backdoor": NO_BACKDOOR if stamped is None else stamped.accuracy,
        }

    def logits(self, params: Params, view: View) -> tuple[Tensor, Tensor]:
        """(logits, labels) of a view's rows, on the CPU in double."""
        return self._rows(params, view, self.way)

    def features(self, params: Params, view: View) -> tuple[Tensor, Tensor]:
        """(what enters the head, labels) of a view's rows, the same way."""
        return self._rows(params, view, lambda net, x: net.features(x).flatten(1))

    def _rows(self, params: Params, view: View, way: Way) -> tuple[Tensor, Tensor]:
        net, found = self.template.bind(params), []
        with torch.no_grad():
            for rows in torch.split(view.rows, self.batch):
                x, y = view.source.fetch(rows, None)
                found.append((way(net, x).double().cpu(), y.cpu()))
        empty = torch.empty(0, view.source.classes, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
        values, labels = zip(*found, strict=True) if found else ((part,) for part in empty)
        return torch.cat(tuple(values)), torch.cat(tuple(labels))

    def read_as(self, params: Params, view: View, target: int) -> float:
        """The share of a view's rows that are read as one class, in percent."""
        return 100.0 * float((self._scored(params, view).predicted == target).double().mean())

    def retain_loss(self, params: Params) -> float:
        """Mean loss on D_r."""
        return self._scored(params, self.retain).mean_loss

    def hidden(self) -> tuple[str, ...]:
        """The convolution and dense weights in front of the head, from the input on."""
        head = head_of(self.template.module)
        return tuple(n for n in weights_of(self.template.module) if n != head and not n.startswith(f"{head}."))

    def gradient(self, params: Params, view: View) -> Params:
        """∇ of the mean loss on a view, in eval mode."""
        return mean_gradient(self.template, params, view.source, view.rows, self.batch)

    def _scores(self, params: Params, view: View | None) -> Scores | None:
        return None if view is None else self._scored(params, view)

    def _scored(self, params: Params, view: View) -> Scores:
        return score(self.template, params, view.source, view.rows, self.batch, self.way)


# --- fit a few tensors of a model on a few rows: what realign, resurface and relearn have in common -------------------


ADAM = Optimiser(rule="adam", lr=0.02, decay=0.0)
STACKED_NUMBERS = 400_000_000  # a stack holds its models, their gradients and two moments of each
Pool = tuple[Tensor, Tensor]
Looks = Iterator[tuple[int, list[Params]]]


@dataclass(frozen=True, eq=False)
class FitTask:
    """One fit: where it starts, what is free, on which rows of the pool."""

    start: Params
    free: Params
    rows: Tensor


@dataclass(frozen=True)
class Budget:
    """How long a fit takes and when it is looked at; the same for every model that is compared."""

    stops: tuple[int, ...] = (50, 100)
    optimiser: Optimiser = ADAM
    batch: int = 32
    seed: int = 0


def put_in(start: Params, free: Params) -> Params:
    """The model with the free tensors in their places."""
    return start | free


@dataclass(frozen=True, eq=False)
class Problem:
    """What is minimised.

    It is the loss of the model that the free tensors make, and what they are punished for.
    """

    template: Template
    build: Callable[[Params, Params], Params] = put_in
    penalty: Callable[[Params], Tensor] | None = None
    stack: bool = False

    def loss(self, start: Params, free: Params, x: Tensor, y: Tensor, key: Tensor) -> tuple[Tensor, Params]:
        """The loss on a batch, and the running statistics after it."""
        state = {name: start[name].clone() for name in self.template.state}  # norm layers write into these
        net = self.template.bind(self.build(start | state, free), key=key if self.template.batch_normed else None)
        value = F.cross_entropy(net.as_in_training()(x), y)
        return value if self.penalty is None else value + self.penalty(free), state


def fit(problem: Problem, tasks: Sequence[FitTask], pool: Pool, budget: Budget) -> Looks:
    """(steps, the models of all tasks) at every stop, by whichever way suits the network.

        z ← z − η · direction(∇_z [ mean CE(θ(z); batch) + penalty(z) ])           θ(z) = build(start, z)

    z are some of the model's own tensors, or matrices that are multiplied into them; all else is frozen. Networks with
    batch statistics are fitted with them, others in eval mode. `one` is the readable reference; `stacked` takes all
    tasks as one stack and is equal to it, on a GPU in seconds instead of minutes.
    """
    numbers = len(tasks) * sum(t.numel() for t in tasks[0].start.values())
    alike = len({min(budget.batch, len(task.rows)) for task in tasks}) == 1  # fewer rows than a batch: all of them
    way = stacked if problem.stack and len(tasks) > 1 and alike and numbers <= STACKED_NUMBERS else one_by_one
    return way(problem, tasks, pool, budget)


def batches(rows: Tensor, budget: Budget) -> Tensor:
    """[steps, batch] positions of the pool.

    They are shuffled passes over the rows, one after the other, cut into batches.
    """
    size = min(budget.batch, len(rows))
    needed, turns = size * max(budget.stops), 0
    order: list[Tensor] = []
    while turns * len(rows) < needed:
        order.append(rng.order(rng.key(budget.seed, "undo", "pass", turns), len(rows)))
        turns += 1
    return rows[torch.cat(order)[:needed].to(rows.device)].reshape(-1, size)


def one_by_one(problem: Problem, tasks: Sequence[FitTask], pool: Pool, budget: Budget) -> Looks:
    """Every task by itself, all of them up to the same stop, so that their models are seen together."""
    for looks in zip(*(one(problem, task, pool, budget) for task in tasks), strict=True):
        yield looks[0][0], [params for _, params in looks]


def one(problem: Problem, task: FitTask, pool: Pool, budget: Budget) -> Iterator[tuple[int, Params]]:
    """The readable reference: one fit, (steps, its model) at every stop."""
    free, start, moments = dict(task.free), dict(task.start), _moments(task.free)
    for number, places in enumerate(batches(task.rows, budget), 1):
        leaves = {name: t.detach().requires_grad_() for name, t in free.items()}
        with torch.enable_grad():
            value, state = problem.loss(start, leaves, pool[0][places], pool[1][places], _key(budget, number, pool))
            grads = gradients(value, leaves)
        free, moments = update(budget.optimiser, {"params": free, "optimiser": moments}, grads, value.detach(), number)
        start |= {name: t.detach() for name, t in state.items()}
        if number in budget.stops:
            yield number, problem.build(start, free)


def stacked(problem: Problem, tasks: Sequence[FitTask], pool: Pool, budget: Budget) -> Looks:
    """The same for all tasks at once.

    Their free tensors must have the same names, their batches the same size.
    """
    free, start = _stack([t.free for t in tasks]), _stack([t.start for t in tasks])
    moments, everywhere = _moments(free), (0, 0, 0, 0, None)
    for number, at in enumerate(torch.stack([batches(task.rows, budget) for task in tasks], dim=1), 1):
        leaves = {name: t.detach().requires_grad_() for name, t in free.items()}
        with torch.enable_grad(), mappable_attention(pool[1]):
            key = _key(budget, number, pool)
            values, state = vmap(problem.loss, everywhere)(start, leaves, pool[0][at], pool[1][at], key)
            grads = gradients(values.sum(), leaves)
        free, moments = update(budget.optimiser, {"params": free, "optimiser": moments}, grads, values.detach(), number)
        start = start | {name: t.detach() for name, t in state.items()}
        if number in budget.stops:
            yield number, [problem.build(_member(start, k), _member(free, k)) for k in range(len(tasks))]


def _key(budget: Budget, number: int, pool: Pool) -> Tensor:
    """What a step's dropout is drawn from, where a network has some and trains with batch statistics."""
    return torch.tensor(rng.key(budget.seed, "undo", "mask", number), device=pool[0].device)


def _moments(free: Params) -> Params:
    zeros = {f"{what}/{n}": torch.zeros_like(t) for what in ("momentum", "mean", "square") for n, t in free.items()}
    return zeros | {f"count/{n}": t.new_zeros(()) for n, t in free.items()}


def _stack(params: Sequence[Params]) -> Params:
    return {name: torch.stack([one[name] for one in params]) for name in params[0]}


def _member(params: Params, k: int) -> Params:
    return {name: t[k] for name, t in params.items()}
