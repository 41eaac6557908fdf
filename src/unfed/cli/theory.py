"""`unfed theory`: every claim of the paper, tried."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from unfed.cli.console import stderr, stdout
from unfed.cli.options import Json, Quiet

if TYPE_CHECKING:
    from unfed.paper.claims.claim import Claim


def theory(
    only: Annotated[list[str] | None, typer.Option("--only", help="One claim by its name. Repeatable.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="For numbers, figures and the page.")] = Path("theory"),
    seed: Annotated[int, typer.Option(help="Another seed, another federation.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds and draws: to see it work.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Name the claims, and stop.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The paper's claims, each tried: holds, fails.

    They are tried on digits, in minutes. Numbers, figures and a page go into a folder; what was tried there is not
    tried again.
    """
    from unfed.paper.claims import trial  # it can draw, and drawing is slow to import

    wanted = trial.chosen(only or [])
    if show:
        _show(wanted, as_json)
        return
    silent = quiet or as_json

    def told(text: str) -> None:
        if not silent:
            stderr.print(escape(text), soft_wrap=True)

    try:
        page, tried = trial.make(wanted, out, told, seed=seed, quick=quick)
    except KeyboardInterrupt:
        stderr.print("Interrupted. Nothing is lost: give the same command again.", soft_wrap=True)
        sys.exit(130)
    if as_json:
        found = {one.claim.id: {"verdict": one.finding.told, "seen": one.finding.seen} for one in tried}
        typer.echo(json.dumps({"page": str(page), "claims": found}, ensure_ascii=False))
        return
    if not quiet:
        _table([(one.claim.place, one.claim.says, one.finding.told) for one in tried], ("claim", "it says", "verdict"))
    stdout.print(f"Page: [bold]{escape(str(page))}[/bold]", soft_wrap=True)


def _show(wanted: Sequence[Claim], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({c.id: {"place": c.place, "says": c.says} for c in wanted}, ensure_ascii=False))
        return
    _table([(c.id, c.place, c.says) for c in wanted], ("name", "where the paper says it", "what"))


def _table(rows: Sequence[tuple[str, str, str]], header: tuple[str, str, str]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in header:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    stdout.print(table)
