"""The one step, written for one client.

    g      = ∇ mean_w ℓ(θ; batch) + penalties           then clipped
    θ, s   = optimiser(θ, g, s)
    θ      = after-step maps(θ)                          l2 ball, hold, fuse
    alive  = stop rule                                   a stopped client is frozen by `where`, never by lr · 0

`step` is pure: a carry of tensors in, a carry of tensors out. `visit` is the readable loop around it, which the
sequential engine calls; the batched engine maps the two halves of the step over a stack of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from unfed import rng
from unfed.client import objectives
from unfed.client.batch import Batch, Draws, Models, covered, epoch_key, passes
from unfed.client.optimiser import clip, norm, update
from unfed.client.plan import Phase, Plan, Term
from unfed.data import ClientData
from unfed.data.source import ahead
from unfed.errors import UnfedError, listed, nearest
from unfed.model import perturb
from unfed.model.functional import Template
from unfed.model.params import Params

Carry = dict[str, Any]
"""`params` (trainable), `state` (buffers, frozen parameters), `optimiser`, `alive`, `loss`: nested dicts of tensors."""


# --- the step ---------------------------------------------------------------------------------------------------------


def start(template: Template, phase: Phase, params: Params, optimiser: Params | None = None) -> Carry:
    """The carry at the beginning of a phase.

    `optimiser` goes on with moments that an earlier visit handed back.
    """
    weights = {name: params[name] for name in template.trainable}
    some = next(iter(weights.values()))
    zero = torch.zeros((), dtype=some.dtype, device=some.device)
    moments = ("momentum",) if phase.optimiser.rule == "sgd" else ("mean", "square")
    # One zero for all entries: a step makes new moments, and no memory is spent on the first.
    fresh = {f"{m}/{n}": zero.to(t.dtype).expand_as(t) for m in moments for n, t in weights.items()}
    if phase.optimiser.rule != "sgd":
        fresh |= {f"count/{n}": zero for n in weights}
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


class Slope(NamedTuple):
    """What the first half of a step hands to the second."""

    grads: Params
    state: Params
    """The buffers after the forward pass."""
    value: Tensor
    """The loss."""


def step(
    phase: Phase, carry: Carry, batch: Batch, key: Tensor, models: Models, number: int, lr: Tensor | None = None
) -> Carry:
    """Step `number` (from 1) of a phase: one gradient, one update, the maps, the stop rule."""
    loss = loss_of(phase, carry["state"], batch, key, models)
    grads, (state, value) = autograd(loss, carry["params"])
    return advance(phase, carry, Slope(grads, state, value), models, number, lr)


def loss_of(
    phase: Phase, state: Params, batch: Batch, key: Tensor, models: Models
) -> Callable[[Params], tuple[Tensor, tuple[Params, Tensor]]]:
    """The first half of the step: f(θ) = mean_w ℓ(θ; batch) + penalties.

    It also gives the buffers afterwards.

    The halves are apart because a stack of clients takes one gradient for all: Σ_c f_c(θ_c) is differentiated by plain
    autograd around the mapped loss, which was measured twice as fast on digits as a gradient inside the map.
    """

    def loss(weights: Params) -> tuple[Tensor, tuple[Params, Tensor]]:
        # Running statistics are written in place by the norm layers: onto copies, so that the step stays pure.
        after = {name: t.clone() for name, t in state.items()}
        net = models.template.bind(weights | after, key=key, rows=batch.weight)
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
    slope: Slope,
    models: Models,
    number: int,
    lr: Tensor | None = None,
    mapped: bool = False,
) -> Carry:
    """The second half of the step: clip, update, maps, stop.

    `lr` stands for the phase's own rate where that must be a tensor, because a compiled step would otherwise be
    compiled again for every rate of a schedule.
    """
    grads, state, value = slope
    if phase.optimiser.clip is not None:
        grads = clip(grads, phase.optimiser.clip)
    weights, optimiser = update(phase.optimiser, carry, grads, value, number, lr, mapped)
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


def l1(weights: Params, rule: Term) -> Tensor:
    """α Σ|w|: the penalty of ℓ1-sparse."""
    return _number(rule["alpha"]) * torch.stack([w.abs().sum() for w in weights.values()]).sum()


PENALTIES: dict[str, Callable[[Params, Term], Tensor]] = {"l1": l1}


def _ball(weights: Params, models: Models, rule: Term) -> Params:
    centre = models.tensors(str(rule["around"]))
    return perturb.ball(weights, {n: centre[n] for n in weights}, float(rule["radius"]))


def _hold(weights: Params, models: Models, rule: Term) -> Params:
    home = models.tensors(str(rule["of"]))
    if "mask" in dict(rule.numbers):
        return perturb.hold(weights, home, mask=models.tensors(str(rule["mask"])))
    return perturb.hold(weights, home, names=str(rule["names"]).split(","))


def _fuse(weights: Params, models: Models, rule: Term) -> Params:
    donor = models.tensors(str(rule["donor"]))
    return perturb.fuse(weights, donor, float(rule["rho"]), str(rule["names"]).split(","))


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
    """∇ value by name.

    What the value does not depend on is left out: no gradient is not a gradient of zero, which an optimiser with decay
    would act upon. Which params these are is a fact of model and objective, the same every step.
    """
    if not value.requires_grad:
        raise UnfedError(
            "The loss depends on no parameter that may be trained; unfreeze some, or choose another method."
        )
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {name: g for name, g in zip(leaves, found, strict=True) if g is not None}


@dataclass(frozen=True)
class Visited:
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
) -> Visited:
    """Run a plan on one client, batch after batch: ClientUpdate of Algorithm 1, lines 16 to 20.

    This is the readable reference of every engine.
    """
    models = Models(template, {**context, "start": params})
    done: dict[str, int] = {}
    trained = forwarded = 0
    carry: Carry = {"params": params, "optimiser": optimiser}
    for phase in plan.phases:
        carry = start(template, phase, params, carry["optimiser"])
        objective = objectives.find(phase.objective.name)
        with closing(_batches(template, plan, phase, client, done)) as batches:
            for number, (key, batch) in enumerate(batches, 1):
                carry = step(phase, carry, batch, key, models, number)
                rows, marked = len(batch.y), int(batch.forget.sum()) if objective.forget_forwards else 0
                trained += rows
                forwarded += objective.forwards * rows + objective.forget_forwards * marked
                if phase.stop is not None and not bool(carry["alive"]):
                    break
        after = carry["params"] | carry["state"]
        params = {name: after[name] for name in template.like}
    return Visited(params, carry["optimiser"], covered(plan, client), trained, forwarded, float(carry["loss"]))


def _batches(
    template: Template, plan: Plan, phase: Phase, client: ClientData, done: dict[str, int]
) -> Generator[tuple[Tensor, Batch], None, None]:
    """The batches of a phase, pass after pass, each with the key of its dropout.

    `done` says how many passes the plan has begun over each view, and goes on counting.
    """
    positions = client.view(phase.view)
    read = (client.source.augments, objectives.find(phase.objective.name).draws, template.keyed)
    for turn in passes(phase, len(positions), done.get(phase.view, 0)):
        done[phase.view] = turn.epoch + 1
        key = epoch_key(plan, client.name, phase.view, turn.epoch)
        order = positions[rng.order(rng.fold(key, rng.ORDER), len(positions))]
        draws = Draws.of(key, order, len(turn.steps), *read)
        fetched = (fetch(client, order, draws, begin, end) for begin, end in turn.steps)
        with closing(ahead(fetched) if pipelined(template, phase, client) else fetched) as batches:
            for dropout, batch in zip(draws.dropout, batches, strict=True):
                yield dropout.to(batch.x.device), batch


def pipelined(template: Template, phase: Phase, client: ClientData) -> bool:
    """Whether batches are made ahead of time: where a data set on the host feeds another device.

    Not with a rule that stops early or a model that draws: a data set that draws would then end elsewhere.
    """
    if client.source.resident or phase.stop is not None or template.draws_its_own:
        return False
    return template.device.type != "cpu"


def fetch(client: ClientData, order: Tensor, draws: Draws, begin: int, end: int) -> Batch:
    """A training batch.

    It holds rows `begin` to `end` of the pass, augmented by words that belong to (pass, position).
    """
    positions = order[begin:end]
    x, y = client.source.fetch(client.rows[positions], draws.augment[begin:end])
    return Batch(x, y, client.forget[positions].to(x.device), draws.labels[begin:end].to(x.device))
