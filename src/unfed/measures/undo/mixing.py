"""The attack on a sealed model itself: find the mixing again.

    min over M_ℓ of   mean CE(θ with M_ℓ·W_ℓ in all hidden layers; n retained rows)  +  λ Σ_ℓ ‖M_ℓ M_ℓᵀ − I‖² / rows

If W_ℓ = Q_ℓ·W*_ℓ and recovery moved little, then M_ℓ = Q_ℓᵀ gives θ* back, leaver and all. Q is orthogonal, so M is
kept near the orthogonal matrices; the draw is unknown, so the fit starts anew several times: from the identity, then
from random rotations. `side` says whether the output or the input channels are mixed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unfed import rng
from unfed.measures.undo.fitting import Problem
from unfed.model.functional import Template
from unfed.model.params import Params
from unfed.model.perturb import uniform_orthogonal

STRENGTH = 1.0
SIDES = ("output", "input")


def mixed(weight: Tensor, matrix: Tensor, side: str) -> Tensor:
    """M·W over the output axis, or W·M over the input axis; kernels are carried along."""
    if side == "output":
        return (matrix @ weight.flatten(1)).reshape(weight.shape)
    turned = weight.movedim(1, 0)
    return (matrix.T @ turned.flatten(1)).reshape(turned.shape).movedim(0, 1)


def channels(weight: Tensor, side: str) -> int:
    return weight.shape[0 if side == "output" else 1]


def unmixing(template: Template, names: Sequence[str], side: str, stack: bool = False) -> Problem:
    """The fit of one matrix per layer, in place of the layer's own weights."""

    def build(start: Params, free: Params) -> Params:
        return start | {name: mixed(start[name], free[name], side) for name in names}

    return Problem(template, build, orthogonality, stack)


def orthogonality(matrices: Params) -> Tensor:
    """λ Σ ‖M Mᵀ − I‖² / rows: 0 for rotations and reflections alone."""
    terms = [
        (m @ m.transpose(-2, -1) - torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)).square().sum() / m.shape[-1]
        for m in matrices.values()
    ]
    return STRENGTH * torch.stack(terms).sum()


def beginnings(params: Params, names: Sequence[str], side: str, restarts: int, seed: int) -> list[Params]:
    """The matrices at which the fits start: the identity, then random rotations."""

    def matrix(name: str, restart: int) -> Tensor:
        size = channels(params[name], side)
        if restart == 0:
            return torch.eye(size).to(params[name])
        return _rotation(size, rng.key(seed, "undo", "mixing", side, name, restart)).to(params[name])

    return [{name: matrix(name, restart) for name in names} for restart in range(restarts)]


def _rotation(size: int, seed: int) -> Tensor:
    """Uniform among orthogonal matrices."""
    return uniform_orthogonal(torch.randn(size, size, generator=rng.generator(seed), dtype=torch.float64))
