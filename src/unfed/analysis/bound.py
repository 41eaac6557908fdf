"""A lower bound on the time that unlearning takes (Theorem 1, Table 7).

    δ(θ) = | L_{D_r}(θ) − L_{D_u}(θ) |

                  (1 − ε)² · ( δ(θ_Retrain) − δ(θ⁰) )²
    t ≥ ─────────────────────────────────────────────────────   (Eq. 2, Eq. 82)       θ⁰ = where fine-tuning starts: θ*
          Lip² · [ | L_{D_r}(θ⁰) − L_{D_r}(θ*_long) | + A ]                           for FT, for NoT the negated model

Lip is the largest ‖∇(L_{D_r} − L_{D_u})‖ seen on the way. Time is learning rate × steps, divided by 1 − momentum. Read
only the order of the methods from it: the paper predicts that FT costs 61, 2,800 and 500 times as much as NoT, and
measures 1.3, 1.1 and 2.0.

Under noise, dθ = −∇L_{D_r} dt + Σ dW, the paper states Theorem 5:

    t ≥ E(δ(θᵗ) − δ(θ⁰))² / ( Lip² [ |L_{D_r}(θ⁰) − E L_{D_r}(θᵗ)| + A ] )                                (Eq. 7)
    A = ½ ∫₀ᵗ |Tr(Σ² ∇²L_{D_r})| ds

Its proof bounds ‖θᵗ − θ⁰‖ by the drift alone, but noise carries θ away too. In the plane, with L_{D_r} = θ₁²/2 and
L_{D_u} = L_{D_r} + √(1 + θ₂²), noise in θ₂ from the origin has A = 0, so Eq. 7 allows no change of δ; yet
E(Δδ)² = 0.29 at t = 1. With the missing term (`corrected_time`) it holds:

    √E(Δδ)² ≤ Lip · ( √( t · [ L_{D_r}(θ⁰) − E L_{D_r}(θᵗ) + A ] ) + √( E ∫₀ᵗ Tr(ΣΣᵀ) ds ) )
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from unfed.analysis.gradient_noise import Noise
from unfed.client.scores import mean_gradient, score
from unfed.data import Source
from unfed.errors import UnfedError, UnfedWarning
from unfed.measures.metrics import loss_gap
from unfed.model.functional import Flops, Template
from unfed.model.params import Params
from unfed.values import Value


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


FOR_EVER = 1e30
"""A time that no descent lasts."""


@dataclass(frozen=True)
class Bound:
    """The bound, and what went into it."""

    time: float
    """Learning rate × steps, at the least."""
    delta_retrain: float
    delta_start: float
    loss_start: float
    loss_long: float
    lipschitz: float
    noise: float = 0.0
    epsilon: float = 0.0

    def flops(self, lr: float, clients: int, batch: int, forward_flops: Flops) -> Value:
        """What that time costs: t/η steps of `batch` samples at every client, forward and backward.

        So the paper counts them, whatever the momentum μ; with it, t(1 − μ)/η steps would last as long.
        """
        if isinstance(forward_flops, str):
            return forward_flops
        return self.time / lr * clients * batch * 3 * forward_flops


def unlearning_time(
    delta_retrain: float,
    delta_start: float,
    loss_start: float,
    loss_long: float,
    lipschitz: float,
    *,
    noise: float = 0.0,
    epsilon: float = 0.0,
) -> Bound:
    """The bound from its ingredients (Theorem 1, Eq. 2; Theorem 5, Eq. 7; as Table 7 has it, Eq. 82).

    `loss_start` and `loss_long` are L_{D_r} of θ⁰ and of a model that was trained on D_r for long; ε is how much of the
    way to Retrain's gap may be missing (Eq. 83).
    """
    if not 0 <= epsilon < 1:
        raise UnfedError(f"ε must lie in [0, 1), not {epsilon}; 0 asks for all of the way.")
    if lipschitz < 0 or noise < 0:
        raise UnfedError(f"Lip and A cannot be negative, as {lipschitz} and {noise} are; check how they were measured.")
    above = ((1 - epsilon) * (delta_retrain - delta_start)) ** 2
    below = lipschitz**2 * (abs(loss_start - loss_long) + noise)
    if above == 0:
        time = 0.0
    elif below == 0:
        warnings.warn(
            "nothing drives this fine-tuning (no loss to go down, or no gradient), so the bound is infinite",
            UnfedWarning,
            stacklevel=2,
        )
        time = math.inf
    else:
        time = above / below
    return Bound(time, delta_retrain, delta_start, loss_start, loss_long, lipschitz, noise, epsilon)


def noisy_time(printed: Bound, noise: Noise) -> Bound:
    """The printed bound with the noise's share A, which grows with the time: A = a·t, so t is a root.

    Lip² · t · (|ΔL| + a·t) = (1 − ε)² (Δδ)²
    """
    descent, share = abs(printed.loss_start - printed.loss_long), noise.stochasticity
    above = ((1 - printed.epsilon) * (printed.delta_retrain - printed.delta_start)) ** 2
    if above == 0 or share == 0 or printed.lipschitz == 0:
        return printed
    wanted = above / printed.lipschitz**2
    # The root without the difference of two nearly equal numbers that the usual form has where a is small.
    time = 2 * wanted / (descent + math.sqrt(descent**2 + 4 * share * wanted))
    return replace(printed, time=time, noise=share * time)


def corrected_time(printed: Bound, noise: Noise) -> Bound:
    """The bound under noise with the term that the paper's proof drops (Theorem 5, Eq. 7).

    The least t for which a flow with this noise can have changed δ by as much; never above the printed one's.
    """
    wanted = ((1 - printed.epsilon) * (printed.delta_retrain - printed.delta_start)) ** 2
    descent = printed.loss_start - printed.loss_long

    def allowed(time: float) -> float:
        grown = {"noise": noise.stochasticity * time, "diffusion": noise.diffusion * time}
        return squared_gap_limit(time, descent, printed.lipschitz, **grown)

    low, high = 0.0, 1.0
    while allowed(high) < wanted and high < FOR_EVER:
        high *= 2
    if allowed(high) < wanted:
        return replace(printed, time=math.inf, noise=math.inf)
    for _ in range(200 if wanted else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) < wanted else (low, middle)
    time = high if wanted else 0.0
    return replace(printed, time=time, noise=noise.stochasticity * time)


@dataclass(frozen=True)
class Sets:
    """D_r and D_u as rows of one source, and how many of them go through the model at once."""

    source: Source
    retain: Tensor
    forget: Tensor
    batch: int = 1024

    def losses(self, template: Template, params: Params) -> tuple[float, float]:
        """L_{D_r}(θ) and L_{D_u}(θ): mean cross-entropy in eval mode, over all rows."""
        retain, forget = (score(template, params, self.source, rows, self.batch) for rows in (self.retain, self.forget))
        return retain.mean_loss, forget.mean_loss

    def delta(self, template: Template, params: Params) -> float:
        """δ(θ), the loss gap."""
        return loss_gap(*self.losses(template, params))

    def steepness(self, template: Template, params: Params) -> float:
        """‖∇_θ (L_{D_r} − L_{D_u})‖ over all rows.

        This is the slope of δ at one model, of which Lip is the supremum (Eq. 8).

        Taken over all rows and not as the largest over batches (Eq. 84), whose noise would count as slope.
        """
        sets = (self.retain, self.forget)
        retain, forget = (mean_gradient(template, params, self.source, rows, self.batch) for rows in sets)
        return math.sqrt(sum(float((retain[name] - forget[name]).double().square().sum()) for name in retain))


@dataclass(frozen=True)
class BoundModels:
    """The models that a bound is measured on."""

    start: Params
    """θ⁰"""
    retrained: Params
    long: Params
    """Trained on D_r for long: it bounds the loss that can be gone down (Eq. 86)."""
    on_the_way: Sequence[Params] = ()
    """Checkpoints of the method's own run."""


def bound(template: Template, sets: Sets, models: BoundModels, *, epsilon: float = 0.0) -> Bound:
    """The bound as the paper prints it, measured on models (Theorem 1, Eq. 2).

    `long` bounds the loss that can be gone down (Eq. 86), and Lip is the largest slope at the start and at the
    checkpoints on the way (Eq. 85).
    """
    if not len(sets.retain) or not len(sets.forget):
        raise UnfedError("The bound needs rows of D_r and of D_u; it cannot be measured after D_u was deleted.")
    loss_start, forget_start = sets.losses(template, models.start)
    return unlearning_time(
        sets.delta(template, models.retrained),
        loss_gap(loss_start, forget_start),
        loss_start,
        sets.losses(template, models.long)[0],
        max(sets.steepness(template, params) for params in (models.start, *models.on_the_way)),
        epsilon=epsilon,
    )
