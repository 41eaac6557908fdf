"""The unlearning-time bound under noise: Theorem 5, and the term that its proof drops.

For dθ = −∇L_{D_r} dt + Σ dW the paper states, with Lip the Lipschitz constant of δ:

    t ≥ E(δ(θᵗ) − δ(θ⁰))² / ( Lip² [ |L_{D_r}(θ⁰) − E L_{D_r}(θᵗ)| + A ] )                                (Eq. 7)
    A = ½ ∫₀ᵗ |Tr(Σ² ∇²L_{D_r})| ds                                                                       (Eq. 9)

Without noise (Σ = 0, A = 0) this holds. With noise it does not: the proof bounds ‖θᵗ − θ⁰‖ by the drift alone, but
θᵗ − θ⁰ = −∫∇L ds + ∫Σ dW, and noise alone carries θ away. In the plane, with L_{D_r} = θ₁²/2 and
L_{D_u} = L_{D_r} + √(1 + θ₂²), noise in θ₂ from the origin changes no L_{D_r} and A = 0, so Eq. 7 allows no change of
δ at all; yet E(Δδ)² = 0.29 at t = 1. Keeping the term, by Minkowski's inequality and Itô's isometry:

    √E(Δδ)² ≤ Lip · ( √( t · [ L_{D_r}(θ⁰) − E L_{D_r}(θᵗ) + A ] ) + √( E ∫₀ᵗ Tr(ΣΣᵀ) ds ) )

Small noise, as the paper measures it, changes little of this; large noise makes the time a matter of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from unfed.errors import UnfedError


def stochasticity(times: Sequence[float], traces: Sequence[float]) -> float:
    """A = ½ ∫ |Tr(Σ² ∇²L)| ds, by trapezoids between the measured traces (Eq. 9, Eq. 87)."""
    if len(times) != len(traces) or len(times) < 2:
        raise UnfedError(f"Give one trace per time, at least two of them, not {len(traces)} for {len(times)}.")
    if any(later < earlier for earlier, later in pairwise(times)):
        raise UnfedError("The times must not go back; sort the checkpoints.")
    spans = [later - earlier for earlier, later in pairwise(times)]
    heights = [(abs(one) + abs(other)) / 2 for one, other in pairwise(traces)]
    return sum(span * height for span, height in zip(spans, heights, strict=True)) / 2


def squared_gap_limit(
    time: float, descent: float, lipschitz: float, *, noise: float = 0.0, diffusion: float | None = None
) -> float:
    """The largest E(δ(θᵗ) − δ(θ⁰))² that a time allows: Theorem 5, solved for it.

    `descent` is L_{D_r}(θ⁰) − E L_{D_r}(θᵗ), `noise` is A, and `diffusion` is E ∫ Tr(ΣΣᵀ) ds, which the paper leaves
    out: without it this is Eq. 7 as printed, right where there is no noise; with it, it holds always.
    """
    if min(time, lipschitz, noise, diffusion or 0.0) < 0:
        raise UnfedError("Time, Lip, A and the diffusion cannot be negative; check how they were measured.")
    printed = lipschitz**2 * time * (abs(descent) + noise)
    return printed if diffusion is None else (math.sqrt(printed) + lipschitz * math.sqrt(diffusion)) ** 2
