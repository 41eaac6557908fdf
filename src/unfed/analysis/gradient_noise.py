"""How much noise mini-batches bring into gradient descent, per unit of time.

As a flow, dθ = −∇L dt + Σ dW, stochastic gradient descent with rate η, momentum μ and batches of B rows at K clients
who are averaged has

    dt = η / (1 − μ) per step          ΣΣᵀ = dt · C / (B · K)          C = the covariance of one row's gradient

    diffusion       Tr(ΣΣᵀ)                 what carries θ away by itself; the term that the proof of the bound drops
    stochasticity   ½ |Tr(ΣΣᵀ ∇²L)|         the paper's A, per unit of time (Eq. 9)

Tr C is exact, from every row's own gradient. Tr(C ∇²L) is Hutchinson's estimate with probes that have C for covariance:
v = n^−½ Σ ξ_i (g_i − ḡ) with random signs ξ_i, so that E vᵀ∇²L v is the trace; a probe costs two backward passes. Rows
are taken to be drawn one by one, and the K clients to be alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from unfed import rng
from unfed.data import Source
from unfed.errors import UnfedError
from unfed.model.functional import Template
from unfed.model.params import Params

AT_ONCE = 128
"""Rows whose gradients are held side by side."""


@dataclass(frozen=True)
class Descent:
    """Stochastic gradient descent, as far as its noise and its time depend on it."""

    lr: float
    batch: int
    momentum: float = 0.0
    clients: int = 1

    def __post_init__(self) -> None:
        if not (self.lr > 0 and self.batch >= 1 and 0 <= self.momentum < 1 and self.clients >= 1):
            raise UnfedError("A descent has a rate above 0, a momentum in [0, 1), and at least one row and one client.")

    def time(self, steps: float) -> float:
        """How long so many steps are: η / (1 − μ) each, for momentum carries every gradient on."""
        return steps * self.lr / (1 - self.momentum)


@dataclass(frozen=True)
class Noise:
    """What noise does per unit of time (Eq. 9)."""

    diffusion: float
    """Tr(ΣΣᵀ)."""
    stochasticity: float
    """½ |Tr(ΣΣᵀ ∇²L)|: the paper's A divided by the time (Eq. 9)."""
    spread: float = 0.0
    """The standard error of Hutchinson's estimate of the stochasticity."""


def gradient_noise(
    template: Template,
    params: Params,
    source: Source,
    rows: Tensor,
    descent: Descent,
    probes: int = 16,
    seed: int = 0,
) -> Noise:
    """The noise of descent on these rows at one model (Eq. 9)."""
    if len(rows) < 2 or probes < 2:
        raise UnfedError(f"A covariance needs two rows and two probes at least, not {len(rows)} and {probes}.")
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        return _noise(template, params, source.fetch(rows, None), descent, probes, seed)


def _noise(
    template: Template, params: Params, batch: tuple[Tensor, Tensor], descent: Descent, probes: int, seed: int
) -> Noise:
    x, y = batch
    leaves = {name: params[name].detach().requires_grad_() for name in template.trainable}
    moving = list(leaves.values())
    losses = F.cross_entropy(template.bind({**params, **leaves})(x), y, reduction="none")
    mean = torch.autograd.grad(losses.mean(), moving, create_graph=True, allow_unused=True)
    generator, found = rng.generator(rng.key("gradient noise", seed)), []
    for _ in range(probes):
        sign = torch.randint(0, 2, (len(y),), generator=generator).to(losses).mul(2).sub(1)
        weights = (sign - sign.mean()) / len(y) ** 0.5
        probe = torch.autograd.grad((weights * losses).sum(), moving, retain_graph=True, allow_unused=True)
        along = [(g, v.detach()) for g, v in zip(mean, probe, strict=True) if g is not None and v is not None]
        slope = torch.stack([(g * v).sum() for g, v in along]).sum()
        bent = torch.autograd.grad(slope, moving, retain_graph=True, allow_unused=True)
        parts = [(h * v).sum() for h, v in zip(bent, probe, strict=True) if h is not None and v is not None]
        found.append(torch.stack(parts).sum().double() if parts else torch.zeros((), dtype=torch.float64))
    curved = torch.stack(found).cpu()
    share = descent.time(1) / (descent.batch * descent.clients)
    return Noise(
        share * covariance_trace(template, params, x, y),
        share * abs(float(curved.mean())) / 2,
        share * float(curved.std()) / len(found) ** 0.5 / 2,
    )


def covariance_trace(template: Template, params: Params, x: Tensor, y: Tensor) -> float:
    """Tr C = E‖g_i‖² − ‖E g_i‖², from every row's own gradient."""
    moving = {name: params[name].detach() for name in template.trainable}

    def loss(own: Params, row: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(template.bind({**params, **own})(row[None]), label[None])

    squares, sums = 0.0, {name: torch.zeros_like(value, dtype=torch.float64) for name, value in moving.items()}
    for begin in range(0, len(x), AT_ONCE):
        rows = slice(begin, begin + AT_ONCE)
        for name, value in vmap(grad(loss), (None, 0, 0))(moving, x[rows], y[rows]).items():
            squares += float(value.double().square().sum())
            sums[name] += value.double().sum(0)
    mean = sum(float((total / len(x)).square().sum()) for total in sums.values())
    return squares / len(x) - mean
