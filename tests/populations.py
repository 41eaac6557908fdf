"""A small population whose logits are drawn, for tests of what is computed from one."""

from __future__ import annotations

from pathlib import Path

import torch

from unfed import rng
from unfed.measures.population import store
from unfed.measures.population.store import About, Population

ROWS = {"forget": 6, "retain": 5, "test": 9}


def written(folder: Path, models: int = 4, config: str = "digest", classes: int = 4) -> Population:
    """Kinds `before`, `retrain`, `not`; those before say the labels of `forget` with more confidence."""
    kinds = (store.BEFORE, store.RETRAIN, "not")
    labels = {group: torch.arange(rows) % classes for group, rows in ROWS.items()}
    about = About("drawn", config, "r1", tuple(range(models)), kinds, ROWS, classes, {"engine": 1}, {}, "")
    population = store.create(folder, about, {f"labels/{group}": own for group, own in labels.items()})
    for kind in kinds:
        for seed in about.seeds:
            draw = rng.generator(rng.key(seed, "logits", kind))
            said = {group: torch.randn(rows, classes, generator=draw) for group, rows in ROWS.items()}
            for group in ("forget", "retain") if kind == store.BEFORE else ("retain",):
                said[group] += 3.0 * torch.nn.functional.one_hot(labels[group], classes)
            store.put(population, kind, seed, said)
    return population
