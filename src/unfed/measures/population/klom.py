"""KLoM: how far the margins of unlearned models lie from those of Retrains, row by row.

    margin = logit_y − log Σ_{c≠y} e^{logit_c},  clipped to ±100
    20 bins of equal width over the joint range of a row's margins; p, q = shares of unlearned models, of Retrains
    KLoM(row) = Σ_bins p · log(p / max(q, 0.00001)),  the q over their sum          0: alike

The measure is that of Georgiev et al. 2024. A bin that no Retrain fell into counts as 0.00001, so few models make it
large for nothing: Retrains against other Retrains at the same N are its yardstick.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed.errors import UnfedError
from unfed.measures.population.signals import Floats

BINS = 20
FLOOR = 1e-5
CLIP = 100.0


def klom(unlearned: NDArray[Any], retrained: NDArray[Any]) -> Floats:
    """KLoM of every row, from margins [models, rows] of both kinds."""
    if min(len(unlearned), len(retrained)) == 0:
        raise UnfedError("KLoM compares two kinds of model, and of one there is none; `unfed population` makes them.")
    first, second = np.clip(unlearned, -CLIP, CLIP), np.clip(retrained, -CLIP, CLIP)
    low = np.minimum(first.min(axis=0), second.min(axis=0))
    width = np.maximum(first.max(axis=0), second.max(axis=0)) - low
    width = np.where(width > 0, width, 1.0)
    p, q = _shares(first, low, width), _shares(second, low, width)
    q = np.where(p > 0, np.maximum(q, FLOOR), q)
    q = q / q.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log(p / q), 0.0)
    found: Floats = terms.sum(axis=1)
    return found


def _shares(margins: Floats, low: Floats, width: Floats) -> Floats:
    """The share of models in each bin, [rows, bins]; a value on an inner edge lies in the bin above it."""
    place = np.minimum(((margins - low) / width * BINS).astype(np.int64), BINS - 1)
    flat = place + BINS * np.arange(margins.shape[1])
    counts = np.bincount(flat.ravel(), minlength=BINS * margins.shape[1]).reshape(margins.shape[1], BINS)
    found: Floats = counts / len(margins)
    return found
