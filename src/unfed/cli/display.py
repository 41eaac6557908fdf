"""What a person sees in the terminal: live progress, one table, one line per request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from unfed.cli.console import Console
from unfed.measures import trajectory
from unfed.measures.metrics import COLUMNS
from unfed.report import tables, wording
from unfed.report.rules import Row
from unfed.report.tables import name_of
from unfed.report.wording import CENTRAL, FEDERATED, Wording
from unfed.report.words import gate_words
from unfed.requests.entry import Job
from unfed.runs.progress import Clock, QuietWatch
from unfed.runs.run import Run
from unfed.values import is_measured


def clock_text(seconds: float | None) -> str:
    """1:05, 2:03:04, or -:-- before anything is known."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def percent(value: object) -> str:
    return f"{value:.1f} %" if is_measured(value) else "-"


class _TimeLeft(ProgressColumn):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def render(self, task: Task) -> Text:
        return Text(f"{clock_text(self._clock.seconds_left)} left", style="cyan")


class Display(QuietWatch):
    """Live progress on a terminal; one line per job where there is none."""

    def __init__(self, run: Run, console: Console) -> None:
        self._console = console
        self._words = wording.of(run.description)
        jobs = run.ahead()
        self._several_seeds = len(run.config.seed_list) > 1
        self._several_requests = len({job.request for job, _ in jobs} - {None}) > 1
        self._clock = Clock(jobs)
        for job, _ in jobs:
            if run.folder.finished(job):
                self._clock.ended(job)
        names = [len(self._name(job)) for job, _ in jobs]
        self._width = min(max(names, default=8), 26)
        self._narrow = console.width < 110
        self._progress = Progress(
            TextColumn(f"{{task.description:<{self._width}}}"),
            BarColumn(bar_width=8 if self._narrow else 24),
            TextColumn(f"{self._words.unit} {{task.completed:.0f}}/{{task.total:.0f}}"),
            TextColumn("{task.fields[seen]}", style="green"),
            _TimeLeft(self._clock),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("getting ready", total=1, seen="", visible=False)
        self._seen: Mapping[str, Any] = {}
        self._round = 0
        self._began = time.monotonic()

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begins(self, job: Job, round: int, rounds: int) -> None:
        self._clock.at(job, round, rounds, counted=False)
        self._seen, self._round, self._began = {}, round, time.monotonic()
        name = self._name(job)
        self._progress.reset(self._task, total=rounds, completed=round, description=name, seen="", visible=True)

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        self._clock.at(job, round, rounds, counted=True)
        self._seen, self._round = line or self._seen, round
        self._progress.update(self._task, completed=round, total=rounds, seen=self._summary(self._narrow))

    def ends(self, job: Job, outcome: str) -> None:
        self._clock.ended(job)
        done = {"all rounds": "", "done": ""}.get(outcome, f", {self._words.said(outcome)}")
        took = clock_text(time.monotonic() - self._began)
        units = self._words.unit + ("" if self._round == 1 else "s")
        self._console.print(
            f"[green]✓[/green] {escape(self._name(job)):<{self._width}} {self._round:>3} {units} in {took}{done}"
            f"  {self._summary()}"
        )

    def _summary(self, short: bool = False) -> str:
        """The last evaluated numbers; where there is little room, test and what is to be forgotten."""
        seen = {**self._seen, "forget": trajectory.forget_of(self._seen)}
        shown = [name for name in ("test", "forget", "backdoor") if name == "test" or is_measured(seen.get(name))]
        if short and len(shown) == 3:
            shown.remove("forget")
        return "  ".join(f"{name} {percent(seen.get(name))}" for name in shown)

    def _name(self, job: Job) -> str:
        parts = ["Training"] if job.request is None else [name_of(job.label)]
        if job.request is not None and self._several_requests:
            parts.append(job.request)
        if self._several_seeds:
            parts.append(f"seed {job.seed}")
        return " · ".join(parts)


def print_results(
    console: Console, rows: Sequence[Row], title: str, by: str = "Request", words: Wording = FEDERATED
) -> None:
    """The results as tables that fit the terminal.

    Gaps stand beside the values where there is room, costs below where there is little. Why a number is missing stands
    in a note, once.
    """
    content = tables.table(rows, by, words)
    notes: list[str] = []
    for wide in (True, False):
        notes = []
        made = _table(content, range(len(content.header)), title, wide, notes)
        unbounded = console.options.update(width=10_000)
        if console.measure(made, options=unbounded).maximum <= console.width:
            console.print(made)
            break
    else:
        costs = [place for place, name in enumerate(content.header) if name in _COSTS]
        names = [place for place, name in enumerate(content.header) if name in ("Request", "Run", "Method")]
        values = [place for place in range(len(content.header)) if place not in costs]
        notes = []
        console.print(_table(content, values, title, False, notes))
        console.print(_table(content, [*names, *costs], "What it cost", False, notes))
    for number, note in enumerate(notes, 1):
        console.print(escape(f"({number}) {note}"))
    for told in tables.by_chance(rows):
        console.print(escape(told), soft_wrap=True)


_COSTS = (COLUMNS["comm_bytes"].title, COLUMNS["flops"].title, FEDERATED.units, CENTRAL.units)


def _table(content: tables.Table, places: Sequence[int], title: str, wide: bool, notes: list[str]) -> Table:
    """Some columns of a table; what is too long for a cell is added to the notes."""
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for place in places:
        name = content.header[place]
        left = name in ("Request", "Run", "Method")
        made.add_column(name if wide else name.removesuffix(" (Δ)"), justify="left" if left else "right", no_wrap=True)
    for cells in content.body:
        made.add_row(*(_cell(cells[place], wide, notes) for place in places))
    return made


def _cell(cell: tables.Cell, wide: bool, notes: list[str]) -> Text:
    if cell.missing:
        if cell.text not in notes:
            notes.append(cell.text)
        return Text(f"({notes.index(cell.text) + 1})")
    delta = f" ({cell.delta})" if wide and cell.delta and is_number(cell.delta) else ""
    text = cell.text + (f" ±{cell.spread}" if cell.spread else "") + delta
    return Text(text + (" ★" if cell.best else ""), style="bold" if cell.best else "")


def is_number(text: str) -> bool:
    """Whether a cell holds a number."""
    return text.replace(".", "", 1).lstrip("-").isdigit()


def request_line(request: Mapping[str, Any]) -> str:
    """Where a deletion request stands, and what can be done where it is owed.

    Each check of its gate stands in a line of its own below.
    """
    standing = str(request["standing"])
    about = [f"request {request['id']}: {standing}"]
    about += [f"it takes out {request['subject']}"] if request.get("subject") else []
    if request["state"] == "fulfilled":
        how = "no model was made" if request.get("left_by") else f"by {name_of(str(request['method']))}"
        about.append(f"{request['changed'] or request['created']}, {how}")
        if request.get("purged"):
            about.append(f"purged on {request['purged']}")
    elif request["why"]:
        about.append(str(request["why"]).removesuffix("."))
    if request["state"] == "open" and request["expires"]:
        about.append(f"to be begun by {request['expires']}")
    if request.get("expected_by") and request["state"] not in ("fulfilled", "revoked"):
        about.append(f"promised by {request['expected_by']}")
    if request["owed"]:
        about.append(f"it stays owed: {request['way_out']}")
    checks = [f"\n  {title.lower()}: {text}" for title, text in gate_words(request)]
    return escape("; ".join(about) + ("." if request["owed"] else "") + "".join(checks))


@contextmanager
def shown(run: Run, console: Console, silent: bool) -> Iterator[Display | QuietWatch]:
    """Whoever watches a run while it works: a display, or nobody."""
    if silent:
        yield QuietWatch()
        return
    with Display(run, console) as display:
        yield display
