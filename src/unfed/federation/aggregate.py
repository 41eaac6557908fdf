"""Averaging, and what may be averaged at all.

    θ ← θ + Σ_k n_k (θ_k − θ) / Σ_k n_k          in client order

The delta form keeps unchanged entries bit-equal (a plain weighted mean of nine equal float32 tensors changes a third
of their entries within a hundred rounds). Every floating-point entry is averaged, BatchNorm's running statistics
included; integer counters are copied. An update is refused, and named, if its keys, shapes or types are wrong, if it
holds NaN or infinity, if it is so large that its norm is no number, or if its weight is not positive.
What is averaged is finite then, and so is the average: where Σ n_k (θ_k − θ) overflows, it is Σ (n_k / Σ n_k) θ_k.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from unfed.engines.base import Block, Refusal, largest, length_of, mean_of, moved
from unfed.errors import Refused
from unfed.model.params import Params


def average(params: Params, blocks: Iterable[Block]) -> Params:
    """The weighted mean of the clients' models, in the order in which they come (Algorithm 1, line 14)."""
    blocks = list(blocks)
    total = sum(sum(block.samples) for block in blocks)
    if total == 0:
        raise Refused("There is no update to average; at least one client must answer.")
    names = [name for name, old in params.items() if old.is_floating_point()]
    known = blocks[0].moved if len(blocks) == 1 else None
    if known is not None and known.start is params:
        means = known.mean
    else:
        sums = _weighted(blocks[0], names, params)
        for block in blocks[1:]:
            torch._foreach_add_(sums, _weighted(block, names, params))
        means = mean_of(sums, total, [params[name] for name in names])
        if not all_finite(means):
            means = [_convex(blocks, name, total) for name in names]
    found, last = dict(zip(names, means, strict=True)), blocks[-1].params
    return {name: found[name] if name in found else last[name][-1] for name in params}


def _convex(blocks: Iterable[Block], name: str, total: int) -> Tensor:
    """Σ (n_k / N) θ_k: between the smallest and the largest of them, so it cannot overflow."""
    shares = [(n / total) * row for block in blocks for n, row in zip(block.samples, block.params[name], strict=True)]
    mean = torch.zeros_like(shares[0])
    for share in shares:
        mean += share
    return mean


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no entry is NaN or infinite; the device is asked once."""
    floating = [t for t in tensors if t.is_floating_point()]
    return not floating or math.isfinite(largest(floating))


def _weighted(block: Block, names: list[str], params: Params) -> list[Tensor]:
    """Σ_k n_k (θ_k − θ) of a block.

    A block of one client needs no sum, and all its tensors go in one call.
    """
    if block.moved is not None and block.moved.start is params:
        return list(torch._foreach_mul(block.moved.sums, 1.0))  # a copy: others are added to it
    if len(block.clients) == 1:
        deltas = list(torch._foreach_sub([block.params[name][0] for name in names], [params[name] for name in names]))
        torch._foreach_mul_(deltas, float(block.samples[0]))
        return deltas
    return moved(block.params, [params], [block.samples])[0].sums


class CheckedUpdate:
    """Which updates of a block may be averaged, in two halves.

    The device is asked at once, the answer is read later, so that the device can go on with the next client in between.
    """

    def __init__(self, block: Block, like: Params, round: int, size: Tensor | None = None) -> None:
        self.block, self._round = block, round
        self._malformed = _malformed(block.params, like)
        self._answer: Tensor | None = None
        self.event: torch.cuda.Event | None = None
        """When the answer will be there; None if it is."""
        self.lengths: dict[str, float] = {}
        """‖θ_k − θ‖ of every usable update, once the result is read."""
        self.size = math.inf
        """‖θ‖, once the result is read."""
        if self._malformed:
            return
        # One with a NaN or an infinity in it has no finite length. That of finite numbers may be too large, so a
        # suspected one is looked at again.
        known = block.moved
        if known is None or known.start is not like:
            # While the device is at it, the average, too: asked for later, the device would wait for every launch.
            known = moved(block.params, [like], [block.samples], size)[0] if len(block.clients) > 1 else None
            self.block = replace(block, moved=known)
        if known is not None:
            found = known.sizes
        else:
            names = [name for name, old in like.items() if old.is_floating_point()]
            deltas = torch._foreach_sub([block.params[name][0] for name in names], [like[name] for name in names])
            length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(deltas)), keepdim=True)
            found = torch.cat([length, length_of(like) if size is None else size])
        if not found.is_cuda:
            self._answer = found
            return
        # Into pinned memory: a copy into any other would wait for the device.
        self._answer = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        self._answer.copy_(found, non_blocking=True)
        self.event = torch.cuda.Event()
        self.event.record()

    def result(self) -> tuple[Block, list[Refusal]]:
        """What is left of the block, and why the rest is not."""
        if self._answer is None:
            return self.block.pick([]), [Refusal(self._round, name, self._malformed) for name in self.block.clients]
        if self.event is not None:
            self.event.synchronize()
        keep, refusals = [], []
        *lengths, self.size = self._answer.tolist()
        if self.block.moved is not None and not math.isfinite(lengths.pop(0)):
            self.block = replace(self.block, moved=None)
        for index, (client, length) in enumerate(zip(self.block.clients, lengths, strict=True)):
            reason = self._unusable(index, math.isfinite(length))
            if reason:
                refusals.append(Refusal(self._round, client, reason))
            else:
                keep.append(index)
                self.lengths[client] = length
        return self.block.pick(keep), refusals

    def _unusable(self, index: int, finite: bool) -> str:
        samples = self.block.samples[index]
        if samples <= 0:
            return f"its weight is {samples}, which is not positive"
        if finite:
            return ""
        floating = {name: t for name, t in self.block.params.items() if t.is_floating_point()}
        bad = next((name for name, t in floating.items() if not bool(torch.isfinite(t[index]).all())), None)
        if bad is not None:
            return f"its update has NaN or infinite values in {bad!r}"
        return "its update is too large: its norm is not a finite number"


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
