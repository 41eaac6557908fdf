"""The command line: where it begins, and what becomes of whatever goes wrong.

Bad input ends with one sentence on stderr and exit code 2 (3 where a quorum or gate refused, 130 after Ctrl-C with the
command that resumes). `--json` writes one JSON value to stdout and nothing else there. Which commands there are stands
in `commands`; nothing here imports PyTorch, so `unfed --help` and `unfed --version` answer at once.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from types import FrameType
from typing import Annotated, Any

import typer
from rich.markup import escape

import unfed
from unfed import plugins
from unfed.cli.commands import Commands
from unfed.cli.console import Console
from unfed.cli.error_messages import explained
from unfed.errors import UnfedError, UnfedWarning

app = typer.Typer(
    name="unfed",
    cls=Commands,
    help="Take a participant, a class or samples out of a trained federated model, and measure whether they are out.",
    epilog="Begin with `unfed demo`. Each command explains itself: `unfed forget --help`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

stderr = Console(stderr=True, highlight=False)


def main() -> None:
    """The entry point: runs a command and turns what can go wrong into sentences and exit codes."""
    plugins.leave_current_folder()  # before anything more is imported
    warnings.showwarning = _show_warning
    signal.signal(signal.SIGTERM, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a pipe on Windows may know no "ℓ" or "→": a "?" is no reason to stop
            stream.reconfigure(errors="replace")
    try:
        app()
    except UnfedError as error:
        stderr.print(f"[bold red]error:[/bold red] {escape(str(error))}", soft_wrap=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:  # never a bare traceback: whoever reads it can do nothing with it
        sentence, code = explained(error)
        stderr.print(f"[bold red]error:[/bold red] {escape(sentence)}", soft_wrap=True)
        sys.exit(code)


def _show_warning(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
    if issubclass(category, UnfedWarning):
        stderr.print(f"[bold yellow]note:[/bold yellow] {escape(str(message))}", soft_wrap=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        typer.echo(f"unfed {unfed.__version__}")
        raise typer.Exit


if __name__ == "__main__":
    main()
