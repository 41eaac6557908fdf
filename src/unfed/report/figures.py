"""Trajectories as pictures: SVG text that lives inside the page and takes its colours from it.

    curves(methods, "forget")   one line per method over rounds, ± std over seeds as a band, Retrain's last value dashed
    cost_bars(rows, "flops")    what each method spent up to the round that the rule reports

matplotlib draws with stand-in colours; afterwards each stand-in becomes `currentColor` or a CSS variable, so one
picture serves light, dark and print. Text stays text. The same input gives the same bytes: no date, fixed identifiers.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from unfed.metrics import is_measured, mean_std, reading
from unfed.report.rules import Row, Trajectory, is_model, results
from unfed.report.tables import bytes_text, flops_text, name_of, seconds_text

BySeed = Mapping[int, Trajectory]

# Stand-in → what the page shows. No picture of ours uses these exact colours for anything else.
INK, FAINT, REFERENCE = "#010203", "#010204", "#010205"
SERIES = tuple(f"#0102{index:02x}" for index in range(0x10, 0x18))
_PAGE = {INK: "currentColor", FAINT: "var(--line)", REFERENCE: "var(--reference)"}
_PAGE |= {colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)}

# Colour is never the only difference: neighbours also differ in dash. (on, off) in points; None is a solid line.
DASHES: tuple[tuple[float, float] | None, ...] = (None, (5, 1.8), (1.4, 1.4), (8, 2))

CURVES = {
    "forget": "Accuracy on the forgotten data (%)",
    "test": "Accuracy on test data (%)",
    "backdoor": "Backdoor success (%)",
    "mia": "Membership inference (%)",
}
COST_BARS = {
    "comm_bytes": ("Bytes exchanged", bytes_text),
    "flops": ("Computation", flops_text),
    "seconds": ("Time", seconds_text),
}

_STYLE: dict[Any, Any] = {  # matplotlib types the keys as one long Literal
    "svg.fonttype": "none",
    "text.parse_math": False,  # a client or method may be called $x$
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


def styles(methods: Sequence[str]) -> dict[str, int]:
    """A number per method, NoT first, then as they ran; the page's legend uses the same."""
    shown = sorted(dict.fromkeys(methods), key=lambda method: method != "not")
    shown = [method for method in shown if method not in ("before", "retrain", "train")]
    return {method: index for index, method in enumerate(shown)}


def curves(methods: Mapping[str, BySeed], metric: str, *, name: str) -> str | None:
    """A metric over rounds, or None where it was measured nowhere. `name` keeps identifiers apart on a page."""
    series = {m: points for m in styles(list(methods)) if (points := _points(methods[m], metric))}
    reference = mean_std([reading(_final(lines), metric) for lines in methods.get("retrain", {}).values()]).mean
    if not series:
        return None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.4, 2.5), layout="constrained")
        axes = figure.add_subplot()
        number = styles(list(methods))
        for method, points in series.items():
            _draw_curve(axes, points, number[method])
        if is_measured(reference):
            axes.axhline(reference, color=REFERENCE, linewidth=1.4, dashes=(4, 3), zorder=1.5)
        _finish_curves(axes, max(points[-1][0] for points in series.values()))
        told = "; ".join(f"{name_of(m)} ends at {points[-1][1]:.1f}" for m, points in series.items())
        if is_measured(reference):
            told += f"; Retrain ends at {reference:.1f}"
        return _svg(figure, name, f"{CURVES.get(metric, metric)} by round", told + ".")


def cost_bars(rows: Sequence[Row], cost: str, *, name: str) -> str | None:
    """One bar per method, up to the round its rule reports; None where nothing was measured."""
    spent = [(row, row.costs[cost].mean) for row in rows if not row.is_before]
    bars = [(name_of(row.method), value, row) for row, value in spent if is_measured(value)]
    if not bars or not any(value for _, value, _ in bars):
        return None
    title, write = COST_BARS[cost]
    number = styles([row.method for row in rows])
    with matplotlib.rc_context({**_STYLE, "axes.grid": False, "axes.spines.bottom": False}):
        figure = Figure(figsize=(3.4, 0.12 + 0.34 * len(bars)), layout="constrained")
        axes = figure.add_subplot()
        for place, (_, value, row) in enumerate(bars):
            colour = REFERENCE if row.is_reference else SERIES[number[row.method] % len(SERIES)]
            axes.barh(place, value, height=0.56, color=colour)
            axes.annotate(write(value), (value, place), xytext=(5, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(bars)), [label for label, _, _ in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        # Room for the number behind the longest bar.
        axes.set_xlim(0, 1.42 * max(value for _, value, _ in bars))
        axes.set_xticks([])
        told = "; ".join(f"{label} {write(value)}" for label, value, _ in bars) + "."
        return _svg(figure, name, f"{title} up to the reported round", told)


def _points(by_seed: BySeed, metric: str) -> list[tuple[int, float, float]]:
    """(round, mean, std) over the seeds that measured it there; rounds without a usable model are left out."""
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


def _draw_curve(axes: Axes, points: Sequence[tuple[int, float, float]], number: int) -> None:
    rounds, means, stds = (list(part) for part in zip(*points, strict=True))
    colour, dash = SERIES[number % len(SERIES)], DASHES[number % len(DASHES)]
    # A single point would be an invisible line.
    (drawn,) = axes.plot(rounds, means, color=colour, marker="o" if len(points) < 2 else "", markersize=4)
    if dash is not None:
        drawn.set_dashes(dash)
    if any(stds):
        low = [mean - std for mean, std in zip(means, stds, strict=True)]
        high = [mean + std for mean, std in zip(means, stds, strict=True)]
        axes.fill_between(rounds, low, high, color=colour, alpha=0.16, linewidth=0)


def _finish_curves(axes: Axes, last_round: float) -> None:
    low, high = axes.get_ylim()
    # Percentages: the whole scale when the curves use much of it, otherwise at least five points, or noise looks big.
    if high - low > 45:
        low, high = min(low, 0.0), max(high, 100.0)
        low, high = max(low, -2.0), min(high, 102.0)
    elif high - low < 5:
        middle = (low + high) / 2
        low, high = middle - 2.5, middle + 2.5
    axes.set_ylim(low, min(high, 102.0) if math.isfinite(high) else 102.0)
    axes.set_xlim(0, max(last_round, 1))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.set_xlabel("round")
    axes.margins(x=0)


def _svg(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as inline SVG: page colours, own identifiers, a title and a description for screen readers."""
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        buffer = io.StringIO()
        FigureCanvasSVG(figure)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    for stand_in, colour in _PAGE.items():
        svg = svg.replace(stand_in, colour)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # it would style the whole page
    svg = re.sub(r"font-family: [^;]+; ", "", svg)  # the page's font
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    box = re.search(r'viewBox="[^"]+"', svg)
    assert box is not None, "matplotlib always writes a viewBox"
    opening = f'<svg {box.group()} role="img" stroke-linejoin="round" aria-labelledby="{name}-title {name}-desc">'
    told = (
        f'<title id="{name}-title">{html.escape(title)}</title><desc id="{name}-desc">{html.escape(description)}</desc>'
    )
    return opening + told + svg[svg.index(">") + 1 :].strip()
