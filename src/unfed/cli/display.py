"""What a person sees in the terminal: live progress, one table, one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from unfed.cli.console import Console
from unfed.report import tables
from unfed.report.rules import Row
from unfed.report.tables import name_of
from unfed.report.words import gate_words
from unfed.runs.folder import Job
from unfed.runs.progress import Clock, QuietWatch
from unfed.runs.run import Run
from unfed.values import Value, is_measured


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
        jobs = run.ahead()
        self._several_seeds = len(run.config.seed_list) > 1
        self._several_requests = len({job.request for job, _ in jobs} - {None}) > 1
        self._clock = Clock(jobs)
        for job, _ in jobs:
            if run.folder.finished(job):
                self._clock.ended(job)
        self._progress = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=24),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[seen]}", style="green"),
            _TimeLeft(self._clock),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("getting ready", total=1, seen="", visible=False)
        self._seen: Mapping[str, Any] = {}
        self._round = 0

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
        self._seen, self._round = {}, round
        name = self._name(job)
        self._progress.reset(self._task, total=rounds, completed=round, description=name, seen="", visible=True)

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        self._clock.at(job, round, rounds, counted=True)
        self._seen, self._round = line or self._seen, round
        self._progress.update(self._task, completed=round, total=rounds, seen=self._summary())

    def ends(self, job: Job, outcome: str) -> None:
        self._clock.ended(job)
        done = {"all rounds": "", "done": ""}.get(outcome, f", {outcome}")
        left = f"   {clock_text(self._clock.seconds_left)} left" if self._clock.left else ""
        self._console.print(
            f"[green]✓[/green] {escape(self._name(job)):<22} {self._round:>4} rounds{done}   {self._summary()}{left}",
            highlight=False,
        )

    def _summary(self) -> str:
        shown = [f"test {percent(self._seen.get('test'))}"]
        if is_measured(self._seen.get("forget")):
            shown.append(f"forget {percent(self._seen['forget'])}")
        if is_measured(self._seen.get("backdoor")):
            shown.append(f"backdoor {percent(self._seen['backdoor'])}")
        return "   ".join(shown)

    def _name(self, job: Job) -> str:
        parts = ["Training"] if job.request is None else [name_of(job.label)]
        if job.request is not None and self._several_requests:
            parts.append(job.request)
        if self._several_seeds:
            parts.append(f"seed {job.seed}")
        return " · ".join(parts)


def results_table(rows: Sequence[Row], title: str, wide: bool) -> Table:
    """The results as a console table; the gaps stand beside the values where the terminal is wide enough."""
    content = tables.table(rows)
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for index, name in enumerate(content.header):
        made.add_column(
            name if wide else name.removesuffix(" (Δ)"), justify="left" if index == 0 else "right", no_wrap=True
        )
    for cells in content.body:
        made.add_row(*(_cell(cell, wide) for cell in cells))
    return made


def _cell(cell: tables.Cell, wide: bool) -> Text:
    text = str(cell) if wide else cell.text + (f" ±{cell.spread}" if cell.spread else "")
    return Text(text + (" ★" if cell.best else ""), style="bold" if cell.best else "")


def request_line(request: Mapping[str, Any]) -> str:
    """Where a deletion request stands, in a line; what can be done where it is owed."""
    standing = str(request["standing"])
    about = [f"request {request['id']}: {standing}"]
    if request["state"] == "fulfilled":
        about.append(f"{request['changed'] or request['created']}, by {name_of(str(request['method']))}")
    elif request["why"]:
        about.append(str(request["why"]).removesuffix("."))
    if request["state"] == "open" and request["expires"]:
        about.append(f"to be begun by {request['expires']}")
    about += [f"{title.lower()}: {text}" for title, text in gate_words(request)]
    if request["owed"]:
        about.append(f"it stays owed: {request['way_out']}")
    return escape("; ".join(about) + ("." if request["owed"] else ""))


def story(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The demo's story in a few sentences, from the last evaluated line of each method."""
    last = {str(line["method"]): line for line in lines}
    before = last.get("before")
    if before is None or not is_measured(before.get("backdoor")):
        return []
    told = [
        f"Client 0 planted a backdoor: before unlearning it fires on {percent(before['backdoor'])} of the stamped"
        " test images of other classes."
    ]
    for method, line in last.items():
        if method in ("before", "train"):
            continue
        told.append(
            f"{_after(name_of(method), line['round'], line['backdoor'])} forget accuracy {_plain(line['forget'])}."
        )
    told.append(
        "Retrain shows what unlearning should look like: there client 0 never took part. All this is evidence about one"
        " model and one attack, not a guarantee."
    )
    return told


def _after(name: str, rounds: int, backdoor: Value) -> str:
    return f"{name + ':':<12} after {rounds:>3} rounds the backdoor fires on {percent(backdoor):>7};"


def _plain(value: Value) -> str:
    return percent(value) if is_measured(value) else str(value)


@contextmanager
def shown(run: Run, console: Console, silent: bool) -> Iterator[Display | QuietWatch]:
    """Whoever watches a run while it works: a display, or nobody."""
    if silent:
        yield QuietWatch()
        return
    with Display(run, console) as display:
        yield display
