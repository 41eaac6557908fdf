"""Table 7: the lower bound on the time that unlearning takes, for FT and for NoT.

θ*_long, which bounds the loss that can be gone down, was trained on D_r for 2T rounds, as the paper has it: the run's
method `retrain-long` gives it. With Retrain itself in its place FT has next to no loss to go down, and its bound is an
artefact.
"""

from __future__ import annotations

import math

from unfed.analysis import bound
from unfed.paper import units
from unfed.paper.items import Item
from unfed.paper.units import Costs
from unfed.paper.views import printed
from unfed.paper.views.base import BY, Grid, Runs, Section, first_seed
from unfed.paper.views.models import LONG, NEGATED, ORIGINAL, last_round, models_of, sets_of, start_of_retrain
from unfed.report import tables
from unfed.report.units import flops_text
from unfed.values import Value

STARTS = {"ft": ORIGINAL, "not": NEGATED}


def make(item: Item, runs: Runs) -> Section:
    body, data, ours, said = [], {}, {}, list[str]()
    for spec, run in runs.items():
        world, config = run.world(first_seed(run)), run.config
        long = LONG if LONG in run.labels else "retrain"
        models, sets = models_of(run, tuple(dict.fromkeys(("ft", "not", "retrain", long)))), sets_of(run)
        if long != LONG:
            said.append(
                f"{spec.name}: Retrain stands in for a model trained twice as long, which makes FT's time too long."
            )
        for method, start in STARTS.items():
            way = [models[last_round(method)]]
            retrained, theta_long = models[last_round("retrain")], models[last_round(long)]
            found = bound.bound(world.template, sets, bound.Models(models[start], retrained, theta_long, way))
            lr = world.unlearning_settings(False, method).phase.optimiser.lr
            clients = sum(len(c.view("retain")) > 0 for c in world.scoped(config.requests()).values())
            flops = found.flops(lr, clients, config.training.batch, world.forward_flops)
            name = tables.name_of(method)
            body.append((spec.name, name, f"{found.time:.2g}", flops if isinstance(flops, str) else flops_text(flops)))
            data[f"{spec.name}, {name}"] = vars(found) | {"time": _finite(found.time), "flops": _finite(flops)}
            ours[spec.name, name] = Costs(tables.DASH, _finite(flops))
    grid = Grid((BY, "Method", "t at least (learning rate × steps)", "FLOPs for that time"), tuple(body))
    said.append(units.note(item.published))
    return Section(item, grids=(grid,), published=printed.bounds(item, ours), said=tuple(said), data=data)


def rehearse(item: Item, runs: Runs) -> None:
    """The bound's ingredients at Retrain's start, on a few rows."""
    for run in runs.values():
        world, sets, params = run.world(first_seed(run)), sets_of(run, 64), start_of_retrain(run)[0]
        sets.losses(world.template, params)
        sets.steepness(world.template, params)


def _finite(value: Value) -> Value:
    infinite = "not measured: nothing drives this fine-tuning, the bound is infinite"
    return value if isinstance(value, str) or math.isfinite(value) else infinite
