"""What goes to a terminal.

Names and texts from files can colour nothing, move nothing and hide nothing there.

Everything that is printed passes through `Console`: control characters that were in a text become visible (`␛` for
escape), and so do the marks by which text is written backwards. Markup is our own: what comes from elsewhere is put
through `rich.markup.escape` where it is printed.

Sentences break between words: a path, a command or a number with its unit stays whole, and can be copied. Where the
output is no terminal, a sentence is one line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from copy import copy
from typing import Any

import typer
from rich import console
from rich.cells import cell_len
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_KEPT = "\n\t"
_COMMAND = re.compile(r"`[^`\n]*`")


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
    """A console that shows what is in a text and obeys none of it, and breaks no word."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **named: Any) -> None:
        """As rich prints, but for texts and titles, which are broken between words, or not at all."""
        if len(objects) == 1 and isinstance(table := objects[0], Table) and isinstance(table.title, str):
            self.print(table.title, style=table.title_style or "bold")  # rich would break it where the table ends
            objects = (untitled := copy(table),)
            untitled.title = None
        if not objects or not all(isinstance(one, str) for one in objects):
            super().print(*objects, soft_wrap=soft_wrap, **named)
            return
        made = [self.render_str(one, highlight=False) for one in objects]
        if self.is_terminal:
            made = [between_words(text, self.width) for text in made]
        super().print(*made, soft_wrap=True, **named)

    def render(self, *arguments: Any, **named: Any) -> Iterable[Segment]:
        for segment in super().render(*arguments, **named):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def between_words(text: Text, width: int) -> Text:
    """The text in lines of that width, as far as its words allow: `1.5 %` is one, a command too.

    A line break in a command that is copied would run its first half.
    """
    marks, start, last = list(text.plain), 0, -1
    whole = {place for found in _COMMAND.finditer(text.plain) for place in range(*found.span())}
    for place, mark in enumerate([*marks, " "]):
        if mark == "\n":
            start, last = place + 1, -1
        elif mark == " " and place not in whole and marks[place + 1 : place + 2] != ["%"]:
            if last > start and cell_len(text.plain[start:place]) > width:
                marks[last], start = "\n", last + 1
            last = place
    wrapped = text.copy()
    wrapped.plain = "".join(marks)  # as long as it was, so colours stay where they are
    return wrapped


def echo(text: str) -> None:
    """Plain text to stdout, for tables and files of text."""
    typer.echo(visible(text))
