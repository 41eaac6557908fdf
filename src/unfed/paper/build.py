"""Runs what an item needs, each run once, and writes the item down.

    OUT/runs/PRESET-HASH    run folders, shared between items: interrupted ones go on, what is done is read; runs that
                            differ in who leaves train θ* once
    OUT/table-1.md .tex     the rows          OUT/figure-4.svg …     the pictures
    OUT/table-1.json        the numbers       OUT/paper.html         everything made here so far

What cannot work is refused before the first run begins.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.config import revisions
from unfed.errors import UnfedError
from unfed.paper import views
from unfed.paper.items import Item, SharedRun, Spec, shared
from unfed.paper.items import items as all_items
from unfed.paper.views.base import BY, Section, TextTable, first_seed
from unfed.report import RunInfo, html, tables
from unfed.report.wording import date_text
from unfed.requests.entry import now
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.studies.same_training import take_training
from unfed.values import as_json

Shown = Callable[[Run], AbstractContextManager[Watch]]
"""Who watches a run while it works."""
Say = Callable[[str], object]


def make(items: Sequence[Item], scale: str, out: str | Path, shown: Shown, say: Say, sets: Sequence[str] = ()) -> Path:
    """Make these items, and the page that shows them with whatever was made here before.

    After an interruption it goes on where it was.
    """
    folder, done = Path(out), dict[str, Section]()
    page, failed = folder / "paper.html", dict[str, str]()
    _open_all(items, scale, folder, sets)
    for item in items:  # before the first run: what cannot be made of a fresh model cannot be made after hours either
        views.VIEWS[item.view].rehearse(item, _runs(item, scale, folder, sets))
    for item in items:
        say(f"{item.heading}: {item.title}")
        runs = _runs(item, scale, folder, sets)
        for run in runs.values():
            _take_trained(run, scale, folder, sets, say)
            with shown(run) as watch:
                run.execute(watch)
        done[item.id], why = _section(item, runs)
        failed |= {item.heading: why} if why else {}
        write(done[item.id], folder)
        sections, about = _made(scale, folder, sets, done)
        storage.write_bytes(page, render(sections, scale, sets, about).encode())
    if failed:
        reasons = " ".join(f"{heading}: {reason}" for heading, reason in failed.items())
        raise UnfedError(f"Some items could not be made; {page} says which, and has the others. {reasons}")
    return page


def _section(item: Item, runs: Mapping[Spec, Run]) -> tuple[Section, str]:
    """The item, or why it could not be made: the others are not the worse for it."""
    view = views.VIEWS[item.view]
    one = [f"{spec.name}: made of seed {first_seed(run)} alone." for spec, run in runs.items() if view.analysis]
    try:
        found = view.make(item, runs)
        return replace(found, said=(*found.said, *one)), ""
    except UnfedError as error:
        return Section(item, said=(f"not measured: {error}",)), str(error)


def _runs(item: Item, scale: str, folder: Path, sets: Sequence[str]) -> dict[Spec, Run]:
    found = shared(scale, sets)
    return {spec: _opened(folder, found[spec]) for spec in item.runs[scale]}


def _opened(folder: Path, one: SharedRun) -> Run:
    """The run in its folder, if it is the one asked for and nothing of it was revised since."""
    run = Run.open(_place(folder, one), one.methods)
    if run.config != one.config:
        raise UnfedError(f"{run.folder.path} holds a run of another config; move it away, or give --out a new folder.")
    refuse_revised(run, one.methods)
    return run


def refuse_revised(run: Run, labels: Iterable[str]) -> None:
    """Raise if a run was made before the engine, the evaluator or one of these methods was revised."""
    used = [run.config.methods.name_of(label) for label in labels]
    if old := revisions.raised(run.description.revisions, used, run.config.to_json()):
        raise UnfedError(
            f"{revisions.told(old)} revised since {run.folder.path} was made; move it away, or give --out a new folder."
        )


def _take_trained(run: Run, scale: str, folder: Path, sets: Sequence[str], say: Say) -> None:
    """θ* from another run that has trained the same: items that differ in who leaves train once."""
    for one in dict.fromkeys(_place(folder, one) for one in shared(scale, sets).values()):
        if one == run.folder.path or not (one / "run.json").exists():
            continue
        try:
            seeds = take_training(run, Run.open(one))
        except UnfedError as error:  # of another item: this one can train for itself
            say(f"θ* is not taken from {one.name}: {error}")
        else:
            if seeds:
                say(f"θ* of {run.folder.path.name} is that of {one.name} (seeds {', '.join(map(str, seeds))})")


def _open_all(items: Sequence[Item], scale: str, folder: Path, sets: Sequence[str]) -> None:
    """Every run's folder, before the first run begins.

    A layer's name, a missing data set or method, or a folder with another run is found now and not after hours, and
    then no folder is left behind.
    """
    for item in items:
        for spec in item.runs[scale]:
            views.VIEWS[item.view].check(item, spec.name, spec.config(sets))
    new, found = list[Path](), shared(scale, sets)
    wanted = {_place(folder, found[spec]): found[spec] for item in items for spec in item.runs[scale]}
    for spec in (spec for item in items for spec in item.runs[scale]):
        if (_place(folder, found[spec]) / "run.json").exists():
            _opened(folder, found[spec])
    try:
        for place, one in wanted.items():
            if not (place / "run.json").exists():
                new.append(place)
                Run.create(one.config, place)
    except UnfedError:
        for place in new:
            shutil.rmtree(place, ignore_errors=True)
        raise


def _place(folder: Path, one: SharedRun) -> Path:
    return folder / "runs" / one.folder


def _made(scale: str, folder: Path, sets: Sequence[str], done: dict[str, Section]) -> tuple[list[Section], RunInfo]:
    """The sections of all items that were made here and whose runs are finished.

    It also gives what the first of those runs says of its machine. What an earlier command made is looked at once and
    put into `done`: an analysis takes minutes.
    """
    sections, about, found = list[Section](), RunInfo(), shared(scale, sets)
    for item in all_items().values():
        places = {spec: _place(folder, found[spec]) for spec in item.runs[scale]}
        asked_for = item.id in done or (folder / f"{item.id}.json").exists()
        if not asked_for or not all((place / "run.json").exists() for place in places.values()):
            continue
        try:
            runs = {spec: _opened(folder, found[spec]) for spec in places}
            ready = all(run.folder.finished(job) for run in runs.values() for job, _ in run.jobs())
            about = next(iter(runs.values())).info() if ready and not about.created else about
        except UnfedError as error:  # what an earlier command made is damaged: the others are not the worse for it
            sections.append(Section(item, said=(f"not measured: {error}",)))
            continue
        if ready:
            if item.id not in done:
                done[item.id] = _section(item, runs)[0]
            sections.append(done[item.id])
    return sections, about


def write(section: Section, folder: Path) -> None:
    """An item's own files."""
    name = section.item.id
    for ending, text in (("md", markdown(section)), ("tex", latex(section)), ("json", numbers(section))):
        if text:
            storage.write_bytes(folder / f"{name}.{ending}", text.encode())
    for number, picture in enumerate(section.pictures, 1):
        suffix = f"-{number}" if len(section.pictures) > 1 else ""
        if picture.svg is not None:
            storage.write_bytes(folder / f"{name}{suffix}.svg", picture.file().encode())


def markdown(section: Section) -> str:
    parts = [f"# {section.item.heading}: {section.item.title}\n"]
    if section.rows:
        parts.append(tables.markdown(section.rows, BY))
    for grid in (*section.grids, *((section.published,) if section.published else ())):
        parts.append((f"{grid.title}:\n\n" if grid.title else "") + _markdown(grid))
    parts += [f"{sentence}\n" for sentence in section.said]
    return "\n".join(parts) if len(parts) > 1 else ""


def latex(section: Section) -> str:
    return tables.latex(section.rows, BY) if section.rows else ""


def numbers(section: Section) -> str:
    found = json.dumps(as_json(section.data), indent=1, ensure_ascii=False, allow_nan=False)
    return found + "\n" if section.data else ""


def render(sections: Sequence[Section], scale: str, sets: Sequence[str], about: RunInfo) -> str:
    """The page of everything that was made."""
    return html.page(
        "paper.html.j2",
        title="The paper's tables and figures",
        scale=scale,
        sets=list(sets),
        every={section.item.id for section in sections} == set(all_items()),
        when=date_text(now()),
        run=about,
        sections=[_view(section) for section in sections],
    )


def _view(section: Section) -> dict[str, Any]:
    return {
        "id": section.item.id,
        "heading": section.item.heading,
        "title": section.item.title,
        "table": html.table_view(section.rows, BY) if section.rows else None,
        "grids": section.grids,
        "pictures": section.pictures,
        "published": section.published,
        "said": section.said,
    }


def _markdown(grid: TextTable) -> str:
    lines = [grid.header, ["---"] * len(grid.header), *grid.body]
    return "\n".join(tables.markdown_line(list(line)) for line in lines) + "\n"
