"""Turn matplotlib figures into pictures: inline SVG for a page, SVG, PDF and CSV files.

Figures are drawn in the light colours of the page. On the page each colour becomes `currentColor` or a CSS variable,
so one picture serves light, dark and print. Text stays text. The same input gives the same bytes: no date, fixed
identifiers.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from unfed import storage
from unfed.errors import UnfedError
from unfed.report.tables import safe

_style = files("unfed.report").joinpath("style.css.j2").read_text(encoding="utf-8")
_LIGHT = dict(re.findall(r"--([\w-]+): (#\w+);", _style[: _style.index("}")]))
INK, FAINT, REFERENCE, PAPER = (_LIGHT[name] for name in ("ink", "line", "reference", "card"))
SERIES = tuple(_LIGHT[f"series-{index}"] for index in range(8))
_PAGE = {INK: "currentColor", FAINT: "var(--line)", REFERENCE: "var(--reference)", PAPER: "var(--card)"}
_PAGE |= {colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)}

# Colour is never the only difference: neighbours also differ in dash, or in marker. (on, off) in points; None is solid.
DASHES: tuple[tuple[float, float] | None, ...] = (None, (5, 1.8), (1.4, 1.4), (8, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")

# matplotlib's own settings first: a `matplotlibrc` in the current folder would change pictures, or call LaTeX.
_NOT_STYLE = ("backend", "interactive", "toolbar", "timezone", "webagg", "docstring", "savefig.directory")
_PLAIN: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith(_NOT_STYLE)}

STYLE: dict[Any, Any] = _PLAIN | {  # matplotlib types the keys as one long Literal
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


def svg_text(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as inline SVG."""
    return inline(drawn(figure, name), name, title, description)


def drawn(figure: Figure, name: str) -> str:
    """The figure as SVG in light colours: this is what takes time, and everything else is made of it."""
    laid_out(figure)
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        buffer = io.StringIO()
        FigureCanvasSVG(figure)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return buffer.getvalue()


def laid_out(figure: Figure) -> None:
    """Give every part its place and leave it there: to find it again matplotlib would draw once more."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def inline(svg: str, name: str, title: str, description: str) -> str:
    """A drawn figure for a page.

    It has the page's colours, its own identifiers, and a title and a description for screen readers.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    for light, colour in _PAGE.items():
        svg = svg.replace(light, colour)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # it would style the whole page
    svg = re.sub(r"font-family: [^;]+; ", "", svg)  # the page's font
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    box = re.search(r'viewBox="[^"]+"', svg)
    assert box is not None, "matplotlib always writes a viewBox"
    opening = f'<svg {box.group()} role="img" stroke-linejoin="round" aria-labelledby="{name}-title {name}-desc">'
    said = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    return opening + said + svg[svg.index(">") + 1 :].strip()


def without(svg: str, identifier: str) -> str:
    """SVG without the group of that identifier, and all that is in it."""
    start = svg.find(f'<g id="{identifier}">')
    if start < 0:
        return svg
    depth = 0
    for tag in re.finditer(r"<g\b[^>]*>|</g>", svg[start:]):
        depth += 1 if tag.group() != "</g>" else -1
        if depth == 0:
            return svg[:start] + svg[start + tag.end() :]
    raise AssertionError("matplotlib closes every group")


# --- a picture with its numbers ---------------------------------------------------------------------------------------


FORMATS = ("svg", "pdf", "csv")


@dataclass(frozen=True)
class DrawnValue:
    """One value of a picture: whose it is, where it stands in the axes, and how it is said."""

    x: float
    y: float
    text: str
    row: tuple[object, ...]


@dataclass(frozen=True)
class Picture:
    """A picture with its title, its values and everything it can be written as."""

    name: str
    title: str
    inline: str
    svg: str = field(repr=False)
    """The picture as an SVG file of its own."""
    header: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    figure: Figure = field(repr=False, compare=False)

    def pdf(self) -> bytes:
        """The picture as one page; its fonts are in it."""
        buffer = io.BytesIO()
        with matplotlib.rc_context({"pdf.fonttype": 42}):
            FigureCanvasPdf(self.figure)
            nothing = dict.fromkeys(("CreationDate", "ModDate", "Creator", "Producer"))
            self.figure.savefig(buffer, format="pdf", transparent=True, metadata=nothing)
        return buffer.getvalue()

    def csv(self) -> str:
        """The numbers that the picture shows."""
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([self.header, *(safe(row) for row in self.rows)])
        return buffer.getvalue()

    def bytes(self, kind: str) -> bytes:
        """The picture in one of the formats."""
        if kind not in FORMATS:
            raise UnfedError(f"A picture is written as svg, pdf or csv, not as {kind!r}.")
        return self.pdf() if kind == "pdf" else (self.svg if kind == "svg" else self.csv()).encode()

    def save(self, path: str | Path) -> Path:
        """Write it; the end of the name says how: `.svg`, `.pdf` or `.csv`."""
        path = Path(path)
        storage.deliver(path, self.bytes(path.suffix.removeprefix(".")))
        return path

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        return self.svg

    def downloads(self) -> list[tuple[str, str]]:
        """Files and links that hold them: the page stays one file."""
        kinds = {"svg": "image/svg+xml", "csv": "text/csv"}
        return [
            (f"{self.name}.{kind}", f"data:{mime};base64,{base64.b64encode(self.bytes(kind)).decode()}")
            for kind, mime in kinds.items()
        ]


def picture(
    figure: Figure,
    name: str,
    title: str,
    said: str,
    header: Sequence[str],
    points: Sequence[DrawnValue],
    caption: str = "",
) -> Picture:
    """A drawn figure as a picture; `said` is for screen readers, `caption` stands above it on a page.

    It is drawn once, with a heading and a legend; the page, which has both in its own type, shows it without them.
    """
    framed = _framed(figure, title)
    raw = drawn(figure, name)
    page = inline(_bare(figure, framed, raw), name, title, said)
    page = page.removesuffix("</svg>") + "".join(_spots(figure, points)) + "</svg>"
    return Picture(name, caption or title, page, raw, tuple(header), tuple(point.row for point in points), figure)


def _spots(figure: Figure, points: Sequence[DrawnValue]) -> list[str]:
    """An invisible circle at each value, which says it when it is pointed at."""
    if not points:
        return []
    height, scale = 72 * figure.get_figheight(), 72 / figure.dpi
    places = figure.axes[0].transData.transform([(point.x, point.y) for point in points]) * scale
    return [
        f'<circle class="spot" cx="{x:.1f}" cy="{height - y:.1f}" r="5"><title>{escape(point.text)}</title></circle>'
        for (x, y), point in zip(places, points, strict=True)
        if np.isfinite((x, y)).all()
    ]


HEADING, KEY = "heading", "key"
"""The identifiers of what a page leaves out."""


def _framed(figure: Figure, title: str) -> tuple[Text, Legend | None]:
    """A heading above the figure, and below it a legend where lines have names."""
    axes = figure.axes[0]
    figure.set_figheight(figure.get_figheight() + 0.25)
    heading = axes.set_title(title, loc="left", fontsize=10)
    heading.set_gid(HEADING)
    handles, names = axes.get_legend_handles_labels()
    if not handles:
        return heading, None
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(names) // 4))
    legend = figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    legend.set_gid(KEY)
    return heading, legend


def _bare(figure: Figure, framed: tuple[Text, Legend | None], svg: str) -> str:
    """The drawn figure without heading and legend, cut to what is left."""
    heading, legend = framed
    scale, width, height = 72 / figure.dpi, 72 * figure.get_figwidth(), 72 * figure.get_figheight()
    top = height - heading.get_window_extent().y0 * scale - 1
    bottom = 0.0 if legend is None else legend.get_window_extent().y1 * scale + 1
    box = f'viewBox="0 {top:.1f} {width:.1f} {height - top - bottom:.1f}"'
    return re.sub(r'viewBox="[^"]+"', box, without(without(svg, HEADING), KEY), count=1)
