"""Gradients behind a negated layer, the symmetry they rest on, how steep a network can be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unfed import rng
from unfed.analysis.activations import layers_of
from unfed.analysis.theory.jacobian import (
    asymmetry,
    gradient_limit,
    jacobians,
    lipschitz_limit,
    maximal_chains,
    paths,
    sliced_wasserstein,
    symmetry_test,
    without,
)
from unfed.model.params import Params
from unfed.model.perturb import perturb
from unfed.paper.claims.claim import UNDER, Claim, Drawing, Finding, holds_if
from unfed.paper.claims.scene import ClaimScene
from unfed.paper.views.base import TextTable

NETWORKS = ("cnn-small", "resnet-tiny", "vit-tiny")
SMALL = 0.2
"""What the paper's "≪ 1" could still mean for a total variation."""
SLACK = 1e-9
JACOBIANS = 90
"""Images whose Jacobians are compared: two groups of half as many."""


def premise(scene: ClaimScene) -> Finding:
    """Per layer of three networks, and for a first layer of every width: can Y be told from −Y?"""
    body, at_least, shifted, tested = [], [], 0, 0
    kinds: list[tuple[str, ClaimScene, tuple[str, ...] | None]] = [(name, scene.of(name), None) for name in NETWORKS]
    kinds += [(f"cnn, {w} filters", scene.of("cnn-small", widths=[w, 16]), ("conv1",)) for w in scene.effort.widths]
    for name, own, layers in kinds:
        for layer in layers or layers_of(own.world.template.module):
            y = own.answers(own.trained, layer)
            found, centred = asymmetry(y), asymmetry(y, centred=True)
            p, p_centred = (symmetry_test(y, centred=c, draws=499, seed=scene.seed) for c in (False, True))
            at_least.append((f"{name}: {layer}", found.at_least))
            tested += 1
            shifted += p <= 0.05
            body.append(
                (name, layer, f"{found.at_least:.2f}", f"{p:.3f}", f"{centred.at_least:.2f}", f"{p_centred:.3f}")
            )
    told = [value for _, value in at_least]
    near = sum(value <= SMALL for value in told)
    last = told[-len(scene.effort.widths) :]
    widths = {"TV at least": [(str(w), value) for w, value in zip(scene.effort.widths, last, strict=True)]}
    return Finding(
        holds_if(max(told) <= SMALL and not shifted),
        f"TV(Y, −Y) is at least {min(told):.2f} to {max(told):.2f} at {tested} layers of CNNs, a ResNet and a ViT (95 %"
        f" confidence); it may be below {SMALL} at {near} of them, and symmetry is refused at {shifted} (p ≤ 0.05)."
        f" First layers of {scene.effort.widths[0]} to {scene.effort.widths[-1]} filters: at least {min(last):.2f}.",
        grids=(TextTable(("network", "layer", "TV ≥", "p", "centred: TV ≥", "centred: p"), tuple(body)),),
        drawings=(Drawing("First layers of different width", "filters of conv1", "TV(Y, −Y) at least", widths),),
        data={"at_least": dict(at_least), "refused": shifted, "layers": tested},
    )


def _jacobians(scene: ClaimScene, params: Params, name: str, rows: Tensor) -> Tensor:
    x, _ = scene.test.fetch(rows, None)
    template = scene.world.template

    def answer(weight: Tensor, row: Tensor) -> Tensor:
        return template.bind({**params, name: weight})(row[None])[0]

    return jacobians(answer, params[name], x)


def distances(scene: ClaimScene) -> Finding:
    """Jacobians before and after the first layer changed, beside those of two halves of the images."""
    few = scene.images[:JACOBIANS]
    first = scene.first[0].name
    others = {
        how: perturb(scene.trained, scene.first, how, seed=0, fresh=scene.world.fresh) for how in ("negate", "reinit")
    }
    body, lines, data = [], dict[str, Any](), dict[str, Any]()
    for choice in scene.weights:
        name = choice.name
        before = _jacobians(scene, scene.trained, name, few)
        half = len(few) // 2
        noise = sliced_wasserstein(before[:half], before[half : 2 * half], seed=scene.seed)
        found, top = {}, {}
        singular = torch.linalg.svdvals(before)
        for how, params in others.items():
            after = _jacobians(scene, params, name, few)
            # At and before a negated layer the statement is about ±J; of both signs the nearer one counts.
            signs = (1, -1) if name == first else (1,)
            found[how] = min(sliced_wasserstein(s * before, after, seed=scene.seed) for s in signs)
            values = torch.linalg.svdvals(after)
            top[how] = float(values[0] / singular[0])
            lines[f"{name}, {how}"] = [
                (i + 1, float(a / b)) for i, (a, b) in enumerate(zip(values, singular, strict=True))
            ][:30]
        body.append(
            (
                name,
                f"{found['negate'] / noise:.1f}",
                f"{found['reinit'] / noise:.1f}",
                f"{top['negate']:.2f}",
                f"{top['reinit']:.2f}",
            )
        )
        data[name] = {"noise": noise, **found, "largest_singular": top}
    behind = [choice.name for choice in scene.weights if choice.name != first]
    times = {name: data[name]["negate"] / data[name]["noise"] for name in behind}
    nearer = sum(data[name]["negate"] < data[name]["reinit"] for name in behind)
    shown = {n: p for n, p in lines.items() if not n.startswith(first)}
    return Finding(
        holds_if(max(times.values()) <= 2),
        "Sliced Wasserstein distance of the Jacobians behind the negated layer, in multiples of that between two halves"
        " of the images: "
        + ", ".join(f"{name} {value:.1f}" for name, value in times.items())
        + f". Negation moves them less than a layer drawn anew at {nearer} of {len(behind)} layers. The bound"
        " says nothing where the total variation in it is near 1.",
        grids=(
            TextTable(
                ("layer", "negated", "drawn anew", "largest singular value, negated", "…, drawn anew"), tuple(body)
            ),
        ),
        drawings=(Drawing("Singular values of the Jacobians after / before", "number", "after / before", shown),),
        data=data,
    )


def chains(scene: ClaimScene) -> Finding:
    """Random linear networks, with and without a skip: the true slope beside the two limits."""
    broken = dict.fromkeys(("a chain", "with a skip", "with a skip, over paths", "weights", "weights, mended"), 0)
    cases = max(50, scene.effort.draws // 4)
    chain = {"a": ["b"], "b": ["c"], "c": []}
    skip = {"a": ["b", "c"], "b": ["c"], "c": []}
    generator = rng.generator(rng.key("claims", "chains", scene.seed))
    for _ in range(cases):
        a, b, c = torch.randn((3, 4, 4), generator=generator, dtype=torch.float64)
        b, a = b * float(torch.rand((), generator=generator)), a * 10 ** float(-2 * torch.rand((), generator=generator))
        norms = {n: float(torch.linalg.matrix_norm(w, 2)) for n, w in (("a", a), ("b", b), ("c", c))}
        plain, skipping = c @ b @ a, c @ (b + torch.eye(4, dtype=torch.float64)) @ a
        steep = float(torch.linalg.matrix_norm(plain, 2))
        skewed = float(torch.linalg.matrix_norm(skipping, 2))
        limit = 1 + SLACK
        broken["a chain"] += steep > lipschitz_limit(maximal_chains(chain), norms) * limit
        broken["with a skip"] += skewed > lipschitz_limit(maximal_chains(skip), norms) * limit
        broken["with a skip, over paths"] += skewed > lipschitz_limit(paths(skip), norms) * limit
        in_a = float(torch.linalg.matrix_norm(c @ b, 2))  # the slope in θ_a for inputs of length 1
        broken["weights"] += in_a > gradient_limit(maximal_chains(chain), norms, 1.0) * limit
        broken["weights, mended"] += in_a > gradient_limit(maximal_chains(chain), without(norms, "a"), 1.0) * limit
    mended = broken["with a skip, over paths"] == 0 and broken["weights, mended"] == 0 and broken["a chain"] == 0
    printed = broken["with a skip"] + broken["weights"]
    return Finding(
        UNDER if mended and printed else holds_if(mended),
        f"Of {cases} random networks violate it: " + ", ".join(f"{name} {n}" for name, n in broken.items()) + ".",
        "paths in the place of chains, and the layer's own norm left out" if printed else "",
        grids=(TextTable(("case", f"violations of {cases}"), tuple((name, str(n)) for name, n in broken.items())),),
        data={"cases": cases, **broken},
    )


CLAIMS = (
    Claim(
        "symmetry", "Theorem 3, its premise", "a layer's answers are nearly symmetric around 0: TV(Y, −Y) ≪ 1", premise
    ),
    Claim("jacobians", "Theorem 3", "so gradients behind a negated layer keep their distribution", distances),
    Claim("steepness", "Lemmas 5 and 6", "the constants A: how steep a network can be along its chains", chains),
)
