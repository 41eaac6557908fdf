"""Which rows come in which step, what a batch of them holds, and the words that are drawn for it.

    passes over a view ─► steps of a pass ─► Batch(x, y, forget, draws)

Every word belongs to (seed, round, client, view, epoch, position or step), so any batch can be drawn again alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unfed import rng
from unfed.client.plan import VIEW_NUMBERS, Phase, Plan
from unfed.data import ClientData
from unfed.errors import UnfedError, listed
from unfed.model.functional import Net, Template
from unfed.model.params import Params


@dataclass(frozen=True)
class Batch:
    """Rows of one client, as an objective sees them."""

    x: Tensor
    y: Tensor
    forget: Tensor
    """Which rows belong to D_u."""
    draws: Tensor
    """One random word per row, for objectives that draw (random labels)."""
    weight: Tensor | None = None
    """One weight per row where rows are padded; None when every row counts."""


class Models:
    """The frozen context of a visit: models in eval mode by name, and raw tensors.

    `start` is always there. They are part of training, so they compute in its precision.
    """

    def __init__(self, template: Template, context: Mapping[str, Params]) -> None:
        self.template, self._context = template, context

    def __getitem__(self, name: str) -> Net:
        return self.template.bind(self.tensors(name)).as_in_training()

    def tensors(self, name: str) -> Params:
        if name not in self._context:
            raise UnfedError(f"The plan needs the context {name!r}, but only {listed(self._context)} came with it.")
        return self._context[name]


def bounds(n: int, batch: int) -> list[tuple[int, int]]:
    """Where the batches of n rows begin and end.

    A last batch of one row joins the one before it, because batch statistics of a single value do not exist.
    """
    starts = list(range(0, n, batch))
    if len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], n], strict=True)) if starts else []


@dataclass(frozen=True)
class Pass:
    """One pass over a view: which positions come in which step."""

    epoch: int
    steps: tuple[tuple[int, int], ...]


def passes(phase: Phase, n: int, done: int) -> Iterator[Pass]:
    """The passes of a phase over n rows.

    They are numbered after the `done` passes this plan already made over the view.
    """
    all_steps = bounds(n, phase.batch)[: phase.cap]
    if not all_steps:
        return
    if phase.steps is None:
        for epoch in range(phase.epochs):
            yield Pass(done + epoch, tuple(all_steps))
        return
    left, epoch = phase.steps, done
    while left > 0:
        yield Pass(epoch, tuple(all_steps[:left]))
        left -= len(all_steps)
        epoch += 1


def epoch_key(plan: Plan, client: str, view: str, epoch: int) -> int:
    """The key of one pass.

    The address holds the view, not the phase's number, so that a pass over the retained data draws the same whether or
    not another phase came before it.
    """
    return rng.fold(visit_key(plan, client, view), epoch)


def visit_key(plan: Plan, client: str, view: str) -> int:
    """The key of one client's visit to a view, for all its passes."""
    return rng.fold(rng.key(plan.seed, "train", plan.round, client), VIEW_NUMBERS[view])


@dataclass(frozen=True)
class Draws:
    """All words of one pass, drawn at once.

    They belong to (pass, position) or (pass, step), not to a batch.
    """

    augment: Tensor
    labels: Tensor
    dropout: Tensor

    @staticmethod
    def of(
        key: rng.Key,
        order: Tensor,
        steps: int,
        augment: bool = True,
        labels: bool = True,
        dropout: bool = True,
    ) -> Draws:
        """Words that are not read are not drawn; zeros stand in their place."""
        unread = torch.zeros_like(order)
        return Draws(
            rng.words(rng.fold(key, rng.AUGMENT), order) if augment else unread,
            rng.words(rng.fold(key, rng.LABEL), order) if labels else unread,
            rng.fold(rng.fold(key, rng.DROPOUT), torch.arange(steps))
            if dropout
            else torch.zeros(steps, dtype=torch.int64),
        )


def covered(plan: Plan, client: ClientData) -> int:
    """How many rows the plan's views cover: the client's weight in the average."""
    views = {phase.view for phase in plan.phases}
    if "all" in views:
        views -= {"retain", "forget"}
    return sum(len(client.view(view)) for view in views)
