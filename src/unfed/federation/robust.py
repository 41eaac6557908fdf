"""Averages that one wrong but plausible update cannot carry away, as an option (`training.robust`).

    mean      θ + Σ p_k Δ_k                                    the paper's FedAvg; Δ_k = θ_k − θ
    norm      θ + Σ p_k min(1, b·m / ‖Δ_k‖) Δ_k                m is the median of the ‖Δ_k‖: no client moves θ by
                                                               more than b times what is usual in this round
    median    θ + median_k Δ_k                                 coordinate by coordinate, all clients weigh the same
    trimmed   θ + mean of Δ_k without the ⌊t·K⌋ smallest and as many largest, coordinate by coordinate

They hold against fewer than half of the clients (median), ⌊t·K⌋ of them (trimmed), or bound what each can do (norm).
Where clients hold different kinds of rows, a coordinate-wise rule also loses what only a few of them know.

Under every rule, an update that no honest training makes is refused by name before it is averaged:

    refused if ‖Δ_k‖ > max( ‖θ‖, a·u )        u is the median of the last rounds' median ‖Δ‖; a = `refuse_above`

Both must be exceeded: lengths differ between honest clients (more rows, more steps) and between rounds (a rate that
rises), but an honest update is seldom longer than the model itself. Earlier rounds say what is usual, so an update can
be averaged as it comes. A job's first round of a kind is held until all have answered, and u is its own median; with
fewer than three answers u is ‖θ‖. It is refused, not cut to length: its direction is no better than its length.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from unfed.client.plan import Plan
from unfed.engines.base import Block, Refusal
from unfed.errors import Refused
from unfed.federation.aggregate import CheckedUpdate, average
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
    refuse_above: float = 10.0
    """How many times the usual length an update may have before it is refused; 0 is any length."""

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


Usual = dict[str, list[float]]
"""The median lengths of the last rounds, by what clients were asked to do; a job keeps them with its state."""
_ROUNDS = 5
_MANY = 3


def kind_of(plan: Plan) -> str:
    """What clients are asked to do: lengths are compared with those of the same kind only."""
    return ", ".join(f"{phase.objective.name} on {phase.view}" for phase in plan.phases)


@dataclass
class Lengths:
    """The lengths of one round's updates, against what was usual before."""

    times: float
    before: Sequence[float]
    found: dict[str, float] = field(default_factory=dict)
    size: float = 0.0
    """‖θ‖."""

    @property
    def known(self) -> bool:
        """Whether an update can be judged as it comes."""
        return bool(self.before) or not self.times

    @property
    def limit(self) -> float:
        """The longest update that is averaged."""
        own = [length for length in self.found.values() if length > 0]
        usual = self.size if len(own) < _MANY else statistics.median_low(own)
        if self.before:
            usual = statistics.median(self.before)
        return max(self.size, self.times * usual) if self.times and usual else math.inf

    def add(self, checked: CheckedUpdate) -> None:
        """Take note of the updates of a block that can be averaged."""
        if checked.lengths:
            self.found, self.size = self.found | checked.lengths, checked.size

    def within(self, block: Block, round: int, limit: float) -> tuple[Block, list[Refusal]]:
        """The updates that are not too long, and who sent the others."""
        far = self.too_long(block.clients, limit)
        hint = "(see training.robust.refuse_above)"
        refusals = [Refusal(round, client, f"{why} {hint}", absurd=True) for client, why in far.items()]
        return block.pick([i for i, client in enumerate(block.clients) if client not in far]), refusals

    def too_long(self, clients: Iterable[str], limit: float) -> dict[str, str]:
        """Why the updates of some clients are refused; what is usual is computed without them."""
        far = {client: length for client in clients if (length := self.found[client]) > limit}
        self.found = {client: length for client, length in self.found.items() if client not in far}
        return {c: f"its update has norm {length:.3g}, where {limit:.3g} is allowed" for c, length in far.items()}

    def usual(self) -> list[float]:
        """What later rounds are compared with."""
        own = [length for length in self.found.values() if length > 0 and self.times]
        return [*self.before, *([statistics.median_low(own)] if own else [])][-_ROUNDS:]


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
    return replace(block, params=scaled, moved=None)


def shortened(old: Tensor, new: Tensor, factor: Tensor | float) -> Tensor:
    """θ + f (θ_k − θ), computed in float64."""
    return (old.double() + factor * (new.double() - old.double())).to(new.dtype)


_AT_ONCE = 2**23
"""Numbers of all clients that a coordinate-wise rule looks at together."""
_STEP = 4096
"""Coordinates go by multiples of this, so that the sums over clients are the same bits as over the whole tensor."""


def _middle(name: str, old: Tensor, blocks: list[Block], drop: int) -> Tensor:
    """θ + the trimmed mean of Δ_k at every coordinate.

    The `drop` smallest and largest are left out.
    """
    if not old.is_floating_point():
        return blocks[-1].params[name][-1]
    count = sum(len(block.clients) for block in blocks)
    flat, step = old.reshape(-1), _STEP * max(1, _AT_ONCE // count // _STEP)
    stacks = [block.params[name].reshape(len(block.clients), -1) for block in blocks]
    parts = []
    for first in range(0, max(1, len(flat)), step):  # a few coordinates at a time: not every client's whole tensor
        own = slice(first, first + step)
        kept = (torch.cat([stack[:, own] for stack in stacks]) - flat[own]).sort(0).values[drop : count - drop]
        parts.append(flat[own] + (kept / len(kept)).sum(0))
    return torch.cat(parts).reshape(old.shape)
