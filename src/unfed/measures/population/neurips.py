"""The forgetting score of the NeurIPS 2023 unlearning challenge, which a perfect method misses.

For each row, N values of φ under unlearned models against N under Retrains. A rule is a threshold or an interval, and
calls what lies on one side of it (in it, or out of it) unlearned; with its error rates, δ = 0.00001:

    ε = max over rules of  log((1 − δ − FPR)/FNR),  log((1 − δ − FNR)/FPR)
        a rule with exactly one of FPR, FNR at 0 is dropped; with both at 0 the row is at the cap, log N
    points(row) = 2^−⌊ε / 0.5⌋                    they halve for each 0.5 of ε
    F = mean of the points;      score = F · RA_u/RA_r · TA_u/TA_r      (accuracy on retained and on test rows)

The best of some thousand rules finds a difference where there is none: two draws of one distribution score 0.12 at
N = 16, 0.09 at 32 and 0.07 at 64. So the score is shown beside that of Retrains against other Retrains, or not at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed.errors import UnfedError
from unfed.measures.population.signals import Floats

DELTA = 1e-5
STEP = 0.5


def epsilon(unlearned: NDArray[Any], retrained: NDArray[Any]) -> Floats:
    """ε of every row, from φ [models, rows] of both kinds, equally many of each."""
    n = len(unlearned)
    if n != len(retrained) or n < 2:
        raise UnfedError(
            f"The challenge's score takes equally many models of both kinds, at least 2, not {n} and {len(retrained)};"
            " `unfed population` makes as many Retrains."
        )
    first, last = np.triu_indices(2 * n + 1, 1)  # every run of neighbours in the sorted values is a rule's inside
    return np.array([_of_row(u, r, first, last) for u, r in zip(unlearned.T, retrained.T, strict=True)])


def _of_row(unlearned: Floats, retrained: Floats, first: NDArray[np.int64], last: NDArray[np.int64]) -> float:
    n, values = len(unlearned), np.concatenate([unlearned, retrained])
    order = np.argsort(values, kind="stable")
    is_unlearned, ranked = order < n, values[order]
    # A rule cannot part equal values.
    cut = np.r_[True, ranked[1:] != ranked[:-1], True]
    possible = cut[first] & cut[last]
    unlearned_below, retrained_below = np.r_[0, np.cumsum(is_unlearned)], np.r_[0, np.cumsum(~is_unlearned)]
    u = (unlearned_below[last] - unlearned_below[first])[possible]
    r = (retrained_below[last] - retrained_below[first])[possible]
    # Inside is called unlearned: FPR = r/n, FNR = (n − u)/n; outside: FPR = (n − r)/n, FNR = u/n.
    return max(_best(r, n - u, n), _best(n - r, u, n))


def _best(alarms: NDArray[np.int64], misses: NDArray[np.int64], n: int) -> float:
    """The largest ε of rules with so many false alarms and misses of n each."""
    if ((alarms == 0) & (misses == 0)).any():
        return float(np.log(n))
    kept = (alarms > 0) & (misses > 0)
    fpr, fnr = alarms[kept] / n, misses[kept] / n
    tiny = np.finfo(float).tiny  # where 1 − δ − rate is not positive the rule says nothing
    found = np.maximum(np.log(np.maximum(1 - DELTA - fpr, tiny) / fnr), np.log(np.maximum(1 - DELTA - fnr, tiny) / fpr))
    return float(found.max(initial=0.0))


def points(epsilons: Floats) -> Floats:
    """2^−⌊ε / 0.5⌋: 1 for ε below 0.5, half of it for each 0.5 more."""
    found: Floats = 2.0 ** -np.floor(epsilons / STEP)
    return found


def quality(unlearned: NDArray[Any], retrained: NDArray[Any]) -> float:
    """F: the mean points over rows, from φ [models, rows] of both kinds."""
    return float(points(epsilon(unlearned, retrained)).mean())


def score(f: float, retain: tuple[float, float], test: tuple[float, float]) -> float:
    """F · RA_u/RA_r · TA_u/TA_r; each pair is (unlearned, Retrain), mean accuracies over models."""
    if min(retain[1], test[1]) <= 0:
        raise UnfedError("Retrains that read no row right are no yardstick for the challenge's score; train longer.")
    return f * retain[0] / retain[1] * test[0] / test[1]
