"""`unfed tune`: a method's hyperparameters, chosen on half of a population."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from unfed.cli.console import Console, echo
from unfed.cli.options import AllowCode, Json, Quiet, Sets, read_config
from unfed.population import store
from unfed.report.how_sure import tuned_words
from unfed.runs.judging import title_of
from unfed.runs.tuning import Budget, Seen, tuned_label
from unfed.runs.tuning import tune as choose

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def tune(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="Which method, as in `unfed methods`.")],
    config: Annotated[str, typer.Argument(metavar="FILE", help="The population's config: a TOML file, or a preset.")],
    trials: Annotated[int, typer.Option(help="How many; give every method as many.")] = 20,
    models: Annotated[int, typer.Option(help="Models in each trial, of the population's first half.")] = 4,
    population: Annotated[Path | None, typer.Option(help="Default: runs/NAME-population.")] = None,
    sets: Sets = [],  # noqa: B006  (typer reads the default, nobody changes it)
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose a method's hyperparameters on validation rows and the first half of a population.

    All models of the population then unlearn with them, and stand in it as METHOD-tuned: `unfed judge` judges them on
    the second half, and says what was tuned with what.
    """
    read = read_config(config, sets)
    opened = store.load(population or Path("runs", f"{read.name}-population"))

    def said(trial: int, seen: Seen | None) -> None:
        if not (as_json or quiet):
            what = "no usable model" if seen is None else f"distance {seen.distance:.3f}, drop {seen.drop:.2f} points"
            stderr.print(f"Trial {trial + 1} of {trials}: {what}", soft_wrap=True)

    found = choose(read, opened, method, Budget(trials, models), said)
    if as_json:
        echo(json.dumps(found))
    elif not quiet:
        stdout.print(escape(tuned_words(title_of(method), found)), soft_wrap=True)
        stdout.print(
            f"Kept as {escape(tuned_label(method))}; next: unfed judge {escape(str(opened.folder))}", soft_wrap=True
        )


def add_to(app: typer.Typer) -> None:
    app.command()(tune)
