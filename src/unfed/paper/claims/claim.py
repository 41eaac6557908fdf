"""What a claim is, and what trying it gives: plain values that a file can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unfed.paper.claims.scene import ClaimScene
from unfed.paper.views.base import TextTable
from unfed.values import as_json

HOLDS, UNDER, FAILS = "holds", "holds under", "fails"
Points = Sequence[tuple[float | str, float]]


@dataclass(frozen=True)
class Drawing:
    """A figure as numbers: curves, or bars in groups."""

    title: str
    across: str
    up: str
    lines: Mapping[str, Points]
    bars: bool = False


@dataclass(frozen=True)
class Finding:
    """What was seen, and what follows for the claim."""

    verdict: str
    """`holds`, `holds under` or `fails`."""
    seen: str
    """The numbers in a sentence."""
    under: str = ""
    """The condition, where it holds under one."""
    grids: tuple[TextTable, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """The verdict with its condition."""
        return f"{self.verdict} {self.under}" if self.verdict == UNDER else self.verdict

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = as_json(
            {
                **vars(self),
                "grids": [vars(grid) for grid in self.grids],
                "drawings": [vars(drawing) for drawing in self.drawings],
            }
        )
        return plain

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Finding:
        grids = tuple(TextTable(tuple(g["header"]), tuple(map(tuple, g["body"]))) for g in raw["grids"])
        drawings = tuple(
            Drawing(**{**d, "lines": {n: [_point(p) for p in points] for n, points in d["lines"].items()}})
            for d in raw["drawings"]
        )
        return Finding(raw["verdict"], raw["seen"], raw["under"], grids, drawings, raw["data"])


@dataclass(frozen=True)
class Claim:
    """One thing that the paper says, and how it is tried."""

    id: str
    place: str
    """Where the paper says it: `Theorem 1`."""
    says: str
    attempt: Callable[[ClaimScene], Finding]


def holds_if(right: bool, under: str = "") -> str:
    """The verdict on a claim that was seen right or wrong."""
    if not right:
        return FAILS
    return UNDER if under else HOLDS


def _point(raw: Sequence[Any]) -> tuple[float | str, float]:
    return raw[0], math.nan if isinstance(raw[1], str) else float(raw[1])
