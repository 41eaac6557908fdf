"""Does the forgotten-check pass Retrain and fail θ*? Over seeds, with and without a backdoor, IID and Dirichlet.

    python benchmarks/forgotten.py --out DIR [--seeds 10] [--first 0] [--settings few,demo]     # goes on if cut off

    few     digits, 1,200 rows held out, 4 clients share 597: a model that overfits
    demo    digits, 360 held out, 10 clients share 1,437: the demo, which hardly overfits

Per case θ* is trained once; then clients leave (a third to a half of the rows), 40 % of all rows, and class 3. Each
request is judged twice by the gate's own code, once for θ* as "the model after" and once for Retrain.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch

from unfed.config.config import Config
from unfed.data import Request
from unfed.requests.gate import Gate
from unfed.runs.run import Run

SETTINGS = {
    "few": ["data.test_size=1200", "partition.clients=4"],
    "demo": [],
}
REQUESTS = {
    "client": Request("leaver", clients=("0", "1")),
    "samples": Request("leaver", fraction=0.4),
    "class": Request("leaver", classes=(3,)),
}


def config_of(setting: str, scheme: str, poison: bool, rounds: int = 60) -> Config:
    """The demo's federation, as a setting changes it."""
    sets = [*SETTINGS[setting], f'partition.scheme="{scheme}"', "partition.beta=0.5", "evaluation.every=1000"]
    sets += [f"training.rounds={rounds}", f"unlearning.retrain_rounds={rounds}", "request=[]", "gate.max_drop=100.0"]
    config = Config.preset("demo", sets)
    return config if poison else config.model_copy(update={"poison": None})


def case(setting: str, scheme: str, poison: bool, seed: int, folder: Path, rounds: int = 60) -> list[dict[str, Any]]:
    """Every kind of request in one federation: what the gate says of θ* and of Retrain."""
    config = config_of(setting, scheme, poison, rounds).model_copy(update={"seed": seed})
    trained, found = folder / "train", []
    Run.create(config, trained).execute()
    for kind, request in REQUESTS.items():
        shutil.copytree(trained, folder / kind)
        run = Run.open(folder / kind)
        star, world = run.current(seed), run.world(seed)
        run.forget(request, "retrain", until=rounds)
        evaluator = world.evaluator([request])
        gate = Gate(request, world.dataset.train.classes, 0, config.gate)
        before, after = evaluator.evidence(star), evaluator.evidence(run.current(seed))
        for model, evidence in (("θ*", before), ("Retrain", after)):
            for name, judgement in gate.judged(before, evidence).items():
                line = {"setting": setting, "scheme": scheme, "poison": poison, "seed": seed, "kind": kind}
                found.append(line | {"model": model, "check": name} | asdict(judgement))
    return found


def study(out: Path, seeds: range, settings: list[str]) -> list[dict[str, Any]]:
    """All cases, one file each; what is there is not done again."""
    lines = []
    for seed, setting, scheme, poison in product(seeds, settings, ("iid", "dirichlet"), (False, True)):
        file = out / f"{setting}-{scheme}-{'poison' if poison else 'clean'}-{seed}.json"
        if not file.exists():
            with tempfile.TemporaryDirectory() as folder:
                found = case(setting, scheme, poison, seed, Path(folder))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found, ensure_ascii=False, indent=1))
            print(file.name, flush=True)
        lines += json.loads(file.read_text())
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    """How often each verdict was given, θ* beside Retrain."""
    keys = ("setting", "scheme", "poison", "kind", "check")
    groups: dict[tuple[Any, ...], dict[str, Counter[str]]] = {}
    for line in lines:
        group = groups.setdefault(tuple(line[key] for key in keys), {"θ*": Counter(), "Retrain": Counter()})
        group[line["model"]][line["verdict"]] += 1
    head = "| setting | clients' data | backdoor | request | check | θ*: failed / passed / not measured | Retrain |"
    rows = [head, "|---|---|---|---|---|---|---|"]
    for (setting, scheme, poison, kind, check), models in sorted(groups.items(), key=str):
        counts = [" / ".join(str(c[v]) for v in ("failed", "passed", "not measured")) for c in models.values()]
        rows.append(f"| {setting} | {scheme} | {'yes' if poison else 'no'} | {kind} | {check} | {' | '.join(counts)} |")
    return "\n".join(rows)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--out", type=Path, required=True)
    given.add_argument("--seeds", type=int, default=10, help="how many")
    given.add_argument("--first", type=int, default=0, help="the first of them")
    given.add_argument("--settings", default="few,demo")
    options = given.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first, options.first + options.seeds)
    print(table(study(options.out, seeds, options.settings.split(","))))


if __name__ == "__main__":
    main()
