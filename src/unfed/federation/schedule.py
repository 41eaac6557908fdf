"""How rounds are run: how many, who is asked, at which learning rate.

A one-cycle is the recipe that makes recovery and Retrain cheap. Over T rounds with peak η, U = ⌈T/5⌉:

    η_r = η · r / U                                   r ≤ U        it rises for a fifth of the rounds
    η_r = η · (1 − 0.98 · (r − U) / (T − U))          r > U        it falls to 2 % of the peak in round T, and stays

The rate is a function of the round alone, so a run that is resumed inside a cycle goes on with the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from unfed.client.plan import Phase
from unfed.errors import UnfedError
from unfed.federation.robust import Robust

CYCLE_END = 0.02
"""The part of its peak at which a one-cycle ends."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate of round r of T, written into the round's plan by the server."""

    kind: str = "constant"
    minimum: float = 0.0
    every: int = 1
    factor: float = 0.1
    warmup: int = 0
    over: int | None = None
    """After how many rounds a cosine or a cycle is at its end, if not after the last; it stays there."""

    def rate(self, base: float, round: int, rounds: int) -> float:
        """The learning rate of round r: constant, cosine, step or one-cycle.

        Constant is η, cosine goes from η down to the minimum, where round T + 1 would be, and step is
        η·factor^⌊(r−1)/every⌋.

        The cosine is PyTorch's `CosineAnnealingLR(T)`: with a minimum in round T that round would do nothing.
        """
        round = max(round, 1)  # what a method does before its first round runs at the first round's rate
        if round <= self.warmup:
            return base * round / self.warmup
        if self.kind == "constant":
            return base
        if self.kind == "step":
            return max(self.minimum, base * self.factor ** ((round - 1 - self.warmup) // self.every))
        if self.kind == "cosine":
            span = max(1, (self.over or rounds) - self.warmup)
            progress = min(1.0, (round - 1 - self.warmup) / span)
            return self.minimum + (base - self.minimum) * (1 + math.cos(math.pi * progress)) / 2
        if self.kind == "one-cycle":
            length = self.over or rounds
            up = -(-length // 5)
            if round <= up:
                return base * round / up
            return base * (1 - (1 - CYCLE_END) * min(1.0, (round - up) / max(1, length - up)))
        raise UnfedError(f"The schedule {self.kind!r} is not known; use constant, cosine, step or one-cycle.")


@dataclass(frozen=True)
class Settings:
    """How a federation runs its rounds."""

    phase: Phase = field(default_factory=Phase)
    rounds: int = 60
    schedule: Schedule = field(default_factory=Schedule)
    participation: float = 1.0
    """The share of the clients that is asked in a round, at least one."""
    drop_out: float = 0.0
    """The probability that a client that was asked does not answer."""
    quorum: float = 0.5
    """The share of those asked whose updates must be accepted, at least one."""
    robust: Robust = field(default_factory=Robust)
    """How updates are put together."""
    tune: tuple[float, ...] = ()
    """The learning rates of which trials choose one; none where the phase's own holds."""
    tune_rounds: int = 3
    """The rounds of a trial."""
    keep: bool = False
    """Whether the optimiser goes on from round to round, as it does where one place holds all data."""

    def at(self, lr: float) -> Settings:
        """The same at another learning rate."""
        return replace(self, phase=self.phase.with_optimiser(lr=lr))
