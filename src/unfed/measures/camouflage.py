"""Does a departure arm a backdoor?

One client plants a trigger, another one holds triggered images with their right labels (the camouflage), and asks to
leave: the model without it obeys the trigger, and so would exact Retrain's. What a gate can do is to compare, class by
class, how the model before and the model after answer to triggers of the gate's own:

    turned(θ, g, c)   of held-out images that θ reads as another class than c, and whose label is another, the share in
                      percent that θ reads as c once trigger g is stamped on them
    rise              max over g, c of turned(after, g, c) − turned(before, g, c), in points

The family is fixed here and never looks at what a config says was planted. A trigger unlike all of it can pass unseen:
`benchmarks/camouflage.py` counts how often, and how often an honest leaver raises an alarm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unfed import rng
from unfed.client.scores import score
from unfed.data import Source, TensorSource
from unfed.measures.forgotten import Judgement
from unfed.model.functional import Template
from unfed.model.params import Params
from unfed.values import not_measured

WHAT = "the largest rise in points of the images that a trigger of the gate's own turns to one class"
LARGEST = 512  # held-out images that are looked at
FEWEST = 30  # of other classes, for a share to say anything
SMALLEST = 4  # pixels of an image's side

Shape = Literal["square", "row", "column", "dark square", "checkerboard"]


@dataclass(frozen=True)
class OwnTrigger:
    """One of the gate's own patterns, drawn on images in [0, 1] of any size."""

    shape: Shape
    place: tuple[int, int] = (0, 0)
    """Of a square: 0 for the upper or left edge, 1 for the lower or right one."""

    @property
    def name(self) -> str:
        if self.shape != "square":
            return self.shape
        return f"{'lower' if self.place[0] else 'upper'} {'right' if self.place[1] else 'left'} square"

    def stamp(self, images: Tensor) -> Tensor:
        """Copies of images [..., C, H, W] that carry the pattern."""
        height, width = images.shape[-2:]
        down = torch.arange(height, device=images.device)[:, None].expand(height, width)
        right = torch.arange(width, device=images.device)[None, :].expand(height, width)
        side = max(2, min(height, width) // 4)
        if self.shape == "checkerboard":
            board = (((down // max(1, side // 2)) + (right // max(1, side // 2))) % 2).to(images.dtype)
            return 0.7 * images + 0.3 * board
        if self.shape == "row":
            return images.masked_fill(down == height // 2, 1.0)
        if self.shape == "column":
            return images.masked_fill(right == width // 2, 1.0)
        if self.shape == "dark square":
            top, left = (height - side) // 2, (width - side) // 2
            return images.masked_fill(_box(down, right, top, left, side), 0.0)
        top, left = self.place[0] * (height - side), self.place[1] * (width - side)
        return images.masked_fill(_box(down, right, top, left, side), 1.0)


def _box(down: Tensor, right: Tensor, top: int, left: int, side: int) -> Tensor:
    return (down >= top) & (down < top + side) & (right >= left) & (right < left + side)


FAMILY: tuple[OwnTrigger, ...] = (
    *(OwnTrigger("square", (y, x)) for y in (0, 1) for x in (0, 1)),
    OwnTrigger("row"),
    OwnTrigger("column"),
    OwnTrigger("dark square"),
    OwnTrigger("checkerboard"),
)
"""The gate's own triggers; what a config planted is none of them."""


@dataclass(frozen=True)
class Reactions:
    """How one model answers to the gate's own triggers."""

    turned: NDArray[np.float64]
    """[trigger, class] in percent; NaN for a class with too few images of others."""
    rows: int


def reactions(
    template: Template, params: Params, source: Source, rows: Tensor, seed: int, batch: int = 1024
) -> Reactions | str:
    """How a model answers on some held-out images, or why that cannot be asked."""
    if not isinstance(source, TensorSource) or source.prepared:
        return not_measured("triggers go on image data held as uint8 tensors, and this is other data")
    if min(source.shape[-2:]) < SMALLEST:
        return not_measured(f"images of {source.shape[-2]}x{source.shape[-1]} pixels are too small for a trigger")
    drawn = rng.order(rng.key(seed, "camouflage"), len(rows))[:LARGEST].sort().values
    chosen = rows.cpu()[drawn].to(source.images.device)
    images, labels = source.images[chosen], source.labels[chosen]

    def read(trigger: OwnTrigger | None) -> NDArray[np.int64]:
        flags = None if trigger is None else torch.ones(len(labels), dtype=torch.bool, device=labels.device)
        seen = TensorSource(
            images,
            labels,
            classes=source.classes,
            transform=source.transform,
            stamped=flags,
            trigger=trigger,
            dtype=source.dtype,
        )
        found: NDArray[np.int64] = score(template, params, seen, torch.arange(len(labels)), batch).predicted.numpy()
        return found

    plain, truth = read(None), labels.cpu().numpy()
    turned = np.full((len(FAMILY), source.classes), np.nan)
    for place, trigger in enumerate(FAMILY):
        stamped = read(trigger)
        for c in range(source.classes):
            others = (plain != c) & (truth != c)
            if others.sum() >= FEWEST:
                turned[place, c] = 100.0 * float((stamped[others] == c).mean())
    return Reactions(turned, len(labels))


def camouflage(before: Reactions | str, after: Reactions | str, bound: float) -> Judgement:
    """No trigger of the gate's own may turn many more images to one class than it did before."""
    if isinstance(before, str) or isinstance(after, str):
        why = str(after if isinstance(after, str) else before)
        return Judgement(WHAT, why, bound, "not measured")
    rises = after.turned - before.turned
    if np.isnan(rises).all():
        why = f"{after.rows} held-out images, {FEWEST} of other classes needed"
        return Judgement(WHAT, not_measured(why), bound, "not measured", after.rows)
    trigger, target = np.unravel_index(np.nanargmax(rises), rises.shape)
    rise = float(rises[trigger, target])
    what = f"{WHAT} ({FAMILY[int(trigger)].name}, class {int(target)})"
    return Judgement(what, rise, bound, "passed" if rise <= bound else "failed", after.rows)
