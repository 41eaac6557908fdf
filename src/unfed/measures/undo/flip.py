"""flip: what has a public inverse is inverted; no data, no training, no old model.

    θ_u  ─►  perturb⁻¹(θ_u)          negate ↔ negate,  flip ↔ flip,  rotate-90 ↔ rotate-270,  rotate-180 ↔ rotate-180

Forget, MIA and backdoor of the result say whether the leaver is back. A perturbation that was drawn at random and
thrown away (an orthogonal mixing, a fresh layer, noise), or that keeps nothing (zero), has no inverse to apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unfed.errors import UnfedError
from unfed.measures.undo.scene import Scene
from unfed.model.layers import Choice
from unfed.model.params import Params
from unfed.model.perturb import PERTURBATIONS, Perturbed, negate
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


@dataclass(frozen=True)
class Knowledge:
    """What an attacker knows about how a model was made.

    That is the title of the method, and what it did to which tensors.
    """

    title: str
    perturbed: Perturbed | None = None

    @property
    def inverse(self) -> str | None:
        """The perturbation that takes this one back, if the world knows one."""
        return None if self.perturbed is None else INVERSES.get(self.perturbed.how)

    @property
    def choices(self) -> tuple[Choice, ...]:
        return () if self.perturbed is None else self.perturbed.choices

    @property
    def no_inverse(self) -> str:
        """Why there is nothing to invert."""
        if self.perturbed is None or not self.perturbed.choices:
            return not_measured(f"{self.title} names no layers that it perturbs, so there is nothing to invert")
        return not_measured(f"the perturbation {self.perturbed.how!r} has no public inverse")


def flipped(params: Params, choices: Sequence[Choice], inverse: str) -> Params:
    """The params with these tensors turned back.

    One that cannot be turned (no such kernel) changes its sign.
    """
    for choice in choices:
        try:
            params = PERTURBATIONS[inverse](params, [choice])
        except UnfedError:
            params = negate(params, [choice])
    return params


def flip(scene: Scene, params: Params, knowledge: Knowledge) -> dict[str, Any]:
    """The numbers of the model after the public inverse, or why there is none."""
    if knowledge.inverse is None:
        return {"layers": [], "reason": knowledge.no_inverse}
    back = flipped(params, knowledge.choices, knowledge.inverse)
    return {"layers": [choice.name for choice in knowledge.choices], **scene.numbers(back)}
