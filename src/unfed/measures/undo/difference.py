"""difference: what the models before and after a request give away together.

    cos(θ_u − θ*, ∇L_{D_u}(θ*))          cos(θ_u − perturb(θ*), ∇L_{D_u}(θ*))
    h_c ∝ s_c − min s,       s_c = −(Σ_j ΔW_cj + Δb_c),      ΔW, Δb = the head of θ_u minus that of θ*

A row of label c pulls row c of the head up while it is learnt (∂CE/∂W_c = (p_c − [y = c])·h with features h ≥ 0), so
what left is what sank: h is a guess at the label histogram of D_u, judged by its total variation distance from the true
one, beside that of a guess of equal shares. No image is inverted. For operators: never publish both models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unfed.measures.undo.path import cosine, minus
from unfed.measures.undo.scene import NO_FORGET, Scene
from unfed.model.networks import head_of
from unfed.model.params import Params
from unfed.values import not_measured


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
    """Cosines with the leaver's gradient, and the label histogram read from the head."""
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
