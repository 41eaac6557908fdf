"""How steep can a network be, given the norms of its layers and how they are connected?

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
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from unfed.errors import UnfedError, nearest

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
