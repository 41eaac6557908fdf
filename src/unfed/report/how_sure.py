"""How sure are we? What a population of models tells, beside Retrain against Retrain.

    population/REQUEST.json ─► the section's words and numbers; the pictures are in `figures`

Where there is no population the section says which command makes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unfed.folder.judged import (
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
from unfed.records import JsonRecord
from unfed.values import PREFIX, is_measured, not_measured

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
    ("both", "cannot"): "Cannot be told from Retrain",
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
    notes: list[str] = []
    rows: list[tuple[str, JudgedRow]] = [(one.title, one) for one in judged.methods.values()]
    rows.append((YARDSTICK, judged.yardstick))
    body = [(title, [_cell(one, column, notes) for column in COLUMNS]) for title, one in rows]
    return body, [
        *(f"({number}) {reason}" for number, reason in enumerate(notes, 1)),
        *(unfinished_words(title, there, judged.models) for title, there in judged.unfinished.items()),
    ]


def unfinished_words(title: str, there: int, models: int) -> str:
    """Why a method of the population has no row."""
    return f"{title} is not judged: {there} of {models} models are there; the same `unfed population` goes on with it."


def _cell(one: JudgedRow, column: SureColumn, notes: list[str]) -> str:
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
    reason = str(here).removeprefix(PREFIX)
    if reason not in notes:
        notes.append(reason)
    return f"not measured ({notes.index(reason) + 1})"


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
