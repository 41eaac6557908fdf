"""How sure are we? A population of models, judged kind by kind, beside Retrain against Retrain.

    first half    what attacks are fitted on, and what distances are taken to
    second half   who is judged

Attacks try to tell a method's judged models from the judged Retrains; KLoM, the challenge's score and agreement compare
them with the Retrains of the first half. The yardstick is Retrain treated as if it were a method: its second half
against its first for the distances, at the same N; four quarters for the attacks, which need four groups of models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed.errors import UnfedError
from unfed.measures.population import attacking, neurips, roc
from unfed.measures.population.agreement import agreement
from unfed.measures.population.attacking import ATTACKS, SIGNED, Care, Sides
from unfed.measures.population.interval import DRAWS, PERMUTATIONS, permuted
from unfed.measures.population.klom import klom
from unfed.measures.population.seen import Models, Seen, seen
from unfed.measures.population.signals import Floats
from unfed.measures.population.verdict import Apart, Attacked, share_of, verdict
from unfed.values import not_measured

RETRAIN, BEFORE = "retrain", "before"
FEWEST = 6
"""Models of each kind: three to fit on and three to judge."""
MOST_EXPOSED = 20
DISTANCES = {"klom": "KLoM", "agreement": "prediction agreement"}
BINS = 40


@dataclass(frozen=True)
class Effort:
    """How many draws stand behind intervals and p-values."""

    draws: int = DRAWS
    permutations: int = PERMUTATIONS
    seed: int = 0


@dataclass(frozen=True)
class Rows:
    """What is known of the forgotten rows: how each is called at its holder, and what groups they form."""

    names: Sequence[str]
    slices: Mapping[str, NDArray[np.bool_]]

    @staticmethod
    def by_label(labels: NDArray[Any], names: Sequence[str] | None = None) -> Rows:
        """One slice per label; without names, rows go by their number."""
        slices = {f"class {label}": labels == label for label in np.unique(labels)}
        return Rows(names or [str(i) for i in range(len(labels))], slices)


def judge(
    population: Models, methods: Mapping[str, str], rows: Rows | None = None, effort: Effort | None = None
) -> dict[str, Any]:
    """Everything that is measured of a population; `methods` maps a kind of model to its title."""
    effort = effort or Effort()
    labels = population.labels("forget")
    if len(labels) == 0:
        raise UnfedError(
            "The forget set is empty after selection, so there is nothing to judge; ask for rows that are there."
        )
    rows = rows or Rows.by_label(labels)
    retrained, before = seen(population, RETRAIN), seen(population, BEFORE)
    models = len(retrained)
    if models < FEWEST:
        raise UnfedError(
            f"A population of {models} is too small to be judged: attacks are fitted on one half and asked about the"
            f" other, which takes at least {FEWEST} models; `unfed population … --models {FEWEST}`, better 32."
        )
    judges = _Judge(retrained, before, rows, effort)
    found = {kind: judges.of(kind, seen(population, kind), title) for kind, title in methods.items() if kind != RETRAIN}
    return {
        "models": models,
        "half": models // 2,
        "rows": {"forget": len(labels), "test": retrained.test.shape[1], "retain": retrained.retain.shape[1]},
        "methods": found,
        "yardstick": judges.yardstick(),
        "distributions": _distributions({RETRAIN: retrained, BEFORE: before}, judges.margins),
    }


class _Judge:
    """What all methods of a population have in common."""

    def __init__(self, retrained: Seen, before: Seen, rows: Rows, effort: Effort) -> None:
        self._retrained, self._before, self._rows, self._effort = retrained, before, rows, effort
        self._half = len(retrained) // 2
        self._level = share_of(len(ATTACKS) + len(DISTANCES))
        self._care = Care(effort.draws, effort.permutations, effort.seed)
        self._reference, self._judged = retrained[: self._half], retrained[self._half : 2 * self._half]
        self._own = _distances(self._judged, self._reference)
        self._alone = attacking.alone(self._judged, effort.seed)
        self.margins: dict[str, Floats] = {}

    def of(self, kind: str, unlearned: Seen, title: str) -> dict[str, Any]:
        """One method: attacks, distances, exposure, verdict."""
        half = self._half
        judged, before = unlearned[half : 2 * half], self._before[half : 2 * half]
        sides = Sides(unlearned[:half], self._reference, judged, self._judged, before, before)
        self.margins[kind] = judged.phi
        scores = attacking.scores(sides)
        tests, attacks = self._attacked(scores, self._care)
        distances, apart = self._distances(judged)
        told = verdict(title, len(unlearned), tests, apart)
        return {
            "title": title,
            "attacks": attacks,
            "singles": attacking.singles(attacking.alone(judged, self._effort.seed), self._alone),
            "distances": distances,
            "accuracy": _accuracies(judged),
            "exposure": self._exposure(*scores["u-lira"]),
            "verdict": {"kind": told.kind, "sentence": told.sentence, "bound": told.bound},
        }

    def yardstick(self) -> dict[str, Any]:
        """Retrain as if it were a method."""
        quarter = len(self._retrained) // 4
        found: dict[str, Any] = {"distances": self._own, "accuracy": _accuracies(self._judged), "quarter": quarter}
        found["singles"] = {name: float(values.mean()) for name, values in self._alone.items()}
        if quarter < 2:
            needs = f"it takes four groups of two Retrains, 8 models, and there are {len(self._retrained)}"
            return found | {"attacks": dict.fromkeys(ATTACKS, not_measured(needs)), "exposure": []}
        groups = [self._retrained[i * quarter : (i + 1) * quarter] for i in range(4)]
        before = [self._before[i * quarter : (i + 1) * quarter] for i in (2, 3)]
        scores = attacking.scores(Sides(*groups, *before))
        attacks = self._attacked(scores, replace(self._care, groups=4))[1]
        return found | {"attacks": attacks, "exposure": self._exposure(*scores["u-lira"])[:1]}

    def _attacked(
        self, scores: Mapping[str, tuple[Floats, Floats]], care: Care
    ) -> tuple[list[Attacked], dict[str, Any]]:
        tests: list[Attacked] = []
        found: dict[str, Any] = {}
        for name, title in ATTACKS.items():
            if name not in scores:
                found[name] = attacking.ONE_ROW
                continue
            area, found[name] = attacking.attacked(scores[name], self._rows.slices, care)
            tests.append(Attacked(title, area, found[name]["auc"]["p"], self._level, signed=name in SIGNED))
        return tests, found

    def _distances(self, judged: Seen) -> tuple[dict[str, float], list[Apart]]:
        values = _distances(judged, self._reference)
        draws, seed = self._effort.permutations, self._effort.seed
        p = {
            "klom": permuted(judged.phi, self._reference.phi, lambda u, r: float(klom(u, r).mean()), seed, draws),
            "agreement": permuted(judged.read, self._reference.read, lambda u, r: -agreement(u, r), seed, draws),
        }
        apart = [
            Apart(title, values[n], self._own[n], p[n], self._level, nearer_is_larger=n == "agreement")
            for n, title in DISTANCES.items()
        ]
        return values | {f"{name}_p": value for name, value in p.items()}, apart

    def _exposure(self, unlearned: Floats, retrained: Floats) -> list[dict[str, Any]]:
        """The rows that give themselves away most, by name."""
        found = roc.exposure(unlearned, retrained)
        first = np.argsort(-found, kind="stable")[:MOST_EXPOSED]
        return [{"row": self._rows.names[i], "auc": float(found[i])} for i in first]


def _distances(judged: Seen, reference: Seen) -> dict[str, float]:
    """How far models stand from Retrains; as many of both."""
    f = neurips.quality(judged.phi, reference.phi)

    def means(group: str) -> tuple[float, float]:
        return float(judged.accuracies[group].mean()), float(reference.accuracies[group].mean())

    return {
        "klom": float(klom(judged.phi, reference.phi).mean()),
        "neurips": neurips.score(f, means("retain"), means("test")),
        "agreement": agreement(judged.read, reference.read),
    }


def _accuracies(side: Seen) -> dict[str, float]:
    return {group: 100.0 * float(right.mean()) for group, right in side.accuracies.items()}


def _distributions(kinds: Mapping[str, Seen], methods: Mapping[str, Floats]) -> dict[str, Any]:
    """How often each margin occurs on the forgotten rows; what lies beyond the edges is in the last bins."""
    margins = {kind: one.phi for kind, one in kinds.items()} | dict(methods)
    low = min(float(np.quantile(phi, 0.002)) for phi in margins.values())
    high = max(float(np.quantile(phi, 0.998)) for phi in margins.values())
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    shares = {
        kind: np.histogram(np.clip(phi, edges[0], edges[-1]), edges)[0] / phi.size for kind, phi in margins.items()
    }
    return {
        "edges": [round(float(edge), 4) for edge in edges],
        "shares": {kind: [round(float(share), 6) for share in found] for kind, found in shares.items()},
    }
