"""What several commands have, and mean the same by."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from unfed import plugins

Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout, for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Seed = Annotated[int | None, typer.Option(help="Which repetition, where a run has several.")]
Sets = Annotated[list[str], typer.Option("--set", help="Change a config key: `--set training.rounds=20`. Repeatable.")]


def _allow(context: typer.Context, value: bool) -> bool:
    """As long as the command runs; users' modules lie where the command is given."""
    if value:
        context.with_resource(plugins.current_folder_last())
        context.with_resource(plugins.allow_code())
    return value


AllowCode = Annotated[
    bool,
    typer.Option("--allow-code", callback=_allow, help="Run the code that the config or the run folder names."),
]


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Whatever is interrupted here can be gone on with, and is told how."""
    try:
        yield
    except KeyboardInterrupt:
        stderr = Console(stderr=True, highlight=False)
        stderr.print(f"Interrupted. Nothing is lost: go on with `unfed resume {folder}`.", soft_wrap=True)
        sys.exit(130)
