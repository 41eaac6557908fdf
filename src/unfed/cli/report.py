"""`unfed report`: what a run has to show, as a page, a table, figures or numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from unfed import storage
from unfed.api import results, write_report
from unfed.cli.console import Console, echo
from unfed.cli.options import RunArgument
from unfed.errors import UnfedError
from unfed.report import tables
from unfed.runs.handed_out import hand_out
from unfed.runs.run import Run

stdout = Console(highlight=False)


def report(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: RUN/report.html.")] = None,
    kind: Annotated[str, typer.Option("--format", help="html, md or latex.")] = "html",
    rule: Annotated[str, typer.Option(help="Which table is in front: last, recovered or best-gap.")] = "last",
) -> None:
    """Write the report of a run, finished or not: an HTML page, or a table in Markdown or LaTeX."""
    if (run / "unlearning.json").is_file():
        if kind != "html":
            raise UnfedError(f"{run} is evidence of a foreign app, which is shown as a page; leave --format out.")
        from unfed.report.foreign import foreign_page  # it can draw, and drawing is slow to import

        kept = storage.read_json(run / "unlearning.json", "evidence of an unlearning")
        storage.write_bytes(out or run / "report.html", foreign_page(kept, run.resolve().name).encode())
        stdout.print(f"Report: {escape(str(out or run / 'report.html'))}", soft_wrap=True)
        return
    opened = Run.open(run)
    if kind not in ("html", "md", "latex"):
        raise UnfedError(f"--format takes html, md or latex, not {kind!r}.")
    if kind == "html":
        stdout.print(f"Report: {escape(str(write_report(opened, out, rule)))}", soft_wrap=True)
        return
    text = (tables.markdown if kind == "md" else tables.latex)(results(opened, rule))
    if out is None:
        echo(text)
    else:
        hand_out(opened.folder, "report", out, text.encode())
        stdout.print(f"Report: {escape(str(out))}", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command()(report)
