"""The commands for deletion requests: `forget`, `withdraw`, `purge`, `lineage`."""

import getpass
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from unfed.cli.console import echo_json, print_table, say, stdout
from unfed.cli.options import AllowCode, Json, Quiet, RunArgument, Seed, how, plain, resumable, what, when
from unfed.errors import Refused, UnfedError

if TYPE_CHECKING:
    from unfed.folder.purge import PurgeOutcome
    from unfed.requests.book import Tombstone
    from unfed.requests.options import RequestOptions
    from unfed.runs.admission import Offer
    from unfed.runs.record import RunRecord
    from unfed.runs.run import Run


def forget(
    run: RunArgument,
    client: Annotated[list[str], what("A client that leaves. Repeatable.")] = [],
    classes: Annotated[list[int], what("A class to forget. Repeatable.", "--class")] = [],
    samples: Annotated[Path | None, what("A CSV file of samples: `row`, or `client,position`.")] = None,
    deleted: Annotated[bool, what("The data is deleted: no client is asked to train on it.", "--deleted")] = False,
    signed: Annotated[Path | None, what("A signed request says what leaves.", "--request", metavar="FILE")] = None,
    opening: Annotated[Path | None, what("Opens a signed request's commitment to its samples.", metavar="FILE")] = None,
    name: Annotated[str | None, what("The request's id. Alone, it tries a known request again.", "--id")] = None,
    method: Annotated[str | None, how("See `unfed methods`. Default: as last time, else a tuned `retrain`.")] = None,
    layers: Annotated[str | None, how("The method's layers, with commas: `conv1,conv2`.")] = None,
    sets: Annotated[list[str], how("A hyperparameter of the method: `KEY=VALUE`. Repeatable.", "--set")] = [],
    together: Annotated[
        bool, how("Share one recovery with other waiting requests; file each with --wait.", "--together")
    ] = False,
    seed: Seed = None,
    allow_code: AllowCode = False,
    until: Annotated[
        str | None,
        when(
            "`recovered`, `forgotten`, `recovered,forgotten` or a number of rounds; `forgotten,40` stops after 40."
            " Default: as last time, else `recovered`."
        ),
    ] = None,
    within: Annotated[float | None, when("Recovered: points of validation accuracy that may be missing.")] = None,
    max_drop: Annotated[float | None, when("The gate: points of validation accuracy that may be lost.")] = None,
    accept: Annotated[bool, when("Accept the model even if the gate refuses it; recorded.", "--accept")] = False,
    expires: Annotated[str | None, when("A date by which it must be begun: `2026-01-31`.")] = None,
    wait: Annotated[bool, when("Only file it; `unfed resume` serves it later.", "--wait")] = False,
    plan: Annotated[bool, how("Only show what each method would cost and whether it lasts.", "--plan")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take clients, classes or samples out of a trained run.

    It puts a new model in force. The same id is served once; a denied request is tried again. Exit code 3 if it is
    denied.
    """
    from unfed.cli.display import shown
    from unfed.cli.evidence import entered, received
    from unfed.data import Request, SampleList
    from unfed.requests.options import RequestOptions
    from unfed.runs.record import logged, request_name
    from unfed.runs.run import Run

    read = SampleList.read(samples) if samples else None
    asked: dict[str, Any] = read.asked if read else {}
    given = {"clients": client, "classes": classes, "samples": asked.get("rows") or asked.get("samples")}
    count = sum(bool(value) for value in given.values())
    if signed is None:
        _refuse_unclear(count, name, opening)
    elif plan:
        raise UnfedError("--plan files nothing, and a signed request is filed at once; name its client or class.")
    elif count or name or deleted or expires:
        raise UnfedError("A signed request says itself what to forget; leave the other ways to say it out.")
    opened, loud = Run.open(run), not (as_json or quiet)
    if signed is not None:
        wanted = replace(_how(RequestOptions(), within, layers, sets, max_drop, accept), together=together)
        name, sentence = received(opened, signed, opening, (method, until, seed, wanted))
        if loud:
            say(sentence)
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
    if plan:
        _tell_plan(opened.plan(request, seed, how), as_json)
        return
    if wait:
        with entered(opened.folder):
            _, finished = opened.ask(request, method, until, seed, expires, how)
        _tell_outcome(opened, "already done" if finished else "waits", request.id, as_json, quiet)
        return
    from unfed.api import write_report

    try:
        with resumable(opened), shown(opened, stdout, as_json or quiet) as display, logged(opened, display) as watch:
            outcome = opened.forget(request, method, until, seed, watch, expires, how)
    except Refused:  # it is on record, so the report must not speak of the day before
        write_report(opened)
        raise
    _tell_outcome(opened, outcome.status, request.id, as_json, quiet)
    if together and outcome.status == "done" and len(outcome.entry.together) < 2 and loud:
        say(
            "No other request waited to share its recovery: --wait files a request without serving it, and then"
            f" `{opened.command('resume')}` takes up together what waits."
        )


def _tell_plan(offers: "list[Offer]", as_json: bool) -> None:
    """A line for each method that could serve the request, and a sentence for each that could not."""
    from unfed.cli.display import percent
    from unfed.report.wording import bytes_text, seconds_text

    if as_json:
        echo_json([asdict(one) for one in offers])
        return
    rows, numbers = [], ("rounds", "bytes", "time", "test")
    for one in offers:
        if not one.refused:
            costs = (bytes_text(one.bytes) if one.bytes else "-"), (seconds_text(one.seconds) if one.seconds else "-")
            shown = (percent(one.accuracy), one.lasts, ", ".join(one.needs) or "-")
            rows.append((one.method, str(one.rounds), *costs, *shown))
    print_table(("method", *numbers, "lasts", "needs"), rows, numbers)
    say(
        "`default` is a tuned Retrain. Rounds are upper limits; bytes and time are estimates from training. `unfed"
        " probe` tests whether a model lasts."
    )
    for one in offers:
        if one.refused:
            say(f"{one.method}: {one.refused}")


def _refuse_unclear(ways: int, name: str | None, opening: Path | None) -> None:
    """Refuse a request that is not signed and says in no way, or in several, what to forget."""
    if opening is not None:
        raise UnfedError("--opening belongs to a signed request; give that with --request.")
    if ways > 1 or (ways == 0 and name is None):
        raise UnfedError("Name what to forget with exactly one of --client, --class or --samples.")


def _how(
    last: "RequestOptions",
    within: float | None,
    layers: str | None,
    sets: list[str],
    max_drop: float | None,
    accept: bool,
) -> "RequestOptions":
    """What is asked besides method and until.

    What is not said is as last time, but for the leave of the gate.
    """
    from unfed.requests.entry import now
    from unfed.requests.options import RequestOptions

    given = [name.strip() for name in layers.split(",")] if layers is not None else []
    named = [int(name) if name.lstrip("-").isdigit() else name for name in given]
    return RequestOptions(
        RequestOptions.hyperparameters(sets, named) if sets or named else last.set,
        last.within if within is None else within,
        last.max_drop if max_drop is None else max_drop,
        {"by": _who(), "at": now()} if accept else None,
    )


def _who() -> str:
    """The user, as the system knows them."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name
        return "a user without a name"


def _tell_outcome(run: "Run", status: str, request: str, as_json: bool, quiet: bool) -> None:
    """What became of a request; the report is written again, unless another process is at work."""
    from unfed.api import write_report
    from unfed.cli.display import lasting, tell_outcome

    report = None if status == "queued" else write_report(run)
    undone = None if status == "waits" else lasting(run, request)
    if as_json:
        entry = run.queue.book.find(request)
        lines = [line for line in run.lines() if line["request"] == request]
        said: dict[str, Any] = {"request": request, "status": status, "last": lines[-1] if lines else {}}
        said |= {"report": report and str(report), "forgetting": ((entry and entry.gate) or {}).get("forgetting")}
        echo_json({**said, "lasting": undone, "again": dict(entry.again) if entry else {}})
    elif not quiet:
        tell_outcome(run, status, request, str(report))
        if undone and status != "withdrawn":
            say(undone)


def withdraw(
    run: RunArgument,
    request: Annotated[str, typer.Argument(metavar="ID", help="The request's id; see `unfed status`.")],
    revocation: Annotated[
        Path | None, plain("The signed revocation by the client that signed the request.", metavar="FILE")
    ] = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Withdraw a request that is not fulfilled.

    Its rows train again. A request that a client signed needs the client's signed revocation.
    """
    from unfed.cli.evidence import entered, revoked
    from unfed.runs.run import Run

    opened = Run.open(run)
    if revocation is not None:
        entry = revoked(opened, request, revocation)
    else:
        with entered(opened.folder):
            entry = opened.withdraw(request)
    if as_json:
        echo_json({"request": request, "state": entry.state, "changed": entry.changed})
    elif not quiet:
        say(
            f"Request {request!r} is withdrawn: unless another request names them, its rows take part again, from the"
            " next round or the next request on."
        )


# --- purge ------------------------------------------------------------------------------------------------------------


def purge(
    run: RunArgument,
    request: Annotated[str, plain("A fulfilled request, by its id; see `unfed status`.")],
    dry_run: Annotated[bool, plain("Only say what would go.", "--dry-run")] = False,
    yes: Annotated[bool, plain("Do not ask; for scripts.", "--yes", "-y")] = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Delete what still carries a fulfilled request.

    It lists models, states, histories, scores and probes, asks you, and deletes them for good. A tombstone for each
    file stays.
    """
    from unfed.api import write_report
    from unfed.cli.evidence import entered
    from unfed.folder.purge import purge as take_away
    from unfed.runs.run import Run

    opened = Run.open(run)
    agreed = None if dry_run or yes else _agreed(opened, request)
    # The secrets behind the leavers' pseudonyms go too.
    with nullcontext() if dry_run else entered(opened.folder, purged=[request]):
        found = take_away(opened, request, dry_run, agreed)
    if not dry_run and (opened.folder.path / "report.html").exists():
        write_report(opened)  # it lists what still carries the request; a killed purge may not have come to it
    if as_json:
        plain = {"gone": [asdict(one) for one in found.gone], "before": [asdict(one) for one in found.before]}
        echo_json({"request": request, "dry_run": dry_run, **plain})
    elif not quiet:
        _tell_purged(opened, request, found, dry_run)


def _agreed(run: "Run", request: str) -> list[str] | None:
    """Show what would go and ask: the tombstones that were agreed to; None where nothing would change."""
    from unfed.cli.evidence import bundle
    from unfed.folder.purge import purge as take_away
    from unfed.runs.record import keeps_log

    found = take_away(run, request, dry_run=True)
    if not found.gone and found.entry.purged:
        return None
    if not _at_terminal():
        raise UnfedError("Purging deletes for good: read the list with --dry-run, then repeat the command with --yes.")
    _tell_purged(run, request, found, dry_run=True)
    evidence = Path(f"evidence-{request}.json")
    offers = keeps_log(run.folder.path) and not evidence.exists()
    if offers and typer.confirm(f"Write its evidence to {evidence} first?", default=True):
        bundle(run.folder.path, evidence, request)
    if not typer.confirm(f"Purge request {request!r} for good?"):
        raise UnfedError("Nothing was purged.")
    return [one.file for one in found.gone]


def _at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _tell_purged(run: "RunRecord", request: str, found: "PurgeOutcome", dry_run: bool) -> None:
    from unfed.folder.carriers import HANDED_OUT
    from unfed.requests.book import TOMBSTONES
    from unfed.runs.record import keeps_log

    if not found.gone:
        since = "was purged already, and since then nothing" if found.before else "is fulfilled, and nothing"
        say(f"Request {request!r} {since} in this folder carries it.")
        return
    say(*(f"{'would purge' if dry_run else 'purged'} {what}" for what in _by_folder(found.gone)))
    if dry_run and keeps_log(run.folder.path):
        evidence = run.command("bundle", "--request", request, "-o", "evidence.json")
        say(f"Write its evidence first, `{evidence}`: once purged, the log no longer names it.")
    if not dry_run:
        central = run.config.setting == "central"
        others = "Backups and exports" if central else "Backups, exports and what clients keep"
        whom = found.entry.request.clients if len(found.entry.request.clients) == 1 else ("CLIENT",)
        lists = str(run.folder.path / HANDED_OUT) if central else f"`{run.command('lineage', '--affected', *whom)}`"
        say(
            f"Each has a tombstone in {run.folder.path / TOMBSTONES}. {others} are not reached: {lists} lists what"
            " is known of them."
        )


def _by_folder(gone: Sequence["Tombstone"]) -> list[str]:
    """What went, a line each; of scores, which are a file per round, a line for all of one job."""
    from unfed.folder.consistency import TRAJECTORY

    lines: dict[str, int] = {}
    for one in gone:
        file, _, part = one.file.partition("#")
        path = PurePosixPath(file)
        what = str(path.parent) if path.parts[0] == "samples" else f"{file}: its {part}" if part else file
        if part and (file == TRAJECTORY or path.parts[0] in ("samples", "undo")):
            what = f"{path.parent if path.parts[0] == 'samples' else file}: what it tells of the rows of {part}"
        lines[what] = lines.get(what, 0) + 1
    scores = {what: count for what, count in lines.items() if what.startswith("samples/")}
    return [what + (f" ({count} file{'s' * (count > 1)})" if what in scores else "") for what, count in lines.items()]


def lineage(
    run: RunArgument,
    affected: Annotated[str, plain("The client whose traces are looked for.", metavar="CLIENT")],
    as_json: Json = False,
) -> None:
    """List everything that still carries a client.

    Models, states, exports, reports and uploads, each with what to do. It does not know backups and copies.
    """
    from unfed.folder.folder import RunFolder
    from unfed.runs.record import RunRecord
    from unfed.runs.record import affected as carrying

    found = carrying(RunRecord(RunFolder(run)), affected)
    if as_json:
        echo_json({"client": affected, "carriers": [asdict(one) for one in found]})
        return
    if not found:
        say(f"Nothing that is known here carries client {affected}.")
    for one, after in zip_longest(found, found[1:]):
        stdout.print(f"[bold]{escape(one.file)}[/bold] ({one.kind}): {escape(one.what)}", soft_wrap=True)
        if after is None or after.do != one.do:
            say(f"    → {one.do}")
