"""How often does a verdict call "remembers" or "unfinished" what is not, and what is? Its tests share out 5 %.

    python benchmarks/verdict_level.py                      # some CPU minutes
    python benchmarks/verdict_level.py --models 16          # one number of models
    python benchmarks/verdict_level.py --models 16 --cases leaky both --populations 20

φ of a row is the row's own level, plus a shift of the whole model (standard deviation 0.5), plus a heavy-tailed noise
(Student's t with 4 degrees of freedom, standard deviation around 1, another one for each row). Models that were stopped
early have a fraction of every row's level. Cases of unlearned models:

    alike       draws of the same distribution as Retrains
    early       Retrains stopped early
    mislabelled the same, and half of the forgotten rows have wrong labels: there early models are surer, not less sure
    leaky       as Retrains, and an effect higher on the forgotten rows
    both        stopped early, and an effect higher

Each is judged with Retrain's earlier rounds, or without (`--last-only`). Counted are the answers, which tests fall
below their share of the level, and which 95 % intervals hold none.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed.measures.population import Resampling, attacks, judge
from unfed.measures.population.judge import LEVEL

RECORDS = Path(__file__).parent / "records"
ROWS, SHIFT, EARLY = 50, 0.5, 0.4
MODELS = (8, 10, 16, 32, 64)
GROUPS = ("forget", "retain", "test")
KEPT = range(1, 10)
KINDS = ("before", "retrain", "x", *(f"retrain@{number}" for number in KEPT))
CASES = {"alike": 100, "early": 100, "mislabelled": 100, "leaky": 40, "both": 40}
"""How many populations of each."""


class Made:
    """A population of one of the cases."""

    def __init__(self, seed: int, models: int, case: str, effect: float = 0.7) -> None:
        self._seed, self._models = seed, models
        self._learnt = {"before": 3.0, "x": effect if case in ("leaky", "both") else 0.0}
        stopped = 1.0 if case in ("alike", "leaky") else EARLY
        self._grown = {"x": stopped} | {f"retrain@{number}": number / 10 for number in KEPT}
        draw = np.random.default_rng(seed)
        self._level = {group: draw.normal(1, 1.5, ROWS) for group in GROUPS}
        self._spread = {group: np.exp(draw.normal(0, 0.4, ROWS)) / np.sqrt(2) for group in GROUPS}
        if case == "mislabelled":
            self._level["forget"][::2] -= 4

    def logits(self, kind: str, group: str) -> NDArray[np.float64]:
        of_kind = KINDS.index(kind)
        shift = np.random.default_rng([self._seed, of_kind]).normal(0, SHIFT, (self._models, 1))
        draw = np.random.default_rng([self._seed, of_kind, GROUPS.index(group)])
        learnt = self._learnt.get(kind, 0.0) if group == "forget" else 0.0
        noise = self._spread[group] * draw.standard_t(4, (self._models, ROWS))
        phi = self._grown.get(kind, 1.0) * self._level[group] + learnt + shift + noise
        return np.stack([phi, np.zeros_like(phi)], axis=2)

    def labels(self, group: str) -> NDArray[np.int64]:
        return np.zeros(ROWS, dtype=np.int64)


def counted(models: int, case: str, populations: int, kept: bool) -> dict[str, Any]:
    """Answers, tests and intervals over so many populations."""
    answers: dict[str, dict[str, int]] = {"remembers": {}, "unfinished": {}}
    spoke: dict[str, int] = {}
    held: dict[str, int] = {}
    for seed in range(populations):
        effort = Resampling(draws=200, permutations=200, seed=seed)
        whole = judge(Made(seed, models, case), {"x": "X"}, effort=effort, rounds=KEPT if kept else ())
        found: dict[str, Any] = whole["methods"]["x"]
        for question, given in answers.items():
            kind = found["verdict"][question]["kind"]
            given[kind] = given.get(kind, 0) + 1
        for name, one in {**found["standing"], **found["held_out"]}.items():
            middle = 0.5 if name == "u-lira" else 0.0
            spoke[name] = spoke.get(name, 0) + (one["p"] < LEVEL)
            held[name] = held.get(name, 0) + (one["low"] <= middle <= one["high"])
    about = {"models": models, "case": case, "kept": kept, "populations": populations}
    return {**about, "answers": answers, "below their level": spoke, "hold none": held}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--models", type=int, nargs="*", default=MODELS)
    asked.add_argument("--cases", nargs="*", default=list(CASES))
    asked.add_argument("--populations", type=int, help="of each case")
    asked.add_argument("--last-only", action="store_true", help="without Retrain's earlier rounds")
    options = asked.parse_args()
    attacks.alone = lambda side, seed: {}  # classifiers, attacks and distances are no part of a verdict
    attacks.attacked = lambda pair, slices, effort, groups=2: {}
    vars(import_module("unfed.measures.population.judge"))["permuted"] = lambda *rest: 1.0
    now = datetime.now(UTC)
    about = {
        "date": f"{now:%Y-%m-%d}",
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, one used",
        "command": " ".join(["python", *sys.argv]),
    }
    with (RECORDS / f"{now:%Y-%m-%d}-verdict-level-cpu.jsonl").open("a", encoding="utf-8") as record:
        for models in options.models:
            for case in options.cases:
                found = counted(models, case, options.populations or CASES[case], kept=not options.last_only)
                line = json.dumps({**about, **found})
                print(line, flush=True)
                print(line, file=record, flush=True)


if __name__ == "__main__":
    main()
