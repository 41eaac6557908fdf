"""Rows as tables: Markdown, LaTeX (booktabs), CSV, and cells for a terminal and a page.

    Method | Retain (Δ) | Forget (Δ) | Test (Δ) | MIA (Δ) | Avg. gap | [Backdoor] | Bytes | FLOPs | Rounds

A `ResultTable` of cells is made once, and each format only writes it. Δ is the gap to Retrain; a star marks the
smallest average gap of a request. A cell whose value was not measured holds the reason. The same rows also say which
methods did poorly: more than half of the way to Retrain is left, or more than `LOST` points of test accuracy.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from unfed.errors import UnfedError, listed
from unfed.measures.metrics import COLUMNS, FEWEST_APART, GAP_METRICS, Spread
from unfed.methods import METHODS
from unfed.report.rules import COSTS, METRICS, RULES, Row
from unfed.report.wording import FEDERATED, Wording
from unfed.values import PREFIX, Value, is_measured

# --- rows as tables: Markdown, LaTeX (booktabs) and plain cells for a console -----------------------------------------


NAMES = {name: method.title for name, method in METHODS.items()} | {
    "before": "Before",
    "train": "Training",
    "l1_sparse": "\u21131-sparse",
    "nr-freeze": "NR-Freeze",
}
# Rows whose reading of the paper was chosen by comparing results with it: they are marked, and why stands below.
FITTED = {
    "mode": "its optimiser was chosen by experiment, because the paper names none; a fitted row shows that the method"
    " works, not that the paper's number is reproduced",
}
DASH = "\u2014"  # does not apply; a value that is missing says why instead


@dataclass(frozen=True)
class Cell:
    """One cell: the value, its ± over seeds, the gap beside it.

    It also says whether it is the best of its column, and whether it is a missing value.
    """

    text: str
    spread: str = ""
    delta: str = ""
    best: bool = False
    missing: bool = False

    def __str__(self) -> str:
        spread = f" ± {self.spread}" if self.spread else ""
        return self.text + spread + (f" ({self.delta})" if self.delta else "")


class Reasons:
    """Why numbers are missing, each reason once; cells point to it by its number."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}

    def number(self, reason: str) -> int:
        return self._found.setdefault(reason, len(self._found) + 1)

    def cell(self, reason: Value) -> str:
        return f"not measured ({self.number(str(reason).removeprefix(PREFIX))})"

    @property
    def notes(self) -> list[str]:
        return [f"({number}) {reason}" for reason, number in self._found.items()]


@dataclass(frozen=True)
class ResultTable:
    """Headers and cells; a row whose verdict replaces its metrics has that text in the first metric cell."""

    rule: str
    header: tuple[str, ...]
    body: tuple[tuple[Cell, ...], ...]
    rows: tuple[Row, ...]
    words: Wording = FEDERATED


def name_of(method: str) -> str:
    """A method's name as the paper writes it; a user's own, named by its path, goes by its last part."""
    own = Path(method).stem if method.endswith(".py") else method.rpartition(":")[2]
    return NAMES.get(method, own)


def row_name(method: str) -> str:
    """A method's name as the first cell of its row, with the mark of a fitted reading."""
    return name_of(method) + fitted_mark(method)


def fitted_mark(method: str) -> str:
    """What follows the name of a method whose reading was chosen by experiment."""
    return " (fitted)" if method in FITTED else ""


def table(rows: Sequence[Row], by: str = "Request", words: Wording = FEDERATED) -> ResultTable:
    """The cells of some rows of one rule.

    If they belong to several requests (or runs: `by`), a column says which.
    """
    rules = sorted({row.rule for row in rows})
    if len(rules) > 1:
        raise UnfedError(f"One table shows one rule, not {' and '.join(rules)}; make a table for each.")
    several = by != "Request" or len({row.request for row in rows}) > 1
    backdoor = any(is_measured(row.metrics["backdoor"].mean) for row in rows)
    header = ["Method", *(f"{COLUMNS[name].title} (Δ)" for name in GAP_METRICS), "Avg. gap"]
    counted = [*(COLUMNS[name].title for name in words.columns), words.units]
    header += [COLUMNS["backdoor"].title, *counted] if backdoor else counted
    body = []
    for row in rows:
        name = row_name(row.method) + (" (turns back)" if row.undoes else "")
        cells = [Cell(name), *_metric_cells(row, words), _gap_cell(row, rows)]
        if backdoor:
            cells.append(_verdict_or(row, _spread_cell(row.metrics["backdoor"], 2)))
        cells += _cost_cells(row, words)
        body.append(tuple([Cell(row.request), *cells] if several else cells))
    return ResultTable(
        rules[0] if rules else "", tuple([by, *header] if several else header), tuple(body), tuple(rows), words
    )


def markdown(rows: Sequence[Row], by: str = "Request", words: Wording = FEDERATED) -> str:
    """A GitHub table; the best average gaps are bold."""
    made = table(rows, by, words)
    names = made.header.index("Method") + 1
    lines = [made.header, ["---"] * names + ["---:"] * (len(made.header) - names)]
    lines += [[f"**{cell}**" if cell.best else str(cell) for cell in cells] for cells in made.body]
    text = [markdown_line(line) for line in lines]
    return "\n".join([f"Rule: `{made.rule}`. Δ = gap to Retrain.", "", *text, *_markdown_notes(made)]) + "\n"


def latex(rows: Sequence[Row], by: str = "Request", words: Wording = FEDERATED) -> str:
    r"""A booktabs tabular (`\usepackage{booktabs}`); the best average gaps are bold."""
    made = table(rows, by, words)
    first = made.header.index("Method") + 1
    lines = [
        f"% rule: {made.rule}; Delta = gap to Retrain",
        rf"\begin{{tabular}}{{{'l' * first}{'r' * (len(made.header) - first)}}}",
        r"\toprule",
        " & ".join(_latex_escape(name) for name in made.header) + r" \\",
        r"\midrule",
    ]
    last = ""
    for row, cells in zip(made.rows, made.body, strict=True):
        if last and row.request != last:
            lines.append(r"\midrule")
        last = row.request
        lines.append(" & ".join(_latex_cells(row, cells)) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def merged(row: Row, cells: Sequence[Cell]) -> list[tuple[Cell, int]]:
    """Cells with their widths: a row's verdict takes the place of the dashes that follow it."""
    found: list[tuple[Cell, int]] = []
    for cell in cells:
        if row.verdict and cell.text == DASH and found[-1][0].missing:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((cell, 1))
    return found


def notes(made: ResultTable) -> list[str]:
    """What the table cannot say in a cell."""
    several = len({row.request for row in made.rows}) > 1
    found = [
        f"{f'{name}: ' if several else ''}No method is nearer to Retrain than Before, which is what doing nothing"
        " leaves; none is marked as best."
        for name in without_best(made.rows)
    ]
    found += by_chance(made.rows)
    for row in made.rows:
        who = name_of(row.method) + (f" ({row.request})" if several else "")
        if row.note:
            found.append(f"{who}: {made.words.said(row.note)}.")
        if row.own is not None and is_measured(row.own.mean):
            own = number_text(row.own)
            found.append(f"{who}: on what this request takes out {own} %; Forget counts what left before it too.")
        if row.undoes:
            found.append(
                f"{who}: as published, it turns {', '.join(row.undoes)} back to what it was before an earlier request;"
                " `unfed forget` refuses that."
            )
        if not row.finished:
            found.append(f"{who}: not finished; what there is up to {made.words.unit} {max(row.rounds)}.")
    fitted = [method for method in dict.fromkeys(row.method for row in made.rows) if method in FITTED]
    return found + [f"{name_of(method)}: {FITTED[method]}." for method in fitted]


def number_text(spread: Spread, decimals: int = 2) -> str:
    """`97.12 ± 0.30`, or the reason why there is no number."""
    return str(_spread_cell(spread, decimals))


def rounds_text(rounds: Sequence[int]) -> str:
    """The reported rounds: one number if the seeds agree, their range if not."""
    low, high = min(rounds), max(rounds)
    return str(low) if low == high else f"{low}–{high}"


def _metric_cells(row: Row, words: Wording) -> Iterator[Cell]:
    if row.verdict:
        yield Cell(words.said(row.verdict), missing=True)
        yield from (Cell(DASH) for _ in GAP_METRICS[1:])
        return
    for name in GAP_METRICS:
        decimals = COLUMNS[name].decimals
        value, delta = row.metrics[name], row.gaps[name].mean
        cell = _spread_cell(value, decimals)
        if cell.missing or row.is_reference:
            yield cell
        else:
            # The reason stands once, in the Avg. gap column, which is missing whenever one of its four gaps is.
            shown = f"{delta:.{decimals}f}" if is_measured(delta) else "Δ not measured"
            yield replace(cell, delta=shown)


def _gap_cell(row: Row, rows: Sequence[Row]) -> Cell:
    if row.is_reference:
        return Cell("reference")
    return _verdict_or(row, _spread_cell(row.average_gap, 2, is_marked(row, rows)))


def by_chance(rows: Sequence[Row]) -> list[str]:
    """How far the numbers can be trusted: by how few rows they are of, and by how seeds differ."""
    said = []
    requests = list(dict.fromkeys(row.request for row in rows))
    for request in requests:
        own = [row for row in rows if row.request == request]
        each = (_of_few_rows(own), _not_told_apart(own), _beside_before(own), seed_by_seed(own))
        said += [f"{request}: {sentence}" if len(requests) > 1 else sentence for sentence in each if sentence]
    return said


def _not_told_apart(rows: Sequence[Row]) -> str:
    """Who shares the first place, where these are too many for a mark to mean something."""
    ahead = [name_of(row.method) for found in crowded(rows).values() for row in found]
    more = "as far as these seeds and rows tell; they are more than half of the methods, so none is marked as best."
    return f"{listed(ahead, 'and')} share the smallest average gap, {more}" if ahead else ""


def _of_few_rows(rows: Sequence[Row]) -> str:
    """How uncertain the numbers about the forgotten rows are for want of more rows, at most."""
    each = any(len(row.seeds) > 1 for row in rows)
    counts = [count for row in rows for count in row.rows.get("forget", ())]
    largest = {name: max(row.errors.get(name, 0.0) for row in rows) for name in ("mia", "forget")}
    said, more = moved_by_chance(counts, largest, each), "" if each else "; take no smaller difference for a finding"
    return f"{said} (one standard error){more}." if said else ""


def moved_by_chance(counts: Sequence[int], errors: Mapping[str, float], each: bool) -> str:
    """`With 40 forgotten rows, chance alone moves MIA by up to ± 7.5 points`, where that is known."""
    moved = " and ".join(f"{COLUMNS[name].title} by up to ± {error:.1f}" for name, error in errors.items() if error)
    if not (counts and moved):
        return ""
    span = f"{min(counts):,}" + ("" if min(counts) == max(counts) else f" to {max(counts):,}")
    noun = ("row" if max(counts) == 1 else "rows") + (" in each seed" if each else "")
    return f"With {span} forgotten {noun}, chance alone moves {moved} points"


def _beside_before(rows: Sequence[Row]) -> str:
    """That doing nothing is as near to Retrain as the best, as far as can be seen."""
    alike = any(row.is_before and is_smallest(row, rows) for row in rows) and any(is_ahead(row, rows) for row in rows)
    said = "Chance may be all that puts a method nearer to Retrain than Before, which is what doing nothing leaves."
    return said if alike else ""


def seed_by_seed(rows: Sequence[Row]) -> str:
    """How large the gaps are within the seeds, where that reads otherwise than between their means."""
    gaps = {
        name_of(row.method): (f"{row.average_gap.mean:.2f}", f"{row.seed_gap.mean:.2f}")
        for row in rows
        if not row.is_reference and len(row.seeds) > 1 and row.seed_gap
        if is_measured(row.average_gap.mean) and is_measured(row.seed_gap.mean)
    }
    said = (
        "A gap lies between the means over seeds, as in the paper, so opposite errors cancel; ± is the spread of each"
        " seed's own. The mean of the seeds' own average gaps: "
    )
    each = ", ".join(f"{name} {within}" for name, (_, within) in gaps.items())
    return f"{said}{each}." if any(between != within for between, within in gaps.values()) else ""


def _cost_cells(row: Row, words: Wording) -> Iterator[Cell]:
    if row.is_before:
        yield from (Cell(DASH) for _ in (*words.columns, words.units))
        return
    for name in words.columns:
        value = row.costs[name].mean
        yield Cell(words.cost_text(name, value), missing=not is_measured(value))
    yield Cell(rounds_text(row.rounds))


def _spread_cell(spread: Spread, decimals: int, marked: bool = False) -> Cell:
    if not is_measured(spread.mean):
        return Cell(str(spread.mean), missing=True)
    around = "" if spread.std is None else f"{spread.std:.{decimals}f}"
    return Cell(f"{spread.mean:.{decimals}f}", around, best=marked)


def _verdict_or(row: Row, cell: Cell) -> Cell:
    return Cell(DASH) if row.verdict else cell


def markdown_line(cells: Sequence[str]) -> str:
    """One line of a GitHub table."""
    return "| " + " | ".join(markdown_text(cell) for cell in cells) + " |"


def markdown_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _markdown_notes(made: ResultTable) -> list[str]:
    found = notes(made)
    return ["", *(f"- {markdown_text(note)}" for note in found)] if found else []


def _latex_cells(row: Row, cells: Sequence[Cell]) -> Iterator[str]:
    for cell, width in merged(row, cells):
        text = _latex_escape(str(cell))
        if width > 1:
            yield rf"\multicolumn{{{width}}}{{l}}{{{text}}}"
        else:
            yield rf"\textbf{{{text}}}" if cell.best else text


_LATEX = {
    **{mark: "\\" + mark for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "Δ": r"$\Delta$",
    "±": r"$\pm$",
    "\u2113": r"$\ell$",
    "\u2014": "---",
    "–": "--",
}


def _latex_escape(text: str) -> str:
    return "".join(_LATEX.get(mark, mark) for mark in text)


def explanation(rule: str, recovered_within: float) -> str:
    """What a rule does, in words, with its number filled in."""
    return RULES[rule].explanation.format(within=recovered_within)


# --- who is marked as the best ----------------------------------------------------------------------------------------


def is_marked(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a row carries the star."""
    return is_ahead(row, rows) and row.request not in crowded(rows)


def crowded(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Of each request (or run) in which more than half of the methods would be marked: those."""
    found = {}
    for name in dict.fromkeys(row.request for row in rows):
        methods = _methods(rows, name)
        ahead = [row for row in methods if is_ahead(row, rows)]
        if len(ahead) > max(1, len(methods) / 2):
            found[name] = ahead
    return found


def is_ahead(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a gap is among the smallest of its request, and smaller than doing nothing's."""
    before = [r.average_gap.mean for r in rows if r.request == row.request and r.is_before]
    mine = row.average_gap.mean
    if row.is_before or not is_measured(mine):
        return False
    if any(is_measured(nothing) and round(mine, 2) >= round(nothing, 2) for nothing in before):
        return False
    return is_smallest(row, rows)


def is_smallest(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a row has the smallest average gap of its request's methods, or is as good as that.

    Two standard deviations of the difference tell, by what seeds differ or, if that is more, by what so few rows leave
    open. Where neither is known, two decimals tell.
    """
    rivals = _methods(rows, row.request)
    gaps = [(r.average_gap.mean, _by_luck(r)) for r in rivals if is_measured(r.average_gap.mean)]
    mine = row.average_gap.mean
    if row.is_reference or not gaps or not is_measured(mine):
        return False
    least, around = min(gaps)
    return round(mine, 2) <= round(least, 2) or mine - least <= 2 * math.hypot(_by_luck(row), around)


def without_best(rows: Sequence[Row]) -> list[str]:
    """The requests (or runs) of which no method is nearer to Retrain than the model before."""
    compared = {row.request: None for row in rows if _is_method(row) and is_measured(row.average_gap.mean)}
    ahead = {row.request for row in rows if is_ahead(row, rows)}
    return [name for name in compared if name not in ahead]


def star(rows: Sequence[Row]) -> str:
    """What the mark means in these rows, and why it is missing."""
    none, many = without_best(rows), crowded(rows)
    if not any(is_marked(row, rows) for row in rows):
        if many:
            return "No ★: more than half of the methods share the smallest average gap"
        return "No ★: no method " + ("is nearer to Retrain than Before" if none else "has an average gap to Retrain")
    several = any(len(row.seeds) > 1 for row in rows)
    unsure = several or any(row.gap_error for row in rows)
    return (
        "★ smallest average gap to Retrain"
        + (f", and what is within two standard {'deviations' if several else 'errors'} of it" if unsure else "")
        + ("; none where no method is nearer than Before" if none else "")
        + ("; none where that is more than half of the methods" if many else "")
    )


def _methods(rows: Sequence[Row], request: str) -> list[Row]:
    return [row for row in rows if row.request == request and _is_method(row)]


def _is_method(row: Row) -> bool:
    return not (row.is_reference or row.is_before)


def _by_luck(row: Row) -> float:
    return max(row.average_gap.std or 0.0, row.gap_error)


# --- plain numbers ----------------------------------------------------------------------------------------------------


def records(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of a table as plain values."""
    return [numbers_only(_record(row)) for row in found]


def numbers_only(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line whose columns of numbers hold numbers or nothing.

    Why there is nothing stands in `not_measured`, by column. `title` is what tables and figures call the method.
    """
    why = {key: value.removeprefix(PREFIX) for key, value in line.items() if str(value).startswith(PREFIX)}
    return {**line, **dict.fromkeys(why), "title": name_of(line["method"]), "not_measured": why or None}


def _record(row: Row) -> dict[str, Any]:
    made: dict[str, Any] = {"request": row.request, "method": row.method, "rule": row.rule}
    made |= {"seeds": list(row.seeds), "rounds": list(row.rounds), "finished": row.finished, "verdict": row.verdict}
    for name in METRICS:
        made |= _numbers(name, row.metrics[name])
        if name in row.gaps:
            made |= _numbers(f"{name}_gap", row.gaps[name])
        if name in GAP_METRICS:
            made[f"{name}_error"] = row.errors.get(name)
    made |= _numbers("average_gap", row.average_gap)
    made["average_gap_seed_by_seed"] = None if row.seed_gap is None else row.seed_gap.mean
    for cost in COSTS:
        made |= _numbers(cost, row.costs[cost])
    return made


def _numbers(name: str, value: Spread) -> dict[str, Any]:
    return {name: value.mean, f"{name}_std": value.std}


def csv_text(table: Sequence[Mapping[str, Any]]) -> str:
    """Plain values as CSV, every key a column.

    A list is written with spaces, a table as JSON, nothing as an empty cell.
    """
    columns = list(dict.fromkeys(key for line in table for key in line))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for line in table:
        writer.writerow(safe([_csv_cell(line.get(key)) for key in columns]))
    return buffer.getvalue()


def _csv_cell(value: Any) -> object:
    if isinstance(value, list | tuple):
        return " ".join(str(part) for part in value)
    if value is None or is_measured(value) or isinstance(value, str | bool | int):
        return "" if value is None else value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def safe(row: Sequence[object]) -> list[object]:
    """A line of a table for a spreadsheet: a name that looks like a formula is text there."""
    return [f"'{cell}" if isinstance(cell, str) and cell[:1] in "=+-@" and cell else cell for cell in row]


# --- which methods did poorly, in plain words -------------------------------------------------------------------------


LOST = 5.0


def shortcomings(found: Sequence[Row]) -> list[str]:
    """A sentence for every method that did poorly, worst news first within a method."""
    before = next((row for row in found if row.is_before), None)
    retrain = next((row for row in found if row.is_reference), None)
    said = []
    for row in found:
        if row.is_before or row.is_reference or row.verdict:
            continue
        for sentence in (_kept(row, before, retrain), _lost(row, retrain)):
            if sentence:
                said.append(f"{name_of(row.method)} {sentence}.")
    return said


def judged(row: Row, before: Row | None, retrain: Row | None) -> Literal["taken out", "partly", "not measured"]:
    """What a comparison with Retrain says of a method's model.

    Partly: more than half of the way from before to Retrain is still to go. Where the old model and Retrain are alike
    on the forgotten data, or differ by less than the seeds or by a few rows, there is no way to go, and nothing is
    shown; nor is it where seeds or a few rows decide on which side of the middle the model stands.
    """
    if before is None or retrain is None:
        return "not measured"
    metric, way = _told_by(row, before, retrain)
    if way is None or near_the_middle(metric, row, way):
        return "not measured"
    return "partly" if _kept(row, before, retrain) else "taken out"


def _kept(row: Row, before: Row | None, retrain: Row | None) -> str:
    if before is None or retrain is None:
        return ""
    metric, way = _told_by(row, before, retrain)
    if way is None or near_the_middle(metric, row, way):
        return ""
    now, start, goal = way
    if abs(now - goal) <= abs(start - goal) / 2:
        return ""
    if metric == "backdoor":
        return f"did not take it out: the backdoor still fires on {now:.1f} % (Retrain: {goal:.1f} %)"
    if (now - goal) * (start - goal) < 0:
        return f"went past forgetting: it is right on {now:.1f} % of the forgotten data (Retrain: {goal:.1f} %)"
    return f"did not take it out: it is still right on {now:.1f} % of the forgotten data (Retrain: {goal:.1f} %)"


Way = tuple[float, float, float]


def _told_by(row: Row, before: Row, retrain: Row) -> tuple[str, Way | None]:
    """The metric that tells, and its way.

    A backdoor that another client planted fires before and after Retrain alike, and says nothing of this request.
    """
    way = _way("backdoor", row, before, retrain)
    return ("backdoor", way) if way else ("forget", _way("forget", row, before, retrain))


def on_the_way(row: Row, before: Row, retrain: Row) -> bool:
    """Whether the old model and Retrain differ by enough to say how far a model has come."""
    return _told_by(row, before, retrain)[1] is not None


def near_the_middle(metric: str, row: Row, way: Way) -> bool:
    """Whether a model is not distinguished from one half way: by its seeds, or but for a few rows."""
    now, start, goal = way
    spread = (row.forgetting if metric == "forget" else row.metrics[metric]).std or 0.0
    left, half = abs(now - goal), abs(start - goal) / 2
    farther = start if left <= half else goal
    return abs(left - half) < spread or row.amounts_to(metric, now - farther) < FEWEST_APART - 0.5


def _way(metric: str, row: Row, before: Row, retrain: Row) -> Way | None:
    """(now, at the start, Retrain's) if the way is 2 points, six rows and more than seeds differ."""
    own = [r.forgetting if metric == "forget" else r.metrics[metric] for r in (row, before, retrain)]
    now, start, goal = (value.mean for value in own)
    if not (is_measured(now) and is_measured(start) and is_measured(goal)):
        return None
    if abs(start - goal) < max(2.0, *(value.std or 0.0 for value in own[1:])) or few_apart(metric, before, retrain):
        return None
    return now, start, goal


def few_apart(metric: str, one: Row, other: Row) -> bool:
    """Whether two models differ on fewer rows than would be news."""
    a, b = (row.forgetting.mean if metric == "forget" else row.metrics[metric].mean for row in (one, other))
    return is_measured(a) and is_measured(b) and one.amounts_to(metric, a - b) < FEWEST_APART - 0.5


def _lost(row: Row, retrain: Row | None) -> str:
    if retrain is None:
        return ""
    now, goal = row.metrics["test"].mean, retrain.metrics["test"].mean
    if not (is_measured(now) and is_measured(goal)) or goal - now <= LOST or few_apart("test", row, retrain):
        return ""
    return f"costs {goal - now:.1f} points of test accuracy against Retrain ({now:.1f} instead of {goal:.1f} %)"
