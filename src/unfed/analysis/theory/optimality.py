"""How far a layer is from an optimal one, and maps that keep optimal layers optimal.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unfed.errors import UnfedError


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
