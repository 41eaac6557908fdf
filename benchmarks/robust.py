"""What one wrong update does to a recovery, and what the robust rules do about it, on digits.

    PYTHONPATH=src python benchmarks/robust.py [--seeds 3] [--rounds 10] [--times -10] [--record FILE]

Ten clients train, client 0 leaves. In every round of NoT's recovery client 1 sends θ + s·(θ_1 − θ) in place of its
model θ_1: with s = −10 the opposite of what it learned, ten times over. It is finite and of the right shape, so no
check refuses it. Each row is a rule of `unlearning.robust`, with and without the attacker: test accuracy after the
last round, mean and standard deviation over the seeds. A line of the record is one recovery.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from unfed.data import Request
from unfed.engines import Batched, Block
from unfed.runs.config import Config
from unfed.runs.run import Run

RULES = ('{rule="mean"}', '{rule="norm", bound=1.0}', '{rule="median"}', '{rule="trimmed", trim=0.2}')
ATTACKER = "1"


@contextmanager
def attacked(times: float) -> Iterator[None]:
    """The attacker's updates, as long as this lasts."""
    honest = Batched.train

    def train(self: Batched, plan: Any, params: Any, *rest: Any) -> Iterator[Any]:
        for block in honest(self, plan, params, *rest):
            yield spoilt(block, params, times) if ATTACKER in getattr(block, "clients", ()) else block

    Batched.train = train  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Batched.train = honest  # type: ignore[method-assign]


def spoilt(block: Block, params: Any, times: float) -> Block:
    place, changed = block.clients.index(ATTACKER), {name: stack.clone() for name, stack in block.params.items()}
    for name, stack in changed.items():
        if stack.is_floating_point():
            stack[place] = params[name] + times * (stack[place] - params[name])
    return replace(block, params=changed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10, help="of recovery")
    parser.add_argument("--times", type=float, default=-10.0, help="the attacker's factor s")
    parser.add_argument("--record", type=Path, help="a file for one JSON line per recovery")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[tuple[str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as where:
        for number, (seed, rule, attack) in enumerate(product(range(given.seeds), RULES, (False, True))):
            changes = [f"seed={seed}", f"unlearning.robust={rule}", "methods.run=[]", 'engine.name="batched"']
            changes += ["gate.max_drop=100"]  # what an attacker leaves is to be measured, not refused
            config = Config.preset("demo", [*changes, "training.rounds=30", "evaluation.every=10"])
            plain = Config.parse(config.to_json() | {"request": []})
            test = recovered(plain, Path(where) / str(number), attack, given)
            found.setdefault((rule, attack), []).append(test)
            line = {"seed": seed, "robust": rule, "attacked": attack, "times": given.times, "rounds": given.rounds}
            told(given.record, line | {"test": test})
    print(f"{given.seeds} seeds, {given.rounds} rounds of recovery, factor {given.times:g}; test accuracy in %")
    print("| `unlearning.robust` | nobody attacks | client 1 attacks |\n|---|---|---|")
    for rule in RULES:
        cells = [found[rule, attack] for attack in (False, True)]
        shown = [f"{statistics.mean(c):.1f} ± {statistics.stdev(c) if len(c) > 1 else 0:.1f}" for c in cells]
        print(f"| `{rule}` | {shown[0]} | {shown[1]} |")


def told(record: Path | None, line: dict[str, Any]) -> None:
    """One recovery as it ends, so that a record that is cut off says what was done."""
    print(json.dumps(line), flush=True)
    if record is not None:
        with record.open("a") as file:
            file.write(json.dumps(line) + "\n")


def recovered(config: Config, folder: Path, attack: bool, given: argparse.Namespace) -> float:
    """The test accuracy after the recovery."""
    run = Run.create(config, folder)
    run.execute()
    with attacked(given.times) if attack else nullcontext():
        run.forget(Request("client-0", clients=("0",)), "not", given.rounds)
    lines = [x for x in run.lines() if x["request"] == "client-0" and x["round"] == given.rounds]
    return float(lines[-1]["test"])


if __name__ == "__main__":
    main()
