"""The commands that begin: `unfed demo`, `unfed new`, `unfed run`, `unfed resume`."""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from unfed.cli.console import echo_json, say, stderr, stdout
from unfed.cli.options import (
    AllowCode,
    Budget,
    ConfigArgument,
    Device,
    Json,
    Methods,
    Quiet,
    RunArgument,
    Sets,
    chosen,
    how,
    moment_of,
    out_option,
    read_config,
    resumable,
    watched_until,
    with_device,
)
from unfed.errors import Refused, UnfedError

if TYPE_CHECKING:
    from unfed.config.config import Config
    from unfed.runs.run import Run


def demo(
    methods: Annotated[str | None, how("`all`, or names with commas; default not,ft,retrain.")] = None,
    seed: Annotated[int, how("Another seed gives another federation.")] = 0,
    sets: Sets = [],
    device: Device = None,
    allow_code: AllowCode = False,
    out: Annotated[Path | None, out_option("Where the run folder goes; default runs/demo.", file=False)] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train ten clients, plant a backdoor, forget it in three ways.

    Client 0 plants the backdoor and must leave. A table and an HTML report compare NoT, fine-tuning and Retrain. It
    takes about half a minute.
    """
    from unfed.cli import display
    from unfed.config.config import Config

    preset = "demo"
    changes = [f"seed={seed}", *sets]
    if methods == "all":
        preset = "demo-all"
    elif methods is not None:
        changes.append(chosen(methods))
    run = _begin(Config.preset(preset, with_device(changes, device)), out, "demo", as_json or quiet)
    _work(run, as_json, quiet, more=lambda run: [*display.can_be_undone(run), *display.next_steps(run)])


def new(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is new or empty.")]) -> None:
    """Make a project: your data, your model, a config and a test.

    All of it runs at once. Then replace data and model by yours.
    """
    from unfed import storage

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UnfedError(f"{folder} is there already and not an empty folder; name another.")
    name = project_name(folder)
    template = files("unfed.cli").joinpath("project.txt").read_text(encoding="utf-8").format(name=name)
    for part in template.split("=== ")[1:]:
        file, _, text = part.partition("\n")
        storage.deliver(folder / file, text.encode())
    say(f"Wrote {folder}. Next: cd {folder} && unfed run experiment.toml --allow-code")


def project_name(folder: Path) -> str:
    """A name for what is made in a folder: lower case, with dashes for whatever is no letter or digit."""
    return "".join(c if c.isalnum() else "-" for c in folder.resolve().name.lower()).strip("-") or "project"


def run(
    config: ConfigArgument,
    methods: Methods = None,
    sets: Sets = [],
    device: Device = None,
    budget: Budget = None,
    operator: Annotated[
        Path | None, how("Keep a log of who took part, signed by this key.", metavar="FILE.key")
    ] = None,
    allow_code: AllowCode = False,
    out: Annotated[Path | None, out_option("Where the run folder goes; default runs/NAME.", file=False)] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a federation, forget by each method, compare them.

    It writes a table and an HTML report. If the folder holds this run, the command continues it; --out DIR starts
    another.
    """
    from unfed.runs.record import begin_log

    moment, changes = moment_of(budget), with_device(sets, device)
    if methods is not None:
        changes.append(chosen(methods))
    read = read_config(config, changes)
    begun = _begin(read, out, read.name, as_json or quiet)
    if operator is not None:
        begin_log(begun.folder.path, operator)
    _work(begun, as_json, quiet, moment)


def resume(
    run: RunArgument,
    budget: Budget = None,
    back: Annotated[bool, how("First go back to the last good state of a spoiled training.", "--back")] = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continue an interrupted run.

    It also serves waiting requests. The result is bit-equal to an uninterrupted run.
    """
    from unfed.runs.run import Run

    if back:
        round = Run.open(run).go_back()
        if not (as_json or quiet):
            say(f"Went back to the good state of round {round}.")
    _work(Run.open(run), as_json, quiet, moment_of(budget))


def _begin(config: "Config", out: Path | None, name: str, silent: bool) -> "Run":
    """A new run folder; one that holds the same config is gone on with, and that it exists is said."""
    from unfed.folder.folder import RunFolder
    from unfed.runs.run import Run

    if out is not None:
        return Run.create(config, out)
    folder, number = Path("runs", name), 2
    while not RunFolder(folder).vacant():
        if (folder / "run.json").exists():
            found = Run.open(folder)
            if found.config == config:
                _say_that_it_exists(found, silent)
                return found
        folder, number = Path("runs", f"{name}-{number}"), number + 1
    made = Run.create(config, folder)
    if number > 2 and not silent:
        stderr.print(
            f"[bold yellow]note:[/bold yellow] {escape(str(Path('runs', name)))} holds another run; this one goes to"
            f" {escape(str(folder))}. --out DIR names a folder, `unfed index runs` lists them.",
            soft_wrap=True,
        )
    return made


def _say_that_it_exists(run: "Run", silent: bool) -> None:
    """Of a folder that holds the very run that was asked for: what is done about it."""
    from unfed.report.wording import date_text
    from unfed.runs.status import status

    state, where = status(run).state, run.folder.path
    if state == "running":
        raise UnfedError(
            f"{where} holds this very run, and another process is at work in it; see `{run.command('status')}`, or"
            " give --out DIR."
        )
    if silent:
        return
    since = date_text(run.description.created)
    done = "nothing is trained again" if state == "finished" else "it goes on where it was"
    stderr.print(
        f"[bold yellow]note:[/bold yellow] {escape(str(where))} holds this very run ({since}, {state}); {done}. To"
        " train it again, give --out DIR.",
        soft_wrap=True,
    )


def _work(
    run: "Run",
    as_json: bool,
    quiet: bool,
    moment: float | None = None,
    more: Callable[["Run"], list[str]] = lambda run: [],
) -> None:
    """Do what is to be done in a run, show it, write the report; `more` has sentences after the story's.

    What `more` measures for them and keeps in the folder is in the report.
    """
    from unfed.api import results, write_report
    from unfed.cli import display
    from unfed.runs.record import logged

    with (
        resumable(run),
        display.shown(run, stdout, as_json or quiet) as watch,
        logged(run, watched_until(watch, moment)) as entering,
    ):
        if not (as_json or quiet):
            stdout.print(display.headline(run), soft_wrap=True)
        try:
            run.execute(entering)
        except Refused:
            if run.folder.book().entries:  # what became of them is on record, and the report must say so
                write_report(run)
            raise
    ending = more(run)
    report = write_report(run)
    found = results(run, "last")
    if as_json:
        echo_json({"run": str(run.folder.path), "report": str(report), "lines": run.lines()})
    elif not quiet:
        display.tell_results(run, found, ending)
        stdout.print()
        stdout.print(f"Report: [bold]{escape(str(report))}[/bold]", soft_wrap=True)
