"""IAM: how far has a model gone back from "fitted" to "never seen"? One shadow model is enough.

    r(p) = −log(0.01 − log(p + 0.00001))                        the signal of a row
    r_α  = r_shadow + α (r_original − r_shadow)                   100 steps of α from 0 (never saw it) to 1 (fitted)
    β_α  = √6/π · std over rows of r_α,   location = r_α − 0.5772 β_α       a Gumbel distribution by its moments
    score = Σ_α w_α · P(Gumbel_α ≤ r_target) / Σ_α w_α            w_α: the next step's α; 1: as fitted as the original

The shadow is one model that never saw the rows (a Retrain), the original the model before unlearning: what an operator
can afford. The measure is that of Wang et al. 2025, in its form with one shadow, whose spread is taken over rows.
"""

from __future__ import annotations

import numpy as np

from unfed.errors import UnfedError
from unfed.measures.population.signals import Floats

STEPS = 100
EULER = 0.5772
LIFT, FLOOR = 1e-2, 1e-5


def signal(p: Floats) -> Floats:
    """r: a bounded −log(−log p), which is near Gumbel."""
    found: Floats = -np.log(LIFT - np.log(p + FLOOR))
    return found


def score(target: Floats, original: Floats, shadow: Floats) -> Floats:
    """How fitted each row still is, from 0 to 1, by p of its own label, [rows] each.

    `target` is the model that is judged, `original` the one before, `shadow` one that never saw the rows.
    """
    if len(target) < 2:
        raise UnfedError("IAM takes its spread over rows, and there is only one; it needs at least 2 forgotten rows.")
    alphas = np.linspace(0.0, 1.0, STEPS)
    begin, end = signal(shadow), signal(original)
    steps = begin + alphas[:-1, None] * (end - begin)
    beta = np.maximum(np.sqrt(6.0) / np.pi * steps.std(axis=1, keepdims=True), 1e-12)
    below = np.exp(-np.exp(np.clip(-(signal(target) - (steps - EULER * beta)) / beta, -700.0, 700.0)))
    weights = alphas[1:]
    found: Floats = weights @ below / weights.sum()
    return found
