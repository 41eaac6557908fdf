"""What a client is asked: a small frozen value that travels as JSON.

    Plan  = seed, round, phases…      one visit: the phases run one after another on the client's own data
    Phase = objective, view, epochs or steps, optimiser, penalties, after-step maps, stop
    Measure = what, view              no training: counts, losses or gradients, summed, in eval mode

Numbers only. The server decides every schedule and writes the round's own number into the round's plan; the one
exception is the plateau rule of FCU, which lives inside a visit. Nothing here computes: `step.py` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from unfed.data.scope import VIEWS, View
from unfed.errors import UnfedError, listed, nearest

VIEW_NUMBERS = {"retain": 0, "forget": 1, "all": 2, "val": 3}
"""What stands for a view in the address of a draw. A number that changed would change every run that is resumed."""
Number = float | int | str | bool
Rule = Literal["sgd", "adam", "adamw"]
RULES: tuple[str, ...] = get_args(Rule)


@dataclass(frozen=True)
class Term:
    """A named rule with its numbers: an objective, a penalty, an after-step map or a stop."""

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
    thinned: Term | None = None
    """Of the view's retained rows a share alone, drawn once for all rounds: its `share`, and the `seed` of the draw."""

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise UnfedError(f"The view {self.view!r} is not known; use {listed(VIEWS)}.{nearest(self.view, VIEWS)}")
        if self.batch < 1 or self.epochs < 0 or (self.steps is not None and self.steps < 0):
            raise UnfedError("A phase needs a batch size of at least 1, and epochs and steps that are not negative.")
        if self.thinned is not None:
            share, seed = self.thinned.get("share", 0), self.thinned.get("seed", "")
            if not (isinstance(share, int | float) and 0 < share <= 1 and isinstance(seed, int)):
                raise UnfedError(
                    f"A phase that is thinned takes a share above 0 and at most 1, and a seed, not {share!r}."
                )

    def with_optimiser(self, **changes: Any) -> Phase:
        """The same phase with other optimiser numbers."""
        return replace(self, optimiser=replace(self.optimiser, **changes))


@dataclass(frozen=True)
class Plan:
    """A training visit. `seed`, `round` and the client's name address every draw in it."""

    seed: int
    round: int
    phases: tuple[Phase, ...]
    keep: bool = False
    """Hand the optimiser's state back, so that the next visit goes on with it (a centralised model does)."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Plan:
        try:
            raw = json.loads(text)
            phases = tuple(_phase(p) for p in raw.pop("phases"))
            return Plan(phases=phases, **raw)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise UnfedError(f"This is not a plan that this version understands: {error}.") from error


@dataclass(frozen=True)
class Measure:
    """A measuring visit in eval mode; the reply is sums over the view's rows.

    what = "correct": correct, loss, count · "gradient": Σ over batches of the batch-mean gradient ·
    "squared_gradient": the same, squared per batch.
    """

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
        try:
            return Measure(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise UnfedError(f"This is not a measure that this version understands: {error}.") from error


def _term(raw: Mapping[str, Any]) -> Term:
    return Term(raw["name"], tuple((str(k), v) for k, v in raw["numbers"]))


def _phase(raw: Mapping[str, Any]) -> Phase:
    values = dict(raw)
    optimiser = dict(values.pop("optimiser"))
    plateau = optimiser.pop("plateau")
    return Phase(
        objective=_term(values.pop("objective")),
        penalties=tuple(_term(t) for t in values.pop("penalties")),
        after=tuple(_term(t) for t in values.pop("after")),
        stop=None if values["stop"] is None else _term(values["stop"]),
        thinned=None if values["thinned"] is None else _term(values["thinned"]),
        optimiser=Optimiser(plateau=None if plateau is None else _term(plateau), **optimiser),
        **{k: v for k, v in values.items() if k not in ("stop", "thinned")},
    )
