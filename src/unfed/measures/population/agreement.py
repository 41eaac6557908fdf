"""Prediction agreement: how often an unlearned model and a Retrain read a row alike.

    agreement = mean over rows, unlearned models i and Retrains j of [argmax_i = argmax_j]
              = mean over rows of Σ_c share_u(c) · share_r(c)

Two Retrains do not agree everywhere either: Retrains against other Retrains are the yardstick.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed.measures.population.signals import Floats


def agreement(unlearned: NDArray[Any], retrained: NDArray[Any]) -> float:
    """The share of (row, unlearned model, Retrain) that are read alike, from classes [models, rows]."""
    classes = int(max(unlearned.max(), retrained.max())) + 1
    return float((_shares(unlearned, classes) * _shares(retrained, classes)).sum(axis=1).mean())


def _shares(read: NDArray[Any], classes: int) -> Floats:
    """The share of models that read each class, [rows, classes]."""
    found: Floats = (read[:, :, None] == np.arange(classes)).mean(axis=0)
    return found
