"""`unfed index`: one static page of all runs and requests in a folder."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
from rich.markup import escape

from unfed import storage
from unfed.cli.console import Console
from unfed.cli.options import plain_file
from unfed.errors import UnfedError, UnfedWarning
from unfed.folder.folder import RunFolder
from unfed.folder.handed_out import enter
from unfed.runs.run import Run
from unfed.runs.status import status

if TYPE_CHECKING:
    from unfed.report.index import Listed

stdout = Console(highlight=False)

DEPTH = 4
"""Folders inside folders in which runs are looked for."""


def index(
    runs: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with run folders in it.")] = Path("runs"),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", callback=plain_file, help="Default: FOLDER/index.html.")
    ] = None,
) -> None:
    """Write one static page of all runs and requests in a folder, with links to their reports."""
    from unfed.report.index import render  # jinja and drawing are slow to import

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
    stdout.print(f"Index: {escape(str(target))} ({len(found)} runs{more})")


def folders(where: Path, depth: int = DEPTH) -> list[Path]:
    """The run folders at or below a folder; what lies inside a run is its own."""
    if (where / "run.json").is_file():
        return [where]
    if depth == 0:
        return []
    below = sorted(path for path in where.iterdir() if path.is_dir() and not path.is_symlink())
    return [found for path in below if not path.name.startswith(".") for found in folders(path, depth - 1)]


def _listed(folder: Path, base: Path, page: Path) -> Listed:
    from unfed.report.index import Listed

    name = "." if folder == base else folder.relative_to(base).as_posix()
    try:
        run = Run.open(folder)
        stands = status(run)
        told = {**run.info(), "in_force": stands["in_force"]}
        return Listed(name, _link(folder / "report.html", page), told, run.lines(), stands["state"])
    except UnfedError as error:
        return Listed(name, error=str(error))


def _link(report: Path, page: Path) -> str | None:
    """A report as seen from the page."""
    if not report.is_file():
        return None
    there = os.path.relpath(report.resolve(), page.resolve().parent)
    return quote(Path(there).as_posix())  # a name may hold a colon or a hash


def add_to(app: typer.Typer) -> None:
    app.command()(index)
