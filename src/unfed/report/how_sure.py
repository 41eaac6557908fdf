"""How sure are we?

This section shows what a population of models tells: verdicts, distributions, ROC at low FPR, the most exposed rows.

    population/REQUEST.json ─► a sentence per method, pictures, a table beside Retrain against Retrain

Nothing here is measured anew, and where there is no population the section says which command would make one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unfed.measures.population.attacks import ATTACKS, STANDING
from unfed.report import figures as pictures
from unfed.report.figures import styles
from unfed.values import PREFIX, is_measured, not_measured

Judged = Mapping[str, Any]
"""One file of a run's `population/`."""

NO_POPULATION = not_measured(
    "one run is one model of each kind, and says nothing of its own spread; `unfed population` would, and `unfed judge`"
    " puts what it finds here"
)
MOST = 10
"""So many rows are listed of each method."""
YARDSTICK = "Retrain against Retrain"


@dataclass(frozen=True)
class Column:
    """One number of the table: where it lies, and how it is written."""

    title: str
    path: tuple[str, ...]
    digits: int = 3
    unit: str = ""


COLUMNS = (
    *(
        Column(f"{title}, forgotten against held-out: AUC minus Retrain's", ("standing", name))
        for name, title in STANDING.items()
    ),
    Column("U-LiRA AUC on held-out rows", ("held_out", "u-lira")),
    *(Column(f"{title} AUC", ("attacks", name, "auc")) for name, title in ATTACKS.items()),
    Column("U-LiRA TPR at 1 % FPR", ("attacks", "u-lira", "tpr_0.01")),
    Column("U-LiRA TPR at 0.1 % FPR", ("attacks", "u-lira", "tpr_0.001"), 4),
    Column("U-LiRA AUC, worst slice", ("attacks", "u-lira", "worst_slice")),
    Column("KLoM", ("distances", "klom")),
    Column("NeurIPS 2023 score", ("distances", "neurips")),
    Column("Agreement", ("distances", "agreement")),
    Column("SVC efficacy", ("singles", "svc"), 1, " %"),
    Column("Entropy attack", ("singles", "entropy"), 1, " %"),
    Column("Forget", ("accuracy", "forget"), 1, " %"),
    Column("Test", ("accuracy", "test"), 1, " %"),
)


def view(judged: Judged | None, name: str) -> dict[str, Any]:
    """Everything the page shows of one request; nothing but the reason where there is no population."""
    if judged is None:
        return {"reason": NO_POPULATION}
    methods: Mapping[str, Any] = judged["methods"]
    numbers = styles(list(methods))
    drawn = [pictures.distributions(judged, numbers, f"{name}-margins")]
    drawn += [pictures.roc(judged, numbers, f"{name}-roc-{attack}", attack) for attack in ATTACKS]
    body, notes = grid(judged)
    return {
        "reason": None,
        "models": judged["models"],
        "half": judged["half"],
        "quarter": judged["yardstick"]["quarter"],
        "rows": judged["rows"]["forget"],
        "summary": summary(judged),
        "sentences": [answer["sentence"] for one in methods.values() for _, answer in answers(one)],
        "pictures": [one.view() for one in drawn if one is not None],
        "legend": pictures.legend(judged, numbers),
        "header": [column.title for column in COLUMNS],
        "body": body,
        "notes": notes,
        "exposure": [exposed(one) for one in methods.values()],
        "own_exposure": _own_exposure(judged),
        "tuned": about_tuning(judged),
    }


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


def answers(one: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The questions that a method was asked, with their answers."""
    verdict: Mapping[str, Any] = one["verdict"]
    yield from [("both", verdict)] if "kind" in verdict else verdict.items()


def summary(judged: Judged) -> list[tuple[str, str]]:
    """Each answer that was given, and the methods that it was given of."""
    given = [(q, answer["kind"], str(one["title"])) for one in judged["methods"].values() for q, answer in answers(one)]
    names = {words: ", ".join(title for *own, title in given if (*own,) == key) for key, words in ANSWERS.items()}
    return [(words, found) for words, found in names.items() if found]


def grid(judged: Judged) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """The table, a row per method and one for Retrain itself, and the notes that its cells point to."""
    notes: list[str] = []
    rows = [(str(one["title"]), one) for one in judged["methods"].values()] + [(YARDSTICK, judged["yardstick"])]
    body = [(title, [_cell(one, column, notes) for column in COLUMNS]) for title, one in rows]
    told = [f"({number}) {reason}" for number, reason in enumerate(notes, 1)]
    short: Mapping[str, int] = judged.get("unfinished", {})
    return body, [*told, *(unfinished_words(title, there, judged["models"]) for title, there in short.items())]


def unfinished_words(title: str, there: int, models: int) -> str:
    """Why a method of the population has no row."""
    return f"{title} is not judged: {there} of {models} models are there; the same `unfed population` goes on with it."


def _cell(one: Mapping[str, Any], column: Column, notes: list[str]) -> str:
    here: Any = one
    for part in column.path:
        if isinstance(here, Mapping):
            here = here.get(part, not_measured("not in this file"))
    if is_measured(here):
        return f"{here:.{column.digits}f}{column.unit}"
    if isinstance(here, Mapping):
        return _written(here, column)
    reason = str(here).removeprefix(PREFIX)
    if reason not in notes:
        notes.append(reason)
    return f"not measured ({notes.index(reason) + 1})"


def _written(value: Mapping[str, Any], column: Column) -> str:
    """A value with its interval, its slice, or Retrain's beside it."""
    digits, unit = column.digits, column.unit
    if "retrain" in value:
        return f"{value['value']:.{digits}f}{unit} (Retrain {value['retrain']:.{digits}f}{unit})"
    if "name" in value:
        return f"{value['auc']:.{digits}f} ({value['name']})"
    return f"{value['value']:.{digits}f} ({value['low']:.{digits}f} to {value['high']:.{digits}f})"


def exposed(one: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a method that give themselves away most."""
    return {
        "title": one["title"],
        "rows": [(str(row["row"]), f"{row['auc']:.2f}") for row in one["exposure"][:MOST]],
    }


def _own_exposure(judged: Judged) -> str | None:
    own: Sequence[Mapping[str, Any]] = judged["yardstick"]["exposure"]
    return f"{own[0]['auc']:.2f}" if own else None


def about_tuning(judged: Judged) -> list[str]:
    """What was tuned with what, whether all had the same, and who had nothing.

    Nothing is said where nobody was tuned.
    """
    methods: Mapping[str, Any] = judged["methods"]
    tuned = {kind: how for kind, how in (judged.get("tuned") or {}).items() if kind in methods}
    if not tuned:
        return []
    said = [tuned_words(methods[kind]["title"], how) for kind, how in tuned.items()]
    budgets = {kind: f"{how['trials']} trials of {how['models']} models" for kind, how in tuned.items()}
    if len(set(budgets.values())) > 1:
        each = ", ".join(f"{methods[kind]['title']} {budget}" for kind, budget in budgets.items())
        said.append(f"They had different budgets ({each}), so they are not compared fairly; tune them alike.")
    alone = [str(one["title"]) for kind, one in methods.items() if kind not in tuned and f"{kind}-tuned" not in tuned]
    if alone:
        said.append(f"Not tuned, but as the config has it: {', '.join(alone)}.")
    return said


def tuned_words(title: str, how: Mapping[str, Any]) -> str:
    """What was tuned of a method, and with what."""
    values = [
        f"{name} = {value:.3g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in how["chosen"].items()
    ]
    chosen = ", ".join(values) or "what the config says was best"
    least = f" Every trial cost more validation accuracy than allowed, this one least ({_drop(how):.1f} points)."
    return (
        f"{title} was tuned over {how['trials']} trials on {how['on']}: {chosen}.{least if how.get('spoiled') else ''}"
    )


def _drop(how: Mapping[str, Any]) -> float:
    return float((how.get("best") or {}).get("drop", 0.0))
