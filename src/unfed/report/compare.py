"""Several runs in one report: which run is better, and in what they differ.

    runs ─► rows of each, labelled by run ─► one table, one scatter, one set of curves
         └► configs side by side, only the keys that differ

A gap is always taken to the Retrain of the same run. Numbers of runs on different data do not compare, and the page
says so before it shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unfed.errors import UnfedError
from unfed.measures.trajectory import Line
from unfed.report import figures, html, ranking, tables, wording
from unfed.report.rules import RULES, Row, named, rows, trajectories
from unfed.report.sentences import NOT_PROOF, date_text, headline, not_taken_out, opening, subject_of, unfinished
from unfed.report.tables import name_of, number_text
from unfed.report.wording import Wording


@dataclass(frozen=True)
class Compared:
    """One run of a comparison: its name on the page, what `Run.info` says of it, and its trajectory."""

    name: str
    info: Mapping[str, Any]
    lines: Sequence[Line]

    @property
    def within(self) -> float:
        return float(self.info.get("recovered_within", 0.5))

    def label(self, request: str) -> str:
        """How this run's rows are called: by the run, and by the request where it has several."""
        several = len(html.asked_for(self.info, trajectories(self.lines))) > 1
        return f"{self.name}: {request}" if several else self.name


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


def words_of(runs: Sequence[Compared]) -> Wording:
    """The words that fit all of these runs."""
    return wording.shared(run.info for run in runs)


def compared_rows(runs: Sequence[Compared], rule: str = "best-gap") -> list[Row]:
    """The rows of all runs; what was their request says which run, too."""
    found = []
    for run in runs:
        own = rows(run.lines, rule, recovered_within=run.within)
        found += [replace(row, request=run.label(row.request)) for row in own]
    return found


def markdown(runs: Sequence[Compared], rule: str = "best-gap") -> str:
    """One table of all runs, and what they differ in."""
    text = tables.markdown(compared_rows(runs, rule), "Run", words_of(runs))
    differing = [[key, *values] for key, values in differences(runs)]
    if not differing:
        return text
    lines = [["Differs in", *(run.name for run in runs)], ["---"] * (1 + len(runs)), *differing]
    return text + "\n" + "\n".join(tables.markdown_line(line) for line in lines) + "\n"


def latex(runs: Sequence[Compared], rule: str = "best-gap") -> str:
    """One booktabs table of all runs."""
    return tables.latex(compared_rows(runs, rule), "Run", words_of(runs))


def differences(runs: Sequence[Compared]) -> list[tuple[str, list[str]]]:
    """(key, value in each run) of every config key in which they differ; versions and device likewise."""
    flat = [dict(_flat({**html.shown_config(run.info), "versions": run.info.get("versions") or {}})) for run in runs]
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
    data = {run.name: str(((run.info.get("config") or {}).get("data") or {}).get("name", "unknown")) for run in runs}
    if len(set(data.values())) > 1:
        listed = ", ".join(f"{name}: {value}" for name, value in data.items())
        said.append(f"These runs use different data sets ({listed}); compare gaps to Retrain, not accuracies.")
    asked = {run.name: _asked(run) for run in runs}
    if len(set(asked.values())) > 1:
        listed = "; ".join(f"{name}: {value or 'nothing'}" for name, value in asked.items())
        said.append(f"They were not asked to forget the same ({listed}).")
    without = [run.name for run in runs if not any(line["method"] == "retrain" for line in run.lines)]
    if without:
        said.append(f"No Retrain, hence no gap, in {', '.join(without)}.")
    open_ = [run.name for run in runs if unfinished(run.info, run.lines)]
    if open_:
        said.append(f"Not finished: {', '.join(open_)}.")
    return said


def _asked(run: Compared) -> str:
    known = html.asked_for(run.info, trajectories(run.lines))
    return ", ".join(subject_of(request, wording.of(run.info))[0].rstrip(",") for request in known.values())


def render(runs: Sequence[Compared], *, rule: str = "best-gap") -> str:
    """The page of a comparison."""
    named(rule)
    if len(runs) < 2:
        raise UnfedError(f"A comparison needs at least two runs, not {len(runs)}; `unfed report` shows a single one.")
    shown, words = compared_rows(runs, rule), words_of(runs)
    within = sorted({run.within for run in runs})
    marks = _marks(runs)
    series, references = _series(runs, marks)
    metrics = [metric for metric in figures.CURVES if metric != "backdoor" or html.has(shown, metric)]
    drawn = [figures.series_lines(series, references, key, name=f"curve-{key}", unit=words.unit) for key in metrics]
    return html.page(
        "compare.html.j2",
        words,
        title=_title(runs),
        rule=rule,
        rules=[{"name": name, "text": words.said(tables.explanation(name, within[0]))} for name in RULES],
        warnings=warnings(runs),
        caveats=[NOT_PROOF] if any(run.lines for run in runs) else [],
        runs=[_run_view(run, rule) for run in runs],
        tables={name: html.table_view(compared_rows(runs, name), "Run", words) for name in RULES},
        shortcomings=_shortcomings(runs, rule),
        differences=differences(runs),
        legend=[html.legend(one.name, one.colour, one.dash) for one in series],
        marks=[(mark, label) for label, mark in marks.items()],
        references=bool(references),
        curves=[one.view() for one in drawn if one is not None],
        trade=html.pictures(figures.scatter, _dots(runs, shown, marks), words.columns, "trade", words),
        seeds=[seed for run in runs for seed in html.seeds_of(run.info, run.lines)],
        retrain_seeds=len(
            {(run.name, line["seed"]) for run in runs for line in run.lines if line["method"] == "retrain"}
        ),
    )


def _run_view(run: Compared, rule: str) -> dict[str, Any]:
    grouped = trajectories(run.lines)
    found = rows(run.lines, "last", recovered_within=run.within)  # of the model that lies in the folder
    asked = html.asked_for(run.info, grouped)
    views = []
    for key, request in asked.items():
        own = [row for row in found if row.request == key]
        numbers = figures.styles(list(grouped.get(key, {})))
        bars = html.bars(request, own, numbers) if own else []
        views.append(
            {
                "sentence": opening(run.info, request, own),
                "bars": bars,
                "subject": subject_of(request, wording.of(run.info))[0].rstrip(","),
            }
        )
    return {
        "name": run.name,
        "created": date_text(str(run.info.get("created", ""))),
        "requests": views,
        "unfinished": unfinished(run.info, run.lines),
        "facts": html.facts(run.info),
        "config": html.config_text(run.info),
    }


def _shortcomings(runs: Sequence[Compared], rule: str) -> list[str]:
    said = []
    for run in runs:
        found = rows(run.lines, rule, recovered_within=run.within)
        for request in dict.fromkeys(row.request for row in found):
            own = [row for row in found if row.request == request]
            said += [f"{run.label(request)}: {sentence}" for sentence in ranking.shortcomings(own)]
    return said


def _title(runs: Sequence[Compared]) -> str:
    names = [run.name for run in runs]
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) < 5 else f"{len(names)} runs"


def _marks(runs: Sequence[Compared]) -> dict[str, str]:
    """A short mark for each label, because pictures have no room for names: A, B1, B2, C."""
    marks: dict[str, str] = {}
    for place, run in enumerate(runs):
        letter = chr(ord("A") + place) if place < 26 else f"R{place + 1}."
        labels = list(dict.fromkeys(run.label(request) for request in trajectories(run.lines)))
        marks |= {label: letter + (str(n) if len(labels) > 1 else "") for n, label in enumerate(labels, 1)}
    return marks


Lines = list[figures.Series]


def _series(runs: Sequence[Compared], marks: Mapping[str, str]) -> tuple[Lines, Lines]:
    """Every method's line and every Retrain's; colour says the method, dash says the run."""
    numbers = figures.styles([str(line["method"]) for run in runs for line in run.lines if line.get("request")])
    series: Lines = []
    references: Lines = []
    for place, run in enumerate(runs):
        for request, methods in trajectories(run.lines).items():
            mark = marks[run.label(request)]
            series += [
                figures.Series(f"{name_of(method)} {mark}", numbers[method], place, by_seed)
                for method, by_seed in methods.items()
                if method in numbers
            ]
            if "retrain" in methods:
                references.append(figures.Series(f"Retrain {mark}", 0, place, methods["retrain"]))
    return series, references


def _dots(runs: Sequence[Compared], shown: Sequence[Row], marks: Mapping[str, str]) -> list[figures.Dot]:
    """Colour says the method, shape says the run."""
    numbers = figures.styles([row.method for row in shown])
    places = {run.label(request): place for place, run in enumerate(runs) for request in trajectories(run.lines)}
    return [
        figures.Dot(f"{name_of(row.method)} {marks[row.request]}", numbers.get(row.method), places[row.request], row)
        for row in shown
        if not row.is_before
    ]


# --- all runs of a folder ---------------------------------------------------------------------------------------------


MISSING = "–"


@dataclass(frozen=True)
class Listed:
    """One run of the list, or why it cannot be read."""

    name: str
    report: str | None = None
    """Its page, as seen from the list; None where there is none yet."""
    info: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[Line] = ()
    state: str = ""
    error: str = ""


def render_index(runs: Sequence[Listed], where: str) -> str:
    """The page."""
    readable = [one for one in runs if not one.error]
    requests = [line for one in readable for line in _listed_requests(one)]
    return html.page(
        "index.html.j2",
        title=where,
        runs=[
            _listed_run(one) for one in sorted(readable, key=lambda one: str(one.info.get("created", "")), reverse=True)
        ],
        broken=[one for one in runs if one.error],
        requests=requests,
        owed=[line for line in requests if line["owed"]],
    )


def _listed_run(one: Listed) -> dict[str, Any]:
    config = one.info.get("config") or {}
    found = rows(one.lines, "last", recovered_within=float(one.info.get("recovered_within", 0.5)))
    best = headline(found)
    return {
        "name": one.name,
        "report": one.report,
        "created": date_text(str(one.info.get("created", ""))),
        "state": one.state,
        "data": str((config.get("data") or {}).get("name", MISSING)),
        "model": str((config.get("model") or {}).get("name", MISSING)),
        "holders": _holders(one.info),
        "methods": ", ".join(dict.fromkeys(name_of(row.method) for row in found if not row.is_before)) or MISSING,
        "best": name_of(best.method) if best else MISSING,
        "test": _number(best, "test"),
        "forget": _number(best, "forget"),
        "gap": number_text(best.average_gap) if best else MISSING,
    }


def _holders(run: Mapping[str, Any]) -> str:
    words, count = wording.of(run), len(run.get("clients") or [])
    if words.setting == "central":
        return "one place"
    return f"{count} {'Flower ' if words.setting == 'flower' else ''}{words.holder}{'' if count == 1 else 's'}"


def _number(row: Row | None, metric: str) -> str:
    return number_text(row.metrics[metric], 1) if row else MISSING


def _listed_requests(one: Listed) -> list[dict[str, Any]]:
    """Every request of a run: who leaves, by what, how it stands, and what was measured."""
    grouped = trajectories(one.lines)
    found = rows(one.lines, "last", recovered_within=float(one.info.get("recovered_within", 0.5)))
    told = []
    for key, request in html.asked_for(one.info, grouped).items():
        own = [row for row in found if row.request == key]
        served = request.get("state") is not None
        told.append(
            {
                "run": one.name,
                "report": one.report,
                "id": key,
                "subject": subject_of(request, wording.of(one.info))[0].rstrip(","),
                "standing": str(request.get("standing") or request.get("state")) if served else "compared",
                "owed": bool(not_taken_out(request)) and request.get("state") != "revoked",
                "sentence": opening(one.info, request, own) + _open_question(one.info, request, own),
            }
        )
    return told


def _open_question(run: Mapping[str, Any], request: Mapping[str, Any], found: Sequence[Row]) -> str:
    """What a sentence leaves open where nobody tried to undo it, or where what was found is purged."""
    row = headline(found, request)
    if row is None or row.is_reference or not row.finished or not_taken_out(request):
        return ""
    tried = {(one["request"], one["method"]) for one in run.get("undo") or []}
    return "" if (request["id"], row.method) in tried else " Whether it can be undone is not known."
