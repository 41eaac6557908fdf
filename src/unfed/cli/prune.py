"""`unfed prune`: make a run folder smaller, without changing what can be asked of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from unfed.cli.console import Console, echo
from unfed.cli.options import Json, Quiet, RunArgument
from unfed.errors import counted
from unfed.folder.folder import RunFolder
from unfed.folder.prune import Keep
from unfed.folder.prune import prune as take_away

stdout = Console(highlight=False)

Samples = Annotated[Keep, typer.Option(help="Scores of single rows to keep: all, those of each last round, or none.")]
States = Annotated[
    bool, typer.Option(help="Keep a finished job's model once; with --no-states it stays in its state too.")
]


def prune(
    run: RunArgument,
    samples: Samples = "last",
    states: States = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a run folder smaller: old scores of single rows, and second copies of models, go.

    Reports, requests and resuming need none of it. It forgets nobody: that is `unfed forget`, then `unfed purge`.
    """
    freed = take_away(RunFolder(run), samples, states, dry_run)
    if as_json:
        echo(json.dumps({"dry_run": dry_run, "freed": [asdict(one) for one in freed]}))
    elif not quiet:
        would = "would free" if dry_run else "freed"
        scores, models = (sum(one.what == what for one in freed) for what in ("scores", "model in state"))
        stdout.print(
            f"{would} {sum(one.bytes for one in freed):,} bytes: {counted(scores, 'file')} of scores, the model in"
            f" {counted(models, 'state')}.",
            soft_wrap=True,
        )


def add_to(app: typer.Typer) -> None:
    app.command()(prune)
