"""The paper's tables and figures: one TOML file each, with the runs behind it at two scales.

    digits    real handwriting, small networks: minutes per item on a laptop
    paper     the paper's data sets, networks and rounds: a GPU, hours to days

What the paper itself reports comes along (`published.csv`). Items whose runs differ in their methods alone share one
run (`shared`); runs that differ in who leaves take θ* over from each other (`studies/same_training.py`).
"""

from __future__ import annotations

import csv
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from unfed.config.config import Config
from unfed.errors import UnfedError, listed, nearest

SCALES = ("digits", "paper")
KINDS = ("table", "figure", "extra")


@dataclass(frozen=True)
class Spec:
    """A run behind an item.

    It says how the run is called there, its preset, what is changed in it, and numbers for the view.
    """

    name: str
    preset: str
    sets: tuple[str, ...] = ()
    numbers: tuple[tuple[str, Any], ...] = ()

    def config(self, more: Sequence[str] = ()) -> Config:
        return Config.preset(self.preset, [*self.sets, *more])


@dataclass(frozen=True)
class Item:
    """A table or a figure."""

    id: str
    title: str
    view: str
    runs: Mapping[str, tuple[Spec, ...]]
    """By scale."""
    published: str = ""
    """Which of the paper's own tables goes with it."""

    @property
    def heading(self) -> str:
        """The item as the paper calls it: `Table 1`."""
        return self.id.replace("-", " ").capitalize()


@cache
def items() -> dict[str, Item]:
    """All of them: tables, figures, then what the paper describes and does not print."""
    folder = resources.files("unfed.config.presets").joinpath("paper")
    names = sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))
    names.sort(key=lambda name: (KINDS.index(name.partition("-")[0]), int(name.rpartition("-")[2])))
    return {name: _item(name, folder.joinpath(f"{name}.toml").read_text(encoding="utf-8")) for name in names}


def chosen(names: Sequence[str]) -> list[Item]:
    """The items of these names, in the paper's order; without a name, all of them."""
    known = items()
    for name in names:
        if name not in known:
            raise UnfedError(f"The paper has no {name!r} with data; choose {listed(known)}.{nearest(name, known)}")
    return [item for name, item in known.items() if not names or name in names]


@cache
def published(table: str) -> tuple[Mapping[str, str], ...]:
    """The rows of one of the paper's tables, as it prints them."""
    name = "published-bounds.csv" if table == "T7" else "published.csv"
    text = resources.files("unfed.config.presets").joinpath("paper", name).read_text(encoding="utf-8")
    return tuple(row for row in csv.DictReader(text.splitlines()) if row["table"] == table)


def _frozen(numbers: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in numbers.items())


def _item(name: str, text: str) -> Item:
    raw = tomllib.loads(text)
    runs = {
        scale: tuple(
            Spec(run["name"], run["preset"], tuple(run.get("set", ())), _frozen(run.get("view", {})))
            for run in raw[scale]
        )
        for scale in SCALES
    }
    return Item(name, raw["title"], raw["view"], runs, raw.get("published", ""))


@dataclass(frozen=True)
class SharedRun:
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
    """Label → what its method is given, for all that are named."""
    run: dict[str, None] = field(default_factory=dict)
    """The labels that are run, in the order in which they came."""

    def takes(self, tables: Mapping[str, Any]) -> bool:
        return all(self.tables.get(label, table) == table for label, table in tables.items())

    def config(self) -> Config:
        tables = {label: table for label, table in self.tables.items() if table}
        return Config.parse({**self.base, "methods": {"run": list(self.run), **tables}})


def shared(scale: str, sets: Sequence[str] = ()) -> dict[Spec, SharedRun]:
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
    return {spec: SharedRun(_folder(group), group.config(), labels) for spec, (group, labels) in found.items()}


def _folder(group: _Group) -> str:
    said = json.dumps(group.config().to_json(), sort_keys=True)
    return f"{group.preset}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"
