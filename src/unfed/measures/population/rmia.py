"""RMIA: does a model favour a row more than it favours rows that nobody trained on?

    p̄(x)    = (1 + a)/2 · mean_out p(x) + (1 − a)/2              what a model gives to x, seen or not; out = Retrains
    ratio(x) = p(x) / p̄(x)
    score(x) = share of held-out rows z with ratio(x) / ratio(z) > 1

This is the offline attack of Zarifzadeh et al. 2024 with γ = 1; `a` says how far seeing a row raises p, and 0.3 is what
its authors take where nothing is known. `out` are Retrains of the first half; models of the other half are scored.
"""

from __future__ import annotations

import numpy as np

from unfed.measures.population.signals import Floats

A = 0.3


def expected(out: Floats, a: float = A) -> Floats:
    """p̄ of every row, from p under models that never saw it, [models, rows]."""
    found: Floats = (1 + a) / 2 * out.mean(axis=0) + (1 - a) / 2
    return found


def score(target: Floats, held_out: Floats, out: Floats, out_held_out: Floats, a: float = A) -> Floats:
    """The share of held-out rows that each row beats, for each target model.

    `target` [models, rows] and `held_out` [models, z] are p under the models that are attacked; `out` and
    `out_held_out` the same rows under Retrains.
    """
    ratio, others = target / expected(out, a), held_out / expected(out_held_out, a)
    beaten = [np.searchsorted(np.sort(z), x, side="left") for x, z in zip(ratio, others, strict=True)]
    found: Floats = np.stack(beaten) / others.shape[1]
    return found
