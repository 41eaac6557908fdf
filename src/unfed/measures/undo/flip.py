"""flip: what has a public inverse is inverted; no data, no training, no old model.

    θ_u  ─►  perturb⁻¹(θ_u)          negate ↔ negate,  flip ↔ flip,  rotate-90 ↔ rotate-270,  rotate-180 ↔ rotate-180
                                     orthogonal, noise: the same draw, made again from the request's seed

Forget, MIA and backdoor of the result say whether the leaver is back. What was drawn at random and thrown away, as
Sealed does, or keeps nothing (zero, a fresh layer), has no inverse to apply. A draw that follows from the run's seed
and the request's name was not thrown away: these can be guessed, and an export names the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unfed.errors import UnfedError
from unfed.measures.undo.scene import Scene
from unfed.model.layers import Choice
from unfed.model.params import Params
from unfed.model.perturb import PERTURBATIONS, Perturbed, denoised, negate, unmixed
from unfed.values import not_measured

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
"""What takes a draw back for whoever can make it again."""


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
    """The numbers of the model after the public inverse, or why there is none."""
    if knowledge.inverse is None:
        return {"layers": [], "reason": knowledge.no_inverse}
    back = flipped(params, knowledge.choices, knowledge.inverse)
    return {"layers": [choice.name for choice in knowledge.choices], **scene.numbers(back)}
