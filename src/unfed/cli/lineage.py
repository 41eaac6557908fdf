"""`unfed lineage`: what still carries a client, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import zip_longest
from typing import Annotated

import typer
from rich.markup import escape

from unfed.cli.console import Console, echo
from unfed.cli.options import Json, RunArgument
from unfed.folder.folder import RunFolder
from unfed.runs.lineage import affected as carrying
from unfed.runs.record import Record

stdout = Console(highlight=False)


def lineage(
    run: RunArgument,
    affected: Annotated[str, typer.Option(metavar="CLIENT", help="Whose traces are looked for.")],
    as_json: Json = False,
) -> None:
    """List every model, state, export, report and upload that still carries a client.

    Beside each stands what to do about it. Exports and reports are known from the day they were written. Backups and
    copies are known to nobody here.
    """
    found = carrying(Record(RunFolder(run)), affected)
    if as_json:
        echo(json.dumps({"client": affected, "carriers": [asdict(one) for one in found]}))
        return
    if not found:
        stdout.print(f"Nothing that is known here carries client {escape(affected)}.", soft_wrap=True)
    for one, after in zip_longest(found, found[1:]):
        stdout.print(f"[bold]{escape(one.file)}[/bold] ({one.kind}): {escape(one.what)}", soft_wrap=True)
        if after is None or after.do != one.do:
            stdout.print(f"    → {escape(one.do)}", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command()(lineage)
