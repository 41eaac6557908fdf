"""Can a method's models be told from Retrains? A verdict, which says no more than was measured.

    told        something tells them apart: an attack's AUC is above ½ (they remember) or below it (they are less sure
                of the rows than models that never saw them, which shows as well), or a distance is larger, than models
                of one kind would show, by a permutation test with p below the level; an AUC whose 95 % interval holds
                ½, or a distance no larger than that between Retrains, tells nothing, whatever its p. The tests share
                5 % between them
    cannot      nothing told, and every AUC farther than 0.05 from ½ is ruled out (the far end of the 95 % intervals):
                what is ruled out is said with it
    undecided   nothing told, but a difference that matters is not ruled out; how many models it takes is said. Up to 9
                models of each kind can be parted in too few ways for any test to fall below its share of 5 %, so
                nothing is ever decided there

Silence is evidence only where something would have spoken, so "cannot" is never said without that bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from unfed.errors import listed
from unfed.measures.population.interval import Interval

MATTERS = 0.05
"""An AUC so far above ½ would matter."""
LEVEL = 0.05
"""Shared by all tests of a method."""
OFTEN = 0.8
"""In so many populations of the number of models that is advised a difference that matters is told."""

Kind = Literal["told", "cannot", "undecided"]


@dataclass(frozen=True)
class Attacked:
    """The AUC of one attack."""

    name: str
    auc: Interval
    p: float
    level: float
    signed: bool = True
    """Whether an AUC below ½ means less sure, as it does for scores of how sure a model is."""

    @property
    def told(self) -> bool:
        """Whether it is rare among models of one kind, and other rows would hardly have given a coin toss."""
        return self.p < self.level and not self.auc.low <= 0.5 <= self.auc.high

    @property
    def far(self) -> float:
        """The AUC farthest from ½ that the interval holds, as if it were above."""
        return max(self.auc.high, 1.0 - self.auc.low)

    @property
    def words(self) -> str:
        less = "; less sure than Retrain" if self.signed and self.auc.value < 0.5 else ""
        return f"{self.name} (AUC {self.auc.value:.3f}, 95 % interval {self.auc.low:.3f} to {self.auc.high:.3f}{less})"


@dataclass(frozen=True)
class Apart:
    """A distance to Retrains, beside that between Retrains, and how rare so large a one is."""

    name: str
    value: float
    yardstick: float
    p: float
    level: float
    nearer_is_larger: bool = False
    """Whether a larger value means nearer, as it does for agreement."""

    @property
    def told(self) -> bool:
        """Whether it is rare among models of one kind, and farther than Retrains are from each other."""
        farther = self.value < self.yardstick if self.nearer_is_larger else self.value > self.yardstick
        return self.p < self.level and farther

    @property
    def words(self) -> str:
        return f"{self.name} ({self.value:.3f}, Retrain against Retrain {self.yardstick:.3f}, p = {self.p:.3f})"


@dataclass(frozen=True)
class Verdict:
    """One of three answers, as a sentence."""

    kind: Kind
    sentence: str
    bound: float
    """The largest AUC that is not ruled out."""


def share_of(tests: int) -> float:
    """The level of one test when so many share 5 %."""
    return LEVEL / tests


def verdict(title: str, models: int, attacks: Sequence[Attacked], distances: Sequence[Apart]) -> Verdict:
    """What can be said of a method after these attacks and distances, over `models` of each kind."""
    bound = max(attack.far for attack in attacks)
    tests: list[Attacked | Apart] = [*attacks, *distances]
    level, open_ = min(test.level for test in tests), f"{title}: not decided at N = {models}."
    if models < fewest(level):
        return Verdict(
            "undecided",
            f"{open_} {models // 2} judged models of each kind can be parted in only {_ways(models // 2)} ways, so no"
            f" difference, however large, could be told from chance; it takes {fewest(level)} models, better 32.",
            bound,
        )
    told = [test.words for test in tests if test.told]
    if told:
        return Verdict("told", f"{title} can be told from Retrain, by {listed(told, last='and')}.", bound)
    names = listed(test.name for test in tests)
    if bound <= 0.5 + MATTERS:
        return Verdict(
            "cannot",
            f"{title} cannot be told from Retrain by {names} at N = {models}: every AUC beyond {bound:.3f} is ruled out"
            " (95 % bound), a smaller one could have gone unseen.",
            bound,
        )
    return Verdict(
        "undecided",
        f"{open_} Nothing told it from Retrain, but an AUC of up to {bound:.3f} could have gone unseen; about"
        f" {needed(models, attacks)} models of each kind would show {0.5 + MATTERS:.2f} four times in five.",
        bound,
    )


def _ways(half: int) -> int:
    """In how many ways so many models of each of two kinds can be parted."""
    return math.comb(2 * half, half)


def fewest(level: float) -> int:
    """The fewest models of each kind whose halves a test can tell apart at this level.

    An AUC counts on both sides of ½.
    """
    half = 1
    while 2 / _ways(half) >= level:
        half += 1
    return 2 * half


def needed(models: int, attacks: Sequence[Attacked]) -> int:
    """How many models it takes, if an interval narrows with the root of their number.

    A test at its level shows a difference four times in five that is so many standard errors wide: 3.42 at 1 %.
    """
    normal = NormalDist()
    error = max(attack.auc.high - attack.auc.low for attack in attacks) / (2 * normal.inv_cdf(0.975))
    wide = normal.inv_cdf(1 - min(attack.level for attack in attacks) / 2) + normal.inv_cdf(OFTEN)
    return max(2 * models, 8 * math.ceil(models * (error * wide / MATTERS) ** 2 / 8))
