"""Maps of the ablations: the darker a field, the farther from Retrain, or the more comes back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from unfed.paper.pictures import PaperFigure
from unfed.report.drawing import INK, SERIES, STYLE, svg_text

DARKEST = 20.0
"""The gap from which on a field is as dark as can be."""

Fields = Mapping[tuple[str, str], float | None]


def field_map(gaps: Fields, layers: Sequence[str], hows: Sequence[str], name: str) -> PaperFigure:
    """One field per layer and perturbation with its mean gap; a cross where the network did not survive."""
    title = f"Average gap to Retrain by layer and perturbation, {name}"
    best = min((g, *where) for where, g in gaps.items() if g is not None)
    told = f"The smallest mean gap is {best[0]:.1f}, {best[1]} under {best[2]}."
    return _drawn(gaps, (layers, hows), f"ablations-{name}", (title, told))


def overview(values: Fields, part: str, title: str, digits: int = 1, darkest: float = DARKEST) -> PaperFigure:
    """The same for one part of the ablations and several networks side by side, in the order of what is there."""
    sides = [list(dict.fromkeys(where[i] for where in values)) for i in (0, 1)]
    known = sorted(value for value in values.values() if value is not None)
    told = f"{len(known)} fields, from {known[0]:.{digits}f} to {known[-1]:.{digits}f}."
    return _drawn(values, (sides[0], sides[1]), f"ablations-{part}", (title, told), digits, darkest)


def _drawn(
    values: Fields,
    sides: tuple[Sequence[str], Sequence[str]],
    name: str,
    texts: tuple[str, str],
    digits: int = 1,
    darkest: float = DARKEST,
) -> PaperFigure:
    rows, columns = sides
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(2.2 + 0.52 * len(columns), 1.3 + 0.27 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for y, row in enumerate(rows):
            for x, column in enumerate(columns):
                if (row, column) not in values:
                    continue
                value = values[row, column]
                shade = 1.0 if value is None else math.sqrt(min(value, darkest) / darkest)
                axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=SERIES[0], alpha=0.75 * shade, lw=0))
                text = "×" if value is None else f"{value:.{digits}f}"
                axes.text(x, y, text, ha="center", va="center", fontsize=7.5, color=INK)
        axes.set_xlim(-0.6, len(columns) - 0.4)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="left", fontsize=8)
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        axes.tick_params(length=0)
        return PaperFigure(texts[0], svg_text(figure, name, *texts))
