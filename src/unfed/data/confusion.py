"""Interclass confusion: a client swaps the labels of two classes among its training rows.

    y' = b for ⌊share · n_a⌋ of its n_a rows of class a,   y' = a for ⌊share · n_b⌋ of its n_b rows of class b
    harm = (rows of a read as b + rows of b read as a) / rows of either class             on held-out data

Unlike a backdoor it has no trigger that could be looked for: what the client taught is spread over the border between
two classes, and a model that has forgotten it reads both as well as one that never met the client (Goel et al. 2022).
"""

from __future__ import annotations

from torch import Tensor

from unfed import rng
from unfed.data.partition import portion
from unfed.data.source import Source, TensorSource
from unfed.errors import UnfedError


def confused(labels: Tensor, rows: Tensor, classes: tuple[int, int], seed: int, share: float) -> Tensor:
    """The labels after a share of these rows of either class was given the other's."""
    rows, found = rows.to(labels.device).sort().values, labels.clone()
    for one, other in (classes, classes[::-1]):
        own = rows[labels[rows] == one]
        count = portion(share, len(own))
        if count == 0:
            raise UnfedError(
                f"The client holds {len(own)} training rows of class {one}, so a share of {share} confuses none;"
                " choose other poison.classes, another client or a larger share."
            )
        key = rng.as_key(rng.key(seed, "confusion", one), labels.device)
        found[own[rng.order(key, len(own))[:count]]] = other
    return found


def confuse(source: Source, rows: Tensor, classes: tuple[int, int], seed: int, share: float = 0.8) -> TensorSource:
    """The source after one client, with these training rows, has swapped labels of two classes."""
    if not isinstance(source, TensorSource):
        raise UnfedError("Only data held as tensors can be confused; leave the poisoning out.")
    if len(set(classes)) != 2 or not all(0 <= c < source.classes for c in classes):
        raise UnfedError(f"poison.classes are two different classes of 0..{source.classes - 1}, not {list(classes)}.")
    labels = confused(source.labels, rows, classes, seed, share)
    return source.relabelled(labels, source.stamped, source.trigger)
