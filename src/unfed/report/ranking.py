"""Which methods did poorly, in plain words.

A method did poorly where more than half of the way from the old model to Retrain is still to go, or where it costs more
than `LOST` points of test accuracy against Retrain. The words are made from the same rows as the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from unfed.measures.metrics import FEWEST_APART
from unfed.report.rules import Row
from unfed.report.tables import name_of
from unfed.values import is_measured

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

    A backdoor that somebody else planted fires before and after Retrain alike, and says nothing of this request.
    """
    way = _way("backdoor", row, before, retrain)
    return ("backdoor", way) if way else ("forget", _way("forget", row, before, retrain))


def on_the_way(row: Row, before: Row, retrain: Row) -> bool:
    """Whether the old model and Retrain differ by enough to say how far a model has come."""
    return _told_by(row, before, retrain)[1] is not None


def near_the_middle(metric: str, row: Row, way: Way) -> bool:
    """Whether a model is not told from one half way: by its seeds, or but for a few rows."""
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
