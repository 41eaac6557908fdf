"""One update: SGD with momentum, Adam or AdamW, as PyTorch makes them.

    g ← ∇ + decay · θ        m ← g + μ m        θ ← θ − η m

The decay is added to the gradient; AdamW takes ∇ alone, and starts from θ · (1 − η · decay).

A parameter without a gradient (the loss does not depend on it) is carried as it is: no decay, no moments, no count of
Adam's, as PyTorch does where `grad is None`.

Pure functions of dictionaries of tensors. Where nothing is mapped over clients, all tensors of the model are updated by
one call for each of the three lines, which on small networks is most of an update's cost.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unfed.client.plan import Optimiser, Term
from unfed.model.params import Params


def clip(grads: Params, most: float) -> Params:
    """Scale the whole gradient so that its l2 norm is at most `most` (as `clip_grad_norm_` does)."""
    scale = (most / (norm(grads) + 1e-6)).clamp(max=1.0)
    return {name: g * scale for name, g in grads.items()}


def norm(tensors: Mapping[str, Tensor]) -> Tensor:
    """The l2 norm of all tensors together."""
    return torch.stack([t.square().sum() for t in tensors.values()]).sum().sqrt()


def update(
    rule: Optimiser,
    carry: Mapping[str, Params],
    grads: Params,
    loss: Tensor,
    number: int,
    lr: Tensor | None = None,
    mapped: bool = False,
) -> tuple[Params, Params]:
    """The `params` and `optimiser` of a carry after a step.

    `mapped` says that a map over clients goes around it.
    """
    weights, old = carry["params"], carry["optimiser"]
    base: float | Tensor = rule.lr if lr is None else lr
    rate = base if rule.plateau is None else base * old["plateau/scale"]
    if rule.rule == "sgd" and not mapped and lr is None:  # in a recorded step the compiler does better
        out, new = _sgd_together(rule, weights, grads, old, rate)
    else:
        out, new = _one_by_one(rule, weights, grads, old, rate, recorded=lr is not None)
    if rule.plateau is not None:
        new |= plateau(rule.plateau, rule.lr, old, loss, number)
    return out, new


def _sgd_together(
    rule: Optimiser, weights: Params, grads: Params, old: Params, rate: float | Tensor
) -> tuple[Params, Params]:
    names, before, steps = list(grads), [weights[name] for name in grads], list(grads.values())
    if rule.decay != 0:
        steps = list(torch._foreach_add(steps, before, alpha=rule.decay))
    if rule.momentum != 0:
        steps = list(torch._foreach_add(steps, [old[f"momentum/{name}"] for name in names], alpha=rule.momentum))
    if isinstance(rate, Tensor):
        after = torch._foreach_sub(before, torch._foreach_mul(steps, rate))
    else:
        after = torch._foreach_sub(before, steps, alpha=rate)
    moments = {f"momentum/{name}": step for name, step in zip(names, steps, strict=True)}
    return weights | dict(zip(names, after, strict=True)), old | moments


def _one_by_one(
    rule: Optimiser, weights: Params, grads: Params, old: Params, rate: float | Tensor, recorded: bool
) -> tuple[Params, Params]:
    new, out = dict(old), dict(weights)
    plus = _plus_written_out if recorded else _plus
    for name, grad in grads.items():
        weight, apart = weights[name], rule.rule == "adamw"
        g = grad if rule.decay == 0 or apart else plus(grad, weight, rule.decay)
        if rule.rule == "sgd":
            direction = g if rule.momentum == 0 else plus(g, old[f"momentum/{name}"], rule.momentum)
            new[f"momentum/{name}"] = direction
        else:
            first = rule.beta1 * old[f"mean/{name}"] + (1 - rule.beta1) * g
            second = rule.beta2 * old[f"square/{name}"] + (1 - rule.beta2) * g.square()
            count = old[f"count/{name}"] + 1
            new[f"mean/{name}"], new[f"square/{name}"], new[f"count/{name}"] = first, second, count
            root = (second / (1 - rule.beta2**count)).sqrt() + rule.eps
            direction = first / (1 - rule.beta1**count) / root
        if apart and rule.decay != 0:
            weight = weight * (1 - rate * rule.decay)
        out[name] = weight - rate * direction if isinstance(rate, Tensor) else torch.sub(weight, direction, alpha=rate)
    return out, new


def _plus(a: Tensor, b: Tensor, factor: float) -> Tensor:
    """a + factor · b in one operation instead of two."""
    return torch.add(a, b, alpha=factor)


def _plus_written_out(a: Tensor, b: Tensor, factor: float) -> Tensor:
    """The same for a compiler.

    The compiler of PyTorch 2.13 makes one product of `add(mm(x, y), b, alpha=factor)` and loses the factor: a weight
    decay of 5e-4 on a linear layer would become one of 1.
    """
    return a + factor * b


def plateau(rule: Term, lr: float, old: Params, loss: Tensor, number: int) -> Params:
    """ReduceLROnPlateau inside a visit.

    Every n-th step the mean loss since the last look is compared with the best.

    The threshold is relative, 1e-4, as PyTorch's default; no value leaves the device.
    """
    every, patience = int(rule["every"]), float(rule["patience"])
    total = old["plateau/sum"] + loss
    if number % every:
        return {"plateau/sum": total}
    seen = total / every
    better = seen < old["plateau/best"] * (1 - 1e-4)
    bad = torch.where(better, torch.zeros_like(total), old["plateau/bad"] + 1)
    drop = bad > patience
    scale = torch.where(drop, old["plateau/scale"] * float(rule["factor"]), old["plateau/scale"])
    return {
        "plateau/best": torch.where(better, seen, old["plateau/best"]),
        "plateau/bad": torch.where(drop, torch.zeros_like(bad), bad),
        "plateau/scale": scale.clamp(min=float(rule["minimum"]) / lr) if lr > 0 else scale,
        "plateau/sum": torch.zeros_like(total),
    }
