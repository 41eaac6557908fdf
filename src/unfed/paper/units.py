"""Costs in the paper's own units, to be read beside its tables and nowhere else.

    bytes there = bytes / 1.048576            the size of a model in MiB was read as megabytes
    FLOPs there = FLOPs · 9                   the nine clients were counted twice
                  FLOPs · 9 · 1000            and ViT's billions of multiply-adds were read as trillions

All three were worked out from its columns (`docs/explanation/decisions.md`). Ratios between the methods of a table are
the same in both units. The table of the unlearning-time bound counts clients once, the centralised one has a unit that
we do not know.
"""

from __future__ import annotations

from typing import NamedTuple

from unfed.values import Value, is_measured

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
            "The paper's FLOPs of this table are in a unit of its own (1.354e9 for each trained image) and cannot be"
            " set beside ours; ratios between methods can."
        )
    if table == BOUND:
        return "The paper's FLOPs for ViT are 1,000 times too large: billions were read as trillions."
    told = (
        "The paper's costs are in units of its own, found from its columns: its bytes are true bytes / 1.048576, its"
        " FLOPs count the nine clients twice (× 9) and ViT's a further × 1,000. Ratios between methods are unaffected."
    )
    if table in ("T2", "T3", "T4"):
        told += " In this table its ViT FLOPs are another 7.13 times larger."
    if table in ("T3", "T4"):
        told += " It counts nine clients, though all ten take part."
    return told


def text(value: Value) -> str:
    """As the paper writes a cost: 1.35e10."""
    if not is_measured(value):
        return str(value)
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits}e{int(power)}"
