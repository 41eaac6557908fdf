"""`unfed stress`: harder forget sets, and which methods fail them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from unfed import storage
from unfed.cli.console import Console, echo
from unfed.cli.options import AllowCode, ConfigArgument, Device, Json, Quiet, Sets, read_with_methods, with_device
from unfed.studies.stress import BOUND, CASES, HarmLeft
from unfed.studies.stress import stress as measure

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def stress(
    config: ConfigArgument,
    models: Annotated[int, typer.Option(help="How many models of each kind, per case.")] = 4,
    cases: Annotated[str | None, typer.Option(help="Which cases, with commas; default: all.")] = None,
    bound: Annotated[float, typer.Option(help="Above this harm, in percent, a method fails.")] = BOUND,
    out: Annotated[Path | None, typer.Option(help="Where it goes; default runs/NAME-stress.")] = None,
    methods: Annotated[str | None, typer.Option(help="Other methods than the config's: `not,ft`, or `all`.")] = None,
    sets: Sets = [],  # noqa: B006  (typer reads the default, nobody changes it)
    device: Device = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Let methods forget where it is hard, and say which of them fail, Retrain included.

    Poisoned rows of which half are named, one of two colluders, swapped classes, a hidden backdoor that a departure
    arms, the most memorised rows. Each case is a population; given again, the command goes on where it was.
    """
    read = read_with_methods(config, with_device(sets, device), methods)
    folder = out or Path("runs", f"{read.name}-stress")
    names = list(CASES) if cases is None else [name.strip() for name in cases.split(",") if name.strip()]
    last = [""]

    def said(kind: str, round: int, rounds: int) -> None:
        if not (as_json or quiet) and last[0] != kind:
            last[0] = kind
            stderr.print(f"{escape(last[0])}: {rounds} rounds of {models} models", soft_wrap=True)

    try:
        cells = measure(read, models, folder, names, bound, said, processes=None)
    except KeyboardInterrupt:
        stderr.print("Interrupted. Nothing is lost: give the same command again, and it goes on.", soft_wrap=True)
        sys.exit(130)
    found = {"models": models, "bound": bound, "cells": [cell.to_json() for cell in cells]}
    storage.write_json(folder / "stress.json", found)
    if as_json:
        echo(json.dumps(found))
    elif not quiet:
        _tell(cells, names, models, bound)


def _tell(cells: list[HarmLeft], cases: list[str], models: int, bound: float) -> None:
    title = (
        f"Harm left, in %: mean ± std over {models} training seeds. ✗ fails: more than {bound:g}."
        " In parentheses: accuracy on test rows."
    )
    stdout.print(title, soft_wrap=True)  # as a table's own title it would be as narrow as the table
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for case in cases:
        table.add_column(case, justify="right", overflow="fold")
    by_place = {(cell.kind, cell.case): cell for cell in cells}
    for kind in dict.fromkeys(cell.kind for cell in cells):
        table.add_row(escape(kind), *(_cell(by_place.get((kind, case))) for case in cases))
    stdout.print(table)
    for case in cases:
        failing = [cell.kind for cell in cells if cell.case == case and cell.fails and cell.kind != "before"]
        told = f"fail: {', '.join(failing)}" if failing else "nobody fails"
        before = by_place["before", case]
        if not (failing or before.fails):
            told = f"nothing is shown, because the models before have no harm above the bound ({before.mean:.1f} %)"
        stdout.print(f"{escape(case)} ({CASES[case].title}): {escape(told)}.", soft_wrap=True)


def _cell(cell: HarmLeft | None) -> str:
    """A number with its mark; a method that serves no such request has none."""
    if cell is None:
        return "-"
    return f"{cell.mean:.1f} ± {cell.std:.1f}{' ✗' if cell.fails else ''} ({cell.test:.0f})"


def add_to(app: typer.Typer) -> None:
    app.command()(stress)
