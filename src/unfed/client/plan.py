"""What a client is asked: a small frozen value that travels as JSON.

    Plan  = seed, round, phases…      one visit: the phases run one after another on the client's own data
    Phase = objective, view, epochs or steps, optimiser, penalties, after-step maps, stop
    Measure = what, view              no training: counts, losses or gradients, summed, in eval mode

Numbers only. The server decides every schedule and writes the round's own number into the round's plan; the one
exception is the plateau rule of FCU, which lives inside a visit. Nothing here computes: `step.py` does.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from pydantic import ConfigDict

from unfed import records
from unfed.data.scope import VIEWS, View
from unfed.errors import UnfedError, listed, nearest

VIEW_NUMBERS = {"retain": 0, "forget": 1, "all": 2, "val": 3}
"""What stands for a view in the address of a draw. A number that changed would change every run that is resumed."""
Number = float | int | str | bool
Rule = Literal["sgd", "adam", "adamw"]
RULES: tuple[str, ...] = get_args(Rule)
_STRICT = ConfigDict(extra="forbid")
_REMEDY = "use the same version of unfed on both sides"


@dataclass(frozen=True)
class Term:
    """A named rule with its numbers: an objective, a penalty, an after-step map or a stop."""

    __pydantic_config__ = _STRICT

    name: str
    numbers: tuple[tuple[str, Number], ...] = ()

    def __getitem__(self, key: str) -> Number:
        return dict(self.numbers)[key]

    def get(self, key: str, default: Number) -> Number:
        return dict(self.numbers).get(key, default)


def term(name: str, **numbers: Number) -> Term:
    """A `Term` with keyword numbers, in a canonical order so that equal rules compare equal."""
    return Term(name, tuple(sorted(numbers.items())))


@dataclass(frozen=True)
class Optimiser:
    """SGD, Adam or AdamW, with the numbers of this round."""

    __pydantic_config__ = _STRICT

    rule: Rule = "sgd"
    lr: float = 1e-3
    momentum: float = 0.9
    decay: float = 5e-4
    clip: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    plateau: Term | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UnfedError(f"The optimiser {self.rule!r} is not known; use {listed(RULES)}.")
        if self.lr < 0:
            raise UnfedError(f"The learning rate must not be negative, but it is {self.lr}.")
        if self.clip is not None and self.clip <= 0:
            raise UnfedError(f"The gradient clip must be positive, but it is {self.clip}; leave it out for no clip.")


@dataclass(frozen=True)
class Phase:
    """One stretch of local training on one view of the client's data."""

    __pydantic_config__ = _STRICT

    objective: Term = field(default_factory=lambda: term("ce"))
    view: View = "retain"
    epochs: int = 1
    steps: int | None = None
    cap: int | None = None
    batch: int = 64
    optimiser: Optimiser = field(default_factory=Optimiser)
    penalties: tuple[Term, ...] = ()
    after: tuple[Term, ...] = ()
    stop: Term | None = None
    thinned: None = None
    """Always null: recorded histories hold plans with it, and count their bytes."""

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise UnfedError(f"The view {self.view!r} is not known; use {listed(VIEWS)}.{nearest(self.view, VIEWS)}")
        if self.batch < 1 or self.epochs < 0 or (self.steps is not None and self.steps < 0):
            raise UnfedError("A phase needs a batch size of at least 1, and epochs and steps that are not negative.")

    def with_optimiser(self, **changes: Any) -> Phase:
        """The same phase with other optimiser numbers."""
        return replace(self, optimiser=replace(self.optimiser, **changes))


@dataclass(frozen=True)
class Plan:
    """A training visit. `seed`, `round` and the client's name address every draw in it."""

    __pydantic_config__ = _STRICT

    seed: int
    round: int
    phases: tuple[Phase, ...]
    keep: bool = False
    """Hand the optimiser's state back, so that the next visit goes on with it (a centralised model does)."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Plan:
        return records.read_text(Plan, text, "The plan", _REMEDY)


@dataclass(frozen=True)
class Measure:
    """A measuring visit in eval mode; the reply is sums over the view's rows.

    what = "correct": correct, loss, count · "gradient": Σ over batches of the batch-mean gradient ·
    "squared_gradient": the same, squared per batch.
    """

    __pydantic_config__ = _STRICT

    what: Literal["correct", "gradient", "squared_gradient"] = "correct"
    view: View = "val"
    batch: int = 256

    def __post_init__(self) -> None:
        if self.what not in ("correct", "gradient", "squared_gradient"):
            raise UnfedError(f"The measure {self.what!r} is not known; use correct, gradient or squared_gradient.")
        if self.view not in VIEWS:
            raise UnfedError(f"The view {self.view!r} is not known; use {listed(VIEWS)}.{nearest(self.view, VIEWS)}")

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Measure:
        return records.read_text(Measure, text, "The measuring plan", _REMEDY)
