"""The commands that show: `status`, `evaluate`, `check`, `probe`, `methods`."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer
from rich.markup import escape

from unfed.cli.console import echo_json, print_table, say, stdout
from unfed.cli.options import AllowCode, Json, Quiet, RunArgument, Seed, Sets, how, option, plain, say_findings
from unfed.errors import Refused, UnfedError, counted

if TYPE_CHECKING:
    from unfed.cli.display import Live
    from unfed.folder.layout import Undoing
    from unfed.methods import Method
    from unfed.runs.probe import Step

which = partial(option, "Which models")
Number = TypeVar("Number", int, float)
WHOSE = {"unlearned": "", "retrain": " of Retrain", "before": " of the model before"}
SETTLED = {"fulfilled", "revoked"}
SCREEN = 10
"""Settled requests that `status` lists; the others are counted."""


def status(
    run: RunArgument,
    request: Annotated[str | None, plain("Only this request, with its models and its gate.", metavar="ID")] = None,
    as_json: Json = False,
) -> None:
    """Show where a run stands: rounds, requests, the model in force.

    Also accuracy, time left, and how to continue.
    """
    from unfed.cli.display import clock_text, gate_in_short, percent, request_line
    from unfed.cli.evidence import due_dates
    from unfed.report.wording import words_of
    from unfed.runs.run import Run
    from unfed.runs.status import status as status_of

    opened = Run.open(run)
    found = status_of(opened)
    due = due_dates(opened.folder.path)
    requests = tuple(one.model_copy(update={"expected_by": due.get(one.id)}) for one in found.requests)
    if request is not None:
        if request not in {one.id for one in requests}:
            raise UnfedError(f"There is no request {request!r} in {run}; `unfed status {run} --json` lists all.")
        requests = tuple(one for one in requests if one.id == request)
        found = replace(found, jobs=tuple(job for job in found.jobs if job.request == request))
    found = replace(found, requests=requests)
    if as_json:
        echo_json(found.to_json())
        return
    stdout.print(f"[bold]{escape(opened.config.name)}[/bold] in {escape(str(run))}: {found.state}")
    words, settled = words_of(opened.description), [one.id for one in requests if one.state in SETTLED]
    rows = [
        (job.job, f"{job.round}/{job.rounds}", percent(job.test), percent(job.forget), words.said(job.state))
        for job in found.jobs
        if request or job.request not in settled
    ]
    print_table(("job", words.unit, "test", "forget", "state"), rows, (words.unit, "test", "forget"))
    hidden = set(settled[:-SCREEN])
    for one in requests:
        if one.id not in hidden:
            stdout.print(request_line(one) + (gate_in_short(one.gate) if request else ""), soft_wrap=True)
    if hidden:
        say(f"{counted(len(hidden), 'earlier request')}, settled: `--request ID` shows one, `--json` all.")
    for model in found.in_force:
        of = f" (seed {model.job.seed})" if len(found.in_force) > 1 else ""
        say(f"In force{of}: {model.sentence}.")
    if found.state == "running":
        say(f"About {clock_text(found.seconds_left)} left.")
    elif found.state == "waiting":
        say(f"What waits is served by {opened.going_on}.")
    elif found.state == "interrupted":
        say(f"Go on with {opened.going_on}.")


def evaluate(
    run: RunArgument,
    model: Annotated[Path | None, how("A safetensors file; default: the model in force.")] = None,
    seed: Seed = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Score a model on the run's own data.

    Accuracy, membership inference, and the backdoor if there is one.
    """
    from unfed import storage
    from unfed.measures import metrics
    from unfed.model.params import cast, check_like
    from unfed.runs.run import Run
    from unfed.runs.status import in_force
    from unfed.values import is_measured

    opened = Run.open(run)
    one = opened.one_seed(seed)
    world = opened.world(one)
    world.settle()
    if model is None:
        params = opened.current(one)
    else:
        if grave := None if model.exists() else opened.folder.book().purged(model):
            raise UnfedError(
                f"The model {grave.sentence(opened.folder.path)}; without --model, the one in force is scored."
            )
        params, _ = storage.load(model, "model")
        check_like(params, world.template.like, f"The model {model}")
        params = cast({n: params[n] for n in world.template.like}, world.dtype, world.device)
    refuse_damaged(run)
    requests = opened.scope(one)
    found = world.evaluator(requests)(params).numbers
    if as_json:
        echo_json(found)
        return
    forgotten = ", ".join(r.id for r in requests) or "nothing"
    say(f"Model: {str(model) if model is not None else in_force(opened, one).sentence}.")
    written = [(n, metrics.written(n, value) if is_measured(value) else str(value)) for n, value in found.items()]
    print_table(("", ""), written, title=f"Scope: {forgotten}")


def check(run: RunArgument, as_json: Json = False) -> None:
    """Check that a run folder is whole.

    It finds files that are torn, edited, replaced or lost, and changes nothing. Exit code 2 if something is wrong.
    """
    from unfed.cli.evidence import log_faults
    from unfed.folder import check as checking
    from unfed.folder.folder import RunFolder

    found = checking.check(RunFolder(run))
    found.findings += log_faults(run)
    there = ", ".join(counted(number, what.removesuffix("s")) for what, number in found.counted.items())
    say_findings(
        found.findings, {"counted": found.counted}, as_json, f"{run} is whole: {there}.", f"{run} is not whole"
    )


def refuse_damaged(run: Path) -> None:
    """Refuse a folder that `unfed check` refuses, before a model of it is used."""
    from unfed.cli.evidence import log_faults
    from unfed.folder import check as checking
    from unfed.folder.folder import RunFolder

    if findings := [*checking.check(RunFolder(run)).findings, *log_faults(run)]:
        raise UnfedError(f"{run} is not whole: {findings[0]}")


# --- can it be undone? ------------------------------------------------------------------------------------------------


def probe(
    run: RunArgument,
    request: Annotated[str | None, which("Which request, by its id; default: all.")] = None,
    method: Annotated[str | None, which("Whose model; default: all but Retrain's.")] = None,
    quick: Annotated[bool, how("A coarse grid: for a first look, or a large model.", "--quick")] = False,
    rows: Annotated[str | None, how("Rows that layers are fitted on: `100,1000`.")] = None,
    steps: Annotated[str | None, how("After how many steps a fit is looked at: `100,600`.")] = None,
    rates: Annotated[str | None, how("Rates of the fits: `0.002,0.0005`.")] = None,
    seed: Seed = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try to undo what a run has forgotten.

    It shows how much comes back, beside Retrain and the model before. If interrupted, give the same command again.
    """
    from unfed.api import write_report
    from unfed.cli.display import Live
    from unfed.runs.probe import effort_of
    from unfed.runs.probe import probe as measure
    from unfed.runs.run import Run

    fits = _numbers("--rows", rows, int), _numbers("--steps", steps, int), _numbers("--rates", rates, float)
    opened = Run.open(run)
    with Live(as_json or quiet) as live:
        found = measure(opened, seed, request, method, effort_of(opened, quick, *fits), partial(_shown, live))
    report = write_report(opened)
    if as_json:
        echo_json([one.to_json() for one in found])
    elif not quiet:
        for one in found:
            _tell_undone(one)
        say(f"Report: {report}")


def _numbers(option: str, text: str | None, kind: type[Number]) -> tuple[Number, ...]:
    """The numbers above 0 that an option gives, from small to large; none where it was not given."""
    if text is None:
        return ()
    try:
        found = sorted({kind(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not all(0 < number < math.inf for number in found):
        example, what = ("100,1000", "whole numbers") if kind is int else ("0.002,0.0005", "numbers")
        raise UnfedError(f"{option} takes {what} above 0 with commas, such as {example}, not {text!r}.")
    return tuple(found)


def _shown(live: "Live", step: "Step") -> None:
    what = f"{step.target}, {step.measurement}{WHOSE[step.who]}" if step.measurement else step.target
    live.show(what, max(step.number - 1, 0), step.of, f"Probing {step.target} …")


def _tell_undone(found: "Undoing") -> None:
    from unfed.report.undo import COLUMNS, grid, sentence

    title = f"Request {found.request}, {found.title}, seed {found.seed}"
    models, (body, notes) = [name.format(title=found.title) for name in COLUMNS.values()], grid([found])
    print_table(["", *models], [(row, *cells) for row, cells in body], models, title)
    say(*notes, sentence([found]), "")


# --- methods ----------------------------------------------------------------------------------------------------------

methods_app = typer.Typer(help="List the methods, what they need and what they serve.")


@methods_app.callback(invoke_without_command=True)
def methods(context: typer.Context, as_json: Json = False) -> None:
    """List the methods, what they need and what they serve."""
    if context.invoked_subcommand:
        return
    from unfed.data.scope import Kind
    from unfed.methods import METHODS
    from unfed.methods.base import NEEDS

    if as_json:
        echo_json(
            {
                name: {"title": m.title, "where": _where(m), "scopes": sorted(m.scopes), "needs": sorted(m.needs)}
                for name, m in METHODS.items()
            }
        )
        return
    rows = []
    for name, method in METHODS.items():
        takes = "anything" if len(method.scopes) == len(get_args(Kind)) else ", ".join(sorted(method.scopes))
        where = "both" if len(_where(method)) > 1 else _where(method)[0]
        rows.append((name, method.title, where, takes, ", ".join(sorted(method.needs))))
    print_table(("name", "method", "where", "takes out", "needs"), rows)
    say("\ncentral: one model and one data set, without clients")
    say("anything: a client, a class or single samples (instances)")
    say(*(f"{need}: {says}" for need, says in NEEDS.items()))
    say("\nWhere one comes from, and its hyperparameters: unfed methods show NAME")


def _where(method: type["Method"]) -> list[str]:
    """The settings that a method is made for."""
    from unfed.methods import Central

    federated, central = not issubclass(method, Central), not method.federation_only
    return ["federated"] * federated + ["central"] * central


def as_written(default: Any) -> str:
    """A default as one writes it in a config or after --set; one without a value is left out there."""
    if default is None:
        return "not set"
    return json.dumps(default) if isinstance(default, bool | tuple) else str(default)


@methods_app.command("show")
def methods_show(
    name: Annotated[str, typer.Argument(help="A method, or package.module:Class.")], allow_code: AllowCode = False
) -> None:
    """Show one method: what it is, what it needs, its hyperparameters."""
    from unfed.methods import find

    method = find(name, "NAME")
    stdout.print(f"[bold]{escape(method.title)}[/bold] ({escape(name)}): {escape((method.__doc__ or '').strip())}")
    say(f"Reference: {method.cite}")
    say(f"Scopes: {', '.join(sorted(method.scopes))}.  Needs: {', '.join(sorted(method.needs))}.\n")
    options = [(own, as_written(default), says, source) for own, default, says, source in method.options()]
    if options:
        print_table(("hyperparameter", "default", "meaning", "source"), options)
    else:
        say("It has no hyperparameters.")


@methods_app.command("check")
def methods_check(
    where: Annotated[str, typer.Argument(metavar="FILE", help="A Python file, a name, or package.module:Class.")],
    sets: Sets = [],
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Check a method against the contract, on digits."""
    from unfed.methods import find
    from unfed.testing import conformance

    claims = []
    for claim in conformance.check(find(where, "FILE"), sets):
        claims.append(claim)
        if not as_json:
            mark = "[green]✓[/green]" if claim.held else "[red]✗[/red]"
            stdout.print(f"{mark} {escape(claim.name)}: {escape(claim.saw)}", soft_wrap=True)
    if as_json:
        echo_json([vars(claim) for claim in claims])
    broken = sum(not claim.held for claim in claims)
    if broken:
        raise Refused(f"{broken} of {len(claims)} claims do not hold; mend the method and check again.")
