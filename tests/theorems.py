"""The paper's theorems, lemmas and constants as small functions: what they say, what holds, what was seen to fail.

`tests/analysis/test_theory.py` tries them; `docs/equations.csv` lists every equation with its function.

Theorem 2: with σ(y) = max(y, 0), Y a layer's answers before σ, and Y' its answers under any other perturbation:

    E‖σ(Y) − σ(−Y)‖² ≥ E‖σ(Y) − σ(Y')‖² − 2ε                                                            (Eq. 4)
    where ε bounds  E|‖σ(Y)‖² − ‖σ(−Y)‖²|  and  E|‖σ(Y)‖² − ‖σ(Y')‖²|

It holds on every sample: σ(Y) and σ(−Y) are orthogonal, and no two of σ's answers point apart. A distance is not a
forecast: a first layer drawn again moves its answers 0.55 times as far as negation does, and unlearns better.

How far a ReLU's answers y₀ can move, Lemma 1 and Lemma 2:

    max over y ≥ 0 with ‖y‖ = ‖y₀‖ of  ‖y₀ − y‖²  =  2‖y₀‖² − 2‖y₀‖ · min_i y₀ᵢ           for y₀ ≥ 0    (Eq. 22, Eq. 23)

Lemma 1 (Eq. 24) holds on every sample. Eq. 23 does not: it prints ‖y₀‖² for a y₀ without zeros, but (3, 4) reaches 20
and not 25, and Eq. 22 means "at least one coordinate is zero". So Lemma 2's share of a layer drawn again, α = 1 − 1/π,
is the limit of many coordinates: 0.84 of two, 0.682 of eight.

Gradients behind and before a negated layer: Theorem 3, with its proof's Theorem 6.

With J_ℓ = ∇_{θ_ℓ} N^θ(X) for a random X, J'_ℓ the same after negation, and Y what the negated layers answered:

    W( J_ℓ, J'_ℓ)   ≤ A_ℓ · TV(Y, −Y)                for layers behind the negated ones                   (Eq. 51)
    W(±J_ℓ, J'_ℓ)   ≤ A_ℓ · TV((X, Y), (X, −Y))      for the negated ones (+) and those before (−)  (Eq. 5, Eq. 52)

The theorem is right where its constants are (`jacobian_constant`). Two things about its use:

- The premise TV(Y, −Y) ≪ 1 does not hold where NoT negates. One half-space tells Y from −Y:

      TV(Y, −Y) ≥ | P(⟨w, Y⟩ > 0) − P(⟨w, Y⟩ < 0) |          for every direction w,

  and with w the mean answer the right side is 1 at every layer of a small network trained on digits (`asymmetry`).
- The second line is never more than A_ℓ · 1 and, where Y is not 0, never less: Y is a function of X, so (X, Y) and
  (X, −Y) share no point and their TV is 1.

Distances between distributions, and what a function makes of them: Lemma 3, Lemma 4, Lemma 7.

    TV(μ, ν) = ½ Σ |μ({x}) − ν({x})|                    W(μ, ν) = min over couplings of E‖x − y‖

    ‖f‖_Lip = sup ‖f(x) − f(y)‖ / ‖x − y‖                                                                (Eq. 34)
    ‖f‖_{Lip,∞} = inf over f = g + h of max(‖g‖_Lip, 2‖h‖_∞)                                             (Eq. 35)

    W(f#μ, f#ν) ≤ ‖g‖_Lip · W(μ, ν) + 2‖h‖_∞ · TV(μ, ν)          f = g + h                              (Eq. 40, Eq. 63)

The last line holds and says all three lemmas: h = 0 is Lemma 3, g = 0 is Lemma 4, and it is never above Lemma 7's
‖f‖_{Lip,∞} · (W + TV). The proof of Lemma 7 ends with 1 + ‖f‖_{Lip,∞}, which is more than is needed: W depends
on μ − ν alone, so what μ and ν share can stay where it is at no price.

Samples stand for distributions: every row weighs the same, and equal rows are one point.

How steep can a network be, given the norms of its layers and how they are connected?

These are Definition 5, Definition 6, Lemma 5 and Lemma 6. ℓ < ℓ' where ℓ' uses what ℓ answers; with Γ the maximal
chains of the layers L:

    len(L) = the length of the longest chain                                                             (Eq. 41)
    Λ(L)   = |Γ|                                                                                         (Eq. 42)
    ‖θ‖_{2,L} = max over γ ∈ Γ of ( Π_{ℓ ∈ γ} ‖θ_ℓ‖₂ )^(1/|γ|)                                           (Eq. 43)

    ‖N^θ‖_Lip      ≤           Λ(L) · max(‖Σ‖_Lip ‖θ‖_{2,L}, 1)^len(L)                                   (Eq. 44)
    ‖∇_{θ_ℓ} N^θ‖  ≤ sup‖x‖ ·  Λ(L) · max(‖Σ‖_Lip ‖θ‖_{2,L}, 1)^len(L)                                   (Eq. 50)

‖Σ‖_Lip is the steepest activation. Two things were seen to fail, each with a test:

- Eq. 44 with skip connections, which the paper allows. In a → b → c with a skip a → c the chain a < b < c is the only
  maximal one, and the way a → c is forgotten: with θ_b = 0 the network is θ_c θ_a, the bound 1. It holds when Γ is
  the set of *paths* through the graph (`paths`), which is what its proof adds up.
- Eq. 50 as printed. The gradient with respect to θ_ℓ has every factor but ‖θ_ℓ‖; where that is small, the product with
  it is smaller. N = θ₂θ₁x with θ₁ = 0.01 and θ₂ = 10 has slope 10 in θ₁, the bound is 1. It holds with the layer left
  out of its own paths (`without`), for activations with σ(0) = 0 and no biases.

How far a layer is from an optimal one, and maps that keep optimal layers optimal.

These are Definition 7, Definition 8 and Theorem 7:

    ‖θ‖_{*,ℓ} = inf over α ≥ 0, θ* ∈ Θ* of  ‖θ_ℓ − α θ*_ℓ‖₂                                              (Eq. 71)
    ‖σ‖_{*,ℓ} = inf over A > 0 of sup over θ of ( ‖σ(θ)‖_{*,ℓ} − A ‖θ‖_{*,ℓ} )                           (Eq. 72)
    σ is LWO-Lipschitz if  Σ_ℓ ‖σ‖_{*,ℓ} = 0                                                             (Eq. 73)

Eq. 73 says: for some A, every layer is after σ at most A times as far from optimal as before. Theorem 7 says that
negation is such a map, with A = 1, where the next layer can compensate it (`compensated`), because then −θ*_ℓ is
optimal whenever θ*_ℓ is. Where it cannot, −θ*_ℓ may be as far from optimal as a layer can be: ‖θ*_ℓ‖.

The set Θ* of all optima is never known; here it is the optima at hand, and the distance is one from above.

The next layer can undo a negation, for some activations: Theorem 4 and Lemma 8.

If an activation ψ satisfies, for some a, b, c with ab ≠ 0,

    a·ψ(x) + b·ψ(−x) = c        for every x            (Eq. 75; Eq. 74 is a = b = 1)

then ψ(x) = c/a − (b/a)·ψ(−x), so for linear layers ℓ₁, ℓ₂

    ℓ₂ ∘ ψ ∘ ℓ₁ = ℓ₂' ∘ ψ ∘ (−ℓ₁)      with      W₂' = −(b/a)·W₂,   b₂' = b₂ + (c/a)·W₂·1               (Eq. 76)

and a network with a negated layer is as good as before once the next one is W₂', b₂' (Eq. 77). The paper's proof prints
the constant c where c/a is needed. There are two kinds only, for x and −x together give (a − b)(ψ(x) − ψ(−x)) = 0:

    a = b        ψ(x) + ψ(−x) is constant     tanh, sin (0), sigmoid, step (1)
    a = −b       ψ is even, c = 0             x², |x|, cos

What holds and what does not, each with a test. It is exact where weight *and* bias of ℓ₁ are negated. NoT's own listing
negates one parameter, a weight, and keeps its bias: then nothing compensates exactly. For an even ψ negation changes
nothing at all, so there is nothing to compensate and nothing is forgotten. A convolution with zero padding and c ≠ 0
(sigmoid) is compensated inside the image and not at its border, where the padding stays 0. ReLU, GELU and SiLU have no
such relation: for them the paper conjectures, and NR-Freeze (`unfed.methods.nr_freeze`) measures.

Models made of several models' layers, and layers that fit together: Definition 3, Definition 4.

    θ̄ is a grafting of θ⁽¹⁾, θ⁽²⁾, …  if for every layer ℓ there is an i with  θ̄_ℓ = θ⁽ⁱ⁾_ℓ              (Eq. 6)
    its layers are co-adapted         if N^θ̄ is optimal

Layers of one optimal model are co-adapted. Taken from two optimal models they usually are not, and that is what
negation is after: where −θ*_ℓ is a layer of another optimal model (`compensated`), the negated model is a grafting of
two optimal ones whose layers do not fit. In the demo's model (test accuracy 98.3 %) the first weight of Retrain leaves
18.9 % and the negated one 9.2 %: negation breaks the fit as a stranger's layer does.

`unfed.model.perturb.graft` makes a grafting; the functions here recognise one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from unfed import rng
from unfed.errors import UnfedError, nearest

# --- Theorem 2: how far answers can move ------------------------------------------------------------------------------


def activation_distance(y: Tensor, other: Tensor) -> float:
    """E‖σ(Y) − σ(Y')‖² over the rows of two matrices: either side of Theorem 2's Eq. 4."""
    y, other = _pair(y, other)
    return float((y.relu() - other.relu()).square().sum(1).mean())


def imbalance(y: Tensor, other: Tensor) -> float:
    """E|‖σ(Y)‖² − ‖σ(Y')‖²|: the least ε that Theorem 2's Eq. 4 may be given for this pair."""
    y, other = _pair(y, other)
    return float((y.relu().square().sum(1) - other.relu().square().sum(1)).abs().mean())


@dataclass(frozen=True)
class Lead:
    """Both sides of the inequality and its ε."""

    negation: float
    other: float
    epsilon: float

    @property
    def slack(self) -> float:
        """How far the left side lies above the right one; the theorem says never below 0."""
        return self.negation - (self.other - 2 * self.epsilon)

    @property
    def share(self) -> float:
        """The other perturbation's distance as a share of negation's."""
        return self.other / self.negation if self.negation else math.nan


def lead(y: Tensor, other: Tensor) -> Lead:
    """How far negation and another perturbation move the answers, and the least ε (Theorem 2, Eq. 4)."""
    epsilon = max(imbalance(y, -y), imbalance(y, other))
    return Lead(activation_distance(y, -y), activation_distance(y, other), epsilon)


def _pair(y: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    if y.shape != other.shape or not len(y):
        raise UnfedError(
            f"The same rows through the same layer are compared, not {tuple(y.shape)} with {tuple(other.shape)}."
        )
    return y.double().reshape(len(y), -1), other.double().reshape(len(y), -1)


MANY = 1 - 1 / math.pi
"""Lemma 2's α for many coordinates."""


def farthest(y: Tensor) -> Tensor:
    """For each row y₀ ≥ 0 the largest ‖y₀ − y‖² over y ≥ 0 of its length (Eq. 22, Eq. 23).

    Where a coordinate is zero this is Eq. 22's 2‖y₀‖²; elsewhere it is what Eq. 23 should read.
    """
    rows = y.double().reshape(len(y), -1)
    if bool((rows < 0).any()):
        raise UnfedError("Only answers of a ReLU, none below 0, have such a distance; apply it first.")
    # ⟨y₀, y⟩ is least where y lies along the axis of y₀'s smallest coordinate.
    length = rows.norm(dim=1)
    found: Tensor = 2 * length.square() - 2 * length * rows.amin(1)
    return found


def reach(y: Tensor) -> float:
    """How far E‖σ(Y) − σ(−Y)‖² lies above E[farthest] − ε: never below 0 (Lemma 1, Eq. 24)."""
    y = _rows(y)
    return activation_distance(y, -y) - (float(farthest(y.relu()).mean()) - imbalance(y, -y))


def redrawn_share(width: int) -> float:
    """α for a layer of `width` Gaussian answers: how far drawing it anew goes (Lemma 2, Eq. 33).

    α = (1 − 1/π) / (1 − 2I/R)  with  I = ∫₀^∞ P(N > t)^width dt  and  R = E‖N(0, 1)^width‖: in the 2^−width of the
    cases in which no coordinate is zero, nothing is as far as 2‖y₀‖².
    """
    if width < 2:
        raise UnfedError("With one coordinate, no other answer of the same length exists; give a width of at least 2.")
    t = torch.linspace(0, 12, 24_001, dtype=torch.float64)
    tail = torch.special.erfc(t / math.sqrt(2)) / 2
    least = float(torch.trapezoid(tail**width, t))
    length = math.sqrt(2) * math.exp(math.lgamma((width + 1) / 2) - math.lgamma(width / 2))
    return MANY / (1 - 2 * least / length)


# --- Theorem 3: distances between distributions, and how steep a network is ------------------------------------------

LEAST_ROWS = 6
"""Rows: two to find a direction, two to find a centre, two to judge."""


@dataclass(frozen=True)
class Asymmetry:
    """What one half-space says about TV(Y, −Y)."""

    estimate: float
    at_least: float
    """With the asked-for confidence; 0 shows nothing, for another test may see more."""


def asymmetry(y: Tensor, *, centred: bool = False, level: float = 0.05) -> Asymmetry:
    """TV(Y, −Y) from below, by the half-space of the mean answer: Theorem 3's premise.

    One row per sample. A third of the rows gives the direction, a third the mean that is taken off if `centred`, a
    third judges: a direction judged by the rows it was made of tells any Y from −Y where answers outnumber rows.
    """
    rows = y.double().reshape(len(y), -1)
    if len(rows) < LEAST_ROWS or not 0 < level < 1:
        raise UnfedError(f"Give at least {LEAST_ROWS} rows and a level between 0 and 1, not {len(rows)} and {level}.")
    direction, judged = rows[0::3].mean(0), rows[2::3]
    if centred:
        judged = judged - rows[1::3].mean(0)
    found = float((judged @ direction).sign().mean().abs())
    # Hoeffding: a mean of n values in [−1, 1] is off by more than this with probability `level` at most.
    margin = math.sqrt(2 * math.log(2 / level) / len(judged))
    return Asymmetry(found, max(0.0, found - margin))


def symmetry_test(y: Tensor, *, centred: bool = False, draws: int = 999, seed: int = 0) -> float:
    """How likely so asymmetric a sample is if Y and −Y have one law: the p-value of Theorem 3's premise.

    The statistic is the energy distance of Y and −Y, mean over pairs of ‖y + y'‖ − ‖y − y'‖. If the laws are one, every
    row may change its sign, so the statistic among those of random signs is exact whatever the law. `centred` asks
    whether Y lies symmetrically around its mean: the sample's mean is taken off, and off again of every draw of signs,
    because a centre that is only estimated makes any sample look shifted.
    """
    rows = y.double().reshape(len(y), -1)
    if len(rows) < LEAST_ROWS or draws < 1:
        raise UnfedError(f"Give at least {LEAST_ROWS} rows and one draw, not {len(rows)} and {draws}.")
    generator = rng.generator(rng.key("symmetry test", seed))
    signs = torch.randint(0, 2, (draws, len(rows)), generator=generator).to(rows).mul(2).sub(1)
    if centred:
        rows = rows - rows.mean(0)
        gram = rows @ rows.T
        here = _energies(gram).sum()
        drawn = torch.stack([_energies(_off_mean(sign[:, None] * gram * sign)).sum() for sign in signs])
        scale = gram.diagonal().clamp(min=0).sqrt().sum() * len(rows)
    else:
        pairs = _energies(rows @ rows.T)
        here, drawn, scale = pairs.sum(), ((signs @ pairs) * signs).sum(1), pairs.abs().sum()
    return (1 + int((drawn >= here - 1e-9 * scale).sum())) / (draws + 1)


def _energies(gram: Tensor) -> Tensor:
    """‖y + y'‖ − ‖y − y'‖ of all pairs of different rows, from their products."""
    square = gram.diagonal()[:, None] + gram.diagonal()[None, :]
    found = (square + 2 * gram).clamp(min=0).sqrt() - (square - 2 * gram).clamp(min=0).sqrt()
    return found.fill_diagonal_(0.0)


def _off_mean(gram: Tensor) -> Tensor:
    """The products of rows once their mean is taken off."""
    return gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean()


def total_variation(x: Tensor, y: Tensor) -> float:
    """TV of two samples, as distributions on the points that occur in them (Lemma 3).

    It is for samples whose values repeat. Two continuous samples share no point and are 1 apart, whatever their laws:
    for those see `asymmetry`.
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


Follows = Mapping[str, Sequence[str]]
"""For each layer, the layers that use what it answers."""
Chains = Collection[tuple[str, ...]]


def paths(follows: Follows) -> tuple[tuple[str, ...], ...]:
    """Every way through the graph, from a first layer to a last one."""
    fed = {name for names in follows.values() for name in names}
    found = tuple(way for name in _layers(follows) if name not in fed for way in _ways(follows, name, ()))
    if not found:
        raise UnfedError("No layer is the first, or there is none; give a graph without loops.")
    return found


def maximal_chains(follows: Follows) -> tuple[tuple[str, ...], ...]:
    """Γ of Definition 5: totally ordered sets of layers that no further layer fits into.

    These are the paths over edges that no other path goes around: a skip is no chain of its own.
    """
    behind = {name: _behind(follows, name) for name in _layers(follows)}
    direct = {
        name: [later for later in follows.get(name, ()) if not any(later in behind[other] for other in follows[name])]
        for name in behind
    }
    return paths(direct)


def length(chains: Chains) -> int:
    """len(L), the layers of the longest chain (Eq. 41)."""
    return max(map(len, chains))


def diameter(chains: Chains) -> int:
    """Λ(L), the number of chains (Eq. 42)."""
    return len(chains)


def chain_norm(chains: Chains, norms: Mapping[str, float]) -> float:
    """‖θ‖_{2,L}: the largest geometric mean of spectral norms along a chain (Definition 6, Eq. 43)."""
    return max(math.prod(norms[name] for name in chain) ** (1 / len(chain)) for chain in chains)


def lipschitz_limit(chains: Chains, norms: Mapping[str, float], activation: float = 1.0) -> float:
    """How steep the network can be in its input (Lemma 5, Eq. 44).

    It holds over `paths`; over `maximal_chains`, as printed, it fails where connections skip layers.
    """
    return diameter(chains) * max(activation * chain_norm(chains, norms), 1.0) ** length(chains)


def gradient_limit(chains: Chains, norms: Mapping[str, float], reach: float, activation: float = 1.0) -> float:
    """How steep it can be in a layer's weights, for inputs no longer than `reach` (Lemma 6, Eq. 50).

    As printed it takes all `norms`, and fails where the layer's own is small; it holds with `without(norms, layer)`.
    """
    return reach * lipschitz_limit(chains, norms, activation)


def without(norms: Mapping[str, float], layer: str) -> dict[str, float]:
    """The norms with a 1 in one layer's place: a gradient with respect to a layer does not have its norm."""
    if layer not in norms:
        raise UnfedError(f"There is no layer {layer!r}.{nearest(layer, norms)}")
    return {**norms, layer: 1.0}


def jacobian_constant(
    chains: Chains, norms: Mapping[str, float], reach: float, activation: float = 1.0, *, behind: bool = True
) -> float:
    """A_ℓ of Theorem 6: behind the negated layers with a factor 2 (Eq. 58), else without (Eq. 62).

    Behind, `chains` are those of the layers behind, and `reach` is how long their input gets: what the negated layers
    answer, not the network's own input as printed. It inherits what is said of `gradient_limit`.
    """
    return (2 if behind else 1) * gradient_limit(chains, norms, reach, activation)


def may_be_negated(follows: Follows, chosen: Collection[str]) -> bool:
    """Theorem 4's condition on L_neg: no chosen layer feeds another, and none is a last one."""
    return all(_behind(follows, name) and not _behind(follows, name) & set(chosen) for name in _known(follows, chosen))


def cuts_every_chain(follows: Follows, chosen: Collection[str]) -> bool:
    """Theorem 6's condition on L_neg, a "Cauchy domain": every maximal chain meets it once."""
    wanted = set(_known(follows, chosen))
    return all(len(wanted & set(chain)) == 1 for chain in maximal_chains(follows))


def _layers(follows: Follows) -> list[str]:
    return list(dict.fromkeys([*follows, *(name for names in follows.values() for name in names)]))


def _known(follows: Follows, chosen: Collection[str]) -> Collection[str]:
    layers = _layers(follows)
    for name in chosen:
        if name not in layers:
            raise UnfedError(f"There is no layer {name!r}.{nearest(name, layers)}")
    return chosen


def _ways(follows: Follows, name: str, before: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if name in before:
        raise UnfedError(f"The layer {name!r} feeds itself; give a feedforward network, without loops.")
    way = (*before, name)
    if not follows.get(name):
        yield way
    for later in follows.get(name, ()):
        yield from _ways(follows, later, way)


def _behind(follows: Follows, name: str) -> set[str]:
    """All layers that use, at once or later, what this one answers."""
    found, waiting = set[str](), list(follows.get(name, ()))
    while waiting:
        if (later := waiting.pop()) not in found:
            found.add(later)
            waiting += follows.get(later, ())
    return found


def jacobians(answer: Callable[[Tensor, Tensor], Tensor], weight: Tensor, x: Tensor) -> Tensor:
    """J_ℓ = ∇_{θ_ℓ} N^θ(x) for every row x (Theorem 3).

    `answer(weight, row)` is the network as a function of one layer's weight and one input.
    """
    found: Tensor = vmap(jacrev(answer), (None, 0))(weight, x)
    return found.flatten(1)


def jacobian_distance(before: Tensor, after: Tensor, *, upstream: bool = False) -> float:
    """W(±J_ℓ, J'_ℓ) between two samples of Jacobians (Eq. 5, Eq. 51, Eq. 52).

    The sign is − for layers upstream of the negated ones.
    """
    return wasserstein(-before if upstream else before, after)


def jacobian_limit(constant: float, variation: float) -> float:
    """A_ℓ · TV, the right side of Theorem 3 and Theorem 6 (Eq. 5, Eq. 51, Eq. 52)."""
    if not 0 <= variation <= 1 or constant < 0:
        raise UnfedError(f"A total variation lies in [0, 1] and A_ℓ is not negative, not {variation} and {constant}.")
    return constant * variation


# --- Theorems 4 and 7: a negation that is undone, layers near optimal ones, graftings ---------------------------------


def optimality_norm(layer: Tensor, optima: Sequence[Tensor]) -> float:
    """‖θ‖_{*,ℓ}: the distance of a layer from the rays through optimal ones (Definition 7, Eq. 71)."""
    if not optima:
        raise UnfedError("Without an optimal layer there is no distance to one; give at least one.")
    theta = layer.double().flatten()
    found = []
    for optimum in optima:
        other = optimum.double().flatten()
        square = float(other @ other)
        scale = max(0.0, float(theta @ other) / square) if square else 0.0
        found.append(float((theta - scale * other).norm()))
    return min(found)


def stretch(before: Sequence[float], after: Sequence[float]) -> float:
    """The least A with ‖σ(θ)‖_* ≤ A ‖θ‖_* over the layers at hand (Definition 8, Theorem 7).

    Infinite if a layer that was optimal is not any more: then Eq. 72 is not 0 for any A, and neither is Eq. 73.
    """
    if len(before) != len(after) or not before:
        raise UnfedError(f"Give as many distances before as after, at least one, not {len(before)} and {len(after)}.")
    return max(_times(old, new) for old, new in zip(before, after, strict=True))


def _times(old: float, new: float) -> float:
    if old:
        return new / old
    return math.inf if new else 0.0


REACH = 4.0
"""Where an activation's relation is looked for: between −4 and 4."""
SAME = 1e-12


@dataclass(frozen=True)
class Relation:
    """a·ψ(x) + b·ψ(−x) = c."""

    a: float
    b: float
    c: float


def relation_of(psi: Callable[[Tensor], Tensor]) -> Relation | None:
    """The relation that an activation satisfies, with a = 1 (Eq. 74, Eq. 75); None if there is none."""
    x = torch.linspace(0.0, REACH, 401, dtype=torch.float64)[1:]
    right, left = psi(x), psi(-x)
    total = right + left
    if float((total - total[0]).abs().max()) < SAME:
        c = float(total[0])
        return Relation(1.0, 1.0, c if abs(c) >= SAME else 0.0)
    return Relation(1.0, -1.0, 0.0) if float((right - left).abs().max()) < SAME else None


def compensated(weight: Tensor, bias: Tensor | None, relation: Relation) -> tuple[Tensor, Tensor]:
    """W₂' and b₂': what the layer behind a negated one must become (Lemma 8, Eq. 76; Theorem 4, Eq. 77).

    For dense layers and convolutions.
    """
    if relation.a == 0 or relation.b == 0:
        raise UnfedError("The relation must hold both ψ(x) and ψ(−x): a and b are not 0.")
    shift = relation.c / relation.a * weight.flatten(1).sum(1)
    return -(relation.b / relation.a) * weight, shift if bias is None else bias + shift


def origins(grafted: Mapping[str, Tensor], models: Mapping[str, Mapping[str, Tensor]]) -> dict[str, tuple[str, ...]]:
    """For each tensor, the models it was taken from, to the bit (Definition 3, Eq. 6)."""
    return {
        name: tuple(label for label, params in models.items() if name in params and torch.equal(params[name], tensor))
        for name, tensor in grafted.items()
    }


def is_grafting(grafted: Mapping[str, Tensor], models: Mapping[str, Mapping[str, Tensor]]) -> bool:
    """Whether every tensor comes from one of the models (Definition 3, Eq. 6)."""
    return all(origins(grafted, models).values())


def are_coadapted(loss: float, optimum: float, within: float = 0.0) -> bool:
    """Whether a grafting's layers fit together: its loss is the optimum's, up to `within` (Definition 4)."""
    if within < 0:
        raise UnfedError(f"How far above the optimum a loss may lie cannot be negative, as {within} is.")
    return loss <= optimum + within


# --- Theorem 5 and the time that a recovery takes ---------------------------------------------------------------------


def stochasticity(times: Sequence[float], traces: Sequence[float]) -> float:
    """A = ½ ∫ |Tr(Σ² ∇²L)| ds, by trapezoids between the measured traces (Eq. 9, Eq. 87)."""
    if len(times) != len(traces) or len(times) < 2:
        raise UnfedError(f"Give one trace per time, at least two of them, not {len(traces)} for {len(times)}.")
    if any(later < earlier for earlier, later in pairwise(times)):
        raise UnfedError("The times must not go back; sort the checkpoints.")
    spans = [later - earlier for earlier, later in pairwise(times)]
    heights = [(abs(one) + abs(other)) / 2 for one, other in pairwise(traces)]
    return sum(span * height for span, height in zip(spans, heights, strict=True)) / 2


def recovery_time(times: Sequence[float], losses: Sequence[float], optimum: float, within: float) -> float | None:
    """t*_ε = min {t : L(θᵗ) − L(θ*) ≤ ε}: when a recovery is over, after the fact; None if it is not."""
    if len(times) != len(losses):
        raise UnfedError(f"Give one loss per time, not {len(losses)} for {len(times)}.")
    met = [time for time, loss in zip(times, losses, strict=True) if loss - optimum <= within]
    return min(met, default=None)
