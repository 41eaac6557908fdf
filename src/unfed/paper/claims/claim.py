"""What a claim is, and what trying it gives: plain values that a file can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from unfed.paper.claims.scene import ClaimScene
from unfed.paper.views.base import TextTable
from unfed.values import as_json

HOLDS, UNDER, FAILS = "holds", "holds under", "fails"
Height = Annotated[float, BeforeValidator(lambda value: math.nan if isinstance(value, str) else value)]
"""A number that could not be had is kept as a text."""
Points = Sequence[tuple[float | str, Height]]


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

    verdict: Annotated[str, Field(pattern="^(holds|holds under|fails)$")]
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
