"""`unfed tune`: hyperparameters of methods, chosen on half of a population with one budget for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from unfed.cli.console import Console, echo
from unfed.cli.options import AllowCode, Json, Quiet, Sets, read_config
from unfed.errors import UnfedError, typed
from unfed.measures.population import store
from unfed.measures.population.store import BEFORE, RETRAIN, Population
from unfed.report.how_sure import tuned_words
from unfed.studies.judging import title_of
from unfed.studies.tuning import TrialResult, TuningBudget, tuned_label
from unfed.studies.tuning import tune as choose

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def tune(
    methods: Annotated[
        str, typer.Argument(metavar="METHOD", help="Which, as in `unfed methods`; several with commas, or `all`.")
    ],
    config: Annotated[str, typer.Argument(metavar="FILE", help="The population's config: a TOML file, or a preset.")],
    trials: Annotated[int, typer.Option(help="How many for every method.")] = 20,
    models: Annotated[int, typer.Option(help="Models in each trial, of the population's first half.")] = 4,
    population: Annotated[Path | None, typer.Option(help="Default: runs/NAME-population.")] = None,
    sets: Sets = [],  # noqa: B006  (typer reads the default, nobody changes it)
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose hyperparameters of methods on validation rows and the first half of a population.

    Every method gets the same number of trials. All models of the population then unlearn with what was chosen, and
    stand in it as METHOD-tuned: `unfed judge` judges them on the second half, and says what was tuned with what. `all`
    are the methods that the population has models of.
    """
    read = read_config(config, sets)
    opened = store.load(population or Path("runs", f"{read.name}-population"))
    silent, found = as_json or quiet, []
    for method in _named(methods, opened):

        def said(trial: int, seen: TrialResult | None, title: str = title_of(method)) -> None:
            if not silent:
                what = "no usable model"
                if seen is not None:
                    what = f"distance {seen.distance:.3f}, drop {seen.drop:.2f} points"
                stderr.print(f"{escape(title)}, trial {trial + 1} of {trials}: {what}", soft_wrap=True)

        found.append(choose(read, store.load(opened.folder), method, TuningBudget(trials, models), said))
        if not silent:
            stdout.print(escape(tuned_words(title_of(method), found[-1])), soft_wrap=True)
            stdout.print(f"Kept as {escape(tuned_label(method))}.", soft_wrap=True)
    if as_json:
        echo(json.dumps(found[0] if len(found) == 1 else found))
    elif not quiet:
        stdout.print(f"Next: `{escape(typed('judge', opened.folder))}`.", soft_wrap=True)


def _named(methods: str, population: Population) -> list[str]:
    """The methods that are meant."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if names == ["all"]:
        aside = (BEFORE, RETRAIN, *population.about.tuned)
        names = [kind for kind in population.about.kinds if kind not in aside]
    if not names:
        raise UnfedError(f"{population.folder} has no method's models to tune; name a method, for example not.")
    return names


def add_to(app: typer.Typer) -> None:
    app.command()(tune)
