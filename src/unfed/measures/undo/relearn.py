"""relearn: how few forgotten rows bring the rest of them back?

    k ∈ {0, 1, 5, 10, 50, 100} rows of D_u mixed into retained rows, low rate, R passes;   Forget_k(t), t = 0 … R
    rounds(k) = the first t with Forget_k(t) ≥ Forget(θ*) − 5 points
    area(k)   = mean over t of Forget_k(t), by trapezes:   1/R Σ_t (Forget_k(t) + Forget_k(t+1)) / 2

A model that never knew D_u must learn it; one that only hid it remembers. Forget is taken over all of D_u, for every
model alike, so only the distance to Retrain's area says anything: above 0 the model remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from unfed import rng
from unfed.client.plan import Optimiser
from unfed.measures.undo.fitting import Budget, FitTask, Problem, fit
from unfed.measures.undo.resurface import rounds_of
from unfed.measures.undo.scene import NO_FORGET, Scene
from unfed.model.params import Params
from unfed.values import Value, is_measured, not_measured

COUNTS = (0, 1, 5, 10, 50, 100)
BACK_WITHIN = 5.0
RETAINED = 1000


def area(curve: Sequence[float]) -> float:
    """The mean height of a curve, by trapezes; of a single point, the point."""
    if len(curve) == 1:
        return curve[0]
    return sum((a + b) / 2 for a, b in pairwise(curve)) / (len(curve) - 1)


def rounds_until(curve: Sequence[float], level: float) -> Value:
    """The first round at which a curve reaches a level."""
    found = next((float(t) for t, value in enumerate(curve) if value >= level - 1e-9), None)
    return not_measured(f"not back within {len(curve) - 1} rounds") if found is None else found


def relearn(
    scene: Scene,
    params: Params,
    was: Value,
    lr: float,
    counts: Sequence[int] = COUNTS,
    rounds: int = 10,
    batch: int = 64,
) -> dict[str, Any]:
    """Curves, rounds and areas by the number of forgotten rows mixed in. `was` is Forget of θ*."""
    if len(scene.forget) == 0:
        return {"area": NO_FORGET, "reason": NO_FORGET}
    seed = rng.key(scene.seed, "undo", "relearn")
    kept, gone = scene.retain.some(RETAINED, seed), scene.forget.some(max(counts), seed)
    (kx, ky), (gx, gy) = kept.tensors(), gone.tensors()
    pool = torch.cat([kx, gx]), torch.cat([ky, gy])
    used = tuple(dict.fromkeys(min(k, len(gone)) for k in counts))
    budget = Budget(rounds_of(len(kept), batch, rounds), Optimiser(lr=lr), batch, seed)
    free = {name: params[name] for name in scene.template.trainable}
    tasks = [FitTask(params, free, torch.arange(len(kept) + k, device=pool[0].device)) for k in used]
    curves: list[list[float]] = [[float(scene.forgotten(params))] for _ in used]
    for _, models in fit(Problem(scene.template, stack=scene.stack), tasks, pool, budget):
        for curve, model in zip(curves, models, strict=True):
            curve.append(float(scene.forgotten(model)))
    level = was - BACK_WITHIN if is_measured(was) else None
    return {
        "rows": list(used),
        "rounds": rounds,
        "lr": lr,
        "forget": curves,
        "rounds_until_back": [was if level is None else rounds_until(curve, level) for curve in curves],
        "areas": [area(curve) for curve in curves],
        "area": sum(area(curve) for curve in curves) / len(curves),
    }
