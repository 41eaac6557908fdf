"""How often does a verdict tell apart what is one kind of model? At most in 5 % of populations, it says.

    python benchmarks/verdict_level.py --half 8 --populations 100        # half a minute on a quiet core

Unlearned models and Retrains are draws of one distribution: φ of a row is the row's own level, plus a shift of the
whole model (standard deviation 0.5), plus noise (1). Counted is who speaks at its share of the level, and which 95 %
intervals hold ½.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed.measures.population import Effort, attacking, judge

ROWS, SHIFT, LEVEL = 50, 0.5, 0.01


class OneKind:
    """A population in which nothing was learnt from the forgotten rows but by the models before."""

    def __init__(self, seed: int, models: int) -> None:
        self._seed, self._models = seed, models
        self._rows = np.random.default_rng(seed).normal(1, 1.5, ROWS)

    def logits(self, kind: str, group: str) -> NDArray[np.float64]:
        place = [["before", "retrain", "x"].index(kind), ["forget", "retain", "test"].index(group)]
        draw = np.random.default_rng([self._seed, *place])
        learnt = 3 if kind == "before" and group == "forget" else 0
        shift, noise = draw.normal(0, SHIFT, (self._models, 1)), draw.normal(0, 1, (self._models, ROWS))
        phi = self._rows + learnt + shift + noise
        return np.stack([phi, np.zeros_like(phi)], axis=2)

    def labels(self, group: str) -> NDArray[np.int64]:
        return np.zeros(ROWS, dtype=np.int64)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--half", type=int, default=8)
    asked.add_argument("--populations", type=int, default=100)
    options = asked.parse_args()
    attacking.alone = lambda side, seed: {}  # type: ignore[assignment]  # classifiers are no part of a verdict
    spoke: dict[str, int] = {}
    held: dict[str, int] = {}
    for seed in range(options.populations):
        one = OneKind(seed, 2 * options.half)
        found: dict[str, Any] = judge(one, {"x": "X"}, effort=Effort(draws=200, permutations=200))["methods"]["x"]
        for name, attack in found["attacks"].items():
            spoke[name] = spoke.get(name, 0) + (attack["auc"]["p"] < LEVEL)
            held[name] = held.get(name, 0) + (attack["auc"]["low"] <= 0.5 <= attack["auc"]["high"])
        for name in ("klom", "agreement"):
            spoke[name] = spoke.get(name, 0) + (found["distances"][f"{name}_p"] < LEVEL)
        spoke["told"] = spoke.get("told", 0) + (found["verdict"]["kind"] == "told")
    print(json.dumps({"half": options.half, "populations": options.populations, "spoke": spoke, "held ½": held}))


if __name__ == "__main__":
    main()
