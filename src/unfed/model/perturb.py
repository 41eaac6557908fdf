"""Perturbations: pure functions from params to params.

NoT is one line of this file. Eq. 3 of the paper:

    θ' = (−θ_ℓ)_{ℓ ∈ L_neg} ⊕ (θ_ℓ)_{ℓ ∉ L_neg}                                   negate(params, choices)

The rest are the paper's "Different Perturbations" (the same choices, another map on each chosen tensor W) and the maps
that a plan applies `after` a step. Nothing here changes a tensor in place; what is not chosen is handed on as it is.

    reinit      W ← the model's own initialisation          flip        the kernel mirrored along width, height, both
    zero        W ← 0                                       rotate      the kernel turned by 90, 180, 270 degrees
    noise       W ← W + s·std(W)·N(0, 1)                    orthogonal  W ← Q·W over the output axis, Q random
    graft       W ← another model's W

    ball        w ← c + δ(w − c)/‖w − c‖  where ‖w − c‖ > δ          (PGD)
    hold        masked-out entries, or named tensors, back home      (SalUn, NR-Freeze)
    fuse        the donor's low-frequency amplitude under the base's phase                       (FCU)

The maps take no Python branch on data, so `torch.func.vmap` runs them over a stack of clients.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from unfed import rng
from unfed.errors import UnfedError, listed, nearest
from unfed.model.layers import Choice
from unfed.model.params import Params


def negate(params: Mapping[str, Tensor], choices: Sequence[Choice]) -> Params:
    """Eq. 3: the chosen tensors change their sign."""
    return changed_at(params, choices, lambda w, choice: -w)


def zero(params: Mapping[str, Tensor], choices: Sequence[Choice]) -> Params:
    """The chosen tensors become zero."""
    return changed_at(params, choices, lambda w, choice: torch.zeros_like(w))


def noise(params: Mapping[str, Tensor], choices: Sequence[Choice], *, seed: int, scale: float = 1.0) -> Params:
    """Gaussian noise as strong as `scale` standard deviations of the chosen values themselves."""
    if not (math.isfinite(scale) and scale >= 0):
        raise UnfedError(f"The scale of the noise must be a number of at least 0, not {scale}; 1 is the default.")

    def noisy(w: Tensor, choice: Choice) -> Tensor:
        return w + scale * w.std(correction=0) * _gaussian(w.shape, seed, "noise", choice).to(w)

    return changed_at(params, choices, noisy)


def flip(params: Mapping[str, Tensor], choices: Sequence[Choice], *, axis: str) -> Params:
    """The kernels mirrored along `width`, `height` or `both`."""
    axes = {"width": (-1,), "height": (-2,), "both": (-2, -1)}
    if axis not in axes:
        raise UnfedError(f"A kernel cannot be flipped along {axis!r}; choose {listed(axes)}.{nearest(axis, axes)}")

    def flipped(w: Tensor, choice: Choice) -> Tensor:
        _check_kernel(w, choice, "Flipping")
        if max(w.shape[i] for i in axes[axis]) == 1:
            raise UnfedError(f"Flipping {choice.name!r} along its {axis} changes nothing: it has one; flip the other.")
        return w.flip(axes[axis])

    return changed_at(params, choices, flipped)


def rotate(params: Mapping[str, Tensor], choices: Sequence[Choice], *, degrees: int) -> Params:
    """The kernels turned by 90, 180 or 270 degrees; 180 is a flip of both axes."""
    if degrees not in (90, 180, 270):
        raise UnfedError(f"A kernel cannot be rotated by {degrees} degrees; choose 90, 180 or 270.")

    def rotated(w: Tensor, choice: Choice) -> Tensor:
        _check_kernel(w, choice, "Rotating")
        if degrees != 180 and w.shape[-1] != w.shape[-2]:
            raise UnfedError(
                f"Rotating {choice.name!r} by {degrees} degrees needs a square kernel, not"
                f" {w.shape[-2]}x{w.shape[-1]}; rotate by 180."
            )
        return w.rot90(degrees // 90, (-2, -1))

    return changed_at(params, choices, rotated)


def orthogonal(params: Mapping[str, Tensor], choices: Sequence[Choice], *, seed: int) -> Params:
    """A random rotation or reflection of the outputs: Q·W over axis 0, Q uniform and orthogonal."""
    return changed_at(params, choices, lambda w, choice: _mixed(w, seed, choice))


def _mixed(w: Tensor, seed: int, choice: Choice, back: bool = False) -> Tensor:
    rows = w.reshape(w.shape[0] if w.ndim else 1, -1)
    q = uniform_orthogonal(_gaussian((len(rows), len(rows)), seed, "orthogonal", choice))
    product = (q.T if back else q).to(w.device) @ rows.double()
    return product.to(w.dtype).reshape(w.shape)


def unmixed(params: Mapping[str, Tensor], choices: Sequence[Choice], *, seed: int) -> Params:
    """What `orthogonal` did, taken back by anyone who draws Q again: Qᵀ·W."""
    return changed_at(params, choices, lambda w, choice: _mixed(w, seed, choice, back=True))


def denoised(params: Mapping[str, Tensor], choices: Sequence[Choice], *, seed: int, scale: float = 1.0) -> Params:
    """What `noise` did, taken back by anyone who draws it again: W − s·σ·N, with std(W) = σ·√(1 + s²)."""

    def clean(w: Tensor, choice: Choice) -> Tensor:
        size = w.std(correction=0) / math.sqrt(1 + scale**2)
        return w - scale * size * _gaussian(w.shape, seed, "noise", choice).to(w)

    return changed_at(params, choices, clean)


def uniform_orthogonal(gaussian: Tensor) -> Tensor:
    """An orthogonal matrix, uniform among all of them, from a square one of standard normal values."""
    q: Tensor
    q, r = torch.linalg.qr(gaussian)
    return q * torch.where(r.diagonal() < 0, -1.0, 1.0)  # QR alone is not uniform: its signs are conventions


def reinit(params: Mapping[str, Tensor], choices: Sequence[Choice], *, fresh: Mapping[str, Tensor]) -> Params:
    """The chosen tensors as the model's own initialisation draws them; `fresh` are such params."""
    return graft(params, choices, donor=fresh)


def graft(params: Mapping[str, Tensor], choices: Sequence[Choice], *, donor: Mapping[str, Tensor]) -> Params:
    """The chosen tensors of another model of the same architecture: a grafting (Definition 3, Eq. 6)."""

    def taken(w: Tensor, choice: Choice) -> Tensor:
        given = donor.get(choice.name)
        if given is None or given.shape != params[choice.name].shape:
            what = "lacks it" if given is None else f"has it with shape {tuple(given.shape)}"
            raise UnfedError(
                f"{choice.name!r} cannot be taken from the other model, which {what};"
                " use a model of the same architecture."
            )
        return given[slice(*choice.rows) if choice.rows else ...].to(w).clone()

    return changed_at(params, choices, taken)


PERTURBATIONS: dict[str, Callable[..., Params]] = {
    "negate": negate,
    "reinit": reinit,
    "zero": zero,
    "noise": noise,
    "flip-width": partial(flip, axis="width"),
    "flip-height": partial(flip, axis="height"),
    "flip-both": partial(flip, axis="both"),
    "rotate-90": partial(rotate, degrees=90),
    "rotate-180": partial(rotate, degrees=180),
    "rotate-270": partial(rotate, degrees=270),
    "orthogonal": orthogonal,
}


@dataclass(frozen=True)
class Perturbed:
    """Which perturbation a method applied to which tensors, as the method itself says."""

    how: str
    choices: tuple[Choice, ...]
    seeded: bool = False
    """Whether what it drew follows from the request's seed: then it can be drawn again. Else it was thrown away."""
    scale: float = 1.0
    """Of noise."""


def perturb(
    params: Mapping[str, Tensor],
    choices: Sequence[Choice],
    how: str,
    *,
    seed: int,
    fresh: Callable[[int], Params] | None = None,
    **numbers: float,
) -> Params:
    """Any perturbation by its name.

    `fresh(seed)` draws the model's own initialisation, noise takes a `scale`.
    """
    if how not in PERTURBATIONS:
        raise UnfedError(
            f"There is no perturbation {how!r}; choose {listed(PERTURBATIONS)}.{nearest(how, PERTURBATIONS)}"
        )
    rule = PERTURBATIONS[how]
    takes = inspect.signature(rule).parameters
    if unknown := [number for number in numbers if number != "scale" or "scale" not in takes]:
        raise UnfedError(f"The perturbation {how!r} has no number {unknown[0]!r}; only noise has one, scale.")
    given: dict[str, object] = dict(numbers)
    if "seed" in takes:
        given["seed"] = seed
    if "fresh" in takes:
        if fresh is None:
            raise UnfedError(
                f"The perturbation {how!r} needs the model's own initialisation;"
                " name the model by preset or factory, or choose another perturbation."
            )
        given["fresh"] = fresh(rng.key(seed, "perturb", how))
    return rule(params, choices, **given)


def changed_at(
    params: Mapping[str, Tensor], choices: Sequence[Choice], change: Callable[[Tensor, Choice], Tensor]
) -> Params:
    """The params with `change` applied to the chosen tensors or rows; the others are the same objects."""
    changed = dict(params)
    for choice in choices:
        if choice.name not in changed:
            raise UnfedError(
                f"There is no tensor {choice.name!r} to perturb; choose one that the model has."
                f"{nearest(choice.name, changed)}"
            )
        w = changed[choice.name]
        if choice.rows is None:
            changed[choice.name] = change(w, choice)
        else:
            a, b = choice.rows
            changed[choice.name] = torch.cat([w[:a], change(w[a:b], choice), w[b:]])
    return changed


def _gaussian(shape: Sequence[int], seed: int, how: str, choice: Choice) -> Tensor:
    """Standard normal values that depend on the seed and the choice alone.

    They are drawn in double precision, so that every dtype sees the same.
    """
    generator = rng.generator(rng.key(seed, "perturb", how, choice.name, *(choice.rows or ())))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)


def _check_kernel(w: Tensor, choice: Choice, doing: str) -> None:
    if w.ndim != 4 or w.shape[-2:] == (1, 1):
        raise UnfedError(
            f"{doing} needs a convolution kernel larger than 1x1, which {choice.name!r} with shape {tuple(w.shape)}"
            " is not; choose a convolution, or another perturbation."
        )


def ball(params: Mapping[str, Tensor], centre: Mapping[str, Tensor], radius: float | Tensor) -> Params:
    """Project all the given tensors, as one vector, onto the l2 ball of `radius` around `centre`.

    Inside the ball nothing changes, bit for bit; a radius of 0 gives the centre itself.
    """
    away = {name: w - centre[name] for name, w in params.items()}
    squares = [d.float().square().sum() if d.element_size() < 4 else d.square().sum() for d in away.values()]
    distance = torch.stack(squares).sum().sqrt()
    outside = (distance > radius) | (radius <= 0)
    shrink = radius / torch.where(distance > 0, distance, 1.0)
    return {
        name: torch.where(outside, (centre[name] + shrink * away[name]).to(w.dtype), w) for name, w in params.items()
    }


def hold(
    params: Mapping[str, Tensor],
    home: Mapping[str, Tensor],
    mask: Mapping[str, Tensor] | None = None,
    names: Collection[str] | None = None,
) -> Params:
    """Put entries back where they were, exactly.

    These are the entries whose mask is 0, and every entry of the named tensors.

    A tensor without a mask and without a mention moves freely.
    """
    if mask is None and names is None:
        raise UnfedError("hold needs a mask or the names of tensors; give one, or leave the map out.")
    for name in (*(mask or ()), *(names or ())):
        if name not in params:
            raise UnfedError(f"hold cannot find the tensor {name!r}; name one of the model's.{nearest(name, params)}")
    held = {name: home[name] if names is not None and name in names else w for name, w in params.items()}
    free = mask or {}
    return {name: torch.where(free[name] != 0, w, home[name]) if name in free else w for name, w in held.items()}


def fuse(
    base: Mapping[str, Tensor], donor: Mapping[str, Tensor], rho: float, names: Collection[str] | None = None
) -> Params:
    """FCU's frequency-guided fusion.

    The base keeps its phase and high band, its low-band amplitude is the donor's.

    Acts on matrices and 2-D convolution kernels, of all tensors or of those among `names` (embeddings and positions
    are matrices too, and not meant); everything else stays with the base.
    """
    if not 0 <= rho <= 1:
        raise UnfedError(f"FCU's band rho is a fraction between 0 and 1, not {rho}; the paper uses 0.7 and 0.9.")
    fused = dict(base)
    for name, w in base.items():
        if w.ndim in (2, 4) and w.is_floating_point() and (names is None or name in names):
            fused[name] = _fuse_one(w, donor[name], rho)
    return fused


def _fuse_one(base: Tensor, donor: Tensor, rho: float) -> Tensor:
    matrix = as_matrix(base)
    height, width = matrix.shape
    if not (_reach(height, rho) and _reach(width, rho)):  # shapes alone decide: the same branch for every client
        return base
    exact = matrix.double() if base.dtype == torch.float64 else matrix.float()  # there is no FFT of half precision
    spectrum = torch.fft.fft2(exact)
    amplitude = torch.fft.fft2(as_matrix(donor).to(exact.dtype)).abs()
    mixed = torch.where(low_band(height, width, rho, base.device), torch.polar(amplitude, spectrum.angle()), spectrum)
    # The half-open band is not symmetric about zero frequency, so a small imaginary part appears: it is dropped.
    return from_matrix(torch.fft.ifft2(mixed).real.to(base.dtype), base.shape)


def _reach(n: int, rho: float) -> int:
    """How far the low band reaches to each side of the centre."""
    return math.floor(n * rho / 2)


def low_band(height: int, width: int, rho: float, device: torch.device | None = None) -> Tensor:
    """Where the low frequencies lie in an (unshifted) spectrum.

    It is a centred, half-open box of fraction `rho`.
    """

    def inside(n: int) -> Tensor:
        at = torch.arange(n, device=device) - n // 2
        return (at >= -_reach(n, rho)) & (at < _reach(n, rho))

    band: Tensor = torch.fft.ifftshift(inside(height)[:, None] & inside(width)[None, :])
    return band


def as_matrix(weight: Tensor) -> Tensor:
    """A convolution (O, I, kh, kw) as the matrix (I·kh) x (kw·O); a matrix as it is."""
    if weight.ndim == 2:
        return weight
    o, i, kh, kw = weight.shape
    return weight.permute(1, 2, 3, 0).reshape(i * kh, kw * o)


def from_matrix(matrix: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `as_matrix`."""
    if len(shape) == 2:
        return matrix
    o, i, kh, kw = shape
    return matrix.reshape(i, kh, kw, o).permute(3, 0, 1, 2).contiguous()
