"""Two sections of a report: how sure a population of models is, and what a Flower app measures.

    population/REQUEST.json   verdicts, a table, the most exposed rows; pictures are in `figures`
    lines[*]["app"]           per round what clients that stay, the server and, with its leave, the leaver say

Where there is no population, the section names the command that makes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from unfed.errors import counted
from unfed.folder.info import RequestInfo, RunInfo
from unfed.folder.study_results import (
    BesideRetrain,
    Judged,
    JudgedInterval,
    JudgedMethod,
    JudgedRow,
    Slice,
    TunedBy,
    VerdictSaid,
)
from unfed.measures.population.attacks import ATTACKS, STANDING
from unfed.measures.trajectory import Line, OfApp
from unfed.records import JsonRecord
from unfed.report.rules import Trajectory
from unfed.report.tables import Reasons
from unfed.values import is_measured, not_measured

# --- how sure are we? What a population of models tells, beside Retrain against Retrain -------------------------------


NO_POPULATION = not_measured(
    "one run is one model of each kind and says nothing about its own spread; `unfed population` trains more, and"
    " `unfed judge` puts the result here"
)
YARDSTICK = "Retrain against Retrain"


@dataclass(frozen=True)
class SureColumn:
    """One number of the table: where it lies, and how it is written."""

    title: str
    path: tuple[str, ...]
    digits: int = 3
    unit: str = ""


COLUMNS = (
    *(
        SureColumn(f"{title}, forgotten against held-out: AUC minus Retrain's", ("standing", name))
        for name, title in STANDING.items()
    ),
    SureColumn("U-LiRA AUC on held-out rows", ("held_out", "u-lira")),
    *(SureColumn(f"{title} AUC", ("attacks", name, "auc")) for name, title in ATTACKS.items()),
    SureColumn("U-LiRA TPR at 1 % FPR", ("attacks", "u-lira", "at_1")),
    SureColumn("U-LiRA TPR at 0.1 % FPR", ("attacks", "u-lira", "at_01"), 4),
    SureColumn("U-LiRA AUC, worst slice", ("attacks", "u-lira", "worst_slice")),
    SureColumn("KLoM", ("distances", "klom")),
    SureColumn("NeurIPS 2023 score", ("distances", "neurips")),
    SureColumn("Agreement", ("distances", "agreement")),
    SureColumn("SVC efficacy", ("singles", "svc"), 1, " %"),
    SureColumn("Entropy attack", ("singles", "entropy"), 1, " %"),
    SureColumn("Forget", ("accuracy", "forget"), 1, " %"),
    SureColumn("Test", ("accuracy", "test"), 1, " %"),
)

ANSWERS = {
    ("remembers", "remembers"): "Remembers",
    ("remembers", "none"): "No memory seen",
    ("remembers", "undecided"): "Memory not decided",
    ("unfinished", "unfinished"): "Unfinished",
    ("unfinished", "further"): "Trained further than Retrain",
    ("unfinished", "finished"): "As finished as Retrain",
    ("unfinished", "undecided"): "Recovery not decided",
    ("both", "told"): "Differs from Retrain, by memory or recovery (judge again to see which)",
    ("both", "cannot"): "Cannot be distinguished from Retrain",
    ("both", "undecided"): "Not decided",
}
"""By question and kind of answer; files of earlier versions have one answer to both questions."""


def answers(one: JudgedMethod) -> list[tuple[str, VerdictSaid]]:
    """The questions that a method was asked, with their answers."""
    if isinstance(one.verdict, VerdictSaid):
        return [("both", one.verdict)]
    return [("remembers", one.verdict.remembers), ("unfinished", one.verdict.unfinished)]


def answer_sentences(judged: Judged) -> list[str]:
    """Every answer in a sentence."""
    return [answer.sentence for one in judged.methods.values() for _, answer in answers(one)]


def summary(judged: Judged) -> list[tuple[str, str]]:
    """Each answer that was given, and the methods that it was given of."""
    given = [(q, answer.kind, one.title) for one in judged.methods.values() for q, answer in answers(one)]
    names = {words: ", ".join(title for *own, title in given if (*own,) == key) for key, words in ANSWERS.items()}
    return [(words, found) for words, found in names.items() if found]


def grid(judged: Judged) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """The table, a row per method and one for Retrain itself, and the notes that its cells point to."""
    reasons = Reasons()
    rows: list[tuple[str, JudgedRow]] = [(one.title, one) for one in judged.methods.values()]
    rows.append((YARDSTICK, judged.yardstick))
    body = [(title, [_cell(one, column, reasons) for column in COLUMNS]) for title, one in rows]
    left = [unfinished_words(title, there, judged.models) for title, there in judged.unfinished.items()]
    return body, [*reasons.notes, *left]


def unfinished_words(title: str, there: int, models: int) -> str:
    """Why a method of the population has no row."""
    return f"{title} is not judged: {there} of {models} models are there; the same `unfed population` goes on with it."


def _cell(one: JudgedRow, column: SureColumn, reasons: Reasons) -> str:
    here: Any = one
    for part in column.path:
        if isinstance(here, Mapping):
            here = here.get(part, not_measured("not in this file"))
        elif isinstance(here, JsonRecord):
            here = getattr(here, part)
    digits, unit = column.digits, column.unit
    if is_measured(here):
        return f"{here:.{digits}f}{unit}"
    if isinstance(here, BesideRetrain):
        return f"{here.value:.{digits}f}{unit} (Retrain {here.retrain:.{digits}f}{unit})"
    if isinstance(here, Slice):
        return f"{here.auc:.{digits}f} ({here.name})"
    if isinstance(here, JudgedInterval):
        return f"{here.value:.{digits}f} ({here.low:.{digits}f} to {here.high:.{digits}f})"
    return reasons.cell(str(here))


def about_tuning(judged: Judged) -> list[str]:
    """What was tuned with what, and whether all had the same; nothing where no method was tuned."""
    methods = judged.methods
    tuned = {kind: how for kind, how in (judged.tuned or {}).items() if kind in methods}
    if not tuned:
        return []
    said = [tuned_words(methods[kind].title, how) for kind, how in tuned.items()]
    budgets = {kind: f"{how.trials} trials of {how.models} models" for kind, how in tuned.items()}
    if len(set(budgets.values())) > 1:
        each = ", ".join(f"{methods[kind].title} {budget}" for kind, budget in budgets.items())
        said.append(f"They had different budgets ({each}), so they are not compared fairly; tune them alike.")
    alone = [one.title for kind, one in methods.items() if kind not in tuned and f"{kind}-tuned" not in tuned]
    return [*said, f"Not tuned, but as the config has it: {', '.join(alone)}."] if alone else said


def tuned_words(title: str, how: TunedBy) -> str:
    """What was tuned of a method, and with what."""
    values = [
        f"{name} = {value:.3g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in how.chosen.items()
    ]
    said = f"{title} was tuned over {how.trials} trials on {how.on}: "
    said += f"{', '.join(values) or 'what the config says was best'}."
    if not how.spoiled:
        return said
    drop = (how.best and how.best.drop) or 0.0
    return f"{said} Every trial cost more validation accuracy than allowed, this one least ({drop:.1f} points)."


# --- what a Flower app that is not unfed's own says of the models: its own metrics, under its own names ---------------


LEAVER = "client {}, which left, with its leave"
TURNED = ", of the model with the perturbation taken back"

MetricRow = tuple[str, str, str, str]
"""A metric of the app: its name, who says it, before and after."""


@dataclass(frozen=True)
class AppPart:
    """The app's metrics before and after, and what clients say of rows."""

    strategy: str
    metrics: list[MetricRow]
    classes: list[str]
    messages: int
    """How often leavers were asked to measure a model, with their leave."""
    notes: list[str]
    missing: dict[str, str]


def part(run: RunInfo, request: RequestInfo, methods: Mapping[str, Mapping[int, Trajectory]]) -> AppPart | None:
    """What the app says of one request; None for unfed's own runs."""
    if not run.app:
        return None
    lines = [line for name, by_seed in methods.items() if name != "before" for one in by_seed.values() for line in one]
    was = [line.get("app", OfApp()) for own in methods.get("before", {}).values() for line in own]
    before = was[-1] if was else OfApp()
    shown = [line.get("app", OfApp()) for line in lines]
    every = [before, *shown, *(one["turned_back"] for one in shown if "turned_back" in one)]
    left_out = [
        f"Round {line['round']}: client {client} left {sum(own['rows'].values())} of {own['of']} rows out."
        for line in lines
        for client, own in line.get("app", {}).get("left_out", {}).items()
    ]
    same = [new["round"] for old, new in pairwise(lines) if _model(old) == _model(new)]
    return AppPart(
        strategy=str(run.app.get("strategy", "")),
        metrics=_metrics(before, lines),
        classes=[*_classes(request, shown)],
        messages=sum(len(one.get("leaver", {})) for one in every),
        notes=[
            *left_out[:100],
            *(f"Round {number} changed nothing." for number in same),
            *(sentence for one in shown for sentence in one.get("heavy", ())),
        ],
        missing=_missing(request, before, shown[-1] if shown else OfApp()),
    )


def _missing(request: RequestInfo, before: OfApp, after: OfApp) -> dict[str, str]:
    """What is not known of the model after, and why."""
    found = {}
    answers = [*before.get("leaver", {}).values(), *after.get("leaver", {}).values()]
    if not any(isinstance(one, Mapping) for one in answers):
        why = "the leaver gave no leave to be asked, so its rows are not scored"
        if request.classes:
            why = "no client is asked to score the rows that it left out; a metric of the app's own would stand here"
        found["Forget accuracy"] = not_measured(answers[0] if answers else why)
    if "turned_back" not in after:
        found["Undoing"] = not_measured("the app did not score the model with the perturbation taken back")
    elif "reason" in after["turned_back"]:
        found["Undoing"] = not_measured(after["turned_back"]["reason"])
    return found | {name: not_measured(why) for name, why in after.get("unmeasured", {}).items()}


def _classes(request: RequestInfo, shown: Sequence[OfApp]) -> Iterator[str]:
    """What clients say of the rows of each class that left, in the last round in which any said it."""
    said = [one["left_out"] for one in shown if one.get("left_out")]
    for number in request.classes:
        rows = [one["rows"].get(number, 0) for one in (said[-1].values() if said else ())]
        clients = counted(len(rows), "client") + (" says" if len(rows) == 1 else " say")
        yield (
            f"Class {number}: {clients} that {counted(sum(rows), 'row')} of it"
            f" {'was' if sum(rows) == 1 else 'were'} left out of the last training."
        )


def _metrics(before: OfApp, lines: Sequence[Line]) -> list[MetricRow]:
    """One row per metric of the app."""
    found: list[MetricRow] = []
    shown = [line.get("app", OfApp()) for line in lines]
    after: Mapping[str, Any] = shown[-1] if shown else {}
    back: Mapping[str, Any] = after.get("turned_back", {})
    for source, who in (("evaluate", _staying(before, shown)), ("server", "the server")):
        spoken = [line for line in lines if line.get("app", {}).get(source)]
        was: Mapping[str, Any] = cast(Any, before).get(source) or {}
        last: Mapping[str, Any] = cast(Any, spoken[-1]["app"])[source] if spoken else {}
        # A strategy may evaluate now and then, and then not the last model.
        stale = bool(spoken) and _model(spoken[-1]) != shown[-1].get("fingerprint")
        late = f", after round {spoken[-1]['round']}; the last model was not evaluated" if stale else ""
        found += _rows(who + late, was, last)
        found += _rows(who + TURNED, was, back[source]) if back.get(source) else []
    answers = [one.get("leaver", {}) for one in (cast(Mapping[str, Any], before), after, back)]
    for client in sorted({*answers[0], *answers[1]}):
        own = [one.get(client) for one in answers]
        was, last, turned = (one if isinstance(one, Mapping) else {} for one in own)
        found += _rows(LEAVER.format(client), was, last)
        found += _rows(LEAVER.format(client) + TURNED, was, turned) if turned else []
    return found


def _model(line: Line) -> str | None:
    return line.get("app", {}).get("fingerprint")


def _staying(before: OfApp, shown: Sequence[OfApp]) -> str:
    """Which of the clients that stay speak: a strategy may ask some, and others before than after."""
    was = before.get("evaluated", [])
    spoken = [one["evaluated"] for one in shown if one.get("evaluate") and one.get("evaluated")]
    now = spoken[-1] if spoken else []
    if not was or not now or {*was} == {*now}:
        return "the clients that stay"
    return f"those asked of the clients that stay, {len(was)} before and {len(now)} after, not the same ones"


def _rows(who: str, was: Mapping[str, Any], last: Mapping[str, Any]) -> list[MetricRow]:
    return [(name, who, _text(was.get(name)), _text(last.get(name))) for name in sorted({*was, *last})]


def _text(value: Any) -> str:
    if value is None:
        return not_measured("the app did not report it")
    return f"{value:.6g}" if isinstance(value, float) else str(value)
