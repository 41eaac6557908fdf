"""Figures as their words: drawing them takes as long as the run of which a page tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import ScalarFormatter

from unfed.report import drawing, figures


def words_of(figure: Figure, name: str) -> str:
    """A figure as its words, without the heading and the legend that a page leaves out."""
    framing = {text for legend in figure.legends for text in texts_in(legend)}
    own = [text for text in texts_in(figure) if text not in framing and text.get_gid() != drawing.HEADING]
    said = "".join(f"<text>{escape(text.get_text())}</text>" for text in own)
    return f'<svg viewBox="0 0 1 1">{said}</svg>'


def texts_in(artist: Artist) -> Iterator[Text]:
    """Every text of a figure or a part; the numbers along an axis have none before it is drawn, and are not made."""
    if isinstance(artist, Text):
        yield artist
    numbers = isinstance(artist, Axis) and isinstance(artist.get_major_formatter(), ScalarFormatter)
    for part in [artist.label] if isinstance(artist, Axis) and numbers else artist.get_children():
        yield from texts_in(part)


def placed(figure: Figure, axes: Axes, names: Sequence[tuple[str, float, float]]) -> None:
    """Names at their points: to move them apart, the figure would have to be laid out."""
    for name, x, y in names:
        axes.annotate(name, (x, y))


INSTEAD: dict[tuple[Any, str], Any] = {
    (drawing, "drawn"): words_of,
    (figures, "_label"): placed,
    (drawing, "_bare"): lambda figure, framed, svg: svg,
    (drawing.Picture, "downloads"): lambda self: [],
}
"""What stands in the place of (owner, name) where no figure is drawn."""
