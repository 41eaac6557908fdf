"""Can it be undone?

This section shows, beside Retrain, how much of what was forgotten comes back.

    undo/SEED/REQUEST/METHOD.json ─► a sentence per method, a picture, a table

The words claim nothing that was not measured: "comes back" is a number beside Retrain's under the same attacks, and
where nobody probed, the section says which command would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from unfed.errors import listed
from unfed.measures.metrics import accuracy_error, attack_error, mean_std
from unfed.measures.undo import NOT_TRIED
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
class UndoRow:
    """One row of the table: where its number lies, and how it is written."""

    title: str
    path: tuple[str, ...]
    unit: str = " %"
    digits: int = 1


ROWS = (
    UndoRow("Forget, as published", ("published", "forget")),
    UndoRow("Backdoor, as published", ("published", "backdoor")),
    UndoRow("Test, as published", ("published", "test")),
    UndoRow("Forget after flip", ("flip", "forget")),
    UndoRow("MIA after flip", ("flip", "mia")),
    UndoRow("Backdoor after flip", ("flip", "backdoor")),
    UndoRow("Test after flip", ("flip", "test")),
    UndoRow("Class back by lift, others lose 1 point", ("lift", "back_1")),
    UndoRow("Class back by lift, others lose 5 points", ("lift", "back_5")),
    UndoRow("Largest Forget after realign, usable", ("realign", "forget")),
    UndoRow("Largest backdoor after realign, usable", ("realign", "backdoor")),
    UndoRow("Models that realign fitted", ("realign", "fits"), "", 0),
    UndoRow("Of these usable", ("realign", "usable_fits"), "", 0),
    UndoRow("Rise of Forget in further training (resurface)", ("resurface", "forget_rise"), " points"),
    UndoRow("Area of relearning", ("relearn", "area")),
    UndoRow("Backdoor taught again, own trigger", ("triggers", "own"), " points"),
    UndoRow("Backdoor taught again, planted trigger", ("triggers", "known"), " points"),
    UndoRow("Distance to the model before", ("path", "before", "relative_l2"), "", 2),
    UndoRow("Loss peak on the way there", ("path", "before", "peak"), "", 2),
    UndoRow("Distance to the perturbed model before", ("path", "perturbed", "relative_l2"), "", 2),
    UndoRow("Distance to Retrain", ("path", "retrain", "relative_l2"), "", 2),
    UndoRow("Cosine of the difference with the leaver's gradient", ("difference", "cosine"), "", 2),
    UndoRow("Error of the label histogram read from the head", ("difference", "variation"), "", 2),
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
    found: Sequence[Found], rows: Sequence[UndoRow] = ROWS, columns: Iterable[str] = COLUMNS
) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """The table of one method over its repetitions, and the notes below it.

    These say what chance alone moves, and each reason for a missing number once. What the request gives no occasion
    for stands there too.
    """
    notes: list[str] = []

    def text(row: UndoRow, who: str) -> str:
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


def _by_chance(found: Sequence[Found], rows: Sequence[UndoRow], models: Sequence[str]) -> list[str]:
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


# --- in words ---------------------------------------------------------------------------------------------------------


NOT_PROBED = not_measured("nobody tried to undo it, `unfed probe` would")
PURGED = not_measured("its data was purged, and with it what was tried before, if anything")
PROBE_PURGED = not_measured("what was tried was purged with other data, `unfed probe` tries again")
ABOVE = 5.0
"""Points above Retrain from which on the words say that something comes back."""

TOO_WEAK = (
    "No model whose layers were fitted is usable, so the fits say nothing: `unfed probe` with more `--rows` and"
    " `--steps`, or lower `--rates`, may find what these did not."
)
SHOWS = {"backdoor": "the backdoor works on", "forget": "the model reads"}
REST = {"backdoor": "of stamped images", "forget": "of the forgotten rows right"}


def view(found: Sequence[Found], nothing: str = "", untried: str = NOT_PROBED) -> dict[str, Any]:
    """Everything the page shows of one request; nothing but the reason where there is no probe.

    `nothing`: why there is nothing to undo, where there is not; `untried`: why there is no probe.
    """
    methods: dict[str, list[Found]] = {}
    for one in found:
        methods.setdefault(str(one["method"]), []).append(one)
    if not methods:
        reason = f"nothing to undo: {nothing}" if nothing else untried
        return {
            "reason": reason,
            "fitted": False,
            "weak": False,
            "back": [],
            "sentences": [],
            "tables": [],
        }
    return {
        "reason": None,
        "fitted": any(fitted(ones) for ones in methods.values()),
        "weak": any(weak(ones) for ones in methods.values()),
        "back": [told for ones in methods.values() if (told := comes_back(ones)) is not None],
        "sentences": [sentence(ones) for ones in methods.values()],
        "tables": [table(ones) for ones in methods.values()],
    }


def table(found: Sequence[Found]) -> dict[str, Any]:
    """One method as the template shows it."""
    body, notes = grid(found)
    title = str(found[0]["title"])
    return {
        "title": title,
        "header": [name.format(title=title) for name in COLUMNS.values()],
        "body": body,
        "notes": notes,
    }


def fitted(found: Sequence[Found]) -> bool:
    """Whether more was tried than to turn the perturbation back."""
    return all(value(one, "unlearned", ("realign", "forget")) != NOT_TRIED for one in found)


def weak(found: Sequence[Found]) -> bool:
    """Whether layers were fitted and none of these models is usable.

    A longer fit may bring back what these did not.
    """
    fits, usable = (mean_of(found, "unlearned", "realign", name) for name in ("fits", "usable_fits"))
    return is_measured(fits) and is_measured(usable) and fits > usable == 0


def worst(found: Sequence[Found], who: str, metric: str) -> Value:
    """The most that a usable attack brought back: as published, or after realign.

    It is the mean over repetitions.
    """
    values = []
    for one in found:
        pair = [value(one, who, (part, metric)) for part in ("published", "realign")]
        numbers = [number for number in pair if is_measured(number)]
        values.append(max(numbers) if len(numbers) == 2 else pair[0] if len(numbers) == 0 else numbers[0])
    return mean_std(values).mean


def metric_of(found: Sequence[Found]) -> str:
    """What a leaver is known by: its backdoor, where one was planted, else accuracy on its rows."""
    return "backdoor" if is_measured(worst(found, "unlearned", "backdoor")) else "forget"


def mean_of(found: Sequence[Found], who: str, *path: str) -> Value:
    return mean_std([value(one, who, path) for one in found]).mean


def sentence(found: Sequence[Found]) -> str:
    """What was measured of one method, beside Retrain, in plain words, and of whom."""
    over = found[0].get("over")
    if not over:
        return _sentence(found)
    return f"{_sentence(found)} Forget is over all that had left by then: {listed(over).replace(' or ', ' and ')}."


def _sentence(found: Sequence[Found]) -> str:
    title, metric = str(found[0]["title"]), metric_of(found)
    what, rest = SHOWS[metric], REST[metric]
    published, back, theirs = (
        mean_of(found, "unlearned", "published", metric),
        worst(found, "unlearned", metric),
        worst(found, "retrain", metric),
    )
    if not (is_measured(published) and is_measured(back)):
        return f"{title}: {back if not is_measured(back) else published}."
    if not fitted(found):
        return f"{title}: as published {what} {published:.1f} % {rest}.{_turned_words(found, metric, rest)}"
    told = f"{title}: as published {what} {published:.1f} % {rest}; after undoing, in a model that is still usable,"
    told += f" on up to {back:.1f} %." if metric == "backdoor" else f" up to {back:.1f} %."
    told += _flip_words(found, metric, rest)
    if not is_measured(theirs):
        return f"{told} Retrain under the same attacks is {theirs}.{_beside_retrain(found)}"
    told += f" Retrain under the same attacks: {theirs:.1f} %.{_beside_retrain(found)}"
    if published > theirs + ABOVE:
        return f"{told} It was not forgotten to begin with."
    if back > theirs + ABOVE or comes_back(found):
        return f"{told} What was forgotten can be brought back."
    if weak(found):
        return f"{told} {TOO_WEAK}"
    return f"{told} These attacks bring back no more than they find in Retrain."


def comes_back(found: Sequence[Found]) -> str | None:
    """One sentence for the top of the page, where more comes back than in Retrain treated alike."""
    title, metric = str(found[0]["title"]), metric_of(found)
    published = mean_of(found, "unlearned", "published", metric)
    pairs = [
        [mean_of(found, who, "flip", metric) for who in ("unlearned", "retrain")],
        [worst(found, who, metric) for who in ("unlearned", "retrain")],
        [mean_of(found, who, "lift", "back_1") for who in ("unlearned", "retrain") if metric == "forget"] or ["", ""],
    ]
    known = [(mine, theirs) for mine, theirs in pairs if is_measured(mine) and is_measured(theirs)]
    more = [pair for pair in known if is_measured(published) and pair[0] > max(pair[1], published) + ABOVE]
    if not more:
        return None
    mine, theirs = max(more)
    again = f"undone, {SHOWS[metric]} {mine:.1f} % {REST[metric]} again (Retrain, treated alike: {theirs:.1f} %)"
    return f"What {title} forgot is still in its model: {again}."


def brought_back(run: Mapping[str, Any], request: str, method: str) -> str | None:
    """The sentence of `comes_back` on a method's models of one request; None where none was undone."""
    tried = [one for one in run.get("undo") or [] if (one["request"], one["method"]) == (request, method)]
    return comes_back(tried) if tried else None


def _beside_retrain(found: Sequence[Found]) -> str:
    """The attacks that no other sentence names: a lifted class, a backdoor taught again."""
    told = ""
    for part, name, what, unit in (
        ("lift", "back_1", "With its bias raised until the other classes lose 1 point, the class comes back to", " %"),
        ("triggers", "known", "Taught again by five stamped rows in 20 steps, the backdoor reaches", " points"),
    ):
        mine, theirs = (mean_of(found, who, part, name) for who in ("unlearned", "retrain"))
        if is_measured(mine):
            beside = f"{theirs:.1f}{unit}" if is_measured(theirs) else theirs
            told += f" {what} {mine:.1f}{unit} (Retrain: {beside})."
    return told


def _turned_words(found: Sequence[Found], metric: str, rest: str) -> str:
    """What is said where only the inverse was tried: how good a model that leaves, and what is open."""
    turned, theirs = (mean_of(found, who, "flip", metric) for who in ("unlearned", "retrain"))
    test, was = (mean_of(found, "unlearned", part, "test") for part in ("flip", "published"))
    if not is_measured(turned):
        return f" Turning it back is {turned}; nothing else was tried."
    told = _flip_words(found, metric, rest)
    if is_measured(test) and is_measured(was):
        told += f" That model is right on {test:.1f} % of the test data (as published {was:.1f} %)."
    told += (
        f" Retrain, treated alike: {theirs:.1f} %." if is_measured(theirs) else f" Retrain, treated alike, is {theirs}."
    )
    if is_measured(theirs) and turned > theirs + ABOVE:
        told += " What was forgotten is still in the model."
    return f"{told} Whether it comes back in a model as good as the published one was not tried."


def _flip_words(found: Sequence[Found], metric: str, rest: str) -> str:
    flipped = mean_of(found, "unlearned", "flip", metric)
    if not is_measured(flipped):
        return ""
    works = {"backdoor": "works on", "forget": "reads"}[metric]
    return f" Turned back by the public inverse alone, without any data, it {works} {flipped:.1f} % {rest}."
