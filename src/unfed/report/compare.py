"""Several runs on one page: a comparison, or the index of a folder.

    runs ─► rows of each, labelled by run ─► one table, one scatter, one set of curves
         └► configs side by side, only the keys that differ

A gap is always taken to the Retrain of the same run. The page warns first where runs cannot be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unfed.errors import UnfedError, listed
from unfed.folder.info import RequestInfo, RunInfo
from unfed.measures.trajectory import Line
from unfed.report import figures, html, tables
from unfed.report.rules import RULES, Row, asked, named, rows, trajectories
from unfed.report.sentences import NOT_PROOF, first_sentence, headline, not_taken_out, subject_text, unfinished
from unfed.report.tables import name_of
from unfed.report.wording import FEDERATED, Wording, words_of


@dataclass(frozen=True)
class Compared:
    """One run of a page: its name there, what it says of itself, and its trajectory."""

    name: str
    info: RunInfo = field(default_factory=lambda: RunInfo())
    lines: Sequence[Line] = ()

    def rows(self, rule: str = "last") -> list[Row]:
        """Its rows under a rule; by default those of the models that lie in the folder."""
        return rows(self.lines, rule, recovered_within=self.info.recovered_within)

    def label(self, request: str) -> str:
        """How this run's rows are called: by the run, and by the request where it has several."""
        return f"{self.name}: {request}" if len(asked(self.info, self.lines)) > 1 else self.name

    def requests(self) -> list[tuple[RequestInfo, list[Row]]]:
        """Its requests, each with its rows."""
        found = self.rows()
        return [(one, [row for row in found if row.request == one.id]) for one in asked(self.info, self.lines).values()]

    def sentence(self, request: RequestInfo, own: Sequence[Row]) -> str:
        """What became of a request."""
        return first_sentence(self.info, request, own)

    def unfinished(self) -> list[str]:
        """What is missing for the run to be whole."""
        return unfinished(self.info, self.lines)


def names_of(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of these paths that tell them apart; a folder given twice is refused."""
    whole = [folder.resolve() for folder in folders]
    for place, path in enumerate(whole):
        if path in whole[:place]:
            raise UnfedError(f"{folders[place]} is named twice; name each run once.")
    for length in range(1, max((len(path.parts) for path in whole), default=1) + 1):
        names = ["/".join(path.parts[-length:]) for path in whole]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("different paths differ somewhere")


def shared_words(runs: Sequence[Compared]) -> Wording:
    """The words that fit all of these runs: their own where they agree, else those of a federation."""
    found = {words_of(run.info) for run in runs}
    return found.pop() if len(found) == 1 else FEDERATED


def compared_rows(runs: Sequence[Compared], rule: str = "best-gap") -> list[Row]:
    """The rows of all runs; what was their request says which run, too."""
    return [replace(row, request=run.label(row.request)) for run in runs for row in run.rows(rule)]


def markdown(runs: Sequence[Compared], rule: str = "best-gap") -> str:
    """One table of all runs, and what they differ in."""
    text = tables.markdown(compared_rows(runs, rule), "Run", shared_words(runs))
    differing = [[key, *values] for key, values in differences(runs)]
    if not differing:
        return text
    lines = [["Differs in", *(run.name for run in runs)], ["---"] * (1 + len(runs)), *differing]
    return text + "\n" + "\n".join(tables.markdown_line(line) for line in lines) + "\n"


def latex(runs: Sequence[Compared], rule: str = "best-gap") -> str:
    """One booktabs table of all runs."""
    return tables.latex(compared_rows(runs, rule), "Run", shared_words(runs))


def differences(runs: Sequence[Compared]) -> list[tuple[str, list[str]]]:
    """(key, value in each run) of every config key in which they differ; versions likewise."""
    flat = [dict(_flat({**html.shown_config(run.info), "versions": run.info.versions})) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    # The name and the folder are the runs' own; that they differ is no news.
    found = [(key, [one.get(key, tables.DASH) for one in flat]) for key in keys if key != "name"]
    return [(key, values) for key, values in found if len(set(values)) > 1]


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _flat(item, f"{prefix}{key}.")
        elif isinstance(item, list) and item and all(isinstance(part, Mapping) for part in item):
            numbered = {key: item[0]} if len(item) == 1 else {f"{key}[{place}]": p for place, p in enumerate(item)}
            yield from _flat(numbered, prefix)
        elif isinstance(item, list | tuple):
            yield f"{prefix}{key}", ", ".join(str(part) for part in item) or "none"
        else:
            yield f"{prefix}{key}", "not set" if item is None else str(item)


def warnings(runs: Sequence[Compared]) -> list[str]:
    """What stands in the way of comparing the numbers themselves."""
    said = []
    data = {run.name: run.info.data for run in runs}
    if len(set(data.values())) > 1:
        each = ", ".join(f"{name}: {value or 'unknown'}" for name, value in data.items())
        said.append(f"These runs use different data sets ({each}); compare gaps to Retrain, not accuracies.")
    subjects = {
        run.name: ", ".join(subject_text(one, words_of(run.info)) for one in asked(run.info, run.lines).values())
        for run in runs
    }
    if len(set(subjects.values())) > 1:
        each = "; ".join(f"{name}: {value or 'nothing'}" for name, value in subjects.items())
        said.append(f"They were not asked to forget the same ({each}).")
    without = [run.name for run in runs if not any(line["method"] == "retrain" for line in run.lines)]
    if without:
        said.append(f"No Retrain, hence no gap, in {', '.join(without)}.")
    open_ = [run.name for run in runs if run.unfinished()]
    if open_:
        said.append(f"Not finished: {', '.join(open_)}.")
    return said


def render(runs: Sequence[Compared], *, rule: str = "best-gap") -> str:
    """The page of a comparison."""
    named(rule)
    if len(runs) < 2:
        raise UnfedError(f"A comparison needs at least two runs, not {len(runs)}; `unfed report` shows a single one.")
    shown, words = compared_rows(runs, rule), shared_words(runs)
    within = min(run.info.recovered_within for run in runs)
    marks = _marks(runs)
    series, references = _series(runs, marks)
    metrics = [metric for metric in figures.CURVES if metric != "backdoor" or html.has(shown, metric)]
    drawn = [figures.series_lines(series, references, key, name=f"curve-{key}", unit=words.unit) for key in metrics]
    names = [run.name for run in runs]
    return html.page(
        "compare.html.j2",
        words,
        title=listed(names, "and") if len(names) < 5 else f"{len(names)} runs",
        rule=rule,
        rules={name: words.said(tables.explanation(name, within)) for name in RULES},
        warnings=warnings(runs),
        caveats=[NOT_PROOF] if any(run.lines for run in runs) else [],
        runs=runs,
        bars=_bars,
        config_text=html.config_text,
        tables={name: html.table_view(compared_rows(runs, name), "Run", words) for name in RULES},
        shortcomings=_shortcomings(runs, rule),
        differences=differences(runs),
        legend=[figures.LegendItem.of(one.name, one.colour, one.dash) for one in series],
        marks=[(mark, label) for label, mark in marks.items()],
        references=bool(references),
        curves=[one for one in drawn if one is not None],
        trade=html.pictures(figures.scatter, _dots(runs, shown, marks), words.columns, "trade", words),
        retrain_seeds=len(
            {(run.name, line["seed"]) for run in runs for line in run.lines if line["method"] == "retrain"}
        ),
    )


def _bars(run: Compared, request: RequestInfo, own: Sequence[Row]) -> dict[str, list[html.PageBar]]:
    methods = trajectories(run.lines).get(request.id, {})
    return html.bars(request, own, figures.styles(list(methods))) if own else {}


def _shortcomings(runs: Sequence[Compared], rule: str) -> list[str]:
    said = []
    for run in runs:
        found = run.rows(rule)
        for request in dict.fromkeys(row.request for row in found):
            own = [row for row in found if row.request == request]
            said += [f"{run.label(request)}: {sentence}" for sentence in tables.shortcomings(own)]
    return said


def _marks(runs: Sequence[Compared]) -> dict[str, str]:
    """A short mark for each label, because pictures have no room for names: A, B1, B2, C."""
    marks: dict[str, str] = {}
    for place, run in enumerate(runs):
        letter = chr(ord("A") + place) if place < 26 else f"R{place + 1}."
        labels = list(dict.fromkeys(run.label(request) for request in trajectories(run.lines)))
        marks |= {label: letter + (str(n) if len(labels) > 1 else "") for n, label in enumerate(labels, 1)}
    return marks


Lines = list[figures.CurveSeries]


def _series(runs: Sequence[Compared], marks: Mapping[str, str]) -> tuple[Lines, Lines]:
    """Every method's line and every Retrain's; colour says the method, dash says the run."""
    numbers = figures.styles([line["method"] for run in runs for line in run.lines if line.get("request")])
    series: Lines = []
    references: Lines = []
    for place, run in enumerate(runs):
        for request, methods in trajectories(run.lines).items():
            mark = marks[run.label(request)]
            series += [
                figures.CurveSeries(f"{name_of(method)} {mark}", numbers[method], place, by_seed)
                for method, by_seed in methods.items()
                if method in numbers
            ]
            if "retrain" in methods:
                references.append(figures.CurveSeries(f"Retrain {mark}", 0, place, methods["retrain"]))
    return series, references


def _dots(runs: Sequence[Compared], shown: Sequence[Row], marks: Mapping[str, str]) -> list[figures.CostDot]:
    """Colour says the method, shape says the run."""
    numbers = figures.styles([row.method for row in shown])
    places = {run.label(request): place for place, run in enumerate(runs) for request in trajectories(run.lines)}
    return [
        figures.CostDot(
            f"{name_of(row.method)} {marks[row.request]}", numbers.get(row.method), places[row.request], row
        )
        for row in shown
        if not row.is_before
    ]


# --- all runs of a folder ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListedRun(Compared):
    """One run of the list, or why it cannot be read."""

    report: str | None = None
    """Its page, as seen from the list; None where there is none yet."""
    state: str = ""
    error: str = ""

    @property
    def best(self) -> Row | None:
        """The row that stands for the run."""
        return headline(self.rows())

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(name_of(row.method) for row in self.rows() if not row.is_before))

    @property
    def holders(self) -> str:
        """Who holds the data."""
        words, count = words_of(self.info), len(self.info.clients)
        if words.setting == "central":
            return "one place"
        carrier = {"flower": "Flower ", "nvflare": "NVFlare "}.get(self.info.engine, "")
        return f"{count} {carrier}{words.holder}{'' if count == 1 else 's'}"

    def sentence(self, request: RequestInfo, own: Sequence[Row]) -> str:
        """What became of a request, and what that leaves open where undoing it was not tried."""
        said, row = super().sentence(request, own), headline(own, request)
        if row is None or row.is_reference or not row.finished or not_taken_out(request):
            return said
        tried = {(one.request, one.method) for one in self.info.undo}
        return said if (request.id, row.method) in tried else f"{said} Whether it can be undone is not known."


def render_index(runs: Sequence[ListedRun], where: str) -> str:
    """The page of all runs in a folder, and of all they were asked to forget."""
    readable = [one for one in runs if not one.error]
    requests = [(one, request, one.sentence(request, own)) for one in readable for request, own in one.requests()]
    return html.page(
        "index.html.j2",
        title=where,
        runs=sorted(readable, key=lambda one: one.info.created, reverse=True),
        broken=[one for one in runs if one.error],
        requests=requests,
        owed=[line for line in requests if not_taken_out(line[1]) and line[1].state != "revoked"],
        number_text=tables.number_text,
    )
