"""Variants of a sweep that differ in their methods alone share one run: one θ*, one Retrain.

    methods.not.layers = conv1, conv2        two variants, layers-conv1 and layers-conv2
        └► one run, `all`                    [methods.not-layers-conv1] and [methods.not-layers-conv2] that `use` not

Every method starts from the same θ* and draws from its request's seed, so its numbers do not depend on who else is
there. Each variant is then shown as if it had been alone: its own config, its own methods under their own names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unfed.config.config import Config
from unfed.runs.in_force import info_of
from unfed.runs.run import Run

METHODS = "methods."


@dataclass(frozen=True)
class Variant:
    """One line of a sweep: its name, and what it changes in the config."""

    name: str
    """Its folder, where it has one of its own."""
    group: str
    """The same without the seed: variants that differ in nothing else are repetitions of one another."""
    changes: tuple[str, ...]
    parts: tuple[tuple[str, str], ...] = ()
    """(key, how it reads in a name) of every change."""


@dataclass(frozen=True)
class Place:
    """Where a variant's results are made: the folder, the run's config, and which methods are its own."""

    folder: str
    config: Config
    own: Config
    labels: Mapping[str, str]
    """Label in that run → label in the variant's own config."""


@dataclass(frozen=True)
class Member:
    """A variant whose run is there."""

    variant: Variant
    place: Place
    run: Run

    def shown(self) -> tuple[dict[str, Any], list[Any]]:
        """What the run says of itself, and its lines, as if this variant had been alone."""
        labels, info = self.place.labels, info_of(self.run)
        jobs = [
            {**job, "method": labels.get(job["method"], job["method"])}
            for job in info.get("jobs") or []
            if job["request"] is None or job["method"] in labels
        ]
        lines = [
            {**line, "method": labels.get(line["method"], line["method"])}
            for line in self.run.lines()
            if line["method"] in labels or line["method"] not in self.run.config.methods.run
        ]
        return {**info, "config": self.place.own.to_json(), "jobs": jobs}, lines


def places(found: Sequence[Variant], configs: Sequence[Config], taken: Callable[[str], bool]) -> list[Place]:
    """The place of every variant.

    A family whose members have folders already, from before variants shared one, keeps them (`taken`).
    """
    families: dict[str, list[int]] = {}
    for n, config in enumerate(configs):
        families.setdefault(_all_but_methods(config), []).append(n)
    made: dict[int, Place] = {}
    used = {one.name for one in found}
    for family in families.values():
        parts = [text for key, text in found[family[0]].parts if not key.startswith(METHODS)]
        folder = "_".join(parts) or "all"
        if len(family) > 1 and folder not in used and not any(taken(found[n].name) for n in family):
            used.add(folder)
            made |= _one_run(folder, {n: (found[n], configs[n]) for n in family})
        else:
            for n in family:
                own = configs[n]
                made[n] = Place(found[n].name, own, own, {label: label for label in own.methods.run})
    return [made[n] for n in range(len(found))]


def _all_but_methods(config: Config) -> str:
    """What variants of one run have in common; Retrain, to which gaps are taken, included."""
    raw = config.to_json()
    methods = raw.pop("methods")
    return json.dumps([raw, methods.get("retrain"), "retrain" in methods["run"]], sort_keys=True)


def _one_run(folder: str, members: Mapping[int, tuple[Variant, Config]]) -> dict[int, Place]:
    tables: dict[str, Mapping[str, Any]] = {}
    labels: dict[int, dict[str, str]] = {n: {} for n in members}
    for n, (variant, config) in members.items():
        for label in config.methods.run:
            table = _table(config, label)
            alike = all(_table(other, label) == table for _, other in members.values() if label in other.methods.run)
            name = label if alike else _named(label, table, variant, tables)
            tables[name] = table if alike else {"use": label, **table}
            labels[n][name] = label
    first = next(iter(members.values()))[1].to_json()
    told = {name: table for name, table in tables.items() if table}
    whole = Config.parse({**first, "methods": {"run": list(tables), **told}})
    return {n: Place(folder, whole, config, labels[n]) for n, (_, config) in members.items()}


def _table(config: Config, label: str) -> Mapping[str, Any]:
    return dict((config.methods.model_extra or {}).get(label, {}))


def _named(label: str, table: Mapping[str, Any], variant: Variant, tables: Mapping[str, Mapping[str, Any]]) -> str:
    """A label that says what is different about it; one that is there for the same table is used again."""
    own = [text for key, text in variant.parts if key.startswith(f"{METHODS}{label}.")]
    base = re.sub(r"[^\w-]+", "-", "-".join([label, *(own or [variant.name])]))
    name, count = base, 1
    while name in tables and tables[name] != {"use": label, **table}:
        count += 1
        name = f"{base}-{count}"
    return name
