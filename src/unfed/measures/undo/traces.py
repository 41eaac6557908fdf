"""Traces of the old model: in features (inside), distances (path) and updates (difference).

All compare a model with θ*, and Retrain stands beside it. The equations stand at the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unfed import rng
from unfed.data import TensorSource
from unfed.measures.undo.flip import NO_CLASS, lift
from unfed.measures.undo.refits import NOTHING_PLANTED, UNSTAMPED, other_than, stamped_by
from unfed.measures.undo.scene import NO_BACKDOOR, NO_FORGET, NO_TEST, Scene, View
from unfed.model.networks import head_of
from unfed.model.params import Params
from unfed.values import Value, not_measured

# --- path: how far two models lie apart, and what stands between them -------------------------------------------------


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
    """Distance, angle and peak between two models.

        relative L2   ‖θ − φ‖ / ‖φ‖          cosine   ⟨θ, φ⟩ / (‖θ‖ ‖φ‖)          over the trainable tensors
        peak          max over t of L_{D_r}((1 − t)·θ + t·φ)  −  max(L_{D_r}(θ), L_{D_r}(φ)),   21 points, at least 0

    A short distance and a line without a peak say that the old model is still in sight (linear mode connectivity).
    """
    names = scene.template.trainable
    ours, theirs = ({name: p[name] for name in names} for p in (params, other))
    gone = minus(ours, theirs, names)
    height, losses = peak(scene.retain_loss, params, other)
    distance = (dot(gone, gone) / dot(theirs, theirs)) ** 0.5
    return {"relative_l2": distance, "cosine": cosine(ours, theirs), "peak": height, "losses": losses}


# --- difference: what the models before and after a request give away together ----------------------------------------


def head_tensors(scene: Scene) -> tuple[str, str | None] | None:
    """The head's weight and bias by name; None where the head is no linear map of one weight."""
    head = head_of(scene.template.module)
    inside = [n for n in scene.template.trainable if n.startswith(f"{head}.")]
    weights = [n for n in inside if n.endswith("weight") and scene.template.like[n].ndim == 2]
    biases = [n for n in inside if n.endswith("bias")]
    return (weights[0], biases[0] if biases else None) if len(weights) == 1 else None


def histogram(after: Mapping[str, Tensor], before: Mapping[str, Tensor], weight: str, bias: str | None) -> Tensor:
    """The label shares that the head's difference tells of; equal shares where it tells nothing."""
    sank = -(after[weight] - before[weight]).double().sum(1)
    if bias is not None:
        sank = sank - (after[bias] - before[bias]).double()
    shares = sank - sank.min()
    total = shares.sum()
    return shares / total if float(total) > 0 else torch.full_like(shares, 1.0 / len(shares))


def variation(a: Tensor, b: Tensor) -> float:
    """Total variation distance: half the sum of |a_c − b_c|."""
    return 0.5 * float((a.cpu() - b.cpu()).abs().sum())


def difference(scene: Scene, params: Params, before: Params, perturbed: Params | str) -> dict[str, Any]:
    """Cosines with the leaver's gradient, and the label histogram read from the head.

        cos(θ_u − θ*, ∇L_{D_u}(θ*))          cos(θ_u − perturb(θ*), ∇L_{D_u}(θ*))
        h_c ∝ s_c − min s,       s_c = −(Σ_j ΔW_cj + Δb_c),      ΔW, Δb = the head of θ_u minus that of θ*

    A row of label c pulls row c of the head up while it is learnt, so what left is what sank: h guesses the labels of
    D_u, judged by its total variation distance from the truth beside that of equal shares. Operators: never publish
    both models.
    """
    if len(scene.forget) == 0:
        return {"cosine": NO_FORGET, "cosine_perturbed": NO_FORGET, "variation": NO_FORGET}
    names = scene.template.trainable
    gradient = scene.gradient(before, scene.forget)
    found: dict[str, Any] = {"cosine": cosine(minus(params, before, names), gradient)}
    if isinstance(perturbed, str):
        found["cosine_perturbed"] = not_measured(perturbed)
    else:
        found["cosine_perturbed"] = cosine(minus(params, perturbed, names), gradient)
    head = head_tensors(scene)
    if head is None:
        return found | {"variation": not_measured("the head is not one linear map")}
    labels = scene.forget.source.labels[scene.forget.rows.to(scene.forget.source.labels.device)].cpu()
    read = histogram(params, before, *head).cpu()
    true = torch.bincount(labels, minlength=len(read)).double() / len(labels)
    equal = torch.full_like(true, 1.0 / len(true))
    return found | {
        "variation": variation(read, true),
        "variation_of_equal_shares": variation(equal, true),
        "read": read.tolist(),
        "true": true.tolist(),
    }


# --- inside: what a model's features still carry, whatever its own head says ------------------------------------------


COUNTS = (5, 20, 100)
FITTED = 1000
"""The most retained rows that a map, a detector or a probe is fitted on."""
Read = Callable[[View], tuple[Tensor, Tensor]]


def inside(scene: Scene, params: Params, before: Params | str) -> dict[str, Any]:
    """What a model's features still carry, whatever its own head says.

        stitch    A = argmin ‖[f, 1]·A − f_*‖² + λ‖A‖² on retained rows;   logits = [f, 1]·A·W_*ᵀ + b_*
        graft     logits = f·W_*ᵀ + b_*                     θ*'s head on the features as they are
        trigger   a linear detector of the planted trigger, fitted on stamped and clean retained rows: AUC on test rows
        probe     softmax regression on retained rows and k rows of each class that left: its other rows read right

    f are the published features, f_*, W_*, b_* features and head of θ*, which every client that took part has. λ is a
    thousandth of the mean square of a column of [f, 1], times the rows. Where a class left, its row of θ*'s head is
    lifted too.
    """
    few = scene.retain.some(FITTED, rng.key(scene.seed, "undo", "inside"))
    found: dict[str, Any] = {"trigger": trigger(scene, params, few), "probe": probe(scene, params, few)}
    head = head_tensors(scene)
    if head is None or isinstance(before, str):
        why = not_measured("the head is not one linear map" if head is None else str(before))
        return found | {"stitch": {"reason": why}, "graft": {"reason": why}}
    weight = before[head[0]].double().cpu()
    bias = torch.zeros(len(weight)).double() if head[1] is None else before[head[1]].double().cpu()
    stitched = ridge(scene.features(params, few)[0], scene.features(before, few)[0] @ weight.T)
    grafted = torch.cat([weight.T, torch.zeros(1, len(weight)).double()])

    def through(way: Tensor, view: View) -> tuple[Tensor, Tensor]:
        features, labels = scene.features(params, view)
        return with_one(features) @ way + bias, labels

    found["stitch"] = judged(scene, params, partial(through, stitched))
    return found | {"graft": judged(scene, params, partial(through, grafted))}


def with_one(features: Tensor) -> Tensor:
    """[f, 1]: the features with a constant beside them."""
    return torch.cat([features, torch.ones(len(features), 1).double()], dim=1)


def ridge(features: Tensor, goal: Tensor) -> Tensor:
    """A: the linear map, with a constant, that takes features nearest to a goal.

    A = (xᵀx + λ)⁻¹ xᵀg = xᵀ (xxᵀ + λ)⁻¹ g: the smaller of the two systems is solved. A is linear in g, so a map to
    g·Wᵀ is the map to g, times Wᵀ.
    """
    x = with_one(features)
    wide = x.shape[1] > x.shape[0]
    square = x @ x.T if wide else x.T @ x
    square.diagonal().add_(1e-3 * float(x.square().sum()) / x.shape[1])
    found: Tensor = x.T @ torch.linalg.solve(square, goal) if wide else torch.linalg.solve(square, x.T @ goal)
    return found


def judged(scene: Scene, params: Params, read: Read) -> dict[str, Any]:
    """Forget, Test, backdoor under these logits; for a class, its share back by a lift of one point."""

    def right(view: View | None, why: str) -> Value:
        if view is None or len(view) == 0:
            return why
        logits, labels = read(view)
        return 100.0 * float((logits.argmax(1) == labels).double().mean())

    lifted = lift(scene, params, (1,), read)
    return {
        "forget": right(scene.forget, NO_FORGET),
        "test": right(scene.test, NO_TEST),
        "backdoor": right(scene.backdoor, NO_BACKDOOR),
        "class_back": lifted.get("back_1", lifted.get("reason")),
    }


def trigger(scene: Scene, params: Params, few: View) -> dict[str, Any]:
    """How well a straight line tells stamped rows from clean ones by their features, in percent of pairs."""
    planted = scene.backdoor
    if planted is None or scene.test is None:
        return {"reason": NOTHING_PLANTED if planted is None else NO_TEST}
    if not (isinstance(few.source, TensorSource) and isinstance(planted.source, TensorSource)) or few.source.prepared:
        return {"reason": UNSTAMPED}
    target = int(planted.source.labels[0])
    clean = View(few.source, few.rows[other_than(few, target)])
    views = [clean, View(stamped_by(few.source, planted.source.trigger, target), clean.rows)]
    known = [scene.features(params, view)[0] for view in views]
    side = torch.cat([torch.full((len(part), 1), sign).double() for part, sign in zip(known, (-1.0, 1.0), strict=True)])
    line = ridge(torch.cat(known), side)
    unseen = (View(scene.test.source, planted.rows), planted)
    plain, stamped = ((with_one(scene.features(params, view)[0]) @ line).squeeze(1) for view in unseen)
    return {"auc": 100.0 * auc(plain, stamped), "rows": len(clean)}


def auc(low: Tensor, high: Tensor) -> float:
    """The share of pairs in which the one that should be higher is; a tie is half a pair."""
    ordered = low.sort().values
    below = torch.searchsorted(ordered, high) + torch.searchsorted(ordered, high, right=True)
    return float(below.double().mean()) / (2 * len(low))


def probe(scene: Scene, params: Params, few: View) -> dict[str, Any]:
    """The share of the other rows of a class that a softmax regression reads right, by k of its rows."""
    if not scene.classes:
        return {"reason": NO_CLASS}
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped, unused-ignore]

    x, y = scene.features(params, few)
    gone, labels = scene.features(
        params, View(scene.forget.source, scene.forget.some(len(scene.forget), scene.seed).rows)
    )
    own = [(labels == c).nonzero().squeeze(1) for c in scene.classes]
    middle, spread = x.mean(0), x.std(0).clamp_min(1e-9)
    found: dict[str, Any] = {}
    for k in COUNTS:
        if min(len(rows) for rows in own) < 2 * k:
            found[f"reads_{k}"] = not_measured(f"a class that left has fewer than {2 * k} rows")
            continue
        shown, rest = (torch.cat([rows[part] for rows in own]) for part in (slice(k), slice(k, None)))
        fitted = (torch.cat([x, gone[shown]]) - middle) / spread
        reader = LogisticRegression(class_weight="balanced", max_iter=2000)
        reader.fit(fitted.numpy(), torch.cat([y, labels[shown]]).numpy())
        found[f"reads_{k}"] = 100.0 * reader.score(((gone[rest] - middle) / spread).numpy(), labels[rest].numpy())
    return found
