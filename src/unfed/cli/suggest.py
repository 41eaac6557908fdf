"""`unfed suggest`: which layer of a model to perturb, and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.table import Table

from unfed import rng
from unfed.analysis.advice import Advice, Prober, Sample, advise
from unfed.api import write_report
from unfed.cli.console import Console
from unfed.cli.options import AllowCode, Json, Seed
from unfed.config.config import Config, presets
from unfed.data import datasets
from unfed.folder import findings as studies
from unfed.model.networks import build
from unfed.model.params import params_of
from unfed.runs.run import Run

stdout = Console(highlight=False)
MOST = 1000
"""Rows that a score is made of at most."""
SHOWN = 8


def suggest(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, a preset, or a network's name.")],
    data: Annotated[str | None, typer.Option(help="For a name: the data set that gives shape and classes.")] = None,
    rules: Annotated[bool, typer.Option("--rules", help="Of a run: do not score on its retained rows.")] = False,
    seed: Seed = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Name the layer to perturb and the perturbation, with reasons and what is in doubt.

    Of a run, every candidate is perturbed and given one round on rows that stay; no Retrain is needed. The advice goes
    into its folder and its report. Of a name, it follows from the network's graph alone.
    """
    found = _of_run(Path(model), seed, rules) if (Path(model) / "run.json").exists() else _of_name(model, data)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
        return
    stdout.print(f"Perturb [bold]{escape(found.layer)}[/bold] by [bold]{found.perturbation}[/bold].", soft_wrap=True)
    for sentence in found.why:
        stdout.print(escape(sentence), soft_wrap=True)
    for sentence in found.doubts:
        stdout.print(f"[yellow]In doubt:[/yellow] {escape(sentence)}", soft_wrap=True)
    if found.ranked[0].probe is not None:
        _show(found)
    layers = escape(f'methods.not.layers=["{found.layer}"]')
    stdout.print(
        "To compare it, give `unfed run` these words:"
        f" `--set '{layers}' --set 'methods.not.perturbation=\"{found.perturbation}\"'`.",
        soft_wrap=True,
    )
    stdout.print(
        "To serve requests, `unfed forget --method sealed` perturbs all hidden layers by a draw that nobody keeps: one"
        " layer alone can be fitted again.",
        soft_wrap=True,
    )


def _of_run(folder: Path, seed: int | None, rules: bool) -> Advice:
    run = Run.open(folder)
    one = run.one_seed(seed)
    requests, world = run.scope(one), run.world(one)
    world.settle()
    module = world.template.module
    clients = list(world.scoped(requests).values())
    rows = torch.cat([c.rows[c.view("retain")] for c in clients])
    rows = rows[rng.first(rng.key("suggest", one), len(rows), min(MOST, len(rows)))]
    x, y = clients[0].source.fetch(rows, None)
    if rules:
        return advise(module, example=x[:2], fresh=world.fresh)
    phase = world.training_settings().phase
    sample = Sample(x, y, phase.optimiser.lr, phase.batch, one)
    prober = Prober(world.template, run.current(one), sample)
    found = advise(module, example=x[:2], prober=prober, fresh=world.fresh, seed=one)
    models = studies.models_of(run.folder, {"in force": run.current_job(one)})
    studies.keep(studies.advice_file(run.folder, one), {"seed": one, "models": models, "advice": found.to_json()})
    write_report(run)
    return found


def _of_name(name: str, data: str | None) -> Advice:
    """A network that nobody trained: its graph is all there is."""
    options, network = {}, name
    if name in presets():
        config = Config.preset(name, [])
        data, network, options = data or config.data.name, config.model.name, dict(config.model.options)
    train = datasets.load(data or "digits").train
    module = build(network, shape=train.shape, classes=train.classes, seed=0, **options)

    def fresh(seed: int) -> dict[str, torch.Tensor]:
        return params_of(build(network, shape=train.shape, classes=train.classes, seed=seed, **options))

    return advise(module, example=train.fetch(torch.arange(2), None)[0], fresh=fresh)


def _show(found: Advice) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for column in ("how", "score", "behind", "CKA drop", "loss", "back", "distance"):
        table.add_column(column, justify="left" if column == "how" else "right")
    for one in found.ranked[:SHOWN]:
        assert one.probe is not None
        numbers = (one.score or 0.0, one.behind, one.probe.drop, one.probe.loss, one.probe.back, one.probe.distance)
        table.add_row(escape(one.layer), one.perturbation, *(f"{number:.2f}" for number in numbers))
    stdout.print(table)


def add_to(app: typer.Typer) -> None:
    app.command()(suggest)
