"""What an attack looks at: one number per model and row.

    p = softmax(logits)_y                                        the probability of the row's own label
    φ = log p − log(1 − p) = logit_y − log Σ_{c≠y} e^{logit_c}    the margin, which is near normal over models

`logits` is [models, rows, classes], `labels` [rows]; the answers are [models, rows], in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

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


# --- what a kind of model shows ---------------------------------------------------------------------------------------


class ModelAnswers(Protocol):
    """A population: what many models of each kind say about the same rows."""

    def logits(self, kind: str, group: str) -> NDArray[Any]:
        """[models, rows, classes]."""
        ...

    def labels(self, group: str) -> NDArray[Any]:
        """[rows]."""
        ...


@dataclass(frozen=True)
class Seen:
    """What one kind of model shows of the rows, [models, rows] each: all that the measures need."""

    phi: Floats
    """Margins on the forgotten rows."""
    phi_test: Floats
    """Margins on the held-out rows."""
    forget: Floats
    """p of the own label, on the forgotten rows."""
    retain: Floats
    test: Floats
    entropies: tuple[Floats, Floats, Floats]
    """H on forgotten, retained and test rows."""
    read: Labels
    """The classes that are read in the forgotten rows."""
    right: Floats
    """Whether each held-out row is read right, 0 or 1."""
    accuracies: dict[str, Floats]
    """By group, the share that each model reads right."""

    def __len__(self) -> int:
        return len(self.phi)

    def __getitem__(self, models: slice) -> Seen:
        forget, retain, test = self.entropies
        return Seen(
            self.phi[models],
            self.phi_test[models],
            self.forget[models],
            self.retain[models],
            self.test[models],
            (forget[models], retain[models], test[models]),
            self.read[models],
            self.right[models],
            {group: right[models] for group, right in self.accuracies.items()},
        )


def seen(population: ModelAnswers, kind: str) -> Seen:
    """What a kind of model shows, computed from its logits once."""
    groups = ("forget", "retain", "test")
    labels = {group: population.labels(group) for group in groups}
    logits = {group: population.logits(kind, group) for group in groups}
    p = {group: probability(logits[group], labels[group]) for group in groups}
    return Seen(
        margin(logits["forget"], labels["forget"]),
        margin(logits["test"], labels["test"]),
        p["forget"],
        p["retain"],
        p["test"],
        (entropy(logits["forget"]), entropy(logits["retain"]), entropy(logits["test"])),
        predictions(logits["forget"]),
        (predictions(logits["test"]) == labels["test"]).astype(np.float64),
        {group: np.asarray(accuracy(logits[group], labels[group])) for group in groups},
    )
