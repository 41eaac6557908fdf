"""Averaging, and what may be averaged at all.

    θ ← θ + Σ_k n_k (θ_k − θ) / Σ_k n_k          in client order

The delta form keeps what nobody changed bit-equal (a plain weighted mean of nine equal float32 tensors changes a third
of their entries within a hundred rounds). Every floating-point entry is averaged, BatchNorm's running statistics
included; integer counters are copied. An update is refused, and named, if its keys, shapes or types are wrong, if it
holds NaN or infinity, or if its weight is not positive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from unfed.engines.base import Block, Refusal
from unfed.errors import Refused
from unfed.params import Params


def average(params: Params, blocks: Iterable[Block]) -> Params:
    """The weighted mean of the clients' models, in the order in which they come."""
    total = 0
    names = [name for name, old in params.items() if old.is_floating_point()]
    start, sums = [params[name] for name in names], list[Tensor]()
    counters: Params = {}
    for block in blocks:
        total += sum(block.samples)
        deltas = _weighted(block, names, start)
        if sums:
            torch._foreach_add_(sums, deltas)
        else:
            sums = deltas
        counters = {name: block.params[name][-1] for name, old in params.items() if not old.is_floating_point()}
    if total == 0:
        raise Refused("There is no update to average; at least one client must answer.")
    means = torch._foreach_add(start, torch._foreach_div(sums, total))
    return {name: (counters | dict(zip(names, means, strict=True)))[name] for name in params}


def _weighted(block: Block, names: list[str], start: list[Tensor]) -> list[Tensor]:
    """Σ_k n_k (θ_k − θ) of a block. A block of one client needs no sum, and all its tensors go in one call."""
    if len(block.clients) == 1:
        deltas = list(torch._foreach_sub([block.params[name][0] for name in names], start))
        torch._foreach_mul_(deltas, float(block.samples[0]))
        return deltas
    found, weights = [], {}
    for name, old in zip(names, start, strict=True):
        if old.dtype not in weights:
            weights[old.dtype] = torch.tensor(block.samples, dtype=old.dtype, device=old.device)
        found.append(torch.tensordot(weights[old.dtype], block.params[name] - old, dims=1))
    return found


def validate(block: Block, like: Params, round: int) -> tuple[Block, list[Refusal]]:
    """The block without the updates that must not be averaged, and a sentence for each of those."""
    whole = _malformed(block.params, like)
    if whole:
        return block.pick([]), [Refusal(round, client, whole) for client in block.clients]
    finite, keep, refusals = _usable(block), [], []
    for index, client in enumerate(block.clients):
        if block.samples[index] <= 0:
            refusals.append(Refusal(round, client, f"its weight is {block.samples[index]}, which is not positive"))
        elif not finite[index]:
            bad = next(n for n, t in block.params.items() if t.is_floating_point() and not bool(_finite(t)[index]))
            refusals.append(Refusal(round, client, f"its update has NaN or infinite values in {bad!r}"))
        else:
            keep.append(index)
    return block.pick(keep), refusals


def _usable(block: Block) -> list[bool]:
    """Which clients' tensors are all finite; one look at the device for the whole block."""
    floating = [stack for stack in block.params.values() if stack.is_floating_point()]
    # A sum with a NaN or an infinity in it is not finite; one of finite numbers may be too large, so look again then.
    if len(block.clients) == 1 and math.isfinite(float(torch.stack(torch._foreach_norm(floating, 1)).sum())):
        return [True]
    if floating[0].is_cuda:  # where every call costs more than the numbers in it
        floating = [torch.cat([stack.flatten(1) for stack in floating], 1)]
    usable: list[bool] = torch.stack([_finite(stack) for stack in floating]).all(0).tolist()
    return usable


def _finite(stack: Tensor) -> Tensor:
    return torch.isfinite(stack.flatten(1)).all(1)


def _malformed(params: Params, like: Params) -> str:
    if params.keys() != like.keys():
        odd = sorted(params.keys() ^ like.keys())[0]
        return f"its update {'has an unknown' if odd in params else 'lacks the'} tensor {odd!r}"
    for name, old in like.items():
        if params[name].shape[1:] != old.shape:
            return f"its {name!r} has shape {tuple(params[name].shape[1:])}, not {tuple(old.shape)}"
        if params[name].dtype != old.dtype:
            return f"its {name!r} is {params[name].dtype}, not {old.dtype}"
    return ""
