"""Distances between distributions, and what a function makes of them: Lemma 3, Lemma 4, Lemma 7.

    TV(μ, ν) = ½ Σ |μ({x}) − ν({x})|                    W(μ, ν) = min over couplings of E‖x − y‖

    ‖f‖_Lip = sup ‖f(x) − f(y)‖ / ‖x − y‖                                                                (Eq. 34)
    ‖f‖_{Lip,∞} = inf over f = g + h of max(‖g‖_Lip, 2‖h‖_∞)                                             (Eq. 35)

    W(f#μ, f#ν) ≤ ‖g‖_Lip · W(μ, ν) + 2‖h‖_∞ · TV(μ, ν)          f = g + h                              (Eq. 40, Eq. 63)

The last line holds and says all three lemmas: h = 0 is Lemma 3, g = 0 is Lemma 4, and it is never above Lemma 7's
‖f‖_{Lip,∞} · (W + TV). The proof of Lemma 7 ends with 1 + ‖f‖_{Lip,∞}, which is more than is needed: W depends
on μ − ν alone, so what μ and ν share can stay where it is at no price.

Samples stand for distributions: every row weighs the same, and equal rows are one point.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unfed import rng
from unfed.errors import UnfedError


def total_variation(x: Tensor, y: Tensor) -> float:
    """TV of two samples, as distributions on the points that occur in them (Lemma 3).

    It is for samples whose values repeat. Two continuous samples share no point and are 1 apart, whatever their laws:
    for those see `unfed.analysis.theory.jacobian`.
    """
    x, y = _rows(x), _rows(y)
    _, places = torch.unique(torch.cat([x, y]), dim=0, return_inverse=True)
    weights = torch.cat([x.new_full((len(x),), 1 / len(x)), y.new_full((len(y),), -1 / len(y))])
    left = x.new_zeros(int(places.max()) + 1).index_add_(0, places, weights)
    return float(left.abs().sum()) / 2


def wasserstein(x: Tensor, y: Tensor) -> float:
    """W of two samples of one size: the cheapest way to pair their rows (Lemma 3)."""
    # Imported where it is used: it is slow to import, and reports and runs do without.
    from scipy.optimize import linear_sum_assignment

    x, y = _rows(x), _rows(y)
    if len(x) != len(y):
        raise UnfedError(f"Rows are paired one to one, so give as many of both, not {len(x)} and {len(y)}.")
    price = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").cpu().numpy()
    rows: Any
    columns: Any
    rows, columns = linear_sum_assignment(price)
    return float(price[rows, columns].mean())


def sliced_wasserstein(x: Tensor, y: Tensor, slices: int = 64, seed: int = 0) -> float:
    """The mean W of two samples seen along random directions: never above W, and cheap."""
    x, y = _rows(x), _rows(y)
    if x.shape != y.shape or slices < 1:
        raise UnfedError("Give two samples of the same shape and at least one slice.")
    generator = rng.generator(rng.key("slices", seed))
    along = torch.randn((x.shape[1], slices), generator=generator, dtype=torch.float64).to(x.device)
    along = along / along.norm(dim=0)
    return float(((x @ along).sort(0).values - (y @ along).sort(0).values).abs().mean())


def steepest(points: Tensor, values: Tensor) -> float:
    """‖f‖_Lip over the points at hand, the largest slope between two of them (Eq. 34)."""
    points, values = _rows(points), _rows(values)
    apart, change = torch.pdist(points), torch.pdist(values)
    if bool(((apart == 0) & (change > 0)).any()):
        raise UnfedError("One point has two values, so this is no function; leave out what made them differ.")
    return float((change[apart > 0] / apart[apart > 0]).max()) if bool((apart > 0).any()) else 0.0


def norm(lipschitz: float, bounded: float) -> float:
    """‖f‖_{Lip,∞} of one way to write f as a Lipschitz part and a bounded one (Eq. 35)."""
    return max(lipschitz, 2 * bounded)


def pushed_limit(distance: float, variation: float, *, lipschitz: float = 0.0, bounded: float = 0.0) -> float:
    """How far apart f = g + h can take two distributions (Lemma 3, Lemma 4, Lemma 7).

    ‖g‖_Lip · W + 2‖h‖_∞ · TV, which is at most `norm(…)` · (W + TV) of Eq. 63; with g = 0 it is Eq. 40.
    """
    return lipschitz * distance + 2 * bounded * variation


def _rows(x: Tensor) -> Tensor:
    if not len(x):
        raise UnfedError("An empty sample is no distribution; give at least one row.")
    return x.double().reshape(len(x), -1)
