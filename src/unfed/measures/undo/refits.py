"""Attacks that train a published model again: realign, resurface, relearn, triggers.

Each fits some of its tensors on a few rows and looks at what returns. Every model of a comparison meets the same fits,
Retrain too: what Retrain gives away as well is no memory. The equations stand at the functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from unfed import rng
from unfed.client.plan import Optimiser
from unfed.data import TensorSource
from unfed.data.source import Stamp
from unfed.measures.attacks import FAMILY
from unfed.measures.undo.flip import SIGN, Knowledge, flipped
from unfed.measures.undo.scene import NO_FORGET, NO_TEST, Budget, FitTask, Pool, Problem, Scene, View, fit
from unfed.model.functional import Template
from unfed.model.layers import Choice
from unfed.model.params import Params
from unfed.model.perturb import graft, uniform_orthogonal
from unfed.values import Value, is_measured, not_measured

# --- the attack on a sealed model itself: find the mixing again -------------------------------------------------------


STRENGTH = 1.0
SIDES = ("output", "input")


def mixed(weight: Tensor, matrix: Tensor, side: str) -> Tensor:
    """M·W over the output axis, or W·M over the input axis; kernels are carried along."""
    if side == "output":
        return (matrix @ weight.flatten(1)).reshape(weight.shape)
    turned = weight.movedim(1, 0)
    return (matrix.T @ turned.flatten(1)).reshape(turned.shape).movedim(0, 1)


def channels(weight: Tensor, side: str) -> int:
    return weight.shape[0 if side == "output" else 1]


def unmixing(template: Template, names: Sequence[str], side: str, stack: bool = False) -> Problem:
    """The attack on a sealed model: fit one matrix per layer that takes the mixing back.

        min over M_ℓ of   mean CE(θ with M_ℓ·W_ℓ in all hidden layers; n retained rows)  +  λ Σ_ℓ ‖M_ℓ M_ℓᵀ − I‖² / rows

    If W_ℓ = Q_ℓ·W*_ℓ and recovery moved little, M_ℓ = Q_ℓᵀ gives θ* back, leaver and all. Q is orthogonal and unknown,
    so M is kept near the orthogonal matrices and the fit starts from the identity and from random rotations. `side`
    says whether the output or the input channels are mixed.
    """

    def build(start: Params, free: Params) -> Params:
        return start | {name: mixed(start[name], free[name], side) for name in names}

    return Problem(template, build, orthogonality, stack)


def orthogonality(matrices: Params) -> Tensor:
    """λ Σ ‖M Mᵀ − I‖² / rows: 0 for rotations and reflections alone."""
    terms = [
        (m @ m.transpose(-2, -1) - torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)).square().sum() / m.shape[-1]
        for m in matrices.values()
    ]
    return STRENGTH * torch.stack(terms).sum()


def beginnings(params: Params, names: Sequence[str], side: str, restarts: int, seed: int) -> list[Params]:
    """The matrices at which the fits start: the identity, then random rotations."""

    def matrix(name: str, restart: int) -> Tensor:
        size = channels(params[name], side)
        if restart == 0:
            return torch.eye(size).to(params[name])
        return _rotation(size, rng.key(seed, "undo", "mixing", side, name, restart)).to(params[name])

    return [{name: matrix(name, restart) for name in names} for restart in range(restarts)]


def _rotation(size: int, seed: int) -> Tensor:
    """Uniform among orthogonal matrices."""
    return uniform_orthogonal(torch.randn(size, size, generator=rng.generator(seed), dtype=torch.float64))


# --- realign: turn layers back or draw them afresh, and fit them on a few retained rows -------------------------------


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
    """Turn layers back or draw them afresh, and fit them on a few retained rows.

        for S in single layers, all perturbed layers, all hidden layers:
            θ_S ← perturb⁻¹(θ_S)  or  a fresh draw;     fit θ_S on n retained rows at rate η, the rest frozen;     look
        and the mixing matrices of `unmixing`

        result = the largest Forget and backdoor among what is usable: Test ≥ the published model's − 5 points

    The attacker has the published model and n retained rows, the judge the test set. Where no fitted model is usable,
    the fits were too short, too fast or on too few rows, and say nothing of a longer one.
    """
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
    for side in SIDES if hidden else ():
        begun = beginnings(params, hidden, side, grid.restarts, seed)
        made = [(f"unmix {side} {k}", free, params) for k, free in enumerate(begun)]
        problem = unmixing(scene.template, hidden, side, scene.stack)
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


# --- resurface: some more passes over retained data alone; does what was forgotten come up again? ---------------------


def rounds_of(count: int, batch: int, rounds: int) -> tuple[int, ...]:
    """After how many steps each of some passes over `count` rows ends."""
    steps = max(math.ceil(count / batch), 1)
    return tuple(steps * (t + 1) for t in range(rounds))


def resurface(scene: Scene, params: Params, lr: float, rounds: int = 10, batch: int = 64) -> dict[str, Any]:
    """Train on retained data alone: how far do Forget and backdoor rise after each further pass?

        θ⁰ = θ_u,     θ^{t+1} = one pass of SGD over D_r,     Forget(θ⁰), …, Forget(θᴺ)

    After several approximate methods this brought forget accuracy from about 50 to 100 %, while Retrain stayed
    (arXiv 2505.22310). The rise is max over t of Forget(θᵗ) − Forget(θ⁰).
    """
    seed = rng.key(scene.seed, "undo", "resurface")
    budget = Budget(rounds_of(len(scene.retain), batch, rounds), Optimiser(lr=lr), batch, seed)
    free = {name: params[name] for name in scene.template.trainable}
    pool = scene.retain.tensors()
    task = FitTask(params, free, torch.arange(len(scene.retain), device=pool[0].device))
    seen = [scene.quick(params)]
    seen += [scene.quick(models[0]) for _, models in fit(Problem(scene.template), [task], pool, budget)]
    curves = {name: [numbers[name] for numbers in seen] for name in ("forget", "test", "backdoor")}
    return {"rounds": rounds, "lr": lr, **{f"{n}_rise": rise(curves[n]) for n in ("forget", "backdoor")}, **curves}


def rise(curve: list[Value]) -> Value:
    """How far a curve comes above its first point."""
    numbers = [value for value in curve if is_measured(value)]
    return max(numbers) - numbers[0] if len(numbers) == len(curve) else curve[0]


# --- relearn: how few forgotten rows bring the rest of them back? -----------------------------------------------------


COUNTS = (0, 1, 5, 10, 50, 100)
BACK_WITHIN = 5.0
RETAINED = 1000


def area(curve: Sequence[float]) -> float:
    """The mean height of a curve, by trapezes; of a single point, the point."""
    if len(curve) == 1:
        return curve[0]
    return sum((a + b) / 2 for a, b in pairwise(curve)) / (len(curve) - 1)


def rounds_until(curve: Sequence[float], level: float) -> Value:
    """The first round at which a curve reaches a level."""
    found = next((float(t) for t, value in enumerate(curve) if value >= level - 1e-9), None)
    return not_measured(f"not back within {len(curve) - 1} rounds") if found is None else found


def relearn(
    scene: Scene,
    params: Params,
    was: Value,
    lr: float,
    counts: Sequence[int] = COUNTS,
    rounds: int = 10,
    batch: int = 64,
) -> dict[str, Any]:
    """Mix a few forgotten rows into retained ones: how fast do the rest of them return?

        k ∈ {0, 1, 5, 10, 50, 100} rows of D_u mixed in, low rate, R passes;   Forget_k(t), t = 0 … R
        rounds(k) = the first t with Forget_k(t) ≥ Forget(θ*) − 5 points
        area(k)   = mean over t of Forget_k(t), by trapezes:   1/R Σ_t (Forget_k(t) + Forget_k(t+1)) / 2

    A model that never knew D_u must learn it; one that only hid it remembers. Forget is taken over all of D_u, so only
    the distance to Retrain's area says anything. `was` is Forget of θ*.
    """
    if len(scene.forget) == 0:
        return {"area": NO_FORGET, "reason": NO_FORGET}
    seed = rng.key(scene.seed, "undo", "relearn")
    kept, gone = scene.retain.some(RETAINED, seed), scene.forget.some(max(counts), seed)
    (kx, ky), (gx, gy) = kept.tensors(), gone.tensors()
    pool = torch.cat([kx, gx]), torch.cat([ky, gy])
    used = tuple(dict.fromkeys(min(k, len(gone)) for k in counts))
    budget = Budget(rounds_of(len(kept), batch, rounds), Optimiser(lr=lr), batch, seed)
    free = {name: params[name] for name in scene.template.trainable}
    tasks = [FitTask(params, free, torch.arange(len(kept) + k, device=pool[0].device)) for k in used]
    curves: list[list[float]] = [[float(scene.forgotten(params))] for _ in used]
    for _, models in fit(Problem(scene.template, stack=scene.stack), tasks, pool, budget):
        for curve, model in zip(curves, models, strict=True):
            curve.append(float(scene.forgotten(model)))
    level = was - BACK_WITHIN if is_measured(was) else None
    return {
        "rows": list(used),
        "rounds": rounds,
        "lr": lr,
        "forget": curves,
        "rounds_until_back": [was if level is None else rounds_until(curve, level) for curve in curves],
        "areas": [area(curve) for curve in curves],
        "area": sum(area(curve) for curve in curves) / len(curves),
    }


# --- triggers: teach a planted backdoor again with stamped retained rows; how fast does it return? --------------------


NOTHING_PLANTED = not_measured("no backdoor is known here, so none can be taught again")
UNSTAMPED = not_measured("only images in memory, held as uint8, can be stamped")
STAMPED, CLEAN = 5, 15
STOPS = (1, 2, 5, 10, 20)
CORNERS = FAMILY[:4]


def works(scene: Scene, params: Params, clean: View, target: int) -> float:
    """Success of the planted trigger minus false positives, in points."""
    assert scene.backdoor is not None
    return scene.read_as(params, scene.backdoor, target) - scene.read_as(params, clean, target)


def triggers(scene: Scene, params: Params, lr: float) -> dict[str, Any]:
    """Teach a planted backdoor again with stamped retained rows, and see how fast it returns.

        5 retained rows of other classes, stamped and labelled as the target, and 15 clean retained rows; 20 steps
        works(t) = success of the planted trigger on test rows  −  clean test rows of other classes read as the target
        own     the rows carry a trigger of the attacker's: a bright square in a corner, the best of the four
        known   the rows carry the planted trigger: the strong case
        gained  works(20) − works(0) with ten rows that carry it and ten clean ones

    No row of the leaver is used. Clean rows read as the target are taken off, because a model that says "target" to
    everything has no backdoor.
    """
    planted, source = scene.backdoor, scene.retain.source
    if planted is None or scene.test is None:
        return {"reason": NOTHING_PLANTED if planted is None else NO_TEST}
    if not (isinstance(source, TensorSource) and isinstance(planted.source, TensorSource)) or source.prepared:
        return {"reason": UNSTAMPED}
    target, seed = int(planted.source.labels[0]), rng.key(scene.seed, "undo", "triggers")
    stamped = [stamped_by(source, stamp, target) for stamp in (*CORNERS, planted.source.trigger)]
    drawn = View(source, scene.retain.rows[other_than(scene.retain, target)]).some(2 * STAMPED, seed).rows
    few, clean = View(source, drawn[:STAMPED]), scene.retain.some(STAMPED + CLEAN, rng.key(seed, "clean"))
    clean = View(source, clean.rows[~torch.isin(clean.rows, few.rows)][:CLEAN])
    tuples = [View(one, few.rows).tensors() for one in stamped]
    pool = tuple(torch.cat(parts) for parts in zip(*tuples, clean.tensors(), strict=True))
    last, here = len(stamped) * len(few), pool[0].device
    places = [[*range(i * len(few), (i + 1) * len(few)), *range(last, last + len(clean))] for i in range(len(stamped))]
    free = {name: params[name] for name in scene.template.trainable}
    tasks = [FitTask(params, free, torch.tensor(own, device=here)) for own in places]
    budget = Budget(STOPS, Optimiser(lr=lr), STAMPED + CLEAN, seed)
    plain = View(scene.test.source, planted.rows)
    curves = [[works(scene, params, plain, target)] for _ in tasks]
    for _, models in fit(Problem(scene.template, stack=scene.stack), tasks, (pool[0], pool[1]), budget):
        for curve, model in zip(curves, models, strict=True):
            curve.append(works(scene, model, plain, target))
    own = max(curves[:-1], key=lambda curve: curve[-1])
    half = View(source, clean.rows[~torch.isin(clean.rows, drawn)][: 2 * STAMPED])
    ten = [torch.cat(two) for two in zip(View(stamped[-1], drawn).tensors(), half.tensors(), strict=True)]
    task = FitTask(params, free, torch.arange(len(ten[1]), device=here))
    ((_, (after,)),) = fit(Problem(scene.template), [task], (ten[0], ten[1]), replace(budget, stops=STOPS[-1:]))
    return {
        "steps": [0, *STOPS],
        "lr": lr,
        "own": own[-1],
        "known": curves[-1][-1],
        "gained": works(scene, after, plain, target) - own[0],
        "curves": [own, curves[-1]],
    }


def stamped_by(source: TensorSource, stamp: Stamp | None, target: int) -> TensorSource:
    """Every row with a trigger on it, labelled as the target."""
    everywhere, named = torch.ones_like(source.labels, dtype=torch.bool), torch.full_like(source.labels, target)
    return source.relabelled(named, everywhere, stamp)


def other_than(view: View, target: int) -> Tensor:
    """Which rows of a view are not of the target class."""
    labels = view.source.labels
    return (labels[view.rows.to(labels.device)] != target).to(view.rows.device)
