"""`unfed theory`: every claim of the paper, tried."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from unfed.cli.console import stderr, stdout
from unfed.cli.options import AllowCode, Json, Quiet
from unfed.errors import UnfedError

if TYPE_CHECKING:
    from unfed.claims.base import Claim


def theory(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run folder: try what can be tried on its own models.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="One claim by its name. Repeatable.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="For numbers, figures and the page; default: theory.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, another federation; of a run, which of its.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds and draws: to see it work.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Name the claims, and stop.")] = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The paper's claims, each tried: holds, fails.

    They are tried on digits, in minutes. Numbers, figures and a page go into a folder; what was tried there is not
    tried again. Of a run, the claims that need no training are tried on its own models, in seconds: verdicts go into
    its folder and its report.
    """
    if run is not None:
        if out is not None or quick:
            raise UnfedError("Verdicts on a run go into its own folder, all at once; leave --out and --quick out.")
        _on_run(run, only or [], seed, show, as_json, quiet)
        return
    from unfed.claims import making  # it can draw, and drawing is slow to import

    wanted = making.chosen(only or [])
    if show:
        _show(wanted, as_json)
        return
    silent = quiet or as_json

    def told(text: str) -> None:
        if not silent:
            stderr.print(escape(text), soft_wrap=True)

    try:
        page, tried = making.make(wanted, out or Path("theory"), told, seed=seed or 0, quick=quick)
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


def _on_run(folder: Path, only: list[str], seed: int | None, show: bool, as_json: bool, quiet: bool) -> None:
    """The claims that need no training, on the models of a run."""
    from unfed.api import write_report
    from unfed.claims import of_run
    from unfed.runs.run import Run

    wanted = of_run.chosen(only)
    if show:
        _show(wanted, as_json)
        return

    def said(text: str) -> None:
        if not (quiet or as_json):
            stderr.print(escape(text), soft_wrap=True)

    opened = Run.open(folder)
    found = of_run.try_on(opened, wanted, seed, said)
    report = write_report(opened)
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    elif not quiet:
        for study in found:
            stdout.print(f"Request {escape(str(study['request']))}, seed {study['seed']}:", soft_wrap=True)
            _table([(one["place"], one["verdict"], one["seen"]) for one in study["claims"]], ("claim", "here", "seen"))
        stdout.print(f"Report: {escape(str(report))}", soft_wrap=True)


def _show(wanted: Sequence[Claim[Any]], as_json: bool) -> None:
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
