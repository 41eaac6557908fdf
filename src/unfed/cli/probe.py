"""`unfed probe`: can what was forgotten be brought back?"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from unfed.api import write_report
from unfed.cli.console import Console, echo
from unfed.cli.options import AllowCode, Json, Quiet, RunArgument, Seed
from unfed.errors import UnfedError
from unfed.report.undo_section import sentence
from unfed.report.undo_table import COLUMNS, grid
from unfed.runs.probe import Step, effort_of
from unfed.runs.probe import probe as measure
from unfed.runs.run import Run

WHOSE = {"unlearned": "", "retrain": " of Retrain", "before": " of the model before"}
Number = TypeVar("Number", int, float)
LONG = 15.0
"""Seconds without a word after which somebody who reads a log is told what goes on."""

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def probe(
    run: RunArgument,
    request: Annotated[str | None, typer.Option(help="Which request, by its id; default: all.")] = None,
    method: Annotated[str | None, typer.Option(help="Whose model; default: all but Retrain's.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A coarse grid: for a first look, or a large model.")] = False,
    rows: Annotated[str | None, typer.Option(help="Rows that layers are fitted on, with commas: `100,1000`.")] = None,
    steps: Annotated[str | None, typer.Option(help="After how many steps a fit is looked at: `100,600`.")] = None,
    rates: Annotated[str | None, typer.Option(help="Rates of the fits: `0.002,0.0005`.")] = None,
    seed: Seed = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try to undo what a run has forgotten, and show how much comes back.

    It is shown beside Retrain and the model before.

    Inverts what has a public inverse, fits layers on a few retained rows, trains on, mixes in forgotten rows, and
    measures distances. Each piece is kept as soon as it is there: given again, the command goes on where it was.
    """
    fits = _numbers("--rows", rows, int), _numbers("--steps", steps, int), _numbers("--rates", rates, float)
    opened = Run.open(run)
    with _Steps(stderr, silent=as_json or quiet) as said:
        found = measure(opened, seed, request, method, effort_of(opened, quick, *fits), said)
    report = write_report(opened)
    if as_json:
        echo(json.dumps(found))
    elif not quiet:
        for one in found:
            _tell(one)
        stdout.print(f"Report: {report}", soft_wrap=True)


def _numbers(option: str, text: str | None, kind: type[Number]) -> tuple[Number, ...]:
    """The numbers above 0 that an option gives, from small to large; none where it was not given."""
    if text is None:
        return ()
    try:
        found = sorted({kind(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not all(0 < number < math.inf for number in found):
        example, what = ("100,1000", "whole numbers") if kind is int else ("0.002,0.0005", "numbers")
        raise UnfedError(f"{option} takes {what} above 0 with commas, such as {example}, not {text!r}.")
    return tuple(found)


class _Steps:
    """Live progress on a terminal; where there is none, a line for each model.

    When a piece is long in coming, it is named too.
    """

    def __init__(self, console: Console, silent: bool) -> None:
        self._console, self._silent, self._told = console, silent, time.monotonic()
        columns = TextColumn("Probing {task.description}"), BarColumn(bar_width=8), TimeElapsedColumn()
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("…", total=1)

    def __enter__(self) -> _Steps:
        if not self._silent and self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, step: Step) -> None:
        what = f"{step.target}, {step.measurement}{WHOSE[step.who]}" if step.measurement else step.target
        self._progress.update(self._task, description=escape(what), completed=max(step.number - 1, 0), total=step.of)
        late = time.monotonic() - self._told > LONG
        if not self._silent and not self._console.is_terminal and (late or not step.measurement):
            where = f" ({step.number} of {step.of})" if step.measurement else ""
            self._console.print(f"Probing {escape(what)}{where} …", soft_wrap=True)
            self._told = time.monotonic()


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
