"""A value is a number, or a sentence that says why there is none.

    gap(metric) = |method - Retrain|        Avg. Gap = (gap(Retain) + gap(Forget) + gap(Test) + gap(MIA)) / 4

Over several seeds the gap is taken between the seed means, as in the paper, and the spread of the per-seed gaps stands
beside it. A value that could not be measured is the string "not measured: reason". It goes through every sum as
it is: a gap to something unmeasured is unmeasured for the same reason, never 0 and never blank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from unfed.measures.columns import GAP_METRICS
from unfed.values import PREFIX, Value, is_measured, not_measured


@dataclass(frozen=True)
class Spread:
    """A mean over seeds; `std` is the sample standard deviation (n - 1), None for a single seed."""

    mean: Value
    std: float | None = None
    n: int = 1


def reading(line: Mapping[str, object], name: str) -> Value:
    """The value a line holds under a name, whatever state it is in."""
    value = line.get(name)
    if is_measured(value):
        return float(value)
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int | float):
        return not_measured(f"{name} is {value}")
    return not_measured(f"{name} is not in this run")


def loss_gap(retain_loss: float, forget_loss: float) -> float:
    """δ(θ) = |L_{D_r}(θ) − L_{D_u}(θ)|, the paper's measure of unlearning (Definition 1, Eq. 1)."""
    return abs(retain_loss - forget_loss)


def gap(a: Value, b: Value) -> Value:
    """Δ: |a - b|, or the reason why one of them is missing."""
    if is_measured(a) and is_measured(b):
        return abs(a - b)
    return together(value for value in (a, b) if not is_measured(value))


def average(values: Sequence[Value]) -> Value:
    """The mean if every value was measured, otherwise the reasons of those that were not."""
    numbers = [value for value in values if is_measured(value)]
    if not values:
        return not_measured("nothing to average")
    if len(numbers) < len(values):
        return together(value for value in values if not is_measured(value))
    return math.fsum(numbers) / len(numbers)


def recovered(now: float, before: float, within: float) -> bool:
    """Whether a validation accuracy is back within some points of what it was before.

    The small slack keeps "within 0.5" true for 96.5 against 97.0, whatever their binary fractions.
    """
    return now >= before - within - 1e-9


def average_gap(line: Mapping[str, object], retrain_line: Mapping[str, object]) -> Value:
    """Avg. Gap of one evaluated round to Retrain's."""
    return average([gap(reading(line, name), reading(retrain_line, name)) for name in GAP_METRICS])


def mean_std(values: Sequence[Value]) -> Spread:
    """Mean ± spread over seeds; one unmeasured seed makes the whole unmeasured, or a mean would hide it.

    The spread divides by n − 1. The paper's divides by n: for its three seeds multiply it by 1.22 to compare.
    """
    missing = [value for value in values if not is_measured(value)]
    if missing and len(missing) < len(values):
        return Spread(f"{together(missing)} ({len(missing)} of {len(values)} seeds)", None, len(values))
    mean = average(values)
    numbers = [value for value in values if is_measured(value)]
    if missing or not is_measured(mean) or len(numbers) < 2:
        return Spread(mean, None, len(values))
    variance = math.fsum((value - mean) ** 2 for value in numbers) / (len(numbers) - 1)
    return Spread(mean, math.sqrt(variance), len(values))


def together(missing: Iterable[Value]) -> str:
    """One text out of several reasons, each said once."""
    texts = list(dict.fromkeys(str(value) for value in missing))
    if len(texts) == 1:
        # A rule's verdict ("not recovered within 20 rounds …") is already a whole sentence, like "not measured: …".
        return texts[0] if texts[0].startswith("not ") else not_measured(texts[0])
    return not_measured("; ".join(text.removeprefix(PREFIX) for text in texts))
