"""The report of a run: one HTML file for readers, data-protection officers and researchers.

    run.json + trajectory.jsonl ─► at a glance         what happened, three bars, does it last, can I trust it
                                ─► for the officer     request, checksums, who was asked, which files still carry it
                                ─► for the researcher  tables by rule, curves, gap against cost, attacks, config

The page loads nothing and runs nothing (its own policy forbids both), and every string of the run is escaped. It is a
pure function of the run: the same run gives the same page. Values here are typed; sentences stand in the templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from unfed.folder.info import JobInfo, RequestInfo, RunInfo
from unfed.folder.study_results import Judged
from unfed.measures.metrics import Spread
from unfed.measures.trajectory import Line, RefusedUpdate
from unfed.model.params import fingerprint, listing
from unfed.report import figures, sections, sentences, tables, undo, wording
from unfed.report import tables as ranking
from unfed.report.drawing import SERIES, Picture
from unfed.report.figures import BySeed
from unfed.report.rules import RULES, Row, asked, named, rows, trajectories
from unfed.report.sentences import earlier_words, headline, method_row, not_taken_out, subject_text
from unfed.report.tables import Cell, name_of
from unfed.report.undo import UndoSection
from unfed.report.wording import FEDERATED, Wording, span_text, words_of
from unfed.values import is_measured

# --- for the officer: what was asked, what was done, who took part, what is still there -------------------------------


CELLS = 48  # of a strip; more rounds share a cell
PICTURED = 20
"""How many requests have curves and costs drawn, the newest: a thousand would make a page of a hundred megabytes."""


@dataclass(frozen=True)
class AskedClient:
    """A client's line in the table of rounds."""

    name: str
    leaver: bool
    rounds: list[int]
    cells: list[float]
    """The share of the rounds of each cell in which it was asked."""

    @property
    def text(self) -> str:
        return span_text(self.rounds) if self.rounds else "never"


@dataclass(frozen=True)
class RefusedLine:
    """An update that was not averaged, and whose it was."""

    method: str
    seed: int
    update: RefusedUpdate


@dataclass(frozen=True)
class OfficerPart:
    """What the officer's part shows of one request."""

    request: RequestInfo
    method: str
    """The title of the method that served, or of the one that the first sentence speaks of."""
    seed: int | None
    """The repetition that is shown, where there are several."""
    job: JobInfo | None
    models: list[JobInfo]
    """Every model that the request left."""
    begun: bool
    earlier: list[tuple[str, str]]
    rounds: list[int]
    """The rounds in which any client was asked."""
    clients: list[AskedClient]
    refused: list[RefusedLine]
    carriers: list[tuple[str, str]] | None
    """(file, what it is) of everything that still carries what was taken out; None where that is not known."""


def officer_part(
    run: RunInfo, request: RequestInfo, found: Sequence[Row], methods: Mapping[str, BySeed]
) -> OfficerPart:
    """Everything the officer's part shows of one request."""
    jobs = [job for job in run.jobs if job.request == request.id]
    method = _method(request, found, jobs)
    job = next((job for job in jobs if job.method == method), None)
    seed = job.seed if job else min(methods.get(method, {0: []}))
    lines, before = methods.get(method, {}).get(seed, []), methods.get("before", {}).get(seed, [])
    leavers = request.clients if request.kind == "client" else ()
    asked: dict[str, list[int]] = {client: [] for client in (*leavers, *run.clients)}
    for line in lines:
        for t, clients in line.get("asked", {}).items():
            for client in clients:
                asked.setdefault(client, []).append(int(t))
    rounds = sorted({t for own in asked.values() for t in own})
    with_it = {one.id for one in run.requests if request.shared and one.shared == request.shared} - {request.id}
    return OfficerPart(
        request=request,
        method=name_of(method) if method else "",
        seed=seed if len({job.seed for job in jobs}) > 1 else None,
        job=job,
        models=[job for job in jobs if job.came_out],
        begun=bool(lines),
        earlier=earlier_words(request, before[-1] if before else None, lines[-1] if lines else None, with_it),
        rounds=rounds,
        clients=[
            AskedClient(client, client in leavers, asked[client], _cells(asked[client], rounds))
            for client in sorted(asked, key=lambda client: client not in leavers)
        ],
        refused=refusals([line for by_seed in methods.values() for own in by_seed.values() for line in own]),
        carriers=_carriers(run, request),
    )


def _method(request: RequestInfo, found: Sequence[Row], jobs: Sequence[JobInfo]) -> str:
    """The method that served the request; in a comparison, the one that the first sentence speaks of."""
    row = headline(found, request)
    if request.method or row is not None:
        return request.method or (row.method if row else "")
    waiting = sorted((job.method for job in jobs if job.method != "retrain"), key=lambda method: method != "not")
    return waiting[0] if waiting else ""


def _cells(asked: Sequence[int], rounds: Sequence[int]) -> list[float]:
    """The shares of a client's strip: one round per cell as long as they fit."""
    if not rounds:
        return []
    first, count = rounds[0], rounds[-1] - rounds[0] + 1
    cells, shares = min(count, CELLS), []
    for cell in range(cells):
        span = range(first + cell * count // cells, first + (cell + 1) * count // cells)
        shares.append(round(sum(t in asked for t in span) / len(span), 2))
    return shares


def refusals(lines: Sequence[Line]) -> list[RefusedLine]:
    """Updates that were refused, each once however often the trajectory repeats it."""
    found: dict[tuple[object, ...], RefusedLine] = {}
    for line in lines:
        for one in line.get("refused") or []:
            key = (line["method"], line["seed"], line["request"], one["round"], one["client"], one["reason"])
            found[key] = RefusedLine(name_of(line["method"]), line["seed"], one)
    return list(found.values())


def _carriers(run: RunInfo, request: RequestInfo) -> list[tuple[str, str]] | None:
    if run.influence is None:
        return None
    return list(dict.fromkeys((one.file, _named(one.file, one.what)) for one in run.carriers.get(request.id, ())))


def _named(file: str, what: str) -> str:
    if file.startswith("models/") and file.endswith("/train.safetensors"):
        return "θ*, the model before unlearning"
    if file.startswith("state/") and file.endswith("/train.safetensors") and "history" not in what:
        return "the last checkpoint of the training"
    return what


# --- the report: one HTML file for a passer-by, a compliance officer and a researcher ---------------------------------


BARS = {
    "backdoor": "Backdoor success",
    "forget": "Accuracy on the forgotten data",
    "test": "Accuracy on test data",
}


@dataclass(frozen=True)
class MissingPicture:
    """Why there is no picture in a place where one is looked for."""

    title: str
    reason: str
    svg: None = None


@dataclass(frozen=True)
class PageBar:
    """One bar: whose it is, its colour, its number or the reason why there is none."""

    label: str
    colour: str
    value: Spread

    @property
    def measured(self) -> bool:
        return is_measured(self.value.mean)

    @property
    def text(self) -> str:
        return tables.number_text(self.value, 1) + (" %" if self.measured else "")


@dataclass(frozen=True)
class TableLine:
    """A row of a table: its cells with their widths, and how many rows its first cell spans."""

    row: Row
    span: int
    first: bool
    cells: list[tuple[Cell, int]]


@dataclass(frozen=True)
class PageTable:
    """A table of results for a template."""

    header: tuple[str, ...]
    body: list[TableLine]
    notes: list[str]
    grouped: bool


@dataclass(frozen=True)
class SurePart:
    """What a population shows of one request; nothing where there is none."""

    judged: Judged | None
    pictures: list[Picture]
    legend: list[figures.LegendItem]


@dataclass(frozen=True)
class RequestPart:
    """Everything the page shows of one request. Identifiers carry its index, never a string from the run."""

    index: int
    request: RequestInfo
    subject: str
    sentence: str
    lasts: str
    bars: dict[str, list[PageBar]]
    by_retrain: bool
    app: sections.AppPart | None
    officer: OfficerPart
    tables: dict[str, PageTable]
    legend: list[figures.LegendItem]
    retrain: bool
    shown: Sequence[Row]
    """Its rows under the rule that is in front."""
    curves: list[Picture | MissingPicture]
    trade: list[Picture]
    costs: list[Picture]
    undoing: UndoSection
    undo_pictures: list[Picture]
    sure: SurePart


def render(run: RunInfo, lines: Sequence[Line], *, rule: str = "last") -> str:
    """The whole page.

    `rule` decides which table is in front. The sentence, the bars and the officer's part speak of the model that lies
    in the folder: that of the last round.
    """
    named(rule)
    by_rule = {name: rows(lines, name, recovered_within=run.recovered_within) for name in RULES}
    own = {name: by_request(found) for name, found in by_rule.items()}
    served_first = sorted(asked(run, lines).values(), key=lambda one: one.state is None)  # then what was only compared
    newest = {one.id for one in sorted(served_first, key=lambda one: one.created or "")[-PICTURED:]}
    grouped = trajectories(lines)
    parts = [
        request_part(
            run,
            index,
            request,
            {name: found.get(request.id, []) for name, found in own.items()},
            grouped.get(request.id, {}),
            rule,
            pictured=request.id in newest,
        )
        for index, request in enumerate(served_first)
    ]
    measured, words = [part for part in parts if part.tables["last"].body], words_of(run)
    seeds = seeds_of(run, lines)
    return page(
        "report.html.j2",
        words,
        title=run.name,
        run=run,
        trust=sentences.trust(len(seeds), any(part.retrain for part in measured)) if measured else [],
        rule=rule,
        rules={name: words.said(tables.explanation(name, run.recovered_within)) for name in RULES},
        requests=parts,
        unfinished=sentences.unfinished(run, lines),
        seeds=seeds,
        retrain_seeds=len({line["seed"] for line in lines if line["method"] == "retrain"}),
        refused=refusals([line for line in lines if line.get("request") is None]),
        training=[one] if (one := figures.training_picture(lines, words.unit)) else [],
        costs=shown_costs(by_rule[rule], words),
        config=config_text(run),
    )


def page(template: str, words: Wording = FEDERATED, **values: Any) -> str:
    """A template of this folder, filled in; what measures mean is said in the setting's words."""
    shared = {"words": words, "unit": words.unit, "measures": wording.measures(words)}
    return _environment().get_template(template).render(**shared, **values)


def population_page(judged: Judged) -> str:
    """The section "How sure are we?" on a page of its own."""
    return page("population.html.j2", title=judged.name, part=sure_part(judged, "sure"))


def seeds_of(run: RunInfo, lines: Sequence[Line]) -> list[int]:
    """The repetitions of a run."""
    return [*run.seeds] or sorted({line["seed"] for line in lines})


def by_request(found: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each request."""
    grouped: dict[str, list[Row]] = {}
    for row in found:
        grouped.setdefault(row.request, []).append(row)
    return grouped


def request_part(
    run: RunInfo,
    index: int,
    request: RequestInfo,
    by_rule: Mapping[str, Sequence[Row]],
    methods: Mapping[str, BySeed],
    rule: str,
    pictured: bool = True,
) -> RequestPart:
    """Everything the template shows of one request; no curves and costs where it is not `pictured`."""
    shown, on_disk, words = by_rule[rule], by_rule["last"], words_of(run)
    numbers = figures.styles(list(methods))
    tried = [probe for probe in run.undo if probe.request == request.id]
    undoing, drawn = UndoSection.of(tried, _untried(run, request, on_disk)), bars(request, on_disk, numbers)
    curves: list[Picture | MissingPicture] = [
        figures.curves(methods, metric, name=f"curve-{index}-{metric}", unit=words.unit)
        or MissingPicture(title, _reason(shown, metric))
        for metric, title in figures.CURVES.items()
        if pictured and (metric != "backdoor" or has(shown, metric))
    ]
    return RequestPart(
        index=index,
        request=request,
        subject=subject_text(request, words),
        sentence=sentences.first_sentence(run, request, on_disk, numbers=not drawn),
        lasts=sentences.lasting(undoing, sentences.headline(on_disk, request)),
        bars=drawn,
        by_retrain=_by_retrain(request, on_disk),
        app=sections.part(run, request, methods),
        officer=officer_part(run, request, on_disk, methods),
        tables={name: table_view(found, words=words) for name, found in by_rule.items()},
        legend=[figures.LegendItem.of(name_of(method), number, number) for method, number in numbers.items()],
        retrain="retrain" in methods,
        shown=shown,
        curves=curves,
        trade=pictures(figures.gap_by_cost, shown, words.columns, f"trade-{index}", words),
        costs=pictures(figures.cost_bars, shown, figures.COST_BARS if pictured else (), f"cost-{index}", words),
        undoing=undoing,
        undo_pictures=figures.undo_pictures(tried, f"undo-{index}"),
        sure=sure_part(run.population.get(request.id), f"sure-{index}"),
    )


def sure_part(judged: Judged | None, name: str) -> SurePart:
    """What a population shows, with its pictures."""
    if judged is None:
        return SurePart(None, [], [])
    return SurePart(judged, figures.population_pictures(judged, name), figures.population_legend(judged))


def _untried(run: RunInfo, request: RequestInfo, found: Sequence[Row]) -> str:
    """Why there is no probe of a request: because there is nothing to undo, or for want of one."""
    if ended := sentences.ENDED.get(request.state or ""):
        return f"nothing to undo: the request {ended}"
    if request.left_by:
        return "nothing to undo: no model was made for the request"
    if _by_retrain(request, found):
        return "nothing to undo: the new model was trained without it from the beginning"
    if request.purged:
        return undo.PURGED
    return undo.PROBE_PURGED if request.id in run.probes_purged else undo.NOT_PROBED


def pictures(
    draw: Callable[..., Picture | None], found: Any, costs: Sequence[str], name: str, words: Wording
) -> list[Picture]:
    """One picture per cost, those that have something to show."""
    return [one for cost in costs if (one := draw(found, cost, name=f"{name}-{cost}", words=words)) is not None]


def table_view(found: Sequence[Row], by: str = "Request", words: Wording = FEDERATED) -> PageTable:
    """A table for the template: headings, rows with merged cells, notes."""
    made = tables.table(found, by, words)
    grouped, body = made.header[:1] == (by,), []
    for place, (row, cells) in enumerate(zip(made.rows, made.body, strict=True)):
        first = place == 0 or made.rows[place - 1].request != row.request
        span = sum(other.request == row.request for other in made.rows) if grouped and first else 0
        body.append(TableLine(row, span, first, tables.merged(row, cells[1:] if grouped else cells)))
    return PageTable(made.header, body, tables.notes(made), grouped)


def has(found: Sequence[Row], metric: str) -> bool:
    """Whether any row measured it."""
    return any(is_measured(row.metrics[metric].mean) for row in found)


def _reason(found: Sequence[Row], metric: str) -> str:
    texts = [str(row.metrics[metric].mean) for row in found if not is_measured(row.metrics[metric].mean)]
    return texts[-1] if texts else "not measured: no round has been evaluated yet"


def bars(request: RequestInfo, found: Sequence[Row], numbers: Mapping[str, int]) -> dict[str, list[PageBar]]:
    """Before, after, Retrain; the backdoor only where it was measured and is this request's business.

    Where Retrain itself served the request it is what came after, and there is nothing beside it. Where nothing was
    left to unlearn, there is the model in force alone.
    """
    row, before = headline(found, request), method_row(found, "before")
    after = (f"After {name_of(row.method)}" if row else "After") + (", not in force" if not_taken_out(request) else "")
    colour = "var(--line)" if row is None else "var(--reference)"
    if row is not None and not row.is_reference:
        colour = f"var(--series-{numbers[row.method] % len(SERIES)})"
    entries = [("Before", "var(--before)", before), (after, colour, row)]
    if request.left_by:
        entries = [("In force", "var(--before)", before)]
    elif not _by_retrain(request, found):
        entries.append(("Retrain", "var(--reference)", method_row(found, "retrain")))
    return {
        title: [PageBar(label, colour, _value(entry, metric)) for label, colour, entry in entries]
        for metric, title in BARS.items()
        if metric != "backdoor" or (has(found, metric) and request.planted)
    }


def _by_retrain(request: RequestInfo, found: Sequence[Row]) -> bool:
    """Whether it was Retrain that a request was served by, or tried with."""
    row = headline(found, request)
    return row is not None and row.is_reference


def _value(row: Row | None, metric: str) -> Spread:
    if row is None:
        return Spread("not measured: not run for this request")
    return row.forgetting if metric == "forget" else row.metrics[metric]


def shown_costs(found: Sequence[Row], words: Wording = FEDERATED) -> list[str]:
    """The columns of the ledger: the setting's, whole messages only where there were any."""
    spent = [row.costs["serialised_bytes"].mean for row in found if not row.is_before]
    packed = any(is_measured(value) and value > 0 for value in spent)
    return [cost for cost in words.ledger if packed or cost != "serialised_bytes"]


def config_text(run: RunInfo) -> str:
    """The config as the run read it."""
    return json.dumps(shown_config(run), indent=2, ensure_ascii=False, default=str)


def shown_config(run: RunInfo) -> dict[str, Any]:
    """The config for a page.

    Of a list of samples it says where it was read and its SHA-256, not the names in it.
    """
    config = dict(run.app or run.config or {})
    asked = config.get("request")
    if isinstance(asked, list | tuple):
        config["request"] = [_without_names(request) for request in asked]
    return config


def _without_names(request: Any) -> Any:
    listed = request.get("samples") if isinstance(request, Mapping) else None
    if not isinstance(listed, Mapping):
        return request
    return {**request, "samples": {key: value for key, value in listed.items() if key != "text"}}


@lru_cache(maxsize=1)
def _environment() -> Environment:
    def source(name: str) -> str:
        return files("unfed.report").joinpath(name).read_text(encoding="utf-8")

    # StrictUndefined: a name that the page asks for and that is not given is a bug, not a blank.
    made = Environment(
        loader=FunctionLoader(source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # A line may end anywhere but between a number and its unit, or the number that it became.
    made.filters["units"] = lambda text: re.sub(r"(?<=\d) (?=%|[kMGTP]?B\b|→)|(?<=→) ", "\u00a0", text)
    # A command in backticks is shown as one, everything else is escaped here: a template calls it `|code|safe`.
    made.filters["code"] = lambda text: re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    made.filters["upper_first"] = lambda text: text[:1].upper() + text[1:]
    made.filters["date"] = wording.date_text
    made.filters["method"] = name_of
    made.filters["plain_markdown"] = tables.markdown_text
    made.globals |= {
        "fingerprint": fingerprint,
        "listing": listing,
        "headings": wording.HEADINGS,
        "sure": sections,
        "undo": undo,
    }
    said = (sentences.gate_words, sentences.rows_text, sentences.verdicts, not_taken_out, subject_text)
    written = (words_of, wording.span_text, wording.flops_text, tables.row_name, tables.rounds_text)
    made.globals |= {one.__name__: one for one in (*said, *written, ranking.shortcomings)}
    return made
