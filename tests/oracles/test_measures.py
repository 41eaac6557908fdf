"""Every attack, distance, interval and bound against a short reference, and the rules by which rows are dealt.

Each test also says what a reader might take for the same and is not: another weight, another spread, another side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.model_selection import StratifiedShuffleSplit

from oracles import measures as plain
from oracles.plain import net_of
from oracles.world import SOURCE, X, Y, clients, floats, fresh, template
from unfed import rng
from unfed.analysis.bound import BoundModels, Sets, bound
from unfed.analysis.cka import Cka
from unfed.client.optimiser import plateau
from unfed.client.plan import term
from unfed.data import Request, partition
from unfed.data.scope import own_marks
from unfed.measures import attacks as loss_attack
from unfed.measures.attacks import membership_inference
from unfed.measures.population import attacks, distances, intervals
from unfed.measures.population.intervals import over_models, over_models_and_rows, permuted
from unfed.measures.undo.scene import Scene, View
from unfed.measures.undo.traces import inside


def drawn(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- one model --------------------------------------------------------------------------------------------------------


def test_the_loss_attack_is_a_logistic_regression_on_one_loss() -> None:
    """60 forgotten rows against 60 of 90 test rows, chosen and split at their addresses."""
    forget, test = drawn(0).gamma(0.4, 1.0, 60), drawn(1).gamma(0.6, 1.5, 90)
    chosen = rng.order(rng.key("membership", "balance", 5), 90)[:60].numpy()
    own, other = np.sort(forget), np.sort(np.sort(test)[chosen])
    splitter = StratifiedShuffleSplit(10, test_size=0.1, random_state=rng.key("membership", "splits", 5) % 2**32)
    labels = np.repeat([0, 1], 60)
    first, second = sorted([own.tolist(), other.tolist()])  # which set is called 1 decides nothing but the splits
    splits = [train for train, _ in splitter.split(labels[:, None], labels)]
    expected = plain.mia(np.array(first), np.array(second), splits)
    assert 51 < expected < 99
    assert membership_inference(forget, test, seed=5) == pytest.approx(expected)


@pytest.mark.parametrize("n", [10, 13, 16, 25, 60, 117])
def test_the_splits_are_those_of_scikit_learn_s_stratified_shuffle(n: int) -> None:
    labels = np.repeat([0, 1], n)
    splitter = StratifiedShuffleSplit(10, test_size=0.1, random_state=rng.key("membership", "splits", 5) % 2**32)
    for place, lines in enumerate(zip(*splitter.split(labels[:, None], labels), strict=True)):
        assert np.array_equal(np.stack(lines), loss_attack._splits(n, 5)[place])


def test_the_entropy_attack_weighs_its_two_classes_alike() -> None:
    """120 members against 30 others: without weights nearly every row would be called a member."""
    retain, test, forget = drawn(0).beta(2, 5, 120), drawn(1).beta(3, 3, 30), drawn(2).beta(3, 4, 200)
    expected = plain.entropy_attack(retain, test, forget)
    assert 20 < expected < 80 and plain.entropy_attack(retain, test, forget, balanced=False) > expected + 10
    assert attacks.entropy_attack(retain, test, forget) == pytest.approx(expected, abs=0.51)


def test_the_svc_has_c_of_three_and_gamma_of_one() -> None:
    """p of the own label: another C, another γ or scikit-learn's `scale` would call other rows strangers."""
    generator = drawn(59)
    retain, test, forget = generator.beta(5, 2, 25), generator.beta(2, 2, 25), np.linspace(0, 1, 201)
    expected = plain.svc_efficacy(retain, test, forget)
    scale = float(1 / np.concatenate([retain, test]).var())
    for c, gamma in ((1.0, 1.0), (10.0, 1.0), (3.0, scale), (3.0, 0.5), (3.0, 2.0)):
        assert abs(plain.svc_efficacy(retain, test, forget, c, gamma) - expected) > 2, (c, gamma)
    assert attacks.svc_efficacy(retain, test, forget) == pytest.approx(expected, abs=0.01)


def test_iam_goes_from_the_shadow_to_the_original_and_weighs_by_the_next_step() -> None:
    generator = drawn(6)
    target, original, shadow = generator.beta(2, 2, 7), generator.beta(6, 1, 7), generator.beta(1, 4, 7)
    expected = plain.iam(target, original, shadow)
    assert np.ptp(expected) > 0.2 and np.abs(expected - plain.iam(target, shadow, original)).max() > 0.01
    np.testing.assert_allclose(attacks.iam_score(target, original, shadow), expected, rtol=0, atol=1e-12)


# --- many models ------------------------------------------------------------------------------------------------------


def test_u_lira_takes_no_gaussian_for_narrower_than_a_thousandth() -> None:
    """Row 0 has one value among all unlearned models, row 1 among all Retrains; row 2 spreads on both sides."""
    unlearned, retrained = drawn(0).normal(2, 1, (6, 3)), drawn(1).normal(0, 1, (5, 3))
    unlearned[:, 0], retrained[:, 1] = 1.5, 0.25
    phi = np.array([[1.5, 0.25, 0.0], [1.503, 0.251, 1.0], [0.0, 2.0, 3.0]])
    np.testing.assert_allclose(
        attacks.fit_lira(unlearned, retrained).score(phi), plain.u_lira(phi, unlearned, retrained)
    )


def test_rmia_expects_of_a_row_what_its_authors_do() -> None:
    """a = 0.3 where nothing is given."""
    generator = drawn(2)
    target, z, out, out_z = (generator.beta(2, 2, shape) for shape in ((4, 9), (4, 40), (3, 9), (3, 40)))
    expected = plain.rmia(target, z, out, out_z)
    assert np.abs(expected - plain.rmia(target, z, out, out_z, 0.5)).max() > 0.02
    np.testing.assert_allclose(attacks.rmia_score(target, z, out, out_z), expected)


def test_klom_is_a_divergence_over_twenty_bins() -> None:
    unlearned, retrained = drawn(3).normal(1, 2, (30, 8)), drawn(4).normal(0, 1, (25, 8))
    unlearned[0] = 300.0  # clipped
    np.testing.assert_allclose(distances.klom(unlearned, retrained), plain.klom(unlearned, retrained), atol=1e-12)


def test_the_challenges_score_tries_every_threshold_and_every_interval() -> None:
    generator = drawn(5)
    unlearned, retrained = generator.normal(0, 1, (9, 12)), generator.normal(0.4, 1.6, (9, 12))
    unlearned[:, 0] = retrained[:, 0]
    unlearned[:, 1] += 50
    unlearned[:, 2] = 1.0  # peaked
    found = distances.epsilon(unlearned, retrained)
    np.testing.assert_allclose(
        found, [plain.neurips_epsilon(*row) for row in zip(unlearned.T, retrained.T, strict=True)]
    )
    accuracies = ((0.8, 0.9), (0.6, 0.7))
    f = distances.forgetting_quality(unlearned, retrained)
    assert distances.challenge_score(f, *accuracies) == pytest.approx(
        plain.neurips_score(unlearned, retrained, *accuracies)
    )
    assert 0 < f < 1


def test_an_interval_draws_models_of_each_side_and_rows_for_both() -> None:
    """By the same draws; rows that differ widen it, so rows must be drawn again."""
    generator = drawn(6)
    of_rows = generator.normal(0, 3, 12)
    unlearned, retrained = generator.normal(0.5, 1, (5, 12)) + of_rows, generator.normal(0, 1, (4, 12))
    ((found),) = over_models_and_rows(unlearned, retrained, [intervals.area], seed=2, draws=60)
    assert found.value == pytest.approx(plain.auc(unlearned, retrained))
    same = np.random.default_rng(rng.key("population", "bootstrap", 2))
    assert (found.low, found.high) == pytest.approx(plain.bootstrap(unlearned, retrained, same, 60))


def test_a_difference_of_means_has_welchs_interval() -> None:
    one, other = drawn(7).normal(1, 2, 6), drawn(8).normal(0, 1, 9)
    found, test = over_models(one, other), stats.ttest_ind(one, other, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_a_permutation_test_of_few_models_counts_every_way() -> None:
    one, other = drawn(9).normal(1, 1, 4), drawn(10).normal(0, 1, 3)

    def statistic(first: Any, second: Any) -> float:
        return float(first.mean() - second.mean())

    assert permuted(one, other, statistic) == pytest.approx(plain.permutation(one, other, statistic))


# --- looking inside ---------------------------------------------------------------------------------------------------


def test_cka_is_averaged_over_batches_before_it_is_divided() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(3):
        x = torch.randn(7, 5, generator=generator, dtype=torch.float64)
        batches.append((x, x @ torch.randn(5, 4, generator=generator, dtype=torch.float64) + 3))
    found = Cka()
    for x, y in batches:
        found.add(x, y)
    centred = [(x - x.mean(0), y - y.mean(0)) for x, y in batches]
    assert found.value() == pytest.approx(plain.cka(centred), abs=1e-12)
    assert abs(plain.cka(centred) - np.mean([plain.cka([pair]) for pair in centred])) > 1e-3


def test_the_time_bound_takes_the_long_model_and_the_steepest_checkpoint() -> None:
    """Four models that differ: θ_long is not Retrain, and the start is not where δ is steepest."""
    start, retrained, long, *way = (fresh(seed) for seed in (1, 2, 3, 4, 5))
    retain, forget = torch.arange(10, 55), torch.arange(10)
    sides = ((X[retain], Y[retain]), (X[forget], Y[forget]))

    def expected(**other: Any) -> float:
        given: dict[str, Any] = {"retrained": retrained, "long": long, "way": way} | other
        nets = {name: net_of(floats(model)) for name, model in given.items() if name != "way"}
        return plain.time_bound(
            net_of(floats(start)), **nets, way=[net_of(floats(m)) for m in given["way"]], retain=sides[0],
            forget=sides[1], epsilon=0.2,
        )  # fmt: skip

    sets = Sets(SOURCE, retain, forget, batch=16)
    found = bound(template(), sets, BoundModels(start, retrained, long, way), epsilon=0.2)
    assert found.time == pytest.approx(expected(), rel=1e-9)
    for wrong in (expected(long=retrained), expected(way=[]), expected(retrained=long)):
        assert abs(wrong / expected() - 1) > 0.01


# --- rules of a step, and of who holds what ---------------------------------------------------------------------------


def test_the_plateau_is_pytorchs_with_its_threshold() -> None:
    """A stretch that is better by less than one in ten thousand is not better."""
    losses = [1.0, 0.9, 0.89995, 0.8999, 0.89985, 0.7, 0.69999, 0.69998, 0.69997, 0.69996, 0.8]
    rule = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    slower: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(rule, factor=0.5, patience=1, min_lr=0.06)
    zero = torch.zeros((), dtype=torch.float64)
    state = {"plateau/best": zero + torch.inf, "plateau/bad": zero, "plateau/scale": zero + 1, "plateau/sum": zero}
    rates, expected = [], []
    for number, loss in enumerate(losses, 1):
        how = term("plateau", factor=0.5, patience=1, minimum=0.06, every=1)
        state |= plateau(how, 0.4, state, zero + loss, number)
        slower.step(loss)
        rates.append(0.4 * float(state["plateau/scale"]))
        expected.append(rule.param_groups[0]["lr"])
    assert rates == pytest.approx(expected) and len(set(expected)) > 2


@pytest.mark.parametrize("who", [("a",), ("c", "a"), ("b", "c")])
def test_every_client_that_a_request_names_marks_all_its_rows(who: tuple[str, ...]) -> None:
    """As each client alone reads the requests, one of which names several."""
    requests = [Request("one", samples=(("b", 3),)), Request("all", clients=who)]
    for name, client in clients().items():
        expected = [name in who or (name, i) == ("b", 3) for i in range(len(client.rows))]
        assert own_marks(client, requests, 0).tolist() == expected


LABELS = torch.tensor([i * 7 % 5 for i in range(83)])


def key(*purpose: str) -> int:
    return rng.key(4, "partition", *purpose)


def test_dirichlet_deals_each_class_in_a_drawn_order() -> None:
    """The shares of the first draw that starves no client, the rows of a class one after another as they are drawn."""
    found = partition.dirichlet(LABELS, 4, 0.5, seed=4, min_samples=1)
    generator = np.random.Generator(np.random.Philox(key=rng.key(4, "partition", "dirichlet", 0)))
    shares = [generator.dirichlet([0.5] * 4).tolist() for _ in range(5)]
    order = rng.order(key("dirichlet", "rows"), 83).tolist()
    assert [set(rows.tolist()) for rows in found.rows] == plain.dirichlet(LABELS.tolist(), shares, order)
    unshuffled = plain.dirichlet(LABELS.tolist(), shares, range(83))
    assert unshuffled != plain.dirichlet(LABELS.tolist(), shares, order) and not found.repaired


def test_shards_are_dealt_in_a_drawn_order() -> None:
    found = partition.shards(LABELS, 4, 3, seed=4)
    order, deal = (rng.order(key("shards", what), n).tolist() for what, n in (("rows", 83), ("deal", 12)))
    assert [set(rows.tolist()) for rows in found.rows] == plain.shards(LABELS.tolist(), 4, 3, order, deal)


# --- inside -----------------------------------------------------------------------------------------------------------


def test_what_features_carry_is_read_as_plain_least_squares_and_softmax_read_it() -> None:
    """Class 2 leaves; a model of other features is stitched to the old head, and its class is probed."""
    old, new = fresh(1), fresh(2)
    rows = torch.arange(len(Y))
    held, gone = View(SOURCE, rows[Y != 2]), View(SOURCE, rows[Y == 2])
    here = Scene(template(), held, gone, held, None, lambda seed: old, classes=(2,))
    found = inside(here, new, old)

    def features(model: Any, view: View) -> Any:
        with torch.no_grad():
            return net_of(floats(model)).eval().features(X[view.rows]).numpy()

    def stitched(view: View) -> Any:
        way = plain.nearest_map(features(new, held), features(old, held))
        ones = np.ones((len(view), 1))
        return np.hstack([features(new, view), ones]) @ way @ old["head.weight"].numpy().T + old["head.bias"].numpy()

    right = (stitched(held).argmax(1) == Y[held.rows].numpy()).mean()
    assert found["stitch"]["test"] == pytest.approx(100 * right)
    assert found["stitch"]["forget"] == pytest.approx(100 * (stitched(gone).argmax(1) == 2).mean())
    grafted = features(new, gone) @ old["head.weight"].numpy().T + old["head.bias"].numpy()
    assert found["graft"]["forget"] == pytest.approx(100 * (grafted.argmax(1) == 2).mean())
    assert found["graft"]["forget"] != found["stitch"]["forget"]

    order = gone.some(len(gone), here.seed).rows
    shown, rest = View(SOURCE, order[:5]), View(SOURCE, order[5:])
    x = features(new, held)
    middle, spread = x.mean(0), x.std(0, ddof=1)
    fitted = (np.vstack([x, features(new, shown)]) - middle) / spread
    labels = np.concatenate([Y[held.rows].numpy(), np.full(5, 2)])
    read = plain.read_by_softmax(fitted, labels, (features(new, rest) - middle) / spread)
    assert found["probe"]["reads_5"] == pytest.approx(100 * (read == 2).mean())
    near = plain.read_by_softmax(fitted, labels, (features(new, held) - middle) / spread)
    assert 0 < (near == 2).mean() < 1
