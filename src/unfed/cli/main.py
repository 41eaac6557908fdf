"""The command line: `unfed demo`, `run`, `resume`, `status`, `evaluate`, `report`.

Other commands have their own files.

Bad input ends with one sentence on stderr and exit code 2 (3 where a quorum or gate refused, 130 after Ctrl-C with the
command that resumes). `--json` writes one JSON value to stdout and nothing else there.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import unfed
from unfed import plugins, storage
from unfed.api import results, write_report
from unfed.cli import check, compare, data, files, flower, lineage, methods, paper, probe, prune, purge, requests
from unfed.cli.console import Console, echo
from unfed.cli.display import clock_text, percent, request_line, results_table, shown, story
from unfed.cli.error_messages import explained
from unfed.cli.lasting import ending
from unfed.cli.options import (
    AllowCode,
    Budget,
    Json,
    Quiet,
    RunArgument,
    Seed,
    Sets,
    moment_of,
    resumable,
    watched_until,
)
from unfed.errors import Refused, UnfedError, UnfedWarning
from unfed.measures import columns
from unfed.methods import METHODS
from unfed.model.params import cast, check_like
from unfed.report import tables
from unfed.report.foreign import foreign_page
from unfed.runs.config import Config, presets
from unfed.runs.folder import RunFolder
from unfed.runs.handed_out import hand_out
from unfed.runs.in_force import in_force
from unfed.runs.run import Run
from unfed.runs.status import status as status_of
from unfed.values import is_measured

app = typer.Typer(
    name="unfed",
    help="Take a participant, a class or samples out of a trained federated model, and show that they are out.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(methods.app, name="methods")
app.add_typer(data.app, name="data")
requests.add_to(app)
files.add_to(app)
flower.add_to(app)
compare.add_to(app)
check.add_to(app)
paper.add_to(app)
probe.add_to(app)
purge.add_to(app)
prune.add_to(app)
lineage.add_to(app)

Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]

stdout = Console(highlight=False)
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
    except KeyboardInterrupt:
        stderr.print("Interrupted; nothing half-written was left.")
        sys.exit(130)
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


# --- running ----------------------------------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Where the run folder goes; default runs/demo.")] = None,
    methods: Annotated[str | None, typer.Option(help="`all`, or names with commas; default not,ft,retrain.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, another federation.")] = 0,
    sets: Sets = [],  # noqa: B006  (typer reads the default, nobody changes it)
    device: Device = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ten clients learn to read digits; client 0 plants a backdoor and must leave. About a minute.

    Trains, then unlearns client 0 by NoT, by fine-tuning and by retraining, and writes an HTML report.
    """
    preset = "demo"
    changes = [f"seed={seed}", *sets]
    if methods == "all" and "demo-all" in presets():
        preset = "demo-all"
    elif methods is not None:
        names = list(METHODS) if methods == "all" else [name.strip() for name in methods.split(",")]
        changes.append(f"methods.run={json.dumps(names)}")
    _work(_begin(Config.preset(preset, _with_device(changes, device)), out, "demo"), as_json, quiet, more=ending)


@app.command()
def run(
    config: Annotated[str, typer.Argument(metavar="FILE", help="A TOML file, or the name of a preset.")],
    out: Annotated[Path | None, typer.Option(help="Where the run folder goes; default runs/NAME.")] = None,
    sets: Sets = [],  # noqa: B006
    device: Device = None,
    budget: Budget = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a federation, let methods forget, compare them, write a report."""
    moment, changes = moment_of(budget), _with_device(sets, device)
    known = not Path(config).exists() and config in presets()
    read = Config.preset(config, changes) if known else Config.read(config, changes)
    _work(_begin(read, out, read.name), as_json, quiet, moment)


@app.command()
def resume(
    run: RunArgument,
    budget: Budget = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was interrupted; the result is bit-equal to an uninterrupted one."""
    _work(Run.open(run), as_json, quiet, moment_of(budget))


def _with_device(sets: list[str], device: str | None) -> list[str]:
    return [*sets, f'device="{device}"'] if device else list(sets)


def _begin(config: Config, out: Path | None, name: str) -> Run:
    """A new run folder; an unfinished one of the same config is gone on with."""
    if out is not None:
        return Run.create(config, out)
    folder, number = Path("runs", name), 2
    while not RunFolder(folder).vacant():
        if (folder / "run.json").exists():
            found = Run.open(folder)
            if found.config == config and status_of(found)["state"] == "interrupted":
                return found
        folder, number = Path("runs", f"{name}-{number}"), number + 1
    return Run.create(config, folder)


def _work(
    run: Run,
    as_json: bool,
    quiet: bool,
    moment: float | None = None,
    more: Callable[[Run], list[str]] = lambda run: [],
) -> None:
    """Do what is to be done in a run, show it, write the report; `more` has sentences after the story's."""
    with resumable(run.folder.path), shown(run, stdout, as_json or quiet) as display:
        if not (as_json or quiet):
            stdout.print(_headline(run), soft_wrap=True)
        try:
            run.execute(watched_until(display, moment))
        except Refused:
            if run.folder.requests():  # what became of them is on record, and the report must say so
                write_report(run)
            raise
    report = write_report(run)
    found = results(run, "last")
    if as_json:
        typer.echo(json.dumps({"run": str(run.folder.path), "report": str(report), "lines": run.lines()}))
    elif not quiet:
        stdout.print()
        if found:
            title = "After the last round (rule: last). ★ smallest average gap to Retrain."
            stdout.print(results_table(found, title, stdout.width >= 130))
        for sentence in (*story(run.lines()), *more(run)):
            stdout.print(escape(sentence), soft_wrap=True)
        for request in status_of(run)["requests"]:
            if request["owed"]:
                stdout.print(request_line(request), soft_wrap=True)
        stdout.print()
        stdout.print(f"Report: [bold]{escape(str(report))}[/bold]", soft_wrap=True)


def _headline(run: Run) -> str:
    about, config = run.description, run.config
    return (
        f"[bold]{escape(config.name)}[/bold]: {escape(config.data.name)}, {len(about['clients'])} clients,"
        f" {escape(config.model.name)}"
        f" with {about['parameters']:,} parameters; {about['engine']} engine on {about['device']}."
    )


# --- looking ----------------------------------------------------------------------------------------------------------


@app.command()
def status(run: RunArgument, as_json: Json = False) -> None:
    """Where a run stands: round, accuracy, time left, every request, how to go on."""
    opened = Run.open(run)
    found = status_of(opened)
    if as_json:
        typer.echo(json.dumps(found))
        return
    stdout.print(f"[bold]{escape(opened.config.name)}[/bold] in {escape(str(run))}: {found['state']}")
    table = Table(box=None, pad_edge=False)
    for column in ("job", "round", "test", "forget", "state"):
        table.add_column(column, justify="right" if column in ("round", "test", "forget") else "left")
    for job in found["jobs"]:
        table.add_row(
            escape(job["job"]),
            f"{job['round']}/{job['rounds']}",
            percent(job["test"]),
            percent(job["forget"]),
            job["state"],
        )
    stdout.print(table)
    for request in found["requests"]:
        stdout.print(request_line(request), soft_wrap=True)
    several = len(found["in_force"]) > 1
    for model in found["in_force"]:
        of = f" (seed {model['seed']})" if several else ""
        stdout.print(f"In force{of}: {escape(model['sentence'])}.", soft_wrap=True)
    if found["state"] == "running":
        stdout.print(f"About {clock_text(found['seconds_left'])} left.")
    elif found["state"] == "interrupted":
        stdout.print(f"Go on with: unfed resume {escape(str(run))}", soft_wrap=True)


@app.command()
def evaluate(
    run: RunArgument,
    model: Annotated[Path | None, typer.Option(help="A safetensors file; default: the model in force.")] = None,
    seed: Seed = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Score a model on the run's own data: retain, forget, test, membership inference, backdoor."""
    opened = Run.open(run)
    one = opened.one_seed(seed)
    world = opened.world(one)
    world.settle()
    if model is None:
        params = opened.current(one)
    else:
        params, _ = storage.load(model, "model")
        check_like(params, world.template.like, f"The model {model}")
        params = cast({n: params[n] for n in world.template.like}, world.dtype, world.device)
    requests = opened.scope(one)
    found = world.evaluator(requests)(params).numbers
    if as_json:
        typer.echo(json.dumps(found))
        return
    forgotten = ", ".join(r.id for r in requests) or "nothing"
    what = str(model) if model is not None else in_force(opened, one).sentence
    stdout.print(f"Model: {escape(what)}.", soft_wrap=True)
    table = Table(title=f"Scope: {forgotten}", title_justify="left", box=None, pad_edge=False, show_header=False)
    for name, value in found.items():
        table.add_row(name, columns.written(name, value) if is_measured(value) else escape(str(value)))
    stdout.print(table)


@app.command()
def report(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: RUN/report.html.")] = None,
    kind: Annotated[str, typer.Option("--format", help="html, md or latex.")] = "html",
    rule: Annotated[str, typer.Option(help="Which table is in front: last, recovered or best-gap.")] = "last",
) -> None:
    """Write the report of a run, finished or not: an HTML page, or a table in Markdown or LaTeX."""
    if (run / "unlearning.json").is_file():
        if kind != "html":
            raise UnfedError(f"{run} is evidence of a foreign app, which is shown as a page; leave --format out.")
        kept = storage.read_json(run / "unlearning.json", "evidence of an unlearning")
        storage.write_bytes(out or run / "report.html", foreign_page(kept, run.resolve().name).encode())
        stdout.print(f"Report: {escape(str(out or run / 'report.html'))}", soft_wrap=True)
        return
    opened = Run.open(run)
    if kind not in ("html", "md", "latex"):
        raise UnfedError(f"--format takes html, md or latex, not {kind!r}.")
    if kind == "html":
        stdout.print(f"Report: {escape(str(write_report(opened, out, rule)))}", soft_wrap=True)
        return
    text = (tables.markdown if kind == "md" else tables.latex)(results(opened, rule))
    if out is None:
        echo(text)
    else:
        hand_out(opened.folder, "report", out, text.encode())
        stdout.print(f"Report: {escape(str(out))}", soft_wrap=True)


if __name__ == "__main__":
    main()
