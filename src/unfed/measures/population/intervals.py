"""How well scores tell two kinds of model apart: ROC, intervals, permutation tests.

Scores are [models, rows], the same rows on both sides.

    TPR(t), FPR(t)   share of scores above t among unlearned models, among Retrains
    AUC              P(score_u > score_r) + ½ P(score_u = score_r)                       ½: cannot tell
    TPR at FPR f     the largest TPR(t) with FPR(t) ≤ f                                   f: cannot tell

Intervals are the 2.5 % and 97.5 % quantiles over a two-way bootstrap: models are drawn with replacement on each side (n
− 1 of n, because n of few make it too narrow), and rows once for both sides. The difference of two means of one number
per model has Welch's interval instead. A permutation test asks how often so large a value would be seen if both kinds
of model were one: p = (1 + draws at least as large) / (1 + draws).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed import rng
from unfed.measures.population.distances import Floats
from unfed.values import Value, not_measured

LOW = (0.01, 0.001)
"""The false positive rates at which a true positive rate is given."""
DRAWS = 1_000
PERMUTATIONS = 400
FEW_WAYS = 1_000
"""Up to so many ways to part the models, each is taken once in place of draws."""


class Roc:
    """The curve of two tables of scores, sorted once."""

    def __init__(self, unlearned: Floats, retrained: Floats) -> None:
        scores = np.concatenate([unlearned.ravel(), retrained.ravel()])
        self._order = np.argsort(-scores, kind="stable")
        ranked = scores[self._order]
        self._groups = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])  # ties are one step of the curve
        self._kinds = (unlearned.shape, retrained.shape)

    def rates(self, models: tuple[Floats, Floats] | None = None, rows: Floats | None = None) -> tuple[Floats, Floats]:
        """(FPR, TPR) from the strictest threshold to the loosest, beginning at (0, 0)."""
        (n, width), (m, _) = self._kinds
        of_rows = np.ones(width) if rows is None else rows
        of_models = (np.ones(n), np.ones(m)) if models is None else models
        weights = [np.outer(of_models[0], of_rows).ravel(), np.outer(of_models[1], of_rows).ravel()]
        nothing = [np.zeros_like(weights[0]), np.zeros_like(weights[1])]
        hits = self._steps(np.concatenate([weights[0], nothing[1]]))
        alarms = self._steps(np.concatenate([nothing[0], weights[1]]))
        return alarms / alarms[-1], hits / hits[-1]

    def _steps(self, weights: Floats) -> Floats:
        found: Floats = np.r_[0.0, np.cumsum(np.add.reduceat(weights[self._order], self._groups))]
        return found


def area(rates: tuple[Floats, Floats]) -> float:
    """AUC: the area under the curve, ties counted half."""
    fpr, tpr = rates
    return float(np.sum(np.diff(fpr) * (tpr[1:] + tpr[:-1]) / 2))


def placed(forgotten: Floats, held_out: Floats) -> tuple[Floats, Floats]:
    """How high forgotten rows stand among held-out rows of the same model, by scores [models, rows].

    The share of held-out rows that each forgotten row beats, and of forgotten rows that beat each held-out row, ties
    counted half: a model's mean over either is its AUC of forgotten against held-out rows.
    """
    return _beaten(forgotten, held_out), 1.0 - _beaten(held_out, forgotten)


def _beaten(ours: Floats, theirs: Floats) -> Floats:
    pairs = [(np.sort(z), x) for x, z in zip(ours, theirs, strict=True)]
    counts = [np.searchsorted(z, x, side="left") + np.searchsorted(z, x, side="right") for z, x in pairs]
    found: Floats = np.stack(counts) / (2 * theirs.shape[1])
    return found


def tpr_at(rates: tuple[Floats, Floats], fpr: float) -> float:
    """The largest TPR whose FPR is at most this."""
    return float(rates[1][rates[0] <= fpr * (1 + 1e-12)].max())


def auc(unlearned: Floats, retrained: Floats) -> float:
    """AUC of two tables of scores."""
    return area(Roc(unlearned, retrained).rates())


def too_few(fpr: float, models: int, rows: int, groups: int = 2) -> Value | None:
    """Why no TPR can be given at so low a rate, and how many models it takes; None where it can.

    `models` are one of so many groups into which a kind of model is cut.
    """
    needed = math.ceil(1 / fpr - 1e-9)
    if models * rows >= needed:
        return None
    enough = groups * math.ceil(needed / rows)
    return not_measured(
        f"a TPR at {100 * fpr:g} % FPR takes {needed:,} scores of Retrains, and {models} models of {rows} rows give"
        f" {models * rows:,}; run `unfed population … --models {enough}`"
    )


def auc_by_slice(unlearned: Floats, retrained: Floats, groups: Mapping[str, NDArray[np.bool_]]) -> dict[str, float]:
    """AUC of every group of rows, the largest first."""
    found = {name: auc(unlearned[:, rows], retrained[:, rows]) for name, rows in groups.items() if rows.any()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def exposure(unlearned: Floats, retrained: Floats) -> Floats:
    """AUC of every single row over models: 1 gives it away in every model, ½ in none."""
    above = (unlearned[:, None, :] > retrained[None, :, :]).mean(axis=(0, 1))
    level = (unlearned[:, None, :] == retrained[None, :, :]).mean(axis=(0, 1))
    found: Floats = above + 0.5 * level
    return found


# --- intervals and permutation tests ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resampling:
    """How many draws stand behind intervals and p-values."""

    draws: int = DRAWS
    permutations: int = PERMUTATIONS
    seed: int = 0


@dataclass(frozen=True)
class Interval:
    """A value with the range that it could as well have had."""

    value: float
    low: float
    high: float
    """The 95 % interval."""

    @staticmethod
    def of(value: float, seen: Floats) -> Interval:
        """By the quantiles of what was seen over the draws."""
        low, high = np.quantile(seen, [0.025, 0.975])
        return Interval(value, float(low), float(high))

    def to_json(self) -> dict[str, float]:
        return asdict(self)


Rates = tuple[Floats, Floats]


def over_models_and_rows(
    unlearned: Floats,
    retrained: Floats,
    statistics: Sequence[Callable[[Rates], float]],
    seed: int = 0,
    draws: int = DRAWS,
) -> list[Interval]:
    """Statistics of the ROC curve of two tables of scores [models, rows], each with its interval."""
    curve, generator = Roc(unlearned, retrained), np.random.default_rng(rng.key("population", "bootstrap", seed))
    (n, rows), m = unlearned.shape, len(retrained)
    seen = np.empty((draws, len(statistics)))
    for i in range(draws):
        models = _counts(generator, n, n - 1), _counts(generator, m, m - 1)
        rates = curve.rates(models, _counts(generator, rows, rows))
        seen[i] = [statistic(rates) for statistic in statistics]
    whole = curve.rates()
    return [Interval.of(statistic(whole), seen[:, k]) for k, statistic in enumerate(statistics)]


def over_models(unlearned: Floats, retrained: Floats) -> Interval:
    """The difference of two means over models, [models] each, with Welch's 95 % interval."""
    from scipy.stats import t  # imported where it is used: most commands need none of it

    difference = float(unlearned.mean() - retrained.mean())
    first, second = unlearned.var(ddof=1) / len(unlearned), retrained.var(ddof=1) / len(retrained)
    if first + second == 0:
        return Interval(difference, difference, difference)
    freedom = (first + second) ** 2 / (first**2 / (len(unlearned) - 1) + second**2 / (len(retrained) - 1))
    reach = float(t.ppf(0.975, freedom) * math.sqrt(first + second))
    return Interval(difference, difference - reach, difference + reach)


def difference(
    unlearned: Sequence[Floats],
    retrained: Sequence[Floats],
    seed: int = 0,
    draws: int = DRAWS,
    permutations: int = PERMUTATIONS,
) -> tuple[Interval, float]:
    """The difference of a mean over models and rows, and p of its being so far from 0.

    Each side has one table [models, rows], or two with the same mean for each model, by forgotten and by held-out rows
    (`roc.placed`); what draws of both groups of rows change is added up.
    """
    own, others = unlearned[0].mean(axis=1), retrained[0].mean(axis=1)
    n, m, value = len(own), len(others), float(own.mean() - others.mean())
    generator = np.random.default_rng(rng.key("population", "difference", seed))
    seen = np.zeros(draws)
    for i in range(draws):
        ours, theirs = _counts(generator, n, n - 1) / (n - 1), _counts(generator, m, m - 1) / (m - 1)
        for table, other in zip(unlearned, retrained, strict=True):
            rows = table.shape[1]
            seen[i] += (ours @ table - theirs @ other) @ _counts(generator, rows, rows) / rows
        seen[i] -= (len(unlearned) - 1) * (ours @ own - theirs @ others)
    rare = math.erfc(abs(value) / max(float(seen.std()), 1e-12) / math.sqrt(2))
    swapped = permuted(own, others, _apart, seed, permutations)
    return Interval.of(value, seen), max(rare, swapped)


def permuted(
    first: NDArray[np.generic],
    second: NDArray[np.generic],
    statistic: Callable[[NDArray[np.generic], NDArray[np.generic]], float],
    seed: int = 0,
    draws: int = PERMUTATIONS,
) -> float:
    """p of the statistic being so large if the models of both tables were of one kind."""
    both, n = np.concatenate([first, second]), len(first)
    generator, here = np.random.default_rng(rng.key("population", "permutation", seed)), statistic(first, second)
    return _p(statistic(both[ours], both[~ours]) >= here for ours in _parted(len(both), n, generator, draws))


def auc_p(unlearned: Floats, retrained: Floats, seed: int = 0, draws: int = PERMUTATIONS) -> float:
    """p of an AUC being so far from ½ if the models of both tables of scores were of one kind.

    The same as `permuted`, but all scores are sorted once.
    """
    both, n = np.concatenate([unlearned, retrained]), len(unlearned)
    curve, generator = Roc(both, both), np.random.default_rng(rng.key("population", "auc", seed))

    def far(chosen: NDArray[np.bool_]) -> float:
        mask = chosen.astype(np.float64)
        return abs(area(curve.rates((mask, 1 - mask))) - 0.5)

    here = far(np.arange(len(both)) < n)
    return _p(far(ours) >= here - 1e-12 for ours in _parted(len(both), n, generator, draws))


def _apart(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Rounded, because a division and its mirror image differ by rounding alone."""
    return round(abs(float(first.mean() - second.mean())), 12)


def _counts(generator: np.random.Generator, n: int, draws: int) -> Floats:
    """How often each of n was drawn."""
    found: Floats = np.bincount(generator.integers(n, size=draws), minlength=n).astype(np.float64)
    return found


def _parted(models: int, n: int, generator: np.random.Generator, draws: int) -> Iterator[NDArray[np.bool_]]:
    """Other ways to call n of the models unlearned: all of them where they are few, else so many draws."""
    few = math.comb(models, n) <= FEW_WAYS
    ways = islice(combinations(range(models), n), 1, None)  # the first is how they are parted here
    drawn = (generator.permutation(models)[:n] for _ in range(draws))
    for chosen in ways if few else drawn:
        found = np.zeros(models, dtype=np.bool_)
        found[list(chosen)] = True
        yield found


def _p(as_large: Iterator[bool]) -> float:
    """Never 0: what was seen is itself one of the ways."""
    seen = [bool(one) for one in as_large]
    return (1 + sum(seen)) / (1 + len(seen))
