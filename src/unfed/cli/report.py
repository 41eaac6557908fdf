"""`unfed report`: what a run has to show, as a page, a table, figures or numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from unfed import storage
from unfed.api import results, write_report
from unfed.cli.console import Console, echo
from unfed.cli.options import RunArgument, plain_file
from unfed.errors import UnfedError, nearest
from unfed.folder import foreign
from unfed.folder.handed_out import hand_out
from unfed.report import tables, wording
from unfed.report.rules import named
from unfed.runs.run import Run

stdout = Console(highlight=False)

TEXTS, FIGURES = ("md", "latex", "csv", "json"), ("svg", "pdf")
FORMATS = ("html", *TEXTS, *FIGURES)


def report(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="A file; a folder for svg and pdf. Default: RUN/report.html, RUN-figures, or stdout."
        ),
    ] = None,
    kind: Annotated[
        str, typer.Option("--format", help="html, md, latex, csv or json; svg or pdf for every figure.")
    ] = "html",
    rule: Annotated[str, typer.Option(help="Which table is in front: last, recovered or best-gap.")] = "last",
    rounds: Annotated[
        bool, typer.Option("--rounds", help="With csv: every evaluated round, not one line per method.")
    ] = False,
) -> None:
    """Write the report of a run, finished or not: a page, a table, its figures or its numbers.

    html is one page for everybody; md and latex are tables; csv and json are numbers; svg and pdf are figures, one file
    each.
    """
    kind = kind.lower()
    if kind not in FORMATS:
        raise UnfedError(
            f"--format takes html, md, latex, csv, json, svg or pdf, not {kind!r}.{nearest(kind, FORMATS)}"
        )
    named(rule)
    if kind not in FIGURES:
        plain_file(out)
    if rounds and kind != "csv":
        raise UnfedError("--rounds belongs to --format csv; json holds every round already.")
    if (run / foreign.FILE).is_file():
        _foreign(run, out, kind)
        return
    opened = Run.open(run)
    if kind == "html":
        stdout.print(f"Report: {escape(str(write_report(opened, out, rule)))}", soft_wrap=True)
    elif kind in FIGURES:
        _figures(opened, out or Path(f"{run.resolve().name}-figures"), kind, rule)
    else:
        text = _text(opened, kind, rule, rounds)
        if out is None:
            echo(text.rstrip("\n"))
        else:
            hand_out(opened.folder, "report", out, text.encode())
            stdout.print(f"Report: {escape(str(out))}", soft_wrap=True)


def _text(run: Run, kind: str, rule: str, rounds: bool) -> str:
    found = results(run, rule)
    if kind in ("md", "latex"):
        return (tables.markdown if kind == "md" else tables.latex)(found, words=wording.of(run.description))
    from unfed.report import gallery  # it can draw, and drawing is slow to import

    if kind == "csv":
        return gallery.csv_text(run.lines() if rounds else gallery.records(found))
    told = {"run": run.config.name, "rule": rule, "results": gallery.records(found), "rounds": run.lines()}
    return json.dumps({**told, "config": run.config.to_json()}, ensure_ascii=False) + "\n"


def _figures(run: Run, folder: Path, kind: str, rule: str) -> None:
    from unfed.report import gallery

    drawn = gallery.pictures(run.info(), run.lines(), rule)
    if not drawn:
        raise UnfedError(f"{run.folder.path} has no evaluated round to draw yet; go on with {run.going_on}.")
    if folder.exists() and not folder.is_dir():
        raise UnfedError(f"{folder} is a file, and figures go into a folder; give another with -o DIR.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in drawn.items():
        hand_out(run.folder, "report", folder / f"{name}.{kind}", one.bytes(kind))
    stdout.print(f"Figures: {len(drawn)} files in {escape(str(folder))}", soft_wrap=True)


def _foreign(run: Path, out: Path | None, kind: str) -> None:
    if kind != "html":
        raise UnfedError(f"{run} is evidence of a foreign app, which is shown as a page; leave --format out.")
    from unfed.report.foreign import foreign_page  # it can draw, and drawing is slow to import

    kept = foreign.evidence(run)
    storage.write_bytes(out or run / "report.html", foreign_page(kept, run.resolve().name).encode())
    stdout.print(f"Report: {escape(str(out or run / 'report.html'))}", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command()(report)
