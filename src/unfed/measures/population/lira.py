"""U-LiRA: is a model one that saw a row and unlearned it, or one that never saw it?

For each row two Gaussians are fitted to φ = log p − log(1 − p) over models of the first half of a population:

    μ_u, σ_u   over models that were trained with the row and unlearned it
    μ_r, σ_r   over models that never saw it (Retrain)

    score(φ) = log N(φ; μ_u, σ_u) − log N(φ; μ_r, σ_r)       high: trained with it, then unlearned

and models of the other half are scored, so that no model is judged by a Gaussian it helped to fit. μ is the mean and σ
divides by n − 1; the published code of LiRA (`mi_lira_2021`) takes the median and divides by n. This is the attack of
Hayes et al. 2024, with a Gaussian for each row and each side. RULI's (kernel densities, three thirds) and those on
right or wrong answers alone are others, and their numbers cannot be compared with these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unfed.errors import UnfedError
from unfed.measures.population.signals import Floats

NARROWEST = 1e-3
"""No Gaussian is narrower, in log odds: where models agree to the last digit, a ratio would be of rounding errors."""
FEWEST = 2
"""Models a side that a spread can be taken of."""


@dataclass(frozen=True)
class Gaussians:
    """Mean and spread of φ for each row, among the unlearned models and among the Retrains."""

    mean_unlearned: Floats
    std_unlearned: Floats
    mean_retrained: Floats
    std_retrained: Floats

    def score(self, phi: Floats) -> Floats:
        """log N(φ; μ_u, σ_u) − log N(φ; μ_r, σ_r), for [models, rows]."""
        unlearned = _log_normal(phi, self.mean_unlearned, self.std_unlearned)
        return unlearned - _log_normal(phi, self.mean_retrained, self.std_retrained)


def fit(unlearned: Floats, retrained: Floats) -> Gaussians:
    """The Gaussians of U-LiRA from φ of both kinds, each [models, rows]."""
    fewest = min(len(unlearned), len(retrained))
    if fewest < FEWEST:
        raise UnfedError(
            f"U-LiRA takes a spread over models and was given {fewest} a side to fit; it takes at least {FEWEST}, so"
            f" {2 * FEWEST} models of each kind: `unfed population … --models {2 * FEWEST}`."
        )
    return Gaussians(*_moments(unlearned), *_moments(retrained))


def standardised(phi: Floats, retrained: Floats) -> Floats:
    """(φ − μ_r) / σ_r: how far a row lies from where Retrains have it."""
    mean, std = _moments(retrained)
    found: Floats = (phi - mean) / std
    return found


def _moments(phi: Floats) -> tuple[Floats, Floats]:
    return phi.mean(axis=0), np.maximum(phi.std(axis=0, ddof=1), NARROWEST)


def _log_normal(phi: Floats, mean: Floats, std: Floats) -> Floats:
    found: Floats = -0.5 * ((phi - mean) / std) ** 2 - np.log(std)
    return found
