"""What a kind of model shows of the rows: all that the measures need, computed from its logits once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unfed.measures.population import signals
from unfed.measures.population.signals import Floats, Labels


class Models(Protocol):
    """A population: what many models of each kind say about the same rows."""

    def logits(self, kind: str, group: str) -> NDArray[Any]:
        """[models, rows, classes]."""
        ...

    def labels(self, group: str) -> NDArray[Any]:
        """[rows]."""
        ...


@dataclass(frozen=True)
class Seen:
    """One kind of model, [models, rows] each."""

    phi: Floats
    """Margins on the forgotten rows."""
    phi_test: Floats
    """Margins on the held-out rows."""
    forget: Floats
    """p of the own label, on the forgotten rows."""
    retain: Floats
    test: Floats
    entropies: tuple[Floats, Floats, Floats]
    """H on forgotten, retained and test rows."""
    read: Labels
    """The classes that are read in the forgotten rows."""
    right: Floats
    """Whether each held-out row is read right, 0 or 1."""
    accuracies: dict[str, Floats]
    """By group, the share that each model reads right."""

    def __len__(self) -> int:
        return len(self.phi)

    def __getitem__(self, models: slice) -> Seen:
        forget, retain, test = self.entropies
        return Seen(
            self.phi[models],
            self.phi_test[models],
            self.forget[models],
            self.retain[models],
            self.test[models],
            (forget[models], retain[models], test[models]),
            self.read[models],
            self.right[models],
            {group: right[models] for group, right in self.accuracies.items()},
        )


def seen(population: Models, kind: str) -> Seen:
    """What a kind of model shows."""
    groups = ("forget", "retain", "test")
    labels = {group: population.labels(group) for group in groups}
    logits = {group: population.logits(kind, group) for group in groups}
    p = {group: signals.probability(logits[group], labels[group]) for group in groups}
    return Seen(
        signals.margin(logits["forget"], labels["forget"]),
        signals.margin(logits["test"], labels["test"]),
        p["forget"],
        p["retain"],
        p["test"],
        (signals.entropy(logits["forget"]), signals.entropy(logits["retain"]), signals.entropy(logits["test"])),
        signals.predictions(logits["forget"]),
        (signals.predictions(logits["test"]) == labels["test"]).astype(np.float64),
        {group: np.asarray(signals.accuracy(logits[group], labels[group])) for group in groups},
    )
