"""Every picture of a run by its name, and its results as plain numbers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from unfed.errors import UnfedError, listed, nearest
from unfed.measures.metrics import GAP_METRICS, Spread
from unfed.measures.trajectory import Line
from unfed.report import figures, html, wording
from unfed.report.picture import Picture, safe
from unfed.report.rules import COSTS, METRICS, Row, named, rows, trajectories
from unfed.values import is_measured

CURVES = tuple(figures.CURVES)
COST_BARS = tuple(f"cost-{cost}" for cost in figures.COST_BARS)
TRADES = ("gap-by-comm_bytes", "gap-by-flops")
NAMES = (*CURVES, *COST_BARS, *TRADES, "training")
"""What can be drawn of a run: curves by round, bars of costs, gap against cost, and the training before it."""


def pictures(run: Mapping[str, Any], lines: Sequence[Line], rule: str = "last") -> dict[str, Picture]:
    """All pictures that have something to show, by name.

    Where there are several requests, a name begins with the request's id.
    """
    named(rule)
    within = float(run.get("recovered_within", 0.5))
    chosen = rows(lines, rule, recovered_within=within)
    grouped, words = trajectories(lines), wording.of(run)
    made: dict[str, Picture | None] = {}
    for request, methods in grouped.items():
        of = f"{request}-" if len(grouped) > 1 else ""
        own = [row for row in chosen if row.request == request]
        made |= {
            f"{of}{metric}": figures.curves(methods, metric, name=f"{of}{metric}", unit=words.unit) for metric in CURVES
        }
        for cost in figures.COST_BARS:
            made[f"{of}cost-{cost}"] = figures.cost_bars(own, cost, name=f"{of}cost-{cost}", words=words)
        for name in TRADES:
            made[of + name] = figures.gap_by_cost(own, name.removeprefix("gap-by-"), name=of + name, words=words)
    made["training"] = html.training_picture(lines, words.unit)
    return {name: one for name, one in made.items() if one is not None}


def one(found: Mapping[str, Picture], name: str) -> Picture:
    """The picture of that name; what there is instead is said."""
    if name not in found:
        raise UnfedError(
            f"This run has no picture {name!r}; it has {listed(found) or 'none yet'}.{nearest(name, found)}"
        )
    return found[name]


def records(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of a table as plain values: a number, or why there is none."""
    return [_record(row) for row in found]


def _record(row: Row) -> dict[str, Any]:
    made: dict[str, Any] = {"request": row.request, "method": row.method, "rule": row.rule}
    made |= {"seeds": list(row.seeds), "rounds": list(row.rounds), "finished": row.finished, "verdict": row.verdict}
    for name in METRICS:
        made |= _numbers(name, row.metrics[name])
        if name in row.gaps:
            made |= _numbers(f"{name}_gap", row.gaps[name])
        if name in GAP_METRICS:
            made[f"{name}_error"] = row.errors.get(name)
    made |= _numbers("average_gap", row.average_gap)
    made["average_gap_seed_by_seed"] = None if row.seed_gap is None else row.seed_gap.mean
    for cost in COSTS:
        made |= _numbers(cost, row.costs[cost])
    return made


def _numbers(name: str, value: Spread) -> dict[str, Any]:
    return {name: value.mean, f"{name}_std": value.std}


def csv_text(table: Sequence[Mapping[str, Any]]) -> str:
    """Plain values as CSV, every key a column.

    A list is written with spaces, a table as JSON, nothing as an empty cell.
    """
    columns = list(dict.fromkeys(key for line in table for key in line))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for line in table:
        writer.writerow(safe([_cell(line.get(key)) for key in columns]))
    return buffer.getvalue()


def _cell(value: Any) -> object:
    if isinstance(value, list | tuple):
        return " ".join(str(part) for part in value)
    if value is None or is_measured(value) or isinstance(value, str | bool | int):
        return "" if value is None else value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
