"""How sure a number is: by drawing models and rows again.

Models are drawn with replacement on each side, and rows once for both sides, because the same rows stand on both: a
two-way bootstrap, which takes the rows of one model as dependent on each other, and so the models of one row.

    interval = the 2.5 % and 97.5 % quantiles of the statistic over the draws
    lower, upper = the bounds of an interval at a level that several tests share, for their verdict

A permutation test asks the other question: were the two kinds of model one kind, how often would so large a value be
seen? Which models are called unlearned is drawn anew; p = (1 + draws at least as large) / (1 + draws), exact at any N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from unfed import rng
from unfed.measures.population.roc import Roc
from unfed.measures.population.signals import Floats

DRAWS = 1_000
PERMUTATIONS = 400


@dataclass(frozen=True)
class Interval:
    """A value with the range that it could as well have had."""

    value: float
    low: float
    high: float
    """The 95 % interval."""
    lower: float
    upper: float
    """The interval at the level that was asked for."""

    @staticmethod
    def of(value: float, seen: Floats, level: float) -> Interval:
        """By the quantiles of what was seen over the draws."""
        low, high, lower, upper = np.quantile(seen, [0.025, 0.975, level / 2, 1 - level / 2])
        return Interval(value, float(low), float(high), float(lower), float(upper))

    def to_json(self) -> dict[str, float]:
        return asdict(self)


Rates = tuple[Floats, Floats]


def over_models_and_rows(
    unlearned: Floats,
    retrained: Floats,
    statistics: Sequence[Callable[[Rates], float]],
    seed: int = 0,
    level: float = 0.05,
    draws: int = DRAWS,
) -> list[Interval]:
    """Statistics of the ROC curve of two tables of scores [models, rows], each with its interval."""
    curve, generator = Roc(unlearned, retrained), np.random.default_rng(rng.key("population", "bootstrap", seed))
    (n, rows), m = unlearned.shape, len(retrained)
    seen = np.empty((draws, len(statistics)))
    for i in range(draws):
        models = _counts(generator, n), _counts(generator, m)
        rates = curve.rates(models, _counts(generator, rows))
        seen[i] = [statistic(rates) for statistic in statistics]
    whole = curve.rates()
    return [Interval.of(statistic(whole), seen[:, k], level) for k, statistic in enumerate(statistics)]


def over_models(
    unlearned: Floats, retrained: Floats, seed: int = 0, level: float = 0.05, draws: int = DRAWS
) -> Interval:
    """The difference of two means over models, [models] each, with its interval."""
    generator = np.random.default_rng(rng.key("population", "difference", seed))
    seen = np.array(
        [
            generator.choice(unlearned, len(unlearned)).mean() - generator.choice(retrained, len(retrained)).mean()
            for _ in range(draws)
        ]
    )
    return Interval.of(float(unlearned.mean() - retrained.mean()), seen, level)


def permuted(
    first: NDArray[np.generic],
    second: NDArray[np.generic],
    statistic: Callable[[NDArray[np.generic], NDArray[np.generic]], float],
    seed: int = 0,
    draws: int = PERMUTATIONS,
) -> float:
    """p of the statistic being so large if the models of both tables were of one kind."""
    everybody, n = np.concatenate([first, second]), len(first)
    generator, here = np.random.default_rng(rng.key("population", "permutation", seed)), statistic(first, second)
    larger = 0
    for _ in range(draws):
        drawn = generator.permutation(len(everybody))
        larger += statistic(everybody[drawn[:n]], everybody[drawn[n:]]) >= here
    return (1 + larger) / (1 + draws)


def _counts(generator: np.random.Generator, n: int) -> Floats:
    """How often each of n was drawn."""
    found: Floats = np.bincount(generator.integers(n, size=n), minlength=n).astype(np.float64)
    return found
