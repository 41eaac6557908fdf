"""The commands that look at a run: `unfed status`, `unfed evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from unfed import storage
from unfed.cli.check import refuse_damaged
from unfed.cli.console import Console
from unfed.cli.display import clock_text, percent, request_line
from unfed.cli.logged import due_dates
from unfed.cli.options import AllowCode, Json, RunArgument, Seed
from unfed.errors import UnfedError
from unfed.measures import metrics
from unfed.model.params import cast, check_like
from unfed.report import wording
from unfed.runs.in_force import in_force
from unfed.runs.run import Run
from unfed.runs.status import status as status_of
from unfed.values import is_measured

stdout = Console(highlight=False)


def status(run: RunArgument, as_json: Json = False) -> None:
    """Where a run stands: round, accuracy, time left, every request, how to go on."""
    opened = Run.open(run)
    found = status_of(opened)
    due = due_dates(opened.folder.path)
    found["requests"] = [{**request, "expected_by": due.get(request["id"])} for request in found["requests"]]
    if as_json:
        typer.echo(json.dumps(found))
        return
    stdout.print(f"[bold]{escape(opened.config.name)}[/bold] in {escape(str(run))}: {found['state']}")
    table, words = Table(box=None, pad_edge=False), wording.of(opened.description)
    for column in ("job", words.unit, "test", "forget", "state"):
        table.add_column(column, justify="left" if column in ("job", "state") else "right")
    for job in found["jobs"]:
        table.add_row(
            escape(job["job"]),
            f"{job['round']}/{job['rounds']}",
            percent(job["test"]),
            percent(job["forget"]),
            words.said(job["state"]),
        )
    stdout.print(table)
    for request in found["requests"]:
        stdout.print(request_line(request), soft_wrap=True)
    several = len(found["in_force"]) > 1
    for model in found["in_force"]:
        of = f" (seed {model['seed']})" if several else ""
        stdout.print(f"In force{of}: {escape(model['sentence'])}.", soft_wrap=True)
    if found["state"] == "running":
        stdout.print(f"About {clock_text(found['seconds_left'])} left.")
    elif found["state"] == "waiting":
        stdout.print(f"What waits is served by {escape(opened.going_on)}.", soft_wrap=True)
    elif found["state"] == "interrupted":
        stdout.print(f"Go on with {escape(opened.going_on)}.", soft_wrap=True)


def evaluate(
    run: RunArgument,
    model: Annotated[Path | None, typer.Option(help="A safetensors file; default: the model in force.")] = None,
    seed: Seed = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Score a model on the run's own data: retain, forget, test, membership inference, backdoor."""
    opened = Run.open(run)
    one = opened.one_seed(seed)
    world = opened.world(one)
    world.settle()
    if model is None:
        params = opened.current(one)
    else:
        if grave := None if model.exists() else opened.folder.book().purged(model):
            raise UnfedError(
                f"The model {grave.sentence(opened.folder.path)}; without --model, the one in force is scored."
            )
        params, _ = storage.load(model, "model")
        check_like(params, world.template.like, f"The model {model}")
        params = cast({n: params[n] for n in world.template.like}, world.dtype, world.device)
    refuse_damaged(run)
    requests = opened.scope(one)
    found = world.evaluator(requests)(params).numbers
    if as_json:
        typer.echo(json.dumps(found))
        return
    forgotten = ", ".join(r.id for r in requests) or "nothing"
    what = str(model) if model is not None else in_force(opened, one).sentence
    stdout.print(f"Model: {escape(what)}.", soft_wrap=True)
    table = Table(title=f"Scope: {forgotten}", title_justify="left", box=None, pad_edge=False, show_header=False)
    for name, value in found.items():
        table.add_row(name, metrics.written(name, value) if is_measured(value) else escape(str(value)))
    stdout.print(table)


def add_to(app: typer.Typer) -> None:
    for command in (status, evaluate):
        app.command()(command)
