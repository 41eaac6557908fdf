"""Averaging, and what may be averaged at all.

    θ ← θ + Σ_k n_k (θ_k − θ) / Σ_k n_k          in client order

The delta form keeps what nobody changed bit-equal (a plain weighted mean of nine equal float32 tensors changes a third
of their entries within a hundred rounds). Every floating-point entry is averaged, BatchNorm's running statistics
included; integer counters are copied. An update is refused, and named, if its keys, shapes or types are wrong, if it
holds NaN or infinity, or if its weight is not positive.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from unfed.engines.base import Block, Refusal
from unfed.errors import Refused
from unfed.params import Params


def average(params: Params, blocks: Iterable[Block]) -> Params:
    """The weighted mean of the clients' models, in the order in which they come."""
    total = 0
    sums: Params = {}
    counters: Params = {}
    for block in blocks:
        total += sum(block.samples)
        for name, old in params.items():
            stack = block.params[name]
            if not old.is_floating_point():
                counters[name] = stack[-1]
                continue
            weight = torch.tensor(block.samples, dtype=old.dtype, device=old.device)
            delta = torch.tensordot(weight, stack - old, dims=1)
            sums[name] = sums[name] + delta if name in sums else delta
    if total == 0:
        raise Refused("There is no update to average; at least one client must answer.")
    return {name: counters[name] if name in counters else old + sums[name] / total for name, old in params.items()}


def validate(block: Block, like: Params, round: int) -> tuple[Block, list[Refusal]]:
    """The block without the updates that must not be averaged, and a sentence for each of those."""
    whole = _malformed(block.params, like)
    if whole:
        return block.pick([]), [Refusal(round, client, whole) for client in block.clients]
    finite = torch.ones(len(block.clients), dtype=torch.bool)
    for stack in block.params.values():
        if stack.is_floating_point():
            finite &= _finite(stack).cpu()
    keep, refusals = [], []
    for index, client in enumerate(block.clients):
        if block.samples[index] <= 0:
            refusals.append(Refusal(round, client, f"its weight is {block.samples[index]}, which is not positive"))
        elif not bool(finite[index]):
            bad = next(n for n, t in block.params.items() if t.is_floating_point() and not bool(_finite(t)[index]))
            refusals.append(Refusal(round, client, f"its update has NaN or infinite values in {bad!r}"))
        else:
            keep.append(index)
    return block.pick(keep), refusals


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
