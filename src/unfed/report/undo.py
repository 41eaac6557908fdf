"""The section "Can it be undone?" of a report.

    undo/SEED/REQUEST/METHOD.json ─► per method: sentences and a table; pictures are in `figures`

Every number stands beside Retrain's under the same attacks. Where no attack was tried, the section names the command
that tries it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from unfed.errors import listed
from unfed.folder.info import RunInfo
from unfed.folder.layout import Undoing
from unfed.measures.metrics import accuracy_error, attack_error, mean_std
from unfed.measures.undo.flip import NO_CLASS
from unfed.measures.undo.measure import NOT_TRIED
from unfed.measures.undo.refits import NOTHING_PLANTED
from unfed.report.tables import Reasons, moved_by_chance, number_text
from unfed.values import Value, is_measured, not_measured

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
    UndoRow("Backdoor gained by ten stamped rows", ("triggers", "gained"), " points"),
    UndoRow("Forget, stitched to the old head", ("inside", "stitch", "forget")),
    UndoRow("Backdoor, stitched to the old head", ("inside", "stitch", "backdoor")),
    UndoRow("Class back, stitched and lifted", ("inside", "stitch", "class_back")),
    UndoRow("Test, old head grafted on", ("inside", "graft", "test")),
    UndoRow("Backdoor, old head grafted on", ("inside", "graft", "backdoor")),
    UndoRow("Class back, old head grafted on and lifted", ("inside", "graft", "class_back")),
    UndoRow("Trigger seen in the features (AUC)", ("inside", "trigger", "auc")),
    UndoRow("Class read from the features, 5 rows shown", ("inside", "probe", "reads_5")),
    UndoRow("Class read from the features, 20 rows shown", ("inside", "probe", "reads_20")),
    UndoRow("Class read from the features, 100 rows shown", ("inside", "probe", "reads_100")),
    UndoRow("Distance to the model before", ("path", "before", "relative_l2"), "", 2),
    UndoRow("Loss peak on the way there", ("path", "before", "peak"), "", 2),
    UndoRow("Distance to the perturbed model before", ("path", "perturbed", "relative_l2"), "", 2),
    UndoRow("Distance to Retrain", ("path", "retrain", "relative_l2"), "", 2),
    UndoRow("Cosine of the difference with the leaver's gradient", ("difference", "cosine"), "", 2),
    UndoRow("Error of the label histogram read from the head", ("difference", "variation"), "", 2),
)


def value(found: Undoing, who: str, path: Sequence[str]) -> Value:
    """One number of a probe, or why there is none."""
    here: Any = found.measured.get(who, {})
    for name in path:
        if not isinstance(here, Mapping):
            break
        if name not in here:
            return str(here.get("reason", not_measured("not in this file")))
        here = here[name]
    return float(here) if is_measured(here) else str(here)


def grid(
    found: Sequence[Undoing], rows: Sequence[UndoRow] = ROWS, columns: Iterable[str] = COLUMNS
) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """The table of one method over its repetitions, and the notes below it.

    These say what chance alone moves, and each reason for a missing number once. What the request gives no occasion
    for stands there too.
    """
    reasons = Reasons()

    def text(row: UndoRow, who: str) -> str:
        spread = mean_std([value(one, who, row.path) for one in found])
        if is_measured(spread.mean):
            return number_text(spread, row.digits) + row.unit
        return reasons.cell(spread.mean)

    models = tuple(columns)
    apart = {row.title: reason for row in rows if (reason := value(found[0], models[0], row.path)) in NOT_FOR_ALL}
    body = [(row.title, [text(row, who) for who in models]) for row in rows if row.title not in apart]
    return body, [*_by_chance(found, rows, models), *reasons.notes, *map(": ".join, apart.items())]


def _by_chance(found: Sequence[Undoing], rows: Sequence[UndoRow], models: Sequence[str]) -> list[str]:
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
    shown = moved_by_chance(counts, errors, len(found) > 1)
    return [f"{shown} (one standard error)."] if shown else []


_OF_FEW = (("mia",), ("forget",))


# --- in words ---------------------------------------------------------------------------------------------------------


NOT_PROBED = not_measured("undoing was not tried; `unfed probe` tries it")
PURGED = not_measured("its data was purged, and with it what was tried before, if anything")
PROBE_PURGED = not_measured("what was tried was purged with other data; `unfed probe` tries again")
ABOVE = 5.0
"""Points above Retrain from which on the words say that something comes back."""

TOO_WEAK = (
    "No model whose layers were fitted is usable, so the fits say nothing. Try `unfed probe` with more `--rows` and"
    " `--steps`, or lower `--rates`."
)
SHOWS = {"backdoor": "the backdoor works on", "forget": "the model reads"}
REST = {"backdoor": "of stamped images", "forget": "of the forgotten rows right"}
ATTACK_WORDS = {
    "flip": ("", "The public inverse alone, without any data, brings that to", " %"),
    "realign": ("", "Layers fitted in a model that is still usable bring it to up to", " %"),
    "lift": ("back_1", "With its bias raised until the other classes lose 1 point, the class comes back to", " %"),
    "triggers": ("known", "Taught again by five stamped rows in 20 steps, the backdoor reaches", " points"),
}
"""By attack: the number that the words name (that of the metric, if empty), what was done, and the unit."""


@dataclass(frozen=True)
class UndoSection:
    """The probes of one request, by method; where no attack was tried, the reason alone."""

    reason: str | None
    methods: list[list[Undoing]] = field(default_factory=list)

    @staticmethod
    def of(found: Sequence[Undoing], untried: str) -> UndoSection:
        return UndoSection(None, [*by_method(found).values()]) if found else UndoSection(untried)

    @property
    def fitted(self) -> bool:
        return any(map(fitted, self.methods))

    @property
    def weak(self) -> bool:
        return any(map(weak, self.methods))


def by_method(found: Sequence[Undoing]) -> dict[str, list[Undoing]]:
    """The probes of each method."""
    methods: dict[str, list[Undoing]] = {}
    for one in found:
        methods.setdefault(one.method, []).append(one)
    return methods


def fitted(found: Sequence[Undoing]) -> bool:
    """Whether more was tried than to turn the perturbation back."""
    return all(value(one, "unlearned", ("realign", "forget")) != NOT_TRIED for one in found)


def weak(found: Sequence[Undoing]) -> bool:
    """Whether layers were fitted and none of these models is usable: a longer fit may bring back more."""
    fits, usable = (mean_of(found, "unlearned", "realign", name) for name in ("fits", "usable_fits"))
    return is_measured(fits) and is_measured(usable) and fits > usable == 0


def worst(found: Sequence[Undoing], who: str, metric: str) -> Value:
    """The most that is seen as published or after a usable realign: the mean over repetitions."""
    values = []
    for one in found:
        pair = [value(one, who, (part, metric)) for part in ("published", "realign")]
        values.append(max((number for number in pair if is_measured(number)), default=pair[0]))
    return mean_std(values).mean


def metric_of(found: Sequence[Undoing]) -> str:
    """What a leaver is known by: its backdoor, where one was planted, else accuracy on its rows."""
    return "backdoor" if is_measured(worst(found, "unlearned", "backdoor")) else "forget"


def mean_of(found: Sequence[Undoing], who: str, *path: str) -> Value:
    """One number over the repetitions."""
    return mean_std([value(one, who, path) for one in found]).mean


def sentence(found: Sequence[Undoing]) -> str:
    """What was measured of one method, beside Retrain, in plain words."""
    title, metric = found[0].title, metric_of(found)
    published = mean_of(found, "unlearned", "published", metric)
    if not is_measured(published):
        return f"{title}: {published}."
    said = [f"{title}: as published {SHOWS[metric]} {published:.1f} % {REST[metric]}."]
    for attack, (name, words, unit) in ATTACK_WORDS.items():
        mine, theirs = (_after(found, who, attack, name or metric) for who in ("unlearned", "retrain"))
        if is_measured(mine):
            beside = f"{theirs:.1f}{unit}" if is_measured(theirs) else "not measured"
            said.append(f"{words} {mine:.1f}{unit} (Retrain: {beside}).")
    test = mean_of(found, "unlearned", "flip", "test")
    if not fitted(found) and is_measured(test):
        said.append(f"The model turned back is right on {test:.1f} % of the test data.")
    said.append(conclusion(found))
    if found[0].over:
        said.append(f"Forget is over all that had left by then: {listed(found[0].over, 'and')}.")
    return " ".join(filter(None, said))


def conclusion(found: Sequence[Undoing]) -> str:
    """What the attacks on one method come to; empty where Retrain was not attacked beside it."""
    metric = metric_of(found)
    published, theirs = mean_of(found, "unlearned", "published", metric), worst(found, "retrain", metric)
    if is_measured(published) and is_measured(theirs) and published > theirs + ABOVE:
        return "It was not forgotten to begin with."
    if comes_back(found):
        return "What was forgotten can be brought back."
    if not fitted(found):
        return "Only the public inverse was tried."
    if weak(found):
        return TOO_WEAK
    return "These attacks bring back no more than they find in Retrain." if is_measured(theirs) else ""


def _after(found: Sequence[Undoing], who: str, attack: str, name: str) -> Value:
    """The number of an attack; layers that were fitted may leave less than was published."""
    plain = attack != "realign" or not fitted(found)
    return mean_of(found, who, attack, name) if plain else worst(found, who, name)


def comes_back(found: Sequence[Undoing]) -> str | None:
    """What comes back, where that is more than in Retrain treated alike; None where nothing does."""
    metric = metric_of(found)
    published = mean_of(found, "unlearned", "published", metric)
    attacks = [("flip", metric), ("realign", metric), *([("lift", "back_1")] if metric == "forget" else [])]
    pairs = [[_after(found, who, *attack) for who in ("unlearned", "retrain")] for attack in attacks]
    known = [(mine, theirs) for mine, theirs in pairs if is_measured(mine) and is_measured(theirs)]
    more = [pair for pair in known if is_measured(published) and pair[0] > max(pair[1], published) + ABOVE]
    if not more:
        return None
    mine, theirs = max(more)
    return f"undone, {SHOWS[metric]} {mine:.1f} % {REST[metric]} again (Retrain, treated alike: {theirs:.1f} %)"


def brought_back(run: RunInfo, request: str, method: str) -> str | None:
    """A sentence on what attacks brought back of one request's models; None where they did not."""
    tried = [one for one in run.undo if (one.request, one.method) == (request, method)]
    again = comes_back(tried) if tried else None
    return f"What {tried[0].title} forgot is still in its model: {again}." if again else None
