"""Layers one by one: is a negation undone, is a negated layer still good, do strangers fit?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor

from unfed import rng
from unfed.analysis.theory.optimality import are_coadapted, compensated, relation_of
from unfed.model.params import Params
from unfed.model.perturb import graft, negate, reinit
from unfed.paper.claims.claim import FAILS, UNDER, Claim, Drawing, Finding, holds_if
from unfed.paper.claims.scene import LEAVER, ClaimScene
from unfed.paper.views.base import TextTable

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "x²": torch.square,
    "ReLU": torch.relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
}
SETTINGS = (
    "dense",
    "dense, bias negated too",
    "dense, bias kept",
    "convolution, no padding",
    "convolution, zero padding",
)
EXACT = 1e-8
CHANNELS = 4
STRANGER = "a stranger's"
WITHIN = 1.0
"""Points of test accuracy by which "an acceptable optimum" may be missed."""


def _left_over(wanted: Tensor, features: Tensor) -> float:
    """The share of the variance that the best affine map misses, on rows it did not see."""
    ones = torch.cat([features, features.new_ones((len(features), 1))], 1)
    half = len(ones) // 2
    found = torch.linalg.lstsq(ones[:half], wanted[:half], driver="gelsd").solution
    missed = (ones[half:] @ found - wanted[half:]).square().sum()
    return float(missed / (wanted[half:] - wanted[half:].mean(0)).square().sum())


def _patches(images: Tensor, padding: int) -> Tensor:
    """What a 3x3 convolution sees at each place, as rows."""
    found = F.unfold(images, 3, padding=padding)
    return found.transpose(1, 2).reshape(-1, found.shape[1])


def _tried(scene: ClaimScene, psi: Callable[[Tensor], Tensor], setting: str) -> tuple[float, float | None]:
    """What the best next layer leaves over, and the compensated layer's largest error where there is one."""
    x = scene.test.fetch(scene.images, None)[0].double()
    generator = rng.generator(rng.key("claims", "compensation", scene.seed))

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    if setting.startswith("dense"):
        flat = x.flatten(1)
        w1, w2 = drawn(flat.shape[1], 12) / flat.shape[1] ** 0.5, drawn(5, 12) / 12**0.5
        bias = 0.0 if setting == "dense" else drawn(12)
        y = flat @ w1 + bias
        turned = psi(-y if setting != "dense, bias kept" else y - 2 * flat @ w1)
        before, features = psi(y), turned
    else:
        padding = 1 if setting.endswith("zero padding") else 0
        k1, w2 = drawn(CHANNELS, x.shape[1], 3, 3) / 3, drawn(5, 9 * CHANNELS) / 6
        y = F.conv2d(x, k1, padding=padding)
        before, features = _patches(psi(y), padding), _patches(psi(-y), padding)
    wanted, relation = before @ w2.T, relation_of(psi)
    error = None
    if relation is not None:
        weight, shift = compensated(w2, None, relation)
        error = float((features @ weight.T + shift - wanted).abs().max())
    return _left_over(wanted, features), error


def compensation(scene: ClaimScene) -> Finding:
    """Six activations in five settings, on images."""
    left, exact = dict[str, dict[str, float]](), dict[str, dict[str, bool]]()
    for name, psi in ACTIVATIONS.items():
        found = {setting: _tried(scene, psi, setting) for setting in SETTINGS}
        left[name] = {setting: share for setting, (share, _) in found.items()}
        exact[name] = {setting: error is not None and error < EXACT for setting, (_, error) in found.items()}
    body = tuple(
        (name, *("exact" if exact[name][s] else f"{100 * left[name][s]:.1f} % left" for s in SETTINGS)) for name in left
    )
    symmetric = [name for name, psi in ACTIVATIONS.items() if relation_of(psi) is not None]
    right = all(exact[name][s] for name in symmetric for s in SETTINGS[:2])
    broken = [f"{name} ({s})" for name in symmetric for s in SETTINGS[2:] if not exact[name][s]]
    return Finding(
        UNDER if right and broken else holds_if(right),
        f"Exact for {', '.join(symmetric)} where weight and bias are negated. Not for {'; '.join(broken)}: the best"
        f" next layer leaves {100 * left['tanh'][SETTINGS[2]]:.0f} % of tanh's variance when the bias is kept, as NoT's"
        f" own listing keeps it. {', '.join(n for n in ACTIVATIONS if n not in symmetric)} have no relation; there"
        f" {100 * left['ReLU']['dense']:.0f} % (ReLU, dense) is left.",
        "an activation with aψ(x) + bψ(−x) = c, the bias negated too, and no zero padding where ψ(0) ≠ c/2",
        grids=(TextTable(("activation", *SETTINGS), body),),
        drawings=(
            Drawing(
                "What the best next layer leaves over",
                "setting",
                "share of variance",
                {name: [(s.replace("convolution", "conv"), left[name][s]) for s in SETTINGS] for name in left},
                bars=True,
            ),
        ),
        data={"left": left, "exact": exact},
    )


def optimality(scene: ClaimScene) -> Finding:
    """Every layer frozen (negated, as trained, at random), all else anew, beside Retrain."""
    goal = scene.accuracy(scene.retrained)
    repetitions = range(min(2, scene.effort.seeds))
    means = dict[str, dict[str, float]]()
    for choice in scene.weights:
        own = means.setdefault(choice.name, {})
        for kind in ("negated", "as trained", "random"):
            found = []
            for seed in repetitions:
                name = f"frozen-{choice.name}-{kind.replace(' ', '-')}-{seed}"
                after = scene.train(
                    name,
                    [LEAVER],
                    rounds=scene.effort.rounds,
                    start=partial(_frozen, scene, choice.name, kind, seed),
                    seed=seed,
                    held=(choice.name,),
                )
                found.append(scene.accuracy(after))
            own[kind] = sum(found) / len(found)
    reached = [name for name, own in means.items() if own["negated"] >= goal - WITHIN]
    control = [name for name, own in means.items() if own["random"] >= goal - WITHIN]
    missed = [name for name in means if name not in reached]
    telling = [name for name in reached if name not in control]
    body = tuple((name, *(f"{own[kind]:.1f}" for kind in own), f"{goal:.1f}") for name, own in means.items())
    told = f"within {WITHIN:g} point of Retrain at {len(reached)} of {len(means)} layers"
    return Finding(
        FAILS if not reached else UNDER if missed else holds_if(True),
        f"A negated, frozen layer ends {told}"
        + (f" (not {', '.join(missed)})" if missed else "")
        + f"; so does a random frozen one at {len(control)} of {len(means)}. "
        + (
            f"Only at {', '.join(telling)} is the negated one worth more than a random one."
            if telling
            else "On this network the test cannot tell a negated layer from a random one."
        ),
        f"these layers: {', '.join(reached)}" if missed else "",
        grids=(TextTable(("frozen layer", "negated", "as trained", "random", "Retrain"), body),),
        drawings=(
            Drawing(
                "Everything else trained around a frozen layer",
                "frozen layer",
                "test accuracy (%)",
                {
                    kind: [(name, own[kind]) for name, own in means.items()]
                    for kind in ("negated", "as trained", "random")
                },
                bars=True,
            ),
        ),
        data={"retrain": goal, "test": means, "repetitions": len(repetitions)},
    )


def _frozen(scene: ClaimScene, name: str, kind: str, seed: int) -> Params:
    """A fresh model in which one layer is the one to be frozen."""
    chosen = [choice for choice in scene.weights if choice.name == name]
    fresh = scene.server([LEAVER], scene.effort.rounds, seed).init("nr-freeze")
    if kind == "random":
        return fresh
    start = graft(fresh, chosen, donor=scene.trained)
    return negate(start, chosen) if kind == "negated" else start


def grafting(scene: ClaimScene) -> Finding:
    """Every layer of every model in every other one; beside it the layer negated, and drawn anew."""
    models = [scene.train(f"seed-{i}", [], rounds=scene.effort.rounds, seed=i) for i in range(scene.effort.seeds)]
    loss, test = dict[str, dict[str, float]](), dict[str, dict[str, float]]()
    whole = sum(map(scene.accuracy, models)) / len(models)
    optimum = max(scene.loss(model) for model in models)
    fits = 0
    for choice in scene.weights:
        made: dict[str, list[Params]] = {STRANGER: [], "negated": [], "drawn anew": []}
        for host, donor in permutations(models, 2):
            made[STRANGER].append(graft(host, [choice], donor=donor))
        for i, host in enumerate(models):
            made["negated"].append(negate(host, [choice]))
            made["drawn anew"].append(reinit(host, [choice], fresh=scene.world.fresh(rng.key("claims", "graft", i))))
        test[choice.name] = {kind: sum(map(scene.accuracy, own)) / len(own) for kind, own in made.items()}
        losses = {kind: [scene.loss(p) for p in own] for kind, own in made.items()}
        loss[choice.name] = {kind: sum(own) / len(own) for kind, own in losses.items()}
        fits += sum(are_coadapted(one, optimum, 0.05) for one in losses[STRANGER])
    lost = {name: {kind: whole - own[kind] for kind in own} for name, own in test.items()}
    alike = [n for n, own in lost.items() if own["negated"] >= own[STRANGER] / 2 and own["negated"] >= 10]
    pairs = len(models) * (len(models) - 1)
    body = tuple((n, *(f"{own[kind]:.1f}" for kind in own), f"{loss[n]['negated']:.2f}") for n, own in test.items())
    other = [name for name in test if name not in alike]
    first = scene.weights[0].name
    return Finding(
        holds_if(bool(alike), "" if not other else "these layers") if alike else FAILS,
        f"Whole models read {whole:.1f} % of test digits. {first} of a stranger leaves {test[first][STRANGER]:.1f} %,"
        f" negated {test[first]['negated']:.1f} %, drawn anew {test[first]['drawn anew']:.1f} %; {fits} of"
        f" {pairs * len(test)} graftings are co-adapted. Negation breaks at least half of what a stranger's layer"
        f" breaks at {len(alike)} of {len(test)} layers.",
        f"layers such as {', '.join(alike)}" if other else "",
        grids=(TextTable(("layer", "a stranger's", "negated", "drawn anew", "loss on D_r, negated"), body),),
        drawings=(
            Drawing(
                "One layer exchanged",
                "layer",
                "test accuracy (%)",
                {kind: [(n, own[kind]) for n, own in test.items()] for kind in next(iter(test.values()))},
                bars=True,
            ),
        ),
        data={"whole": whole, "test": test, "loss": loss, "pairs": pairs, "coadapted": fits},
    )


CLAIMS = (
    Claim(
        "compensation",
        "Theorem 4",
        "the next layer can undo a negation, so a negated layer stays optimal",
        compensation,
    ),
    Claim(
        "optimality",
        "Definition 2",
        "a negated layer, frozen, still lets the rest be trained to the optimum",
        optimality,
    ),
    Claim(
        "grafting",
        "Definitions 3 and 4",
        "negation breaks co-adaptation, as a layer of another optimal model does",
        grafting,
    ),
)
