"""`unfed probe`: can what was forgotten be brought back?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from unfed.api import write_report
from unfed.cli.console import Console, echo
from unfed.cli.options import AllowCode, Json, Quiet, RunArgument, Seed
from unfed.report.undo_section import sentence
from unfed.report.undo_table import COLUMNS, grid
from unfed.runs.probe import effort_of
from unfed.runs.probe import probe as measure
from unfed.runs.run import Run

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def probe(
    run: RunArgument,
    request: Annotated[str | None, typer.Option(help="Which request, by its id; default: all.")] = None,
    method: Annotated[str | None, typer.Option(help="Whose model; default: all but Retrain's.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A coarse grid: for a first look, or a large model.")] = False,
    seed: Seed = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try to undo what a run has forgotten, and show how much comes back.

    It is shown beside Retrain and the model before.

    Inverts what has a public inverse, fits layers on a few retained rows, trains on, mixes in forgotten rows, and
    measures distances. What was measured already is not measured again.
    """
    opened = Run.open(run)

    def said(name: str) -> None:
        if not (as_json or quiet):
            stderr.print(f"Probing {escape(name)} …", soft_wrap=True)

    found = measure(opened, seed, request, method, effort_of(opened, quick), said)
    report = write_report(opened)
    if as_json:
        echo(json.dumps(found))
    elif not quiet:
        for one in found:
            _tell(one)
        stdout.print(f"Report: {report}", soft_wrap=True)


def _tell(found: Mapping[str, Any]) -> None:
    title = f"Request {found['request']}, {found['title']}, seed {found['seed']}"
    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in COLUMNS.values():
        table.add_column(name.format(title=escape(str(found["title"]))), justify="right")
    body, notes = grid([found])
    for row, cells in body:
        table.add_row(row, *(escape(cell) for cell in cells))
    stdout.print(table)
    for note in notes:
        stdout.print(escape(note), soft_wrap=True)
    stdout.print(escape(sentence([found])), soft_wrap=True)
    stdout.print()


def add_to(app: typer.Typer) -> None:
    app.command()(probe)
