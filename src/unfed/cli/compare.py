"""`unfed compare`: several runs in one report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from unfed import storage
from unfed.api import compare as write_comparison
from unfed.api import compared, enter_comparison
from unfed.cli.console import Console, echo
from unfed.cli.options import plain_file
from unfed.errors import UnfedError
from unfed.report.rules import named

stdout = Console(highlight=False)


def compare(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN RUN …", help="Two run folders or more.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", callback=plain_file, help="Default: compare.html here; tables to stdout."),
    ] = None,
    kind: Annotated[str, typer.Option("--format", help="html, md, latex or csv.")] = "html",
    rule: Annotated[str, typer.Option(help="best-gap, recovered or last.")] = "best-gap",
) -> None:
    """Put several runs into one report: their results side by side, and in what they differ."""
    kind = kind.lower()
    if kind not in ("html", "md", "latex", "csv"):
        raise UnfedError(f"--format takes html, md, latex or csv, not {kind!r}.")
    named(rule)
    if kind == "html":
        made = write_comparison(runs or [], out or Path("compare.html"), rule)
        stdout.print(f"Report: {escape(str(made))}", soft_wrap=True)
        return
    from unfed.report import compare as tables  # it can draw, and drawing is slow to import
    from unfed.report import gallery

    told = compared(runs or [])
    if kind == "csv":
        text = gallery.csv_text(gallery.records(tables.compared_rows(told, rule)))
    else:
        text = (tables.markdown if kind == "md" else tables.latex)(told, rule)
    if out is None:
        echo(text)
    else:
        enter_comparison(runs or [], out, text.encode())
        storage.deliver(out, text.encode())
        stdout.print(f"Report: {escape(str(out))}", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command()(compare)
