"""The paper's own rows, and ours beside them.

There is one merged table per item, with a verdict in every cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from unfed.measures.metrics import COLUMNS, GAP_METRICS
from unfed.paper import verdict
from unfed.paper.items import Item, published
from unfed.paper.verdict import Costs
from unfed.paper.views.base import BY, TextTable
from unfed.report import tables
from unfed.report.rules import Row
from unfed.report.tables import name_of
from unfed.values import is_measured

PRINTED = {**{name: COLUMNS[name].title for name in GAP_METRICS}, "avg_gap": "Avg. gap"}
PRINTED |= {name: COLUMNS[name].title for name in ("comm_bytes", "flops")}
ALSO = {"ℓ1-sparse": "l1-sparse"}
Key = tuple[str, str]


def where(row: Mapping[str, str]) -> str:
    """A published row's run as items call it: `CIFAR-10, CNN`."""
    return f"{row['dataset']}, {row['model']}"


def alone(item: Item, rows: Sequence[Row]) -> TextTable | None:
    """What the paper prints, where nothing of ours can be set beside it."""
    ours = _by_name(rows)
    found = [row for row in _published(item) if (where(row), row["method"]) not in ours]
    body = tuple((where(r), r["method"], *(r[c] or tables.DASH for c in PRINTED)) for r in found)
    title = "What the paper reports" + ("" if len(found) == len(_published(item)) else ", where we have nothing yet")
    return TextTable((BY, "Method", *PRINTED.values()), body, title) if found else None


def _published(item: Item) -> Sequence[Mapping[str, str]]:
    return published(item.published) if item.published else ()


def _by_name(rows: Sequence[Row]) -> dict[Key, Row]:
    """Our rows as the paper calls them."""
    return {(row.request, ALSO.get(name_of(row.method), name_of(row.method))): row for row in rows}


def merged(item: Item, rows: Sequence[Row], partial: Set[str] = frozenset()) -> tuple[TextTable, dict[str, Any]] | None:
    """Paper | ours (difference) verdict, metric by metric; runs that are `partial` get no verdict.

    Costs are given as ratios to Retrain's and in the paper's units.
    """
    ours, every = _by_name(rows), _published(item)
    found = [row for row in every if (where(row), row["method"]) in ours]
    if not found:
        return None
    header = [
        BY,
        "Method",
        *(COLUMNS[m].title for m in GAP_METRICS),
        "Avg. gap",
        "Bytes / Retrain's",
        "FLOPs / Retrain's",
    ]
    in_units = item.published != verdict.CENTRAL
    header += ["Ours in its bytes", "Ours in its FLOPs"] if in_units else []
    body, data = [], dict[str, Any]()
    for there in found:
        key = (where(there), there["method"])
        cells, own = cells_of(there, every, ours), ours[key]
        if key[0] in partial:
            cells = {metric: replace(cell, word="partial") for metric, cell in cells.items()}
        ratios = [_ratios(there, every, own, ours, cost) for cost in ("comm_bytes", "flops")]
        named = key[1] + tables.fitted_mark(own.method)
        line = [key[0], named, *(str(cell) for cell in cells.values()), _gaps(there, own), *ratios]
        body.append((*line, *(_in_its_units(there, own) if in_units else ())))
        data[f"{key[0]}, {key[1]}"] = {
            metric: {
                "paper": cell.paper.mean,
                "ours": cell.ours.mean,
                "difference": cell.difference,
                "verdict": cell.word,
            }
            for metric, cell in cells.items()
        }
    return TextTable(tuple(header), tuple(body), "The paper | ours (difference) verdict"), data


def cells_of(
    there: Mapping[str, str], every: Sequence[Mapping[str, str]], ours: Mapping[Key, Row]
) -> dict[str, verdict.Comparison]:
    """The four metrics of one row, judged; `every` are the table's rows as the paper prints them."""
    run = where(there)
    goal = next((row for row in every if where(row) == run and row["method"] == "Retrain"), None)
    our_goal = ours.get((run, "Retrain"))
    cells = {}
    for metric in GAP_METRICS:
        both = (verdict.printed(there, metric), ours[run, there["method"]].metrics[metric])
        if there["method"] == "Retrain":
            cells[metric] = verdict.cell(*both)
        elif goal is None or our_goal is None:  # without a Retrain of ours it may still be the same direction
            near = verdict.cell(*both)
            cells[metric] = near if near.word == "within" else replace(near, word="not compared")
        else:
            cells[metric] = verdict.cell(*both, verdict.printed(goal, metric), our_goal.metrics[metric])
    return cells


def summary(data: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """How many cells agree, of each run by itself; a partial run, which was cut short, is not judged."""
    runs = dict.fromkeys(key.rpartition(", ")[0] for key in data)
    shown = []
    for run in runs:
        own = [row for key, row in data.items() if key.rpartition(", ")[0] == run]
        words = [cell["verdict"] for row in own for cell in row.values()]
        if "partial" in words:
            shown.append(f"{run}: partial, so no verdict.")
            continue
        counts = [f"{words.count(word)} {said}" for word, said in _SAID.items() if word in words]
        shown.append(f"{run}: of {len(words)} cells {', '.join(counts)}.")
    marks = ", ".join(f"{verdict.MARKS[w]} {verdict.MEANING[w]}" for w in verdict.MARKS)
    return f"{' '.join(shown)} {marks}. The paper's ± are multiplied by 1.22 (n − 1 instead of n)."


_SAID = {
    "within": "are within the seeds' spread",
    "direction": "agree in direction only",
    "disagrees": "disagree",
    "not compared": "cannot be compared",
}


def bounds(item: Item, ours: Mapping[Key, Costs]) -> TextTable | None:
    """The paper's own table 7; where we ran the same, our FLOPs beside its, in its units."""
    found = _published(item)
    if not found:
        return None
    body = []
    for row in found:
        own = ours.get((where(row), row["method"]))
        there = tables.DASH if own is None else verdict.text(_its(own, row["model"], again=1).flops)
        body.append((where(row), row["method"], row["t_unlearn"], row["est_flops"], there))
    return TextTable((BY, "Method", "t at least", "FLOPs", "Ours, its FLOPs"), tuple(body), "What the paper reports")


def _gaps(there: Mapping[str, str], own: Row) -> str:
    if own.is_reference:
        return "reference"
    mean = own.average_gap.mean
    text = tables.number_text(own.average_gap) if is_measured(mean) else str(mean)
    return f"{there['avg_gap'] or tables.DASH} | {text}"


def _ratios(
    there: Mapping[str, str], every: Sequence[Mapping[str, str]], own: Row, ours: Mapping[Key, Row], cost: str
) -> str:
    run = where(there)
    goal = next((row for row in every if where(row) == run and row["method"] == "Retrain"), None)
    printed = f"{float(there[cost]) / float(goal[cost]):.2f}" if goal and there[cost] and goal[cost] else tables.DASH
    reference = ours.get((run, "Retrain"))
    spent, whole = own.costs[cost].mean, None if reference is None else reference.costs[cost].mean
    if not (is_measured(spent) and is_measured(whole)) or not whole:
        return f"{printed} | {tables.DASH}"
    return f"{printed} | {spent / whole:.2f}"


def _in_its_units(there: Mapping[str, str], own: Row) -> list[str]:
    costs = _its(Costs(own.costs["comm_bytes"].mean, own.costs["flops"].mean), there["model"])
    printed = (there["comm_bytes"], there["flops"])
    return [f"{value or tables.DASH} | {verdict.text(cost)}" for value, cost in zip(printed, costs, strict=True)]


def _its(own: Costs, model: str, again: int = verdict.CLIENTS) -> Costs:
    return verdict.paper_units(*own, vit=model == "ViT", again=again)
