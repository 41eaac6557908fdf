"""How a picture gets into the page.

It is SVG text that takes its colours and its font from the page around it.

matplotlib draws with stand-in colours; afterwards each stand-in becomes `currentColor` or a CSS variable, so one
picture serves light, dark and print. Text stays text. The same input gives the same bytes: no date, fixed identifiers.
"""

from __future__ import annotations

import html
import io
import re
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# Stand-in → what the page shows. No picture of ours uses these exact colours for anything else.
INK, FAINT, REFERENCE, PAPER = "#010203", "#010204", "#010205", "#010206"
SERIES = tuple(f"#0102{index:02x}" for index in range(0x10, 0x18))
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
    """The figure as SVG in stand-in colours: this is what takes time, and everything else is made of it."""
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
