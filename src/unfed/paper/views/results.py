"""Tables 1 to 6 and 8, figures 1, 4, 5 and 6: what trajectories say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from unfed.errors import UnfedError
from unfed.measures.metrics import GAP_METRICS, average_gap
from unfed.measures.trajectory import Line
from unfed.paper import pictures, verdict
from unfed.paper.items import Item
from unfed.paper.pictures import Curve
from unfed.paper.views import printed
from unfed.paper.views.base import BY, Section, TextTable
from unfed.report import tables
from unfed.report.rules import RULES, Row, rows, trajectories
from unfed.values import is_measured

ByRule = Mapping[str, Sequence[Row]]
"""The rows of one run under each reporting rule."""


def under_rules(lines: Sequence[Line], within: float) -> ByRule:
    """What each rule reads from a trajectory."""
    return {rule: rows(lines, rule, recovered_within=within) for rule in RULES}


def table(item: Item, found: Mapping[str, ByRule], partial: Set[str] = frozenset()) -> Section:
    """A table of results from the rows of its runs, by their names; `partial` ones were cut short."""
    every = tuple(replace(row, request=name) for name, own in found.items() for row in own["best-gap"])
    data: dict[str, Any] = {
        name: {tables.name_of(row.method): _numbers(row) for row in own["best-gap"]} for name, own in found.items()
    }
    beside, said, grids = printed.merged(item, every, partial), list[str](), list[TextTable]()
    if beside is not None:
        grids.append(beside[0])
        data["verdicts"] = beside[1]
        said.append(printed.summary(beside[1]))
    if found:
        grids.append(rules_grid(found))
        said += [sentence for name, own in found.items() if (sentence := lead(name, own))]
    if item.published:
        said.append(verdict.note(item.published))
    return Section(item, every, tuple(grids), published=printed.alone(item, every), said=tuple(said), data=data)


def rules_grid(found: Mapping[str, ByRule]) -> TextTable:
    """The average gap under each rule.

    The paper's looks at Retrain to choose the round, the others do not. A gap between means lets seeds that err in
    different ways cancel; the last column takes each seed's own gap first.
    """
    body = []
    for name, own in found.items():
        by_method = {rule: {row.method: row for row in rows} for rule, rows in own.items()}
        for method, row in by_method["best-gap"].items():
            if not (row.is_reference or row.is_before):
                cells = (by_method[rule][method] for rule in RULES)
                alone = tables.DASH if row.seed_gap is None else tables.number_text(row.seed_gap)
                body.append((name, tables.row_name(method), *(_gap_text(cell) for cell in cells), alone))
    header = (BY, "Method", *RULES, "best-gap, seed by seed")
    return TextTable(header, tuple(body), "Average gap to Retrain by the rule that chooses the round")


def lead(name: str, own: ByRule) -> str:
    """How far NoT is ahead of the next method under each rule.

    It shows how much of a lead is the choice of the round.
    """
    noted = []
    for rule, found in own.items():
        gaps = {row.method: row.average_gap.mean for row in found if not (row.is_reference or row.is_before)}
        if "not" not in gaps:
            return ""
        ours = gaps.pop("not")
        others = {method: value for method, value in gaps.items() if is_measured(value)}
        if not is_measured(ours) or not others:
            noted.append(f"{rule} not measured")
            continue
        best = min(others, key=lambda method: others[method])
        noted.append(f"{rule} {others[best] - ours:+.2f} ({tables.name_of(best)})")
    return f"{name}: NoT's lead over the best other method in points of average gap: {', '.join(noted)}."


def _gap_text(row: Row) -> str:
    return row.verdict or tables.number_text(row.average_gap)


def bars(item: Item, found: Mapping[str, Sequence[Row]]) -> Section:
    """A picture of each run's rows, by their names."""
    drawn, data = [], {}
    for name, every in found.items():
        shown = [row for row in every if not row.is_before]
        drawn.append(pictures.bars(shown, name, item=item.id))
        data[name] = {tables.name_of(row.method): _numbers(row) for row in shown}
    return Section(item, pictures=tuple(drawn), data=data)


def gaps(item: Item, trajectory: Mapping[str, Sequence[Line]]) -> Section:
    """Curves of average gaps from the lines of runs, by their names."""
    drawn, data, body = [], {}, list[tuple[str, ...]]()
    for name, own in trajectory.items():
        found = gaps_by_round(own)
        lines = [
            Curve(tables.name_of(label), [(t, mean) for t, mean, _ in points], band=_band(points))
            for label, points in found.items()
        ]
        drawn.append(pictures.curves(lines, name, "round", "average gap to Retrain", item=item.id, rooted=True))
        data[name] = {tables.name_of(label): points for label, points in found.items()}
        body += [(name, tables.row_name(label), *_best_and_last(points)) for label, points in found.items()]
    grid = TextTable((BY, "Method", "Smallest average gap", "after round", "at the end"), tuple(body))
    said = (
        "Here a gap is taken within each repetition, then averaged; the tables take it between averages. A band is one"
        " standard deviation over the repetitions to either side.",
    )
    return Section(item, grids=(grid,), pictures=tuple(drawn), said=said, data=data)


def _best_and_last(points: Sequence[tuple[float, float, float | None]]) -> tuple[str, str, str]:
    results = [point for point in points if point[0] >= 1]  # as everywhere: at round 0 FT is the old model
    if not results:
        return tables.DASH, tables.DASH, tables.DASH
    best = min(results, key=lambda point: point[1])
    return f"{best[1]:.2f}", f"{best[0]:.0f}", f"{results[-1][1]:.2f}"


BARS = {
    "average gap to Retrain": "average_gap",
    "communication / Retrain's": "comm_bytes",
    "FLOPs / Retrain's": "flops",
}
"""A cost as a share of Retrain's: beside a ViT's bytes a CNN's would not be seen."""


def ratios(item: Item, every: Mapping[str, Sequence[Row]]) -> Section:
    """Bars from the rows of runs that are called by the share that leaves."""
    found = {name: {row.method: row for row in own} for name, own in every.items()}
    methods = [m for m in next(iter(found.values())) if m not in ("before", "retrain")]
    methods = [m for m in methods if all(m in by for by in found.values())]
    drawn = []
    for what, key in BARS.items():
        series = {tables.name_of(m): [(name, _bar(by, m, key)[0]) for name, by in found.items()] for m in methods}
        spreads = {tables.name_of(m): [_bar(by, m, key)[1] for by in found.values()] for m in methods}
        rooted = key == "average_gap"  # one that is broken would hide what the others have
        drawn.append(pictures.groups(series, what, "forgotten share", item=item.id, spreads=spreads, rooted=rooted))
    data = {
        name: {tables.name_of(m): _numbers(row) for m, row in by.items() if m != "before"} for name, by in found.items()
    }
    body = tuple(
        (name, tables.name_of(m), _gap_text(by[m]), *(_times(by, m, cost) for cost in ("comm_bytes", "flops")))
        for name, by in found.items()
        for m in methods
    )
    grid = TextTable(
        ("Forgotten share", "Method", "Average gap", "Communication / Retrain's", "FLOPs / Retrain's"), body
    )
    said = (
        "A whisker is one standard deviation over the repetitions to either side. Costs are shares of Retrain's, which"
        " falls with the clients that stay.",
    )
    return Section(item, grids=(grid,), pictures=tuple(drawn), said=said, data=data)


def _bar(by: Mapping[str, Row], method: str, key: str) -> tuple[float, float | None]:
    """A gap, or a cost as a share of Retrain's, with its spread; not a number where nothing was measured."""
    if key == "average_gap":
        gap = by[method].average_gap
        return (float(gap.mean) if is_measured(gap.mean) else math.nan), gap.std
    own, whole = by[method].costs[key], by["retrain"].costs[key].mean if "retrain" in by else None
    if not is_measured(own.mean) or not is_measured(whole) or not whole:
        return math.nan, None
    return own.mean / whole, None if own.std is None else own.std / whole


def _times(by: Mapping[str, Row], method: str, cost: str) -> str:
    """A cost as a share of Retrain's."""
    share, _ = _bar(by, method, cost)
    return tables.DASH if math.isnan(share) else f"{share:.2f}"


def gaps_by_round(trajectory: Sequence[Line]) -> dict[str, list[tuple[float, float, float | None]]]:
    """label → (round, mean over seeds of the average gap to that seed's Retrain, its spread)."""
    (methods,) = trajectories(trajectory).values()
    if "retrain" not in methods:
        raise UnfedError("A gap is taken to Retrain, which this run does not have; add it to methods.run.")
    goal = {seed: lines[-1] for seed, lines in methods["retrain"].items()}
    found: dict[str, list[tuple[float, float, float | None]]] = {}
    for label, by_seed in methods.items():
        if label in ("retrain", "before"):
            continue
        by_round: dict[int, list[float]] = {}
        for seed, line in ((seed, line) for seed, lines in by_seed.items() if seed in goal for line in lines):
            gap = average_gap(line, goal[seed])
            if is_measured(gap):
                by_round.setdefault(int(line["round"]), []).append(gap)
        found[label] = [(t, *_spread(values)) for t, values in sorted(by_round.items())]
    return found


def _band(points: Sequence[tuple[float, float, float | None]]) -> list[tuple[float, float]]:
    edges = [(mean - std, mean + std) for _, mean, std in points if std is not None]
    return edges if len(edges) == len(points) else []  # no band where a repetition has no such round


def _spread(values: Sequence[float]) -> tuple[float, float | None]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _numbers(row: Row) -> Mapping[str, Any]:
    costs = {cost: row.costs[cost].mean for cost in ("comm_bytes", "flops")}
    return {metric: row.metrics[metric].mean for metric in GAP_METRICS} | costs | {"average_gap": row.average_gap.mean}
