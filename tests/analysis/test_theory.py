"""The paper's theorems on numbers: by hand, as properties, and where they were seen to fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from test_central_methods import DIGITS, server_of, trained
from theorems import (
    MANY,
    Relation,
    activation_distance,
    are_coadapted,
    asymmetry,
    chain_norm,
    compensated,
    cuts_every_chain,
    diameter,
    farthest,
    gradient_limit,
    imbalance,
    is_grafting,
    jacobian_constant,
    jacobian_distance,
    jacobian_limit,
    jacobians,
    lead,
    length,
    lipschitz_limit,
    maximal_chains,
    may_be_negated,
    norm,
    optimality_norm,
    origins,
    paths,
    pushed_limit,
    reach,
    redrawn_share,
    relation_of,
    steepest,
    stochasticity,
    stretch,
    total_variation,
    wasserstein,
    without,
)
from unfed.analysis.activations import activations, layers_of
from unfed.analysis.bound import squared_gap_limit
from unfed.errors import UnfedError
from unfed.model.layers import Choice
from unfed.model.perturb import graft, negate

SEEDS = st.integers(0, 10_000)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def double(*values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- Theorem 5: noise -------------------------------------------------------------------------------------------------


def test_the_stochasticity_is_half_the_area_under_the_absolute_trace() -> None:
    # |trace| = 2, 4, 4 at 0, 1, 3: ½ · (3 + 8)
    assert stochasticity([0.0, 1.0, 3.0], [2.0, -4.0, 4.0]) == pytest.approx(5.5)
    with pytest.raises(UnfedError, match="go back"):
        stochasticity([1.0, 0.0], [1.0, 1.0])
    with pytest.raises(UnfedError, match="one trace per time"):
        stochasticity([1.0], [1.0])


@settings(max_examples=30)
@given(SEEDS)
def test_without_noise_the_gap_never_changes_more_than_the_time_allows(seed: int) -> None:
    """Gradient flow of one quadratic, watched through another: δ is Lipschitz on the way, with the constant found."""
    dims = 3
    roots = [noise(dims, dims, seed=seed + i) for i in (0, 1)]
    retain, forget = (root @ root.T / dims for root in roots)
    away = noise(dims, seed=seed + 2)
    theta, dt = 2 * noise(dims, seed=seed + 3), 1e-3

    def losses(t: Tensor) -> tuple[float, float]:
        return float(t @ retain @ t) / 2, float((t - away) @ forget @ (t - away)) / 2

    start, steepest_ = losses(theta), 0.0
    for step in range(1, 301):
        slope = retain @ theta - forget @ (theta - away)
        steepest_ = max(steepest_, float(slope.norm()))
        theta = theta - dt * retain @ theta
        now = losses(theta)
        changed = abs(now[0] - now[1]) - abs(start[0] - start[1])
        allowed = squared_gap_limit(step * dt, start[0] - now[0], steepest_)
        assert changed**2 <= allowed * 1.05 + 1e-12  # 5 % for the steps, which are not a flow


def test_noise_alone_carries_the_gap_where_the_printed_bound_allows_nothing() -> None:
    """L_r = θ₁²/2, L_u = L_r + √(1 + θ₂²), noise in θ₂ from the origin: δ = √(1 + W²), exactly, by quadrature."""
    w = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    density = torch.exp(-(w**2) / 2) / math.sqrt(2 * math.pi)  # of W at t = 1
    change = float(torch.trapezoid((torch.sqrt(1 + w**2) - 1) ** 2 * density, w))
    assert change == pytest.approx(0.29, abs=0.005)
    # Lip of √(1 + θ₂²) is 1, no L_{D_r} is gone down, and ∇²L_{D_r} = diag(1, 0) does not meet Σ = diag(0, 1): A = 0.
    assert squared_gap_limit(1.0, 0.0, 1.0, noise=stochasticity([0.0, 1.0], [0.0, 0.0])) == 0.0
    assert change <= squared_gap_limit(1.0, 0.0, 1.0, noise=0.0, diffusion=1.0)
    with pytest.raises(UnfedError, match="negative"):
        squared_gap_limit(-1.0, 0.0, 1.0)


# --- Theorem 2: distance ----------------------------------------------------------------------------------------------


def test_the_distances_of_theorem_2_by_hand() -> None:
    y, other = double([3.0, -1.0], [-2.0, 2.0]), double([0.0, 5.0], [1.0, 2.0])
    # σ(Y) = (3, 0), (0, 2); σ(−Y) = (0, 1), (2, 0); σ(Y') = (0, 5), (1, 2)
    assert activation_distance(y, -y) == pytest.approx((9 + 1 + 4 + 4) / 2)
    assert activation_distance(y, other) == pytest.approx((9 + 25 + 1 + 0) / 2)
    assert imbalance(y, -y) == pytest.approx((8 + 0) / 2)
    assert imbalance(y, other) == pytest.approx((16 + 1) / 2)
    found = lead(y, other)
    assert found.slack == pytest.approx(9 - (17.5 - 2 * 8.5)) and found.share == pytest.approx(17.5 / 9)
    with pytest.raises(UnfedError, match="same rows"):
        lead(y, other[:1])


@given(SEEDS, st.integers(1, 6), st.floats(0.0, 3.0))
def test_negation_is_never_beaten_by_more_than_two_epsilon(seed: int, width: int, shift: float) -> None:
    y, other = noise(7, width, seed=seed) + shift, 2 * noise(7, width, seed=seed + 1)
    assert lead(y, other).slack >= -1e-12
    assert reach(y) >= -1e-12


@given(SEEDS, st.integers(2, 5))
def test_nothing_of_the_same_length_is_farther_than_the_farthest(seed: int, width: int) -> None:
    y = noise(1, width, seed=seed).abs() * (noise(1, width, seed=seed + 1) > -0.5)
    others = noise(500, width, seed=seed + 2).abs()
    others = torch.cat([others, torch.eye(width, dtype=torch.float64)])  # the axes: one of them is the farthest
    others = others / others.norm(dim=1, keepdim=True) * y.norm()
    seen = (y - others).square().sum(1).max()
    assert float(seen) == pytest.approx(float(farthest(y)[0]), abs=1e-9)


def test_equation_23_is_right_for_no_vector_without_zeros_here() -> None:
    y = double([3.0, 4.0], [1.0, 1.0], [3.0, 0.0])
    assert farthest(y).tolist() == pytest.approx([20.0, 4 - 2 * math.sqrt(2), 18.0])
    printed = [25.0, 2.0, 18.0]  # ‖y₀‖² where all coordinates are positive, else 2‖y₀‖²
    assert [a == pytest.approx(b) for a, b in zip(farthest(y).tolist(), printed, strict=True)] == [False, False, True]
    with pytest.raises(UnfedError, match="ReLU"):
        farthest(-y)


def test_drawing_a_layer_anew_goes_1_minus_1_over_pi_of_the_way_only_if_it_is_wide() -> None:
    # By hand for two coordinates: E[R² min(cos, sin)] over the quadrant is 2 · (1 − 1/√2) / π.
    by_hand = 2 * MANY / (2 - 2 * 2 * (1 - 1 / math.sqrt(2)) / math.pi)
    assert redrawn_share(2) == pytest.approx(by_hand, abs=1e-6) and by_hand == pytest.approx(0.838, abs=1e-3)
    assert redrawn_share(8) == pytest.approx(0.682, abs=5e-4)
    assert redrawn_share(64) == pytest.approx(MANY, abs=1e-9)
    one, other = noise(200_000, 3, seed=1), noise(200_000, 3, seed=2)
    seen = activation_distance(one, other) / float(farthest(one.relu()).mean())
    assert redrawn_share(3) == pytest.approx(seen, abs=0.01)
    with pytest.raises(UnfedError, match="at least 2"):
        redrawn_share(1)


# --- Lemmas 3, 4, 7: transport ----------------------------------------------------------------------------------------


def test_distances_of_small_samples_by_hand() -> None:
    x, y = double([0.0], [0.0], [1.0], [2.0]), double([0.0], [1.0], [1.0], [5.0])
    assert total_variation(x, y) == pytest.approx(0.5)  # ¼ at 0, ¼ at 1, ¼ at 2, ¼ at 5, halved
    assert wasserstein(x, y) == pytest.approx((0 + 0 + 1 + 3) / 4)
    assert total_variation(x, x[:2]) == pytest.approx(0.5)
    assert steepest(double([0.0], [1.0], [3.0]), double([0.0], [2.0], [2.0])) == pytest.approx(2.0)
    assert norm(3.0, 1.0) == 3.0 and norm(1.0, 1.0) == 2.0
    with pytest.raises(UnfedError, match="as many of both"):
        wasserstein(x, y[:2])
    with pytest.raises(UnfedError, match="no function"):
        steepest(double([0.0], [0.0]), double([0.0], [1.0]))


@given(SEEDS)
def test_a_function_takes_two_distributions_no_farther_apart_than_the_lemmas_say(seed: int) -> None:
    """f = g + h on six points of the plane: g linear, h any bounded values."""
    points = noise(6, 2, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    one, other = (torch.randint(6, (12,), generator=draw) for _ in range(2))
    slope, jumps = noise(2, 3, seed=seed + 1), 3 * noise(6, 3, seed=seed + 2)
    bounded = float(jumps.norm(dim=1).max())
    lipschitz = float(torch.linalg.matrix_norm(slope, 2))
    distance, variation = wasserstein(points[one], points[other]), total_variation(points[one], points[other])

    def apart(f: Tensor) -> float:
        return wasserstein(f[one], f[other])

    linear, both = points @ slope, points @ slope + jumps
    assert apart(linear) <= pushed_limit(distance, variation, lipschitz=lipschitz) + 1e-9  # Lemma 3
    assert apart(jumps) <= pushed_limit(distance, variation, bounded=bounded) + 1e-9  # Lemma 4
    limit = pushed_limit(distance, variation, lipschitz=lipschitz, bounded=bounded)
    assert apart(both) <= limit + 1e-9  # Lemma 7
    assert limit <= norm(lipschitz, bounded) * (distance + variation) + 1e-9
    assert total_variation(both[one].round(), both[other].round()) <= variation + 1e-12  # Lemma 3, for TV
    assert steepest(points, linear) <= lipschitz + 1e-9


# --- Definitions 5, 6, Lemmas 5, 6: chains ----------------------------------------------------------------------------

BRANCHED = {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}
SKIPPED = {"a": ["b", "c"], "b": ["c"], "c": []}


def network(follows: Mapping[str, Sequence[str]], weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Each layer applies its weight and tanh to the sum of what feeds it; the last layers' answers are put together."""
    answers: dict[str, Tensor] = {}
    for name in follows:  # given in the order of computation
        fed = [answers[earlier] for earlier in answers if name in follows[earlier]]
        answers[name] = torch.tanh(weights[name] @ (torch.stack(fed).sum(0) if fed else x))
    return torch.cat([answers[name] for name in follows if not follows[name]])


def test_chains_and_paths_by_hand() -> None:
    assert set(maximal_chains(BRANCHED)) == set(paths(BRANCHED)) == {("a", "b", "d"), ("a", "c", "d")}
    assert length(paths(BRANCHED)) == 3 and diameter(paths(BRANCHED)) == 2
    assert maximal_chains(SKIPPED) == (("a", "b", "c"),)
    assert set(paths(SKIPPED)) == {("a", "b", "c"), ("a", "c")}
    norms = {"a": 2.0, "b": 4.0, "c": 0.5, "d": 1.0}
    assert chain_norm(paths(BRANCHED), norms) == pytest.approx(2.0)  # (2 · 4 · 1)^⅓, against (2 · ½ · 1)^⅓
    assert lipschitz_limit(paths(BRANCHED), norms) == pytest.approx(2 * 8)
    assert lipschitz_limit(paths(BRANCHED), norms, activation=0.25) == pytest.approx(2 * 1)
    assert gradient_limit(paths(BRANCHED), norms, 3.0) == pytest.approx(48)
    assert jacobian_constant(paths(BRANCHED), norms, 3.0) == pytest.approx(96)
    assert jacobian_constant(paths(BRANCHED), norms, 3.0, behind=False) == pytest.approx(48)
    with pytest.raises(UnfedError, match="feeds itself"):
        paths({"a": ["b"], "b": ["c"], "c": ["b"]})
    with pytest.raises(UnfedError, match="without loops"):
        paths({"a": ["a"]})
    with pytest.raises(UnfedError, match="no layer 'e'"):
        without(norms, "e")


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.sampled_from([BRANCHED, SKIPPED, {"a": ["b"], "b": []}]), st.floats(0.1, 3.0))
def test_no_network_is_steeper_than_its_paths_allow(seed: int, follows: dict[str, list[str]], scale: float) -> None:
    weights = {name: scale * noise(3, 3, seed=seed + i) for i, name in enumerate(follows)}
    norms = {name: float(torch.linalg.matrix_norm(w, 2)) for name, w in weights.items()}
    for x in noise(2, 3, seed=seed + 9):
        slope = torch.func.jacrev(lambda x: network(follows, weights, x))(x)
        assert float(torch.linalg.matrix_norm(slope, 2)) <= lipschitz_limit(paths(follows), norms) + 1e-9
        for name in follows:
            way = torch.func.jacrev(lambda w, name=name, x=x: network(follows, {**weights, name: w}, x))(weights[name])
            steep = float(torch.linalg.matrix_norm(way.flatten(1), 2))
            assert steep <= gradient_limit(paths(follows), without(norms, name), float(x.norm())) + 1e-9


def test_lemma_5_over_chains_forgets_the_way_of_a_skip() -> None:
    """b is 0, so the network is c · a, a slope of 100; over the one maximal chain the bound would be 1."""
    norms = {"a": 10.0, "b": 0.0, "c": 10.0}
    weights = {name: double([value]) for name, value in norms.items()}
    slope = torch.func.jacrev(lambda x: network(SKIPPED, weights, x))(double(0.0))
    assert float(slope.abs().max()) == pytest.approx(100.0)
    assert lipschitz_limit(maximal_chains(SKIPPED), norms) == 1.0
    assert lipschitz_limit(paths(SKIPPED), norms) >= 100.0


def test_lemma_6_as_printed_fails_where_the_layer_itself_is_small() -> None:
    """N = 10 · w · x at w = 0.01: its slope in w is 10 at x = 1, the printed bound is 1."""
    chain, norms = paths({"a": ["b"], "b": []}), {"a": 0.01, "b": 10.0}
    assert gradient_limit(chain, norms, 1.0) == 1.0
    assert gradient_limit(chain, without(norms, "a"), 1.0) >= 10.0


def test_which_layers_may_be_negated() -> None:
    assert may_be_negated(BRANCHED, ["a"]) and may_be_negated(BRANCHED, ["b", "c"])
    assert not may_be_negated(BRANCHED, ["a", "b"])  # one feeds the other
    assert not may_be_negated(BRANCHED, ["d"])  # nothing behind it could compensate
    assert cuts_every_chain(BRANCHED, ["b", "c"]) and not cuts_every_chain(BRANCHED, ["b"])
    with pytest.raises(UnfedError, match="no layer"):
        may_be_negated(BRANCHED, ["z"])


# --- Theorems 3 and 6: Jacobians --------------------------------------------------------------------------------------


def test_answers_around_their_mean_look_symmetric_and_answers_beside_0_do_not() -> None:
    y = noise(3000, 5) + 2
    assert asymmetry(y).at_least > 0.9
    assert asymmetry(y, centred=True).estimate < 0.1
    assert asymmetry(y - 2).at_least == 0.0
    for seed in range(20):  # more features than rows: a direction judged by its own rows would always win
        assert asymmetry(noise(60, 2000, seed=seed)).at_least == 0.0
    with pytest.raises(UnfedError, match="at least 6"):
        asymmetry(y[:5])


def test_the_asymmetry_stays_below_the_true_total_variation() -> None:
    """Y = ±1 with P(1) = p: TV(Y, −Y) = |2p − 1|."""
    draw = torch.Generator().manual_seed(3)
    for p in (0.5, 0.6, 0.9):
        y = torch.where(torch.rand(6000, 1, generator=draw, dtype=torch.float64) < p, 1.0, -1.0).double()
        found = asymmetry(y)
        assert found.at_least <= abs(2 * p - 1) and found.estimate == pytest.approx(abs(2 * p - 1), abs=0.06)


def test_the_premise_fails_at_every_layer_of_a_network_trained_on_digits() -> None:
    template, params, rows = server_of(model="cnn-tiny").template, trained("cnn-tiny"), torch.arange(900)
    for layer in layers_of(template.module):
        y = torch.cat([part[layer] for part in activations(template, params, DIGITS, rows, (layer,))])
        assert asymmetry(y).at_least > 0.8
        assert asymmetry(y, centred=True).at_least == 0.0


def one_hidden(first: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda last, x: last @ torch.tanh(first @ x)


@given(SEEDS, st.integers(0, 4))
def test_gradients_behind_a_negated_layer_move_no_farther_than_the_theorem_says(seed: int, pairs: int) -> None:
    """Inputs of which `pairs` come with both signs: Y and −Y share these points, so TV is known."""
    lone, twins = noise(6 - pairs, 3, seed=seed), noise(pairs, 3, seed=seed + 1)
    x = torch.cat([lone, twins, -twins])
    first, last = noise(4, 3, seed=seed + 2), noise(2, 4, seed=seed + 3)
    before, after = jacobians(one_hidden(first), last, x), jacobians(one_hidden(-first), last, x)
    y = (x @ first.T).round(decimals=9)
    variation = total_variation(y, -y)
    assert variation == pytest.approx((6 - pairs) / (6 + pairs))
    steep = float(torch.cat([before, after]).norm(dim=1).max())
    assert jacobian_distance(before, after) <= jacobian_limit(2 * steep, variation) + 1e-9


def test_before_the_negated_layer_gradients_only_change_their_sign_where_the_rest_is_linear() -> None:
    x, first, second, last = noise(5, 3), noise(4, 3, seed=1), noise(4, 4, seed=2), noise(2, 4, seed=3)

    def upstream(sign: float) -> Tensor:
        return jacobians(lambda w, x: last @ (sign * second @ torch.tanh(w @ x)), first, x)

    assert jacobian_distance(upstream(1), upstream(-1), upstream=True) == pytest.approx(0, abs=1e-12)
    assert jacobian_distance(upstream(1), upstream(-1)) > 0.1


def test_with_the_input_beside_it_a_negated_answer_shares_nothing_with_the_old_one() -> None:
    """Even where Y and −Y have one law: TV(Y, −Y) = 0 and TV((X, Y), (X, −Y)) = 1, so Eq. 52 says nothing."""
    x = double([1.0], [-1.0], [2.0], [-2.0])
    y = 3 * x
    assert total_variation(y, -y) == 0.0
    assert total_variation(torch.cat([x, y], 1), torch.cat([x, -y], 1)) == 1.0
    with pytest.raises(UnfedError, match="total variation lies"):
        jacobian_limit(1.0, 1.5)


# --- Theorem 4, Lemma 8: compensation ---------------------------------------------------------------------------------

KNOWN: dict[str, tuple[Callable[[Tensor], Tensor], Relation | None]] = {
    "tanh": (torch.tanh, Relation(1, 1, 0)),
    "sin": (torch.sin, Relation(1, 1, 0)),
    "sigmoid": (torch.sigmoid, Relation(1, 1, 1)),
    "step": (lambda x: (x > 0).to(x), Relation(1, 1, 1)),
    "square": (torch.square, Relation(1, -1, 0)),
    "cos": (torch.cos, Relation(1, -1, 0)),
    "leaky": (lambda x: torch.where(x > 0, x, -0.1 * x), None),
    "relu": (torch.relu, None),
    "gelu": (torch.nn.functional.gelu, None),
    "silu": (torch.nn.functional.silu, None),
    "constant 0 below": (lambda x: torch.where(x > 0, x**2, 0.0), None),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_relation_of_an_activation_is_found(name: str) -> None:
    psi, expected = KNOWN[name]
    found = relation_of(psi)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.a, found.b, found.c) == pytest.approx((expected.a, expected.b, expected.c), abs=1e-8)


@given(SEEDS, st.sampled_from(["tanh", "sin", "sigmoid", "square"]))
def test_the_next_layer_undoes_a_negation_of_weight_and_bias(seed: int, name: str) -> None:
    psi, relation = KNOWN[name]
    assert relation is not None
    x, w1, b1 = noise(9, 3, seed=seed), noise(5, 3, seed=seed + 1), noise(5, seed=seed + 2)
    w2, b2 = noise(2, 5, seed=seed + 3), noise(2, seed=seed + 4)
    before = psi(x @ w1.T + b1) @ w2.T + b2
    w2_, b2_ = compensated(w2, b2, relation)
    torch.testing.assert_close(psi(x @ -w1.T - b1) @ w2_.T + b2_, before, rtol=0, atol=1e-9)


def test_the_constant_is_c_over_a() -> None:
    """2ψ(x) + 2ψ(−x) = 2 is the sigmoid's relation too; with the printed c instead of c/a it would be off."""
    w2 = noise(2, 5)
    plain, doubled = compensated(w2, None, Relation(1, 1, 1)), compensated(w2, None, Relation(2, 2, 2))
    assert all(torch.equal(one, other) for one, other in zip(plain, doubled, strict=True))
    with pytest.raises(UnfedError, match="not 0"):
        compensated(w2, None, Relation(1, 0, 1))


def test_a_negated_weight_with_its_bias_kept_is_not_undone_by_any_affine_layer() -> None:
    """What NoT's listing does: the best affine map of the new answers leaves a part of the old ones, for tanh too."""
    x, w1, b1 = noise(400, 3), noise(5, 3, seed=1), 1.5 * noise(5, seed=2)
    old, new = torch.tanh(x @ w1.T + b1), torch.tanh(x @ -w1.T + b1)
    design = torch.cat([new, torch.ones(400, 1, dtype=torch.float64)], 1)
    left = old - design @ torch.linalg.lstsq(design, old).solution
    assert float(left.square().sum() / (old - old.mean(0)).square().sum()) > 0.1
    undone = torch.tanh(x @ -w1.T - b1)
    design = torch.cat([undone, torch.ones(400, 1, dtype=torch.float64)], 1)
    torch.testing.assert_close(design @ torch.linalg.lstsq(design, old).solution, old, rtol=0, atol=1e-10)


def test_an_even_activation_does_not_even_notice_a_negation() -> None:
    x, w1, b1 = noise(9, 3), noise(5, 3, seed=1), noise(5, seed=2)
    assert torch.equal(torch.square(x @ w1.T + b1), torch.square(x @ -w1.T - b1))


@pytest.mark.parametrize(("name", "border"), [("tanh", True), ("sigmoid", False)])
def test_zero_padding_is_compensated_at_the_border_only_if_c_is_0(name: str, border: bool) -> None:
    psi, relation = KNOWN[name]
    assert relation is not None
    x, w1, b1 = noise(2, 1, 8, 8), noise(3, 1, 3, 3, seed=1), noise(3, seed=2)
    w2, b2 = noise(2, 3, 3, 3, seed=3), noise(2, seed=4)
    before = torch.conv2d(psi(torch.conv2d(x, w1, b1, padding=1)), w2, b2, padding=1)
    w2_, b2_ = compensated(w2, b2, relation)
    after = torch.conv2d(psi(torch.conv2d(x, -w1, -b1, padding=1)), w2_, b2_, padding=1)
    inside = (..., slice(1, -1), slice(1, -1))
    torch.testing.assert_close(after[inside], before[inside], rtol=0, atol=1e-10)
    assert (float((after - before).abs().max()) < 1e-10) is border


# --- Definitions 7, 8, Theorem 7: optimum -----------------------------------------------------------------------------


def test_the_optimality_norm_by_hand() -> None:
    optimum = double(2.0, 0.0)
    assert optimality_norm(double(5.0, 3.0), [optimum]) == pytest.approx(3.0)  # α = 2.5
    assert optimality_norm(double(-5.0, 3.0), [optimum]) == pytest.approx(math.sqrt(34))  # α = 0
    assert optimality_norm(double(-5.0, 3.0), [optimum, double(0.0, 1.0)]) == pytest.approx(5.0)
    assert optimality_norm(optimum, [torch.zeros(2)]) == pytest.approx(2.0)
    with pytest.raises(UnfedError, match="at least one"):
        optimality_norm(optimum, [])


@given(SEEDS)
def test_negation_keeps_layers_as_optimal_as_they_were_where_it_can_be_compensated(seed: int) -> None:
    optima = list(noise(3, 4, seed=seed))
    layers = [*noise(5, 4, seed=seed + 1), optima[0]]
    closed = [*optima, *(-o for o in optima)]  # Lemma 8: with θ* also −θ* is a layer of an optimal model
    before, after = ([optimality_norm(sign * layer, closed) for layer in layers] for sign in (1, -1))
    assert after == pytest.approx(before, abs=1e-12)
    assert stretch([0.0 if b < 1e-12 else b for b in before], [0.0 if a < 1e-12 else a for a in after]) <= 1 + 1e-9


def test_without_compensation_an_optimal_layer_may_be_as_far_as_can_be() -> None:
    optimum = double(3.0, 4.0)
    assert optimality_norm(-optimum, [optimum]) == pytest.approx(5.0)
    assert stretch([0.0, 1.0], [5.0, 1.0]) == math.inf
    assert stretch([0.0, 2.0], [0.0, 3.0]) == 1.5
    with pytest.raises(UnfedError, match="as many"):
        stretch([1.0], [])


# --- Definitions 3, 4: grafting ---------------------------------------------------------------------------------------


def test_a_grafting_is_recognised_and_a_negated_layer_is_not_one_of_the_old_models() -> None:
    one, other = ({name: noise(2, 2, seed=seed + i) for i, name in enumerate("ab")} for seed in (0, 10))
    models = {"one": one, "other": other}
    made = graft(one, [Choice("b", None, "")], donor=other)
    assert origins(made, models) == {"a": ("one",), "b": ("other",)} and is_grafting(made, models)
    assert not is_grafting(negate(one, [Choice("a", None, "")]), models)
    assert is_grafting(one, {"one": one, "twin": one})


def test_layers_are_coadapted_if_the_grafting_is_optimal() -> None:
    assert are_coadapted(0.5, 0.5) and are_coadapted(0.55, 0.5, within=0.1) and not are_coadapted(0.7, 0.5, within=0.1)
    with pytest.raises(UnfedError, match="negative"):
        are_coadapted(1.0, 1.0, within=-1.0)
