"""Pictures of a run and of a population.

    curves(methods, "forget")     a line per method over rounds, ± std over seeds as a band, Retrain's last value dashed
    cost_bars(rows, "flops")      what each method spent up to the round that the rule reports
    gap_by_cost(rows, "flops")    average gap against cost: down and to the left is better

Colours are the page's own (`drawing`). Every picture describes itself in words for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from unfed.errors import UnfedError, listed, nearest
from unfed.folder.info import RunInfo
from unfed.folder.layout import Undoing
from unfed.folder.study_results import Attacked, Judged, JudgedInterval
from unfed.measures.metrics import mean_std, reading
from unfed.measures.population.attacks import ATTACKS
from unfed.measures.trajectory import Line
from unfed.report.drawing import (
    DASHES,
    FAINT,
    INK,
    MARKERS,
    PAPER,
    REFERENCE,
    SERIES,
    STYLE,
    DrawnValue,
    Picture,
    picture,
)
from unfed.report.rules import Row, Trajectory, is_model, named, results, rows, trajectories
from unfed.report.tables import name_of
from unfed.report.undo import by_method, fitted, mean_of, value, worst
from unfed.report.wording import FEDERATED, Wording, words_of
from unfed.values import Value, is_measured, not_measured

BySeed = Mapping[int, Trajectory]

CURVES = {
    "forget": "Accuracy on the forgotten data (%)",
    "test": "Accuracy on test data (%)",
    "backdoor": "Backdoor success (%)",
    "mia": "Membership inference (%)",
}
COST_BARS = ("comm_bytes", "flops", "seconds")


@dataclass(frozen=True)
class CurveSeries:
    """One line of a picture: its name, its colour, its dash, and the rounds it is drawn from."""

    name: str
    colour: int
    dash: int
    by_seed: BySeed


@dataclass(frozen=True)
class CostDot:
    """One point of a scatter: its label, its look, the row it shows."""

    name: str
    colour: int | None
    marker: int
    row: Row


@contextmanager
def _axes(width: float, height: float, style: Mapping[Any, Any] | None = None) -> Iterator[tuple[Figure, Axes]]:
    """A figure with one pair of axes in the page's style."""
    with matplotlib.rc_context({**STYLE, **(style or {})}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.add_subplot()


def styles(methods: Sequence[str]) -> dict[str, int]:
    """A number per method, NoT first, then as they ran; the page's legend uses the same.

    Retrain has one only where it is alone: beside others it is the dashed line that they are to come to.
    """
    ran = sorted(dict.fromkeys(methods), key=lambda method: method != "not")
    others = [method for method in ran if method not in ("before", "retrain", "train")]
    shown = others or [method for method in ran if method == "retrain"]
    return {method: index for index, method in enumerate(shown)}


def curves(methods: Mapping[str, BySeed], metric: str, *, name: str, unit: str = "round") -> Picture | None:
    """A metric over rounds, or None where it was measured nowhere.

    `name` keeps identifiers apart on a page.
    """
    numbers = styles(list(methods))
    series = [CurveSeries(name_of(m), number, number, methods[m]) for m, number in numbers.items()]
    retrain = (
        [CurveSeries("Retrain", 0, 0, methods["retrain"])] if "retrain" in methods and "retrain" not in numbers else []
    )
    return series_lines(series, retrain, metric, name=name, unit=unit)


def series_lines(
    series: Sequence[CurveSeries], references: Sequence[CurveSeries], metric: str, *, name: str, unit: str = "round"
) -> Picture | None:
    """The same for any lines, each reference dashed at its last value."""
    drawn = [(one, points) for one in series if (points := _points(one.by_seed, metric))]
    if not drawn:
        return None
    goals = [
        (one, mean_std([reading(_final(lines), metric) for lines in one.by_seed.values()]).mean) for one in references
    ]
    levels = [(one, value) for one, value in goals if is_measured(value)]
    with _axes(4.4, 2.5) as (figure, axes):
        for one, points in drawn:
            _draw_curve(axes, points, one)
        for one, value in levels:
            dashes = (4, 3) if len(levels) == 1 else (1 + 3 * (one.dash + 1), 3)
            label = f"{one.name}, last {unit}"
            axes.axhline(value, color=REFERENCE, linewidth=1.4, dashes=dashes, zorder=1.5, label=label)
        _finish_curves(axes, max(points[-1][0] for _, points in drawn), unit)
        said = [f"{one.name} ends at {points[-1][1]:.1f}" for one, points in drawn]
        said += [f"{one.name} ends at {value:.1f}" for one, value in levels]
        shown = [
            DrawnValue(
                t, mean, f"{one.name}, {unit} {t}: {mean:.2f}{f' ± {std:.2f}' if std else ''}", (one.name, t, mean, std)
            )
            for one, points in drawn
            for t, mean, std in points
        ]
        title = CURVES.get(metric, metric)
        header = ("method", unit, metric, "std")
        return picture(figure, name, f"{title} by {unit}", "; ".join(said) + ".", header, shown, title)


def cost_bars(rows: Sequence[Row], cost: str, *, name: str, words: Wording = FEDERATED) -> Picture | None:
    """One bar per method, up to the round its rule reports; None where fewer than two were measured."""
    spent = [(row, row.costs[cost].mean) for row in rows if not row.is_before]
    bars = [(name_of(row.method), value, row) for row, value in spent if is_measured(value)]
    if len(bars) < 2 or not any(value for _, value, _ in bars):
        return None
    title, write = words.cost(cost)
    number = styles([row.method for row in rows])
    with _axes(3.4, 0.12 + 0.34 * len(bars), {"axes.grid": False, "axes.spines.bottom": False}) as (figure, axes):
        for place, (_, value, row) in enumerate(bars):
            colour = REFERENCE if row.is_reference else SERIES[number[row.method] % len(SERIES)]
            axes.barh(place, value, height=0.56, color=colour)
            axes.annotate(write(value), (value, place), xytext=(5, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(bars)), [label for label, _, _ in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        # Room for the number behind the longest bar.
        axes.set_xlim(0, 1.42 * max(value for _, value, _ in bars))
        axes.set_xticks([])
        said = "; ".join(f"{label} {write(value)}" for label, value, _ in bars) + "."
        shown = [
            DrawnValue(value, place, f"{label}: {write(value)}", (label, value))
            for place, (label, value, _) in enumerate(bars)
        ]
        return picture(figure, name, f"{title} up to the reported {words.unit}", said, ("method", cost), shown, title)


def gap_by_cost(rows: Sequence[Row], cost: str, *, name: str, words: Wording = FEDERATED) -> Picture | None:
    """Average gap over cost, one point per method; None where fewer than two methods have both."""
    number = styles([row.method for row in rows])
    dots = [
        CostDot(name_of(row.method), None if row.is_reference else number[row.method], number.get(row.method, 0), row)
        for row in rows
        if not row.is_before
    ]
    return scatter(dots, cost, name=name, words=words)


def scatter(dots: Sequence[CostDot], cost: str, *, name: str, words: Wording = FEDERATED) -> Picture | None:
    """The same for any points. Retrain has no gap to itself and stands hollow on the ground line."""
    placed = []
    for dot in dots:
        spent, gap = dot.row.costs[cost].mean, 0.0 if dot.row.is_reference else dot.row.average_gap.mean
        if is_measured(spent) and is_measured(gap) and spent > 0:
            placed.append((dot, spent, gap))
    if sum(not dot.row.is_reference for dot, _, _ in placed) < 2:
        return None
    title, write = words.cost(cost)
    low, high = min(x for _, x, _ in placed), max(x for _, x, _ in placed)
    with _axes(4.4, 2.8) as (figure, axes):
        for dot, spent, gap in placed:
            colour = REFERENCE if dot.colour is None else SERIES[dot.colour % len(SERIES)]
            face = PAPER if dot.row.is_reference else colour
            marker = MARKERS[dot.marker % len(MARKERS)] if dot.colour is not None else "o"
            axes.plot([spent], [gap], marker=marker, markersize=7, color=colour, markerfacecolor=face, linestyle="")
        rooted = _spread_out(axes, [gap for _, _, gap in placed])
        if high > 12 * low:
            axes.set_xscale("log")
            axes.set_xlim(low / 2, high * 4)
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.set_xlim(0, high * 1.35)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value).replace(".0 ", " ")))
        axes.set_xlabel(title.lower())
        axes.set_ylabel("average gap" + (" (root scale)" if rooted else ""))
        _label(figure, axes, [(dot.name, x, y) for dot, x, y in placed])
        said = "; ".join(f"{dot.name} {write(x)} and a gap of {y:.2f}" for dot, x, y in placed) + "."
        shown = [DrawnValue(x, y, f"{d.name}: {write(x)}, a gap of {y:.2f}", (d.name, x, y)) for d, x, y in placed]
        header = ("method", cost, "average_gap")
        return picture(figure, name, f"Average gap against {title.lower()}", said, header, shown, title)


def _spread_out(axes: Axes, gaps: Sequence[float]) -> bool:
    """The scale of the gaps.

    It is a square root where a few bad methods would press the good ones onto the ground.
    """
    top = max(gaps) or 1.0
    axes.set_ylim(-0.06 * top, 1.15 * top)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    crowded = sum(0 < gap < top / 6 for gap in gaps) > 1
    if crowded:
        axes.set_yscale(
            "function", functions=(lambda v: np.sign(v) * np.sqrt(np.abs(v)), lambda v: np.sign(v) * np.square(v))
        )
        axes.set_ylim(-0.012 * top, 1.2 * top)
        step = 10 ** math.floor(math.log10(top))
        axes.set_yticks([0, *(step * part for part in (0.1, 0.5, 1, 2, 5) if step * part < 1.2 * top)])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    return crowded


def _label(figure: Figure, axes: Axes, placed: Sequence[tuple[str, float, float]]) -> None:
    """Names beside their points, moved apart where they would lie on each other."""
    engine = figure.get_layout_engine()
    assert engine is not None, "figures here are laid out by one"
    engine.execute(figure)  # only then is it known where the points lie
    scale = figure.dpi / 72
    spots = [tuple(float(part) / scale for part in axes.transData.transform((x, y))) for _, x, y in placed]
    # Left, right and height of what is taken, in points: the marks themselves, then label after label.
    taken = [(x - 4, x + 4, y) for x, y in spots]
    # From the bottom up, because good methods crowd at the bottom and above them there is room.
    for (x, y), (name, spent, gap) in sorted(
        zip(spots, placed, strict=True), key=lambda both: (both[0][1], -both[0][0])
    ):
        left, height = x + 7, y
        right = left + 5.4 * len(name)
        while any(a < right and left < b and abs(height - h) < 10 for a, b, h in taken):
            height += 1.5
        taken.append((left, right, height))
        line = {"arrowstyle": "-", "color": REFERENCE, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
        label = axes.annotate(
            name,
            (spent, gap),
            xytext=(7, height - y),
            textcoords="offset points",
            va="center",
            color=INK,
            arrowprops=line if height - y > 6 else None,
            annotation_clip=False,
        )
        label.set_in_layout(False)  # the layout stays as it was when the places were computed


def pareto(
    points: Mapping[str, tuple[float, JudgedInterval]], best: Sequence[str], behind: Sequence[str], name: str
) -> Picture:
    """Rounds against what the worst attack brings back, with 95 % intervals.

    The best are joined by a line: no other is cheaper and lower. Those behind did not recover, and stand hollow.
    """
    with _axes(7.6, 3.6) as (figure, axes):
        axes.axhline(0, color=FAINT, linewidth=0.8)
        for method, (rounds, lasts) in points.items():
            colour = SERIES[0] if method in best else REFERENCE
            axes.plot([rounds, rounds], [lasts.low, lasts.high], color=FAINT, linewidth=1.4, zorder=1)
            face = PAPER if method in behind else colour
            axes.plot([rounds], [lasts.value], marker="o", color=colour, markerfacecolor=face, linestyle="")
        line = [(points[one][0], points[one][1].value) for one in best]
        axes.plot([x for x, _ in line], [y for _, y in line], color=SERIES[0], linewidth=1.2, zorder=1)
        axes.set_xlim(-0.5, max(rounds for rounds, _ in points.values()) * 1.25 + 1)
        axes.set_xlabel("rounds to matched utility (fewer is better)")
        axes.set_ylabel("worst attack above Retrain, points")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        _label(figure, axes, [(method, rounds, lasts.value) for method, (rounds, lasts) in points.items()])
        values = [
            DrawnValue(x, y.value, f"{one}: {x:.1f} rounds, {y.value:+.1f} points", (one, x, y.value, y.low, y.high))
            for one, (x, y) in points.items()
        ]
        title, header = "Rounds against the worst attack", ("method", "rounds", "points", "low", "high")
        return picture(figure, name, title, "; ".join(value.text for value in values) + ".", header, values)


def _points(by_seed: BySeed, metric: str) -> list[tuple[int, float, float]]:
    """(round, mean, std) over the seeds that measured it there.

    Rounds without a usable model are left out.
    """
    found: dict[int, list[float]] = {}
    for lines in by_seed.values():
        for line in lines:
            value = reading(line, metric)
            if is_model(line) and is_measured(value):
                found.setdefault(int(line["round"]), []).append(value)
    spreads = {t: mean_std(list(values)) for t, values in sorted(found.items())}
    return [(t, float(spread.mean), spread.std or 0.0) for t, spread in spreads.items()]


def _final(lines: Trajectory) -> Mapping[str, object]:
    return (results(lines) or lines)[-1]


def _draw_curve(axes: Axes, points: Sequence[tuple[int, float, float]], one: CurveSeries) -> None:
    rounds, means, stds = (list(part) for part in zip(*points, strict=True))
    colour, dash = SERIES[one.colour % len(SERIES)], DASHES[one.dash % len(DASHES)]
    # A single point would be an invisible line, and half of it one at the edge.
    alone = len(points) < 2
    shape: dict[str, Any] = {"marker": "o" if alone else "", "markersize": 4, "clip_on": not alone}
    (drawn,) = axes.plot(rounds, means, color=colour, label=one.name, **shape)
    if dash is not None:
        drawn.set_dashes(dash)
    if any(stds):
        low = [mean - std for mean, std in zip(means, stds, strict=True)]
        high = [mean + std for mean, std in zip(means, stds, strict=True)]
        axes.fill_between(rounds, low, high, color=colour, alpha=0.16, linewidth=0)


def _finish_curves(axes: Axes, last_round: float, unit: str) -> None:
    low, high = axes.get_ylim()
    # Percentages: the whole scale when the curves use much of it, otherwise at least five points, or noise looks big.
    if high - low > 45:
        low, high = min(low, 0.0), max(high, 100.0)
        low, high = max(low, -2.0), min(high, 102.0)
    elif high - low < 5:
        low = max((low + high) / 2 - 2.5, -0.2)  # a line at nought is seen, and no share below it
        high = low + 5
    axes.set_ylim(low, min(high, 102.0) if math.isfinite(high) else 102.0)
    axes.set_xlim(0, max(last_round, 1))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.set_xlabel(unit)
    axes.margins(x=0)


# --- undoing ----------------------------------------------------------------------------------------------------------


PICTURES = {"backdoor": "Backdoor success (%)", "forget": "Accuracy on the forgotten data (%)"}


def undo_pictures(found: Sequence[Undoing], name: str) -> list[Picture]:
    """What undoing brings back, a picture for each measure that has something to show."""
    methods = by_method(found)
    drawn = [undoing(methods, metric, name=f"{name}-{metric}") for metric in (PICTURES if methods else ())]
    return [one for one in drawn if one is not None]


def undoing(methods: Mapping[str, Sequence[Undoing]], metric: str, *, name: str) -> Picture | None:
    """One line per model.

    It shows the model as published (hollow), the worst usable one after undoing (filled), and flipped (cross).
    """
    numbers = styles(list(methods))
    rows: list[tuple[str, str, Sequence[Undoing], str]] = [
        (found[0].title, SERIES[numbers.get(label, 0) % len(SERIES)], found, "unlearned")
        for label, found in methods.items()
    ]
    everybody = [one for found in methods.values() for one in found]
    rows += [("Retrain", REFERENCE, everybody, "retrain"), ("before", REFERENCE, everybody, "before")]
    placed: list[tuple[str, str, float, Value, Value]] = []
    for title, colour, found, who in rows:
        published, flipped = mean_of(found, who, "published", metric), _highest(found, who, ("flip", metric))
        tried = [one for one in found if fitted([one])]
        back = worst(tried, who, metric) if tried else not_measured("no layer was fitted")
        if is_measured(published):
            placed.append((title, colour, published, back, flipped))
    if not placed:
        return None
    with _axes(4.4, 0.75 + 0.36 * len(placed), {"axes.grid.axis": "x"}) as (figure, axes):
        for place, (_, colour, published, back, flipped) in enumerate(placed):
            axes.plot([published], [place], "o", color=colour, markerfacecolor=PAPER, markersize=8, zorder=3)
            if is_measured(back):
                axes.plot([published, back], [place, place], color=colour, linewidth=2.4, zorder=2)
                axes.plot([back], [place], "o", color=colour, markersize=5, zorder=4)
            if is_measured(flipped):
                axes.plot([flipped], [place], "x", color=colour, markersize=7, markeredgewidth=2, zorder=5)
        axes.set_yticks(range(len(placed)), [title for title, *_ in placed])
        axes.set_ylim(len(placed) - 0.4, -0.6)
        axes.set_xlim(-3, 103)
        whens = ("as published", "after undoing", "after the inverse alone")
        shown = [
            DrawnValue(x, place, f"{title}: {x:.1f} {what}", (title, what, x))
            for place, (title, _, *values) in enumerate(placed)
            for x, what in zip(values, whens, strict=True)
            if is_measured(x)
        ]
        said = "; ".join(
            f"{title} " + ", ".join(f"{x:.1f} {what}" for x, what in zip(values, whens, strict=True) if is_measured(x))
            for title, _, *values in placed
        )
        caption = PICTURES[metric]
        title = f"{caption}, as published and after undoing"
        return picture(figure, name, title, said + ".", ("model", "when", metric), shown, caption)


def _highest(found: Sequence[Undoing], who: str, path: Sequence[str]) -> Value:
    """The largest over methods: each has an inverse of its own, and a model that has none meets them all."""
    numbers = [number for one in found if is_measured(number := value(one, who, path))]
    return max(numbers) if numbers else not_measured("there is no inverse")


# --- a population -----------------------------------------------------------------------------------------------------


MARGINS = "Margins on the forgotten rows: how often (%)"
ROC = "{}: true against false positives (both scales log.)"
BEFORE_DASH = (2.0, 1.6)


@dataclass(frozen=True)
class LegendItem:
    """How a line looks, for the list beside the curves."""

    name: str
    colour: str
    dash: str

    @staticmethod
    def of(name: str, colour: int, dash: int) -> LegendItem:
        pattern = DASHES[dash % len(DASHES)]
        drawn = " ".join(f"{1.8 * part:g}" for part in pattern) if pattern else "none"
        return LegendItem(name, f"var(--series-{colour % len(SERIES)})", drawn)


def population_legend(judged: Judged) -> list[LegendItem]:
    """How each kind of model is drawn."""
    numbers = styles(list(judged.methods))
    return [
        LegendItem("Retrain", "var(--reference)", "none"),
        LegendItem("before", "currentColor", "3.6 2.9"),
        *(LegendItem.of(one.title, numbers[kind], numbers[kind]) for kind, one in judged.methods.items()),
    ]


def population_pictures(judged: Judged, name: str) -> list[Picture]:
    """Where margins lie, and the ROC of every attack that could be tried."""
    drawn = [distributions(judged, f"{name}-margins")]
    drawn += [roc(judged, f"{name}-roc-{attack}", attack) for attack in ATTACKS]
    return [one for one in drawn if one is not None]


def distributions(judged: Judged, name: str) -> Picture | None:
    """One outline per kind of model: where its margins lie."""
    numbers = styles(list(judged.methods))
    edges, shares = judged.distributions.edges, judged.distributions.shares
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    looks: dict[str, tuple[str, str, Any]] = {"retrain": ("Retrain", REFERENCE, None)}
    for kind, one in judged.methods.items():
        looks[kind] = (one.title, *_look(numbers[kind]))
    looks["before"] = ("before", INK, BEFORE_DASH)
    points = []
    with _axes(4.8, 3.0) as (figure, axes):
        for key, (title, colour, dash) in looks.items():
            heights = [100 * share for share in shares[key]]
            if key == "retrain":
                axes.stairs(heights, edges, fill=True, color=colour, alpha=0.25, linewidth=0)
            (line,) = axes.plot(middles, heights, color=colour, label=title, linewidth=1.8)
            if dash:
                line.set_dashes(dash)
            points += [
                DrawnValue(x, y, f"{title}: {y:.1f} % near {x:.1f}", (title, x, y))
                for x, y in zip(middles, heights, strict=True)
                if y >= 0.5
            ]
        axes.set_xlabel("log odds of the row's own label")
        axes.set_ylim(bottom=0)
        said = "; ".join(f"{title} lies around {_mean(middles, shares[key]):.1f}" for key, (title, *_) in looks.items())
        return picture(figure, name, MARGINS, said + ".", ("model", "margin", "percent"), points)


def _look(number: int) -> tuple[str, Any]:
    return SERIES[number % len(SERIES)], DASHES[number % len(DASHES)]


def _mean(middles: Sequence[float], shares: Sequence[float]) -> float:
    return sum(x * share for x, share in zip(middles, shares, strict=True))


def roc(judged: Judged, name: str, attack: str = "u-lira") -> Picture | None:
    """One line per method; the dashed one is a coin toss. None where the attack could not be tried."""
    found_by = {kind: one.attacks[attack] for kind, one in judged.methods.items()}
    tried = {kind: found for kind, found in found_by.items() if isinstance(found, Attacked)}
    if len(tried) < len(found_by):
        return None
    points, said, numbers = [], [], styles(list(judged.methods))
    with _axes(4.8, 3.0, {"axes.grid.axis": "both"}) as (figure, axes):
        lowest = min(found.roc[0][0] for found in tried.values())
        axes.plot([lowest, 1], [lowest, 1], color=REFERENCE, linestyle="--", linewidth=1.4, label="a coin toss")
        for kind, found in tried.items():
            title = judged.methods[kind].title
            curve = [(x, y) for x, y in found.roc if y > 0]
            colour, dash = _look(numbers[kind])
            (line,) = axes.plot([x for x, _ in curve], [y for _, y in curve], color=colour, label=title)
            if dash:
                line.set_dashes(dash)
            points += [
                DrawnValue(x, y, f"{title}: {100 * y:.2f} % at {100 * x:.2f} % false alarms", (title, x, y))
                for x, y in curve[::3]
            ]
            said.append(f"{title} has AUC {found.auc.value:.3f}{_low(found)}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(lowest, 1)
        axes.set_ylim(lowest, 1.15)
        axes.set_xlabel("false positives among Retrains")
        ticks = [tick for tick in (1e-4, 1e-3, 1e-2, 1e-1, 1) if tick >= lowest]
        axes.set_xticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
        axes.set_yticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
        axes.minorticks_off()
        return picture(
            figure, name, ROC.format(ATTACKS[attack]), "; ".join(said) + ".", ("method", "fpr", "tpr"), points
        )


def _low(found: Attacked) -> str:
    at = found.at_1
    return "" if isinstance(at, str) else f", finds {100 * at.value:.1f} % at 1 % false alarms"


# --- by name ----------------------------------------------------------------------------------------------------------


TRADES = ("gap-by-comm_bytes", "gap-by-flops")
NAMES = (*CURVES, *(f"cost-{cost}" for cost in COST_BARS), *TRADES, "training")
"""What can be drawn of a run: curves by round, bars of costs, gap against cost, and the training before it."""


def pictures(run: RunInfo, lines: Sequence[Line], rule: str = "last") -> dict[str, Picture]:
    """All pictures that have something to show, by name.

    Where there are several requests, a name begins with the request's id.
    """
    named(rule)
    chosen = rows(lines, rule, recovered_within=run.recovered_within)
    grouped, words = trajectories(lines), words_of(run)
    made: dict[str, Picture | None] = {}
    for request, methods in grouped.items():
        of = f"{request}-" if len(grouped) > 1 else ""
        own = [row for row in chosen if row.request == request]
        made |= {f"{of}{metric}": curves(methods, metric, name=f"{of}{metric}", unit=words.unit) for metric in CURVES}
        for cost in COST_BARS:
            made[f"{of}cost-{cost}"] = cost_bars(own, cost, name=f"{of}cost-{cost}", words=words)
        for name in TRADES:
            made[of + name] = gap_by_cost(own, name.removeprefix("gap-by-"), name=of + name, words=words)
    made["training"] = training_picture(lines, words.unit)
    return {name: one for name, one in made.items() if one is not None}


def one(found: Mapping[str, Picture], name: str) -> Picture:
    """The picture of that name; what there is instead is said."""
    if name not in found:
        raise UnfedError(
            f"This run has no picture {name!r}; it has {listed(found) or 'none yet'}.{nearest(name, found)}"
        )
    return found[name]


def training_picture(lines: Sequence[Line], unit: str = "round") -> Picture | None:
    """θ* on its way: what there is to see of a run that has not come to unlearning yet."""
    by_seed: dict[int, list[Line]] = {}
    for line in lines:
        if line.get("request") is None:
            by_seed.setdefault(int(line["seed"]), []).append(line)
    series = [CurveSeries("Training", 0, 0, by_seed)]
    return series_lines(series, [], "test", name="training", unit=unit)
