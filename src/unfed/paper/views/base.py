"""What an item becomes, and what its runs must have for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unfed.errors import UnfedError, listed
from unfed.methods.not_ import NoT
from unfed.paper.items import Item, Spec
from unfed.paper.pictures import Picture
from unfed.report.rules import Row
from unfed.runs.config import Config
from unfed.runs.run import Run

BY = "Data and model"
Runs = Mapping[Spec, Run]


@dataclass(frozen=True)
class Grid:
    """A table of plain cells."""

    header: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    title: str = ""


@dataclass(frozen=True)
class Section:
    """What an item became."""

    item: Item
    rows: tuple[Row, ...] = ()
    grids: tuple[Grid, ...] = ()
    pictures: tuple[Picture, ...] = ()
    published: Grid | None = None
    said: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """The numbers of the pictures and tables, for whoever wants to draw them again."""


def no_rehearsal(item: Item, runs: Runs) -> None:
    """Views that only read trajectories have nothing to try."""


@dataclass(frozen=True)
class View:
    """How an item is made of its runs, and which methods it needs in each of them."""

    make: Callable[[Item, Runs], Section]
    needs: tuple[str, ...] = ("retrain",)
    rehearse: Callable[[Item, Runs], None] = no_rehearsal
    """The same analysis in small on a fresh model, before hours are spent on a trained one."""

    def check(self, item: Item, name: str, config: Config) -> None:
        """Raise what would only be missed after hours."""
        missing = [method for method in self.needs if method not in config.methods.run]
        if missing:
            raise UnfedError(f"{item.heading} needs {listed(missing)} in {name}; add them to methods.run.")
        ours = config.method("not") if "not" in self.needs else NoT()
        if not isinstance(ours, NoT) or ours.perturbation != "negate" or ours.include_bias:
            raise UnfedError(f"{item.heading} compares plain negation; leave methods.not as it is, but for its layers.")
        if len(config.requests()) != 1:
            raise UnfedError(f"{item.heading} shows one request, and {name} has {len(config.requests())}; give it one.")


def first_seed(run: Run) -> int:
    """The repetition that analyses are made of."""
    return run.config.seed_list[0]
