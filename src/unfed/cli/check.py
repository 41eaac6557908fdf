"""`unfed check`: is a run folder whole?"""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.markup import escape

from unfed.cli.console import Console
from unfed.cli.logged import log_faults
from unfed.cli.options import Json, RunArgument
from unfed.errors import UnfedError, counted
from unfed.folder import check as checking
from unfed.folder.folder import RunFolder

stdout = Console(highlight=False)


def refuse_damaged(run: Path) -> None:
    """Refuse a folder that `unfed check` refuses, before a model of it is used."""
    if findings := [*checking.check(RunFolder(run)).findings, *log_faults(run)]:
        raise UnfedError(f"{run} is not whole: {findings[0]}")


def check(run: RunArgument, as_json: Json = False) -> None:
    """Say whether a run folder is whole: nothing torn, edited, replaced or lost.

    Reads everything, changes nothing.

    What was purged on purpose has a tombstone and counts as whole. Exit code 2 if something is wrong.
    """
    found = checking.check(RunFolder(run))
    found.findings += log_faults(run)
    if as_json:
        typer.echo(json.dumps({"whole": found.whole, "findings": found.findings, "counted": found.counted}))
        if not found.whole:
            raise typer.Exit(UnfedError.exit_code)
        return
    if found.whole:
        there = ", ".join(counted(number, what.removesuffix("s")) for what, number in found.counted.items())
        stdout.print(escape(f"{run} is whole: {there}."), soft_wrap=True)
        return
    first, *others = found.findings
    for sentence in others:
        stdout.print(escape(f"- {sentence}"), soft_wrap=True)
    more = f" ({len(others)} more above)" if others else ""
    raise UnfedError(f"{run} is not whole{more}: {first}")


def add_to(app: typer.Typer) -> None:
    app.command()(check)
