"""The paper's figures, drawn as the report draws: SVG that takes its colours from the page around it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from unfed.measures.metrics import COLUMNS, GAP_METRICS
from unfed.report.drawing import DASHES, INK, MARKERS, REFERENCE, SERIES, STYLE, svg_text
from unfed.report.rules import Row
from unfed.report.tables import name_of
from unfed.report.wording import BYTES, FLOPS
from unfed.values import is_measured

OURS = "NoT"
Spreads = Mapping[str, Sequence[float | None]]


@cache
def _colours() -> str:
    """The page's light colours, for a file that has no page around it."""
    style = files("unfed.report").joinpath("style.css.j2").read_text(encoding="utf-8")
    light = re.findall(r"--[\w-]+: #\w+;", style[: style.index("}")])
    return f"<style>svg{{{''.join(light)}color:var(--ink);font-family:sans-serif}}</style>"


def light_colour(number: int) -> str:
    """The colour of a series as the light page has it."""
    found: list[str] = re.findall(r"--series-\d: (#\w+);", _colours())
    return found[number % len(found)]


@dataclass(frozen=True)
class Curve:
    """One curve: its name and its points. Places that are words stand side by side in the order given."""

    name: str
    points: Sequence[tuple[float | str, float]]
    colour: int | None = None
    """Which of the page's colours; by default its place, NoT first."""
    band: Sequence[tuple[float, float]] = ()
    """The lower and upper edge of its spread at each point, if it has one."""


@dataclass(frozen=True)
class PaperFigure:
    """A picture with its title, as it stands in a page, or the reason why there is none."""

    title: str
    svg: str | None
    reason: str = ""

    def file(self) -> str:
        """The same, to stand alone."""
        assert self.svg is not None
        opening, _, rest = self.svg.partition(">")
        return f'{opening} xmlns="http://www.w3.org/2000/svg">{_colours()}{rest}\n'


def curves(
    lines: Sequence[Curve],
    title: str,
    across: str,
    up: str,
    *,
    item: str,
    bottom: float | None = None,
    rooted: bool = False,
) -> PaperFigure:
    """Some curves with a legend below.

    They are drawn on a root scale where small differences count as much as large ones. `item` keeps identifiers apart
    on a page.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return PaperFigure(title, None, f"not measured: {up} at no {across}")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        if rooted:
            _scale_by_roots(axes)
        for place, line in enumerate(_first(lines)):
            _draw(axes, line, place if line.colour is None else line.colour, 0.0 if rooted else -math.inf)
        if bottom is not None:
            axes.set_ylim(bottom, None)
        axes.set_xlabel(across)
        axes.set_ylabel(f"{up} (root scale)" if rooted else up)
        if rooted:
            axes.set_ylim(0, 1.1 * max(y for line in lines for _, y in [*line.points, *line.band]))
        words = isinstance(lines[0].points[0][0], str)
        if words:
            axes.tick_params(axis="x", labelrotation=60 if len(lines[0].points) > 6 else 0, labelsize=8)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=across == "round"))
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)
        said = "; ".join(f"{line.name} ends at {line.points[-1][1]:.3g}" for line in lines) + "."
        return PaperFigure(title, svg_text(figure, _id(item, title, up), f"{up} by {across}, {title}", said))


def _scale_by_roots(axes: Any) -> None:
    axes.set_yscale("function", functions=(_root, np.square))
    axes.set_yticks([0, 1, 2, 5, 10, 20, 40, 80])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _draw(axes: Any, line: Curve, number: int, floor: float) -> None:
    """One curve in the colour, dash and marker of its number; its band ends at the floor."""
    across, colour = [x for x, _ in line.points], SERIES[number % len(SERIES)]
    if line.band:
        low, high = zip(*line.band, strict=True)
        axes.fill_between(across, [max(edge, floor) for edge in low], high, color=colour, alpha=0.15, linewidth=0)
    dash = DASHES[number % len(DASHES)]
    axes.plot(
        across,
        [y for _, y in line.points],
        color=colour,
        label=line.name,
        marker=MARKERS[number % len(MARKERS)] if len(line.points) <= 30 else None,
        markersize=3.5,
        linestyle="-" if dash is None else (0, dash),
    )


def groups(
    series: Mapping[str, Sequence[tuple[str, float]]],
    up: str,
    across: str,
    *,
    item: str,
    spreads: Spreads | None = None,
    rooted: bool = False,
) -> PaperFigure:
    """Bars in groups, one colour per series, with whiskers where a spread is known.

    Where they are `rooted`, small values are seen beside large ones, as in `curves`.
    """
    title = up[0].upper() + up[1:]
    if not series:
        return PaperFigure(title, None, f"not measured: {up} of no method at every {across}")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.2, 3.0), layout="constrained")
        axes = figure.add_subplot()
        if rooted:
            _scale_by_roots(axes)
        places = [place for place, _ in next(iter(series.values()))]
        width = 0.8 / len(series)
        ordered = sorted(series.items(), key=lambda one: one[0] != OURS)
        for number, (name, points) in enumerate(ordered):
            left = [i - 0.4 + (number + 0.5) * width for i in range(len(points))]
            values = [y for _, y in points]
            axes.bar(left, values, width * 0.9, color=SERIES[number % len(SERIES)], label=name)
            known = [
                (x, y, std)
                for x, y, std in zip(left, values, (spreads or {}).get(name, ()), strict=False)
                if std and math.isfinite(y)
            ]
            for x, y, std in known:  # down to nothing at most: neither a gap nor a cost is below it
                axes.errorbar(x, y, yerr=[[min(std, y)], [std]], ecolor=INK, elinewidth=0.9, capsize=2)
        axes.set_xticks(range(len(places)), places)
        axes.set_xlabel(across)
        axes.set_ylabel(f"{up} (root scale)" if rooted else up)
        axes.set_ylim(0, axes.get_ylim()[1])
        figure.legend(loc="outside lower center", ncols=min(len(series), 5), frameon=False, fontsize=8.5)
        said = "; ".join(
            f"{name} " + ", ".join(f"{place} {value:.3g}" for place, value in points) for name, points in series.items()
        )
        return PaperFigure(title, svg_text(figure, _id(item, across, up), f"{up} by {across}", said + "."))


def bars(rows: Sequence[Row], title: str, *, item: str) -> PaperFigure:
    """Each metric and each cost of the methods, Retrain's value as a line."""
    read = {metric: [row.metrics[metric].mean for row in rows] for metric in GAP_METRICS}
    read |= {cost: [row.costs[cost].mean for row in rows] for cost in ("comm_bytes", "flops")}
    shown = {key: values for key, values in read.items() if any(is_measured(v) for v in values)}
    units = {"comm_bytes": BYTES, "flops": FLOPS}
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(7.4, 0.5 + 0.23 * len(rows) * -(-len(shown) // 3)), layout="constrained")
        axes = figure.subplots(-(-len(shown) // 3), 3, squeeze=False)
        for place in axes.flat[len(shown) :]:
            place.set_visible(False)
        for place, (key, values) in zip(axes.flat, shown.items(), strict=False):
            numbers = [v if is_measured(v) else math.nan for v in values]
            colours = [REFERENCE if row.is_reference else SERIES[0 if row.method == "not" else 7] for row in rows]
            place.barh(range(len(rows)), numbers, color=colours, height=0.7)
            place.set_yticks(range(len(rows)), [name_of(row.method) for row in rows], fontsize=7.5)
            place.invert_yaxis()
            place.set_title(COLUMNS[key].title + (" (%)" if COLUMNS[key].unit == "%" else ""), fontsize=9)
            goal = next((n for n, row in zip(numbers, rows, strict=True) if row.is_reference), math.nan)
            if math.isfinite(goal) and key in GAP_METRICS:
                place.axvline(goal, color=REFERENCE, linewidth=1, dashes=(3, 2))
            place.xaxis.set_major_locator(MaxNLocator(nbins=3))
            place.tick_params(axis="x", labelsize=7.5)
            if key in units:
                power = sum(place.get_xlim()[1] >= 1000**n for n in range(1, len(units[key])))
                place.xaxis.set_major_formatter(FuncFormatter(lambda v, _, size=1000.0**power: f"{v / size:g}"))
                place.set_title(f"{COLUMNS[key].title} ({units[key][power]})", fontsize=9)
        said = "; ".join(
            f"{name_of(row.method)} "
            + ", ".join(f"{key} {values[i]:.4g}" for key, values in shown.items() if is_measured(values[i]))
            for i, row in enumerate(rows)
        )
        return PaperFigure(title, svg_text(figure, _id(item, title), f"All methods, {title}", said + "."))


def _first(lines: Sequence[Curve]) -> list[Curve]:
    """NoT first, so that it has the same colour in every picture."""
    return sorted(lines, key=lambda line: line.name != OURS)


def _root(values: Any) -> Any:
    return np.sqrt(np.maximum(values, 0))


def _id(*parts: str) -> str:
    """A name for a page's identifiers."""
    return "-".join("".join(c if c.isalnum() and c.isascii() else "-" for c in part.lower()) for part in parts)
