"""Who came closest to Retrain, who was cheapest, and who did poorly, in plain words.

    by average gap · by bytes exchanged · by computation          smallest first; what was not measured has no rank

A method did poorly where more than half of the way from the old model to Retrain is still to go, or where it costs more
than `LOST` points of test accuracy against Retrain. The words are made from the same rows as the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from unfed.errors import listed
from unfed.measures.metrics import Spread
from unfed.report.rules import Row
from unfed.report.tables import is_best, name_of
from unfed.report.wording import FEDERATED, Wording
from unfed.values import is_measured

LOST = 5.0
MANY = 4  # methods; fewer are read off the table at a glance

Orders = list[tuple[str, list[tuple[int, str, str]]]]


def orders(found: Sequence[Row], words: Wording = FEDERATED) -> Orders:
    """(title, [(place, method, value)…]) for each way to rank, once there are enough methods to rank."""
    own = [row for row in found if not (row.is_before or row.is_reference or row.verdict)]
    if len(own) < MANY:
        return []
    everyone = [row for row in found if not (row.is_before or row.verdict)]
    ranked = [
        ("Smallest average gap to Retrain", _sorted(own, lambda row: row.average_gap, "{:.2f}".format)),
        *((_FEWEST[cost], _spent(everyone, cost, words)) for cost in words.columns),
    ]
    return [(title, _placed(places)) for title, places in ranked if len(places) > 1]


_FEWEST = {"comm_bytes": "Fewest bytes exchanged", "flops": "Least computation"}
_SPENT = {"comm_bytes": "exchanged the fewest bytes", "flops": "computed least"}


def _spent(found: Sequence[Row], cost: str, words: Wording) -> list[tuple[str, str]]:
    return _sorted(found, lambda row: row.costs[cost], words.cost(cost)[1])


def _placed(places: Sequence[tuple[str, str]]) -> list[tuple[int, str, str]]:
    """With their places; who reads the same shares one."""
    values = [value for _, value in places]
    return [(1 + values.index(value), name, value) for name, value in places]


def _sorted(found: Sequence[Row], key: Callable[[Row], Spread], write: Callable[[float], str]) -> list[tuple[str, str]]:
    places = [(value, row) for row in found if is_measured(value := key(row).mean)]
    return [(name_of(row.method), write(value)) for value, row in sorted(places, key=lambda place: place[0])]


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
    on the forgotten data, or differ by less than the seeds, there is no way to go, and nothing is shown.
    """
    if before is None or retrain is None:
        return "not measured"
    if not any(_way(metric, row, before, retrain) for metric in ("backdoor", "forget")):
        return "not measured"
    return "partly" if _kept(row, before, retrain) else "taken out"


def _kept(row: Row, before: Row | None, retrain: Row | None) -> str:
    if before is None or retrain is None:
        return ""
    way = _way("backdoor", row, before, retrain)
    metric = "backdoor" if way else "forget"
    # A backdoor that somebody else planted fires before and after Retrain alike, and says nothing of this request.
    way = way or _way("forget", row, before, retrain)
    if way is None:
        return ""
    now, start, goal = way
    if abs(now - goal) <= abs(start - goal) / 2:
        return ""
    if metric == "backdoor":
        return f"did not take it out: the backdoor still fires on {now:.1f} % (Retrain: {goal:.1f} %)"
    if (now - goal) * (start - goal) < 0:
        return f"went past forgetting: it is right on {now:.1f} % of the forgotten data (Retrain: {goal:.1f} %)"
    return f"did not take it out: it is still right on {now:.1f} % of the forgotten data (Retrain: {goal:.1f} %)"


def _way(metric: str, row: Row, before: Row, retrain: Row) -> tuple[float, float, float] | None:
    """(now, at the start, Retrain's) where there is a way to go: 2 points, and more than seeds differ."""
    own = [r.forgetting if metric == "forget" else r.metrics[metric] for r in (row, before, retrain)]
    now, start, goal = (value.mean for value in own)
    if not (is_measured(now) and is_measured(start) and is_measured(goal)):
        return None
    if abs(start - goal) < max(2.0, *(value.std or 0.0 for value in own[1:])):
        return None
    return now, start, goal


def words(found: Sequence[Row], setting: Wording = FEDERATED) -> list[str]:
    """The same rankings as sentences, once there are enough methods for a ranking to be news."""
    own = [row for row in found if not (row.is_before or row.is_reference or row.verdict)]
    if len(own) < MANY:
        return []
    said = []
    gaps = _sorted(own, lambda row: row.average_gap, "{:.2f}".format)
    if len(gaps) > 1:
        beside = [name_of(row.method) for row in own if is_best(row, found)]
        beside = [name for name, value in gaps if name in beside and value != gaps[0][1]]
        unsure = f", which these seeds do not tell from {listed(beside, 'or')}'s" if beside else ""
        said.append(
            f"{_first(gaps)} came closest to Retrain, with an average gap of {gaps[0][1]}{unsure};"
            f" {gaps[-1][0]} stayed farthest away, with {gaps[-1][1]}."
        )
    for cost in setting.columns:
        spent = _spent(own, cost, setting)
        if len(spent) > 1 and spent[0][1] != spent[-1][1]:
            said.append(f"{_first(spent)} {_SPENT[cost]} ({spent[0][1]}), {spent[-1][0]} most ({spent[-1][1]}).")
    return said


def _first(places: Sequence[tuple[str, str]]) -> str:
    """Everybody who shares the first place."""
    names = [name for name, value in places if value == places[0][1]]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _lost(row: Row, retrain: Row | None) -> str:
    now, goal = row.metrics["test"].mean, None if retrain is None else retrain.metrics["test"].mean
    if not (is_measured(now) and is_measured(goal)) or goal - now <= LOST:
        return ""
    return f"costs {goal - now:.1f} points of test accuracy against Retrain ({now:.1f} instead of {goal:.1f} %)"
