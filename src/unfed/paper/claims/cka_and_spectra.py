"""How alike models see the same images, and into how few directions their gradients go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from unfed import rng
from unfed.analysis import cka, spectrum
from unfed.model.networks import head_of
from unfed.model.params import Params
from unfed.model.perturb import graft, negate
from unfed.paper.claims.claim import Claim, Drawing, Finding, holds_if
from unfed.paper.claims.scene import ClaimScene
from unfed.paper.views.base import TextTable
from unfed.values import Value, is_measured

BETA = 0.95
TRUE_SHARES = (0.2, 0.5, 1.0)
"""For the estimator's own check: the share of directions that hold nearly all of the variance."""
NEARLY_ALL = 0.999
"""The paper's Ψ⁻¹(1⁻)."""
PAPERS_GAMMA = 15.6
"""Coordinates per gradient in the paper's larger networks: 2,000 to 128."""


def _alike(scene: ClaimScene, reference: Params, models: Mapping[str, Params]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, Value]] = cka.compare(
        scene.world.template, reference, models, scene.test, scene.images, batch=min(120, len(scene.images))
    )
    return {n: {layer: float(v) for layer, v in own.items() if is_measured(v)} for n, own in found.items()}


def twin(scene: ClaimScene) -> Finding:
    """−θ*₁ ⊕ R against θ*₁ ⊕ R, beside a random first layer as a control; several draws of R."""
    ends: dict[str, list[float]] = {"negated": [], "random layer (control)": []}
    curves = dict[str, dict[str, list[float]]]()
    head = head_of(scene.world.template.module)
    draws = max(3, scene.effort.seeds)
    for i in range(draws):
        rest, other = (scene.world.fresh(rng.key("claims", "twin", part, i)) for part in ("rest", "other"))
        trained = graft(rest, scene.first, donor=scene.trained)
        kinds = {
            "negated": negate(trained, scene.first),
            "random layer (control)": graft(rest, scene.first, donor=other),
        }
        for name, own in _alike(scene, trained, kinds).items():
            ends[name].append(own[head])
            for layer, value in own.items():
                curves.setdefault(name, {}).setdefault(layer, []).append(value)
    means = {name: sum(own) / len(own) for name, own in ends.items()}
    spread = max(float(np.std(own, ddof=1)) for own in ends.values())
    lead = means["negated"] - means["random layer (control)"]
    lines = {n: [(layer, sum(v) / len(v)) for layer, v in own.items()] for n, own in curves.items()}
    return Finding(
        holds_if(lead > spread),
        f"At the head the twin's CKA is {means['negated']:.2f}, that of a random first layer"
        f" {means['random layer (control)']:.2f} (means of {draws} draws, spread {spread:.2f}): "
        + (
            "the negated layer is worth more than a random one."
            if lead > spread
            else "without the control the figure would say something; with it, it says nothing."
        ),
        drawings=(Drawing("The twin and its control", "layer", "CKA", lines),),
        data={"head": ends},
    )


def resemblance(scene: ClaimScene) -> Finding:
    """CKA with the original at the start, and with Retrain at the end, over seeds."""
    head, ends = head_of(scene.world.template.module), dict[str, list[float]]()
    lines, with_original = dict[str, Any](), dict[str, float]()
    for seed in range(scene.effort.seeds):
        own = replace(scene, seed=scene.seed + seed)
        models = {"FT": own.recovered("ft", own.trained), "NoT": own.recovered("not", own.negated)}
        near = _alike(own, own.retrained, models)
        for name, layers in near.items():
            ends.setdefault(name, []).append(layers[head])
        if seed == 0:
            lines = {f"{name} with Retrain": list(layers.items()) for name, layers in near.items()}
            start = _alike(own, own.trained, {"negated": own.negated})["negated"]
            lines["negated with the original"] = list(start.items())
            with_original = start
    differences = [n - f for n, f in zip(ends["NoT"], ends["FT"], strict=True)]
    nearer = sum(d > 0 for d in differences)
    means = {name: sum(own) / len(own) for name, own in ends.items()}
    first = next(iter(with_original))
    return Finding(
        holds_if(nearer == len(differences)),
        f"After {scene.effort.recovery} rounds NoT is nearer to Retrain than FT at the head for"
        f" {nearer} of {len(differences)} seeds (CKA with Retrain: NoT {means['NoT']:.2f}, FT {means['FT']:.2f}). At"
        f" the start the negated model has CKA {with_original[first]:.2f} with the original at {first} and"
        f" {with_original[head]:.2f} at the head.",
        drawings=(Drawing("CKA by layer", "layer", "CKA", lines),),
        data={"head_with_retrain": ends, "negated_with_original": with_original},
    )


def directions(scene: ClaimScene) -> Finding:
    """α where FT, NoT and Retrain start, at γ ≈ 1, with intervals; the estimator on known spectra."""
    effort, sets = scene.effort, scene.sets
    batches = effort.batches
    sample = spectrum.GradientSample(batch=16, batches=batches, size=batches - 1, sets=effort.sets, seed=scene.seed)
    starts = {"FT": scene.trained, "NoT": scene.negated, "Retrain": scene.world.fresh(rng.key("claims", "start"))}
    found = {}
    for name, params in starts.items():
        gradients = spectrum.gradients(scene.world.template, params, sets.source, sets.retain, sample)
        found[name] = spectrum.content(gradients)
    alphas = {name: (own.alpha(BETA), *own.interval(BETA)) for name, own in found.items()}
    checked = _estimator(scene)
    off = max(abs(seen - truth) for truth, seen, _ in checked)
    far = max(abs(seen - truth) for truth, _, seen in checked)
    fewer = alphas["NoT"][2] < alphas["Retrain"][1]
    body = tuple((name, f"{a:.2f}", f"[{low:.2f}, {high:.2f}]") for name, (a, low, high) in alphas.items())
    steps = max(1, len(next(iter(found.values())).psi) // 60)
    lines = {
        n: [((i + 1) / len(own.psi), float(p)) for i, p in enumerate(own.psi)][::steps] for n, own in found.items()
    }
    return Finding(
        holds_if(fewer),
        "α₀.₉₅ at γ ≈ 1: "
        + ", ".join(f"{n} {a:.2f} [{lo:.2f}, {hi:.2f}]" for n, (a, lo, hi) in alphas.items())
        + f". On known spectra the estimate of α₀.₉₉₉ is off by {off:.2f} at most at γ ≈ 1, by {far:.2f} at the paper's"
        f" γ ≈ {PAPERS_GAMMA}.",
        grids=(
            TextTable(("start", "α₀.₉₅", "95 % of bootstraps"), body),
            TextTable(
                ("true α₀.₉₉₉", "estimated, γ ≈ 1", "estimated, γ ≈ 15.6"),
                tuple(tuple(f"{v:.3f}" for v in row) for row in checked),
            ),
        ),
        drawings=(Drawing("Spectral content", "α, share of directions", "Ψ(α)", lines),),
        data={"alpha": {n: list(v) for n, v in alphas.items()}, "estimator": checked},
    )


def _estimator(scene: ClaimScene) -> list[tuple[float, float, float]]:
    """Gradients of a known spectrum: the true α₀.₉₉₉, its estimates at γ ≈ 1 and the paper's γ."""
    rows, checked = scene.effort.batches, []
    generator = rng.generator(rng.key("claims", "estimator", scene.seed))
    for share in TRUE_SHARES:
        seen, truth = [], 0.0
        for size in (rows - 1, round(PAPERS_GAMMA * (rows - 1))):
            scale = torch.full((size,), 1e-3, dtype=torch.float64)
            scale[: max(1, round(share * size))] = 1.0
            values = torch.randn((rows, size), generator=generator, dtype=torch.float64) * scale
            gradients = spectrum.Gradients(values, torch.arange(size)[None])
            seen.append(spectrum.content(gradients).alpha(NEARLY_ALL))
            total = scale.square().cumsum(0) / scale.square().sum()
            truth = (int((total >= NEARLY_ALL).nonzero()[0]) + 1) / size
        checked.append((truth, seen[0], seen[1]))
    return checked


CLAIMS = (
    Claim(
        "cka-twin",
        "Figures 3 and 7, the twin",
        "a negated first layer under random layers is seen as the old one was",
        twin,
    ),
    Claim("cka-retrain", "Figures 3 and 7", "after recovery NoT resembles Retrain more than FT does", resemblance),
    Claim(
        "directions",
        "Figure 8",
        "gradients where NoT starts take fewer directions than where Retrain starts",
        directions,
    ),
)
