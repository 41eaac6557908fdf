"""path: how far two models lie apart, and what stands between them.

    relative L2   ‖θ − φ‖ / ‖φ‖            cosine   ⟨θ, φ⟩ / (‖θ‖ ‖φ‖)            over the trainable tensors
    peak          max over t of L_{D_r}((1 − t)·θ + t·φ)  −  max(L_{D_r}(θ), L_{D_r}(φ)),   21 points, at least 0

From θ_u to θ*, to perturb(θ*), to Retrain. Short distances and a line without a peak say that the old model is still
in sight (linear mode connectivity).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from unfed.measures.undo.scene import Scene
from unfed.model.params import Params

POINTS = 21


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """⟨a, b⟩ over all tensors of a, in double."""
    return float(torch.stack([(a[name].double() * b[name].double()).sum() for name in a]).sum())


def minus(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: tuple[str, ...]) -> Params:
    """a − b over the named tensors."""
    return {name: a[name] - b[name] for name in names}


def cosine(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The cosine of the angle between two models, or two differences; 0 where one of them is nothing."""
    size = (dot(a, a) * dot(b, b)) ** 0.5
    return dot(a, b) / size if size > 0 else 0.0


def between(a: Params, b: Params, t: float) -> Params:
    """(1 − t)·a + t·b; counters stay a's."""
    return {name: torch.lerp(w, b[name], t) if w.is_floating_point() else w for name, w in a.items()}


def peak(loss: Callable[[Params], float], a: Params, b: Params, points: int = POINTS) -> tuple[float, list[float]]:
    """How far the loss rises above both ends on the straight line, and the losses themselves."""
    seen = [loss(between(a, b, i / (points - 1))) for i in range(points)]
    return max(max(seen) - max(seen[0], seen[-1]), 0.0), seen


def path(scene: Scene, params: Params, other: Params) -> dict[str, float | list[float]]:
    """Distance, angle and peak between two models."""
    names = scene.template.trainable
    ours, theirs = ({name: p[name] for name in names} for p in (params, other))
    gone = minus(ours, theirs, names)
    height, losses = peak(scene.retain_loss, params, other)
    distance = (dot(gone, gone) / dot(theirs, theirs)) ** 0.5
    return {"relative_l2": distance, "cosine": cosine(ours, theirs), "peak": height, "losses": losses}
