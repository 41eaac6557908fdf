"""The part `undo` of `ablations.py`: what comes back of each choice of first layers, beside Retrain and θ*.

flip         the public inverse, where there is one                            no data, no training
realign      layers turned back or drawn anew and fitted on retained rows      the worst usable result of a grid
resurface    further passes over retained data alone                           the rise of Forget and backdoor
relearn      forgotten rows mixed in at a low rate                             the area under Forget
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from ablation_bench import Bench, kept
from unfed.measures.undo.flip import Knowledge, flip
from unfed.measures.undo.refits import Grid, realign, relearn, resurface
from unfed.measures.undo.scene import Budget
from unfed.measures.undo.scene import Scene as Undoing
from unfed.model.layers import Choice, choose
from unfed.model.params import Params
from unfed.model.perturb import Perturbed
from unfed.runs.probe import scene_of
from unfed.values import is_measured

Cell = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
GRID = Grid(rows=(450,), budget=Budget(stops=(100,)), singles=3, restarts=1)
MORE = replace(GRID, rows=(1000,))
"""Where there are 36,000 rows to take them from."""
PASSES = 5


class Undo:
    """A bench whose models are tried to be undone, all by the same grid."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    @cached_property
    def scene(self) -> Undoing:
        return scene_of(self.bench.scene.world, [self.bench.request])

    def numbers(self, params: Params, choices: tuple[Choice, ...], how: str) -> dict[str, Any]:
        """What comes back of a model that was made by this perturbation."""
        knowledge = Knowledge(how, Perturbed(how, choices) if choices else None)
        lr = self.bench.scene.config.training.lr
        fitted = realign(self.scene, params, knowledge, GRID if self.bench.setting.small else MORE)
        found: dict[str, Any] = {"realign": {name: fitted[name] for name in ("usable", "tried", "forget", "backdoor")}}
        for name in ("forget", "backdoor"):
            found["realign"][f"{name}_at"] = _where(fitted.get(f"{name}_at"))
        turned = flip(self.scene, params, knowledge)
        if "forget" in turned:
            found["flip"] = kept({n: float(v) for n, v in turned.items() if n != "layers" and is_measured(v)})
        if self.bench.setting.small:  # passes over all of CIFAR-10 take longer than everything else together
            again = resurface(self.scene, params, lr, rounds=PASSES)
            found["resurface"] = {name: again[name] for name in ("forget_rise", "backdoor_rise")}
            was = self.scene.forgotten(self.bench.scene.trained)
            found["relearn"] = relearn(self.scene, params, was, lr / 10, counts=(0, 10, 50), rounds=PASSES)["area"]
        return found

    def cell(self, choices: tuple[Choice, ...], how: str) -> dict[str, Any]:
        params, cell = self.bench.recovered(choices, how)
        return cell | {"undo": self.numbers(params, choices, how)}

    def bare(self, params: Params) -> dict[str, Any]:
        """The same attacks on a model that nothing was done to: what they find in anybody's."""
        module = self.bench.scene.world.template.module
        found = self.numbers(params, choose(module, ("first",)), "negate")
        return {"gap": 0.0, "back": None, "numbers": kept(self.bench.scene.numbers(params)), "undo": found}


def undo(bench: Bench, hows: tuple[str, ...]) -> Iterator[Cell]:
    """Retrain and θ* first, then the first layer and all hidden ones under each perturbation."""
    own = Undo(bench)
    module = bench.scene.world.template.module
    yield {"layer": "-", "how": "retrain"}, lambda: own.bare(bench.scene.retrained)
    yield {"layer": "-", "how": "before"}, lambda: own.bare(bench.scene.trained)
    yield {"layer": "-", "how": "none"}, lambda: own.cell((), "none")
    for label in ("first", "hidden"):
        chosen = choose(module, (label,))
        for how in hows:
            if fits(bench, chosen, how):
                yield {"layer": label, "how": how}, lambda c=chosen, h=how: own.cell(c, h)  # type: ignore[misc]


def fits(bench: Bench, choices: tuple[Choice, ...], how: str) -> bool:
    """Whether a perturbation can be applied: kernels are turned only where all are larger than one pixel."""
    like = bench.scene.world.template.like
    shapes = [like[choice.name].shape for choice in choices]
    return not how.startswith(("flip", "rotate")) or all(len(s) == 4 and s[-1] > 1 for s in shapes)


def _where(found: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if found is None else {name: found[name] for name in ("start", "layers", "n", "steps", "rate", "test")}
