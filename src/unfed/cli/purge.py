"""`unfed purge`: delete what still carries a fulfilled request."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer
from rich.markup import escape

from unfed.api import write_report
from unfed.cli.console import Console, echo
from unfed.cli.evidence import bundle
from unfed.cli.logged import entered
from unfed.cli.options import AllowCode, Json, Quiet, RunArgument
from unfed.errors import UnfedError
from unfed.folder.handed_out import FILE as HANDED_OUT
from unfed.folder.purge import Outcome
from unfed.folder.purge import purge as take_away
from unfed.folder.trajectory_file import TRAJECTORY
from unfed.requests.book import TOMBSTONES, Tombstone
from unfed.runs.onlooker import keeps_log
from unfed.runs.record import Record
from unfed.runs.run import Run

stdout = Console(highlight=False)


def purge(
    run: RunArgument,
    request: Annotated[str, typer.Option(help="A fulfilled request, by its id; see `unfed status`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; for scripts.")] = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Delete what still carries a fulfilled request: models, states, histories, scores, probes.

    It lists what will go, and asks. There is no way back. Each file leaves a tombstone (path, SHA-256, request, date);
    what keeps the leaver out stays. Killed at any moment, the same command goes on.
    """
    opened = Run.open(run)
    agreed = None if dry_run or yes else _agreed(opened, request)
    # The secrets behind the leavers' pseudonyms go too.
    with nullcontext() if dry_run else entered(opened.folder, purged=[request]):
        found = take_away(opened, request, dry_run, agreed)
    if not dry_run and (opened.folder.path / "report.html").exists():
        write_report(opened)  # it lists what still carries the request; a killed purge may not have come to it
    if as_json:
        plain = {"gone": [asdict(one) for one in found.gone], "before": [asdict(one) for one in found.before]}
        echo(json.dumps({"request": request, "dry_run": dry_run, **plain}))
    elif not quiet:
        _tell(opened, request, found, dry_run)


def _agreed(run: Run, request: str) -> list[str] | None:
    """Show what would go and ask: the tombstones that were agreed to; None where nothing would change."""
    found = take_away(run, request, dry_run=True)
    if not found.gone and found.entry.purged:
        return None
    if not _at_terminal():
        raise UnfedError("Purging deletes for good: read the list with --dry-run, then repeat the command with --yes.")
    _tell(run, request, found, dry_run=True)
    evidence = Path(f"evidence-{request}.json")
    offers = keeps_log(run.folder.path) and not evidence.exists()
    if offers and typer.confirm(f"Write its evidence to {evidence} first?", default=True):
        bundle(run.folder.path, evidence, request)
    if not typer.confirm(f"Purge request {request!r} for good?"):
        raise UnfedError("Nothing was purged.")
    return [one.file for one in found.gone]


def _at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _tell(run: Record, request: str, found: Outcome, dry_run: bool) -> None:
    if not found.gone:
        since = "was purged already, and since then nothing" if found.before else "is fulfilled, and nothing"
        stdout.print(f"Request {request!r} {since} in this folder carries it.", soft_wrap=True)
        return
    for what in _by_folder(found.gone):
        stdout.print(escape(f"{'would purge' if dry_run else 'purged'} {what}"), soft_wrap=True)
    if dry_run and keeps_log(run.folder.path):
        evidence = run.command("bundle", "--request", request, "-o", "evidence.json")
        said = f"Write its evidence first, `{evidence}`: once purged, the log speaks of nobody."
        stdout.print(escape(said), soft_wrap=True)
    if not dry_run:
        central = run.config.setting == "central"
        others = "Backups and exports" if central else "Backups, exports and what clients keep"
        whom = found.entry.request.clients if len(found.entry.request.clients) == 1 else ("CLIENT",)
        lists = str(run.folder.path / HANDED_OUT) if central else f"`{run.command('lineage', '--affected', *whom)}`"
        stdout.print(
            escape(
                f"Each has a tombstone in {run.folder.path / TOMBSTONES}. {others} are not reached: {lists} lists what"
                " is known of them."
            ),
            soft_wrap=True,
        )


def _by_folder(gone: Sequence[Tombstone]) -> list[str]:
    """What went, a line each; of scores, which are a file per round, a line for all of one job."""
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


def add_to(app: typer.Typer) -> None:
    app.command()(purge)
