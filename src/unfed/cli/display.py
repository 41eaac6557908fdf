"""Terminal output: live progress, results, what became of requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from unfed.cli.console import Console, say, stderr, stdout
from unfed.folder.info import RequestInfo
from unfed.measures import trajectory
from unfed.measures.metrics import COLUMNS
from unfed.report import tables
from unfed.report.rules import Row, asked
from unfed.report.sentences import earlier_words, falls, first_sentence, left_before, verdicts
from unfed.report.tables import name_of, star
from unfed.report.undo import sentence
from unfed.report.wording import CENTRAL, FEDERATED, Wording, words_of
from unfed.requests.entry import GateSaid, Job
from unfed.requests.reversible import inverse_of
from unfed.runs.probe import first_look
from unfed.runs.progress import Clock, Watch
from unfed.runs.record import ending
from unfed.runs.run import Outcome, Run
from unfed.runs.status import in_force, info_of
from unfed.runs.status import status as status_of
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


class Live(Progress):
    """Progress on stderr: a bar on a terminal, elsewhere one line for each thing that is begun."""

    def __init__(self, silent: bool, *columns: ProgressColumn) -> None:
        bar = TextColumn("{task.description:<12}"), BarColumn(bar_width=24), *columns, TimeElapsedColumn()
        super().__init__(*bar, console=stderr, transient=True, disable=silent or not stderr.is_terminal)
        self._lines, self._seen = not (silent or stderr.is_terminal), set[str]()
        self._task = self.add_task("getting ready", total=1)

    def show(self, what: str, done: float, total: float | None, begun: str) -> None:
        self.update(self._task, description=escape(what), completed=done, total=total)
        if self._lines and begun not in self._seen:  # several processes speak in turn
            stderr.print(escape(begun), soft_wrap=True)
        self._seen.add(begun)


class Display(Watch):
    """Live progress on a terminal; one line per job where there is none."""

    def __init__(self, run: Run, console: Console) -> None:
        self._console = console
        self._words = words_of(run.description)
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


@contextmanager
def shown(run: Run, console: Console, silent: bool) -> Iterator[Display | Watch]:
    """What watches a run while it works: a display, unless it is silent."""
    if silent:
        yield Watch()
        return
    with Display(run, console) as display:
        yield display


# --- what a run has to show -------------------------------------------------------------------------------------------


def print_results(
    console: Console, rows: Sequence[Row], title: str, by: str = "Request", words: Wording = FEDERATED
) -> None:
    """The results as tables that fit the terminal.

    Gaps stand beside the values where there is room, costs below where there is little. Why a number is missing stands
    in a note, once.
    """
    content = tables.table(rows, by, words)
    for wide in (True, False):
        reasons = tables.Reasons()
        made = _table(content, range(len(content.header)), title, wide, reasons)
        unbounded = console.options.update(width=10_000)
        if console.measure(made, options=unbounded).maximum <= console.width:
            console.print(made)
            break
    else:
        costs = [place for place, name in enumerate(content.header) if name in _COSTS]
        names = [place for place, name in enumerate(content.header) if name in ("Request", "Run", "Method")]
        values = [place for place in range(len(content.header)) if place not in costs]
        reasons = tables.Reasons()
        console.print(_table(content, values, title, False, reasons))
        console.print(_table(content, [*names, *costs], "What it cost", False, reasons))
    for note in reasons.notes:
        console.print(escape(note))
    for noted in tables.by_chance(rows):
        console.print(escape(noted), soft_wrap=True)


_COSTS = (COLUMNS["comm_bytes"].title, COLUMNS["flops"].title, FEDERATED.units, CENTRAL.units)


def _table(
    content: tables.ResultTable, places: Sequence[int], title: str, wide: bool, reasons: tables.Reasons
) -> Table:
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
        made.add_row(*(_cell(cells[place], wide, reasons) for place in places))
    return made


def _cell(cell: tables.Cell, wide: bool, reasons: tables.Reasons) -> Text:
    if cell.missing:
        return Text(f"({reasons.number(cell.text)})")
    delta = f" ({cell.delta})" if wide and cell.delta and is_number(cell.delta) else ""
    text = cell.text + (f" ±{cell.spread}" if cell.spread else "") + delta
    return Text(text + (" ★" if cell.best else ""), style="bold" if cell.best else "")


def is_number(text: str) -> bool:
    """Whether a cell holds a number."""
    return text.replace(".", "", 1).lstrip("-").isdigit()


def headline(run: Run) -> str:
    """What is trained, on what."""
    about, config = run.description, run.config
    many = len(about.clients)
    held = "one holder of all data" if config.setting == "central" else f"{many} client{'s' if many != 1 else ''}"
    return (
        f"[bold]{escape(config.name)}[/bold]: {escape(config.data.name)}, {held}, {escape(config.model.name)}"
        f" with {about.parameters:,} parameters; {about.engine} engine on {about.device}."
    )


def tell_results(run: Run, found: Sequence[Row], ending: Sequence[str]) -> None:
    """The table of a run that has ended, what it says, and what is still owed."""
    stdout.print()
    if found:
        words = words_of(run.description)
        print_results(stdout, found, f"After the last {words.unit} (rule: last). {star(found)}.", words=words)
    info = run.info()
    forgot = [said for request in run.config.request_ids() for said in verdicts(info, request)]
    say(*happened(run, found), *forgot, *falls(found), *ending)
    if not found and not run.config.request:
        client = next(iter(run.description.clients), "0")
        who = ("--class", 0) if run.config.setting == "central" else ("--client", client)
        say(
            "The config names no [request], so nothing was forgotten and no method ran. Take a client or a class out"
            f" with `{run.command('forget', *who)}`."
        )
    for request in status_of(run).requests:
        if request.owed:
            stdout.print(request_line(request), soft_wrap=True)


def happened(run: Run, found: Sequence[Row]) -> list[str]:
    """What became of each request of the config, as the report says it."""
    info, own = info_of(run), run.config.request_ids()
    requests = [one for name, one in asked(info, run.lines()).items() if name in own]
    return [first_sentence(info, one, [row for row in found if row.request == one.id]) for one in requests]


def can_be_undone(run: Run) -> list[str]:
    """What NoT's inverse brings back in its model and in Retrain's; the folder keeps it for the report."""
    found = first_look(run, "not")
    if found is None:
        return []
    lasts = f"Retrain lasts; Sealed has no inverse. `{run.command('probe')}` tries other ways to undo these models."
    return [sentence([found]), lasts]


def next_steps(run: Run) -> list[str]:
    """What a newcomer may do after the demo."""
    gone = {client for request in run.config.requests() for client in request.clients}
    left = [client for client in run.description.clients if client not in gone]
    out = ""
    if left and not run.folder.book().entries:
        forget = run.command("forget", "--client", "3" if "3" in left else left[0])
        out = f" take another client out with `{forget}`;"
    return [
        f"Next: open the report below;{out} your own model and data: docs/how-to/central.md and docs/how-to/models.md."
    ]


# --- what became of a request -----------------------------------------------------------------------------------------


def request_line(request: RequestInfo) -> str:
    """Where a deletion request stands, and what can be done where it is owed."""
    about = [f"request {request.id}: {request.standing}"]
    about += [f"it takes out {request.subject}"] if request.subject else []
    if request.state == "fulfilled":
        how = "no model was made" if request.left_by else f"by {name_of(str(request.method))}"
        about.append(f"{request.changed or request.created}, {how}")
        if request.purged:
            about.append(f"purged on {request.purged}")
    elif request.why:
        about.append(request.why.removesuffix("."))
    if request.state == "open" and request.expires:
        about.append(f"to be begun by {request.expires}")
    if request.expected_by and request.state not in ("fulfilled", "revoked"):
        about.append(f"promised by {request.expected_by}")
    if request.owed:
        about.append(f"it stays owed: {request.way_out}")
    return escape("; ".join(about) + ("." if request.owed else ""))


def gate_in_short(gate: GateSaid | None) -> str:
    """A line of the gate's checks, with numbers where they decide or failed."""
    if gate is None or not gate.checks:
        return ""
    found = []
    for check in gate.checks:
        counts = is_measured(check.value) and (check.decides or check.verdict == "failed")
        number = f" ({check.value:.3g}, at most {check.bound:.3g})" if counts else ""
        found.append(f"{check.name} {check.verdict}{number}")
    accepted = f"; put in force all the same by {by.get('by')}, {by.get('at')}" if (by := gate.accepted) else ""
    return escape(f"\n  gate: {', '.join(found)}{accepted}")


def tell_outcome(run: Run, status: str, request: str, report: str) -> None:
    """What became of a request that was just filed or served."""
    lines = [line for line in run.lines() if line["request"] == request]
    if status == "queued":
        say(
            f"Request {request!r} is filed. Another process is at work here: it leaves these rows out from its next"
            " round on, then serves the request."
        )
    elif status == "waits":
        say(
            f"Request {request!r} is filed: its rows train no more, but are still in the model in force."
            f" `{run.command('resume')}` serves it."
        )
    elif status == "already done":
        last: Mapping[str, Any] = lines[-1] if lines else {}
        before = "" if (entry := run.queue.book.find(request)) and entry.left_by else f" (round {last.get('round')})"
        say(f"Request {request!r} was served already{before}; nothing was done.")
    elif status == "withdrawn":
        say(f"Request {request!r} was withdrawn while it was served; the model in force is the old one.")
    else:
        _tell_served(run, request, lines)
        say(f"Report: {report}")


def _tell_served(run: Run, request: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """What the new model does, whether that says that the leaver is out, and what is in force now."""
    last = lines[-1]
    entry, words = run.queue.book.find(request), words_of(run.description)
    if entry and entry.left_by:
        asked = RequestInfo.model_validate({**(entry.described or {}), "id": request, "left_by": entry.left_by})
        said = left_before(asked, words)
        seen = f"validation {percent(last['validation'])}, test {percent(last['test'])}, forget"
        say(f"Request {request!r} is fulfilled. {said}. Of the model in force: {seen} {trajectory.forget_of(last)}.")
    else:
        say(
            f"Request {request!r} is served after {words.several(last['round'])}: validation"
            f" {percent(last['validation'])} (before {percent(last['validation_before'])}),"
            f" forget {percent(trajectory.forget_of(last))}, test {percent(last['test'])}."
        )
    saved = None if entry is None else run.folder.saved(entry.job)
    if saved is not None and (tuned := saved.diary.tuned):
        tried = ", ".join(f"{rate}: {percent(value)}" for rate, value in tuned["validation"].items())
        spent = words.several(tuned["rounds"])
        say(f"Learning rate {tuned['lr']}: the highest that came near the best in {spent} of trials ({tried}).")
    if entry and (verdict := Outcome(entry, "done").verdict):
        say(verdict)
    again, left_by = (entry.again, entry.left_by) if entry else ({}, ())
    asked = RequestInfo(id=request, again=again, left_by=left_by)
    before = next((line for line in lines if line["method"] == "before"), None)
    with_it = {one.request.id for one in run.queue.book.mates(entry)} if entry else set()
    for heading, shows in earlier_words(asked, before, last, with_it):
        say(f"{heading}: {shows}.")
    now = in_force(run, entry.seed if entry else run.config.seed_list[0])
    say(f"In force: {now.sentence}. `{run.command('export', '-o', 'model.safetensors')}` writes it to a file.")


def lasting(run: Run, request: str) -> str | None:
    """Of a method that can be undone with the model alone: what that choice means, and what lasts."""
    if (entry := run.queue.book.find(request)) is None:
        return None
    took_out = [run.queue.book.find(name) for name in entry.left_by] or [entry]
    by = next(((one, how) for one in took_out if one and (how := inverse_of(run.folder.book(), one))), None)
    if by is None:
        return None
    title = run.about(by[0].method, by[0]).title
    return (
        f"Anyone with this model can undo {title} by {by[1]}: `{run.command('probe')}` shows how far;"
        " `--method retrain` lasts, `--method sealed` has no inverse."
        + (f" `{command}` ends it." if (command := ending(run, entry)) else "")
    )
