"""triggers: teach a planted backdoor again with stamped retained rows; how fast does it return?

    5 retained rows of other classes, stamped and labelled as the target, and 15 clean retained rows; 20 steps on all
    works(t) = success of the planted trigger on test rows  −  clean test rows of other classes read as the target
    own     the rows carry a trigger of the attacker's: a bright square in a corner, the best of the four
    known   the rows carry the planted trigger: the strong case
    gained  works(20) − works(0) with ten rows that carry it and ten clean ones

No row of the leaver is used. A model that never met the backdoor must learn it from five rows; one that only hid it
remembers. Clean rows that are read as the target are taken off, since a model that says "target" to everything has
no backdoor. Retrain and θ* meet the same rows, steps and rate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unfed import rng
from unfed.client.plan import Optimiser
from unfed.data import TensorSource
from unfed.data.source import Stamp
from unfed.measures.camouflage import FAMILY
from unfed.measures.undo.fitting import Budget, FitTask, Problem, fit
from unfed.measures.undo.scene import NO_TEST, Scene, View
from unfed.model.params import Params
from unfed.values import not_measured

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
    """How far the planted backdoor works after each number of steps, for both attackers."""
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
