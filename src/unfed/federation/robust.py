"""Averages that one wrong but plausible update cannot carry away, as an option (`training.robust`).

    mean      θ + Σ p_k Δ_k                                    the paper's FedAvg; Δ_k = θ_k − θ
    norm      θ + Σ p_k min(1, b·m / ‖Δ_k‖) Δ_k                m is the median of the ‖Δ_k‖: nobody moves the model by
                                                               more than b times what is usual in this round
    median    θ + median_k Δ_k                                 coordinate by coordinate, everybody weighs the same
    trimmed   θ + mean of Δ_k without the ⌊t·K⌋ smallest and as many largest, coordinate by coordinate

They hold against fewer than half of the clients (median), ⌊t·K⌋ of them (trimmed), or bound what each can do (norm).
Where clients hold different kinds of rows, a coordinate-wise rule also loses what only a few of them know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from unfed.engines.base import Block
from unfed.errors import Refused
from unfed.federation.aggregate import average
from unfed.model.params import Params

Rule = Literal["mean", "norm", "median", "trimmed"]


@dataclass(frozen=True)
class Robust:
    """How updates are put together."""

    rule: Rule = "mean"
    bound: float = 2.0
    """norm: how many times the median length an update may have."""
    trim: float = 0.2
    """trimmed: the share of clients that is left out at either end."""

    def average(self, params: Params, blocks: Iterable[Block]) -> Params:
        """The new params, from blocks in the federation's order."""
        found = list(blocks)
        if self.rule == "mean":
            return average(params, found)
        if not found:
            raise Refused("There is no update to average; at least one client must answer.")
        if self.rule == "norm":
            return average(params, self._shortened(params, found))
        count = sum(len(block.clients) for block in found)
        drop = (count - 1) // 2 if self.rule == "median" else min(int(self.trim * count), (count - 1) // 2)
        return {name: _middle(name, old, found, drop) for name, old in params.items()}

    def _shortened(self, params: Params, blocks: list[Block]) -> list[Block]:
        lengths = [_lengths(params, block) for block in blocks]
        allowed = self.bound * float(torch.cat(lengths).median())
        return [_scaled(params, block, allowed / own) for block, own in zip(blocks, lengths, strict=True)]


def _lengths(params: Params, block: Block) -> Tensor:
    """‖Δ_k‖ of each client, over all floating-point entries, in float64.

    They are float64 because the square of a float32 may overflow.
    """
    squares = torch.zeros(len(block.clients), dtype=torch.float64)
    for name, old in params.items():
        if old.is_floating_point():
            delta = (block.params[name].double() - old.double()).flatten(1)
            squares += torch.linalg.vector_norm(delta, dim=1).square().cpu()
    return squares.sqrt()


def _scaled(params: Params, block: Block, factors: Tensor) -> Block:
    """The block with the updates shortened whose factor is below one; all others as they are, to the bit."""
    if bool((factors >= 1).all()):
        return block
    scaled = {}
    for name, stack in block.params.items():
        scaled[name] = stack
        if stack.is_floating_point():
            old, short = params[name].double(), factors.clamp(max=1.0).to(stack.device)
            short = short.view(-1, *[1] * old.dim())
            scaled[name] = torch.where(short < 1, (old + short * (stack.double() - old)).to(stack.dtype), stack)
    return replace(block, params=scaled)


def _middle(name: str, old: Tensor, blocks: list[Block], drop: int) -> Tensor:
    """θ + the trimmed mean of Δ_k at every coordinate.

    The `drop` smallest and largest are left out.
    """
    if not old.is_floating_point():
        return blocks[-1].params[name][-1]
    ranked = (torch.cat([block.params[name] for block in blocks]) - old).sort(0).values
    kept = ranked[drop : len(ranked) - drop]
    return old + (kept / len(kept)).sum(0)
