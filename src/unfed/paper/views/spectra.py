"""Figure 8: into how few directions the gradients of fine-tuning go, where FT, NoT and Retrain start.

α_β is given at β = 0.95, 0.99 and 0.999 (the paper's Ψ⁻¹(1⁻)) with the interval that 95 % of bootstraps over the sets
of coordinates fall into. Where coordinates far outnumber batches (γ = |K| / b) an α near 1 cannot be decided: there the
table says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unfed.analysis import spectrum
from unfed.model.params import Params
from unfed.paper import pictures
from unfed.paper.items import Item, Spec
from unfed.paper.pictures import Curve
from unfed.paper.views.base import BY, Analysis, Numbers, Runs, Section, TextTable, first_seed
from unfed.paper.views.models import NEGATED, ORIGINAL, models_of, sets_of, start_of_retrain
from unfed.runs.run import Run

SHOWN = 100
"""Points of a spectrum's curve."""
LEVELS = (0.95, 0.99, 0.999)
UNDECIDED = 4.0
"""Above this γ the sample cannot tell an α near 1 from one near one half."""


def measure(item: Item, spec: Spec, run: Run) -> Numbers:
    """The spectrum at each start, thinned out, with the α that hold so much of it."""
    models, numbers = models_of(run, ()), dict[str, Any](spec.numbers)
    fresh, said = start_of_retrain(run)
    starts = {"FT": models[ORIGINAL], "NoT": models[NEGATED], "Retrain": fresh}
    gamma = numbers["size"] / (numbers["batches"] - 1)
    curves, alphas = {}, {}
    for label, start in starts.items():
        found = spectrum.content(_gradients(spec, run, start))
        steps = max(1, len(found.psi) // SHOWN)
        curves[label] = [((i + 1) / len(found.psi), float(p)) for i, p in enumerate(found.psi)][::steps]
        alphas[label] = [_alpha_text(found, level, gamma) for level in LEVELS]
    about = {"numbers": numbers, "gamma": gamma, "said": [said] if said else []}
    return {"curves": curves, "alphas": alphas, **about}


def show(item: Item, measured: Mapping[str, Numbers]) -> Section:
    """A picture of each run, and one table of all."""
    drawn, body, data, said = [], [], {}, list[str]()
    for run, own in measured.items():
        lines = [Curve(label, [(x, y) for x, y in points]) for label, points in own["curves"].items()]
        up = "Ψ(α), share of variance"
        drawn.append(pictures.curves(lines, run, "α, share of directions", up, item=item.id, bottom=0.0))
        body += [(run, label, *texts, f"{own['gamma']:.1f}") for label, texts in own["alphas"].items()]
        data[run] = {**own["curves"], "numbers": own["numbers"]}
        shown = ", ".join(f"{key} {value}" for key, value in own["numbers"].items())
        said.append(f"{run}: {shown}; batches and coordinates are the same for every model.")
        said += own["said"]
    said.append(
        "In brackets: 95 % of bootstraps over the sets of coordinates. Compare models, do not read single values."
    )
    grid = TextTable((BY, "Start of", *(f"α that holds {level:.1%}" for level in LEVELS), "γ = |K| / b"), tuple(body))
    return Section(item, grids=(grid,), pictures=tuple(drawn), said=tuple(said), data=data)


def rehearse(item: Item, runs: Runs) -> None:
    """A few gradients at Retrain's start: a network whose gradients vanish there is found now."""
    for spec, run in runs.items():
        few = Spec(spec.name, spec.preset, spec.sets, (*spec.numbers, ("batches", spectrum.MIN_BATCHES), ("sets", 1)))
        spectrum.content(_gradients(few, run, start_of_retrain(run)[0]))


def _gradients(spec: Spec, run: Run, params: Params) -> spectrum.Gradients:
    world, sets, numbers = run.world(first_seed(run)), sets_of(run), dict[str, Any](spec.numbers)
    return spectrum.gradients(world.template, params, sets.source, sets.retain, spectrum.GradientSample(**numbers))


def _alpha_text(found: spectrum.Content, level: float, gamma: float) -> str:
    if level > 0.95 and gamma > UNDECIDED:
        return f"not measured: undecided at γ = {gamma:.1f}"
    low, high = found.interval(level)
    return f"{found.alpha(level):.2f} [{low:.2f}, {high:.2f}]"


ANALYSIS = Analysis(measure, show, rehearse)
