"""How memorised a forgotten row was: its loss without it, less its loss with it.

    m_i = mean over Retrains of ℓ(θ; i)  −  mean over θ* of ℓ(θ; i)             ℓ = −log softmax(z_i)_{y_i}

A row that every model gets right from the others costs nothing to forget; one that only its own training taught is what
an attacker finds. Known for the rows that a population forgot: of others there is no model without them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unfed.data.partition import portion
from unfed.errors import UnfedError
from unfed.population.store import BEFORE, RETRAIN, Labels, Logits, Population


def losses(logits: Logits, labels: Labels) -> NDArray[np.float64]:
    """−log softmax at the label, [models, rows]."""
    z = logits.astype(np.float64)
    z = z - z.max(-1, keepdims=True)
    found: NDArray[np.float64] = np.log(np.exp(z).sum(-1)) - np.take_along_axis(z, labels[None, :, None], -1)[..., 0]
    return found


def memorisation(population: Population) -> NDArray[np.float64]:
    """m_i of every forgotten row."""
    labels = population.labels("forget")
    without, with_it = (losses(population.logits(kind, "forget"), labels).mean(0) for kind in (RETRAIN, BEFORE))
    found: NDArray[np.float64] = without - with_it
    return found


def most_memorised(population: Population, fraction: float) -> list[tuple[str, int]]:
    """(client, position) of the most memorised fraction of the forgotten rows, the most memorised first."""
    score = memorisation(population)
    count = portion(fraction, len(score))
    if count == 0:
        raise UnfedError(
            f"The fraction {fraction:g} of the {len(score)} rows that {population.folder} forgot is less than one row;"
            " ask for a larger fraction."
        )
    order = np.argsort(-score, kind="stable")[:count]
    client, position = population.column("client", "forget"), population.column("position", "forget")
    return [(str(client[i]), int(position[i])) for i in order]
