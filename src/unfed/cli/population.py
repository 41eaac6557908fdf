"""`unfed population`: many models of one config, for evidence that has a spread."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from unfed.cli.console import Console, echo
from unfed.cli.options import AllowCode, ConfigArgument, Device, Json, Quiet, Sets, read_with_methods, with_device
from unfed.measures.population.store import Accuracy, Population, accuracies
from unfed.studies.grid import Said, quiet
from unfed.studies.population import missing, populate

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def population(
    config: ConfigArgument,
    models: Annotated[int, typer.Option(help="How many models of each kind; 32 or more for an attack.")] = 64,
    out: Annotated[Path | None, typer.Option(help="Where it goes; default runs/NAME-population.")] = None,
    methods: Annotated[str | None, typer.Option(help="Other methods than the config's: `not,ft`, or `all`.")] = None,
    sets: Sets = [],  # noqa: B006  (typer reads the default, nobody changes it)
    device: Device = None,
    processes: Annotated[int | None, typer.Option(help="How many at once; left out, one per core of a CPU.")] = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
    silent: Quiet = False,
) -> None:
    """Train N models before, N Retrains and N of every method, each under its own training seed.

    They are kept as what they say about the same rows. Given again, the command goes on where it was, and adds
    models or methods that were not asked for before.
    """
    read = read_with_methods(config, with_device(sets, device), methods, serving=True)
    folder = out or Path("runs", f"{read.name}-population")
    try:
        with _Bar(stderr, silent or as_json) as bar:
            found = populate(read, models, folder, bar.said, processes)
    except KeyboardInterrupt:
        stderr.print("Interrupted. Nothing is lost: give the same command again, and it goes on.", soft_wrap=True)
        sys.exit(130)
    if left := missing(found, read, models):
        stderr.print(
            f"Another process is at {left} of the models in {escape(str(folder))}; give the same command again when it"
            " is done.",
            soft_wrap=True,
        )
    rows = accuracies(found)
    if as_json:
        echo(json.dumps({"population": str(folder), "models": models, "accuracy": [row.to_json() for row in rows]}))
    elif not silent:
        _tell(found, rows)


class _Bar:
    """Live progress on a terminal; one line per kind of model where there is none."""

    def __init__(self, console: Console, silent: bool) -> None:
        self._console, self._silent, self._kind = console, silent, ""
        self._progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=24),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("getting ready", total=1)

    def __enter__(self) -> _Bar:
        if not self._silent and self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def said(self) -> Said:
        return quiet if self._silent else self._said

    def _said(self, kind: str, round: int, rounds: int) -> None:
        self._progress.update(self._task, description=escape(kind), completed=round, total=rounds)
        if kind != self._kind and not self._console.is_terminal:
            self._console.print(f"{escape(kind)}: {rounds} rounds of every seed at work", soft_wrap=True)
        self._kind = kind


def _tell(found: Population, rows: list[Accuracy]) -> None:
    about = found.about
    title = f"{about.name}, request {about.request}: {about.models} models of each kind, mean ± std over training seeds"
    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
    table.add_column("accuracy in %")
    for group in about.groups:
        table.add_column(group, justify="right")
    for row in rows:
        cells = [f"{row.mean[group]:.1f} ± {row.std[group]:.1f}" for group in about.groups]
        table.add_row(escape(row.kind), *cells)
    stdout.print(table)
    stdout.print(f"Population: [bold]{escape(str(found.folder))}[/bold]", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command()(population)
