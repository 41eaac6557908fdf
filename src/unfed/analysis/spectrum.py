"""How many directions do the gradients of fine-tuning take? The paper's spectral content (Eq. 89).

X_1 … X_b are gradients of mini-batches at one model and λ_1 ≥ … ≥ λ_d the eigenvalues of their covariance Σ:

    Ψ(α) = Σ_{i ≤ αd} λ_i / Σ_i λ_i          α_β = min {α : Ψ(α) ≥ β}

Ψ is estimated on p random sets of coordinates K_1 … K_p and averaged. With about as many coordinates as batches, or
more, the sample's eigenvalues μ are far from Σ's, even for large b. The Marchenko-Pastur equation ties them together:
with n = b − 1, γ = |K| / n and v(z) = (1/n) Σ 1 / (μ_i − z), the law H of Σ's eigenvalues solves

    1 / v(z) + z − γ ∫ λ dH(λ) / (1 + λ v(z)) = 0          for every z off the real line.

For H = Σ w_k δ(t_k) on a fixed grid the left side at z_j, e_j, is linear in w: El Karoui's L∞ linear programme

    min u    with    |Re e_j| ≤ u s_j,   |Im e_j| ≤ u s_j,   Σ w_k = 1,   Σ w_k t_k = tr / |K|,   w ≥ 0

where tr = Σ μ_i and s_j = |1 / v(z_j) + z_j|: residuals are relative, because gradients have few large eigenvalues and
many small ones, which absolute residuals do not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from unfed import rng
from unfed.client import scores
from unfed.data import Source
from unfed.errors import UnfedError, nearest
from unfed.model.functional import Template
from unfed.model.params import Params

Floats = NDArray[np.float64]

MIN_BATCHES = 3  # two eigenvalues are left after centring

# The grids of the linear programme, for μ scaled by its maximum: z = ρ e^{iφ}, and the places t of H's atoms.
RADII = np.geomspace(1e-5, 5.0, 36)
ANGLES = np.array([0.15, 0.6, 1.2, 2.2, 3.0])
ATOMS = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 300)])


@dataclass(frozen=True)
class Gradients:
    """b mini-batch gradients, of which only the coordinates in some K_j are kept."""

    values: Tensor
    """One row per batch, one column per kept coordinate, where the model lies."""
    columns: Tensor
    """Row j: the columns that make up K_j."""

    def on(self, j: int) -> Tensor:
        """The gradients' coordinates in K_j, b × |K|."""
        return self.values.index_select(1, self.columns[j].to(self.values.device))


@dataclass(frozen=True)
class Content:
    """Spectral content, averaged over the sets of coordinates: entry i − 1 is Ψ̂(i / |K|)."""

    psi: Floats
    each: Floats
    """El Karoui's curve of every set of coordinates, one per row."""

    def interval(self, beta: float = 0.95, share: float = 0.95, draws: int = 500) -> tuple[float, float]:
        """Where α_β of this share of bootstraps over the sets of coordinates lies; one set has no width."""
        at = np.random.default_rng(0).integers(len(self.each), size=(draws, len(self.each)))
        found = [alpha(self.each[rows].mean(axis=0), beta) for rows in at]
        low, high = np.quantile(found, [(1 - share) / 2, (1 + share) / 2])
        return float(low), float(high)

    def alpha(self, beta: float = 0.95) -> float:
        """α_β by El Karoui's spectrum; the paper's Ψ⁻¹(1⁻) is β = 0.999."""
        return alpha(self.psi, beta)


def content(found: Gradients) -> Content:
    """Ψ̂ = (1/p) Σ_j Ψ̂_j over the sets K_1 … K_p: the spectral content (Eq. 89)."""
    count, size = found.columns.shape
    each = np.stack([curve(*el_karoui(gram_spectrum(found.on(j)), size), size) for j in range(count)])
    return Content(each.mean(axis=0), each)


# --- gradients --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradientSample:
    """Which gradients are looked at.

    It follows from the seed alone, so that models are compared on the same ones.
    """

    batch: int = 64
    batches: int = 128
    size: int = 2000
    """Coordinates in a set."""
    sets: int = 100
    names: Sequence[str] | None = None
    """Limits the coordinates to some tensors, or to all tensors of some modules."""
    seed: int = 0


def gradients(
    template: Template,
    params: Params,
    source: Source,
    rows: Tensor,
    sample: GradientSample = GradientSample(),  # noqa: B008  (frozen)
) -> Gradients:
    """X_i = ∇ mean cross-entropy of batch i, in eval mode, without augmentation, on sets of coordinates.

    A batch holds no row twice.
    """
    _check_batches(len(rows), sample.batch, sample.batches)
    chosen = _trainable(template, sample.names)
    indices = index_sets(sum(params[name].numel() for name in chosen), sample.size, sample.sets, sample.seed)
    kept, columns = torch.unique(indices, return_inverse=True)
    places = _places(params, chosen, kept)
    values = params[chosen[0]].new_empty((sample.batches, len(kept)))
    groups = (rows[drawn] for drawn in _batches(len(rows), sample.batch, sample.batches, sample.seed))
    with closing(scores.batches(template, source, groups)) as pairs:
        for i, (x, y) in enumerate(pairs):
            values[i] = _gradient(template, params, x, y, places)
    if not bool(torch.isfinite(values).all()):
        raise UnfedError("The gradients have NaN or infinite values; use a model from before it diverged.")
    return Gradients(values, columns)


def index_sets(d: int, size: int, sets: int, seed: int) -> Tensor:
    """K_1 … K_p, one per row in rising order.

    Each holds `size` different numbers below d, the same for the same seed.
    """
    if size < 1 or sets < 1:
        raise UnfedError(
            f"There must be at least one set of at least one coordinate, not {sets} of {size}; raise both."
        )
    if size > d:
        raise UnfedError(
            f"A set of {size} coordinates does not fit into {d} parameters; lower size, or name more tensors."
        )
    parent = rng.key("spectrum", "coordinates", seed)
    return torch.stack([rng.first(rng.fold(parent, j), d, size) for j in range(sets)])


def _batches(n: int, batch: int, batches: int, seed: int) -> Iterator[Tensor]:
    """The positions of each batch; each is drawn from all n, so that the X_i are independent."""
    parent = rng.key("spectrum", "batches", seed)
    for i in range(batches):
        yield rng.first(rng.fold(parent, i), n, batch)


def _gradient(template: Template, params: Params, x: Tensor, y: Tensor, places: dict[str, Tensor]) -> Tensor:
    """The kept coordinates of one batch's gradient, in the order of the tensors."""
    leaves = {name: params[name].detach().requires_grad_() for name in places}
    loss = F.cross_entropy(template.bind(params | leaves)(x), y)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    pairs = zip(found, places.items(), strict=True)
    parts = [params[n].new_zeros(len(at)) if g is None else g.reshape(-1)[at] for g, (n, at) in pairs]
    return torch.cat(parts)


def _trainable(template: Template, names: Sequence[str] | None) -> tuple[str, ...]:
    """The trainable tensors that these names, of tensors or of modules, stand for, in the model's order."""
    if names is None:
        return template.trainable
    chosen: set[str] = set()
    for name in names:
        found = [own for own in template.trainable if own == name or own.startswith(f"{name}.")]
        if not found:
            raise UnfedError(
                f"{name!r} is no trainable tensor of this model and no module with one; name another."
                f"{nearest(name, template.trainable)}"
            )
        chosen.update(found)
    return tuple(name for name in template.trainable if name in chosen)


def _places(params: Params, names: Sequence[str], kept: Tensor) -> dict[str, Tensor]:
    """Where the kept coordinates lie inside each tensor; a tensor without any needs no gradient."""
    places, begin = {}, 0
    for name in names:
        end = begin + params[name].numel()
        inside = kept[(kept >= begin) & (kept < end)] - begin
        if len(inside):
            places[name] = inside.to(params[name].device)
        begin = end
    return places


def _check_batches(rows: int, batch: int, batches: int) -> None:
    if batches < MIN_BATCHES:
        raise UnfedError(f"A covariance needs at least {MIN_BATCHES} batches, not {batches}; raise batches.")
    if batch < 1:
        raise UnfedError(f"A batch needs at least one row, not {batch}; raise batch.")
    if batch >= rows:
        raise UnfedError(
            f"Batches of {batch} out of {rows} rows would all be the same; lower batch, or give more rows."
        )


# --- spectra ----------------------------------------------------------------------------------------------------------


def gram_spectrum(x: Tensor) -> Floats:
    """The n = b − 1 eigenvalues μ of X_c X_cᵀ / (b − 1), largest first.

    They are those of the covariance, but for zeros.

    X_c is centred over the batches, which makes one eigenvalue zero whatever X is; that one is left out.
    """
    b = len(x)
    if b < MIN_BATCHES:
        raise UnfedError(f"A covariance needs at least {MIN_BATCHES} gradients, not {b}; use more batches.")
    x = x.double()
    centred = x - x.mean(0)
    # Equal numbers differ from their mean by rounding.
    if not bool(centred.norm() > 1e-12 * x.norm()):
        raise UnfedError(
            "All gradients are equal on these coordinates, so their covariance is zero;"
            " use smaller batches, more rows or more coordinates."
        )
    mu = torch.linalg.eigvalsh(centred @ centred.T / (b - 1)).flip(0)[: b - 1]
    values: Floats = mu.clamp(min=0.0).cpu().numpy()
    return values


def el_karoui(mu: Floats, size: int) -> tuple[Floats, Floats]:
    """The law H of the population's eigenvalues: atoms in rising order, and their weights."""
    # Imported where it is used: it takes a while, and most processes never come here.
    from scipy.optimize import linprog

    largest = _largest(mu)
    scaled = mu / largest
    a, b = _residuals(scaled, size / len(mu))
    # The unknowns are w and u; ±(a w − b) ≤ u.
    u = np.ones((len(a), 1))
    least = np.append(np.zeros(len(ATOMS)), 1.0)
    exact = np.stack([np.append(np.ones(len(ATOMS)), 0.0), np.append(ATOMS, 0.0)])
    solved = linprog(
        least,
        A_ub=np.block([[a, -u], [-a, -u]]),
        b_ub=np.concatenate([b, -b]),
        A_eq=exact,
        b_eq=np.array([1.0, scaled.sum() / size]),
        bounds=(0.0, None),
        method="highs",
    )
    if not solved.success:
        raise UnfedError(
            f"The linear programme for the spectrum was not solved ({solved.message}); use more batches or"
            " another number of coordinates."
        )
    weights = np.maximum(solved.x[:-1], 0.0)
    return ATOMS * largest, weights / weights.sum()


def _residuals(mu: Floats, gamma: float) -> tuple[Floats, Floats]:
    """A and b with (Re e, Im e) / s = b − A w, two rows per point z."""
    z = np.outer(RADII, np.exp(1j * ANGLES)).reshape(-1)
    v = np.mean(1.0 / (mu[None, :] - z[:, None]), axis=1)
    left = 1.0 / v + z
    right = gamma * ATOMS[None, :] / (1.0 + np.outer(v, ATOMS))
    s = np.abs(left)
    left, right = left / s, right / s[:, None]
    return np.concatenate([right.real, right.imag]), np.concatenate([left.real, left.imag])


def _largest(mu: Floats) -> float:
    largest = float(np.max(mu, initial=0.0))
    if not 0.0 < largest < np.inf:
        raise UnfedError(
            "A spectrum needs finite eigenvalues, one of them above zero; use gradients that differ from each other."
        )
    return largest


# --- curves -----------------------------------------------------------------------------------------------------------


def curve(atoms: Floats, weights: Floats, size: int) -> Floats:
    """Ψ̂(i / |K|) for i = 1 … |K|, where λ̂_i is the quantile of H at 1 − (i − ½) / |K|."""
    below = np.cumsum(weights)
    levels = 1.0 - (np.arange(size) + 0.5) / size
    quantiles = atoms[np.minimum(np.searchsorted(below, levels), len(atoms) - 1)]
    _largest(quantiles)
    sums = np.cumsum(quantiles)
    shares: Floats = sums / sums[-1]  # the last is exactly 1
    return shares


def alpha(psi: Floats, beta: float = 0.95) -> float:
    """α_β = min {α : Ψ̂(α) ≥ β}, as a share of the coordinates.

    Curves are flat near the top: where |K| is many times b, α_β is far less certain than Ψ̂ itself.
    """
    if not 0.0 < beta <= 1.0:
        raise UnfedError(f"beta is a share above 0 and at most 1, not {beta}; the paper uses 0.95.")
    return (int(np.argmax(psi >= beta)) + 1) / len(psi)
