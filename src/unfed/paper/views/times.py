"""Table 7: the lower bound on the time that unlearning takes, for FT and for NoT.

θ*_long, which bounds the loss that can be gone down, was trained on D_r for 2T rounds, as the paper has it: the run's
method `retrain-long` gives it. With Retrain itself in its place FT has next to no loss to go down, and its bound is an
artefact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from unfed.analysis import bound
from unfed.analysis.bound import BoundModels, Sets
from unfed.analysis.gradient_noise import Descent, Noise, gradient_noise
from unfed.model.params import Params
from unfed.paper import verdict
from unfed.paper.items import Item, Spec
from unfed.paper.verdict import Costs
from unfed.paper.views import printed
from unfed.paper.views.base import BY, Analysis, Numbers, Runs, Section, TextTable, first_seed
from unfed.paper.views.models import (
    LONG,
    NEGATED,
    ORIGINAL,
    PLACES,
    last_round,
    models_of,
    retraced,
    sets_of,
    start_of_retrain,
)
from unfed.report import tables
from unfed.report.wording import flops_text
from unfed.runs.description import plain_facts
from unfed.runs.run import Run
from unfed.runs.world import World
from unfed.values import Value, not_measured

STARTS = {"ft": ORIGINAL, "not": NEGATED}
ROWS = 512
"""Rows of D_r on which noise is measured: every one's own gradient is held."""


def measure(item: Item, spec: Spec, run: Run) -> Numbers:
    """The bounds of FT and NoT, with and without noise, and what went into them."""
    world, config = run.world(first_seed(run)), run.config
    long = LONG if LONG in run.labels else "retrain"
    models, sets = models_of(run, tuple(dict.fromkeys(("ft", "not", "retrain", long)))), sets_of(run)
    clients = sum(len(c.view("retain")) > 0 for c in world.scoped(config.requests()).values())
    methods = dict[str, Any]()
    for method, start in STARTS.items():
        way = retraced(run, method, models[start])
        seen = [*way.values(), models[last_round(method)]]
        found = bound.bound(
            world.template,
            sets,
            BoundModels(models[start], models[last_round("retrain")], models[last_round(long)], seen),
        )
        phase = world.unlearning_settings(False, method).phase
        descent = Descent(phase.optimiser.lr, config.training.batch, phase.optimiser.momentum, clients)
        noise = _noise(world, sets, models[start], descent)
        flops = found.flops(descent.lr, clients, config.training.batch, world.forward_flops)
        methods[method] = vars(found) | {
            "time": _finite(found.time),
            "flops": _finite(flops),
            "lipschitz_at": {"start": sets.steepness(world.template, models[start])}
            | {f"round {place}": sets.steepness(world.template, params) for place, params in way.items()}
            | {"last round": sets.steepness(world.template, models[last_round(method)])},
            "time_with_noise": noise if isinstance(noise, str) else _finite(bound.noisy_time(found, noise).time),
            "time_corrected": noise if isinstance(noise, str) else _finite(bound.corrected_time(found, noise).time),
            "noise": noise if isinstance(noise, str) else vars(noise),
        }
    said = f"{spec.name}: Retrain stands in for a model trained twice as long, which makes FT's time too long."
    if long == LONG:
        rounds = {label: plain_facts(config, label).rounds for label in ("retrain", LONG)}
        said = f"{spec.name}: θ*_long is Retrain after {rounds[LONG]} rounds, Retrain itself after {rounds['retrain']}."
    return {"methods": methods, "said": [said]}


def show(item: Item, measured: Mapping[str, Numbers]) -> Section:
    """One table of all runs, and the paper's beside it."""
    body, data, ours, said = [], {}, {}, list[str]()
    for run, numbers in measured.items():
        for method, own in numbers["methods"].items():
            name, noise, flops = tables.name_of(method), own["noise"], own["flops"]
            size = noise if isinstance(noise, str) else f"{noise['stochasticity']:.2g} ± {noise['spread']:.1g}"
            times = (own["time"], own["time_with_noise"], own["time_corrected"])
            slope = max(own["lipschitz_at"], key=own["lipschitz_at"].get)
            body.append((
                run, name, *(_short(time) for time in times), f"{own['lipschitz']:.3g} ({slope})", size,
                flops if isinstance(flops, str) else flops_text(flops),
            ))  # fmt: skip
            data[f"{run}, {name}"] = own
            ours[run, name] = Costs(tables.DASH, flops)
        said += numbers["said"]
    header = (
        BY,
        "Method",
        "t at least, A = 0",
        "… with A",
        "… corrected",
        "Lip (where)",
        "A / t",
        "FLOPs for t, A = 0",
    )
    said.append(
        "t is learning rate × steps. Lip is the largest slope of δ at the start, after rounds"
        f" {', '.join(map(str, PLACES))} and at the end. A / t = ½ |tr ΣΣᵀ∇²L| at the start, ± Hutchinson's standard"
        " error. Corrected keeps the diffusion that the paper's proof drops."
    )
    said.append(verdict.note(item.published))
    grid = TextTable(header, tuple(body))
    return Section(item, grids=(grid,), published=printed.bounds(item, ours), said=tuple(said), data=data)


def _noise(world: World, sets: Sets, params: Params, descent: Descent) -> Noise | str:
    """The noise of fine-tuning where it starts, on some rows of D_r spread over all of it."""
    few = min(ROWS, sets.batch, len(sets.retain))
    rows = sets.retain[torch.linspace(0, len(sets.retain) - 1, few).long()]
    try:
        return gradient_noise(world.template, params, sets.source, rows, descent)
    except (RuntimeError, NotImplementedError) as error:  # a kernel without a second derivative, or memory
        return not_measured(f"this network has no second derivative here ({str(error).splitlines()[0][:80]})")


def _short(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:.2g}"


def rehearse(item: Item, runs: Runs) -> None:
    """The bound's ingredients at Retrain's start, on a few rows."""
    for run in runs.values():
        world, sets, params = run.world(first_seed(run)), sets_of(run, 64), start_of_retrain(run)[0]
        sets.losses(world.template, params)
        sets.steepness(world.template, params)


def _finite(value: Value) -> Value:
    infinite = "not measured: nothing drives this fine-tuning, the bound is infinite"
    return value if isinstance(value, str) or math.isfinite(value) else infinite


ANALYSIS = Analysis(measure, show, rehearse)
