"""Attacks and distances over a population, each with a case computed by hand."""

from __future__ import annotations

import importlib
import importlib.util
import math
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from unfed.errors import UnfedError
from unfed.folder.study_results import Judged
from unfed.measures.population import ForgottenRows, Resampling, attacks, distances, intervals, judge
from unfed.measures.population.distances import Floats, agreement
from unfed.measures.population.intervals import (
    Interval,
    auc_p,
    difference,
    over_models,
    over_models_and_rows,
    permuted,
)
from unfed.measures.population.judge import LEVEL, TESTS, Difference, verdict
from unfed.report.sections import COLUMNS, grid
from unfed.values import not_measured

LOG = math.log


def drawn(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- signals ----------------------------------------------------------------------------------------------------------


def test_the_margin_is_the_log_odds_of_the_own_label() -> None:
    logits = np.log(np.array([[[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]]))
    labels = np.array([0, 1])
    assert distances.margin(logits, labels) == pytest.approx(np.array([[LOG(0.7 / 0.3), LOG(0.3 / 0.7)]]))
    assert distances.probability(logits, labels) == pytest.approx(np.array([[0.7, 0.3]]))
    assert distances.entropy(logits)[0, 0] == pytest.approx(-(0.7 * LOG(0.7) + 0.2 * LOG(0.2) + 0.1 * LOG(0.1)))
    assert distances.accuracy(logits, labels) == pytest.approx([0.5])


def test_a_very_sure_model_has_a_finite_margin() -> None:
    assert distances.margin(np.array([[[1000.0, 0.0]]]), np.array([0])) == pytest.approx(np.array([[1000.0]]))


@pytest.mark.parametrize(
    ("logits", "labels", "sentence"),
    [
        (np.zeros((2, 0, 3)), np.zeros(0, int), "The forget set is empty"),
        (np.zeros((2, 1, 1)), np.zeros(1, int), "only one class"),
        (np.full((2, 1, 2), np.nan), np.zeros(1, int), "diverged"),
        (np.zeros((2, 3, 2)), np.zeros(1, int), "a label per row"),
    ],
)
def test_what_cannot_be_attacked_is_one_sentence(logits: Floats, labels: NDArray[np.int64], sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        distances.margin(logits, labels)


# --- attacks ----------------------------------------------------------------------------------------------------------


def test_u_lira_by_hand() -> None:
    """Unlearned φ 1, 3 (mean 2, spread √2), Retrain −1, 1 (mean 0, spread √2): score(φ) = (φ² − (φ − 2)²) / 4."""
    fitted = attacks.fit_lira(np.array([[1.0], [3.0]]), np.array([[-1.0], [1.0]]))
    assert fitted.score(np.array([[0.0], [1.0], [2.0]])) == pytest.approx(np.array([[-1.0], [0.0], [1.0]]))


def test_u_lira_sees_a_spread_that_differs_while_the_means_agree() -> None:
    fitted = attacks.fit_lira(np.array([[-0.1], [0.1]]), np.array([[-5.0], [5.0]]))
    near, far = fitted.score(np.array([[0.0], [4.0]]))[:, 0]
    assert near > 0 > far


def test_u_lira_says_how_many_models_it_takes() -> None:
    with pytest.raises(UnfedError, match="--models 4"):
        attacks.fit_lira(np.zeros((1, 3)), np.zeros((1, 3)))


def test_rmia_by_hand() -> None:
    """a = 0.5: p̄ = 0.75 mean + 0.25. x: 0.9 / (0.75·0.4 + 0.25) = 1.636…; z: 0.8/0.85, 0.5/0.4, 1/0.55 = 1.818…"""
    target, held_out = np.array([[0.9]]), np.array([[0.8, 0.5, 1.0]])
    out, out_held_out = np.array([[0.3], [0.5]]), np.array([[0.8, 0.2, 0.4], [0.8, 0.2, 0.4]])
    assert attacks.rmia_expected(out, 0.5) == pytest.approx([0.55])
    assert attacks.rmia_score(target, held_out, out, out_held_out, 0.5) == pytest.approx(np.array([[2 / 3]]))


def test_rmia_does_not_count_a_row_that_is_only_equal() -> None:
    same = np.array([[0.5]])
    assert attacks.rmia_score(same, same, same, same).item() == 0.0


def test_iam_by_hand() -> None:
    """The signal of p = 0.5, and targets that are far below, at the bottom and at the top of the steps."""
    assert attacks.iam_signal(np.array([0.5])) == pytest.approx([-LOG(0.01 - LOG(0.50001))])
    shadow, original = np.array([0.2, 0.3]), np.array([0.9, 0.95])
    assert attacks.iam_score(np.array([1e-12, 1.0]), original, shadow)[0] == pytest.approx(0.0, abs=1e-6)
    fitted, gone = attacks.iam_score(original, original, shadow), attacks.iam_score(shadow, original, shadow)
    assert (fitted > 0.9).all() and (gone < 0.4).all()


def test_one_step_of_iam_by_hand() -> None:
    """At α = 0 with equal shadow and original all steps are the same: one Gumbel, its weights cancel."""
    p = np.array([0.2, 0.6])
    r = -np.log(0.01 - np.log(p + 1e-5))
    beta = math.sqrt(6) / math.pi * r.std()
    expected = np.exp(-np.exp(-(r - (r - 0.5772 * beta)) / beta))
    assert attacks.iam_score(p, p, p) == pytest.approx(expected)
    assert expected == pytest.approx([0.5703, 0.5703], abs=1e-4)


def test_svc_efficacy_and_entropy_ask_about_the_forgotten_rows() -> None:
    """Members at 0.9, others at 0.1: of the forgotten rows one of four looks like a member."""
    retain, test, forget = np.full(50, 0.9), np.full(50, 0.1), np.array([0.9, 0.1, 0.1, 0.1])
    assert attacks.svc_efficacy(retain, test, forget) == pytest.approx(75.0)
    assert attacks.entropy_attack(retain, test, forget) == pytest.approx(25.0)
    with pytest.raises(UnfedError, match="one is empty"):
        attacks.svc_efficacy(retain, test, forget[:0])


def test_the_svc_learns_from_as_many_retained_rows_as_held_out_ones() -> None:
    """As its authors do it: taught with five times as many members, it would call nearly every row one."""
    generator = drawn(5)
    retain, test, forget = generator.beta(6, 1.2, 900), generator.beta(5, 1.5, 180), generator.beta(5, 1.5, 200)
    from sklearn.svm import SVC

    taught = SVC(C=3, gamma=1.0).fit(np.concatenate([retain[:180], test])[:, None], np.repeat([1, 0], [180, 180]))
    expected = 100 * np.mean(taught.predict(forget[:, None]) == 0)
    assert expected > 30
    assert attacks.svc_efficacy(retain, test, forget) == pytest.approx(expected, abs=20)  # other retained rows
    assert attacks.svc_efficacy(test, retain, forget) < 90, "nor every row a non-member where those are more"


# --- curves -----------------------------------------------------------------------------------------------------------


def test_auc_and_tpr_by_hand() -> None:
    """Unlearned 3, 1; Retrain 2, 1: of four pairs 3>2, 3>1 are won, 1=1 counts half: 2.5 / 4."""
    unlearned, retrained = np.array([[3.0, 1.0]]), np.array([[2.0, 1.0]])
    rates = intervals.Roc(unlearned, retrained).rates()
    assert intervals.area(rates) == pytest.approx(0.625)
    assert [intervals.tpr_at(rates, f) for f in (0.0, 0.49, 0.5, 1.0)] == [0.5, 0.5, 0.5, 1.0]


def test_weights_are_counts() -> None:
    """Drawing the second model twice and the first row not at all is the curve of that table."""
    generator = drawn(0)
    unlearned, retrained = (
        generator.integers(0, 9, (3, 4)).astype(float),
        generator.integers(0, 9, (2, 4)).astype(float),
    )
    of_models, rows = (np.array([0.0, 2.0, 1.0]), np.array([1.0, 1.0])), np.array([0.0, 1.0, 1.0, 2.0])
    drawn_rows = [1, 2, 3, 3]
    expected = intervals.auc(unlearned[[1, 1, 2]][:, drawn_rows], retrained[:, drawn_rows])
    assert intervals.area(intervals.Roc(unlearned, retrained).rates(of_models, rows)) == pytest.approx(expected)


def test_too_few_scores_for_a_tpr_says_how_many_models_it_takes() -> None:
    assert intervals.too_few(0.01, 2, 50) is None
    assert "--models 20" in str(intervals.too_few(0.001, 9, 100))  # 1,000 scores of 100 rows: 10 judged, twice as many
    assert intervals.too_few(0.001, 10, 100) is None
    assert "--models 40" in str(intervals.too_few(0.001, 9, 100, groups=4))


def test_the_worst_slice_comes_first_and_a_row_has_an_exposure_of_its_own() -> None:
    unlearned, retrained = np.array([[5.0, 0.0], [6.0, 1.0]]), np.array([[1.0, 0.0], [2.0, 1.0]])
    by_slice = intervals.auc_by_slice(
        unlearned, retrained, {"b": np.array([False, True]), "a": np.array([True, False])}
    )
    assert list(by_slice.items()) == [("a", 1.0), ("b", 0.5)]
    assert intervals.exposure(unlearned, retrained).tolist() == [1.0, 0.5]


# --- how sure ---------------------------------------------------------------------------------------------------------


def area_of(unlearned: Floats, retrained: Floats) -> Interval:
    return over_models_and_rows(unlearned, retrained, [intervals.area], draws=200)[0]


def test_an_interval_of_one_distribution_holds_a_half_and_of_another_does_not() -> None:
    generator = drawn(1)
    a, b = generator.normal(size=(12, 30)), generator.normal(size=(12, 30))
    same = area_of(a, b)
    other = area_of(a + 1.0, b)
    assert same.low < 0.5 < same.high and other.low > 0.5
    assert area_of(a, b) == same, "the same draws every time"


def test_models_that_move_as_one_widen_the_interval() -> None:
    """Rows of one model that all share its shift are no further evidence."""
    generator = drawn(2)
    shift = generator.normal(size=(8, 1))
    alike = area_of(np.repeat(shift, 50, 1), generator.normal(size=(8, 50)))
    apart = area_of(generator.normal(size=(8, 50)), generator.normal(size=(8, 50)))
    assert alike.high - alike.low > 2 * (apart.high - apart.low)


def test_a_difference_of_means_has_an_interval() -> None:
    """Means 2 and 0, variances 1 and 1 of three: 2 ± t(0.975; 4) · √(2/3), and nothing where nobody differs."""
    assert over_models(np.array([3.0, 3.0]), np.array([1.0, 1.0])) == Interval(2.0, 2.0, 2.0)
    found = over_models(np.array([1.0, 2.0, 3.0]), np.array([-1.0, 0.0, 1.0]))
    reach = 2.7764 * (2 / 3) ** 0.5
    assert (found.low, found.high) == pytest.approx((2 - reach, 2 + reach), abs=1e-4)


def test_of_few_models_19_of_20_intervals_of_a_difference_hold_it() -> None:
    generator = drawn(11)
    found = [over_models(generator.normal(0, 1, 4), generator.normal(0, 2, 4)) for _ in range(400)]
    assert np.mean([one.low <= 0 <= one.high for one in found]) > 0.92


def test_a_permutation_test_by_hand() -> None:
    """Four models, the two largest on one side: one of six ways parts them so, and no statistic is larger."""

    def difference(first: NDArray[np.generic], second: NDArray[np.generic]) -> float:
        return float(first.mean() - second.mean())

    assert permuted(np.array([3.0, 4.0]), np.array([1.0, 2.0]), difference) == pytest.approx(1 / 6)
    assert permuted(np.array([1.0, 1.0]), np.array([1.0, 1.0]), difference, draws=10) == 1.0


def test_a_permutation_test_never_says_never() -> None:
    """Of 12,870 ways to part 16 models one is as large: 20 draws do not meet it, and p is 1 of 21, not 0."""
    p = permuted(np.ones(8), np.zeros(8), lambda a, b: float(a.astype(float).mean() - b.astype(float).mean()), draws=20)
    assert p == pytest.approx(1 / 21)


def test_the_test_of_an_auc_is_a_permutation_test_of_whole_models() -> None:
    """Rows of one model stay together: two models a side leave six ways, two of which are as far from ½."""
    unlearned, retrained = np.array([[5.0, 6.0], [7.0, 8.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])
    assert auc_p(unlearned, retrained) == pytest.approx(2 / 6)
    slow = permuted(unlearned, retrained, lambda a, b: abs(intervals.auc(a, b) - 0.5))  # type: ignore[arg-type]
    assert auc_p(unlearned, retrained) == pytest.approx(slow)


def test_of_few_models_every_way_to_part_them_is_taken() -> None:
    """Five a side that do not overlap: 2 of 252 ways are as far from ½, whatever is drawn."""
    unlearned, retrained = 10 + np.arange(5.0)[:, None], np.arange(5.0)[:, None]
    assert {auc_p(unlearned, retrained, seed, draws=20) for seed in range(3)} == {2 / 252}


# --- distances --------------------------------------------------------------------------------------------------------


def test_klom_by_hand() -> None:
    """Half of the unlearned models share the Retrains' bin, half have one of their own, where q counts as 1e-5."""
    found = distances.klom(np.array([[0.0], [10.0]]), np.array([[0.0], [0.0]]))
    total = 1 + 1e-5
    assert found == pytest.approx([0.5 * LOG(0.5 / (1 / total)) + 0.5 * LOG(0.5 / (1e-5 / total))])
    assert distances.klom(np.array([[1.0], [2.0]]), np.array([[2.0], [1.0]])) == pytest.approx([0.0])
    assert distances.klom(np.array([[500.0]]), np.array([[100.0]])) == pytest.approx([0.0]), "both are clipped to 100"


def test_agreement_by_hand() -> None:
    """Row 1: 2 of 4 pairs read alike; row 2: none."""
    assert agreement(np.array([[0, 1], [1, 1]]), np.array([[0, 2], [0, 0]])) == pytest.approx((0.5 + 0.0) / 2)


def test_the_challenges_epsilon_by_hand() -> None:
    """Retrain 3, 5, 6 has the larger median; of equal ranges that of the other kind counts as the narrow one.

    Above 3.5 lie 2 of 3 Retrains and 1 of 3 others: log((1 − δ − 1/3) / (1/3)) = log 2. Above 4.5 and above 2.5 one
    error is 0: dropped. The best interval with both errors reaches to 3.5 and has 2 of 3 against 1 of 3: log 2 again.
    """
    unlearned, retrained = np.array([[1.0], [2.0], [4.0]]), np.array([[3.0], [5.0], [6.0]])
    assert distances.epsilon(unlearned, retrained) == pytest.approx([LOG(2)], abs=1e-4)


def test_points_halve_for_each_half_of_epsilon_and_end_where_the_models_end() -> None:
    """With 16 models ε ends at ⌈log 15⌉ = 3."""
    found = distances.points(np.array([0.0, 0.49, 0.5, LOG(2), 1.0, 2.9, 3.0, math.inf]), 16)
    assert found.tolist() == [1.0, 1.0, 0.5, 0.5, 0.25, 1 / 32, 0.0, 0.0]


def test_models_that_a_threshold_parts_for_good_get_no_point() -> None:
    unlearned, retrained = np.arange(4.0)[:, None], 10 + np.arange(4.0)[:, None]
    assert distances.epsilon(unlearned, retrained).tolist() == [math.inf]
    assert distances.forgetting_quality(unlearned, retrained) == 0.0


def test_models_that_all_say_the_same_while_retrains_differ_get_no_point() -> None:
    spread = np.array([[-5.0], [0.0], [5.0], [1.0]])
    assert distances.epsilon(0.001 * spread, spread).tolist() == [math.inf]


def test_equal_values_cannot_be_parted() -> None:
    same = np.ones((4, 1))
    assert distances.epsilon(same, same) == pytest.approx([0.0])


def _every_rule(unlearned: Floats, retrained: Floats) -> float:
    """ε by trying every threshold and interval between values, one after another: slow and plain."""
    n, best = len(unlearned), 0.0
    values = sorted({*unlearned, *retrained})
    edges = [-math.inf, *[(a + b) / 2 for a, b in pairwise(values)], math.inf]
    high, low = (retrained, unlearned) if np.median(retrained) > np.median(unlearned) else (unlearned, retrained)
    tight, loose = (low, high) if np.ptp(high) >= np.ptp(low) else (high, low)
    rules = [(high, low, edge, math.inf) for edge in edges]
    rules += [(tight, loose, left, right) for left, right in combinations(edges, 2)]
    for yes, no, left, right in rules:
        fnr = sum(not left < v < right for v in yes) / n
        fpr = sum(left < v < right for v in no) / n
        if fpr == 0 and fnr == 0:
            return math.inf
        if fpr == 0 or fnr == 0:
            continue
        for top, bottom in ((1 - 1e-5 - fpr, fnr), (1 - 1e-5 - fnr, fpr)):
            best = max(best, LOG(top / bottom) if top > 0 else 0.0)
    return best


def test_the_fast_epsilon_is_the_plain_one() -> None:
    generator = drawn(3)
    unlearned, retrained = generator.normal(size=(8, 25)), generator.normal(0.7, 1.0, size=(8, 25))
    slow = [_every_rule(u, r) for u, r in zip(unlearned.T, retrained.T, strict=True)]
    assert distances.epsilon(unlearned, retrained) == pytest.approx(slow)


@pytest.mark.parametrize(("models", "expected"), [(16, 0.1302), (32, 0.1014), (64, 0.0838)])
def test_identical_distributions_do_not_score_one(models: int, expected: float) -> None:
    """What two draws of one normal distribution score, over 400 rows; the values are means over 1,200 and more."""
    generator = drawn(models)
    found = distances.forgetting_quality(generator.normal(size=(models, 400)), generator.normal(size=(models, 400)))
    assert found == pytest.approx(expected, abs=0.008)  # three standard errors


def test_the_challenges_score_scales_with_accuracies() -> None:
    assert distances.challenge_score(0.5, (0.9, 1.0), (0.8, 1.0)) == pytest.approx(0.36)
    with pytest.raises(UnfedError, match="equally many"):
        distances.epsilon(np.zeros((3, 1)), np.zeros((2, 1)))


# --- forgotten beside held-out rows -----------------------------------------------------------------------------------


def test_a_models_auc_of_forgotten_against_held_out_rows_by_hand() -> None:
    """Scores 1 and 3 against 0, 1, 2, 4: 1 beats one and ties one (1.5 of 4), 3 beats three."""
    forgotten, held_out = intervals.placed(np.array([[1.0, 3.0]]), np.array([[0.0, 1.0, 2.0, 4.0]]))
    assert forgotten.tolist() == [[1.5 / 4, 3 / 4]]
    assert held_out.tolist() == [[1.0, 0.75, 0.5, 0.0]]
    assert forgotten.mean() == pytest.approx(held_out.mean()) == pytest.approx(4.5 / 8)


def test_a_row_is_standardised_by_what_retrains_make_of_it() -> None:
    """Retrains have 1 and 3 (mean 2, spread √2), and 5 twice, whose spread is held at 0.001."""
    found = attacks.standardised(np.array([[4.0, 5.001]]), np.array([[1.0, 5.0], [3.0, 5.0]]))
    assert found == pytest.approx(np.array([[2 / math.sqrt(2), 1.0]]))


def test_the_difference_of_means_counts_models_and_rows() -> None:
    generator = drawn(8)
    rows, models = generator.normal(0, 1, 30), generator.normal(0, 1, (40, 1))
    noise = generator.normal(0, 0.1, (40, 30))
    alike = models + noise
    found, p = difference([alike[:20]], [alike[20:]], draws=300, permutations=200)
    assert found.low < 0 < found.high and p > 0.05
    assert found.value == pytest.approx(alike[:20].mean() - alike[20:].mean())
    apart, p = difference([alike[:20] + 2.0], [alike[20:]], draws=300, permutations=200)
    assert apart.low > 0 and p < 0.01
    by_row = 0.1 * noise
    of_rows, p = difference([by_row[:20] + rows], [by_row[20:]], draws=300, permutations=200)
    assert of_rows.low < 0 < of_rows.high and p > 0.05, "whole models differ for sure, other rows might not show it"
    assert (
        permuted(by_row[:20].mean(1) + rows.mean(), by_row[20:].mean(1), lambda u, r: abs(u.mean() - r.mean())) < 0.01
    )


def test_two_tables_of_one_mean_add_what_both_groups_of_rows_change() -> None:
    """By held-out rows alone the same mean would look certain."""
    generator = drawn(9)
    ours, theirs = generator.normal(0.6, 0.01, (10, 40)), generator.normal(0.5, 0.01, (10, 40))
    flat = [np.repeat(side.mean(axis=1, keepdims=True), 5, axis=1) for side in (ours, theirs)]
    spread = np.where(np.arange(40) % 2, 1.0, -1.0)
    (alone, _), (both, _) = (
        difference([ours], [theirs], draws=400),
        difference([ours + spread, flat[0]], [theirs, flat[1]], draws=400),
    )
    assert alone.value == pytest.approx(both.value) and both.high - both.low > 5 * (alone.high - alone.low)
    assert both.high - both.low == pytest.approx(2 * 1.96 / math.sqrt(40), rel=0.2)
    models = [np.repeat(generator.normal(0.5, 0.1, (10, 1)), 5, axis=1) for _ in range(2)]
    once, twice = (difference(many * models[:1], many * models[1:], draws=400)[0] for many in (1, 2))
    assert twice.high - twice.low == pytest.approx(once.high - once.low, rel=0.2), "models are counted once"


# --- verdicts ---------------------------------------------------------------------------------------------------------


def shown(value: float, low: float, high: float, p: float = 0.002, **more: Any) -> Difference:
    return Difference("RMIA AUC 0.580", Interval(value, low, high), p, more=value > 0, **more)


def test_a_verdict_says_which_way_forgotten_rows_stand_out() -> None:
    found = verdict("remembers", "FT", 32, [shown(0.08, 0.06, 0.1), shown(0.01, -0.1, 0.1, 0.5)], " And so on.")
    assert found.kind == "remembers" and found.bound == 0.1
    assert found.sentence == (
        "FT remembers: beside held-out rows it is surer of the forgotten rows than Retrain (RMIA AUC 0.580). And so on."
    )
    less = verdict("remembers", "GA", 32, [shown(-0.2, -0.25, -0.15)])
    assert less.kind == "remembers" and "less sure of the forgotten rows" in less.sentence, "pushed away shows as well"


def test_unfinished_is_less_and_further_is_more_than_retrain() -> None:
    tests = [replace(shown(0.1, -1.0, 1.0, 0.4), words="test"), shown(-0.2, -0.25, -0.15)]
    less = verdict("unfinished", "NoT", 32, tests)
    assert less.kind == "unfinished" and less.sentence == "NoT is unfinished (test; RMIA AUC 0.580)."
    more = verdict("unfinished", "FT", 32, [shown(0.2, 0.15, 0.25)])
    assert more.kind == "further" and more.sentence.startswith("FT is not unfinished, but trained further than Retrain")


def test_no_difference_is_said_only_with_what_is_ruled_out() -> None:
    quiet = [shown(0.005, -0.02, 0.03, 0.4), shown(0.1, -0.5, 0.7, 0.4, matters=1.0, unit=" points")]
    found = verdict("unfinished", "NoT", 64, quiet)
    assert found.kind == "finished" and "beyond 0.030 AUC and 0.700 points are ruled out" in found.sentence
    assert verdict("remembers", "NoT", 64, quiet[:1]).kind == "none"
    assert verdict("remembers", "NoT", 64, [shown(-0.01, -0.08, 0.01, 0.4)]).kind == "undecided", "either way counts"
    points = shown(0.1, -0.5, 1.7, 0.4, matters=1.0, unit=" points")
    wide = verdict("unfinished", "NoT", 64, [quiet[0], points])
    assert wide.kind == "undecided" and "up to 1.700 points could have gone unseen" in wide.sentence


def test_as_many_models_are_advised_as_show_a_difference_four_times_in_five() -> None:
    """± 0.1 is 0.051 of standard error; 0.05 must be 2.498 + 0.842 of them, so 3.41² times as many models."""
    open_ = verdict("remembers", "NoT", 16, [shown(0.01, -0.09, 0.11, 0.4)])
    assert open_.kind == "undecided" and "not decided at N = 16" in open_.sentence
    assert "about 192 models" in open_.sentence and "four times in five" in open_.sentence


def test_so_few_models_that_no_test_could_speak_decide_nothing() -> None:
    """Four a side part in 70 ways: p is 2/70 at best, above 1.25 %. Five part in 252: 0.8 %."""
    found = verdict("remembers", "FT", 8, [shown(0.5, 0.49, 0.5, 2 / 70)])
    assert found.kind == "undecided"
    assert "can be parted in only 70 ways" in found.sentence and "It takes 10 models" in found.sentence
    assert verdict("remembers", "FT", 10, [shown(0.5, 0.49, 0.5, 2 / 252)]).kind == "remembers"


def test_a_difference_whose_interval_holds_none_tells_nothing() -> None:
    """On these rows it may be rare among models of one kind; other rows could as well have given none."""
    assert verdict("remembers", "MoDE", 32, [shown(0.005, -0.002, 0.011)]).kind == "none"


def test_tests_share_their_level() -> None:
    assert pytest.approx(0.05) == TESTS * LEVEL
    assert not shown(0.1, 0.05, 0.2, p=0.013).counts and shown(0.1, 0.05, 0.2, p=0.012).counts


# --- early-stopped, leaky, alike --------------------------------------------------------------------------------------


def made_up() -> Any:
    """The populations by which the level is measured."""
    file = Path(__file__).parents[2] / "benchmarks/verdict_level.py"
    spec = importlib.util.spec_from_file_location("verdict_level", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def level(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(attacks, "alone", lambda side, seed: {})
    monkeypatch.setattr(attacks, "attacked", lambda pair, slices, effort, groups=2: {})
    monkeypatch.setattr(importlib.import_module("unfed.measures.population.judge"), "permuted", lambda *rest: 1.0)
    return made_up()


CASES = {
    "alike": ("undecided", "undecided"),
    "early": ("undecided", "unfinished"),
    "mislabelled": ("undecided", "unfinished"),
    "leaky": ("remembers", "undecided"),
    "both": ("remembers", "unfinished"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_early_retrain_is_unfinished_and_a_leaky_model_remembers(level: Any, case: str) -> None:
    """Three populations of each: all are called what they are, and none what it is not."""
    remembers, unfinished = CASES[case]
    assert level.counted(16, case, 3, kept=True)["answers"] == {
        "remembers": {remembers: 3},
        "unfinished": {unfinished: 3},
    }


def test_without_earlier_rounds_rows_unlike_others_may_look_remembered_and_that_is_said(level: Any) -> None:
    """Early models are surer of wrong labels: only a Retrain that was stopped as early shows that this is no memory."""
    effort = Resampling(draws=100, permutations=200)
    without = judge(level.Made(1, 16, "mislabelled"), {"x": "X"}, effort=effort)["methods"]["x"]
    kept = judge(level.Made(1, 16, "mislabelled"), {"x": "X"}, effort=effort, rounds=level.KEPT)["methods"]["x"]
    assert without["verdict"]["remembers"]["kind"] == "remembers" and without["stopped"]["round"] is None
    assert without["verdict"]["remembers"]["sentence"].endswith("so unfinished recovery may play a part.")
    assert kept["verdict"]["remembers"]["kind"] == "undecided" and kept["stopped"]["round"] in (3, 4, 5)
    assert (
        f"Retrain was stopped at round {kept['stopped']['round']} for this" in kept["verdict"]["remembers"]["sentence"]
    )


# --- a whole population -----------------------------------------------------------------------------------------------


class Made:
    """Logits over two classes from given margins: own label first."""

    def __init__(self, models: int, rows: int, shift: float, seed: int = 0) -> None:
        self._models, self._rows, self._shift, self._seed = models, rows, shift, seed

    def logits(self, kind: str, group: str) -> Floats:
        address = ["retrain", "before", "not", "ft"].index(kind) + 10 * ["forget", "retain", "test"].index(group)
        level = {"retrain": 0.0, "before": 3.0, "not": 0.0, "ft": self._shift}[kind] if group == "forget" else 0.0
        phi = drawn(1000 * self._seed + address).normal(1.0 + level, 1.0, (self._models, self._rows))
        return np.stack([phi, np.zeros_like(phi)], axis=2)

    def labels(self, group: str) -> NDArray[np.int64]:
        return np.zeros(self._rows, dtype=np.int64)


QUICK = Resampling(draws=100, permutations=200)


def test_a_population_is_judged_beside_retrain_against_retrain() -> None:
    found = judge(Made(16, 60, shift=2.0), {"not": "NoT", "ft": "FT"}, effort=QUICK)
    ft, same = found["methods"]["ft"], found["methods"]["not"]
    assert ft["verdict"]["remembers"]["kind"] == "remembers" and "LiRA" in ft["verdict"]["remembers"]["sentence"]
    assert ft["verdict"]["unfinished"]["kind"] in ("finished", "undecided"), "it differs on forgotten rows only"
    assert {answer["kind"] for answer in same["verdict"].values()} <= {"none", "finished", "undecided"}
    assert ft["standing"]["lira"]["auc"] > 0.7 and abs(ft["standing"]["lira"]["own"] - 0.5) < 0.1
    assert found["yardstick"]["standing"]["lira"]["low"] < 0 < found["yardstick"]["standing"]["lira"]["high"]
    assert ft["distances"]["klom"] > found["yardstick"]["distances"]["klom"] > 5, "so few models fill no bins"
    assert ft["distances"]["klom_p"] < 0.01 < same["distances"]["klom_p"]
    assert found["models"] == 16 and found["half"] == 8 and found["yardstick"]["quarter"] == 4
    own = found["yardstick"]["attacks"]["u-lira"]["auc"]
    assert own["low"] < 0.5 < own["high"]
    assert "--models 34" in ft["attacks"]["u-lira"]["tpr_0.001"], "8 judged models of 60 rows are 480 scores"
    assert "--models 68" in found["yardstick"]["attacks"]["u-lira"]["tpr_0.001"], "it is cut into four groups"
    assert ft["singles"]["svc"]["retrain"] == found["yardstick"]["singles"]["svc"]
    assert ft["attacks"]["u-lira"]["tpr_0.01"]["value"] > 0.1
    assert set(found["distributions"]["shares"]) == {"retrain", "before", "not", "ft"}
    assert all(sum(shares) == pytest.approx(1.0, abs=1e-4) for shares in found["distributions"]["shares"].values())


class WrongInTheFirstHalf(Made):
    """Its FT is wrong on every row in the first half of the models, and right on most in the second."""

    def logits(self, kind: str, group: str) -> Floats:
        found = super().logits(kind, group)
        if kind == "ft":
            found[: self._models // 2, :, 0] = -9.0
        return found


def test_judged_are_the_models_on_which_no_attack_was_fitted() -> None:
    found = judge(WrongInTheFirstHalf(16, 60, shift=2.0), {"ft": "FT"}, effort=Resampling(draws=10, permutations=10))
    assert min(found["methods"]["ft"]["accuracy"].values()) > 75


def test_judging_twice_gives_the_same() -> None:
    quick = Resampling(draws=10, permutations=10)
    assert judge(Made(6, 5, 1.0), {"ft": "FT"}, effort=quick) == judge(Made(6, 5, 1.0), {"ft": "FT"}, effort=quick)


def test_rows_go_by_their_local_names() -> None:
    names = [f"client 0, row {i}" for i in range(5)]
    found = judge(
        Made(6, 5, 3.0),
        {"ft": "FT"},
        ForgottenRows.by_label(np.zeros(5, int), names),
        Resampling(draws=10, permutations=10),
    )
    assert {entry["row"] for entry in found["methods"]["ft"]["exposure"]} == set(names)
    exposures = [entry["auc"] for entry in found["methods"]["ft"]["exposure"]]
    assert exposures == sorted(exposures, reverse=True)


def test_of_a_single_forgotten_row_all_is_measured_that_can_be() -> None:
    found = judge(Made(16, 1, shift=6.0), {"ft": "FT"}, effort=QUICK)
    ft = found["methods"]["ft"]
    assert ft["attacks"]["iam"] == not_measured("IAM takes its spread over rows, and there is only one forgotten row")
    assert found["yardstick"]["attacks"]["iam"] == ft["attacks"]["iam"]
    assert ft["verdict"]["remembers"]["kind"] == "remembers" and ft["exposure"][0]["auc"] > 0.9
    judged = Judged.model_validate({"request": "r1", **found})
    cells = dict(zip((column.title for column in COLUMNS), dict(grid(judged)[0])["FT"], strict=True))
    assert "not measured" in cells["IAM AUC"]


def test_a_population_that_is_too_small_or_of_no_rows_is_one_sentence() -> None:
    with pytest.raises(UnfedError, match="at least 6 models"):
        judge(Made(5, 5, 1.0), {"ft": "FT"})
    with pytest.raises(UnfedError, match="The forget set is empty after selection"):
        judge(Made(6, 0, 1.0), {"ft": "FT"})
