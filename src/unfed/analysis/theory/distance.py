"""Negation moves a ReLU layer's answers farthest: Theorem 2, Lemma 1 and Lemma 2.

With σ(y) = max(y, 0), Y a layer's answers before σ, and Y' its answers under any other perturbation:

    E‖σ(Y) − σ(−Y)‖² ≥ E‖σ(Y) − σ(Y')‖² − 2ε                                                            (Eq. 4)
    where ε bounds  E|‖σ(Y)‖² − ‖σ(−Y)‖²|  and  E|‖σ(Y)‖² − ‖σ(Y')‖²|

    max over y ≥ 0 with ‖y‖ = ‖y₀‖ of  ‖y₀ − y‖²  =  2‖y₀‖² − 2‖y₀‖ · min_i y₀ᵢ           for y₀ ≥ 0    (Eq. 22, Eq. 23)

What holds: Eq. 4 and Lemma 1 (Eq. 24), on every sample, because σ(Y) and σ(−Y) are orthogonal and no two of σ's
answers point apart. What does not: Eq. 23 prints ‖y₀‖² for a y₀ without zeros, but (3, 4) reaches 20 and not 25, and
Eq. 22 means "at least one coordinate is zero". So Lemma 2's share of a layer drawn anew, α = 1 − 1/π, is the limit of
many coordinates: 0.84 of two, 0.682 of eight.

A distance is not a forecast. On digits a first layer drawn anew moves its answers 0.55 times as far as negation does,
one set to zero 0.50 times (`docs/how-to/analysis.md`), and both unlearn better than negation (`docs/how-to/paper.md`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unfed.errors import UnfedError

MANY = 1 - 1 / math.pi
"""Lemma 2's α for many coordinates."""


def activation_distance(y: Tensor, other: Tensor) -> float:
    """E‖σ(Y) − σ(Y')‖² over the rows of two matrices: either side of Theorem 2's Eq. 4."""
    y, other = _rows(y, other)
    return float((y.relu() - other.relu()).square().sum(1).mean())


def imbalance(y: Tensor, other: Tensor) -> float:
    """E|‖σ(Y)‖² − ‖σ(Y')‖²|: the least ε that Theorem 2's Eq. 4 may be given for this pair."""
    y, other = _rows(y, other)
    return float((y.relu().square().sum(1) - other.relu().square().sum(1)).abs().mean())


@dataclass(frozen=True)
class Lead:
    """Both sides of the inequality and its ε."""

    negation: float
    other: float
    epsilon: float

    @property
    def slack(self) -> float:
        """How far the left side lies above the right one; the theorem says never below 0."""
        return self.negation - (self.other - 2 * self.epsilon)

    @property
    def share(self) -> float:
        """The other perturbation's distance as a share of negation's."""
        return self.other / self.negation if self.negation else math.nan


def lead(y: Tensor, other: Tensor) -> Lead:
    """How far negation and another perturbation move the answers, and the least ε (Theorem 2, Eq. 4)."""
    epsilon = max(imbalance(y, -y), imbalance(y, other))
    return Lead(activation_distance(y, -y), activation_distance(y, other), epsilon)


def farthest(y: Tensor) -> Tensor:
    """For each row y₀ ≥ 0 the largest ‖y₀ − y‖² over y ≥ 0 of its length (Eq. 22, Eq. 23).

    Where a coordinate is zero this is Eq. 22's 2‖y₀‖²; elsewhere it is what Eq. 23 should read.
    """
    rows = y.double().reshape(len(y), -1)
    if bool((rows < 0).any()):
        raise UnfedError("Only answers of a ReLU, none below 0, have such a distance; apply it first.")
    # ⟨y₀, y⟩ is least where y lies along the axis of y₀'s smallest coordinate.
    length = rows.norm(dim=1)
    found: Tensor = 2 * length.square() - 2 * length * rows.amin(1)
    return found


def reach(y: Tensor) -> float:
    """How far E‖σ(Y) − σ(−Y)‖² lies above E[farthest] − ε: never below 0 (Lemma 1, Eq. 24)."""
    y, _ = _rows(y, y)
    return activation_distance(y, -y) - (float(farthest(y.relu()).mean()) - imbalance(y, -y))


def redrawn_share(width: int) -> float:
    """α for a layer of `width` Gaussian answers: how far drawing it anew goes (Lemma 2, Eq. 33).

    α = (1 − 1/π) / (1 − 2I/R)  with  I = ∫₀^∞ P(N > t)^width dt  and  R = E‖N(0, 1)^width‖: in the 2^−width of the
    cases in which no coordinate is zero, nothing is as far as 2‖y₀‖².
    """
    if width < 2:
        raise UnfedError("With one coordinate, no other answer of the same length exists; give a width of at least 2.")
    t = torch.linspace(0, 12, 24_001, dtype=torch.float64)
    tail = torch.special.erfc(t / math.sqrt(2)) / 2
    least = float(torch.trapezoid(tail**width, t))
    length = math.sqrt(2) * math.exp(math.lgamma((width + 1) / 2) - math.lgamma(width / 2))
    return MANY / (1 - 2 * least / length)


def _rows(y: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    if y.shape != other.shape or not len(y):
        raise UnfedError(
            f"The same rows through the same layer are compared, not {tuple(y.shape)} with {tuple(other.shape)}."
        )
    return y.double().reshape(len(y), -1), other.double().reshape(len(y), -1)
