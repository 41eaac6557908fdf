"""resurface: some more passes over retained data alone; does what was forgotten come up again?

    θ⁰ = θ_u,     θ^{t+1} = one pass of SGD over D_r (no forgotten row),     Forget(θ⁰), …, Forget(θᴺ)

After several approximate methods fine-tuning on the retain set alone brought forget accuracy from about 50 to 100 %,
while Retrain stayed (arXiv 2505.22310). The number is the rise: max over t of Forget(θᵗ) − Forget(θ⁰).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from unfed import rng
from unfed.client.plan import Optimiser
from unfed.measures.undo.fitting import Budget, FitTask, Problem, fit
from unfed.measures.undo.scene import Scene
from unfed.model.params import Params
from unfed.values import Value, is_measured


def rounds_of(count: int, batch: int, rounds: int) -> tuple[int, ...]:
    """After how many steps each of some passes over `count` rows ends."""
    steps = max(math.ceil(count / batch), 1)
    return tuple(steps * (t + 1) for t in range(rounds))


def resurface(scene: Scene, params: Params, lr: float, rounds: int = 10, batch: int = 64) -> dict[str, Any]:
    """Forget and backdoor accuracy after every further pass over D_r.

    It also says how far they rise above where they began.
    """
    seed = rng.key(scene.seed, "undo", "resurface")
    budget = Budget(rounds_of(len(scene.retain), batch, rounds), Optimiser(lr=lr), batch, seed)
    free = {name: params[name] for name in scene.template.trainable}
    pool = scene.retain.tensors()
    task = FitTask(params, free, torch.arange(len(scene.retain), device=pool[0].device))
    seen = [scene.quick(params)]
    seen += [scene.quick(models[0]) for _, models in fit(Problem(scene.template), [task], pool, budget)]
    curves = {name: [numbers[name] for numbers in seen] for name in ("forget", "test", "backdoor")}
    return {"rounds": rounds, "lr": lr, **{f"{n}_rise": rise(curves[n]) for n in ("forget", "backdoor")}, **curves}


def rise(curve: list[Value]) -> Value:
    """How far a curve comes above its first point."""
    numbers = [value for value in curve if is_measured(value)]
    return max(numbers) - numbers[0] if len(numbers) == len(curve) else curve[0]
