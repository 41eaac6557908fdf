"""How often the models of a population are right: mean and spread over training seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed.population.store import Population


@dataclass(frozen=True)
class Accuracy:
    """In percent, by group of rows; `std` divides by N − 1."""

    kind: str
    models: int
    mean: Mapping[str, float]
    std: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def correct(population: Population, kind: str, group: str) -> NDArray[np.float64]:
    """The accuracy of every model of a kind on a group, in percent."""
    right = population.logits(kind, group).argmax(-1) == population.labels(group)
    found: NDArray[np.float64] = 100.0 * right.mean(1)
    return found


def accuracies(population: Population) -> list[Accuracy]:
    """One row for every kind of which all models are there."""
    about, found = population.about, []
    for kind in about.kinds:
        if len(population.done(kind)) == about.models:
            each = {group: correct(population, kind, group) for group in about.groups}
            mean = {group: float(values.mean()) for group, values in each.items()}
            std = {group: float(values.std(ddof=1)) if len(values) > 1 else 0.0 for group, values in each.items()}
            found.append(Accuracy(kind, about.models, mean, std))
    return found
