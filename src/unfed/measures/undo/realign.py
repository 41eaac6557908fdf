"""Realign: turn layers back or draw them anew, and fit them on a few retained rows.

Does the leaver return?

    for S in single layers, all perturbed layers, all hidden layers:
        θ_S ← perturb⁻¹(θ_S)  or  a fresh draw;     fit θ_S on n retained rows at rate η, the rest frozen;     look
    and the mixing matrices of `mixing.py`, from one start or several

    result = the largest Forget and backdoor among what is usable: Test ≥ the published model's − 5 points

Where no fitted model is usable, the fits were too short, too fast or on too few rows, and say nothing of a longer one.

The attacker has the published model and n retained rows; the judge has the test set. Every model of a comparison meets
the same grid under the same budget, Retrain too: what Retrain's layers give away is what anybody's would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from unfed import rng
from unfed.measures.undo import mixing
from unfed.measures.undo.fitting import Budget, FitTask, Pool, Problem, fit
from unfed.measures.undo.flip import SIGN, Knowledge, flipped
from unfed.measures.undo.scene import Scene
from unfed.model.layers import Choice
from unfed.model.params import Params
from unfed.model.perturb import graft
from unfed.values import Value, is_measured, not_measured

USABLE_WITHIN = 5.0


@dataclass(frozen=True)
class Grid:
    """What is tried."""

    rows: tuple[int, ...] = (100, 1000)
    """How many retained rows the attacker has; never more than half of them. 0 (no fit) is always tried."""
    budget: Budget = field(default_factory=Budget)
    rates: tuple[float, ...] = (0.02, 0.002)
    """Of every fit, in place of the budget's own: one network is fitted by a rate that tears the next one apart."""
    singles: int = 8
    """Of a deep network so many single layers, evenly spread."""
    restarts: int = 1
    """Of the mixing attack, on each side."""

    def counts(self, retained: int) -> tuple[int, ...]:
        """n: as asked for, or half of D_r where that is less."""
        return tuple(dict.fromkeys(min(n, max(retained // 2, 1)) for n in self.rows))


@dataclass(frozen=True)
class Try:
    """One result of the grid."""

    start: str
    layers: tuple[str, ...]
    rows: int
    steps: int
    rate: float
    numbers: dict[str, Value]

    def to_json(self) -> dict[str, Any]:
        fit = {"n": self.rows, "steps": self.steps, "rate": self.rate}
        return {"start": self.start, "layers": list(self.layers), **fit, **self.numbers}


def realign(scene: Scene, params: Params, knowledge: Knowledge, grid: Grid = Grid()) -> dict[str, Any]:  # noqa: B008
    """The worst that a grid of attacks brings back among usable models, with all that was tried."""
    published = scene.quick(params)["test"]
    tries = list(attempts(scene, params, knowledge, grid))
    return judged(tries, published) | {"tried": len(tries), "tries": [one.to_json() for one in tries]}


def judged(tries: Sequence[Try], published: Value) -> dict[str, Any]:
    """The largest Forget and the largest backdoor among the usable, and where each was found."""
    if not is_measured(published):
        return {"usable": 0, "forget": published, "backdoor": published}
    usable = [t for t in tries if is_measured(t.numbers["test"]) and t.numbers["test"] >= published - USABLE_WITHIN]
    found: dict[str, Any] = {"usable": len(usable), "bound": published - USABLE_WITHIN}
    found |= {"fits": sum(t.steps > 0 for t in tries), "usable_fits": sum(t.steps > 0 for t in usable)}
    for name in ("forget", "backdoor"):
        measured = [t for t in usable if is_measured(t.numbers[name])]
        best = max(measured, key=lambda t: float(t.numbers[name]), default=None)
        found[name] = best.numbers[name] if best else _why(tries, name)
        found[f"{name}_at"] = None if best is None else best.to_json()
    return found


def _why(tries: Sequence[Try], name: str) -> str:
    reasons = [str(t.numbers[name]) for t in tries if not is_measured(t.numbers[name])]
    return reasons[0] if reasons else not_measured(f"no result came within {USABLE_WITHIN:g} points of the published")


def layer_sets(scene: Scene, knowledge: Knowledge, singles: int) -> list[tuple[Choice, ...]]:
    """Every single hidden layer (some, of many), all perturbed tensors, all hidden layers; each set once."""
    hidden = [Choice(name, None, "hidden") for name in scene.hidden()]
    some = hidden
    if len(hidden) > singles:
        some = [hidden[round(i * (len(hidden) - 1) / max(singles - 1, 1))] for i in range(singles)]
    sets = [*((one,) for one in some), knowledge.choices, tuple(hidden)]
    unique: dict[frozenset[tuple[str, tuple[int, int] | None]], tuple[Choice, ...]] = {}
    for chosen in sets:
        if chosen:
            unique.setdefault(frozenset((c.name, c.rows) for c in chosen), chosen)
    return list(unique.values())


def attack_of(scene: Scene, knowledge: Knowledge, grid: Grid) -> object:
    """All that a grid of attacks depends on beside the model: equal values are the same attack."""
    sets = layer_sets(scene, knowledge, grid.singles)
    return knowledge.inverse or SIGN, frozenset(frozenset((c.name, c.rows) for c in one) for one in sets), grid


def attempts(scene: Scene, params: Params, knowledge: Knowledge, grid: Grid) -> Iterator[Try]:
    """Every result of the grid, in its order."""
    counts, seed = grid.counts(len(scene.retain)), rng.key(scene.seed, "undo", "realign")
    pool = scene.retain.some(max(counts), seed).tensors()
    rules = [replace(grid.budget.optimiser, lr=rate) for rate in grid.rates]
    budgets = [replace(grid.budget, seed=seed, optimiser=rule) for rule in rules]
    fresh = scene.fresh(rng.key(seed, "fresh"))
    for chosen in layer_sets(scene, knowledge, grid.singles):
        names = tuple(dict.fromkeys(choice.name for choice in chosen))
        starts = {
            "flip": flipped(params, chosen, knowledge.inverse or SIGN),
            "redraw": graft(params, chosen, donor=fresh),
        }
        yield Try("flip", names, 0, 0, 0.0, scene.quick(starts["flip"]))
        made = [(what, {n: start[n] for n in names}, start) for what, start in starts.items()]
        yield from _fitted(scene, Problem(scene.template, stack=scene.stack), made, names, counts, pool, budgets)
    hidden = scene.hidden()
    for side in mixing.SIDES if hidden else ():
        begun = mixing.beginnings(params, hidden, side, grid.restarts, seed)
        made = [(f"unmix {side} {k}", free, params) for k, free in enumerate(begun)]
        problem = mixing.unmixing(scene.template, hidden, side, scene.stack)
        yield from _fitted(scene, problem, made, hidden, counts[-1:], pool, budgets)


def _fitted(
    scene: Scene,
    problem: Problem,
    made: Sequence[tuple[str, Params, Params]],
    names: tuple[str, ...],
    counts: Sequence[int],
    pool: Pool,
    budgets: Sequence[Budget],
) -> Iterator[Try]:
    """All starts with all numbers of rows, as one stack where it helps, under each budget."""
    whole = [(n, *one) for n in counts for one in made]
    tasks = [FitTask(start, free, torch.arange(n, device=pool[0].device)) for n, _, free, start in whole]
    for budget in budgets:
        equal = replace(budget, batch=min(budget.batch, *counts))  # the batches of a stack are equally large
        for steps, models in fit(problem, tasks, pool, equal):
            for (n, what, _, _), model in zip(whole, models, strict=True):
                yield Try(what, names, n, steps, budget.optimiser.lr, scene.quick(model))
