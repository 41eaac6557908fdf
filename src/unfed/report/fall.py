"""A model that forgot and lost much of what it knew says so, whatever else its table shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unfed.measures.metrics import reading
from unfed.report.rules import Row
from unfed.report.tables import name_of
from unfed.values import Value, is_measured

POINTS = 5.0
"""A fall of more points than this is worth a sentence."""
USEFUL = 2 / 3
"""A model that kept a smaller share than this of its accuracy is hardly of use."""


def fell(before: Mapping[str, Any], after: Mapping[str, Any], remedy: str) -> str:
    """The sentence "Test fell by 10.2 points, …", or nothing where it did not.

    Without test data the rows that stay speak.
    """
    for name in ("test", "retain"):
        first, last = reading(before, name), reading(after, name)
        if is_measured(first) and is_measured(last):
            lost = float(first) - float(last)
            if lost <= POINTS:
                return ""
            said = f"{name.capitalize()} fell by {lost:.1f} points, from {float(first):.1f} to {float(last):.1f}"
            ruined = float(last) < USEFUL * float(first)
            return f"{said}; {'this model is hardly of use:' if ruined else 'to win some of them back,'} try {remedy}."
    return ""


def falls(found: Sequence[Row]) -> list[str]:
    """One sentence for each method of a run whose model lost too much.

    What Retrain loses as well is the price of the request, and no method's fault.
    """
    told = []
    for row in found:
        before, retrain = (
            next((r for r in found if r.request == row.request and r.method == name), None)
            for name in ("before", "retrain")
        )
        if row.method in ("before", "retrain") or row.verdict or before is None:
            continue
        other = ", other layers or sealed" if row.method == "not" else " or other layers"
        sentence = fell(_values(before), _values(row), f"more unlearning.rounds, another unlearning.lr{other}")
        if sentence and (retrain is None or fell(_values(retrain), _values(row), "")):
            told.append(f"{name_of(row.method)}: {sentence}")
    return told


def _values(row: Row) -> dict[str, Value]:
    return {name: row.metrics[name].mean for name in ("test", "retain") if name in row.metrics}
