"""lift: raise the head's bias of a forgotten class as far as the other classes allow.

This needs no training and no row of the class.

    b_c ← b_c + δ_c,   δ_c the largest lift at which the other classes lose at most L points of accuracy, L = 1 and 5
    back(L) = share of D_u's rows of class c that are read as c under δ_c, over all forgotten classes

A row (x, y) of another class that was right is lost when δ_c > z_y − z_c, and a row of class c is back when
δ_c > max_{j≠c} z_j − z_c. Of n rows of the other classes k = ⌊L·n / 100⌋ may be lost, so δ_c is the (k+1)-th smallest
margin z_y − z_c among those that were right. The rows are test rows, or retained ones where there is no test data. Each
class is lifted by itself. A head without a bias can be given one, so only logits are needed.

A method that keeps the old head hides a class behind one number. Retrain never learned the class, yet some of its rows
come back there too: only what is above Retrain's share is memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unfed.measures.undo.scene import NO_FORGET, Scene, View
from unfed.model.params import Params
from unfed.values import not_measured

POINTS = (1, 5)
NO_CLASS = not_measured("no class was asked to leave, so no class can be lifted")


def largest_lift(logits: Tensor, labels: Tensor, c: int, points: int) -> float:
    """δ_c: how far class c can rise before these rows lose more than so many points of accuracy."""
    own = logits.gather(1, labels[:, None]).squeeze(1)
    margins = (own - logits[:, c])[logits.argmax(1) == labels].sort().values
    lost = points * len(labels) // 100
    return float(margins[lost]) if lost < len(margins) else math.inf


def gaps(logits: Tensor, c: int) -> Tensor:
    """How far class c lies below the largest other logit of each row."""
    others = logits.clone()
    others[:, c] = -math.inf
    return others.max(1).values - logits[:, c]


def lift(
    scene: Scene,
    params: Params,
    points: Sequence[int] = POINTS,
    read: Callable[[View], tuple[Tensor, Tensor]] | None = None,
) -> dict[str, Any]:
    """The share of the forgotten classes' rows that come back at each allowed loss, in percent.

    `read` gives other logits of a view than the model's own.
    """
    read = read or partial(scene.logits, params)
    if not scene.classes:
        return {"reason": NO_CLASS}
    rows, labels = read(scene.forget)
    here = torch.isin(labels, torch.tensor(scene.classes))
    if not bool(here.any()):
        return {"reason": NO_FORGET}
    others, truth = read(scene.test or scene.retain)
    stays = ~torch.isin(truth, torch.tensor(scene.classes))
    others, truth = others[stays], truth[stays]
    found: dict[str, Any] = {"on": "retain" if scene.test is None else "test", "classes": list(scene.classes)}
    for allowed in points:
        lifts = [largest_lift(others, truth, c, allowed) for c in scene.classes]
        back = [int((gaps(rows[labels == c], c) < by).sum()) for c, by in zip(scene.classes, lifts, strict=True)]
        found |= {f"back_{allowed}": 100.0 * sum(back) / int(here.sum()), f"lifts_{allowed}": lifts}
    return found
