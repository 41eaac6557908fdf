"""The commands that train: `unfed demo`, `unfed run`, `unfed resume`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from unfed.api import results, write_report
from unfed.cli.console import Console
from unfed.cli.display import print_results, request_line, shown
from unfed.cli.lasting import ending
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
    Track,
    chosen,
    moment_of,
    read_config,
    resumable,
    watched_until,
    with_device,
)
from unfed.cli.story import story
from unfed.config.config import Config, presets
from unfed.errors import Refused, UnfedError
from unfed.folder.folder import RunFolder
from unfed.methods import METHODS
from unfed.report import wording
from unfed.report.best import star
from unfed.report.verdicts import falls, verdicts
from unfed.report.words import date_text
from unfed.runs.onlooker import begin_log, logged
from unfed.runs.run import Run
from unfed.runs.status import status as status_of
from unfed.runs.tracking import known, tracked

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


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
        changes.append(chosen(methods, list(METHODS)))
    run = _begin(Config.preset(preset, with_device(changes, device)), out, "demo", as_json or quiet)
    _work(run, as_json, quiet, more=lambda run: [*ending(run), *_next_steps(run)])


def run(
    config: ConfigArgument,
    out: Annotated[Path | None, typer.Option(help="Where the run folder goes; default runs/NAME.")] = None,
    methods: Methods = None,
    sets: Sets = [],  # noqa: B006
    device: Device = None,
    budget: Budget = None,
    operator: Annotated[
        Path | None, typer.Option(metavar="FILE.key", help="Keep a log of who took part, signed by this key.")
    ] = None,
    track: Track = [],  # noqa: B006
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a federation, let methods forget, compare them, write a report.

    A folder that holds this very run is gone on with, or shown if it is finished; --out DIR trains anew.
    """
    known(track)
    moment, changes = moment_of(budget), with_device(sets, device)
    if methods is not None:
        changes.append(chosen(methods))
    read = read_config(config, changes)
    begun = _begin(read, out, read.name, as_json or quiet)
    if operator is not None:
        begin_log(begun.folder.path, operator)
    _work(begun, as_json, quiet, moment, track)


def resume(
    run: RunArgument,
    budget: Budget = None,
    back: Annotated[
        bool, typer.Option("--back", help="First go back to the last good state of a training that was spoiled.")
    ] = False,
    track: Track = [],  # noqa: B006
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was interrupted; the result is bit-equal to an uninterrupted one."""
    if back:
        round = Run.open(run).go_back()
        if not (as_json or quiet):
            stdout.print(f"Went back to the good state of round {round}.")
    _work(Run.open(run), as_json, quiet, moment_of(budget), track)


def _begin(config: Config, out: Path | None, name: str, silent: bool) -> Run:
    """A new run folder; one that holds the same config is gone on with, and that it exists is said."""
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


def _say_that_it_exists(run: Run, silent: bool) -> None:
    """Of a folder that holds the very run that was asked for: what is done about it."""
    state, where = status_of(run)["state"], run.folder.path
    if state == "running":
        raise UnfedError(
            f"{where} holds this very run, and another process is at work in it; see `{run.command('status')}`, or"
            " give --out DIR."
        )
    if silent:
        return
    since = date_text(str(run.info().get("created", "")))
    done = "nothing is trained again" if state == "finished" else "it goes on where it was"
    stderr.print(
        f"[bold yellow]note:[/bold yellow] {escape(str(where))} holds this very run ({since}, {state}); {done}. To"
        " train it anew, give --out DIR.",
        soft_wrap=True,
    )


def _work(
    run: Run,
    as_json: bool,
    quiet: bool,
    moment: float | None = None,
    track: Sequence[str] = (),
    more: Callable[[Run], list[str]] = lambda run: [],
) -> None:
    """Do what is to be done in a run, show it, write the report; `more` has sentences after the story's.

    What `more` measures for them and keeps in the folder is in the report.
    """
    with (
        resumable(run),
        shown(run, stdout, as_json or quiet) as display,
        closing(tracked(run, track, display)) as followed,
        logged(run, watched_until(followed, moment)) as watch,
    ):
        if not (as_json or quiet):
            stdout.print(_headline(run), soft_wrap=True)
        try:
            run.execute(watch)
        except Refused:
            if run.folder.book().entries:  # what became of them is on record, and the report must say so
                write_report(run)
            raise
    ending = more(run)
    report = write_report(run)
    found = results(run, "last")
    if as_json:
        typer.echo(json.dumps({"run": str(run.folder.path), "report": str(report), "lines": run.lines()}))
    elif not quiet:
        stdout.print()
        if found:
            words = wording.of(run.description)
            title = f"After the last {words.unit} (rule: last). {star(found)}."
            print_results(stdout, found, title, words=words)
        info = run.info()
        forgot = [said for request in run.config.request_ids() for said in verdicts(info, {"id": request})]
        for sentence in (*forgot, *falls(found), *story(run), *ending):
            stdout.print(escape(sentence), soft_wrap=True)
        if not found and not run.config.request:
            stdout.print(escape(_nothing_asked(run)), soft_wrap=True)
        for request in status_of(run)["requests"]:
            if request["owed"]:
                stdout.print(request_line(request), soft_wrap=True)
        stdout.print()
        stdout.print(f"Report: [bold]{escape(str(report))}[/bold]", soft_wrap=True)


def _nothing_asked(run: Run) -> str:
    """Of a config without a request: methods had nothing to do, and that is said."""
    client = next(iter(run.description["clients"]), "0")
    who = ("--class", 0) if run.config.setting == "central" else ("--client", client)
    return (
        "The config names no [request], so nothing was forgotten and no method ran. Take somebody out with"
        f" `{run.command('forget', *who)}`."
    )


def _next_steps(run: Run) -> list[str]:
    """What somebody may do after the demo; who has taken somebody out knows how."""
    gone = {client for request in run.config.requests() for client in request.clients}
    left = [client for client in run.description["clients"] if client not in gone]
    out = ""
    if left and not run.folder.book().entries:
        forget = run.command("forget", "--client", "3" if "3" in left else left[0])
        out = f" take another client out with `{forget}`;"
    return [
        f"Next: open the report below;{out} your own model and data: docs/how-to/central.md and docs/how-to/models.md."
    ]


def _headline(run: Run) -> str:
    about, config = run.description, run.config
    many = len(about["clients"])
    held = "one holder of all data" if config.setting == "central" else f"{many} client{'s' if many != 1 else ''}"
    return (
        f"[bold]{escape(config.name)}[/bold]: {escape(config.data.name)}, {held}, {escape(config.model.name)}"
        f" with {about['parameters']:,} parameters; {about['engine']} engine on {about['device']}."
    )


def add_to(app: typer.Typer) -> None:
    for command in (demo, run, resume):
        app.command()(command)
