"""How often does a verdict tell apart what is one kind of model, and how often what is not? It shares out 5 %.

    python benchmarks/verdict_level.py                      # some CPU minutes
    python benchmarks/verdict_level.py --models 16          # one number of models

φ of a row is the row's own level, plus a shift of the whole model (standard deviation 0.5), plus a heavy-tailed noise
(Student's t with 4 degrees of freedom, standard deviation around 1, another one for each row). Unlearned models are
draws of the same distribution as Retrains, or lie higher on the forgotten rows by an effect. Counted are the verdicts,
who speaks at its share of the level, and, without an effect, which 95 % intervals hold ½.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed.measures.population import Effort, attacking, judge

RECORDS = Path(__file__).parent / "records"
ROWS, SHIFT, LEVEL = 50, 0.5, 0.01
MODELS = (8, 10, 16, 32, 64)
EFFECTS = {0.0: 100, 0.7: 40, 1.5: 40}
"""How many populations of each."""


class Made:
    """A population in which unlearned models still know an effect's worth of the forgotten rows."""

    def __init__(self, seed: int, models: int, effect: float) -> None:
        self._seed, self._models = seed, models
        self._learnt = {"before": 3.0, "retrain": 0.0, "x": effect}
        draw = np.random.default_rng(seed)
        self._level, self._spread = draw.normal(1, 1.5, ROWS), np.exp(draw.normal(0, 0.4, ROWS)) / np.sqrt(2)

    def logits(self, kind: str, group: str) -> NDArray[np.float64]:
        of_kind = ["before", "retrain", "x"].index(kind)
        shift = np.random.default_rng([self._seed, of_kind]).normal(0, SHIFT, (self._models, 1))
        draw = np.random.default_rng([self._seed, of_kind, ["forget", "retain", "test"].index(group)])
        learnt = self._learnt[kind] if group == "forget" else 0.0
        phi = self._level + learnt + shift + self._spread * draw.standard_t(4, (self._models, ROWS))
        return np.stack([phi, np.zeros_like(phi)], axis=2)

    def labels(self, group: str) -> NDArray[np.int64]:
        return np.zeros(ROWS, dtype=np.int64)


def counted(models: int, effect: float, populations: int) -> dict[str, Any]:
    """Verdicts, tests and intervals over so many populations."""
    verdicts = dict.fromkeys(("told", "cannot", "undecided"), 0)
    spoke = dict.fromkeys((*attacking.ATTACKS, "klom", "agreement"), 0)
    held, areas = dict.fromkeys(attacking.ATTACKS, 0), []
    for seed in range(populations):
        made = Made(seed, models, effect)
        found: dict[str, Any] = judge(made, {"x": "X"}, effort=Effort(draws=200, permutations=200))["methods"]["x"]
        verdicts[found["verdict"]["kind"]] += 1
        for name, attack in found["attacks"].items():
            spoke[name] += attack["auc"]["p"] < LEVEL
            held[name] += attack["auc"]["low"] <= 0.5 <= attack["auc"]["high"]
        for name in ("klom", "agreement"):
            spoke[name] += found["distances"][f"{name}_p"] < LEVEL
        areas.append(found["attacks"]["u-lira"]["auc"]["value"])
    about: dict[str, Any] = {"models": models, "effect": effect, "populations": populations}
    about |= {"verdicts": verdicts, "spoke": spoke, "median U-LiRA AUC": round(float(np.median(areas)), 3)}
    return about if effect else about | {"held ½": held}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--models", type=int, nargs="*", default=MODELS)
    options = asked.parse_args()
    attacking.alone = lambda side, seed: {}  # classifiers are no part of a verdict
    now = datetime.now(UTC)
    about = {
        "date": f"{now:%Y-%m-%d}",
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, one used",
        "command": " ".join(["python", *sys.argv]),
    }
    with (RECORDS / f"{now:%Y-%m-%d}-verdict-level-cpu.jsonl").open("a", encoding="utf-8") as kept:
        for models in options.models:
            for effect, populations in EFFECTS.items():
                line = json.dumps({**about, **counted(models, effect, populations)}, ensure_ascii=False)
                print(line, flush=True)
                print(line, file=kept, flush=True)


if __name__ == "__main__":
    main()
