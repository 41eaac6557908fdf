"""Which runs the items share, so that θ* and Retrain are trained once.

Two runs that differ in nothing but their methods are one run with the methods of both: every method starts from the
same θ* and draws from its own request's seed, so its numbers do not depend on who else is there. An item runs and shows
only its own methods. Where two items call different methods by one name, each keeps its own run.

Runs that differ in who leaves are runs of their own, and take θ* over from each other (`runs/same_training.py`):

    θ* depends on    data, partition, poison, model, training, seeds, precision, evaluation, …
    a run besides    request, unlearning; its methods' hyperparameters
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unfed.config.config import Config
from unfed.paper.items import Spec, items


@dataclass(frozen=True)
class Shared:
    """The run behind a spec: its folder, its whole config, and the methods that this spec has of it."""

    folder: str
    config: Config
    methods: tuple[str, ...]


@dataclass
class _Group:
    """Specs that can be one run."""

    preset: str
    base: Mapping[str, Any]
    tables: dict[str, Any] = field(default_factory=dict)
    """Label → what its method is told, for all that are named."""
    run: dict[str, None] = field(default_factory=dict)
    """The labels that are run, in the order in which they came."""

    def takes(self, tables: Mapping[str, Any]) -> bool:
        return all(self.tables.get(label, table) == table for label, table in tables.items())

    def config(self) -> Config:
        tables = {label: table for label, table in self.tables.items() if table}
        return Config.parse({**self.base, "methods": {"run": list(self.run), **tables}})


def shared(scale: str, sets: Sequence[str] = ()) -> dict[Spec, Shared]:
    """The run of every spec of every item; a spec's place does not depend on which items are asked for."""
    groups: dict[str, list[_Group]] = {}
    found: dict[Spec, tuple[_Group, tuple[str, ...]]] = {}
    for spec in dict.fromkeys(spec for item in items().values() for spec in item.runs[scale]):
        raw = spec.config(sets).to_json()
        own = raw.pop("methods")
        labels = tuple(own.pop("run"))
        tables = {label: dict[str, Any]() for label in labels} | own
        alike = groups.setdefault(json.dumps([spec.preset, raw], sort_keys=True), [])
        group = next((one for one in alike if one.takes(tables)), None)
        if group is None:
            group = _Group(spec.preset, raw)
            alike.append(group)
        group.tables |= tables
        group.run |= dict.fromkeys(labels)
        found[spec] = (group, labels)
    return {spec: Shared(_folder(group), group.config(), labels) for spec, (group, labels) in found.items()}


def _folder(group: _Group) -> str:
    told = json.dumps(group.config().to_json(), sort_keys=True)
    return f"{group.preset}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"
