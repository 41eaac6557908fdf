"""How far a perturbation moves a layer's answers, and whether that says who unlearns best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unfed import rng
from unfed.analysis.theory.distance import MANY, Lead, activation_distance, farthest, lead, reach, redrawn_share
from unfed.model.params import Params
from unfed.model.perturb import PERTURBATIONS, perturb
from unfed.paper.claims.claim import UNDER, Claim, Drawing, Finding, holds_if
from unfed.paper.claims.scene import ClaimScene, gap
from unfed.paper.views.base import TextTable

LAYER = "norm1"
"""What goes into the first ReLU."""
SLACK = 1e-9
OTHERS = tuple(how for how in PERTURBATIONS if how not in ("negate", "rotate-180"))  # 180 degrees are both flips


def _normal(*shape: int, at: tuple[Any, ...]) -> Tensor:
    return torch.randn(shape, generator=rng.generator(rng.key("claims", *at)), dtype=torch.float64)


def _perturbed(scene: ClaimScene, how: str, seed: int = 0) -> Params:
    return perturb(scene.trained, scene.first, how, seed=seed, fresh=scene.world.fresh)


def negation_is_farthest(scene: ClaimScene) -> Finding:
    """Random answers, symmetric or not, against random others; then the first layer of a trained network."""
    broken = 0
    for i in range(scene.effort.draws):
        width = 1 + i % 8
        y = _normal(7, width, at=("lead", scene.seed, i)) + (i % 4) / 2
        other = 2 * _normal(7, width, at=("other", scene.seed, i))
        broken += lead(y, other).slack < -SLACK or reach(y) < -SLACK
    before = scene.answers(scene.trained, LAYER)
    found: dict[str, Lead] = {how: lead(before, scene.answers(_perturbed(scene, how), LAYER)) for how in OTHERS}
    broken += sum(one.slack < -SLACK for one in found.values())
    body = tuple((how, f"{one.share:.2f}", f"{one.slack:.3g}") for how, one in found.items())
    return Finding(
        holds_if(broken == 0),
        f"{broken} violations in {scene.effort.draws} random cases and {len(OTHERS)} perturbations of a trained CNN's"
        f" first layer. There re-initialisation goes {found['reinit'].share:.2f} of negation's way, zero"
        f" {found['zero'].share:.2f}.",
        grids=(TextTable(("perturbation", "of negation's way", "slack of the inequality"), body),),
        drawings=(
            Drawing(
                "How far the first layer's answers move, negation = 1",
                "perturbation",
                "share of negation's way",
                {"share": [(how, one.share) for how, one in found.items()]},
                bars=True,
            ),
        ),
        data={"violations": broken, "shares": {how: one.share for how, one in found.items()}},
    )


def lemmas(scene: ClaimScene) -> Finding:
    """The largest distance of the lemma against the best of all axes, and α against random layers."""
    wrong_printed, wrong_ours, cases = 0, 0, 200
    for i in range(cases):
        width = 2 + i % 6
        y = _normal(1, width, at=("lemma", scene.seed, i)).abs()
        if i % 2:
            y = y * (_normal(1, width, at=("zeros", scene.seed, i)) > -0.5)
        axes = torch.eye(width, dtype=torch.float64) * y.norm()
        truth = float((y - axes).square().sum(1).max())
        square = float(y.square().sum())
        printed = square if bool((y > 0).all()) else 2 * square
        wrong_printed += abs(printed - truth) > SLACK * (1 + truth)
        wrong_ours += abs(float(farthest(y)[0]) - truth) > SLACK * (1 + truth)
    widths = (2, 3, 4, 8, 16, 64)
    seen = {}
    for width in widths:
        one, other = (_normal(20_000, width, at=("redrawn", scene.seed, width, part)) for part in (0, 1))
        seen[width] = activation_distance(one, other) / float(farthest(one.relu()).mean())
    lines: Mapping[str, Any] = {
        "random layers": [(str(w), seen[w]) for w in widths],
        "α of this width": [(str(w), redrawn_share(w)) for w in widths],
        "1 − 1/π": [(str(w), MANY) for w in widths],
    }
    off = max(abs(seen[w] - redrawn_share(w)) for w in widths)
    right = wrong_ours == 0 and off < 0.02
    return Finding(
        UNDER if right and wrong_printed else holds_if(right),
        f"Eq. 23 as printed is wrong for {wrong_printed} of {cases} random vectors, as 2‖y‖² − 2‖y‖·min y for"
        f" {wrong_ours}. A layer drawn anew goes {seen[2]:.2f}, {seen[8]:.3f} and {seen[64]:.3f} of the way with 2, 8"
        f" and 64 coordinates; the paper's 1 − 1/π = {MANY:.3f} is the limit.",
        "Eq. 23 mended (2‖y‖² − 2‖y‖·min y for y > 0) and many coordinates",
        drawings=(Drawing("How far a layer drawn anew goes", "coordinates", "α", lines),),
        data={"wrong_as_printed": wrong_printed, "wrong_mended": wrong_ours, "seen": seen, "cases": cases},
    )


def distance_as_forecast(scene: ClaimScene) -> Finding:
    """Every perturbation of the first layer: its distance beside its gap after recovery, over seeds."""
    kinds = ("negate", *OTHERS)
    shares, gaps = dict[str, list[float]](), dict[str, list[float]]()
    for seed in range(scene.effort.seeds):
        own = replace(scene, seed=scene.seed + seed)
        reference, before = own.numbers(own.retrained), own.answers(own.trained, LAYER)
        for how in kinds:
            start = _perturbed(own, how, seed)
            share = 1.0 if how == "negate" else lead(before, own.answers(start, LAYER)).share
            shares.setdefault(how, []).append(share)
            gaps.setdefault(how, []).append(gap(own.numbers(own.recovered(f"first-{how}", start)), reference))
    far, near = ({how: sum(v) / len(v) for how, v in found.items()} for found in (shares, gaps))
    agreement = -_rank_correlation([far[how] for how in kinds], [near[how] for how in kinds])
    better = [how for how in OTHERS if near[how] < near["negate"]]
    best = min(near, key=near.__getitem__)
    order = sorted(kinds, key=lambda how: -far[how])
    body = tuple(
        (how, f"{far[how]:.2f}", f"{near[how]:.2f}", " / ".join(f"{g:.2f}" for g in gaps[how])) for how in order
    )
    return Finding(
        holds_if(agreement > 0.5),
        f"After {scene.effort.recovery} rounds the rank correlation of distance and closeness to Retrain is"
        f" {agreement:.2f} over {len(kinds)} perturbations (means of {scene.effort.seeds} seeds). {len(better)} others"
        f" end nearer to Retrain than negation (gap {near['negate']:.2f}; best {best}, {near[best]:.2f}).",
        grids=(TextTable(("perturbation", "of negation's way", "average gap to Retrain", "seed by seed"), body),),
        drawings=(
            Drawing(
                "From the farthest moved to the least",
                "perturbation",
                "average gap to Retrain",
                {"gap": [(how, near[how]) for how in order]},
                bars=True,
            ),
        ),
        data={"shares": shares, "gaps": gaps, "agreement": agreement},
    )


def _rank_correlation(x: list[float], y: list[float]) -> float:
    """Spearman's; ties stand in the order given, which no verdict here depends on."""
    ranks = [torch.tensor(v, dtype=torch.float64).argsort().argsort().double() for v in (x, y)]
    a, b = (r - r.mean() for r in ranks)
    length = float(a.norm() * b.norm())
    return float(a @ b) / length if length else math.nan


CLAIMS = (
    Claim(
        "distance",
        "Theorem 2",
        "no perturbation moves a ReLU layer's answers much farther than negation",
        negation_is_farthest,
    ),
    Claim(
        "distance-lemmas",
        "Lemmas 1 and 2",
        "how far answers can move, and that drawing anew goes 1 − 1/π of it",
        lemmas,
    ),
    Claim("distance-forecast", "Section 5", "who moves the answers farthest unlearns best", distance_as_forecast),
)
