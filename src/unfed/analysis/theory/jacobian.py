"""Gradients behind and before a negated layer: Theorem 3, with its proof's Theorem 6.

With J_ℓ = ∇_{θ_ℓ} N^θ(X) for a random X, J'_ℓ the same after negation, and Y what the negated layers answered:

    W( J_ℓ, J'_ℓ)   ≤ A_ℓ · TV(Y, −Y)                for layers behind the negated ones                   (Eq. 51)
    W(±J_ℓ, J'_ℓ)   ≤ A_ℓ · TV((X, Y), (X, −Y))      for the negated ones (+) and those before (−)  (Eq. 5, Eq. 52)

The theorem is right where its constants are (`chains`). Two things about its use:

- The premise TV(Y, −Y) ≪ 1 does not hold where NoT negates. One half-space tells Y from −Y:

      TV(Y, −Y) ≥ | P(⟨w, Y⟩ > 0) − P(⟨w, Y⟩ < 0) |          for every direction w,

  and with w the mean answer the right side is 1 at every layer of a small network trained on digits, whose answers do
  not lie around 0. With the mean taken off, this test is blind, and `symmetry_test`, which looks at all directions,
  decides.
- The second line is never more than A_ℓ · 1 and, where Y is not 0, never less: Y is a function of X, so (X, Y) and
  (X, −Y) share no point and their TV is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from unfed import rng
from unfed.analysis.theory.transport import wasserstein
from unfed.errors import UnfedError

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


def jacobians(answer: Callable[[Tensor, Tensor], Tensor], weight: Tensor, x: Tensor) -> Tensor:
    """J_ℓ = ∇_{θ_ℓ} N^θ(x) for every row x (Theorem 3).

    `answer(weight, row)` is the network as a function of one layer's weight and one input.
    """
    found: Tensor = vmap(jacrev(answer), (None, 0))(weight, x)
    return found.flatten(1)


def jacobian_distance(before: Tensor, after: Tensor, *, upstream: bool = False) -> float:
    """W(±J_ℓ, J'_ℓ) between two samples of Jacobians (Eq. 5, Eq. 51, Eq. 52).

    The sign is − for layers upstream of the negated ones.
    """
    return wasserstein(-before if upstream else before, after)


def jacobian_limit(constant: float, variation: float) -> float:
    """A_ℓ · TV, the right side of Theorem 3 and Theorem 6 (Eq. 5, Eq. 51, Eq. 52)."""
    if not 0 <= variation <= 1 or constant < 0:
        raise UnfedError(f"A total variation lies in [0, 1] and A_ℓ is not negative, not {variation} and {constant}.")
    return constant * variation
