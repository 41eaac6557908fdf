"""Our value beside the paper's: the difference and what it means, and costs in the paper's units.

    spread      s = √(s_paper² + s_ours²), both with n − 1; where we have one seed, the paper's stands for ours
    within      |ours − paper| ≤ 2 s                          as close as seeds are among themselves
    direction   the method stands on the same side of Retrain in both; nearer than 2 s to it, it stands beside it
    disagrees   neither
    partial     our run had fewer rounds than the paper's: its level says nothing yet

The paper divides its spread by n, so it is multiplied by √(3/2) = 1.22 first. Its bytes are true bytes / 1.048576; its
FLOPs count nine clients twice (× 9), and ViT's a further × 1,000 (`docs/explanation/decisions.md`). Ratios between the
methods of a table are the same in both units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from unfed.measures.metrics import Spread
from unfed.values import Value, is_measured

Word = Literal["within", "direction", "disagrees", "partial", "not compared"]
SEEDS = 3
CORRECTION = math.sqrt(SEEDS / (SEEDS - 1))
WIDE = 2.0
MARKS = {"within": "=", "direction": "~", "disagrees": "≠"}
MEANING = {
    "within": "within the seeds' spread (two standard deviations of the difference)",
    "direction": "on the same side of Retrain in both, or beside it in both, but further than the spread, however far",
    "disagrees": "neither",
}


@dataclass(frozen=True)
class Comparison:
    """One metric of one method: what the paper prints, what we have, and how the two go together."""

    paper: Spread
    ours: Spread
    word: Word

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return (
            self.ours.mean - self.paper.mean if is_measured(self.ours.mean) and is_measured(self.paper.mean) else None
        )

    def __str__(self) -> str:
        there, here = _text(self.paper), _text(self.ours)
        if self.difference is None:
            return f"{there} | {here}"
        return f"{there} | {here} ({self.difference:+.2f}) {MARKS.get(self.word, '')}".rstrip()


def printed(row: Mapping[str, str], metric: str) -> Spread:
    """A metric as the paper prints it, its spread as a sample's (n − 1)."""
    if not row.get(metric):
        return Spread("not measured: the paper does not print it")
    std = row.get(f"{metric}_std")
    return Spread(float(row[metric]), float(std) * CORRECTION if std else None, SEEDS)


def cell(
    paper: Spread, ours: Spread, paper_retrain: Spread | None = None, our_retrain: Spread | None = None
) -> Comparison:
    """The verdict on one cell.

    Without Retrain's cells (in its own row) there is no direction to agree in.
    """
    if not (is_measured(paper.mean) and is_measured(ours.mean)):
        return Comparison(paper, ours, "not compared")
    if abs(ours.mean - paper.mean) <= WIDE * _together(paper, ours):
        return Comparison(paper, ours, "within")
    if paper_retrain is not None and our_retrain is not None:
        there, here = _side(paper, paper_retrain), _side(ours, our_retrain, paper, paper_retrain)
        if there is not None and there == here:
            return Comparison(paper, ours, "direction")
    return Comparison(paper, ours, "disagrees")


def _together(paper: Spread, ours: Spread) -> float:
    """The standard deviation of the difference; half a unit of the last printed digit at the least."""
    there = paper.std or 0.0
    here = there if ours.std is None else ours.std
    return max(math.hypot(there, here), 0.005)


def _side(value: Spread, retrain: Spread, *instead: Spread) -> int | None:
    """Above Retrain, below it, or beside it (0); where a single seed has no spread, the paper's is taken."""
    if not (is_measured(value.mean) and is_measured(retrain.mean)):
        return None
    own = [
        one.std if one.std is not None else other.std
        for one, other in zip((value, retrain), instead or (value, retrain), strict=True)
    ]
    spread = max(math.hypot(*(std or 0.0 for std in own)), 0.005)
    apart = value.mean - retrain.mean
    return 0 if abs(apart) <= WIDE * spread else int(math.copysign(1, apart))


def _text(spread: Spread) -> str:
    if not is_measured(spread.mean):
        return str(spread.mean)
    return f"{spread.mean:.2f}" + ("" if spread.std is None else f" ± {spread.std:.2f}")


MEBI = 2**20 / 10**6
CLIENTS = 9
"""The clients that stay, in every experiment of the paper in which one of ten leaves."""
TERA_FOR_GIGA = 1000
CENTRAL, BOUND = "T6", "T7"


class Costs(NamedTuple):
    """What a method sent and computed."""

    comm_bytes: Value
    flops: Value


def paper_units(comm_bytes: Value, flops: Value, *, vit: bool = False, again: int = CLIENTS) -> Costs:
    """Our costs as the paper would print them, for comparison only.

    `again` is how many times its FLOPs are counted: 9 in the tables of results, 1 in that of the bound. What was not
    measured stays what it is.
    """
    factor = again * (TERA_FOR_GIGA if vit else 1)
    return Costs(
        comm_bytes / MEBI if is_measured(comm_bytes) else comm_bytes,
        flops * factor if is_measured(flops) else flops,
    )


def note(table: str) -> str:
    """What must be known to read the costs of one of the paper's tables beside ours."""
    if table == CENTRAL:
        return (
            "The paper's FLOPs in this table have their own unit (1.354e9 for each trained image). Compare ratios"
            " between methods only."
        )
    if table == BOUND:
        return "The paper's FLOPs for ViT are 1,000 times too large: billions were read as trillions."
    said = (
        "The paper's costs have their own units, found from its columns. Its bytes are true bytes / 1.048576; its FLOPs"
        " count the nine clients twice (× 9), and ViT's a further × 1,000. Ratios between methods are unaffected."
    )
    if table in ("T2", "T3", "T4"):
        said += " In this table its ViT FLOPs are another 7.13 times larger."
    if table in ("T3", "T4"):
        said += " It counts nine clients, though all ten take part."
    return said


def text(value: Value) -> str:
    """As the paper writes a cost: 1.35e10."""
    if not is_measured(value):
        return str(value)
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits}e{int(power)}"
