"""The commands in the order in which people need them; each is imported when it is called.

unfed --help, --version, completion in a shell            ─► this table and `completion`, in a fraction of a second
unfed forget …                                            ─► the table names its module, which imports PyTorch
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import typer
from click.shell_completion import CompletionItem
from typer.core import TyperArgument, TyperGroup
from typer.utils import get_params_from_function

from unfed.cli import completion


@dataclass(frozen=True)
class Entry:
    """A command: its name, the module of this folder that adds it, and its line in `unfed --help`."""

    name: str
    module: str
    summary: str


PANELS = {
    "Begin": (
        Entry("demo", "running", "Ten clients, one backdoor, three ways to forget it. A minute."),
        Entry("run", "running", "Train a federation, let methods forget, compare them."),
        Entry("sweep", "sweep", "One run for every combination of some values."),
        Entry("resume", "running", "Go on with a run that was interrupted."),
    ),
    "Serve a deletion request": (
        Entry("forget", "requests", "Take clients, classes or samples out of a trained run."),
        Entry("status", "looking", "Where a run stands: rounds, requests, which model is in force."),
        Entry("withdraw", "requests", "Let a request go that is not fulfilled."),
        Entry("probe", "probe", "Try to undo what a run has forgotten."),
        Entry("purge", "purge", "Delete what still carries a fulfilled request."),
        Entry("lineage", "lineage", "List everything that still carries a client."),
    ),
    "Sign, log, prove": (
        Entry("keys", "trust", "Keys that sign requests, and whose they are."),
        Entry("request", "trust", "Sign a deletion request; look at a signed one."),
        Entry("log", "trust", "The log of a run: is it whole, who took no part."),
        Entry("bundle", "evidence", "Write the signed evidence of a served request."),
        Entry("verify", "evidence", "Check an evidence bundle, without the run."),
        Entry("serve", "evidence", "Take signed requests over the network; show the queue."),
    ),
    "Look at results": (
        Entry("report", "report", "The report of a run, its tables, figures and numbers."),
        Entry("compare", "compare", "Several runs in one report, and in what they differ."),
        Entry("index", "index", "One page of all runs and requests in a folder."),
        Entry("evaluate", "looking", "Score a model on the run's own data."),
        Entry("population", "population", "Many models of one config, for evidence that has a spread."),
        Entry("judge", "judge", "How sure a population makes it that a method forgets."),
        Entry("stress", "stress", "Harder forget sets: which methods fail, Retrain included."),
        Entry("tune", "tune", "Choose a method's hyperparameters on half of a population."),
        Entry("check", "check", "Say whether a run folder is whole."),
    ),
    "Models and folders": (
        Entry("export", "files", "Write a model of a run to a file."),
        Entry("negate", "files", "Negate layers of a model file (Eq. 3)."),
        Entry("suggest", "suggest", "Which layer of a model to perturb, and how."),
        Entry("convert", "files", "Turn a PyTorch state dict into safetensors."),
        Entry("prune", "prune", "Make a run folder smaller."),
    ),
    "What there is": (
        Entry("methods", "methods", "What methods need, serve and can be set to."),
        Entry("data", "data", "Data sets: list, download, verify."),
        Entry("flower", "flower", "The same on real, separate machines."),
        Entry("paper", "paper", "The paper's tables and figures."),
        Entry("theory", "theory", "The paper's claims, each tried: holds, fails."),
    ),
}
HOMES = {entry.name: entry.module for entries in PANELS.values() for entry in entries}


def _lines() -> dict[str, click.Command]:
    """A stand-in for every command: enough to list it."""
    made = {}
    for panel, entries in PANELS.items():
        for entry in entries:
            made[entry.name] = line = click.Command(entry.name, help=entry.summary)
            vars(line)["rich_help_panel"] = panel  # where typer looks for it
    return made


class _Imported(dict[str, click.Command]):
    """The commands by name; whoever asks for one gets it imported."""

    def __init__(self) -> None:
        super().__init__(_lines())
        self._loaded: set[str] = set()

    def __getitem__(self, name: str) -> click.Command:
        if name in self and name not in self._loaded:
            panel = next(panel for panel, entries in PANELS.items() if name in [entry.name for entry in entries])
            self[name] = load(name, panel)
            self._loaded.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401  (this is it)

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]


def load(name: str, panel: str | None = None) -> click.Command:
    """Import the module of a command, and give the command."""
    own = typer.Typer(rich_markup_mode="markdown")
    importlib.import_module(f"unfed.cli.{HOMES[name]}").add_to(own)
    command = typer.main.get_group(own).commands[name]
    vars(command)["rich_help_panel"] = panel
    explain_arguments(command)
    return command


def explain_arguments(command: click.Command) -> None:
    """Give every argument, of subcommands too, the help that its function states.

    From click 8.4 on an argument has a help of its own, and typer 0.20 lets that replace what it was told by nothing.
    """
    stated = get_params_from_function(inspect.unwrap(command.callback)) if command.callback else {}
    for parameter in command.params:
        if isinstance(parameter, TyperArgument) and parameter.name in stated and not parameter.help:
            parameter.help = getattr(stated[parameter.name].default, "help", None)
    for below in vars(command).get("commands", {}).values():
        explain_arguments(below)


class Commands(TyperGroup):
    """The group of all commands. To be listed, none of them is imported."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.commands = _Imported()
        self.suggest_commands = False  # click suggests one itself
        self._listing = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if self._listing:
            return _lines().get(cmd_name)
        return completion.stand_in(cmd_name) if completion.completing() else super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Typer itself would let one that is interrupted end in silence."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted; nothing half-written was left.", err=True)
            raise click.exceptions.Exit(130) from None

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with self._as_list():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        with self._as_list():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _as_list(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False
