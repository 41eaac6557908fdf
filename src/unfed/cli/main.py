"""The command line: its commands, its entry point, and its exit codes.

Bad input ends with one sentence on stderr and exit code 2 (3 where a quorum or gate refused, 130 after Ctrl-C with the
command that resumes). `--json` writes one JSON value to stdout and nothing else there.
"""

import inspect
import io
import os
import platform
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Any, get_type_hints

import click
import typer
from rich.markup import escape
from typer.core import TyperArgument, TyperGroup

import unfed
from unfed import plugins
from unfed.cli import data, evidence, flower, looking, models, paper, reports, requests, run, studies
from unfed.cli.console import stderr
from unfed.cli.options import plain
from unfed.errors import UnfedError, UnfedWarning

PANELS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Begin": {"demo": run.demo, "new": run.new, "run": run.run, "sweep": studies.sweep, "resume": run.resume},
    "Serve a deletion request": {
        "forget": requests.forget,
        "status": looking.status,
        "withdraw": requests.withdraw,
        "probe": looking.probe,
        "purge": requests.purge,
        "lineage": requests.lineage,
    },
    "Sign, log, prove": {
        "keys": evidence.keys_app,
        "request": evidence.request_app,
        "log": evidence.log_app,
        "bundle": evidence.bundle,
        "verify": evidence.verify,
        "serve": evidence.serve,
    },
    "Look at results": {
        "report": reports.report,
        "compare": reports.compare,
        "index": reports.index,
        "evaluate": looking.evaluate,
        "population": studies.population,
        "judge": studies.judge,
        "bench": studies.bench,
        "check": looking.check,
    },
    "Models and folders": {
        "export": models.export,
        "negate": models.negate,
        "convert": models.convert,
        "prune": models.prune,
    },
    "What there is": {
        "methods": looking.methods_app,
        "data": data.app,
        "flower": flower.app,
        "paper": paper.paper,
    },
}
"""The commands in the order in which people need them."""
ORDER = [name for commands in PANELS.values() for name in commands]


class Commands(TyperGroup):
    """All commands, in our order; Typer would list groups first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ORDER

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        if found is not None:
            complete_help(found, ctx)
        return name, found, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Typer itself would let one that is interrupted end in silence."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted; nothing half-written was left.", err=True)
            raise click.exceptions.Exit(130) from None


def complete_help(command: click.Command, context: click.Context) -> None:
    """Give arguments the help that their function states, and put --help into the last group.

    From click 8.4 on an argument has a help of its own, which replaces Typer 0.20's by nothing.
    """
    for argument in command.params:
        if isinstance(argument, TyperArgument) and not argument.help and command.callback and argument.name:
            stated = get_type_hints(inspect.unwrap(command.callback), include_extras=True)[argument.name]
            argument.help = stated.__metadata__[0].help
    asks = command.get_help_option(context)
    if asks is not None and command.params:
        vars(asks)["rich_help_panel"] = vars(command.params[-1]).get("rich_help_panel")
    for below in vars(command).get("commands", {}).values():
        complete_help(below, context)


app = typer.Typer(
    name="unfed",
    cls=Commands,
    help="Take a participant, a class or samples out of a trained federated model, and measure whether they are out.",
    epilog="Begin with `unfed demo`. Each command explains itself: `unfed forget --help`.",
    no_args_is_help=True,
    suggest_commands=False,  # click suggests one itself
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _panel, _commands in PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)


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
    except Exception as error:  # never a bare traceback: a user can do nothing with it
        sentence, code = explained(error)
        stderr.print(f"[bold red]error:[/bold red] {escape(sentence)}", soft_wrap=True)
        sys.exit(code)


def _show_warning(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
    if issubclass(category, UnfedWarning):
        stderr.print(f"[bold yellow]note:[/bold yellow] {escape(str(message))}", soft_wrap=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, plain("Show the version.", "--version")] = False) -> None:
    if version:
        typer.echo(f"unfed {unfed.__version__}")
        raise typer.Exit


# --- what was not foreseen --------------------------------------------------------------------------------------------


def explained(error: Exception) -> tuple[str, int]:
    """A sentence and an exit code: 2 for what a user can mend, 1 for a fault of ours."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}; check the path, its rights, the disk and the network.", 2
    if isinstance(error, MemoryError) or _out_of_memory(error):
        return (
            "There is not enough memory for this; take fewer clients at once (engine.chunk), smaller batches, or a"
            " larger machine. What was saved before is untouched.",
            2,
        )
    if isinstance(error, RecursionError):
        return "Something that was read is nested too deep; give a file with fewer levels.", 2
    said = (str(error).splitlines() or [""])[0][:200]
    shown = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"This was not foreseen ({shown}). {_logged(error)} What was saved before is untouched.", 1


def _out_of_memory(error: Exception) -> bool:
    """PyTorch says it in its own words, on the CPU and on a device."""
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "not enough memory" in str(error))
    )


def _logged(error: Exception) -> str:
    """Write down what happened, for a bug report."""
    text = [
        f"unfed {unfed.__version__}, Python {platform.python_version()}, {platform.platform()}\n",
        f"{sys.argv!r}\n\n",
        *traceback.format_exception(error),
    ]
    try:
        descriptor, path = tempfile.mkstemp(prefix="unfed-", suffix=".log", text=True)  # 0600
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(text)
    except OSError as failed:
        return f"The details could not be written down ({failed.strerror or failed})."
    return f"The details are in {path}; please report it with that file."


if __name__ == "__main__":
    main()
