"""What the paper shows: one file per table or figure, with the runs behind it at two scales.

    digits    real handwriting, small networks: minutes per item on a laptop; everything is shown at work
    paper     the paper's data sets, networks and rounds: a GPU, hours to days

An item names runs by preset and changes; items whose runs differ in their methods alone share one (`sharing.py`). What
the paper itself reports comes along (`published.csv`), to be read beside ours.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
