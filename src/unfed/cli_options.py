"""Options that several commands have, and mean the same by."""

from __future__ import annotations

from typing import Annotated

import typer

from unfed import plugins

Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout, for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")]
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
