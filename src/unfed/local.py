"""The one step, written for one client.

    g      = ∇ mean_w ℓ(θ; batch) + penalties           then clipped
    θ, s   = optimiser(θ, g, s)
    θ      = after-step maps(θ)                          l2 ball, hold, fuse
    alive  = stop rule                                   a stopped client is frozen by `where`, never by lr · 0

`step` is pure: a carry of tensors in, a carry of tensors out. The sequential engine calls it, the batched engine maps
it over a stack of clients; each passes its own way of taking a gradient. `visit` is the readable loop around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from unfed import objectives, perturb, rng
from unfed.data import ClientData
from unfed.data.prefetch import ahead
from unfed.errors import UnfedError, listed, nearest
from unfed.optimise import clip, norm, update
from unfed.params import Params
from unfed.plan import VIEWS, Phase, Plan, Term
from unfed.template import Net, Template

Carry = dict[str, Any]
"""`params` (trainable), `state` (buffers, frozen parameters), `optimiser`, `alive`, `loss`: nested dicts of tensors."""

Gradient = Callable[[Callable[[Params], tuple[Tensor, Any]], Params], tuple[Params, Any]]
"""Takes f(params) -> (value, rest) and params; gives (∇ value, rest), without the params that f does not read."""


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
    """The frozen context of a visit: models in eval mode by name, and raw tensors. `start` is always there."""

    def __init__(self, template: Template, context: Mapping[str, Params]) -> None:
        self._template, self._context = template, context

    def __getitem__(self, name: str) -> Net:
        return self._template.bind(self.tensors(name))

    def tensors(self, name: str) -> Params:
        if name not in self._context:
            raise UnfedError(f"The plan needs the context {name!r}, but only {listed(self._context)} came with it.")
        return self._context[name]


# --- rows -------------------------------------------------------------------------------------------------------------


def bounds(n: int, batch: int) -> list[tuple[int, int]]:
    """Where the batches of n rows begin and end. A last batch of one row joins the one before it, because batch
    statistics of a single value do not exist."""
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
    """The passes of a phase over n rows, numbered after the `done` passes this plan already made over the view."""
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
    """The key of one pass. The address holds the view, not the phase's number, so that a pass over the retained data
    draws the same whether or not another phase came before it."""
    visit = rng.key(plan.seed, "train", plan.round, client)
    return rng.fold(rng.fold(visit, VIEWS.index(view)), epoch)


def label_key(plan: Plan, phase: Phase, client: str) -> int | None:
    """The key of labels that are drawn once and for all; None where every pass draws its own."""
    return rng.key(plan.seed, "labels", client) if phase.objective.get("once", False) else None


@dataclass(frozen=True)
class Draws:
    """All words of one pass, drawn at once: they belong to (pass, position) or (pass, step), not to a batch."""

    augment: Tensor
    labels: Tensor
    masks: Tensor

    @staticmethod
    def of(
        key: rng.Key,
        order: Tensor,
        steps: int,
        augment: bool = True,
        labels: bool = True,
        masks: bool = True,
        label_key: rng.Key | None = None,
    ) -> Draws:
        """What nobody reads is not drawn; zeros stand in its place."""
        unread = torch.zeros_like(order)
        return Draws(
            rng.words(rng.fold(key, rng.AUGMENT), order) if augment else unread,
            rng.words(rng.fold(key, rng.LABEL) if label_key is None else label_key, order) if labels else unread,
            rng.fold(rng.fold(key, rng.DROPOUT), torch.arange(steps))
            if masks
            else torch.zeros(steps, dtype=torch.int64),
        )


def covered(plan: Plan, client: ClientData) -> int:
    """How many rows the plan's views cover: the client's weight in the average."""
    views = {phase.view for phase in plan.phases}
    if "all" in views:
        views -= {"retain", "forget"}
    return sum(len(client.view(view)) for view in views)


# --- the step ---------------------------------------------------------------------------------------------------------


def start(template: Template, phase: Phase, params: Params, optimiser: Params | None = None) -> Carry:
    """The carry at the beginning of a phase. `optimiser` goes on with moments that an earlier visit handed back."""
    weights = {name: params[name] for name in template.trainable}
    some = next(iter(weights.values()))
    zero = torch.zeros((), dtype=some.dtype, device=some.device)
    moments = ("momentum",) if phase.optimiser.rule == "sgd" else ("mean", "square")
    fresh = {f"{m}/{n}": torch.zeros_like(t) for m in moments for n, t in weights.items()}
    if phase.optimiser.rule == "adam":
        fresh |= {f"count/{n}": torch.zeros_like(zero) for n in weights}
    if phase.optimiser.plateau is not None:
        fresh |= {"plateau/best": zero + torch.inf, "plateau/bad": zero, "plateau/scale": zero + 1, "plateau/sum": zero}
    if optimiser is not None:
        fresh = {name: optimiser.get(name, value) for name, value in fresh.items()}
    return {
        "params": weights,
        "state": {name: params[name] for name in template.state},
        "optimiser": fresh,
        "alive": torch.ones((), dtype=torch.bool, device=some.device),
        "loss": zero,
    }


def step(
    template: Template,
    phase: Phase,
    carry: Carry,
    batch: Batch,
    key: Tensor,
    models: Models,
    number: int,
    gradient: Gradient,
) -> Carry:
    """Step `number` (from 1) of a phase: one gradient, one update, the maps, the stop rule."""
    loss = loss_of(template, phase, carry["state"], batch, key, models)
    grads, (state, value) = gradient(loss, carry["params"])
    return advance(phase, carry, grads, state, value, models, number)


def loss_of(
    template: Template, phase: Phase, state: Params, batch: Batch, key: Tensor, models: Models
) -> Callable[[Params], tuple[Tensor, tuple[Params, Tensor]]]:
    """The first half of the step, f(θ) = mean_w ℓ(θ; batch) + penalties, giving also the buffers afterwards.

    The halves are apart because a stack of clients takes one gradient for all: Σ_c f_c(θ_c) is differentiated by plain
    autograd around the mapped loss, which was measured twice as fast on digits as a gradient inside the map.
    """

    def loss(weights: Params) -> tuple[Tensor, tuple[Params, Tensor]]:
        # Running statistics are written in place by the norm layers: onto copies, so that the step stays pure.
        after = {name: t.clone() for name, t in state.items()}
        net = template.bind(weights | after, key=key, rows=batch.weight)
        objective = objectives.find(phase.objective.name)
        value = mean(objective.loss(net, batch, models, **dict(phase.objective.numbers)), batch.weight)
        for penalty in phase.penalties:
            value = value + PENALTIES[_known(penalty, PENALTIES, "penalty")](weights, penalty)
        return value, (after, value.detach())

    return loss


@torch.no_grad()
def advance(
    phase: Phase,
    carry: Carry,
    grads: Params,
    state: Params,
    value: Tensor,
    models: Models,
    number: int,
    lr: Tensor | None = None,
    mapped: bool = False,
) -> Carry:
    """The second half of the step: clip, update, maps, stop. `lr` stands for the phase's own rate where that must be a
    tensor, because a compiled step would otherwise be compiled anew for every rate of a schedule."""
    if phase.optimiser.clip is not None:
        grads = clip(grads, phase.optimiser.clip)
    weights, optimiser = update(phase.optimiser, carry["params"], grads, carry["optimiser"], value, number, lr, mapped)
    for rule in phase.after:
        if number % int(rule.get("every", 1)) == 0:
            weights = AFTER[_known(rule, AFTER, "after-step map")](weights, models, rule)
    after = carry | {"params": weights, "state": state, "optimiser": optimiser, "loss": value}
    return after if phase.stop is None else halt(phase.stop, carry, after, models)


def mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    """The mean over the rows that count."""
    return losses.mean() if weight is None else (losses * weight).sum() / weight.sum()


def halt(rule: Term, before: Carry, after: Carry, models: Models) -> Carry:
    """Apply the stop rule: `undo` throws the step away, `last` keeps it and stops there."""
    undo, last = STOPS[_known(rule, STOPS, "stop rule")](after, models, rule)
    finite = torch.isfinite(after["loss"]) & torch.isfinite(norm(after["params"]))
    keep = before["alive"] & finite & ~undo
    return select(keep, after, before) | {"alive": keep & ~last, "loss": after["loss"]}


def select(flag: Tensor, yes: Carry, no: Carry) -> Carry:
    """`yes` where the flag holds, else `no`, through the whole carry."""
    chosen: Carry = pytree.tree_map(lambda a, b: torch.where(flag, a, b), yes, no)
    return chosen


def _known(rule: Term, table: Mapping[str, object], what: str) -> str:
    if rule.name not in table:
        raise UnfedError(f"The {what} {rule.name!r} is not known; use {listed(table)}.{nearest(rule.name, table)}")
    return rule.name


# --- the rules a plan can name ----------------------------------------------------------------------------------------


def _number(value: object) -> float | Tensor:
    """A plan's number; a recorded step has it as a tensor, because it may change from round to round."""
    return value if isinstance(value, Tensor) else float(str(value))


PENALTIES: dict[str, Callable[[Params, Term], Tensor]] = {
    "l1": lambda weights, rule: _number(rule["alpha"]) * torch.stack([w.abs().sum() for w in weights.values()]).sum(),
}


def _ball(weights: Params, models: Models, rule: Term) -> Params:
    centre = models.tensors(str(rule["around"]))
    return perturb.ball(weights, {n: centre[n] for n in weights}, float(rule["radius"]))


def _hold(weights: Params, models: Models, rule: Term) -> Params:
    home = models.tensors(str(rule["of"]))
    if "mask" in dict(rule.numbers):
        return perturb.hold(weights, home, mask=models.tensors(str(rule["mask"])))
    return perturb.hold(weights, home, names=str(rule["names"]).split(","))


def _fuse(weights: Params, models: Models, rule: Term) -> Params:
    tensors = models.tensors(str(rule["donor"]))
    base, donor = weights, {n: tensors[n] for n in weights}
    if rule.get("order", "own_phase") != "own_phase":
        base, donor = donor, base
    return perturb.fuse(base, donor, float(rule["rho"]), str(rule["names"]).split(","))


AFTER: dict[str, Callable[[Params, Models, Term], Params]] = {"ball": _ball, "hold": _hold, "fuse": _fuse}


def _beyond(after: Carry, models: Models, rule: Term) -> tuple[Tensor, Tensor]:
    """Stop after the step that leads further than the (squared) distance from a model."""
    far = models.tensors(str(rule["of"]))
    distance = norm({n: w - far[n] for n, w in after["params"].items()}).square()
    return torch.zeros_like(after["alive"]), distance > float(rule["squared"])


def _loss_above(after: Carry, models: Models, rule: Term) -> tuple[Tensor, Tensor]:
    """Stop before the step whose loss lies outside ±limit."""
    high = after["loss"].abs() > float(rule["limit"])
    return high, high


STOPS: dict[str, Callable[[Carry, Models, Term], tuple[Tensor, Tensor]]] = {
    "beyond": _beyond,
    "loss_above": _loss_above,
}


# --- the loop ---------------------------------------------------------------------------------------------------------


def autograd(loss: Callable[[Params], tuple[Tensor, Any]], params: Params) -> tuple[Params, Any]:
    """The gradient by plain autograd: on small models 66 % cheaper per step than `torch.func.grad`."""
    leaves = {name: t.detach().requires_grad_() for name, t in params.items()}
    value, rest = loss(leaves)
    return gradients(value, leaves), rest


def gradients(value: Tensor, leaves: Params) -> Params:
    """∇ value by name. What the value does not depend on is left out: no gradient is not a gradient of zero, which an
    optimiser with decay would act upon. Which params these are is a fact of model and objective, the same every step.
    """
    if not value.requires_grad:
        raise UnfedError(
            "The loss depends on no parameter that may be trained; unfreeze some, or choose another method."
        )
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {name: g for name, g in zip(leaves, found, strict=True) if g is not None}


@dataclass(frozen=True)
class Visit:
    """What one client gives back."""

    params: Params
    optimiser: Params
    samples: int
    """Rows the plan's views cover: the weight in the average."""
    trained: int
    """Rows that went through a forward and a backward pass."""
    forwarded: int
    """Rows that went through a context model."""
    loss: float


def visit(
    template: Template,
    plan: Plan,
    client: ClientData,
    params: Params,
    context: Mapping[str, Params],
    optimiser: Params | None = None,
    gradient: Gradient = autograd,
) -> Visit:
    """Run a plan on one client, batch after batch: ClientUpdate of Algorithm 1, lines 16 to 20.

    This is the readable reference of every engine.
    """
    models = Models(template, {**context, "start": params})
    done: dict[str, int] = {}
    trained = forwarded = 0
    carry: Carry = {"params": params, "optimiser": optimiser}
    for phase in plan.phases:
        positions = client.view(phase.view)
        carry = start(template, phase, params, carry["optimiser"])
        objective, number = objectives.find(phase.objective.name), 0
        for turn in passes(phase, len(positions), done.get(phase.view, 0)):
            done[phase.view] = turn.epoch + 1
            key = epoch_key(plan, client.name, phase.view, turn.epoch)
            order = positions[rng.order(rng.fold(key, rng.ORDER), len(positions))]
            read = (client.source.augments, objective.draws, template.keyed)
            draws = Draws.of(key, order, len(turn.steps), *read, label_key(plan, phase, client.name))
            fetched = (fetch(client, order, draws, begin, end) for begin, end in turn.steps)
            with closing(ahead(fetched) if pipelined(template, phase, client) else fetched) as batches:
                for mask, batch in zip(draws.masks, batches, strict=True):
                    number, rows = number + 1, len(batch.y)
                    carry = step(template, phase, carry, batch, mask.to(batch.x.device), models, number, gradient)
                    trained += rows
                    marked = int(batch.forget.sum()) if objective.forget_forwards else 0
                    forwarded += objective.forwards * rows + objective.forget_forwards * marked
                    if phase.stop is not None and not bool(carry["alive"]):
                        break
            if phase.stop is not None and not bool(carry["alive"]):
                break
        after = carry["params"] | carry["state"]
        params = {name: after[name] for name in template.like}
    return Visit(params, carry["optimiser"], covered(plan, client), trained, forwarded, float(carry["loss"]))


def pipelined(template: Template, phase: Phase, client: ClientData) -> bool:
    """Whether batches are made ahead of time: a data set on the host feeds another device, and nobody can tell. A rule
    that stops early, or a model that draws, would leave the data set's random numbers elsewhere than today."""
    if client.source.resident or phase.stop is not None or template.draws_its_own:
        return False
    return next(iter(template.like.values())).device.type != "cpu"


def fetch(client: ClientData, order: Tensor, draws: Draws, begin: int, end: int) -> Batch:
    """A training batch: rows `begin` to `end` of the pass, augmented by words that belong to (pass, position)."""
    positions = order[begin:end]
    x, y = client.source.fetch(client.rows[positions], draws.augment[begin:end])
    return Batch(x, y, client.forget[positions].to(x.device), draws.labels[begin:end].to(x.device))
