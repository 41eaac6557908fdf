"""Whether a model forgot, and whether it lost what it was to keep, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unfed.measures.forgotten import Forgetting, remedy
from unfed.measures.metrics import reading
from unfed.report.rules import Row
from unfed.report.tables import name_of
from unfed.values import Value, is_measured

POINTS = 5.0
"""A fall of more points than this is worth a sentence."""
USEFUL = 2 / 3
"""A model that kept a smaller share than this of its accuracy is hardly of use."""

TIMES, NATS = 2.0, 0.1
"""A test loss that is so many times what it was, and rose by so much, is worth a sentence."""


def forgetting(run: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, dict[int, Forgetting]]:
    """Whether each method's model forgot a request, by method and seed."""
    told: dict[str, dict[int, Forgetting]] = {}
    for job in run.get("jobs") or []:
        served = job["method"] == request.get("method")
        raw = ((request.get("gate") or {}).get("forgetting") if served else None) or job.get("forgetting")
        if job["request"] == request["id"] and (found := Forgetting.of(raw)) is not None:
            told.setdefault(str(job["method"]), {})[int(job["seed"])] = found
    retrain = told.pop("retrain", {})
    return {method: {seed: one.beside(retrain.get(seed)) for seed, one in own.items()} for method, own in told.items()}


def verdicts(run: Mapping[str, Any], request: Mapping[str, Any]) -> list[str]:
    """One sentence for each method, and for each seed where they differ.

    Retrain never saw the rows and has none. "Forgotten" is followed by what an attack brought back.
    """
    said = []
    for method, own in forgetting(run, request).items():
        but = _undone(run, request["id"], method)
        sentences = {
            seed: one.sentence(remedy(method)) + (but if one.kind == "forgotten" else "") for seed, one in own.items()
        }
        if len({*sentences.values()}) == 1:
            sentences = {0: next(iter(sentences.values()))}
        for seed, sentence in sentences.items():
            said.append(f"{name_of(method)}{f', seed {seed}' if len(sentences) > 1 else ''}: {sentence}")
    return said


def _undone(run: Mapping[str, Any], request: str, method: str) -> str:
    """What an attack brought back, as it follows "Forgotten"; empty where nothing came back."""
    if not run.get("undo"):
        return ""
    from unfed.report.undo_section import brought_back  # draws with matplotlib, which takes a second to import

    back = brought_back(run, request, method)
    return f" But {back[0].lower()}{back[1:]}" if back else ""


def fell(before: Mapping[str, Any], after: Mapping[str, Any], remedy: str) -> str:
    """The sentence "Test fell by 10.2 points, …", or nothing where it did not.

    Where Test stands, only a Retain that is ruined counts: a model that fits its own rows less is no worse.
    """
    tested = is_measured(reading(before, "test")) and is_measured(reading(after, "test"))
    for name in ("test", "retain"):
        first, last = reading(before, name), reading(after, name)
        if is_measured(first) and is_measured(last):
            lost, ruined = float(first) - float(last), float(last) < USEFUL * float(first)
            if lost <= POINTS or (name == "retain" and tested and not ruined):
                continue
            said = f"{name.capitalize()} fell by {lost:.1f} points, from {float(first):.1f} to {float(last):.1f}"
            return f"{said}; {'this model is hardly of use:' if ruined else 'to win some of them back,'} try {remedy}."
    return _surer(before, after)


def _surer(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The sentence on a test loss that multiplied while accuracy stayed, or nothing."""
    first, last = reading(before, "test_loss"), reading(after, "test_loss")
    if not (is_measured(first) and is_measured(last)) or last < TIMES * first or last < first + NATS:
        return ""
    return f"The test loss rose from {first:.2g} to {last:.2g}: the model is surer of its errors; try fewer rounds."


def falls(found: Sequence[Row]) -> list[str]:
    """One sentence for each method of a run whose model lost too much.

    What Retrain loses as well is the price of the request, and no method's fault.
    """
    told = []
    for row in found:
        before, retrain = (
            next((r for r in found if r.request == row.request and r.method == name), None)
            for name in ("before", "retrain")
        )
        if row.method in ("before", "retrain") or row.verdict or before is None:
            continue
        other = ", other layers or sealed" if row.method == "not" else " or other layers"
        sentence = fell(_values(before), _values(row), f"more unlearning.rounds, another unlearning.lr{other}")
        if sentence and (retrain is None or fell(_values(retrain), _values(row), "")):
            told.append(f"{name_of(row.method)}: {sentence}")
    return told


def _values(row: Row) -> dict[str, Value]:
    return {name: row.metrics[name].mean for name in ("test", "retain", "test_loss") if name in row.metrics}
