"""All of undoing, for one unlearned model beside Retrain and θ*.

    {"unlearned", "retrain", "before"}  ×  {flip, lift, realign, resurface, relearn, triggers, inside, path, difference}

Each model meets the same attacks with the same knowledge, rows, grid and budget. A model that is not there has, in the
place of every number, the reason why.

The turning back comes first, for all models; each piece after it is kept as soon as it is there, so that hours of a
large model are not lost to an interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from unfed.measures.undo.flip import Knowledge, flip, lift
from unfed.measures.undo.refits import Grid, attack_of, realign, relearn, resurface, triggers
from unfed.measures.undo.scene import Scene
from unfed.measures.undo.traces import difference, inside, path
from unfed.model.params import Params
from unfed.model.perturb import perturb
from unfed.values import not_measured

NOT_TRIED = not_measured("not tried yet, `unfed probe` does it")
UNTRIED = {"reason": NOT_TRIED}
MEASUREMENTS = ("flip", "lift", "realign", "resurface", "relearn", "triggers", "inside", "path", "difference")


Found = dict[str, dict[str, Any]]
"""By whose model it is, then by measurement."""


@dataclass(frozen=True)
class Effort:
    """How hard is tried; the same for every model of a comparison."""

    lr: float = 0.01
    """The rate of the training, for `resurface` and `triggers`."""
    relearn_lr: float = 0.001
    """A low one, for `relearn`."""
    rounds: int = 5
    batch: int = 64
    grid: Grid = field(default_factory=Grid)


@dataclass(frozen=True, eq=False)
class ProbedModels:
    """The model a method left, the one it began at (θ*), and Retrain's.

    In the place of one that is missing stands the reason.
    """

    unlearned: Params
    before: Params | str
    retrain: Params | str

    def items(self) -> Mapping[str, Params | str]:
        return {"unlearned": self.unlearned, "retrain": self.retrain, "before": self.before}


class Shared:
    """What was measured already: the same attack on the same model (the same object) is not made twice."""

    def __init__(self) -> None:
        self._found: list[tuple[Params, object, dict[str, Any]]] = []

    def __call__(self, params: Params, what: object, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        for model, attack, result in self._found:
            if model is params and attack == what:
                return result
        self._found.append((params, what, make()))
        return self._found[-1][2]


def perturbed_before(before: Params | str, knowledge: Knowledge) -> Params | str:
    """perturb(θ*) where the perturbation is public; a draw that was thrown away cannot be repeated."""
    if knowledge.perturbed is None or knowledge.inverse is None:
        return knowledge.no_inverse
    if isinstance(before, str):
        return before
    did = knowledge.perturbed
    numbers = {"scale": did.scale} if did.how == "noise" else {}
    return perturb(before, did.choices, did.how, seed=knowledge.seed or 0, fresh=None, **numbers)


@dataclass(frozen=True)
class Going:
    """How a long measuring is followed, kept after every piece, and gone on with where it was stopped."""

    said: Callable[[str, str, int, int], None] = lambda who, name, number, of: None
    """What comes next: of whose model, which measurement, the how manieth of how many."""
    kept: Callable[[Found], None] = lambda found: None
    """All that is known so far; what was not tried yet says so."""
    known: Found | None = None
    """What an earlier measuring of the same models, with the same effort, left."""


def undo(
    scene: Scene,
    models: ProbedModels,
    knowledge: Knowledge,
    effort: Effort = Effort(),  # noqa: B008  (frozen)
    shared: Shared | None = None,
    going: Going = Going(),  # noqa: B008  (frozen)
) -> Found:
    """Every measurement of every model; what several methods of a request have in common is `shared`."""
    once = shared or Shared()
    if going.known is None:
        found = turned_back(scene, models, knowledge)
        going.kept(found)
    else:
        found = {who: dict(measured) for who, measured in going.known.items()}
    pieces = list(_pieces(scene, models, knowledge, effort))
    for number, (who, name, what, make) in enumerate(pieces, 1):
        params = models.items()[who]
        assert not isinstance(params, str)
        if found[who].get(name, UNTRIED) != UNTRIED:
            once(params, what, partial(dict, found[who][name]))
            continue
        going.said(who, name, number, len(pieces))
        found[who][name] = once(params, what, make)
        going.kept(found)
    return found


def _pieces(
    scene: Scene, models: ProbedModels, knowledge: Knowledge, effort: Effort
) -> Iterator[tuple[str, str, object, Callable[[], dict[str, Any]]]]:
    """All that is fitted or measured after the turning back.

    Each is (whose model, which measurement, what it depends on beside the model, how it is made).
    """
    was = not_measured(models.before) if isinstance(models.before, str) else scene.forgotten(models.before)
    attack = attack_of(scene, knowledge, effort.grid)
    passes: dict[str, Any] = {"rounds": effort.rounds, "batch": effort.batch}
    for who, params in models.items().items():
        if isinstance(params, str):
            continue
        yield who, "lift", "lift", partial(lift, scene, params)
        yield who, "realign", attack, partial(realign, scene, params, knowledge, effort.grid)
        yield who, "resurface", "resurface", partial(resurface, scene, params, effort.lr, **passes)
        yield who, "relearn", ("relearn", was), partial(relearn, scene, params, was, effort.relearn_lr, **passes)
        yield who, "triggers", "triggers", partial(triggers, scene, params, effort.lr)
        looked = ("inside", id(models.before))
        yield who, "inside", looked, partial(inside, scene, params, models.before)
        yield who, "path", object(), partial(_paths, scene, who, models, knowledge)
        yield who, "difference", object(), partial(_difference, scene, who, models, knowledge)


def turned_back(scene: Scene, models: ProbedModels, knowledge: Knowledge) -> Found:
    """`flip` alone, in the shape of the whole: the other measurements say that they were not tried."""
    found: Found = {}
    for who, params in models.items().items():
        if isinstance(params, str):
            found[who] = {name: {"reason": not_measured(params)} for name in ("published", *MEASUREMENTS)}
            continue
        rest = {name: dict(UNTRIED) for name in MEASUREMENTS if name != "flip"}
        found[who] = {"published": scene.numbers(params), "flip": flip(scene, params, knowledge), **rest}
    return found


def _paths(scene: Scene, who: str, models: ProbedModels, knowledge: Knowledge) -> dict[str, Any]:
    """From one of the models to θ*, to perturb(θ*), to Retrain; a model has no way to itself."""
    params = models.items()[who]
    turned = perturbed_before(models.before, knowledge)
    goals = {"before": models.before, "perturbed": turned, "retrain": models.retrain}
    assert not isinstance(params, str)
    found: dict[str, Any] = {}
    for goal, other in goals.items():
        if goal == who:
            found[goal] = {"reason": not_measured("it is the model itself")}
        else:
            found[goal] = {"reason": not_measured(other)} if isinstance(other, str) else path(scene, params, other)
    return found


def _difference(scene: Scene, who: str, models: ProbedModels, knowledge: Knowledge) -> dict[str, Any]:
    params = models.items()[who]
    assert not isinstance(params, str)
    if who == "before":
        return {"reason": not_measured("it is the model itself")}
    if isinstance(models.before, str):
        return {"reason": not_measured(models.before)}
    return difference(scene, params, models.before, perturbed_before(models.before, knowledge))
