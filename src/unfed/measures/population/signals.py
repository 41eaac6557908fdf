"""What an attack looks at: one number per model and row.

    p = softmax(logits)_y                                        the probability of the row's own label
    φ = log p − log(1 − p) = logit_y − log Σ_{c≠y} e^{logit_c}    the margin, which is near normal over models

`logits` is [models, rows, classes], `labels` [rows]; the answers are [models, rows], in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed.errors import UnfedError

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def margin(logits: NDArray[Any], labels: NDArray[Any]) -> Floats:
    """φ: how far the row's own label stands above all others, in log odds."""
    own, others = _own_and_others(logits, labels)
    top = others.max(axis=-1)
    found: Floats = own - (top + np.log(np.exp(others - top[..., None]).sum(axis=-1)))
    return found


def probability(logits: NDArray[Any], labels: NDArray[Any]) -> Floats:
    """p: what the model gives to the row's own label."""
    phi = margin(logits, labels)
    found: Floats = 0.5 * (1.0 + np.tanh(0.5 * phi))  # the logistic function, without overflow
    return found


def entropy(logits: NDArray[Any]) -> Floats:
    """H = −Σ_c p_c log p_c: how undecided the model is about a row, whatever its label."""
    shifted = np.asarray(logits, dtype=np.float64)
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=-1)
    found: Floats = np.log(total) - (weights * shifted).sum(axis=-1) / total
    return found


def predictions(logits: NDArray[Any]) -> Labels:
    """The class that each model reads in each row."""
    found: Labels = np.asarray(logits).argmax(axis=-1).astype(np.int64)
    return found


def accuracy(logits: NDArray[Any], labels: NDArray[Any]) -> Floats:
    """The share of rows that each model reads right."""
    found: Floats = (predictions(logits) == np.asarray(labels)).mean(axis=-1)
    return found


def _own_and_others(logits: NDArray[Any], labels: NDArray[Any]) -> tuple[Floats, Floats]:
    values, own = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if values.ndim != 3 or own.shape != values.shape[1:2]:
        raise UnfedError(
            f"Logits are [models, rows, classes] with a label per row, not {values.shape} and {own.shape}."
        )
    if values.shape[1] == 0:
        raise UnfedError("The forget set is empty, so nothing can be told of it; ask for rows that are there.")
    if values.shape[2] < 2:
        raise UnfedError("There is only one class, so every model answers alike; the attacks need two.")
    if not np.isfinite(values).all():
        raise UnfedError("Some logits are NaN or infinite: a model has diverged; lower the learning rate.")
    chosen = own[None, :, None] == np.arange(values.shape[2])
    found: Floats = np.take_along_axis(values, own[None, :, None], axis=2)[..., 0]
    return found, np.where(chosen, -np.inf, values)
