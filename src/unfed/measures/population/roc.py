"""How well scores tell two kinds of model apart.

    TPR(t), FPR(t)   share of scores above t among unlearned models, among Retrains
    AUC              P(score_u > score_r) + ½ P(score_u = score_r)                       ½: cannot tell
    TPR at FPR f     the largest TPR(t) with FPR(t) ≤ f                                   f: cannot tell
    worst slice      the largest AUC over groups of rows (one per label)

Scores are [models, rows], the same rows on both sides. Weights are counts: drawing a model twice counts it twice, so a
bootstrap sorts once and weighs often. A TPR at f is one score's business when there are fewer than 1/f scores of
Retrains: then it is not given, and how many models it takes is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from unfed.measures.population.signals import Floats
from unfed.values import Value, not_measured

LOW = (0.01, 0.001)
"""The false positive rates at which a true positive rate is given."""


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
        f"a TPR at {100 * fpr:g} % FPR takes {needed:,} scores of Retrains, and {models} judged models of {rows}"
        f" forgotten rows give {models * rows:,}; it takes {enough} models (`unfed population … --models {enough}`)"
    )


def slices(unlearned: Floats, retrained: Floats, groups: Mapping[str, NDArray[np.bool_]]) -> dict[str, float]:
    """AUC of every group of rows, the largest first."""
    found = {name: auc(unlearned[:, rows], retrained[:, rows]) for name, rows in groups.items() if rows.any()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def exposure(unlearned: Floats, retrained: Floats) -> Floats:
    """AUC of every single row over models: 1 gives it away in every model, ½ in none."""
    above = (unlearned[:, None, :] > retrained[None, :, :]).mean(axis=(0, 1))
    level = (unlearned[:, None, :] == retrained[None, :, :]).mean(axis=(0, 1))
    found: Floats = above + 0.5 * level
    return found
