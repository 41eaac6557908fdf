"""What goes to a terminal.

Names and texts from files can colour nothing, move nothing and hide nothing there.

Everything that is printed passes through `Console`: control characters that were in a text become visible (`␛` for
escape), and so do the marks by which text is written backwards. Markup is our own: what comes from elsewhere is put
through `rich.markup.escape` where it is printed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

import typer
from rich import console
from rich.segment import Segment

_KEPT = "\n\t"


def visible(text: str) -> str:
    """The text with its control characters as pictures of themselves."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(mark) for mark in text)


def _shown(mark: str) -> str:
    if mark in _KEPT or unicodedata.category(mark) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return mark
    number = ord(mark)
    if number < 0x20:
        return chr(0x2400 + number)
    return "␡" if number == 0x7F else "�"


class Console(console.Console):
    """A console that shows what is in a text and obeys none of it."""

    def render(self, *arguments: Any, **named: Any) -> Iterable[Segment]:
        for segment in super().render(*arguments, **named):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def echo(text: str) -> None:
    """Plain text to stdout, for tables and files of text."""
    typer.echo(visible(text))
