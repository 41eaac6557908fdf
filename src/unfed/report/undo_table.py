"""What a probe measured, as a table.

There is one row per number, beside it the same for Retrain and for the model before.

published · flip · lift · realign · resurface · relearn · triggers · path · difference  ×  the method, Retrain, before
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from unfed.measures.metrics import accuracy_error, attack_error, mean_std
from unfed.measures.undo.lift import NO_CLASS
from unfed.measures.undo.triggers import NOTHING_PLANTED
from unfed.report.tables import moved_by_chance, number_text
from unfed.values import PREFIX, Value, is_measured, not_measured

Found = Mapping[str, Any]
"""One file of a run's `undo/`."""

NOT_FOR_ALL = (NO_CLASS, NOTHING_PLANTED)
"""Why an attack was not made whose kind of request this is not."""
COLUMNS = {"unlearned": "{title}", "retrain": "Retrain", "before": "before"}


@dataclass(frozen=True)
class Line:
    """One row of the table: where its number lies, and how it is written."""

    title: str
    path: tuple[str, ...]
    unit: str = " %"
    digits: int = 1


ROWS = (
    Line("Forget, as published", ("published", "forget")),
    Line("Backdoor, as published", ("published", "backdoor")),
    Line("Test, as published", ("published", "test")),
    Line("Forget after flip", ("flip", "forget")),
    Line("MIA after flip", ("flip", "mia")),
    Line("Backdoor after flip", ("flip", "backdoor")),
    Line("Test after flip", ("flip", "test")),
    Line("Class back by lift, others lose 1 point", ("lift", "back_1")),
    Line("Class back by lift, others lose 5 points", ("lift", "back_5")),
    Line("Largest Forget after realign, usable", ("realign", "forget")),
    Line("Largest backdoor after realign, usable", ("realign", "backdoor")),
    Line("Models that realign fitted", ("realign", "fits"), "", 0),
    Line("Of these usable", ("realign", "usable_fits"), "", 0),
    Line("Rise of Forget in further training (resurface)", ("resurface", "forget_rise"), " points"),
    Line("Area of relearning", ("relearn", "area")),
    Line("Backdoor taught again, own trigger", ("triggers", "own"), " points"),
    Line("Backdoor taught again, planted trigger", ("triggers", "known"), " points"),
    Line("Distance to the model before", ("path", "before", "relative_l2"), "", 2),
    Line("Loss peak on the way there", ("path", "before", "peak"), "", 2),
    Line("Distance to the perturbed model before", ("path", "perturbed", "relative_l2"), "", 2),
    Line("Distance to Retrain", ("path", "retrain", "relative_l2"), "", 2),
    Line("Cosine of the difference with the leaver's gradient", ("difference", "cosine"), "", 2),
    Line("Error of the label histogram read from the head", ("difference", "variation"), "", 2),
)


def value(found: Found, who: str, path: Sequence[str]) -> Value:
    """One number of a probe, or why there is none."""
    here: Any = found["measured"].get(who, {})
    for name in path:
        if not isinstance(here, Mapping):
            break
        if name not in here:
            return str(here.get("reason", not_measured("not in this file")))
        here = here[name]
    return float(here) if is_measured(here) else str(here)


def grid(
    found: Sequence[Found], rows: Sequence[Line] = ROWS, columns: Iterable[str] = COLUMNS
) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """The table of one method over its repetitions, and the notes below it.

    These say what chance alone moves, and each reason for a missing number once. What the request gives no occasion
    for stands there too.
    """
    notes: list[str] = []

    def text(row: Line, who: str) -> str:
        spread = mean_std([value(one, who, row.path) for one in found])
        if is_measured(spread.mean):
            return number_text(spread, row.digits) + row.unit
        reason = str(spread.mean).removeprefix(PREFIX)
        if reason not in notes:
            notes.append(reason)
        return f"not measured ({notes.index(reason) + 1})"

    models = tuple(columns)
    apart = {row.title: reason for row in rows if (reason := value(found[0], models[0], row.path)) in NOT_FOR_ALL}
    body = [(row.title, [text(row, who) for who in models]) for row in rows if row.title not in apart]
    below = [*(f"({place}) {reason}" for place, reason in enumerate(notes, 1)), *map(": ".join, apart.items())]
    return body, [*_by_chance(found, rows, models), *below]


def _by_chance(found: Sequence[Found], rows: Sequence[Line], models: Sequence[str]) -> list[str]:
    """How uncertain MIA and Forget are for want of more rows, where the files say their rows."""
    errors = {"mia": 0.0, "forget": 0.0}
    counts = []
    for one, who, (part, name) in product(found, models, [row.path for row in rows if row.path[1:] in _OF_FEW]):
        forget, test = (value(one, who, (part, "rows", side)) for side in ("forget", "test"))
        seen = value(one, who, (part, name))
        if is_measured(seen) and is_measured(forget) and is_measured(test):
            counts.append(int(forget))
            error = attack_error(seen, int(min(forget, test))) if name == "mia" else accuracy_error(seen, int(forget))
            errors[name] = max(errors[name], error)
    told = moved_by_chance(counts, errors, len(found) > 1)
    return [f"{told} (one standard error)."] if told else []


_OF_FEW = (("mia",), ("forget",))
