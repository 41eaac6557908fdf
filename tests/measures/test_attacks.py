"""The attack says 50 where there is nothing to tell, 100 where everything tells, and both solvers say the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from unfed.errors import UnfedError
from unfed.measures import attacks
from unfed.measures.attacks import membership_inference, split_accuracies, try_membership_inference

Floats = NDArray[np.float64]


def losses(seed: int, n: int, scale: float = 1.0) -> Floats:
    """Losses shaped like cross-entropy: many near zero, a long tail."""
    return scale * np.random.default_rng(seed).gamma(0.4, 1.0, n)


def fitted_by_sklearn(x: Floats, y: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The reference, iterated to convergence: at its default tolerance rows near the boundary change sides."""
    models = [
        LogisticRegression(tol=1e-10, max_iter=10_000).fit(one[:, None], own) for one, own in zip(x, y, strict=True)
    ]
    return np.array([model.coef_[0, 0] for model in models]), np.array([model.intercept_[0] for model in models])


def by_sklearn(a: Floats, b: Floats, seed: int) -> Floats:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attacks, "_fit", fitted_by_sklearn)
        return split_accuracies(a, b, seed=seed)


def test_identical_distributions_are_a_coin_flip() -> None:
    assert membership_inference(losses(0, 2000), losses(1, 2000), seed=0) == pytest.approx(50, abs=3)


def test_disjoint_loss_ranges_are_told_apart_completely() -> None:
    assert membership_inference(losses(0, 300) + 50, np.clip(losses(1, 300), 0, 9), seed=0) == 100.0


def test_swapping_the_two_sets_changes_nothing() -> None:
    for seed in range(5):
        a, b = losses(seed, 123), losses(seed + 9, 400, 1.7)
        assert membership_inference(a, b, seed=seed) == membership_inference(b, a, seed=seed)


def test_the_order_of_samples_changes_nothing() -> None:
    a, b = losses(0, 90), losses(1, 300, 2.0)
    assert membership_inference(a[::-1].copy(), b, seed=1) == membership_inference(a, b, seed=1)
    assert membership_inference(a, b[::-1].copy(), seed=1) == membership_inference(a, b, seed=1)


def test_an_unbalanced_input_is_a_balanced_problem() -> None:
    """Unbalanced, always saying "test" would be right 95 % of the time."""
    values = [membership_inference(losses(seed, 100), losses(seed + 50, 1900), seed=seed) for seed in range(20)]
    assert float(np.mean(values)) == pytest.approx(50, abs=4)


def test_the_seed_decides_everything() -> None:
    a, b = losses(0, 150), losses(1, 500, 1.5)
    assert membership_inference(a, b, seed=3) == membership_inference(a, b, seed=3)
    assert len({membership_inference(a, b, seed=seed) for seed in range(6)}) > 1
    # Sets of one size: nothing to choose, only the splits hear the seed.
    assert len({membership_inference(a, losses(2, 150, 1.5), seed=seed) for seed in range(6)}) > 1
    # Half of the larger set is far away: how many of those are chosen is heard by the choice alone.
    far = np.concatenate([losses(3, 50), 90 + losses(4, 50)])
    chosen = [attacks._balanced(losses(5, 50), far, seed)[0] for seed in range(6)]
    assert len({int((values > 50).sum()) for values in chosen}) > 1


def test_tensors_and_arrays_are_the_same_input() -> None:
    a, b = losses(0, 60), losses(1, 80)
    assert membership_inference(torch.tensor(a, requires_grad=True), torch.tensor(b), seed=0) == membership_inference(
        a, b, seed=0
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_losses_that_are_not_finite_are_refused(bad: float) -> None:
    broken = losses(0, 50)
    broken[7] = bad
    with pytest.raises(UnfedError, match="1 of 50 forget losses are NaN or infinite"):
        membership_inference(broken, losses(1, 50), seed=0)
    with pytest.raises(UnfedError, match="1 of 50 test losses"):
        membership_inference(losses(1, 50), broken, seed=0)
    assert str(try_membership_inference(broken, losses(1, 50), seed=0)).startswith("not measured: 1 of 50 forget")


def test_too_few_samples_read_not_measured() -> None:
    few = try_membership_inference(losses(0, 3), losses(1, 50), seed=0)
    assert few == "not measured: only 3 forget samples; the attack needs at least 10"
    assert isinstance(try_membership_inference(losses(0, 10), losses(1, 10), seed=0), float)
    with pytest.raises(UnfedError, match="only 1 test sample;"):
        membership_inference(losses(0, 30), losses(1, 1), seed=0)


def test_every_split_is_scored_on_the_tenth_that_its_attack_did_not_see() -> None:
    """By hand: fitted on nine tenths of both sets together, scored on all other rows and on no row twice."""
    halves = sorted((np.sort(losses(0, 40)).tolist(), np.sort(losses(1, 40, 2.5)).tolist()))
    values, labels = np.array(halves).reshape(-1), np.repeat([0, 1], 40)
    seen, unseen = [], []
    for train in attacks._splits(40, 3)[0]:
        other = np.setdiff1d(np.arange(80), train)
        assert len(set(train.tolist())) == 72 and labels[other].sum() == 4
        fit = LogisticRegression(tol=1e-10, max_iter=10_000).fit(values[train, None], labels[train])
        seen.append(fit.score(values[train, None], labels[train]))
        unseen.append(fit.score(values[other, None], labels[other]))
    found = split_accuracies(losses(0, 40), losses(1, 40, 2.5), seed=3)
    np.testing.assert_allclose(found, unseen)
    assert abs(np.mean(seen) - np.mean(unseen)) > 0.01
    assert membership_inference(losses(0, 40), losses(1, 40, 2.5), seed=3) == pytest.approx(100 * np.mean(unseen))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.tuples(st.integers(10, 250), st.integers(10, 250)),
    scale=st.floats(0.01, 30),
    shift=st.floats(-1, 10),
)
def test_newton_agrees_with_sklearn_on_every_split(seed: int, n: tuple[int, int], scale: float, shift: float) -> None:
    a, b = losses(seed, n[0]), losses(seed + 1, n[1], scale) + max(shift, 0.0)
    fast = split_accuracies(a, b, seed=seed)
    assert fast.shape == (10,)
    np.testing.assert_array_equal(fast, by_sklearn(a, b, seed))


def test_newton_finds_sklearns_weights_where_the_regularisation_matters() -> None:
    """Eight losses that a threshold separates: without w²/2 the weight would grow for ever."""
    values, labels = np.array([[0.1, 0.2, 0.3, 0.4, 2.1, 2.2, 2.3, 2.4]]), np.array([[0, 0, 0, 0, 1, 1, 1, 1]])
    for found, expected in zip(attacks._fit(values, labels), fitted_by_sklearn(values, labels), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_newton_agrees_with_sklearn_on_rounded_constant_and_separated_losses() -> None:
    same = np.full(40, 0.7)
    cases = [
        (np.round(losses(0, 200), 2), np.round(losses(1, 90, 2.0), 2)),
        (same, same),
        (losses(2, 40) * 1e-6, losses(3, 40) + 100),
        (losses(4, 40) * 100, losses(5, 40) * 1e-7),
    ]
    for a, b in cases:
        np.testing.assert_array_equal(split_accuracies(a, b, seed=0), by_sklearn(a, b, 0))
