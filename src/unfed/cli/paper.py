"""`unfed paper`: every table and figure of the paper."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from unfed.cli.console import Console
from unfed.cli.display import shown
from unfed.cli.options import AllowCode, Budget, Json, Quiet, Sets, moment_of, watched_until
from unfed.errors import UnfedError, nearest
from unfed.paper.items import SCALES, Item, chosen
from unfed.runs.progress import OutOfTime, Watch
from unfed.runs.run import Run

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def paper(
    items: Annotated[list[str] | None, typer.Argument(metavar="[ITEM …]", help="table-1, figure-4, …; all.")] = None,
    scale: Annotated[str, typer.Option(help="digits: minutes each. paper: its own data and models, a GPU.")] = "digits",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="For runs, files, page; default paper/SCALE.")] = None,
    sets: Sets = [],  # noqa: B006
    budget: Budget = None,
    show: Annotated[bool, typer.Option("--list", help="Name the items with their runs, and stop.")] = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make every table and figure of the paper, or some.

    Runs, Markdown, LaTeX, SVG and one page of all of it.
    """
    if scale not in SCALES:
        raise UnfedError(f"--scale takes {' or '.join(SCALES)}, not {scale!r}.{nearest(scale, SCALES)}")
    wanted = chosen(items or [])
    if show:
        _show(wanted, scale, as_json)
        return
    from unfed.paper.making import make  # it can draw, and drawing is slow to import

    silent = quiet or as_json
    told = (lambda text: None) if silent else (lambda text: stdout.print(f"[bold]{escape(text)}[/bold]"))
    moment = moment_of(budget)

    @contextmanager
    def watched(run: Run) -> Iterator[Watch]:
        with shown(run, stdout, silent) as watch:
            yield watched_until(watch, moment)

    try:
        page = make(wanted, scale, out or Path("paper", scale), watched, told, sets)
    except KeyboardInterrupt as stop:
        why = f"The budget of {budget} is spent." if isinstance(stop, OutOfTime) else "Interrupted."
        stderr.print(f"{why} Nothing is lost: give the same command again.", soft_wrap=True)
        sys.exit(130)
    if as_json:
        typer.echo(json.dumps({"page": str(page), "items": [item.id for item in wanted]}))
    else:
        stdout.print(f"Page: [bold]{escape(str(page))}[/bold]", soft_wrap=True)


def _show(wanted: list[Item], scale: str, as_json: bool) -> None:
    if as_json:
        typer.echo(
            json.dumps(
                {i.id: {"title": i.title, "runs": [vars(s) for s in i.runs[scale]]} for i in wanted}, ensure_ascii=False
            )
        )
        return
    table = Table(box=None, pad_edge=False)
    for column in ("item", "what", "runs"):
        table.add_column(column)
    for item in wanted:
        table.add_row(item.id, item.title, "; ".join(f"{s.name} ({s.preset})" for s in item.runs[scale]))
    stdout.print(table)


def add_to(app: typer.Typer) -> None:
    app.command()(paper)
