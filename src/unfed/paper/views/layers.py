"""Figures 3 and 7.

They show how alike two models see the test images, layer by layer, and what that says about negation.

with the original    CKA(model, θ*), raw and scaled so that 0 is a fresh model and 1 the original itself
with Retrain         CKA(model, Retrain): what an unlearned model should be like
the twin             CKA(−θ*_ℓ ⊕ R, θ*_ℓ ⊕ R), R random: what negation alone does behind the negated layer,
                     beside a control, CKA(random ℓ ⊕ R, θ*_ℓ ⊕ R): without it the twin's number says nothing
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from unfed import rng
from unfed.analysis import cka
from unfed.errors import UnfedError
from unfed.model.params import Params
from unfed.model.perturb import graft, negate
from unfed.paper import pictures
from unfed.paper.items import Item, Spec
from unfed.paper.pictures import Curve
from unfed.paper.views.base import Analysis, Numbers, Runs, Section, TextTable, first_seed
from unfed.paper.views.models import (
    NEGATED,
    ORIGINAL,
    START,
    fresh_with_head,
    last_round,
    models_of,
    negated_layers,
    start_of_retrain,
)
from unfed.report.tables import DASH
from unfed.runs.run import Run
from unfed.values import Value, is_measured

MOST = 2_000
"""Test images on which models are compared."""
COMPARED = ("ft", "not", "retrain")
TWIN, CONTROL = "negated", "random layer (control)"
TITLES = {
    "CKA": "CKA with the original",
    "normalised": "normalised CKA with the original",
    "with Retrain": "CKA with Retrain",
    "twin": "CKA of the twin",
}
Found = dict[str, dict[str, Value]]


def measure(item: Item, spec: Spec, run: Run) -> Numbers:
    """Every layer's CKA, and what had to be changed to have it."""
    said = start_of_retrain(run)[1].replace("Retrain's start", "Retrain's start and the twins")
    return {
        "layers": _found(run, models_of(run, COMPARED), MOST),
        "preset": spec.preset,
        "said": [said] if said else [],
    }


def show(item: Item, measured: Mapping[str, Numbers]) -> Section:
    """One picture and one table of each comparison."""
    drawn, grids, said = [], list[TextTable](), list[str]()
    for run, numbers in measured.items():
        found = numbers["layers"]
        # The same model has the same colour in every picture, also where another is left out; no two have one.
        models = dict.fromkeys(name for key in found if key != "twin" for name in found[key])
        order = {name: i for i, name in enumerate(models)}
        for key, by_model in found.items():
            title, bottom = f"{run}: {TITLES[key]}", None if key == "normalised" else 0.0
            lines = [Curve(name, _drawn(own), colour=order.get(name)) for name, own in by_model.items()]
            name = f"{item.id}-{numbers['preset']}"
            drawn.append(pictures.curves(lines, title, "layer", "CKA", item=name, bottom=bottom))
            header = ("Model", *next(iter(by_model.values())))
            body = tuple((name, *(_cell(value) for value in own.values())) for name, own in by_model.items())
            grids.append(TextTable(header, body, title))
            said += [
                f"{title}, {name}: {layer} {value}."
                for name, own in by_model.items()
                for layer, value in own.items()
                if not is_measured(value)
            ]
        said += numbers["said"]
    said.append("Normalised: 0 is what Retrain's own start has in common with the original, 1 is the original itself.")
    said.append("The twin is read against its control: a random first layer in the place of the negated one.")
    data = {run: numbers["layers"] for run, numbers in measured.items()}
    return Section(item, grids=tuple(grids), pictures=tuple(drawn), said=tuple(said), data=data)


def _cell(value: Value) -> str:
    return f"{value:.3f}" if is_measured(value) else DASH


def rehearse(item: Item, runs: Runs) -> None:
    """The same with Retrain's start in the place of every model."""
    for run in runs.values():
        params = start_of_retrain(run)[0]
        names = (ORIGINAL, NEGATED, START, *(last_round(label) for label in COMPARED))
        _found(run, dict.fromkeys(names, params), 2 * cka.LEAST)


def _found(run: Run, models: Mapping[str, Params], most: int) -> dict[str, Found]:
    world = run.world(first_seed(run))
    images = world.held_out
    if images is None:
        raise UnfedError(f"{run.config.name} has no test images, on which models could be compared.")
    rows = torch.arange(min(len(images), most))
    others = {name: params for name, params in models.items() if name != ORIGINAL}

    def alike(reference: Params, to: Mapping[str, Params]) -> Found:
        return cka.compare(world.template, reference, to, images, rows, batch=min(256, len(rows)))

    with_original = alike(models[ORIGINAL], others)
    fresh = with_original[START]
    scaled = {name: cka.normalised(own, fresh) for name, own in with_original.items() if name != START}
    retrained = models[last_round("retrain")]
    near = [name for name in models if name not in (last_round("retrain"), START)]
    chosen = negated_layers(run)
    rest, other = (fresh_with_head(world, rng.key("paper", "twin", part))[0] for part in ("rest", "other"))
    twin = graft(rest, chosen, donor=models[ORIGINAL])
    stood_in = graft(rest, chosen, donor=other)
    return {
        "CKA": with_original,
        "normalised": scaled,
        "with Retrain": alike(retrained, {name: models[name] for name in near}),
        "twin": alike(twin, {TWIN: negate(twin, chosen), CONTROL: stood_in}),
    }


def _drawn(layers: Mapping[str, Value]) -> list[tuple[float | str, float]]:
    """Points of a curve; it has a hole where nothing was measured, and a sentence below says why."""
    return [(layer, value if is_measured(value) else math.nan) for layer, value in layers.items()]


ANALYSIS = Analysis(measure, show, rehearse)
