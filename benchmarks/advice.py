"""Is the advice good? Its picks beside the ablation's truth, on networks it was tuned on and on others.

    python benchmarks/ablations.py --networks cnn,mlp,resnet-tiny,vit-tiny,convnext,efficientnet-tiny,mixer,text \
        --hows negate,zero,reinit,orthogonal                             the truth
    python benchmarks/advice.py                                          every network that the truth is whole of

A pick is right if its gap to Retrain is within half a point of the best of all layers and perturbations. Beside the
score stand the rules alone (first layer, drawn anew) and the paper's choice (first layer, negated).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import ablations
from unfed import plugins
from unfed.analysis.advice import Prober, Sample, advise

RECORD = Path(__file__).parent / "records/2026-11-15-advice-digits-cpu.json"
HOWS = ("negate", "zero", "reinit", "orthogonal")
NEAR = 0.5
ROWS = 600


def truth(lines: list[dict[str, Any]], network: str) -> dict[tuple[str, str], float]:
    """The gap of each layer and perturbation; one that did not survive counts as far off."""
    own = [x for x in lines if x["network"] == network and x["part"] == "layers" and x["how"] in HOWS]
    return {(x["layer"], x["how"]): 100.0 if x["gap"] is None else float(x["gap"]) for x in own}


def tried(network: str, gaps: dict[tuple[str, str], float]) -> dict[str, Any]:
    """The advice for a network, and how far from the best it ends."""
    scene = ablations.Bench(network, 0).scene
    x, y = scene.sets.source.fetch(scene.sets.retain[:ROWS], None)
    phase = scene.world.training_settings().phase
    prober = Prober(scene.world.template, scene.trained, Sample(x, y, phase.optimiser.lr, phase.batch))
    module = scene.world.template.module
    found = advise(module, example=x[:2], prober=prober, fresh=scene.world.fresh)
    plain = advise(module, example=x[:2], fresh=scene.world.fresh)
    picks = {
        "score": (found.layer, found.perturbation),
        "rules": (plain.layer, plain.perturbation),
        "paper": (plain.layer, "negate"),
    }
    best = min(gaps, key=gaps.__getitem__)
    return {
        "network": network,
        "tuned_on": network in ablations.TUNED,
        "cells": len(gaps),
        "best": [*best, gaps[best]],
        "picks": {name: [*pick, gaps[pick]] for name, pick in picks.items()},
        "doubts": list(found.doubts),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join((*ablations.TUNED, *ablations.OTHERS)))
    told = parser.parse_args(arguments)
    lines = ablations.read(ablations.RECORD)
    kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []
    for network in told.networks.split(","):
        gaps = truth(lines, network)
        with plugins.allow_code():
            layers = len(ablations.Bench(network, 0).scene.weights)
            if len(gaps) < len(HOWS) * layers:
                print(f"{network}: {len(gaps)} of {len(HOWS) * layers} cells are known; run ablations.py first")
                continue
            found = tried(network, gaps)
        kept = [*(one for one in kept if one["network"] != network), found]
        RECORD.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(network, found["picks"], "best", found["best"], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
