"""Sealed: perturb hidden layers by a draw that is not kept, then let the remaining clients fine-tune.

    begin: θ' = perturb(θ*, layers, draw)          draw: 32 bytes of the operating system, used once and forgotten
    round: FedAvg over D_r
    layers: every hidden weight; once a class has left, the head's weight and bias too

The head is where a class is one number: with θ*'s head, raising the bias of the forgotten class brought most of the
class back (measures/undo/flip.py).

NoT's negation has a public inverse, a minus sign: anyone who has the published model can turn it back, and a second
request does. Here there is none to apply. The perturbation is a pure function of (params, layers, draw); the draw
itself is kept nowhere: no config key, flag or file sets or holds it. A run resumes from the perturbed params, which are
saved after `begin` and overwritten by the first round; killed before that, it draws again. Beside θ* they would give
the draw away. Nor is anything recorded of its rounds (its lineage ends): a sum of updates leads from the published
model back to the perturbed one. Running statistics begin afresh. The adversary meant has only the published model.
Anyone who took part has θ* already.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import nn

from unfed.data import Request
from unfed.errors import UnfedError, UnfedWarning, listed
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import Lineage, Method, Recipe, option, register
from unfed.model.layers import Choice, choose, frozen, head_tensors
from unfed.model.params import params_of
from unfed.model.perturb import Perturbed
from unfed.model.sealing import DRAW_BYTES, seal, statistics_afresh

Source = Callable[[int], bytes]
"""From a job's seed to the draw; the operating system does not look at the seed."""


def from_the_system(seed: int) -> bytes:
    """Bytes that nothing keeps and nothing can draw again."""
    return secrets.token_bytes(DRAW_BYTES)


HELD = 0.3
"""The largest λ that fitting layers on retained rows did not undo (clients, digits, three networks); 0.5 was undone."""


def leaves_much(perturbation: str, keep: float) -> bool:
    """Whether so much of the old weights stays that a layer does not count as drawn afresh."""
    return perturbation == "signs" or (perturbation == "fade" and keep > HELD)


UNPROVEN = {
    "orthogonal": "was undone on a dense network",
    "permute": "was undone on a dense network",
    "signs": "leaves about half of every layer as it was, and was not measured",
}
"""The perturbations that were undone, or never attacked, and why."""

_source: Source = from_the_system


@contextmanager
def drawn_from(source: Source) -> Iterator[None]:
    """Inside it draws come from elsewhere: for tests, and for studies that must be repeatable.

    Only Python can ask for it.
    """
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


@register
@dataclass(frozen=True)
class Sealed(Method):
    """A perturbation of hidden layers whose draw is kept nowhere, then fine-tuning on the retained data."""

    name: ClassVar[str] = "sealed"
    title: ClassVar[str] = "Sealed"
    cite: ClassVar[str] = "ours; after Khalil et al., NoT: Federated Unlearning via Weight Negation, CVPR 2025"
    lineage: ClassVar[Lineage] = "ends"
    seals: ClassVar[bool] = True
    lasts: ClassVar[bool] = True
    # As NoT: large steps first, because the model was moved far away.
    recipe: ClassVar[Recipe] = Recipe(lr=0.1, minimum=1e-5, over=10)

    layers: tuple[str | int, ...] = option(("hidden",), "which tensors are perturbed", "ours")
    perturbation: str = option("fade", "fade, orthogonal, permute, signs or reinit", "ours")
    keep: float = option(HELD, "λ, with 'fade': the part of the old weights that stays", "ours")
    head: bool = option(False, "perturb the head too; always so once a class has left", "ours")

    def for_requests(self, requests: Sequence[Request]) -> Self:
        return replace(self, head=self.head or any(request.classes for request in requests))

    def choices(self, module: nn.Module) -> tuple[Choice, ...]:
        """What is perturbed."""
        return choose(module, (*self.layers, *(head_tensors(module) if self.head else ())))

    def begin(self, server: Server) -> State:
        module, draw = server.template.module, _source(server.seed)
        perturbed = seal(server.params, self.choices(module), self.perturbation, draw, server.fresh, self.keep)
        return State(statistics_afresh(module, perturbed))

    def perturbed(self, module: nn.Module) -> Perturbed | None:
        return Perturbed(self.perturbation, self.choices(module))

    def drawn(self, module: nn.Module) -> frozenset[str]:
        little = leaves_much(self.perturbation, self.keep)
        return frozenset() if little else frozenset(choice.name for choice in self.choices(module))

    def short_of(self, module: nn.Module) -> str:
        if self.perturbation == "fade" and self.keep > HELD:
            return (
                f"Sealed with keep = {self.keep:g} leaves more of the old weights than any that was attacked without"
                f" success; keep at most {HELD:g}."
            )
        if self.perturbation in UNPROVEN:
            why = UNPROVEN[self.perturbation]
            return f"Sealed by {self.perturbation!r} {why}; use 'fade', its default."
        try:
            hidden = {choice.name for choice in choose(module, ("hidden",))}
        except UnfedError:  # which layer is the head is not known, so neither is which are hidden
            return ""
        if left := sorted(hidden - self.drawn(module)):
            return (
                f"Sealed leaves {listed(left).replace(' or ', ' and ')} as it is, and what that holds of the leaver"
                " can be found again; without --layers every hidden layer is drawn."
            )
        return ""

    def check(self, module: nn.Module) -> None:
        params, chosen = params_of(module), self.choices(module)
        # One entry of each tensor is refused as the whole would be, and a whole ViT is seconds of drawing.
        entries = {choice.name: params[choice.name][(slice(1),) * params[choice.name].ndim] for choice in chosen}
        whole = [replace(choice, rows=None) for choice in chosen]
        seal(entries, whole, self.perturbation, bytes(DRAW_BYTES), lambda seed: entries, self.keep)
        for sentence in frozen(module, chosen):
            warnings.warn(sentence, UnfedWarning, stacklevel=2)
