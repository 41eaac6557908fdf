"""How sure are we? A population of models, judged method by method, beside Retrain against Retrain.

    first half    what attacks are fitted on, and what distances are taken to
    second half   who is judged

Two questions get a verdict (`verdict`): does a method's model remember, and is it unfinished? The yardstick is Retrain
treated as a method: its second half against its first for the distances, four quarters for the attacks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unfed.errors import UnfedError, listed
from unfed.measures.population import attacks, intervals
from unfed.measures.population.attacks import ATTACKS, STANDING, Sides, fit_lira
from unfed.measures.population.distances import (
    Floats,
    ModelAnswers,
    Seen,
    agreement,
    challenge_score,
    forgetting_quality,
    klom,
    seen,
)
from unfed.measures.population.intervals import Interval, Resampling, permuted
from unfed.measures.population.store import BEFORE, RETRAIN
from unfed.values import not_measured

# --- does a method's model remember, and is it unfinished? Two answers, with what was measured ------------------------


MATTERS = 0.05
"""A difference of so much AUC would matter."""
POINTS_MATTER = 1.0
"""So many points of test accuracy would matter."""
TESTS = 4
LEVEL = 0.05 / TESTS
"""Of each test: they share 5 %."""
OFTEN = 0.8
"""In so many populations of the number of models that is advised a difference that matters is shown."""

Question = Literal["remembers", "unfinished"]
WORDS: dict[Question, dict[str, tuple[str, str]]] = {
    "remembers": {
        "more": ("remembers", "{} remembers: beside held-out rows it is surer of the forgotten rows than Retrain"),
        "less": ("remembers", "{} remembers: beside held-out rows it is less sure of the forgotten rows than Retrain"),
        "no": ("none", "No memory seen in {}"),
        "open": ("undecided", "Whether {} remembers is not decided"),
    },
    "unfinished": {
        "more": ("further", "{} is not unfinished, but trained further than Retrain"),
        "less": ("unfinished", "{} is unfinished"),
        "no": ("finished", "{} is as finished as Retrain"),
        "open": ("undecided", "Whether {} is unfinished is not decided"),
    },
}
"""Of each answer its kind, and how its sentence begins."""


@dataclass(frozen=True)
class Difference:
    """One difference to Retrain, 0 where there is none, and how rare so large a one is."""

    words: str
    """What was measured, with numbers."""
    difference: Interval
    p: float
    more: bool
    """Whether it means surer than Retrain."""
    matters: float = MATTERS
    unit: str = " AUC"

    @property
    def counts(self) -> bool:
        return self.p < LEVEL and not self.difference.low <= 0 <= self.difference.high

    @property
    def far(self) -> float:
        """The largest difference that the interval holds."""
        return max(self.difference.high, -self.difference.low)

    @property
    def bound(self) -> str:
        return f"{self.far:.3f}{self.unit}"


@dataclass(frozen=True)
class VerdictAnswer:
    """One answer, as a sentence."""

    kind: str
    sentence: str
    bound: float
    """The largest difference that is not ruled out, in AUC."""


def verdict(question: Question, title: str, models: int, tests: Sequence[Difference], aside: str = "") -> VerdictAnswer:
    """What can be said of a method, over `models` of each kind; `aside` ends the sentence.

        remembers    forgotten rows stand higher, or lower, among held-out rows than in Retrains that were stopped where
                     they read held-out rows as the method does
        unfinished   held-out rows are read less often, or less surely, than by Retrains at their last round; "further"
                     where it is more

    A difference counts if it is rare among models of one kind (a permutation test) and an interval at the test's level
    leaves out 0. The tests share 5 %. Without such a difference:

        none, finished   every difference that matters is ruled out (the far ends of the 95 % intervals)
        undecided        one that matters could have gone unseen; how many models it takes is said
    """
    bound = max(test.far for test in tests if test.matters == MATTERS)

    def answer(key: str, rest: str) -> VerdictAnswer:
        kind, words = WORDS[question][key]
        return VerdictAnswer(kind, words.format(title) + rest + aside, bound)

    if models < fewest(LEVEL):
        half = models // 2
        return answer(
            "open",
            f" at N = {models}: {half} judged models of each kind can be parted in only {_ways(half)} ways. It takes"
            f" {fewest(LEVEL)} models, better 32.",
        )
    found = [test for test in tests if test.counts]
    if found:
        said = found if question == "remembers" else tests  # accuracy belongs to the second answer in any case
        return answer("more" if found[0].more else "less", f" ({'; '.join(test.words for test in said)}).")
    measured = "; ".join(test.words for test in tests)
    if all(test.far <= test.matters for test in tests):
        bounds = listed((test.bound for test in tests), last="and")
        return answer("no", f" at N = {models} ({measured}): differences beyond {bounds} are ruled out.")
    widest = max(tests, key=lambda test: test.far / test.matters)
    return answer(
        "open",
        f" at N = {models} ({measured}). A difference of up to {widest.bound} could have gone unseen; about"
        f" {needed(models, tests)} models of each kind would show {widest.matters:g}{widest.unit} four times in five.",
    )


def _ways(half: int) -> int:
    """In how many ways so many models of each of two kinds can be parted."""
    return math.comb(2 * half, half)


def fewest(level: float) -> int:
    """The fewest models of each kind whose halves a test can tell apart at this level.

    A difference counts on both sides of 0.
    """
    half = 1
    while 2 / _ways(half) >= level:
        half += 1
    return 2 * half


def needed(models: int, tests: Sequence[Difference]) -> int:
    """How many models it takes, if an interval narrows with the root of their number.

    A test at its level shows a difference four times in five that is so many standard errors wide: 3.34 at 1.25 %.
    """
    normal = NormalDist()
    widest = max((test.difference.high - test.difference.low) / test.matters for test in tests)
    error = widest / (2 * normal.inv_cdf(0.975))
    wide = normal.inv_cdf(1 - LEVEL / 2) + normal.inv_cdf(OFTEN)
    return max(2 * models, 8 * math.ceil(models * (error * wide) ** 2 / 8))


# --- how sure are we? A population of models, judged kind by kind, beside Retrain against Retrain ---------------------


FEWEST = 6
"""Models of each kind: three to fit on and three to judge."""
MOST_EXPOSED = 20
BINS = 40


@dataclass(frozen=True)
class ForgottenRows:
    """What is known of the forgotten rows: how each is called at its holder, and what groups they form."""

    names: Sequence[str]
    slices: Mapping[str, NDArray[np.bool_]]

    @staticmethod
    def by_label(labels: NDArray[Any], names: Sequence[str] | None = None) -> ForgottenRows:
        """One slice per label; without names, rows go by their number."""
        slices = {f"class {label}": labels == label for label in np.unique(labels)}
        return ForgottenRows(names or [str(i) for i in range(len(labels))], slices)


def judge(
    population: ModelAnswers,
    methods: Mapping[str, str],
    rows: ForgottenRows | None = None,
    effort: Resampling | None = None,
    rounds: Sequence[int] = (),
) -> dict[str, Any]:
    """Measure a population.

    Args:
        population: What the models say about the rows.
        methods: The title of each kind of model that is judged.
        rows: Names and groups of the forgotten rows.
        effort: How many draws stand behind intervals and p-values.
        rounds: Earlier rounds at which Retrains were kept, as kinds `retrain@ROUND`.
    """
    judges = Judge(population, rows, effort, rounds)
    return judges.whole({kind: judges.of(kind, title) for kind, title in methods.items() if kind != RETRAIN})


class Judge:
    """Measures the methods of one population, each by itself; what they have in common is computed once."""

    def __init__(
        self,
        population: ModelAnswers,
        rows: ForgottenRows | None = None,
        effort: Resampling | None = None,
        rounds: Sequence[int] = (),
    ) -> None:
        labels = population.labels("forget")
        if len(labels) == 0:
            raise UnfedError(
                "The forget set is empty after selection, so there is nothing to judge; ask for rows that are there."
            )
        retrained = seen(population, RETRAIN)
        models = len(retrained)
        if models < FEWEST:
            raise UnfedError(
                f"A population of {models} is too small to be judged: it takes at least {FEWEST} models; run `unfed"
                f" population … --models {FEWEST}`, better 32."
            )
        self._population, self._retrained = population, retrained
        self._rows, self._effort = rows or ForgottenRows.by_label(labels), effort or Resampling()
        self._stopped: dict[int | None, Seen] = {number: seen(population, f"{RETRAIN}@{number}") for number in rounds}
        self._half = models // 2
        self._reference, self._judged = retrained[: self._half], retrained[self._half : 2 * self._half]

    @cached_property
    def _before(self) -> Seen:
        return seen(self._population, BEFORE)

    @cached_property
    def _alone(self) -> dict[str, Floats]:
        return attacks.alone(self._judged, self._effort.seed)

    def whole(self, methods: Mapping[str, Any]) -> dict[str, Any]:
        """What was found of the methods, with the yardstick and all that is said once."""
        half, retrained = self._half, self._retrained
        margins = {kind: seen(self._population, kind).phi[half : 2 * half] for kind in methods}
        return {
            "models": len(retrained),
            "half": half,
            "rows": {
                "forget": retrained.phi.shape[1],
                "test": retrained.test.shape[1],
                "retain": retrained.retain.shape[1],
            },
            "methods": dict(methods),
            "yardstick": self.yardstick(),
            "distributions": _distributions({RETRAIN: retrained.phi, BEFORE: self._before.phi, **margins}),
        }

    def of(self, kind: str, title: str) -> dict[str, Any]:
        """One method: attacks, distances, exposure, verdict."""
        half, unlearned = self._half, seen(self._population, kind)
        judged, before = unlearned[half : 2 * half], self._before[half : 2 * half]
        sides = Sides(unlearned[:half], self._reference, judged, self._judged, before, before)
        scores, answered = attacks.scores(sides), self.answered(kind, title)
        return {
            "title": title,
            "attacks": self._attacked(scores),
            **{name: answered[name] for name in ("stopped", "standing", "held_out")},
            "singles": attacks.singles(attacks.alone(judged, self._effort.seed), self._alone),
            "distances": self._distances(judged),
            "accuracy": _accuracies(judged),
            "exposure": self._exposure(*scores["u-lira"]),
            "verdict": answered["verdict"],
        }

    def answered(self, kind: str, title: str) -> dict[str, Any]:
        """The two questions of one method: does it remember, and is it unfinished?"""
        half, unlearned = self._half, seen(self._population, kind)
        judged = unlearned[half : 2 * half]
        round, stopped = self._stopped_at(unlearned[:half])
        test = _accuracies(stopped[half : 2 * half])["test"]
        standing, remembers = self._standing(stopped[:half], judged, stopped[half : 2 * half])
        held_out, differs = self._held_out(unlearned[:half], self._reference, judged, self._judged)
        unfinished = verdict("unfinished", title, len(unlearned), differs)
        aside = "" if round is None else f" Retrain was stopped at round {round} for this (test {test:.1f} %)."
        if not self._stopped and unfinished.kind in ("unfinished", "further"):
            aside = " This population kept Retrain's last round only, so unfinished recovery may play a part."
        answers = {"remembers": verdict("remembers", title, len(unlearned), remembers, aside), "unfinished": unfinished}
        return {
            "stopped": {"round": round, "test": test},
            "standing": standing,
            "held_out": held_out,
            "verdict": {question: asdict(answer) for question, answer in answers.items()},
        }

    def own_standing(self) -> dict[str, Any]:
        """Retrain against Retrain, by four quarters: where its forgotten rows stand, and its held-out rows."""
        groups = self._quarters(self._retrained)
        return {"standing": self._standing(*groups[1:])[0], "held_out": self._held_out(*groups)[0]}

    def _quarters(self, side: Seen) -> list[Seen]:
        quarter = len(self._retrained) // 4
        return [side[i * quarter : (i + 1) * quarter] for i in range(4)]

    def yardstick(self) -> dict[str, Any]:
        """Retrain as if it were a method."""
        quarter = len(self._retrained) // 4
        own = _distances(self._judged, self._reference)
        found: dict[str, Any] = {"distances": own, "accuracy": _accuracies(self._judged), "quarter": quarter}
        found["singles"] = {name: float(values.mean()) for name, values in self._alone.items()}
        if quarter < 2:
            needs = f"it takes four groups of two Retrains, 8 models, and there are {len(self._retrained)}"
            return found | {
                "attacks": dict.fromkeys(ATTACKS, not_measured(needs)),
                "standing": dict.fromkeys(STANDING, not_measured(needs)),
                "held_out": {"u-lira": not_measured(needs)},
                "exposure": [],
            }
        scores = attacks.scores(Sides(*self._quarters(self._retrained), *self._quarters(self._before)[2:]))
        return found | {
            "attacks": self._attacked(scores, groups=4),
            **self.own_standing(),
            "exposure": self._exposure(*scores["u-lira"])[:1],
        }

    def _attacked(self, scores: Mapping[str, tuple[Floats, Floats]], groups: int = 2) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(ATTACKS, attacks.ONE_ROW)
        return found | {
            name: attacks.attacked(pair, self._rows.slices, self._effort, groups) for name, pair in scores.items()
        }

    def _stopped_at(self, fit: Seen) -> tuple[int | None, Seen]:
        """Retrains stopped where their margins on held-out rows are nearest to the method's.

        None is the last round. It is chosen on the first half. Accuracy alone would choose by noise.
        """
        rounds: dict[int | None, Seen] = {None: self._retrained, **self._stopped}
        own = fit.phi_test.mean(axis=0)
        off = {at: float(np.abs(one.phi_test[: self._half].mean(axis=0) - own).mean()) for at, one in rounds.items()}
        best = min(rounds, key=lambda at: off[at])
        return best, rounds[best]

    def _standing(self, fit: Seen, unlearned: Seen, retrained: Seen) -> tuple[dict[str, Any], list[Difference]]:
        """How high forgotten rows stand among held-out rows, beside Retrains."""
        found, tests, effort = {}, [], self._effort
        for name, (ours, theirs) in attacks.standing(fit, unlearned, retrained).items():
            more, p = intervals.difference(ours, theirs, effort.seed, effort.draws, effort.permutations)
            auc, own = float(ours[0].mean()), float(theirs[0].mean())
            found[name] = more.to_json() | {"p": p, "auc": auc, "own": own}
            words = f"{STANDING[name]} AUC {auc:.3f}, Retrain {own:.3f}: {more.value:+.3f}"
            words += f", 95 % {more.low:+.3f} to {more.high:+.3f}"
            tests.append(Difference(words, more, p, more=more.value > 0))
        return found, tests

    def _held_out(
        self, fit: Seen, reference: Seen, judged: Seen, retrained: Seen
    ) -> tuple[dict[str, Any], list[Difference]]:
        """How a method's models differ from Retrains on rows that no model saw."""
        effort = self._effort
        points, p = intervals.difference(
            [100 * judged.right], [100 * retrained.right], effort.seed, effort.draws, effort.permutations
        )
        gaussians = fit_lira(fit.phi_test, reference.phi_test)
        pair = gaussians.score(judged.phi_test), gaussians.score(retrained.phi_test)
        (area,) = intervals.over_models_and_rows(*pair, [intervals.area], effort.seed, effort.draws)
        rare = intervals.auc_p(*pair, effort.seed, effort.permutations)
        surer = bool(judged.phi_test.mean() > retrained.phi_test.mean())
        right, own = (100 * float(side.right.mean()) for side in (judged, retrained))
        words = f"test {right:.1f} %, Retrain {own:.1f} %; 95 % {points.low:+.1f} to {points.high:+.1f} points"
        surely = f"U-LiRA on held-out rows AUC {area.value:.3f}, 95 % {area.low:.3f} to {area.high:.3f}"
        surely += f", {'surer' if surer else 'less sure'} than Retrain"
        from_half = Interval(area.value - 0.5, area.low - 0.5, area.high - 0.5)
        tests = [
            Difference(words, points, p, points.value > 0, POINTS_MATTER, " points"),
            Difference(surely, from_half, rare, surer),
        ]
        return {"test": points.to_json() | {"p": p}, "u-lira": area.to_json() | {"p": rare}}, tests

    def _distances(self, judged: Seen) -> dict[str, float]:
        values = _distances(judged, self._reference)
        draws, seed = self._effort.permutations, self._effort.seed
        p = {
            "klom": permuted(judged.phi, self._reference.phi, lambda u, r: float(klom(u, r).mean()), seed, draws),
            "agreement": permuted(judged.read, self._reference.read, lambda u, r: -agreement(u, r), seed, draws),
        }
        return values | {f"{name}_p": value for name, value in p.items()}

    def _exposure(self, unlearned: Floats, retrained: Floats) -> list[dict[str, Any]]:
        """The rows that give themselves away most, by name."""
        found = intervals.exposure(unlearned, retrained)
        first = np.argsort(-found, kind="stable")[:MOST_EXPOSED]
        return [{"row": self._rows.names[i], "auc": float(found[i])} for i in first]


def _distances(judged: Seen, reference: Seen) -> dict[str, float]:
    """How far models stand from Retrains; as many of both."""
    f = forgetting_quality(judged.phi, reference.phi)

    def means(group: str) -> tuple[float, float]:
        return float(judged.accuracies[group].mean()), float(reference.accuracies[group].mean())

    return {
        "klom": float(klom(judged.phi, reference.phi).mean()),
        "neurips": challenge_score(f, means("retain"), means("test")),
        "agreement": agreement(judged.read, reference.read),
    }


def _accuracies(side: Seen) -> dict[str, float]:
    return {group: 100.0 * float(right.mean()) for group, right in side.accuracies.items()}


def _distributions(margins: Mapping[str, Floats]) -> dict[str, Any]:
    """How often each margin occurs on the forgotten rows; what lies beyond the edges is in the last bins."""
    low = min(float(np.quantile(phi, 0.002)) for phi in margins.values())
    high = max(float(np.quantile(phi, 0.998)) for phi in margins.values())
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    shares = {
        kind: np.histogram(np.clip(phi, edges[0], edges[-1]), edges)[0] / phi.size for kind, phi in margins.items()
    }
    return {
        "edges": [round(float(edge), 4) for edge in edges],
        "shares": {kind: [round(float(share), 6) for share in found] for kind, found in shares.items()},
    }
