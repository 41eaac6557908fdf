"""Fit a few tensors of a model on a few rows: what realign, resurface and relearn have in common.

    z ← z − η · direction(∇_z [ mean CE(θ(z); batch) + penalty(z) ])           θ(z) = build(start, z)

z are some of the model's own tensors, or matrices that are multiplied into them; all else is frozen. A network with
batch statistics is fitted with them (the running ones follow), every other in eval mode, and all in the precision in
which they were trained. Batches are cut from one endless sequence of shuffled passes, so every task of a grid takes the
same number of equally large steps.

`one` is the readable reference. `stacked` takes the tasks of a grid as one stack, tensors and rows alike, and is equal
to it; on a GPU that is the difference between minutes and seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from unfed import rng
from unfed.client.optimiser import update
from unfed.client.plan import Optimiser
from unfed.client.step import gradients
from unfed.engines.vectorised import mappable_attention
from unfed.model.functional import Template
from unfed.model.params import Params

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
    """(steps, the models of all tasks) at every stop, by whichever way suits the network."""
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
