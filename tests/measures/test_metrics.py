"""Numbers add up, and what was not measured stays not measured."""

from __future__ import annotations

import math

import pytest

from unfed.measures.metrics import average, average_gap, gap, loss_gap, mean_std, reading, together
from unfed.values import is_measured, not_measured

MISSING = "not measured: only 3 forget samples"


def test_not_measured_is_said_once() -> None:
    assert not_measured("no test set") == "not measured: no test set"
    assert not_measured(not_measured("no test set")) == "not measured: no test set"


def test_only_finite_numbers_are_measured() -> None:
    assert is_measured(0) and is_measured(97.5)
    assert not any(is_measured(value) for value in (MISSING, None, True, math.nan, math.inf))


def test_the_loss_gap_is_the_same_whichever_loss_is_larger() -> None:
    assert loss_gap(0.25, 1.0) == loss_gap(1.0, 0.25) == 0.75


def test_a_reading_never_is_blank() -> None:
    line = {"retain": 97, "mia": MISSING, "test": None, "forget_loss": math.nan}
    assert reading(line, "retain") == 97.0
    assert reading(line, "mia") == MISSING
    assert reading(line, "test") == "not measured: test is not in this run"
    assert reading(line, "backdoor") == "not measured: backdoor is not in this run"
    assert reading(line, "forget_loss") == "not measured: forget_loss is nan"


def test_gap_is_the_distance() -> None:
    assert gap(97.0, 98.5) == 1.5 == gap(98.5, 97.0)


def test_gap_to_something_unmeasured_is_unmeasured_for_the_same_reason() -> None:
    assert gap(97.0, MISSING) == MISSING == gap(MISSING, 97.0) == gap(MISSING, MISSING)
    assert gap(MISSING, not_measured("no test set")) == "not measured: only 3 forget samples; no test set"
    assert gap(not_measured("not in this run"), 1.0) == "not measured: not in this run"


def test_average_gap_by_hand() -> None:
    """|92.48-91.66|, |85.56-83.05|, |82.36-82.32|, |50.90-50.23|: FT of the paper's first table, 1.01."""
    ft = {"retain": 92.48, "forget": 85.56, "test": 82.36, "mia": 50.90}
    retrain = {"retain": 91.66, "forget": 83.05, "test": 82.32, "mia": 50.23}
    assert average_gap(ft, retrain) == pytest.approx(1.01)
    assert average_gap({**ft, "mia": MISSING}, retrain) == MISSING


def test_average_of_nothing_is_not_zero() -> None:
    assert average([]) == "not measured: nothing to average"


def test_mean_and_sample_deviation() -> None:
    spread = mean_std([1.0, 2.0, 3.0])
    assert (spread.mean, spread.std, spread.n) == (2.0, 1.0, 3)


def test_one_seed_has_no_spread() -> None:
    assert mean_std([5.0]).std is None


def test_one_unmeasured_seed_is_not_hidden_in_a_mean() -> None:
    assert mean_std([1.0, MISSING, 3.0]).mean == f"{MISSING} (1 of 3 seeds)"
    assert mean_std([MISSING, MISSING]).mean == MISSING


def test_a_verdict_keeps_its_words() -> None:
    assert together(["not recovered within 3 rounds (best 1.0 at round 2)"] * 2).startswith("not recovered within 3")
