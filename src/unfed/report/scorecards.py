"""Scorecards of `unfed bench`: one result per method, as rows of a table and as a ranking page.

    OUT/METHOD.json      bench, suite, SHA-256 of the protocol, version, hardware, seeds; one card per scenario

A card has few columns and no single number that ranks methods: utility, remembers?, unfinished?, lasts?, cost, needs.
The ranking page shows all methods of one protocol and is a function of their results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unfed import records, storage
from unfed.errors import UnfedError
from unfed.folder.study_results import JudgedInterval
from unfed.records import Count, JsonRecord, Number, Plain

if TYPE_CHECKING:
    from unfed.report.drawing import Picture

AGAIN = "delete it and run `unfed bench` again"
ANSWERS = {
    "remembers": "yes",
    "none": "no",
    "unfinished": "yes",
    "finished": "no",
    "further": "no: trained further",
    "undecided": "not decided",
    "reference": "reference",
}
"""What the kinds of a verdict are in one word or two."""


class BenchTrial(JsonRecord):
    """One peak rate on the extra model: when it reached the goal, and its validation accuracy."""

    peak: Number
    round: Count | None
    validation: float | str


class BenchAnswer(JsonRecord):
    """An answer in one word, its sentence, and the differences to Retrain behind it."""

    kind: str
    sentence: str
    measured: Mapping[str, JudgedInterval]


class BenchProbes(JsonRecord):
    """What the worst of the probes brings back, in points above Retrain, and each model's numbers."""

    worst: str
    difference: JudgedInterval
    probes: Mapping[str, tuple[float, ...]]


class BenchCost(JsonRecord):
    """What one model costs until it is judged: means over models."""

    rounds: Number
    comm_bytes: Number
    flops: float | str
    seconds: Number


class Scorecard(JsonRecord):
    """One method in one scenario."""

    edition: str
    peak: Number
    trials: tuple[BenchTrial, ...]
    reached: Count
    """How many models came to the goal."""
    before: Mapping[str, float | str]
    accuracy: Mapping[str, float | str]
    """Means over models, in percent: validation, test, forget, backdoor."""
    each: Mapping[str, tuple[float | str, ...]]
    """The same of each model, and the round at which it is judged."""
    remembers: BenchAnswer
    unfinished: BenchAnswer
    lasts: BenchProbes
    cost: BenchCost


class NotServed(JsonRecord):
    """Why a method has no card in a scenario."""

    edition: str
    reason: str


class BenchResult(JsonRecord):
    """All of one method under one protocol."""

    bench: str
    suite: str
    protocol: str
    """The protocol's SHA-256."""
    models: Count
    wanted: Count
    """The models that the protocol asks for."""
    method: str
    title: str
    cite: str
    needs: tuple[str, ...]
    seeds: tuple[Count, ...]
    versions: Plain
    hardware: str
    command: str
    commit: str
    date: str
    scenarios: Mapping[str, Scorecard | NotServed]


def read_result(path: Path) -> BenchResult:
    """One result file."""
    return records.read(BenchResult, storage.read_json(path, "result of a benchmark"), f"The result {path}", AGAIN)


def read_results(places: Sequence[Path]) -> list[BenchResult]:
    """The results in some files and folders, all of one protocol and complete."""
    files = [file for place in places for file in (sorted(place.glob("*.json")) if place.is_dir() else [place])]
    if not files:
        raise UnfedError(f"There is no result in {', '.join(map(str, places))}; make one with `unfed bench METHOD`.")
    found = [read_result(file) for file in files]
    for file, result in zip(files, found, strict=True):
        if result.models != result.wanted:
            raise UnfedError(
                f"{file} has {result.models} models of each kind where {result.bench} {result.suite} takes"
                f" {result.wanted}; run it again without --models."
            )
        if result.protocol != found[0].protocol:
            raise UnfedError(
                f"{file} is of another protocol ({result.bench} {result.suite}, {result.protocol[:12]}) than"
                f" {files[0]} ({found[0].bench} {found[0].suite}, {found[0].protocol[:12]}); make one page of each."
            )
    return sorted(found, key=lambda result: (result.method != "retrain", result.title.lower()))


# --- rows of a table --------------------------------------------------------------------------------------------------

COLUMNS = (
    "test %", "remembers?", "U-LiRA, RMIA", "unfinished?", "lasts?", "rounds", "MB", "TFLOP", "seconds", "needs",
)  # fmt: skip


def differs(one: JudgedInterval, digits: int = 3) -> str:
    """A difference with its 95 % interval."""
    return f"{one.value:+.{digits}f} ({one.low:+.{digits}f} to {one.high:+.{digits}f})"


def cells(result: BenchResult, card: Scorecard) -> list[str]:
    """One row of the table."""
    cost, test = card.cost, card.accuracy["test"]
    rounds = f"{cost.rounds:.1f}"
    if card.reached < result.models:
        rounds += f" ({card.reached} of {result.models} reached it)"
    return [
        f"{test:.1f}" if isinstance(test, float) else str(test),
        ANSWERS.get(card.remembers.kind, card.remembers.kind),
        "; ".join(differs(one) for one in card.remembers.measured.values()),
        ANSWERS.get(card.unfinished.kind, card.unfinished.kind),
        f"{differs(card.lasts.difference, 1)} {card.lasts.worst}",
        rounds,
        f"{cost.comm_bytes / 1e6:.1f}",
        f"{cost.flops / 1e12:.3f}" if isinstance(cost.flops, float) else str(cost.flops),
        f"{cost.seconds:.2f}",
        ", ".join(need for need in result.needs if need in ("history", "forget", "public")) or "nothing more",
    ]


def served(results: Sequence[BenchResult], scenario: str) -> list[tuple[BenchResult, Scorecard]]:
    """The methods that have a card in a scenario."""
    found = [(one, one.scenarios.get(scenario)) for one in results]
    return [(one, card) for one, card in found if isinstance(card, Scorecard)]


def named(results: Sequence[BenchResult]) -> str:
    """What a paper cites: "unfed-bench 1.0 small, protocol 1f2e…"."""
    first = results[0]
    return f"{first.bench} {first.suite}, protocol SHA-256 {first.protocol}"


def scenarios(results: Sequence[BenchResult]) -> list[str]:
    """The scenarios that any of the results has, the plainest first."""
    found = {name for one in results for name in one.scenarios}
    return sorted(found, key=lambda name: ("iid" not in name, "client" not in name, name))


# --- the page ---------------------------------------------------------------------------------------------------------


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Those that no other beats in one of two numbers without losing in the other, smaller being better."""

    def beaten(own: tuple[float, float], other: tuple[float, float]) -> bool:
        return other != own and other[0] <= own[0] and other[1] <= own[1]

    kept = [name for name, own in points.items() if not any(beaten(own, other) for other in points.values())]
    return sorted(kept, key=lambda name: points[name])


def page(results: Sequence[BenchResult]) -> str:
    """The ranking: one HTML file, a function of the results."""
    from unfed.report import html  # it draws, and a table on a terminal needs no drawing

    first = results[0]
    parts = [
        {
            "name": name,
            "rows": [(one, cells(one, card)) for one, card in served(results, name)],
            "missing": missing(results, name),
            "picture": _picture(results, name, f"pareto-{place}"),
        }
        for place, name in enumerate(scenarios(results))
    ]
    title = f"{first.bench}: {first.suite}"
    return html.page("bench.html.j2", title=title, first=first, parts=parts, columns=COLUMNS, results=results)


def missing(results: Sequence[BenchResult], scenario: str) -> dict[str, str]:
    """Why a scenario has no card of some methods, by title."""
    found = {one.title: one.scenarios.get(scenario) for one in results}
    return {title: card.reason for title, card in found.items() if isinstance(card, NotServed)}


def _picture(results: Sequence[BenchResult], scenario: str, name: str) -> Picture | None:
    """Rounds against what the worst attack brings back.

    A method that did not recover cannot be on the front.
    """
    from unfed.report import figures

    found = served(results, scenario)
    points = {one.title: (card.cost.rounds, card.lasts.difference) for one, card in found}
    behind = [one.title for one, card in found if 2 * card.reached < one.models]
    best = front({title: (x, y.value) for title, (x, y) in points.items() if title not in behind})
    return figures.pareto(points, best, behind, name) if points else None
