"""What the paper says of negation, to be checked on a model: Theorem 2, and the premise of Theorem 3.

With σ(y) = max(y, 0), Y a layer's answers before σ, and Y' its answers under any other perturbation:

    E‖σ(Y) − σ(−Y)‖² ≥ E‖σ(Y) − σ(Y')‖² − 2ε                                                            (Eq. 4)
    where ε bounds  E|‖σ(Y)‖² − ‖σ(−Y)‖²|  and  E|‖σ(Y)‖² − ‖σ(Y')‖²|

It holds on every sample, because σ(Y) and σ(−Y) are orthogonal and no two of σ's answers point apart. A distance is
not a forecast: on digits a first layer drawn again moves its answers 0.55 times as far as negation does, one set to
zero 0.50 times (`docs/how-to/analysis.md`), and both unlearn better than negation (`docs/how-to/paper.md`).

Theorem 3 needs TV(Y, −Y) ≪ 1, which does not hold where NoT negates. One half-space tells Y from −Y:

    TV(Y, −Y) ≥ | P(⟨w, Y⟩ > 0) − P(⟨w, Y⟩ < 0) |          for every direction w,

and with w the mean answer the right side is 1 at every layer of a small network trained on digits, whose answers do not
lie around 0. With the mean taken off, this test is blind, and `symmetry_test`, which looks at all directions, decides.

The other theorems, lemmas and constants are functions beside their tests (`tests/theorems.py`): no command needs them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unfed import rng
from unfed.errors import UnfedError


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


def _rows(y: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    if y.shape != other.shape or not len(y):
        raise UnfedError(
            f"The same rows through the same layer are compared, not {tuple(y.shape)} with {tuple(other.shape)}."
        )
    return y.double().reshape(len(y), -1), other.double().reshape(len(y), -1)


LEAST = 6
"""Rows: two to find a direction, two to find a centre, two to judge."""


@dataclass(frozen=True)
class Asymmetry:
    """What one half-space says about TV(Y, −Y)."""

    estimate: float
    at_least: float
    """With the asked-for confidence; 0 shows nothing, for another test may see more."""


def asymmetry(y: Tensor, *, centred: bool = False, level: float = 0.05) -> Asymmetry:
    """TV(Y, −Y) from below, by the half-space of the mean answer: Theorem 3's premise.

    One row per sample. A third of the rows gives the direction, a third the mean that is taken off if `centred`, a
    third judges: a direction judged by the rows it was made of tells any Y from −Y where answers outnumber rows.
    """
    rows = y.double().reshape(len(y), -1)
    if len(rows) < LEAST or not 0 < level < 1:
        raise UnfedError(f"Give at least {LEAST} rows and a level between 0 and 1, not {len(rows)} and {level}.")
    direction, judged = rows[0::3].mean(0), rows[2::3]
    if centred:
        judged = judged - rows[1::3].mean(0)
    found = float((judged @ direction).sign().mean().abs())
    # Hoeffding: a mean of n values in [−1, 1] is off by more than this with probability `level` at most.
    margin = math.sqrt(2 * math.log(2 / level) / len(judged))
    return Asymmetry(found, max(0.0, found - margin))


def symmetry_test(y: Tensor, *, centred: bool = False, draws: int = 999, seed: int = 0) -> float:
    """How likely so asymmetric a sample is if Y and −Y have one law: the p-value of Theorem 3's premise.

    The statistic is the energy distance of Y and −Y, mean over pairs of ‖y + y'‖ − ‖y − y'‖. If the laws are one, every
    row may change its sign, so the statistic among those of random signs is exact whatever the law. `centred` asks
    whether Y lies symmetrically around its mean: the sample's mean is taken off, and off again of every draw of signs,
    because a centre that is only estimated makes any sample look shifted.
    """
    rows = y.double().reshape(len(y), -1)
    if len(rows) < LEAST or draws < 1:
        raise UnfedError(f"Give at least {LEAST} rows and one draw, not {len(rows)} and {draws}.")
    generator = rng.generator(rng.key("symmetry test", seed))
    signs = torch.randint(0, 2, (draws, len(rows)), generator=generator).to(rows).mul(2).sub(1)
    if centred:
        rows = rows - rows.mean(0)
        gram = rows @ rows.T
        here = _energies(gram).sum()
        drawn = torch.stack([_energies(_off_mean(sign[:, None] * gram * sign)).sum() for sign in signs])
        scale = gram.diagonal().clamp(min=0).sqrt().sum() * len(rows)
    else:
        pairs = _energies(rows @ rows.T)
        here, drawn, scale = pairs.sum(), ((signs @ pairs) * signs).sum(1), pairs.abs().sum()
    return (1 + int((drawn >= here - 1e-9 * scale).sum())) / (draws + 1)


def _energies(gram: Tensor) -> Tensor:
    """‖y + y'‖ − ‖y − y'‖ of all pairs of different rows, from their products."""
    square = gram.diagonal()[:, None] + gram.diagonal()[None, :]
    found = (square + 2 * gram).clamp(min=0).sqrt() - (square - 2 * gram).clamp(min=0).sqrt()
    return found.fill_diagonal_(0.0)


def _off_mean(gram: Tensor) -> Tensor:
    """The products of rows once their mean is taken off."""
    return gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean()
