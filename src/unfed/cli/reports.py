"""The commands that write pages: `report` of one run, `compare` of several, `index` of all."""

import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from unfed.cli.console import echo, say
from unfed.cli.options import RunArgument, out_option, plain, plain_file
from unfed.errors import UnfedError, UnfedWarning, nearest

if TYPE_CHECKING:
    from unfed.report.compare import ListedRun
    from unfed.runs.run import Run

TEXTS, FIGURES = ("md", "latex", "csv", "json"), ("svg", "pdf")
FORMATS = ("html", *TEXTS, *FIGURES)
DEPTH = 4
"""Folders inside folders in which `index` looks for runs."""


def report(
    run: RunArgument,
    kind: Annotated[str, plain("html, md, latex, csv or json; svg or pdf for every figure.", "--format")] = "html",
    rule: Annotated[str, plain("Which table comes first: last, recovered or best-gap.")] = "last",
    rounds: Annotated[bool, plain("With csv: every evaluated round, not one line per method.", "--rounds")] = False,
    out: Annotated[
        Path | None,
        out_option("A file; for svg and pdf a folder. Default: RUN/report.html, stdout, or RUN-figures.", file=False),
    ] = None,
) -> None:
    """Write a run's report, tables, figures or numbers.

    The run may be unfinished. html is one page; md and latex are tables; csv and json are numbers; svg and pdf are
    figures.
    """
    from unfed.api import write_report
    from unfed.folder.carriers import hand_out
    from unfed.report.rules import named
    from unfed.runs.run import Run

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
    opened = Run.open(run)
    if kind == "html":
        say(f"Report: {write_report(opened, out, rule)}")
    elif kind in FIGURES:
        _figures(opened, out or Path(f"{run.resolve().name}-figures"), kind, rule)
    else:
        text = _text(opened, kind, rule, rounds)
        if out is None:
            echo(text.rstrip("\n"))
        else:
            hand_out(opened.folder, "report", out, text.encode())
            say(f"Report: {out}")


def _text(run: "Run", kind: str, rule: str, rounds: bool) -> str:
    from unfed.api import results
    from unfed.report import tables
    from unfed.report.wording import words_of

    found = results(run, rule)
    if kind in ("md", "latex"):
        return (tables.markdown if kind == "md" else tables.latex)(found, words=words_of(run.description))
    lines = [tables.numbers_only(line) for line in run.lines()]
    if kind == "csv":
        return tables.csv_text(lines if rounds else tables.records(found))
    said = {"run": run.config.name, "rule": rule, "results": tables.records(found), "rounds": lines}
    return json.dumps({**said, "config": run.config.to_json()}, ensure_ascii=False) + "\n"


def _figures(run: "Run", folder: Path, kind: str, rule: str) -> None:
    from unfed.folder.carriers import hand_out
    from unfed.report import figures

    drawn = figures.pictures(run.info(), run.lines(), rule)
    if not drawn:
        raise UnfedError(f"{run.folder.path} has no evaluated round to draw yet; go on with {run.going_on}.")
    if folder.exists() and not folder.is_dir():
        raise UnfedError(f"{folder} is a file, and figures go into a folder; give another with -o DIR.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in drawn.items():
        hand_out(run.folder, "report", folder / f"{name}.{kind}", one.bytes(kind))
    say(f"Figures: {len(drawn)} files in {folder}")


def compare(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN RUN …", help="Two run folders or more.")] = None,
    kind: Annotated[str, plain("html, md, latex or csv.", "--format")] = "html",
    rule: Annotated[str, plain("best-gap, recovered or last.")] = "best-gap",
    out: Annotated[Path | None, out_option("Default: compare.html here; tables to stdout.")] = None,
) -> None:
    """Compare several runs in one report."""
    from unfed import api
    from unfed.report import compare as several
    from unfed.report import tables
    from unfed.report.rules import named

    kind = kind.lower()
    if kind not in ("html", "md", "latex", "csv"):
        raise UnfedError(f"--format takes html, md, latex or csv, not {kind!r}.")
    named(rule)
    if kind == "html":
        say(f"Report: {api.compare(runs or [], out or Path('compare.html'), rule)}")
        return
    said = api.compared(runs or [])
    if kind == "csv":
        text = tables.csv_text(tables.records(several.compared_rows(said, rule)))
    else:
        text = (several.markdown if kind == "md" else several.latex)(said, rule)
    if out is None:
        echo(text)
    else:
        api.write_comparison(runs or [], out, text.encode())
        say(f"Report: {out}")


def index(
    runs: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with run folders in it.")] = Path("runs"),
    out: Annotated[Path | None, out_option("Default: FOLDER/index.html.")] = None,
) -> None:
    """Write one page of all runs and requests in a folder."""
    from unfed import storage
    from unfed.folder.carriers import enter
    from unfed.folder.folder import RunFolder
    from unfed.report.compare import render_index as render

    if not runs.is_dir():
        raise UnfedError(f"{runs} is not a folder; name the one in which your runs lie (`unfed run` makes runs/NAME).")
    target = out or runs / "index.html"
    there = folders(runs)
    found = [_listed(folder, runs, target) for folder in there]
    data = render(found, runs.resolve().name).encode()
    for folder in (folder for folder, one in zip(there, found, strict=True) if not one.error):
        try:
            enter(RunFolder(folder), "index", target, data)
        except UnfedError as error:  # a page of many runs does not fail for the list of one
            warnings.warn(f"{target} is not entered in {folder}: {error}", UnfedWarning, stacklevel=2)
    storage.deliver(target, data)
    broken = sum(bool(one.error) for one in found)
    more = f", {broken} of them cannot be read" if broken else ""
    say(f"Index: {target} ({len(found)} runs{more})")


def folders(where: Path, depth: int = DEPTH) -> list[Path]:
    """The run folders at or below a folder; what lies inside a run is its own."""
    if (where / "run.json").is_file():
        return [where]
    if depth == 0:
        return []
    below = sorted(path for path in where.iterdir() if path.is_dir() and not path.is_symlink())
    return [found for path in below if not path.name.startswith(".") for found in folders(path, depth - 1)]


def _listed(folder: Path, base: Path, page: Path) -> "ListedRun":
    from unfed.report.compare import ListedRun
    from unfed.runs.run import Run
    from unfed.runs.status import status

    name = "." if folder == base else folder.relative_to(base).as_posix()
    try:
        run = Run.open(folder)
        stands = status(run)
        about = run.info().model_copy(update={"in_force": stands.in_force})
        return ListedRun(name, about, run.lines(), _link(folder / "report.html", page), stands.state)
    except UnfedError as error:
        return ListedRun(name, error=str(error))


def _link(report: Path, page: Path) -> str | None:
    """A report as seen from the page."""
    if not report.is_file():
        return None
    there = os.path.relpath(report.resolve(), page.resolve().parent)
    return quote(Path(there).as_posix())  # a name may hold a colon or a hash
