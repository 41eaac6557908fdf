"""Attacks without training: take a public perturbation back (flip), raise a class's bias (lift).

Retrain meets the same attacks; only what is above its numbers is memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unfed.errors import UnfedError
from unfed.measures.undo.scene import NO_FORGET, Scene, View
from unfed.model.layers import Choice
from unfed.model.params import Params
from unfed.model.perturb import PERTURBATIONS, Perturbed, denoised, negate, unmixed
from unfed.values import not_measured

# --- flip: what has a public inverse is inverted; no data, no training, no old model ----------------------------------


INVERSES = {
    "negate": "negate",
    "flip-width": "flip-width",
    "flip-height": "flip-height",
    "flip-both": "flip-both",
    "rotate-90": "rotate-270",
    "rotate-180": "rotate-180",
    "rotate-270": "rotate-90",
}
REDRAWN = {"orthogonal": unmixed, "noise": denoised}
"""What takes a draw back for anyone who can make it again."""


@dataclass(frozen=True)
class Inverse:
    """What takes a perturbation back; two that are equal do the same."""

    how: str
    seed: int | None = None
    """Of a draw that is made again."""
    scale: float = 1.0
    drawn: frozenset[tuple[str, tuple[int, int] | None]] = frozenset()
    """The tensors, or rows of them, that were drawn for."""

    def __call__(self, params: Params, choice: Choice) -> Params:
        if self.seed is None:
            return PERTURBATIONS[self.how](params, [choice])
        if (choice.name, choice.rows) not in self.drawn:
            return negate(params, [choice])
        numbers = {"scale": self.scale} if self.how == "noise" else {}
        return REDRAWN[self.how](params, [choice], seed=self.seed, **numbers)


SIGN = Inverse("negate")
"""The guess where no inverse is known."""


@dataclass(frozen=True)
class Knowledge:
    """What an attacker knows about how a model was made.

    That is the title of the method, and what it did to which tensors.
    """

    title: str
    perturbed: Perturbed | None = None
    seed: int | None = None
    """The request's, from which a method draws that throws nothing away."""

    @property
    def inverse(self) -> Inverse | None:
        """What takes the perturbation back, if the world knows it."""
        did = self.perturbed
        if did is not None and did.seeded and self.seed is not None and did.how in REDRAWN:
            drawn = frozenset((choice.name, choice.rows) for choice in did.choices)
            return Inverse(did.how, self.seed, did.scale, drawn)
        return Inverse(INVERSES[did.how]) if did is not None and did.how in INVERSES else None

    @property
    def choices(self) -> tuple[Choice, ...]:
        return () if self.perturbed is None else self.perturbed.choices

    @property
    def no_inverse(self) -> str:
        """Why there is nothing to invert."""
        if self.perturbed is None or not self.perturbed.choices:
            return not_measured(f"{self.title} names no layers that it perturbs, so there is nothing to invert")
        return not_measured(f"the perturbation {self.perturbed.how!r} has no public inverse")


def flipped(params: Params, choices: Sequence[Choice], inverse: Inverse) -> Params:
    """The params with these tensors turned back.

    One that cannot be turned (no such kernel) changes its sign.
    """
    for choice in choices:
        try:
            params = inverse(params, choice)
        except UnfedError:
            params = negate(params, [choice])
    return params


def flip(scene: Scene, params: Params, knowledge: Knowledge) -> dict[str, Any]:
    """The numbers of the model after the public inverse, or why there is none.

        θ_u  ─►  perturb⁻¹(θ_u)      negate ↔ negate,  flip ↔ flip,  rotate-90 ↔ rotate-270,  rotate-180 ↔ rotate-180
                                     orthogonal, noise: the same draw, made again from the request's seed

    What was drawn at random and thrown away, as Sealed does, or keeps nothing (zero, a fresh layer), has no inverse. A
    draw that follows from the run's seed and the request's name was not thrown away: both can be guessed.
    """
    if knowledge.inverse is None:
        return {"layers": [], "reason": knowledge.no_inverse}
    back = flipped(params, knowledge.choices, knowledge.inverse)
    return {"layers": [choice.name for choice in knowledge.choices], **scene.numbers(back)}


# --- lift: raise the head's bias of a forgotten class as far as the other classes allow -------------------------------


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

        b_c ← b_c + δ_c,   δ_c the largest lift at which the other classes lose at most L points, L = 1 and 5
        back(L) = share of D_u's rows of class c that are read as c under δ_c, over all forgotten classes

    A row (x, y) of another class that was right is lost when δ_c > z_y − z_c, and a row of class c is back when
    δ_c > max_{j≠c} z_j − z_c. Of n rows k = ⌊L·n / 100⌋ may be lost, so δ_c is the (k+1)-th smallest margin z_y − z_c
    of those that were right. The rows are test rows, or retained ones where there is no test data. Each class is lifted
    by itself. `read` gives other logits of a view than the model's own.

    A method that keeps the old head hides a class behind one number.
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
