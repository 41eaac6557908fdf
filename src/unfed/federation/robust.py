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

    @property
    def additive(self) -> bool:
        """Whether the new params are θ plus one share per client.

        Only then can a history say what each client added.
        """
        return self.rule in ("mean", "norm")

    def average(self, params: Params, blocks: Iterable[Block]) -> Params:
        """The new params, from blocks in the federation's order."""
        return self.combined(params, self.entering(params, blocks)[0])

    def entering(self, params: Params, blocks: Iterable[Block]) -> tuple[list[Block], dict[str, float]]:
        """The updates as they enter the aggregate, and the factor of every client whose update was shortened."""
        found = list(blocks)
        if self.rule != "norm" or not found:
            return found, {}
        lengths = [_lengths(params, block) for block in found]
        allowed = self.bound * float(torch.cat(lengths).median())
        factors = [allowed / own for own in lengths]
        pairs = [(block, own.tolist()) for block, own in zip(found, factors, strict=True)]
        short = {c: f for block, own in pairs for c, f in zip(block.clients, own, strict=True) if f < 1}
        return [_scaled(params, block, own) for block, own in zip(found, factors, strict=True)], short

    def combined(self, params: Params, found: list[Block]) -> Params:
        """The new params, from updates as they enter the aggregate."""
        if self.additive:
            return average(params, found)
        if not found:
            raise Refused("There is no update to average; at least one client must answer.")
        count = sum(len(block.clients) for block in found)
        drop = (count - 1) // 2 if self.rule == "median" else min(int(self.trim * count), (count - 1) // 2)
        return {name: _middle(name, old, found, drop) for name, old in params.items()}


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
            short = factors.clamp(max=1.0).to(stack.device).view(-1, *[1] * params[name].dim())
            scaled[name] = torch.where(short < 1, shortened(params[name], stack, short), stack)
    return replace(block, params=scaled)


def shortened(old: Tensor, new: Tensor, factor: Tensor | float) -> Tensor:
    """θ + f (θ_k − θ), computed in float64."""
    return (old.double() + factor * (new.double() - old.double())).to(new.dtype)


def _middle(name: str, old: Tensor, blocks: list[Block], drop: int) -> Tensor:
    """θ + the trimmed mean of Δ_k at every coordinate.

    The `drop` smallest and largest are left out.
    """
    if not old.is_floating_point():
        return blocks[-1].params[name][-1]
    ranked = (torch.cat([block.params[name] for block in blocks]) - old).sort(0).values
    kept = ranked[drop : len(ranked) - drop]
    return old + (kept / len(kept)).sum(0)
