"""`unfed judge`: does a method remember, is it unfinished, and how sure is that?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from unfed import storage
from unfed.api import write_report
from unfed.cli.console import Console, echo
from unfed.cli.options import Json, Quiet
from unfed.measures.population import store
from unfed.runs.run import Run
from unfed.studies.judging import QUICK, judged, put_into

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)
BESIDE = 3
"""So many methods stand beside each other in a terminal, and Retrain against Retrain beside them."""


def judge(
    population: Annotated[Path, typer.Argument(metavar="POPULATION", help="A folder of `unfed population`.")],
    run: Annotated[Path | None, typer.Option(help="A run of the same config, whose report shows it too.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the draws: wider rounding, for a look.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say whether a method remembers, whether it is unfinished, and how sure that is.

    Half of the models are fitted on, the other half is judged, beside Retrain against Retrain.
    """
    opened = None if run is None else Run.open(run)
    found = store.load(population)
    if not (as_json or quiet):
        stderr.print(f"Judging {found.about.models} models of each kind …", soft_wrap=True)
    whole = judged(found, QUICK if quick else None)
    from unfed.report.how_sure import grid  # matplotlib is slow to import
    from unfed.report.population_page import population_page

    report = population / "report.html"
    storage.write_bytes(report, population_page(whole).encode())
    if opened is not None:
        put_into(opened, found, whole)
        report = write_report(opened)
    if as_json:
        echo(json.dumps(whole))
    elif not quiet:
        _tell(whole, *grid(whole))
        stdout.print(f"Report: {escape(str(report))}", soft_wrap=True)


def _tell(whole: dict[str, Any], body: list[tuple[str, list[str]]], notes: list[str]) -> None:
    from unfed.report.how_sure import COLUMNS, about_tuning, answers

    for one in whole["methods"].values():
        for _, answer in answers(one):
            stdout.print(escape(str(answer["sentence"])), soft_wrap=True)
    methods, own = body[:-1], body[-1]
    for first in range(0, len(methods), BESIDE):
        some = [*methods[first : first + BESIDE], own]
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for title, _ in some:
            table.add_column(escape(title), justify="right")
        for i, column in enumerate(COLUMNS):
            table.add_row(column.title, *(escape(cells[i]) for _, cells in some))
        stdout.print(table)
    for note in [*notes, *about_tuning(whole)]:
        stdout.print(escape(note), soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command()(judge)
