"""Which round of a method is its result?

There are three rules, always named, computed from the trajectory afterwards.

    best-gap    argmin over evaluated rounds t of  Avg. Gap(t, Retrain)       the paper's choice; an oracle
    recovered   min { t :  validation(t) ≥ validation(θ*) - within }          what a deployment can apply
    last        the last evaluated round                                      no choice at all

Retrain is the reference and always stands at its last round, so that every gap follows from the printed columns; where
the run keeps the model of the best epoch, as the paper does in its centralised table, at the one with the best test.
A result is a round t ≥ 1, or round 0 of a method that is done there: before that FT *is* θ*, and NoT a broken model.
Rounds marked `model: false` (FedEraser while it calibrates) count as no result.

Over seeds, as in the paper: metrics are mean ± std; a gap is taken between the seed means, and its ± is the spread of
the per-seed gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unfed.errors import UnfedError, listed, nearest
from unfed.folder.info import RequestInfo, RunInfo
from unfed.measures import metrics
from unfed.measures.metrics import (
    GAP_METRICS,
    Spread,
    accuracy_error,
    attack_error,
    average,
    average_gap,
    gap,
    mean_std,
    reading,
    recovered,
)
from unfed.measures.trajectory import Line
from unfed.values import Value, is_measured, not_measured

METRICS = tuple(column.name for column in metrics.METRICS)
COSTS = tuple(column.name for column in metrics.COSTS)
NO_RETRAIN = not_measured("no Retrain of this request")

Trajectory = list[Line]


@dataclass(frozen=True)
class Pick:
    """A rule's answer for one seed: the line it reports, and what a reader should know.

    None means that there is no result.
    """

    line: Line | None
    note: str = ""
    best: float = 0.0  # without a result: how close it came, so that over seeds the best one speaks


@dataclass(frozen=True)
class Rule:
    """A named rule: how it is explained and how it picks a line from one seed's trajectory."""

    name: str
    explanation: str
    pick: Callable[[Trajectory, Line | None, float], Pick]


@dataclass(frozen=True)
class Row:
    """One method under one request, as one rule reports it.

    `verdict` is set where the rule found no result.
    """

    request: str
    method: str
    rule: str
    seeds: tuple[int, ...]
    rounds: tuple[int, ...]
    metrics: Mapping[str, Spread]
    gaps: Mapping[str, Spread]
    average_gap: Spread
    costs: Mapping[str, Spread]
    finished: bool
    verdict: str = ""
    note: str = ""
    seed_gap: Spread | None = None
    """The mean of every seed's average gap to its own Retrain: seeds that err in different ways do not cancel here."""
    own: Spread | None = None
    """Accuracy on what the request itself takes out, where others left before it; the metric Forget counts them too."""
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """How many rows of each seed a metric is of, where the run says it."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """The standard error of a metric in points, from having so few rows in each seed and not more."""
    undoes: tuple[str, ...] = ()
    """The tensors that the method turned back to what they were before an earlier request of the same comparison."""

    @property
    def forgetting(self) -> Spread:
        """Accuracy on what the request itself takes out."""
        return self.own or self.metrics["forget"]

    def amounts_to(self, metric: str, points: float) -> float:
        """How many rows, over all seeds, so many points of a metric are; no limit where that is not known."""
        own = metric == "forget" and self.own is not None
        counted = self.rows.get("own" if own else metric)
        return abs(points) / 100 * sum(counted) if counted else math.inf

    @property
    def gap_error(self) -> float:
        """The standard error of the average gap from few rows, in points; 0 where none is known."""
        return math.hypot(*(self.errors.get(name, 0.0) for name in GAP_METRICS)) / len(GAP_METRICS)

    @property
    def is_reference(self) -> bool:
        """Retrain, to which the gaps are taken."""
        return self.method == "retrain"

    @property
    def is_before(self) -> bool:
        """θ* under the request's scope: what unlearning started from."""
        return self.method == "before"


def rows(lines: Sequence[Line], rule: str = "best-gap", *, recovered_within: float = 0.5) -> list[Row]:
    """One row per request and method: θ* first, then Retrain, then the methods as they ran."""
    chosen = named(rule)
    table = trajectories(lines)
    result = []
    for request, methods in table.items():
        order = sorted(methods, key=lambda method: (method != "before", method != "retrain"))
        reference = {seed: reference_line(t) for seed, t in methods.get("retrain", {}).items()}
        result += [_row(request, method, methods[method], reference, chosen, recovered_within) for method in order]
    return result


def named(rule: str) -> Rule:
    """The rule of that name."""
    if rule not in RULES:
        raise UnfedError(f"There is no reporting rule {rule!r}; use {listed(RULES)}.{nearest(rule, RULES)}")
    return RULES[rule]


def trajectories(lines: Sequence[Line]) -> dict[str, dict[str, dict[int, Trajectory]]]:
    """request → method → seed → lines in round order.

    A round written twice (a resumed run) counts as written last.
    """
    found: dict[str, dict[str, dict[int, dict[int, Line]]]] = {}
    for line in lines:
        if line.get("request") is None:
            continue
        seeds = found.setdefault(str(line["request"]), {}).setdefault(str(line["method"]), {})
        seeds.setdefault(int(line["seed"]), {})[int(line["round"])] = line
    return {
        request: {
            method: {seed: [by_round[t] for t in sorted(by_round)] for seed, by_round in sorted(seeds.items())}
            for method, seeds in methods.items()
        }
        for request, methods in found.items()
    }


def asked(run: RunInfo, lines: Sequence[Line]) -> dict[str, RequestInfo]:
    """The requests of a run by id, with those that only the trajectory names."""
    grouped = trajectories(lines)
    known = {one.id: one for one in run.requests}
    known |= {name: RequestInfo(id=name) for name in grouped if name not in known}
    poison = run.config.get("poison")
    for name, one in known.items():
        changes: dict[str, Any] = {}
        first = [line.get("rows", {}) for by_seed in grouped.get(name, {}).values() for line, *_ in by_seed.values()]
        dealt = {count for rows in first if (count := rows.get("own") or rows.get("forget"))}
        if len(dealt) > 1:
            changes = {"forgotten_rows": min(dealt), "most_rows": max(dealt)}
        if isinstance(poison, Mapping) and "client" in poison:
            changes["planted"] = str(poison["client"]) in one.clients
        known[name] = one.model_copy(update=changes)
    return known


def results(trajectory: Trajectory) -> Trajectory:
    """The lines a rule may choose from."""
    return [line for line in trajectory if is_model(line) and (line["round"] >= 1 or bool(line.get("done")))]


def is_model(line: Line) -> bool:
    """False for rounds in which the method has no usable model yet."""
    return line.get("model", True) is not False


def _last(trajectory: Trajectory) -> Line:
    """The last result; of a run that has none yet, the last line there is."""
    return (results(trajectory) or trajectory)[-1]


def reference_line(trajectory: Trajectory) -> Line:
    """Where Retrain stands: its last result, or the first of those with the best test accuracy."""
    last = _last(trajectory)
    if last.get("keep_model") != "best-test":
        return last
    tested = [line for line in results(trajectory) if is_measured(reading(line, "test"))]
    return max(tested, key=lambda line: (line["test"], -line["round"]), default=last)


def _pick_last(trajectory: Trajectory, reference: Line | None, within: float) -> Pick:
    line = _last(trajectory)
    if not is_model(line):
        return Pick(None, not_measured(f"no usable model after {line['round']} rounds"))
    return Pick(line)


def _pick_best_gap(trajectory: Trajectory, reference: Line | None, within: float) -> Pick:
    if reference is None:
        last = _pick_last(trajectory, reference, within)
        return last if last.line is None else Pick(last.line, "last round shown, for there is no Retrain to choose by")
    gaps = [(value, line) for line in results(trajectory) if is_measured(value := average_gap(line, reference))]
    if not gaps:
        last = _pick_last(trajectory, reference, within)
        return last if last.line is None else Pick(last.line, "last round shown, for no round has an average gap")
    return Pick(min(gaps, key=lambda pair: (pair[0], pair[1]["round"]))[1])


def _pick_recovered(trajectory: Trajectory, reference: Line | None, within: float) -> Pick:
    best: tuple[float, Line] | None = None
    reason = not_measured("no round after the first has been evaluated yet")
    for line in results(trajectory):
        now, before = reading(line, "validation"), reading(line, "validation_before")
        if not (is_measured(now) and is_measured(before)):
            reason = str(gap(now, before))
            continue
        if recovered(now, before, within):
            return Pick(line)
        if best is None or now > best[0]:
            best = (now, line)
    if best is None:
        return Pick(None, reason)
    last = trajectory[-1]
    span = "within" if last.get("done") else "yet after"
    unit = "round" if last["round"] == 1 else "rounds"
    note = f"not recovered {span} {last['round']} {unit} (best {best[0]:.1f} at round {best[1]['round']})"
    return Pick(None, note, best[0])


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "best-gap",
            "Each method at the evaluated round with the smallest average gap to Retrain. This is the paper's choice; "
            "it is an oracle, because in a deployment there is no Retrain to look at.",
            _pick_best_gap,
        ),
        Rule(
            "recovered",
            "Each method at the first evaluated round at which its validation accuracy is back within {within:g} "
            "points of the model's before unlearning. It needs no Retrain, so a deployment can use it. It speaks of "
            "utility only: a method that never forgot, such as FT, may meet it at once.",
            _pick_recovered,
        ),
        Rule("last", "Each method at its last evaluated round: no choice, every method's full cost.", _pick_last),
    )
}


def _row(
    request: str,
    method: str,
    by_seed: Mapping[int, Trajectory],
    reference: Mapping[int, Line],
    rule: Rule,
    within: float,
) -> Row:
    picks = {seed: _pick(method, lines, reference.get(seed), rule, within) for seed, lines in by_seed.items()}
    found = {seed: pick.line for seed, pick in picks.items() if pick.line is not None}
    # Where there is no result the method still spent what it spent: costs and rounds run to its last line.
    reported = {seed: found.get(seed, lines[-1]) for seed, lines in by_seed.items()}
    verdict = _verdict(picks)
    values = {name: {seed: verdict or reading(found[seed], name) for seed in picks} for name in METRICS}
    gaps = {name: _gap(values[name], {s: reading(line, name) for s, line in reference.items()}) for name in METRICS}
    return Row(
        request=request,
        method=method,
        rule=rule.name,
        seeds=tuple(by_seed),
        rounds=tuple(int(line["round"]) for line in reported.values()),
        metrics={name: mean_std(list(values[name].values())) for name in METRICS},
        gaps=gaps,
        average_gap=_average_gap(gaps, found, reference),
        seed_gap=_seed_gap(found, reference) if len(found) == len(by_seed) else None,
        costs={name: _cost(method, name, reported.values()) for name in COSTS},
        finished=method == "before" or all(bool(lines[-1].get("done")) for lines in by_seed.values()),
        verdict=verdict,
        note=_note(method, by_seed, picks, rule, within),
        own=_own(found.values()),
        rows=_counted(found.values()),
        errors=_errors(found.values()),
        undoes=_undoes(next(iter(by_seed.values()))),
    )


def _own(found: Collection[Line]) -> Spread | None:
    """Of lines that all say how the request's own rows are read."""
    return (
        mean_std([reading(line, "own") for line in found]) if found and all("own" in line for line in found) else None
    )


def _counted(found: Collection[Line]) -> dict[str, tuple[int, ...]]:
    """Of each metric its rows, seed by seed, where every line says how many those are."""
    names = set.intersection(*({*line.get("rows", {})} for line in found)) if found else set()
    return {name: tuple(line["rows"][name] for line in found) for name in sorted(names)}


def _errors(found: Collection[Line]) -> dict[str, float]:
    """Of each metric of the average gap its standard error within a seed, as the mean over them."""
    each = [_errors_of(line) for line in found]
    return {
        name: math.fsum(one[name] for one in each) / len(each)
        for name in GAP_METRICS
        if each and all(name in one for one in each)
    }


def _errors_of(line: Line) -> dict[str, float]:
    rows = line.get("rows", {})
    read = {name: reading(line, name) for name in GAP_METRICS}
    found = {name: accuracy_error(v, rows[name]) for name, v in read.items() if name in rows and is_measured(v)}
    if {"forget", "test"} <= {*rows} and is_measured(mia := read["mia"]):
        found["mia"] = attack_error(mia, min(rows["forget"], rows["test"]))
    return found


def _undoes(lines: Trajectory) -> tuple[str, ...]:
    found = lines[0].get("undoes")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _pick(method: str, lines: Trajectory, reference: Line | None, rule: Rule, within: float) -> Pick:
    if method == "before":
        return Pick(lines[0])
    if method == "retrain":
        best = lines[-1].get("keep_model") == "best-test"
        note = "the epoch with the highest test accuracy, as the paper takes it for Retrain"
        return Pick(reference_line(lines), note) if best else _pick_last(lines, reference, within)
    return rule.pick(lines, reference, within)


def _cost(method: str, name: str, reported: Iterable[Line]) -> Spread:
    return mean_std([0.0 if method == "before" else _spent(line, name) for line in reported])


def _spent(line: Line, name: str) -> Value:
    """A cost as a line has it.

    Where clients are simulated no message is packed, and zero would be a wrong number.
    """
    if name == "serialised_bytes" and line.get(name) == 0 and line.get("wire_bytes"):
        return not_measured("no messages in a simulation")
    return reading(line, name)


def _gap(values: Mapping[int, Value], reference: Mapping[int, Value]) -> Spread:
    """|mean of the method - mean of Retrain| over the seeds that have both; ± from the per-seed gaps."""
    shared = [seed for seed in values if seed in reference]
    if not shared:
        return Spread(NO_RETRAIN, None, len(values))
    mean = gap(mean_std([values[s] for s in shared]).mean, mean_std([reference[s] for s in shared]).mean)
    return Spread(mean, mean_std([gap(values[s], reference[s]) for s in shared]).std, len(shared))


def _average_gap(gaps: Mapping[str, Spread], found: Mapping[int, Line], reference: Mapping[int, Line]) -> Spread:
    """The mean of the four gaps; ± from the per-seed average gaps."""
    mean, own = average([gaps[name].mean for name in GAP_METRICS]), _seed_gap(found, reference)
    return Spread(mean, own.std if own is not None and is_measured(mean) else None, gaps[GAP_METRICS[0]].n)


def _seed_gap(found: Mapping[int, Line], reference: Mapping[int, Line]) -> Spread | None:
    """Mean ± std of the per-seed average gaps, of the seeds that have a Retrain."""
    per_seed = [average_gap(line, reference[seed]) for seed, line in found.items() if seed in reference]
    return mean_std(per_seed) if per_seed else None


def _verdict(picks: Mapping[int, Pick]) -> str:
    without = [pick for pick in picks.values() if pick.line is None]
    if not without:
        return ""
    closest = max(without, key=lambda pick: pick.best).note
    return closest if len(picks) == 1 else f"{closest} in {len(without)} of {len(picks)} seeds"


def _note(method: str, by_seed: Mapping[int, Trajectory], picks: Mapping[int, Pick], rule: Rule, within: float) -> str:
    if method == "retrain" and rule.name == "recovered":
        # Retrain stands at its last round here too; for a fair look at the costs, say when it would have met the rule.
        again = [_pick_recovered(lines, None, within).line for lines in by_seed.values()]
        met = [str(line["round"]) for line in again if line is not None]
        return f"last round; itself recovered at round {', '.join(met)}" if met else "last round; itself not recovered"
    return "; ".join(dict.fromkeys(pick.note for pick in picks.values() if pick.line is not None and pick.note))
