"""The gate: the checks that a model must pass before it comes into force.

    utility     validation accuracy before − after, in points              at most gate.max_drop
    forgotten   how well the leaver's rows are still known                 at most chance, or gate.margin
    backdoor    how often a backdoor works that the leaver planted         at most chance
    camouflage  how many more images a trigger turns to one class          at most gate.max_rise

Utility always decides. The others decide where they were asked for (`--until forgotten`, or `gate.require`); else they
are measured and shown. Camouflage looks for a backdoor that a departure arms, with triggers of the gate's own. What
could not be measured stops no model, unless it was asked for. A model that does not pass stays out of force, its
request stays owed, and an operator may accept it all the same (`--accept`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unfed import rng
from unfed.config.config import Config
from unfed.config.tables import GateConfig
from unfed.data import Request
from unfed.errors import Refused, UnfedError, option
from unfed.measures.attacks import camouflage
from unfed.measures.evaluator import Again, Scorer
from unfed.measures.forgotten import (
    Evidence,
    Forgetting,
    Judgement,
    Verdict,
    backdoor_forgotten,
    class_forgotten,
    did_it_forget,
    opposite_signs,
    rows_forgotten,
)
from unfed.model.params import Params
from unfed.requests.entry import Check, Entry
from unfed.requests.options import Until
from unfed.values import Value, is_measured, not_measured


class NotForgotten(Refused):
    """The rounds of a request did not make its model forget."""


class NotPassed(Refused):
    """A gate said no to the model that came out."""

    def __init__(self, sentence: str, decision: Decision) -> None:
        super().__init__(sentence)
        self.decision = decision


def check_of(name: str, found: Judgement, decides: bool) -> Check:
    """A judgement as a check of the gate; `decides` is whether it can stop the model."""
    return Check(name=name, decides=decides, **vars(found))


@dataclass(frozen=True)
class Decision:
    """What the gate found, and whether the model may come into force."""

    checks: tuple[Check, ...]
    accepted: Mapping[str, Any] | None = None
    """Who put it in force though it did not pass, and when: by, at."""
    again: Mapping[str, Again] = field(default_factory=dict)
    """What the model that is to follow shows of every request before this one; it is shown, and decides nothing."""
    forgetting: Forgetting | None = None
    """Whether the model forgot; it is shown, and decides nothing."""

    @property
    def stopped_by(self) -> tuple[Check, ...]:
        """The checks that say no."""
        return tuple(check for check in self.checks if check.decides and check.verdict == "failed")

    @property
    def passed(self) -> bool:
        return not self.stopped_by

    def to_json(self) -> dict[str, Any]:
        return {
            "checks": [check.to_json() for check in self.checks],
            "passed": self.passed,
            "accepted": None if self.passed or self.accepted is None else dict(self.accepted),
            "forgetting": None if self.forgetting is None else vars(self.forgetting),
        }


def utility(before: Value, after: Value, max_drop: float) -> Judgement:
    """The new model may read validation rows worse than the one in force, but only so much."""
    what = "the drop of validation accuracy in points"
    if not is_measured(before) or not is_measured(after):
        why = str(after if isinstance(after, str) else before)
        return Judgement(what, not_measured(why), max_drop, "not measured")
    drop = before - after
    # The small slack keeps "at most 5" true for 90 against 95, whatever their binary fractions.
    return Judgement(what, drop, max_drop, "passed" if drop <= max_drop + 1e-9 else "failed")


def forgotten(request: Request, before: Evidence, after: Evidence, classes: int, margin: float) -> dict[str, Judgement]:
    """The judgements that speak of forgetting, by the name of their check."""
    own = class_forgotten(before, after, classes) if request.classes else rows_forgotten(before, after, margin)
    found = {"forgotten": own}
    if not isinstance(after.stamped, str):
        found["backdoor"] = backdoor_forgotten(before, after, classes)
    return found


def is_forgotten(judgements: Mapping[str, Judgement]) -> Verdict:
    """All of them in one word: passed where something was measured and nothing failed."""
    verdicts = {found.verdict for found in judgements.values()}
    return "failed" if "failed" in verdicts else "passed" if "passed" in verdicts else "not measured"


def told(judgements: Mapping[str, Judgement]) -> str:
    """Judgements in words."""
    return "; ".join(check_of(name, found, True).sentence for name, found in judgements.items())


@dataclass(frozen=True)
class Gate:
    """What is asked of a model that takes one request out, and by which bounds."""

    request: Request
    classes: int
    key: int
    """Draws the half of the rows on which a rule stops, where it stops at `forgotten`."""
    rules: GateConfig
    stops_at_forgotten: bool = False

    def watched(self, before: Evidence, after: Evidence) -> dict[str, Judgement]:
        """What the rule that stops may look at: the first half of the rows."""
        return self._forgotten(before.part(self.key, 0), after.part(self.key, 0))

    def judged(self, before: Evidence, after: Evidence) -> dict[str, Judgement]:
        """What the decision looks at: the rows on which nothing was stopped."""
        if self.stops_at_forgotten:
            return self._forgotten(before.part(self.key, 1), after.part(self.key, 1))
        return self._forgotten(before, after)

    def _forgotten(self, before: Evidence, after: Evidence) -> dict[str, Judgement]:
        return forgotten(self.request, before, after, self.classes, self.rules.margin)

    def measurable(self, before: Evidence) -> None:
        """Refuse `--until forgotten` where nothing could tell, so that no one waits for it."""
        for found in (self.watched(before, before), self.judged(before, before)):
            if is_forgotten(found) != "failed":
                instead = f"{option('until', 'recovered')} or {option('until', 'N')}"
                raise UnfedError(f"{option('until', 'forgotten')} cannot be judged ({told(found)}); use {instead}.")

    def decide(
        self,
        evaluator: Scorer,
        before: Params,
        after: Params,
        negated: Collection[str] = (),
        beside: Collection[str] = (),
    ) -> Decision:
        """Look at the model in force and at the one that is to follow it.

        `negated`: the tensors that the method negated; `beside`: ids of the requests that share the model.
        """
        drop = utility(evaluator.validation(before), evaluator.validation(after), self.rules.max_drop)
        checks = [check_of("utility", drop, True)]
        asked = self.stops_at_forgotten
        seen = evaluator.evidence(before), evaluator.evidence(after)
        for name, found in self.judged(*seen).items():
            checks.append(check_of(name, found, asked or name in self.rules.require))
        armed = camouflage(evaluator.reactions(before), evaluator.reactions(after), self.rules.max_rise)
        checks.append(check_of("camouflage", armed, "camouflage" in self.rules.require))
        opposite = opposite_signs(before, after, negated)
        forgetting = did_it_forget(*seen, self.classes, bool(self.request.classes), opposite)
        return Decision(tuple(checks), again=evaluator.again(after, beside), forgetting=forgetting)


def gate_of(seed: int, classes: int, config: Config, entry: Entry) -> Gate:
    """The gate for a request's model, by the config that holds for it; `seed` is evaluation's."""
    key = rng.key(seed, "forgotten", entry.request.id)
    return Gate(entry.request, classes, key, config.gate, "forgotten" in Until.of(entry.until).goals)


def passed(decision: Decision, request: str, accepted: Mapping[str, Any] | None = None) -> Decision:
    """The decision, if it lets the model pass or the operator accepts it; else the refusal, NotPassed."""
    if decision.passed:
        return decision
    if accepted is not None:
        return replace(decision, accepted=accepted)
    why = "; ".join(check.sentence for check in decision.stopped_by)
    raise NotPassed(
        f"The model of request {request!r} does not pass the gate ({why}), so the old one stays in force.", decision
    )
