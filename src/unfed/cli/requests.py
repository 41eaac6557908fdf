"""The commands for deletion requests.

`unfed forget` files one and serves what waits, `unfed withdraw` lets one go.
"""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from unfed.api import write_report
from unfed.cli.console import Console
from unfed.cli.display import percent, shown
from unfed.cli.logged import entered, received, revoked
from unfed.cli.options import AllowCode, Json, Quiet, RunArgument, Seed, resumable
from unfed.data import Request, SampleList
from unfed.errors import Refused, UnfedError
from unfed.measures import trajectory
from unfed.report import wording
from unfed.report.words import again_words, left_before
from unfed.requests.entry import now
from unfed.requests.options import RequestOptions
from unfed.requests.reversible import inverse_of
from unfed.runs.in_force import in_force
from unfed.runs.lineage import ending
from unfed.runs.onlooker import logged, request_name
from unfed.runs.run import Outcome, Run

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def forget(
    run: RunArgument,
    client: Annotated[list[str], typer.Option(help="A client that leaves. Repeatable.")] = [],  # noqa: B006
    classes: Annotated[list[int], typer.Option("--class", help="A class to forget. Repeatable.")] = [],  # noqa: B006
    samples: Annotated[Path | None, typer.Option(help="A CSV file of samples: `row`, or `client,position`.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="See `unfed methods`. Default: not, which can be undone, or as last time."),
    ] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="The data is gone: ask nobody to train on it.")] = False,
    until: Annotated[
        str | None,
        typer.Option(
            help="`recovered`, `forgotten`, `recovered,forgotten`, or a number of rounds; `forgotten,40`: at most 40"
            " rounds. Default: recovered, or as last time."
        ),
    ] = None,
    within: Annotated[
        float | None, typer.Option(help="Points of validation accuracy that may be missing to be `recovered`.")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="The method's layers, with commas: `conv1,conv2`.")] = None,
    sets: Annotated[
        list[str], typer.Option("--set", help="A hyperparameter of the method: `KEY=VALUE`. Repeatable.")
    ] = [],  # noqa: B006
    max_drop: Annotated[
        float | None,
        typer.Option(help="Points of validation accuracy that the model may lose and still come into force."),
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Put the model in force though the gate says no; it is written down.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--id", help="The request's id; alone, it tries a known request again.")
    ] = None,
    expires: Annotated[str | None, typer.Option(help="A date by which it must be begun: `2026-01-31`.")] = None,
    signed: Annotated[
        Path | None, typer.Option("--request", metavar="FILE", help="A signed request, in the place of what to forget.")
    ] = None,
    opening: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What opens a signed request's commitment to samples.")
    ] = None,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="Share one recovery with others that say so and wait when it is taken up: file each with --wait too.",
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Only file it: the leaver is out of training, `unfed resume` serves it.")
    ] = False,
    seed: Seed = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take clients, classes or samples out of a trained run, and leave a new model in force.

    The same id twice is served once; a request that was denied is tried again. Exit code 3 if this one is denied.
    """
    read = SampleList.read(samples) if samples else None
    asked: dict[str, Any] = read.asked if read else {}
    given = {"clients": client, "classes": classes, "samples": asked.get("rows") or asked.get("samples")}
    count = sum(bool(value) for value in given.values())
    if signed is None:
        _refuse_unclear(count, name, opening)
    elif count or name or deleted or expires:
        raise UnfedError("A signed request says itself what to forget; leave the other ways to say it out.")
    opened, loud = Run.open(run), not (as_json or quiet)
    _one_client_each(client, [str(one) for one in opened.description.get("clients") or ()])
    if signed is not None:
        wanted = replace(_how(RequestOptions(), within, layers, sets, max_drop, accept), together=together)
        name, sentence = received(opened, signed, opening, (method, until, seed, wanted))
        if loud:
            stdout.print(escape(sentence), soft_wrap=True)
    name = name or request_name(opened.folder, given)
    known = opened.queue.book.find(name)
    if count:
        request = Request(name, tuple(client), tuple(classes), deleted=deleted, **asked)
    elif known is None:
        raise UnfedError(
            f"This run has no request {name!r} to try again; say what to forget by --client, --class or --samples."
        )
    else:
        request = known.request
    how = _how(known.how if known else RequestOptions(), within, layers, sets, max_drop, accept)
    how = replace(how, together=together or (known is not None and known.how.together))
    if wait:
        with entered(opened.folder):
            _, finished = opened.ask(request, method, until, seed, expires, how)
        _tell_outcome(opened, "already done" if finished else "waits", request.id, as_json, quiet)
        return
    try:
        with resumable(opened), shown(opened, stdout, as_json or quiet) as display, logged(opened, display) as watch:
            outcome = opened.forget(request, method, until, seed, watch, expires, how)
    except Refused:  # it is on record, so the report must not speak of the day before
        write_report(opened)
        raise
    _tell_outcome(opened, outcome.status, request.id, as_json, quiet)
    if together and outcome.status == "done" and len(outcome.entry.together) < 2 and loud:
        stdout.print(
            "Nobody else waited to share its recovery: --wait files a request without serving it, and then"
            f" `{escape(opened.command('resume'))}` takes up together what waits.",
            soft_wrap=True,
        )


def _refuse_unclear(ways: int, name: str | None, opening: Path | None) -> None:
    """Refuse a request that is not signed and says in no way, or in several, what to forget."""
    if opening is not None:
        raise UnfedError("--opening belongs to a signed request; give that with --request.")
    if ways > 1 or (ways == 0 and name is None):
        raise UnfedError("Say what to forget by exactly one of --client, --class or --samples.")


def _one_client_each(asked: list[str], there: list[str]) -> None:
    """Refuse several clients in one option; who is not in the run is refused where the request is filed."""
    for one in asked:
        parts = [part.strip() for part in one.split(",")]
        if one not in there and len(parts) > 1 and all(part in there for part in parts):
            raise UnfedError(
                f"--client takes one client; for several say {' '.join(f'--client {part}' for part in parts)}."
            )


def _how(
    last: RequestOptions,
    within: float | None,
    layers: str | None,
    sets: list[str],
    max_drop: float | None,
    accept: bool,
) -> RequestOptions:
    """What is asked besides method and until.

    What is not said is as last time, but for the leave of the gate.
    """
    given = [name.strip() for name in layers.split(",")] if layers is not None else []
    named = [int(name) if name.lstrip("-").isdigit() else name for name in given]
    return RequestOptions(
        RequestOptions.hyperparameters(sets, named) if sets or named else last.set,
        last.within if within is None else within,
        last.max_drop if max_drop is None else max_drop,
        {"by": _who(), "at": now()} if accept else None,
    )


def _who() -> str:
    """Whoever sits at the keyboard, as the system knows them."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name
        return "a user without a name"


def _tell_outcome(run: Run, status: str, request: str, as_json: bool, quiet: bool) -> None:
    """What became of a request; the report is written anew, unless another process is at work."""
    lines = [line for line in run.lines() if line["request"] == request]
    last: Mapping[str, Any] = lines[-1] if lines else {}
    report = None if status == "queued" else write_report(run)
    lasting = None if status == "waits" else _lasting(run, request)
    if as_json:
        told = {"request": request, "status": status, "last": last, "report": report and str(report)}
        entry = run.queue.book.find(request)
        told |= {"forgetting": ((entry and entry.gate) or {}).get("forgetting")}
        typer.echo(json.dumps({**told, "lasting": lasting, "again": dict(entry.again) if entry else {}}))
    if as_json or quiet:
        return
    if status == "queued":
        stdout.print(
            f"Request {request!r} is filed. Another process is at work in this run: from its next round on the"
        )
        stdout.print("leaver takes no part, and the request is served after what is running now.")
    elif status == "waits":
        stdout.print(
            f"Request {request!r} is filed and waits: what it names takes no part in training from now on, but is still"
            f" in the model in force. `{escape(run.command('resume'))}` serves it, and all else that waits.",
            soft_wrap=True,
        )
    elif status == "already done":
        before = "" if (entry := run.queue.book.find(request)) and entry.left_by else f" (round {last.get('round')})"
        stdout.print(f"Request {request!r} was served already{before}; nothing was done.")
    elif status == "withdrawn":
        stdout.print(f"Request {request!r} was withdrawn while it was served; the model in force is the old one.")
    else:
        _tell_served(run, request, lines)
        stdout.print(f"Report: {escape(str(report))}", soft_wrap=True)
    if lasting and status != "withdrawn":
        stdout.print(escape(lasting), soft_wrap=True)


def _tell_served(run: Run, request: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """What the new model does, whether that says that the leaver is out, and what is in force now."""
    last = lines[-1]
    entry, words = run.queue.book.find(request), wording.of(run.description)
    if entry and entry.left_by:
        said = left_before({**(entry.described or {}), "id": request, "left_by": entry.left_by}, words)
        seen = f"validation {percent(last['validation'])}, test {percent(last['test'])}, forget"
        shown = f"Of the model in force: {seen} {trajectory.forget_of(last)}."
        stdout.print(escape(f"Request {request!r} is fulfilled. {said}. {shown}"), soft_wrap=True)
    else:
        stdout.print(
            f"Request {request!r} is served after {words.several(last['round'])}: validation"
            f" {percent(last['validation'])} (before {percent(last['validation_before'])}),"
            f" forget {percent(trajectory.forget_of(last))}, test {percent(last['test'])}."
        )
    if entry and (verdict := Outcome(entry, "done").verdict):
        stdout.print(escape(verdict), soft_wrap=True)
    for name, shows in _measured_again(run, request, lines):
        stdout.print(escape(f"Earlier request {name}: {shows}."), soft_wrap=True)
    stdout.print(escape(_now_in_force(run, request)), soft_wrap=True)


def _now_in_force(run: Run, request: str) -> str:
    """Which model is in force now, and how it is written to a file."""
    entry = run.queue.book.find(request)
    now = in_force(run, entry.seed if entry else run.config.seed_list[0])
    return f"In force: {now.sentence}. `{run.command('export', '-o', 'model.safetensors')}` writes it to a file."


def _measured_again(run: Run, request: str, lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What every earlier request took out, as the models before and after this one read it."""
    was = next((line.get("earlier") for line in lines if line["method"] == "before"), None) or {}
    again: Mapping[str, Any] = lines[-1].get("earlier") or {}
    entry = run.queue.book.find(request)
    seen, left = (entry.again, entry.left_by) if entry else ({}, ())
    whose, was = ("the model in force", {}) if left else ("the new model", was)
    tested = (lines[-1].get("rows") or {}).get("test", 0)
    return [
        (name, again_words({"forget": value, **seen.get(name, {})}, was.get(name), whose, tested))
        for name, value in again.items()
    ]


def _lasting(run: Run, request: str) -> str | None:
    """Of a method that whoever has the model can take back: what that choice means, and what lasts."""
    if (entry := run.queue.book.find(request)) is None:
        return None
    took_out = [run.queue.book.find(name) for name in entry.left_by] or [entry]
    by = next(((one, how) for one in took_out if one and (how := inverse_of(run.folder.book(), one))), None)
    if by is None:
        return None
    title = run.about(by[0].method, by[0])["title"]
    return (
        f"Whoever has this model can undo {title} by {by[1]}: `{run.command('probe')}` shows how far;"
        " `--method retrain` lasts, `--method sealed` has no inverse."
        + (f" `{command}` ends it." if (command := ending(run, entry)) else "")
    )


def withdraw(
    run: RunArgument,
    request: Annotated[str, typer.Argument(metavar="ID", help="The request's id; see `unfed status`.")],
    revocation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The signed revocation by the client that signed the request.")
    ] = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Let a request go that is not fulfilled: its rows take part in training again.

    A request that a client signed needs its signed revocation. What is fulfilled cannot be withdrawn.
    """
    opened = Run.open(run)
    if revocation is not None:
        entry = revoked(opened, request, revocation)
    else:
        with entered(opened.folder):
            entry = opened.withdraw(request)
    if as_json:
        typer.echo(json.dumps({"request": request, "state": entry.state, "changed": entry.changed}))
    elif not quiet:
        stdout.print(
            f"Request {request!r} is withdrawn: unless another request names them, its rows take part again, from the"
            " next round or the next request on.",
            soft_wrap=True,
        )


def add_to(app: typer.Typer) -> None:
    for command in (forget, withdraw):
        app.command()(command)
