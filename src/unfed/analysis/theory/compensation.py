"""The next layer can undo a negation, for some activations: Theorem 4 and Lemma 8.

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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unfed.errors import UnfedError

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
