"""Is the advice good? What it says of networks it was tuned on and of others, beside the ablations' truth.

    python benchmarks/ablations.py --seeds 0,1,2 --hows negate,zero,reinit,orthogonal \
        --networks cnn,mlp,resnet-tiny,vit-tiny,convnext,efficientnet-tiny,mixer,text       the truth
    python benchmarks/advice.py --seeds 0,1,2                                               the advice

The advice is asked for once per network and seed, of that seed's θ*. The truth of a layer and a perturbation is its gap
to Retrain, the mean over all seeds of the ablations: the smallest of some forty single gaps would be small by luck. A
pick is right within half a point of the best. Beside the score stand the rules alone (first layer, drawn anew) and the
paper's choice (first layer, negated).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import ablations
from ablation_bench import Bench
from unfed import plugins
from unfed.analysis.advice import Prober, Sample, advise

RECORD = Path(__file__).parent / "records/2026-11-16-advice-digits-cpu.jsonl"
HOWS = ("negate", "zero", "reinit", "orthogonal")
NEAR = 0.5
ROWS = 600
Pair = tuple[str, str]


def truth(lines: Iterable[Mapping[str, Any]], network: str) -> dict[Pair, float]:
    """The mean gap of each layer and perturbation; one that did not survive counts as far off."""
    found: dict[Pair, list[float]] = {}
    for line in lines:
        if line["network"] == network and line["part"] == "layers" and line["how"] in HOWS:
            found.setdefault((line["layer"], line["how"]), []).append(
                100.0 if line["gap"] is None else float(line["gap"])
            )
    return {pair: mean(gaps) for pair, gaps in found.items()}


def told(network: str, seed: int) -> dict[str, Any]:
    """The advice for a network's θ*, by the score and by the rules."""
    scene = Bench(network, seed).scene
    x, y = scene.sets.source.fetch(scene.sets.retain[:ROWS], None)
    phase = scene.world.training_settings().phase
    prober = Prober(scene.world.template, scene.trained, Sample(x, y, phase.optimiser.lr, phase.batch))
    module = scene.world.template.module
    found = advise(module, example=x[:2], prober=prober, fresh=scene.world.fresh)
    plain = advise(module, example=x[:2], fresh=scene.world.fresh)
    return {
        "network": network,
        "seed": seed,
        "tuned_on": network in ablations.TUNED,
        "picks": {
            "score": [found.layer, found.perturbation],
            "rules": [plain.layer, plain.perturbation],
            "paper": [plain.layer, "negate"],
        },
        "doubts": list(found.doubts),
        "ranked": [one.to_json() for one in found.ranked],
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join((*ablations.TUNED, *ablations.OTHERS)))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--record", type=Path, default=RECORD)
    asked = parser.parse_args(arguments)
    done = {(line["network"], line["seed"]) for line in ablations.read(asked.record)}
    for seed in map(int, asked.seeds.split(",")):
        for network in asked.networks.split(","):
            if (network, seed) in done:
                continue
            with plugins.allow_code():
                found = told(network, seed)
            with asked.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found, ensure_ascii=False) + "\n")
            print(network, seed, found["picks"], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
