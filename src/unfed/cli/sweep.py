"""`unfed sweep`: one run for every combination of some values, and one page that compares them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from unfed.api import enter_comparison
from unfed.cli.console import Console
from unfed.cli.display import clock_text, print_results
from unfed.cli.options import AllowCode, ConfigArgument, Json, Methods, Quiet, Sets, chosen, read_config
from unfed.config.config import Config
from unfed.errors import UnfedError, counted
from unfed.report.best import star
from unfed.report.rules import named
from unfed.runs.run import Run
from unfed.studies import grid
from unfed.studies import sweep as sweeping
from unfed.studies.sweep import Member

stdout = Console(highlight=False)


def sweep(
    config: ConfigArgument,
    over: Annotated[
        list[str], typer.Option("--over", help="A key and its values: `seed=0,1,2`. Repeatable; all combinations run.")
    ] = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Where the runs go; default runs/NAME-sweep.")] = None,
    methods: Methods = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at once; default: one per core where each computes on one thread, else 1.")
    ] = None,
    rule: Annotated[str, typer.Option(help="best-gap, recovered or last.")] = "last",
    sets: Sets = [],  # noqa: B006
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which runs there would be.")] = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of some values, and compare them on one page.

    Several run at once where that helps. Combinations that differ in keys of methods alone share one run: what they
    start from, and Retrain, are trained once. Runs that differ only in the seed are one line of the table, mean ±
    standard deviation. Interrupted at any moment, the same command goes on.
    """
    named(rule)
    axes = [sweeping.Axis.of(text) for text in over]
    found = sweeping.variants(axes)
    given = [*sets, *_own(methods, axes)]

    def read(changes: Sequence[str]) -> Config:
        return read_config(config, [*given, *changes])

    where = out or Path("runs", f"{read(found[0].changes).name}-sweep")
    if dry_run:
        for one in found:
            read(one.changes)
        typer.echo(json.dumps({one.name: list(one.changes) for one in found}, indent=None if as_json else 2))
        return
    members = sweeping.make(read, found, where)
    runs = sweeping.runs_of(members)
    if not (as_json or quiet) and len(runs) < len(members):
        stdout.print(
            f"{len(members)} combinations share {counted(len(runs), 'run')}: they differ in their methods alone."
        )
    failed = _work(runs, jobs, allow_code, as_json or quiet, where)
    page = _compare(sweeping.grouped(members), where / "sweep.html", rule, as_json or quiet)
    if as_json:
        told = [
            {"run": str(one.run.folder.path), "changes": list(one.variant.changes), "methods": list(one.place.labels)}
            for one in members
        ]
        typer.echo(json.dumps({"page": page and str(page), "runs": told, "failed": failed}))
    if failed:
        first, sentence = next(iter(failed.items()))
        raise UnfedError(f"{len(failed)} of {len(runs)} runs did not end; the first, {first}: {sentence}")


def _own(methods: str | None, axes: Sequence[sweeping.Axis]) -> list[str]:
    """`--methods` as a change of the config, for all combinations alike."""
    if methods is None:
        return []
    if any(axis.key == "methods.run" for axis in axes):
        raise UnfedError("--methods and --over methods.run both say which methods run; give one of them.")
    return [chosen(methods)]


def _work(runs: Sequence[Run], jobs: int | None, allow_code: bool, silent: bool, where: Path) -> dict[str, str]:
    """Do what is not done, and tell of each; what failed, by folder."""
    at_once, failed, done = sweeping.at_once(runs, jobs), {}, 0
    if not silent:
        stdout.print(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} in {escape(str(where))}, {at_once} at once.")
    try:
        for one in grid.work(sweeping.cells(runs, allow_code), at_once):
            done += 1
            if one.error:
                failed[one.cell.name] = one.error
            if not silent:
                mark = "[red]✗[/red]" if one.error else "[green]✓[/green]"
                stdout.print(f"{mark} {escape(Path(one.cell.name).name)} in {clock_text(one.seconds)}")
    except KeyboardInterrupt:
        Console(stderr=True, highlight=False).print("Interrupted. Nothing is lost: give the same command again.")
        raise typer.Exit(130) from None
    if not silent and done < len(runs):
        stdout.print(f"{len(runs) - done} of them were finished already.")
    return failed


def _compare(groups: dict[str, list[Member]], page: Path, rule: str, silent: bool) -> Path | None:
    """One page of all runs that have something to show, and the table on the terminal."""
    from unfed import storage
    from unfed.report.compare import Compared, compared_rows, render, words_of  # drawing is slow to import

    told = [Compared(name, *sweeping.merged(members)) for name, members in groups.items()]
    told = [one for one in told if one.lines]
    if len(told) < 2:
        return None
    data = render(told, rule=rule).encode()
    shared = sweeping.runs_of([one for members in groups.values() for one in members])
    enter_comparison([run.folder.path for run in shared], page, data)
    storage.deliver(page, data)
    if not silent:
        found = compared_rows(told, rule)
        print_results(stdout, found, f"All runs (rule: {rule}). {star(found)}.", "Run", words_of(told))
        stdout.print(f"Report: [bold]{escape(str(page))}[/bold]")
    return page


def add_to(app: typer.Typer) -> None:
    app.command()(sweep)
