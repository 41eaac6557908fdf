"""Runs what an item needs, each run once, and writes the item down.

OUT/runs/PRESET-HASH    run folders: interrupted ones go on, finished ones are read
OUT/table-1.md .tex     the rows          OUT/figure-4.svg …     the pictures
OUT/table-1.json        the numbers       OUT/paper.html         everything so far, in one page
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from unfed import checkpoint
from unfed.describe import now
from unfed.paper import views
from unfed.paper.catalogue import Item, Spec
from unfed.paper.views import Grid, Section
from unfed.report import html, tables
from unfed.report.words import date_text
from unfed.run import Run
from unfed.watching import Watch

Shown = Callable[[Run], AbstractContextManager[Watch]]
"""Who watches a run while it works."""
Told = Callable[[str], object]


def make(
    items: Sequence[Item], scale: str, out: str | Path, shown: Shown, told: Told, sets: Sequence[str] = ()
) -> Path:
    """Make these items, and the page that shows them. Again after an interruption: it goes on where it was."""
    folder, sections = Path(out), list[Section]()
    page = folder / "paper.html"
    places = {spec: folder / "runs" / spec.folder(sets) for item in items for spec in item.runs[scale]}
    for spec, place in places.items():  # what does not fit, a layer's name or a missing data set, is found before hours
        _opened(spec, place, sets)
    for item in items:
        told(f"{item.heading}: {item.title}")
        runs = {spec.name: _opened(spec, places[spec], sets) for spec in item.runs[scale]}
        for run in runs.values():
            with shown(run) as watch:
                run.execute(watch)
        section = views.VIEWS[item.view](item, runs)
        sections.append(section)
        write(section, folder)
        about = [run.info() for run in runs.values()]
        checkpoint.write_bytes(page, render(sections, scale, sets, about[0]).encode())
    return page


def _opened(spec: Spec, folder: Path, sets: Sequence[str]) -> Run:
    return Run.open(folder) if (folder / "run.json").exists() else Run.create(spec.config(sets), folder)


def write(section: Section, folder: Path) -> None:
    """An item's own files."""
    name = section.item.id
    for ending, text in (("md", markdown(section)), ("tex", latex(section)), ("json", numbers(section))):
        if text:
            checkpoint.write_bytes(folder / f"{name}.{ending}", text.encode())
    for number, picture in enumerate(section.pictures, 1):
        suffix = f"-{number}" if len(section.pictures) > 1 else ""
        checkpoint.write_bytes(folder / f"{name}{suffix}.svg", picture.file().encode())


def markdown(section: Section) -> str:
    parts = [f"# {section.item.heading}: {section.item.title}\n"]
    if section.rows:
        parts.append(tables.markdown(section.rows, views.BY))
    if section.grid:
        parts.append(_markdown(section.grid))
    if section.published:
        parts.append("What the paper reports:\n\n" + _markdown(section.published))
    parts += [f"{sentence}\n" for sentence in section.said]
    return "\n".join(parts) if len(parts) > 1 else ""


def latex(section: Section) -> str:
    return tables.latex(section.rows, views.BY) if section.rows else ""


def numbers(section: Section) -> str:
    return json.dumps(section.data, indent=1, ensure_ascii=False) + "\n" if section.data else ""


def render(sections: Sequence[Section], scale: str, sets: Sequence[str], about: dict[str, Any]) -> str:
    """The page of everything that was made."""
    return html.page(
        "paper.html.j2",
        title="The paper's tables and figures",
        scale=scale,
        sets=list(sets),
        when=date_text(now()),
        facts=html.facts(about),
        sections=[_view(section) for section in sections],
    )


def _view(section: Section) -> dict[str, Any]:
    return {
        "id": section.item.id,
        "heading": section.item.heading,
        "title": section.item.title,
        "table": html.table_view(section.rows, views.BY) if section.rows else None,
        "grid": section.grid,
        "pictures": [{"title": picture.title, "svg": picture.svg} for picture in section.pictures],
        "published": section.published,
        "said": section.said,
    }


def _markdown(grid: Grid) -> str:
    lines = [grid.header, ["---"] * len(grid.header), *grid.body]
    return "\n".join(tables.markdown_line(list(line)) for line in lines) + "\n"
