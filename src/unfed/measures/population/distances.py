"""How far unlearned models stand from Retrains: KLoM, the challenge's score, prediction agreement.

Each is shown beside Retrains against other Retrains. `seen` gives what distances and attacks look at, in float64:

    p = softmax(logits)_y                                        the probability of the row's own label
    φ = log p − log(1 − p) = logit_y − log Σ_{c≠y} e^{logit_c}    the margin, which is near normal over models
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unfed.errors import UnfedError

# --- what an attack looks at: one number per model and row ------------------------------------------------------------


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
        raise UnfedError("The forget set is empty, so nothing can be measured; ask for rows that are there.")
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
        alone = {name: values[models] for name, values in vars(self).items() if isinstance(values, np.ndarray)}
        forget, retain, test = self.entropies
        accuracies = {group: right[models] for group, right in self.accuracies.items()}
        return replace(self, **alone, entropies=(forget[models], retain[models], test[models]), accuracies=accuracies)


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


# --- how far unlearned models stand from Retrains: KLoM, the challenge's score, prediction agreement ------------------


KLOM_BINS = 20
KLOM_FLOOR = 1e-5
KLOM_CLIP = 100.0
DELTA = 1e-5
STEP = 0.5
PEAKED = 0.01
FEWEST = 3
"""Models a side: below, no ε is small enough for a point."""

Counts = NDArray[np.int64]


# --- KLoM -------------------------------------------------------------------------------------------------------------


def klom(unlearned: NDArray[Any], retrained: NDArray[Any]) -> Floats:
    """KLoM of every row, from margins [models, rows] of both kinds.

    margin = logit_y − log Σ_{c≠y} e^{logit_c},  clipped to ±100
        20 bins of equal width over the joint range of a row's margins; p, q = shares of unlearned models, of Retrains
        KLoM(row) = Σ_bins p · log(p / max(q, 0.00001)),  the q over their sum          0: alike

    The measure is that of Georgiev et al. 2024. A bin that no Retrain fell into counts as 0.00001, so few models make
    it large for nothing: Retrains against other Retrains at the same N are its yardstick.
    """
    if min(len(unlearned), len(retrained)) == 0:
        raise UnfedError("KLoM compares two kinds of model, and of one there is none; `unfed population` makes them.")
    first, second = np.clip(unlearned, -KLOM_CLIP, KLOM_CLIP), np.clip(retrained, -KLOM_CLIP, KLOM_CLIP)
    low = np.minimum(first.min(axis=0), second.min(axis=0))
    width = np.maximum(first.max(axis=0), second.max(axis=0)) - low
    width = np.where(width > 0, width, 1.0)
    p, q = _binned(first, low, width), _binned(second, low, width)
    q = np.where(p > 0, np.maximum(q, KLOM_FLOOR), q)
    q = q / q.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log(p / q), 0.0)
    found: Floats = terms.sum(axis=1)
    return found


def _binned(margins: Floats, low: Floats, width: Floats) -> Floats:
    """The share of models in each bin, [rows, bins]; a value on an inner edge lies in the bin above it."""
    place = np.minimum(((margins - low) / width * KLOM_BINS).astype(np.int64), KLOM_BINS - 1)
    flat = place + KLOM_BINS * np.arange(margins.shape[1])
    counts = np.bincount(flat.ravel(), minlength=KLOM_BINS * margins.shape[1]).reshape(margins.shape[1], KLOM_BINS)
    found: Floats = counts / len(margins)
    return found


# --- the NeurIPS 2023 challenge ---------------------------------------------------------------------------------------


def epsilon(unlearned: NDArray[Any], retrained: NDArray[Any]) -> Floats:
    """ε of every row, from φ [models, rows] of both kinds, equally many of each.

    For each row, N values of φ under unlearned models against N under Retrains. Rules that part them:

        one threshold    what lies above it is of the kind with the larger median
        an interval      what lies in it is of the kind with the smaller range

        ε = max over rules of  log((1 − δ − FPR)/FNR),  log((1 − δ − FNR)/FPR),      δ = 0.00001
            a rule with one of FPR, FNR at 0 is dropped; with both at 0, or one range below 1 % of the other, ε = ∞
        points(row) = 2^−⌊ε / 0.5⌋, and 0 from ε = ⌈log(N − 1)⌉ on            they halve for each 0.5 of ε
        F = mean of the points;      score = F · RA_u/RA_r · TA_u/TA_r        (accuracy on retained and on test rows)

    Every interval is tried, where the challenge's own code tries a grid of them. The best of some thousand rules finds
    a difference where there is none: two draws of one distribution score 0.130 at N = 16, 0.101 at 32 and 0.083 at 64.
    So the score is shown beside that of Retrains against other Retrains, or not at all.
    """
    n = len(unlearned)
    if n != len(retrained) or n < FEWEST:
        raise UnfedError(
            f"The challenge's score takes equally many models of both kinds, at least {FEWEST}, not {n} and"
            f" {len(retrained)}; `unfed population` makes as many Retrains."
        )
    # Every run of neighbours in the sorted values is some interval's inside.
    first, last = np.triu_indices(2 * n + 1, 1)
    return np.array([_of_row(u, r, first, last) for u, r in zip(unlearned.T, retrained.T, strict=True)])


def _of_row(unlearned: Floats, retrained: Floats, first: Counts, last: Counts) -> float:
    larger, smaller = unlearned, retrained
    if np.median(retrained) > np.median(unlearned):
        larger, smaller = retrained, unlearned
    narrow, wide = (smaller, larger) if np.ptp(larger) >= np.ptp(smaller) else (larger, smaller)
    if np.ptp(narrow) < PEAKED * np.ptp(wide):
        return float("inf")
    n = len(unlearned)
    inside, alarms, cut = _below(narrow, wide)
    kept = cut[first] & cut[last]
    interval = _best(alarms[last][kept] - alarms[first][kept], n - (inside[last] - inside[first])[kept], n)
    hits, wrong, cut = _below(larger, smaller)
    return max(interval, _best((n - wrong)[cut], hits[cut], n))


def _below(one: Floats, other: Floats) -> tuple[Counts, Counts, NDArray[np.bool_]]:
    """How many of each kind lie below each place between sorted values; equal ones have none between."""
    values = np.concatenate([one, other])
    order = np.argsort(values, kind="stable")
    mine, ranked = order < len(one), values[order]
    cut = np.r_[True, ranked[1:] != ranked[:-1], True]
    return np.r_[0, np.cumsum(mine)], np.r_[0, np.cumsum(~mine)], cut


def _best(alarms: Counts, misses: Counts, n: int) -> float:
    """The largest ε of rules with so many false alarms and misses of n each."""
    if ((alarms == 0) & (misses == 0)).any():
        return float("inf")
    kept = (alarms > 0) & (misses > 0)
    fpr, fnr = alarms[kept] / n, misses[kept] / n
    tiny = np.finfo(float).tiny  # where 1 − δ − rate is not positive the rule says nothing
    found = np.maximum(np.log(np.maximum(1 - DELTA - fpr, tiny) / fnr), np.log(np.maximum(1 - DELTA - fnr, tiny) / fpr))
    return float(found.max(initial=0.0))


def points(epsilons: Floats, models: int) -> Floats:
    """2^−⌊ε / 0.5⌋: 1 for ε below 0.5, half of it for each 0.5 more, 0 beyond what N models show."""
    most = np.ceil(np.log(models - 1))
    found: Floats = np.where(epsilons < most, 2.0 ** -np.floor(np.minimum(epsilons, most) / STEP), 0.0)
    return found


def forgetting_quality(unlearned: NDArray[Any], retrained: NDArray[Any]) -> float:
    """F: the mean points over rows, from φ [models, rows] of both kinds."""
    return float(points(epsilon(unlearned, retrained), len(unlearned)).mean())


def challenge_score(f: float, retain: tuple[float, float], test: tuple[float, float]) -> float:
    """F · RA_u/RA_r · TA_u/TA_r; each pair is (unlearned, Retrain), mean accuracies over models."""
    if min(retain[1], test[1]) <= 0:
        raise UnfedError("Retrains that read no row right are no yardstick for the challenge's score; train longer.")
    return f * retain[0] / retain[1] * test[0] / test[1]


# --- agreement --------------------------------------------------------------------------------------------------------


def agreement(unlearned: NDArray[Any], retrained: NDArray[Any]) -> float:
    """The share of (row, unlearned model, Retrain) that are read alike, from classes [models, rows].

    agreement = mean over rows, unlearned models i and Retrains j of [argmax_i = argmax_j]
                  = mean over rows of Σ_c share_u(c) · share_r(c)

    Two Retrains do not agree everywhere either: Retrains against other Retrains are the yardstick.
    """
    classes = int(max(unlearned.max(), retrained.max())) + 1
    return float((_shares(unlearned, classes) * _shares(retrained, classes)).sum(axis=1).mean())


def _shares(read: NDArray[Any], classes: int) -> Floats:
    """The share of models that read each class, [rows, classes]."""
    found: Floats = (read[:, :, None] == np.arange(classes)).mean(axis=0)
    return found
