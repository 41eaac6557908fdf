"""Every number that a run measures or counts: its name, how it is compared, how sure it is.

    gap(metric) = |method - Retrain|        Avg. Gap = (gap(Retain) + gap(Forget) + gap(Test) + gap(MIA)) / 4

A value is a number, or a sentence that says why there is none. Over several seeds the gap is taken between the seed
means, as in the paper, and the spread of the per-seed gaps stands beside it. A value that could not be measured is the
string "not measured: reason". It goes through every sum as it is: a gap to something unmeasured is unmeasured for the
same reason, never 0 and never blank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from unfed.values import PREFIX, Value, is_measured, not_measured

Unit = Literal["%", "nats", "points", "bytes", "FLOP", "s", "rounds"]
Place = Literal["table", "page", "docs"]
HELD_OUT = 0.1
"""The share of its rows that the attack is scored on."""
FOLDS = 10
"""How often it is."""
FEWEST_APART = 6
"""On how many rows two models must differ before that is news: 2 · ½⁶ = 3 %.

Two models are asked about the same rows. Even if every row that one reads otherwise than the other speaks for the same
one, a coin that falls so five times in a row is no news, six times is.
"""


@dataclass(frozen=True)
class MetricColumn:
    """One number: what it is called, in which unit, and which direction is good.

    The trajectory, the reporting rules, tables, pages, the command line and the docs read the one list of them.
    """

    name: str
    title: str
    unit: Unit
    good: Literal["high", "low", "as Retrain", "-"]
    text: str
    """What it means, in words short enough for a tooltip."""
    shown: tuple[Place, ...] = ("docs",)
    decimals: int = 2
    """How many of them a table prints."""


_EVERYWHERE: tuple[Place, ...] = ("table", "page", "docs")

METRICS = (
    MetricColumn(
        "retain",
        "Retain",
        "%",
        "as Retrain",
        "Accuracy in percent on the training data that stays. Unlearning should leave it as it was.",
        _EVERYWHERE,
    ),
    MetricColumn(
        "forget",
        "Forget",
        "%",
        "as Retrain",
        "Accuracy in percent on the data to be forgotten. The goal is Retrain's value, not zero: a model that never saw"
        " the data is still right on some of it. For poisoned data, right means the poisoned label.",
        _EVERYWHERE,
    ),
    MetricColumn(
        "test",
        "Test",
        "%",
        "as Retrain",
        "Accuracy in percent on held-out test data, without forgotten classes.",
        _EVERYWHERE,
    ),
    MetricColumn(
        "mia",
        "MIA",
        "%",
        "as Retrain",
        "Membership inference: how often an attacker who sees only losses tells forgotten data from test data, in"
        " percent. 50 is a coin toss. The goal is Retrain's value.",
        _EVERYWHERE,
        decimals=1,  # a mean over few splits, which the paper prints with one
    ),
    MetricColumn("validation", "Validation", "%", "high", "Accuracy in percent on the rows that clients hold out."),
    MetricColumn(
        "backdoor",
        "Backdoor",
        "%",
        "low",
        "How often the planted trigger makes the model answer the planted class, on test images, in percent.",
        _EVERYWHERE,
    ),
    MetricColumn("retain_loss", "Retain loss", "nats", "low", "Mean cross-entropy on the training data that stays."),
    MetricColumn("forget_loss", "Forget loss", "nats", "as Retrain", "Mean cross-entropy on the forgotten data."),
    MetricColumn("test_loss", "Test loss", "nats", "low", "Mean cross-entropy on the test data."),
    MetricColumn("loss_gap", "Loss gap", "nats", "as Retrain", "The distance between retain and forget loss (Eq. 1)."),
)
"""What is measured of a model, in the order in which rules and tables go through it."""

COSTS = (
    MetricColumn(
        "comm_bytes",
        "Bytes",
        "bytes",
        "low",
        "Model parameters sent to clients and back since unlearning began, four bytes each; one download and one upload"
        " per participant and round.",
        _EVERYWHERE,
    ),
    MetricColumn("wire_bytes", "On the wire", "bytes", "low", "Bytes of every tensor that crossed, in its own type."),
    MetricColumn(
        "serialised_bytes", "Messages", "bytes", "low", "Bytes of whole messages, where messages are real (Flower)."
    ),
    MetricColumn(
        "flops",
        "FLOPs",
        "FLOP",
        "low",
        "Floating-point operations of training since unlearning began: three forward passes for every sample trained"
        " on, without evaluation.",
        _EVERYWHERE,
    ),
    MetricColumn(
        "stored_server_bytes", "Stored at the server", "bytes", "low", "History kept since training, at the server."
    ),
    MetricColumn(
        "stored_original_bytes",
        "Stored by the original",
        "bytes",
        "low",
        "What the method as first published would have kept for the same rounds.",
    ),
    MetricColumn("seconds", "Seconds", "s", "low", "Seconds of work on this machine, evaluation not counted."),
)
"""What is counted from the start of a job on; each is cumulative."""

COLUMNS = {column.name: column for column in (*METRICS, *COSTS)}
GAP_METRICS = ("retain", "forget", "test", "mia")
"""The four metrics of the paper's Avg. Gap, in the order of its tables."""


def written(name: str, value: float) -> str:
    """A value with its unit, for a line of text."""
    column = COLUMNS.get(name)
    return f"{value:.2f} %" if column is not None and column.unit == "%" else f"{value:.4f}"


def shown_in(place: Place) -> tuple[str, ...]:
    """The names of the columns that are shown in a place."""
    return tuple(column.name for column in COLUMNS.values() if place in column.shown)


# --- values and gaps --------------------------------------------------------------------------------------------------


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


# --- how far a number of few rows can be trusted ----------------------------------------------------------------------


def accuracy_error(percent: float, rows: int) -> float:
    """The standard error of an accuracy over `rows`: √(p (1 − p) / n)."""
    return _error(percent, rows, 1.0)


def attack_error(percent: float, rows: int) -> float:
    """The standard error of an MIA with `rows` on each side.

    The attack holds a share h of its rows out, k times; a row is held out c times, c binomial with mean k·h, and called
    right or wrong much the same each time. So 2n rows count as 2n · (k h)² / E c² independent ones, and E c² / (k h)² =
    1 + (1 − h) / (k h) = 1.9: √(a (1 − a) · 1.9 / 2n), 48.7 / √n at a = ½, more than a coin's 35.4 / √n. Attacks on
    drawn losses, alike and not, scatter by 0.7 to 1.3 times that; a test draws some.
    """
    return _error(percent, 2 * rows, 1 + (1 - HELD_OUT) / (FOLDS * HELD_OUT))


def _error(percent: float, rows: int, counted: float) -> float:
    """Two rows right and two wrong are added (Agresti–Coull): three of three are not certain."""
    share = (percent / 100 * rows + 2) / (rows + 4)
    return 100 * math.sqrt(counted * share * (1 - share) / (rows + 4))
