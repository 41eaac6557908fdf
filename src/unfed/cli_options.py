"""Options that several commands have, and mean the same by."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout, for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")]
Sets = Annotated[list[str], typer.Option("--set", help="Change a config key: `--set training.rounds=20`. Repeatable.")]
