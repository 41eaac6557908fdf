"""Does a method's model remember, and is it unfinished? Two answers, with what was measured.

A method's models differ from Retrains for two reasons. They may treat forgotten rows unlike rows that no model saw, or
they may not have recovered, which shows on any rows.

    remembers    forgotten rows stand higher, or lower, among held-out rows than they do in Retrains that were stopped
                 where they read held-out rows as the method does
    unfinished   held-out rows themselves are read less often, or less surely, than by Retrains at their last round;
                 "further" where it is more

A difference counts if it is rare among models of one kind (a permutation test), and other models and rows would hardly
have given none (an interval at the test's level). The tests share 5 % between them. Without such a difference:

    none, finished   every difference that matters is ruled out (the far end of the 95 % intervals): the bound is said
    undecided        a difference that matters could have gone unseen; how many models it takes is said. Up to 9 models
                     of each kind can be parted in too few ways for any test to fall below its share of 5 %
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from unfed.errors import listed
from unfed.measures.population.intervals import Interval

MATTERS = 0.05
"""A difference of so much AUC would matter."""
POINTS_MATTER = 1.0
"""So many points of test accuracy would matter."""
TESTS = 4
LEVEL = 0.05 / TESTS
"""Of each test: they share 5 %."""
OFTEN = 0.8
"""In so many populations of the number of models that is advised a difference that matters is shown."""

Question = Literal["remembers", "unfinished"]
WORDS: dict[Question, dict[str, tuple[str, str]]] = {
    "remembers": {
        "more": ("remembers", "{} remembers: beside held-out rows it is surer of the forgotten rows than Retrain"),
        "less": ("remembers", "{} remembers: beside held-out rows it is less sure of the forgotten rows than Retrain"),
        "no": ("none", "No memory seen in {}"),
        "open": ("undecided", "Whether {} remembers is not decided"),
    },
    "unfinished": {
        "more": ("further", "{} is not unfinished, but trained further than Retrain"),
        "less": ("unfinished", "{} is unfinished"),
        "no": ("finished", "{} is as finished as Retrain"),
        "open": ("undecided", "Whether {} is unfinished is not decided"),
    },
}
"""Of each answer its kind, and how its sentence begins."""


@dataclass(frozen=True)
class Difference:
    """One difference to Retrain, 0 where there is none, and how rare so large a one is."""

    words: str
    """What was measured, with numbers."""
    difference: Interval
    p: float
    more: bool
    """Whether it means surer than Retrain."""
    matters: float = MATTERS
    unit: str = " AUC"

    @property
    def told(self) -> bool:
        return self.p < LEVEL and not self.difference.low <= 0 <= self.difference.high

    @property
    def far(self) -> float:
        """The largest difference that the interval holds."""
        return max(self.difference.high, -self.difference.low)

    @property
    def bound(self) -> str:
        return f"{self.far:.3f}{self.unit}"


@dataclass(frozen=True)
class VerdictAnswer:
    """One answer, as a sentence."""

    kind: str
    sentence: str
    bound: float
    """The largest difference that is not ruled out, in AUC."""


def verdict(question: Question, title: str, models: int, tests: Sequence[Difference], aside: str = "") -> VerdictAnswer:
    """What can be said of a method, over `models` of each kind; `aside` ends the sentence."""
    bound = max(test.far for test in tests if test.matters == MATTERS)

    def answer(key: str, rest: str) -> VerdictAnswer:
        kind, words = WORDS[question][key]
        return VerdictAnswer(kind, words.format(title) + rest + aside, bound)

    if models < fewest(LEVEL):
        half = models // 2
        return answer(
            "open",
            f" at N = {models}: {half} judged models of each kind can be parted in only {_ways(half)} ways. It takes"
            f" {fewest(LEVEL)} models, better 32.",
        )
    told = [test for test in tests if test.told]
    if told:
        said = told if question == "remembers" else tests  # accuracy belongs to the second answer in any case
        return answer("more" if told[0].more else "less", f" ({'; '.join(test.words for test in said)}).")
    measured = "; ".join(test.words for test in tests)
    if all(test.far <= test.matters for test in tests):
        bounds = listed((test.bound for test in tests), last="and")
        return answer("no", f" at N = {models} ({measured}): differences beyond {bounds} are ruled out.")
    widest = max(tests, key=lambda test: test.far / test.matters)
    return answer(
        "open",
        f" at N = {models} ({measured}). A difference of up to {widest.bound} could have gone unseen; about"
        f" {needed(models, tests)} models of each kind would show {widest.matters:g}{widest.unit} four times in five.",
    )


def _ways(half: int) -> int:
    """In how many ways so many models of each of two kinds can be parted."""
    return math.comb(2 * half, half)


def fewest(level: float) -> int:
    """The fewest models of each kind whose halves a test can tell apart at this level.

    A difference counts on both sides of 0.
    """
    half = 1
    while 2 / _ways(half) >= level:
        half += 1
    return 2 * half


def needed(models: int, tests: Sequence[Difference]) -> int:
    """How many models it takes, if an interval narrows with the root of their number.

    A test at its level shows a difference four times in five that is so many standard errors wide: 3.34 at 1.25 %.
    """
    normal = NormalDist()
    widest = max((test.difference.high - test.difference.low) / test.matters for test in tests)
    error = widest / (2 * normal.inv_cdf(0.975))
    wide = normal.inv_cdf(1 - LEVEL / 2) + normal.inv_cdf(OFTEN)
    return max(2 * models, 8 * math.ceil(models * (error * wide) ** 2 / 8))
