"""The console: prints text from files without obeying it, and wraps sentences between words.

Control characters become visible (`␛` for escape), and so do marks that reverse the direction of text. Markup is our
own: other text goes through `rich.markup.escape`. A path, a command or a number with its unit stays whole and can be
copied. Where the output is no terminal, a sentence is one line.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import typer
from rich import console
from rich.cells import cell_len
from rich.markup import escape
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

    A line break in a command that is copied would run its first half. What goes on below an indented line stands a
    little further in than it, and so below the text of an item.
    """
    whole = {place for found in _COMMAND.finditer(text.plain) for place in range(*found.span())}
    return text.blank_copy("\n").join(_broken(line, width, whole, start) for start, line in _lines(text))


def _lines(text: Text) -> Iterator[tuple[int, Text]]:
    """The lines of a text, each with the place where it begins."""
    start = 0
    for line in text.split("\n", allow_blank=True):
        yield start, line
        start += len(line) + 1


def _broken(line: Text, width: int, whole: Collection[int], begins: int) -> Text:
    """One line, broken where that is allowed."""
    plain, wrapped, start, last, hang = line.plain, line.blank_copy(), 0, -1, 0
    indent = len(plain) - len(plain.lstrip(" "))
    for place, mark in enumerate(plain + " "):
        if mark == " " and place >= indent and begins + place not in whole and plain[place + 1 : place + 2] != "%":
            if last > start and hang + cell_len(plain[start:place]) > width:
                hang = indent and indent + 2
                wrapped = wrapped.append_text(line[start:last]).append("\n" + " " * hang)
                start = last + 1
            last = place
    return wrapped.append_text(line[start:])


stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def say(*sentences: str) -> None:
    """Sentences to stdout, each in a line of its own; none of what stands in them is markup."""
    for sentence in sentences:
        stdout.print(escape(sentence), soft_wrap=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), title: str = ""
) -> None:
    """A table to stdout, without frames; none of what stands in its cells is markup.

    `right` are the columns that are aligned to the right.
    """
    if title:
        stdout.print(escape(title), style="bold")
    table = Table(box=None, pad_edge=False, show_header=any(columns))
    for column in columns:
        table.add_column(escape(column), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    stdout.print(table)


def echo(text: str) -> None:
    """Plain text to stdout, for tables and files of text."""
    typer.echo(visible(text))


def echo_json(value: Any) -> None:
    """One JSON value to stdout, for machines."""
    typer.echo(json.dumps(value))
