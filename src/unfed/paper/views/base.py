"""What an item becomes, and what its runs must have for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from unfed.config.config import Config
from unfed.errors import UnfedError, listed
from unfed.methods.not_ import NoT
from unfed.paper.items import Item, Spec
from unfed.paper.pictures import PaperFigure
from unfed.report.rules import Row
from unfed.runs.run import Run
from unfed.values import as_json

T = TypeVar("T")
BY = "Data and model"
Runs = Mapping[Spec, Run]


@dataclass(frozen=True)
class TextTable:
    """A table of plain cells."""

    header: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    title: str = ""


@dataclass(frozen=True)
class Section:
    """What an item became."""

    item: Item
    rows: tuple[Row, ...] = ()
    grids: tuple[TextTable, ...] = ()
    pictures: tuple[PaperFigure, ...] = ()
    published: TextTable | None = None
    said: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """The numbers of the pictures and tables, for anyone who wants to draw them again."""


Numbers = Mapping[str, Any]
"""What an analysis found in one run, as JSON can hold it."""


@dataclass(frozen=True)
class Analysis:
    """An item that takes models: what is measured on them once can be kept, and shown without them."""

    measure: Callable[[Item, Spec, Run], Numbers]
    show: Callable[[Item, Mapping[str, Numbers]], Section]
    """From the numbers of each run, by the name it has in the item."""
    rehearse: Callable[[Item, Runs], None]
    """The same in small on a fresh model, before hours are spent on a trained one."""

    def make(self, item: Item, runs: Runs) -> Section:
        """Both, one after the other; what is shown is what would be kept."""
        return self.show(item, {spec.name: as_json(self.measure(item, spec, run)) for spec, run in runs.items()})


def by_name(read: Callable[[Run], T], show: Callable[[Item, Mapping[str, T]], Section]) -> ItemView:
    """A view of what is read from each run, by the name it has in the item."""
    return ItemView(lambda item, runs: show(item, {spec.name: read(run) for spec, run in runs.items()}))


@dataclass(frozen=True)
class ItemView:
    """How an item is made of its runs, and which methods it needs in each of them."""

    make: Callable[[Item, Runs], Section]
    analysis: Analysis | None = None
    """Where it takes models."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("retrain", "ft", "not") if self.analysis else ("retrain",)

    def rehearse(self, item: Item, runs: Runs) -> None:
        """Try the analysis in small; views that only read trajectories have nothing to try."""
        if self.analysis:
            self.analysis.rehearse(item, runs)

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
