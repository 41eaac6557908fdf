"""How far a layer is from an optimal one, and maps that keep optimal layers optimal.

These are Definition 7, Definition 8 and Theorem 7:

    ‖θ‖_{*,ℓ} = inf over α ≥ 0, θ* ∈ Θ* of  ‖θ_ℓ − α θ*_ℓ‖₂                                              (Eq. 71)
    ‖σ‖_{*,ℓ} = inf over A > 0 of sup over θ of ( ‖σ(θ)‖_{*,ℓ} − A ‖θ‖_{*,ℓ} )                           (Eq. 72)
    σ is LWO-Lipschitz if  Σ_ℓ ‖σ‖_{*,ℓ} = 0                                                             (Eq. 73)

Eq. 73 says: for some A, every layer is after σ at most A times as far from optimal as before. Theorem 7 says that
negation is such a map, with A = 1, where the next layer can compensate it (`compensation`), because then −θ*_ℓ is
optimal whenever θ*_ℓ is. Where it cannot, −θ*_ℓ may be as far from optimal as a layer can be: ‖θ*_ℓ‖.

The set Θ* of all optima is never known; here it is the optima at hand, and the distance is one from above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
