"""`unfed paper`: every table and figure of the paper."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from unfed.cli.console import echo_json, print_table, stdout
from unfed.cli.options import (
    AllowCode,
    Budget,
    Json,
    Quiet,
    Sets,
    how,
    moment_of,
    out_option,
    output,
    resumable,
    watched_until,
)
from unfed.errors import UnfedError, nearest

if TYPE_CHECKING:
    from unfed.paper.items import Item
    from unfed.runs.progress import Watch
    from unfed.runs.run import Run


def paper(
    items: Annotated[list[str] | None, typer.Argument(metavar="[ITEM …]", help="table-1, figure-4, …; all.")] = None,
    scale: Annotated[str, how("digits: minutes each. paper: its own data and models, a GPU.")] = "digits",
    sets: Sets = [],
    budget: Budget = None,
    allow_code: AllowCode = False,
    show: Annotated[bool, output("Name the items with their runs, and stop.", "--list")] = False,
    out: Annotated[Path | None, out_option("For runs, files and the page; default paper/SCALE.", file=False)] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make the paper's tables and figures.

    All, or those that you name: runs, Markdown, LaTeX, SVG, and one page.
    """
    from unfed.cli.display import shown
    from unfed.paper.items import SCALES
    from unfed.paper.items import chosen as chosen_items

    if scale not in SCALES:
        raise UnfedError(f"--scale takes {' or '.join(SCALES)}, not {scale!r}.{nearest(scale, SCALES)}")
    wanted = chosen_items(items or [])
    if show:
        _show(wanted, scale, as_json)
        return
    from unfed.paper.build import make  # it can draw, and drawing is slow to import

    silent = quiet or as_json
    said = (lambda text: None) if silent else (lambda text: stdout.print(f"[bold]{escape(text)}[/bold]"))
    moment = moment_of(budget)

    @contextmanager
    def watched(run: "Run") -> Iterator["Watch"]:
        with shown(run, stdout, silent) as watch:
            yield watched_until(watch, moment)

    with resumable():
        page = make(wanted, scale, out or Path("paper", scale), watched, said, sets)
    if as_json:
        echo_json({"page": str(page), "items": [item.id for item in wanted]})
    else:
        stdout.print(f"Page: [bold]{escape(str(page))}[/bold]", soft_wrap=True)


def _show(wanted: list["Item"], scale: str, as_json: bool) -> None:
    if as_json:
        typer.echo(
            json.dumps(
                {i.id: {"title": i.title, "runs": [vars(s) for s in i.runs[scale]]} for i in wanted}, ensure_ascii=False
            )
        )
        return
    rows = [(i.id, i.title, "; ".join(f"{s.name} ({s.preset})" for s in i.runs[scale])) for i in wanted]
    print_table(("item", "what", "runs"), rows)
