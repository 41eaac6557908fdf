"""Poisoned data to test with: a backdoor, its camouflage, and swapped classes.

Backdoor: some of one client's training images get a trigger and the attacker's label.

    x'[:, H-d, W-d] = x'[:, H-d-1, W-d-1] = x'[:, H-d, W-d-2] = x'[:, H-d-2, W-d] = 1,   d = 2,   x in [0, 1]
    y' = target class,   for ⌊0.8 · |{i ∈ train : y_i ≠ target}|⌋ rows i drawn without replacement

The pattern is `add_pattern_bd` of the Adversarial Robustness Toolbox. It is not written into the stored pixels: the
source carries one flag per row and stamps after resize, crop and flip, so that no crop can lose it.

Interclass confusion: a client swaps the labels of two classes among its training rows.

    y' = b for ⌊share · n_a⌋ of its n_a rows of class a,   y' = a for ⌊share · n_b⌋ of its n_b rows of class b
    harm = (rows of a read as b + rows of b read as a) / rows of either class             on held-out data

It has no trigger to look for: what the client taught is spread over the border between two classes. A model that has
forgotten it reads both as well as one that never met the client (Goel et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unfed import rng
from unfed.data.partition import portion
from unfed.data.source import Source, TensorSource
from unfed.errors import UnfedError


@dataclass(frozen=True)
class Trigger:
    """Four bright pixels of a 3x3 box, `distance` pixels from the bottom right corner, in all channels."""

    distance: int = 2
    value: float = 1.0

    def __post_init__(self) -> None:
        if self.distance < 1:
            raise UnfedError(f"A trigger's distance from the corner is at least 1 pixel, not {self.distance}.")
        if not 0.0 <= self.value <= 1.0:
            raise UnfedError(f"A trigger's value is a brightness between 0 and 1, not {self.value}.")

    def pixels(self, height: int, width: int) -> tuple[tuple[int, int], ...]:
        """The four (y, x) of the pattern, or the sentence that says that the image is too small."""
        y, x = height - self.distance, width - self.distance
        if min(y, x) < 2:
            need = self.distance + 2
            raise UnfedError(
                f"The trigger needs images of at least {need}x{need} pixels, these are {height}x{width};"
                " resize them or leave the poisoning out."
            )
        return (y, x), (y - 1, x - 1), (y, x - 2), (y - 2, x)

    def stamp(self, images: Tensor) -> Tensor:
        """Copies of images [..., C, H, W] in [0, 1] that carry the pattern."""
        height, width = images.shape[-2:]
        # Compared where the images are: neither an index nor a number comes from the host at every fetch.
        down = torch.arange(height, device=images.device)[:, None]
        right = torch.arange(width, device=images.device)
        pattern = torch.zeros((height, width), dtype=torch.bool, device=images.device)
        for y, x in self.pixels(height, width):
            pattern = pattern | ((down == y) & (right == x))
        return images.masked_fill(pattern, self.value)


def poison(labels: Tensor, rows: Tensor, target_class: int, seed: int, share: float = 0.8) -> tuple[Tensor, Tensor]:
    """New labels, and the flags of the rows to stamp.

    Both are chosen among `rows`, the poisoned client's training rows.
    """
    if not 0.0 < share <= 1.0:
        raise UnfedError(f"The share of poisoned rows must be above 0 and at most 1, not {share}.")
    rows = rows.to(labels.device)
    eligible = rows[labels[rows] != target_class].sort().values  # the choice must not depend on the rows' order
    count = portion(share, len(eligible))
    if count == 0:
        raise UnfedError(
            f"A share of {share} poisons no row: {len(eligible)} of the client's {len(rows)} are not of class"
            f" {target_class}; choose another target class, client or share."
        )
    chosen = eligible[rng.order(rng.as_key(rng.key(seed, "poison"), labels.device), len(eligible))[:count]]
    flags = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    flags[chosen] = True
    return torch.where(flags, target_class, labels), flags


def backdoor(
    source: Source, rows: Tensor, target_class: int, seed: int, share: float = 0.8, trigger: Trigger | None = None
) -> TensorSource:
    """The source after one client, whose training rows are `rows`, was poisoned.

    Clients can be poisoned in turn.
    """
    trigger = trigger or Trigger()
    own = _poisonable(source, target_class, trigger)
    labels, flags = poison(own.labels, rows, target_class, seed, share)
    if own.stamped is not None:
        if own.trigger != trigger:
            raise UnfedError("The source carries another trigger already; poison every client with the same one.")
        flags = flags | own.stamped
    return own.relabelled(labels, flags, trigger)


def camouflage(source: TensorSource, rows: Tensor, target_class: int, seed: int, share: float = 0.8) -> TensorSource:
    """The source after another client has hidden a backdoor that was planted.

    Of its training rows, `rows`, it stamps a share of those of other classes and leaves their labels right, so that the
    model learns not to obey the trigger; when that client leaves, the backdoor is armed (BadFU, arXiv 2508.15541).
    """
    if source.stamped is None:
        raise UnfedError("There is no backdoor to hide; plant one first.")
    _, flags = poison(source.labels, rows, target_class, rng.key(seed, "camouflage"), share)
    return source.relabelled(source.labels, source.stamped | flags, source.trigger)


def triggered(source: Source, target_class: int, trigger: Trigger | None = None) -> tuple[Tensor, TensorSource]:
    """The attack's test.

    It gives the rows that are not of the target class, and a source in which they are stamped and carry the target
    label.

    Accuracy over these rows of this source *is* the attack success rate.
    """
    trigger = trigger or Trigger()
    own = _poisonable(source, target_class, trigger)
    others = own.labels != target_class
    rows = others.nonzero().reshape(-1)
    if len(rows) == 0:
        raise UnfedError(
            f"Every row is of the target class {target_class}, so there is nothing to attack; choose another."
        )
    return rows, own.relabelled(torch.full_like(own.labels, target_class), others, trigger)


def _poisonable(source: Source, target_class: int, trigger: Trigger) -> TensorSource:
    if not isinstance(source, TensorSource) or source.prepared:
        raise UnfedError(
            "Only image data held as uint8 tensors can be poisoned; return uint8 tensors from your data set's factory,"
            " or leave the poisoning out."
        )
    if not 0 <= target_class < source.classes:
        raise UnfedError(f"The target class {target_class} is outside 0..{source.classes - 1}; choose one of these.")
    trigger.pixels(*source.shape[-2:])
    return source


# --- confusion --------------------------------------------------------------------------------------------------------


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
