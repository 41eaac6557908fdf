"""Led: start over, led by the features of a frozen teacher.

    begin:  θ ← a fresh initialisation
    teacher T:  "not": NoT's model after C rounds of its own    "model": θ*    or a file
    round r ≤ H:  FedAvg over D_r of    ce(θ; x, y) + w · (1 − cos(f_θ(x), f_T(x)))       f: what enters the head
    then:   FedAvg over D_r

    when classes leave:   f_T ← f_T − V Vᵀ f_T,    V: an orthonormal basis of T's head rows of these classes

Every weight is new, so there is nothing to turn back. What the teacher knows reaches the new model only through its
features on retained rows. Led by θ* the outputs forget and the features do not, so the default is two steps: NoT cleans
the teacher, then a fresh model is led by it. Both steps' rounds count, and a schedule begins again with the second.
The teacher's head stays at the server. The loss is `client/objectives.py:led`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import nn

from unfed import storage
from unfed.client.plan import term
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.federation.protocol import Server
from unfed.federation.state import OPTIMISER, STAGE, State, Transfer
from unfed.methods.base import Method, option, register
from unfed.methods.not_ import NoT
from unfed.model.layers import head_tensors
from unfed.model.networks import head_of
from unfed.model.params import Params, cast, check_like, params_of

TEACHER = "teacher"
"""Where a state keeps a teacher that is not θ* itself, and what plans call it."""


@register
@dataclass(frozen=True)
class Led(Method):
    """A fresh model whose features follow a teacher's for some rounds, then plain rounds."""

    name: ClassVar[str] = "led"
    title: ClassVar[str] = "Led"
    cite: ClassVar[str] = "ours; the loss is that of feature hints, Romero et al., FitNets, ICLR 2015"
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "init"})
    lasts: ClassVar[bool] = True

    teacher: str = option("not", "'not': cleaned by NoT; 'model': the old model; or a file", "ours")
    teacher_rounds: int = option(20, "C: NoT's rounds, with teacher = 'not'", "ours")
    weight: float = option(10.0, "w: how strongly features are led", "ours")
    led: int | None = option(None, "H: led rounds; default: all after the teacher's", "ours")
    away: tuple[int, ...] = option(
        (), "classes taken out of the teacher's features; those that leave always are", "ours"
    )

    def __post_init__(self) -> None:
        for name, least in (("teacher_rounds", 1), ("weight", 0), ("led", 0)):
            if (value := getattr(self, name)) is not None and not value >= least:
                raise UnfedError(f"Led's {name} must be at least {least}, but it is {value}.")

    @property
    def cleaning(self) -> int:
        """The rounds before a fresh model is led."""
        return self.teacher_rounds if self.teacher == "not" else 0

    def for_requests(self, requests: Sequence[Request]) -> Self:
        leaving = (c for request in requests for c in request.classes)
        return replace(self, away=tuple(dict.fromkeys((*self.away, *leaving))))

    def begin(self, server: Server) -> State:
        server.template.check_head()
        state = State(server.init())
        if self.teacher == "model":
            return state
        if self.teacher == "not":
            negated = NoT().begin(server).params
            return replace(state, tensors={TEACHER: negated}, numbers={STAGE: [0, self.cleaning]}, model=False)
        tensors, _ = storage.load(Path(self.teacher), "the teacher's file")
        check_like(tensors, server.params, f"The teacher {self.teacher}")
        some = next(t for t in server.params.values() if t.is_floating_point())
        return replace(state, tensors={TEACHER: cast({n: tensors[n] for n in server.params}, some.dtype, some.device)})

    def round(self, server: Server, state: State) -> State:
        r, own = state.round + 1, {n: t for n, t in state.tensors.items() if n == OPTIMISER}
        if r <= self.cleaning:
            taught = server.recover(replace(state, params=state.tensors[TEACHER], tensors=own))
            return replace(taught, params=state.params, tensors={**taught.tensors, TEACHER: taught.params})
        if r == self.cleaning + 1 and self.cleaning:  # the fresh model has its own schedule and optimiser
            own, kept = {}, {TEACHER: state.tensors[TEACHER]}
            state = replace(state, tensors=kept, numbers={STAGE: [self.cleaning, None]})
        state = replace(state, model=True)
        if self.led is not None and r > self.cleaning + self.led:
            return server.recover(replace(state, tensors=own))
        module, teacher = server.template.module, state.tensors.get(TEACHER, server.params)
        away = head_weight(module) if self.away else ""
        phase = replace(server.base, objective=term("led", weight=float(self.weight), away=away))
        asked, context = server.participants(r, server.retained), {TEACHER: headless(module, teacher, self.away)}
        return server.advance(state, asked, phase, context=context, transfer=Transfer(down=2))

    def rounds(self, unlearning: int, training: int) -> int:
        return unlearning + self.cleaning

    def trial(self, rounds: int) -> Self:
        return replace(self, teacher_rounds=min(rounds, self.teacher_rounds))

    def drawn(self, module: nn.Module) -> frozenset[str]:
        return frozenset(params_of(module))

    def short_of(self, module: nn.Module) -> str:
        if self.teacher != "model":
            return ""
        return (
            "Led by the old model forgets in its outputs, not in its features: the old head still reads them;"
            " use teacher = 'not'."
        )

    def check(self, module: nn.Module) -> None:
        if self.teacher == "not":
            NoT().check(module)
        elif self.teacher != "model" and not Path(self.teacher).is_file():
            raise UnfedError(f"Led's teacher {self.teacher!r} is no file; use 'not', 'model', or a safetensors file.")
        if self.away:
            head_weight(module)


def head_weight(module: nn.Module) -> str:
    """The name of the head's one matrix, whose rows are the classes."""
    found = [n for n in head_tensors(module) if params_of(module)[n].ndim == 2]
    if len(found) != 1:
        raise UnfedError(
            f"Led takes classes out by their rows of the head, and {head_of(module)!r} is not one linear map; use"
            " retrain."
        )
    return found[0]


def headless(module: nn.Module, teacher: Params, away: Sequence[int]) -> Params:
    """The teacher with zeros for a head, but for V in the first rows of its matrix."""
    head = head_of(module) + "."
    bare = {n: torch.zeros_like(t) if n.startswith(head) else t for n, t in teacher.items()}
    if away:
        weight = head_weight(module)
        rows = teacher[weight][list(away)].double()
        _, sizes, basis = torch.linalg.svd(rows, full_matrices=False)
        basis = basis[sizes > 1e-9 * max(float(sizes.max()), 1e-30)]
        bare[weight][: len(basis)] = basis.to(bare[weight])
    return bare
