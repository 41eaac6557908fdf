"""The estimated spectrum is the population's where the sample's is far from it, and gradients are plain gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from unfed import rng
from unfed.analysis.spectrum import (
    ATOMS,
    Floats,
    Gradients,
    GradientSample,
    alpha,
    content,
    curve,
    el_karoui,
    gradients,
    gram_spectrum,
    index_sets,
)
from unfed.data import TensorSource
from unfed.errors import UnfedError
from unfed.model.functional import Template
from unfed.model.params import params_of

TOLERANCE = 0.08

I_2000 = np.arange(1, 2001)
FIFTH = np.where(I_2000 <= 400, 5.0, 0.1)
HALVES = np.where(np.arange(1000) < 500, 4.0, 1.0)
SPIKES = np.concatenate([[200.0, 100.0, 50.0], np.ones(1997)])


def sample(eigenvalues: Floats, n: int, seed: int = 0, sets: int = 1) -> Gradients:
    """n + 1 Gaussian vectors with these eigenvalues, drawn `sets` times side by side; n values are left of them."""
    x = np.random.default_rng(seed).standard_normal((sets, n + 1, len(eigenvalues))) * np.sqrt(eigenvalues)
    columns = torch.arange(sets * len(eigenvalues)).reshape(sets, -1)
    return Gradients(torch.tensor(np.concatenate(x, axis=1)), columns)


def share(eigenvalues: Floats) -> Floats:
    """Ψ of a population, straight from its definition."""
    return np.cumsum(eigenvalues) / np.sum(eigenvalues)


def estimate(x: Tensor) -> Floats:
    return curve(*el_karoui(gram_spectrum(x), x.shape[1]), x.shape[1])


def direct(mu: Floats, size: int) -> Floats:
    """Ψ of the sample's eigenvalues themselves, padded with zeros: not consistent."""
    values = np.zeros(size)
    values[: len(mu)] = np.sort(mu)[::-1][:size]
    return share(values)


def raw_of(found: Gradients) -> Floats:
    size = found.columns.shape[1]
    raw: Floats = np.mean([direct(gram_spectrum(found.on(j)), size) for j in range(len(found.columns))], axis=0)
    return raw


def off(psi: Floats, eigenvalues: Floats) -> float:
    return float(np.max(np.abs(psi - share(eigenvalues))))


# --- the estimator ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eigenvalues", "n", "raw"),
    [
        pytest.param(HALVES, 2000, 0.198, id="half 1 half 4"),
        pytest.param(SPIKES, 2047, 0.348, id="3 spikes and bulk"),
    ],
)
def test_with_about_as_many_gradients_as_coordinates_one_draw_gives_the_population(
    eigenvalues: Floats, n: int, raw: float
) -> None:
    """In the paper's dimensions. `raw` was seen once for the sample's own eigenvalues, far from the truth."""
    drawn = sample(eigenvalues, n)
    assert off(content(drawn).psi, eigenvalues) < TOLERANCE / 4  # 0.012 at most
    assert off(raw_of(drawn), eigenvalues) == pytest.approx(raw, abs=0.01)


@pytest.mark.parametrize(
    ("eigenvalues", "raw"),
    [
        pytest.param(FIFTH, 0.707, id="20 % at 5, rest 0.1", marks=pytest.mark.slow),
        pytest.param(1.0 / I_2000, 0.337, id="1/i"),
    ],
)
def test_with_sixteen_times_more_coordinates_than_gradients_the_mean_of_ten_draws_gives_the_population(
    eigenvalues: Floats, raw: float
) -> None:
    """In the paper's dimensions, γ = 15.6. Single draws scatter: of forty, the worst were off by 0.05, 0.12 and 0.11,
    and means of ten by 0.06 at most. A mean over sets is what the curve is."""
    drawn = sample(eigenvalues, 128, sets=10)
    assert off(content(drawn).psi, eigenvalues) < TOLERANCE
    assert off(raw_of(drawn), eigenvalues) == pytest.approx(raw, abs=0.01)


@pytest.mark.parametrize(("n", "size"), [(512, 500), (256, 2000)])
def test_of_the_identity_95_percent_are_in_95_percent_of_the_directions(n: int, size: int) -> None:
    x = sample(np.ones(size), n).values
    assert alpha(estimate(x), 0.95) == pytest.approx(0.95, abs=0.02)
    assert alpha(direct(gram_spectrum(x), size), 0.95) < 0.9


def test_the_atoms_keep_the_scale_of_the_gradients() -> None:
    atoms, weights = el_karoui(gram_spectrum(3.0 * sample(np.ones(300), 400).values), 300)
    assert atoms @ weights == pytest.approx(9.0, rel=0.02)
    assert float(atoms[np.argmax(weights)]) == pytest.approx(9.0, rel=0.1)


@pytest.mark.parametrize("factor", [2.0**-40, 1e-6, 1e5])
def test_the_scale_of_the_gradients_does_not_change_the_curve(factor: float) -> None:
    x = sample(1.0 / np.arange(1, 301), 200).values
    assert np.allclose(estimate(factor * x), estimate(x), atol=1e-6)
    assert np.allclose(direct(gram_spectrum(factor * x), 300), direct(gram_spectrum(x), 300), atol=1e-9)


def test_adding_the_same_vector_to_all_gradients_changes_nothing() -> None:
    x = sample(1.0 / np.arange(1, 301), 200).values
    assert np.allclose(gram_spectrum(x + torch.linspace(-1, 1, 300)), gram_spectrum(x), atol=1e-12)


@pytest.mark.slow
@settings(max_examples=6)
@given(st.integers(2, 120), st.integers(1, 400), st.floats(0.0, 3.0), st.integers(0, 1000))
def test_every_curve_rises_bends_down_and_ends_at_one(n: int, size: int, decay: float, seed: int) -> None:
    mu = gram_spectrum(sample(np.arange(1.0, size + 1.0) ** -decay, n, seed).values)
    atoms, weights = el_karoui(mu, size)
    assert np.all(weights >= 0)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert atoms @ weights == pytest.approx(mu.sum() / size, rel=1e-4)
    psi = curve(atoms, weights, size)
    steps = np.diff(psi, prepend=0.0)
    assert len(psi) == size
    assert psi[-1] == 1.0
    assert np.all(steps >= 0)
    assert np.all(np.diff(steps) <= 1e-12)


def test_the_gram_has_the_eigenvalues_of_the_covariance() -> None:
    few, many = sample(SPIKES[:7], 20).values, sample(SPIKES[:50], 20).values
    covariance = np.linalg.eigvalsh(np.cov(few.numpy().T))[::-1]
    assert np.allclose(gram_spectrum(few)[:7], covariance)
    assert np.allclose(gram_spectrum(few)[7:], 0, atol=1e-10)
    assert np.allclose(gram_spectrum(many), np.linalg.eigvalsh(np.cov(many.numpy().T))[::-1][:20])
    assert len(gram_spectrum(few)) == len(gram_spectrum(many)) == 20


# --- curves by hand ---------------------------------------------------------------------------------------------------


def test_a_curve_by_hand() -> None:
    """Quantiles at 7/8, 5/8, 3/8, 1/8 of (1 with weight ½, 2 with ¼, 5 with ¼) are 5, 2, 1, 1."""
    psi = curve(np.array([1.0, 2.0, 5.0]), np.array([0.5, 0.25, 0.25]), 4)
    assert psi.tolist() == [5 / 9, 7 / 9, 8 / 9, 1.0]
    assert [alpha(psi, beta) for beta in (0.5, 5 / 9, 0.56, 0.95, 1.0)] == [0.25, 0.25, 0.5, 1.0, 1.0]


def test_content_is_the_mean_of_the_sets() -> None:
    found = sample(1.0 / np.arange(1, 101), 60, sets=3)
    each = [found.values[:, 100 * j : 100 * (j + 1)] for j in range(3)]
    assert np.array_equal(content(found).psi, np.mean([estimate(x) for x in each], axis=0))
    assert content(found).alpha(0.9) == alpha(content(found).psi, 0.9)


# --- gradients --------------------------------------------------------------------------------------------------------


def network(seed: int = 0) -> Any:
    """Everything that behaves differently in training is in it: batch statistics and dropout."""
    with rng.seeded(seed):
        net: Any = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)
        ).double()
        net[1].running_mean.uniform_(-0.5, 0.5)
        net[1].running_var.uniform_(0.5, 2.0)
    return net


def data(n: int = 40) -> TensorSource:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return TensorSource(x, torch.randint(0, 3, (n,), generator=generator), classes=3, dtype=torch.float64)


def measured(net: nn.Module, rows: Tensor | None = None, **options: Any) -> Gradients:
    chosen: dict[str, Any] = {"seed": 5, "batch": 7, "batches": 9, "size": 20, "sets": 4} | options
    rows = torch.arange(2, 40) if rows is None else rows
    return gradients(Template(net, (6,)), params_of(net), data(), rows, GradientSample(**chosen))


def by_hand(net: nn.Module, batch: Tensor, names: tuple[str, ...]) -> Tensor:
    net.eval().zero_grad()
    F.cross_entropy(net(data().images[batch]), data().labels[batch]).backward()
    return torch.cat([p.grad.reshape(-1) for n, p in net.named_parameters() if n in names and p.grad is not None])


ALL = tuple(name for name, _ in network().named_parameters())


@pytest.mark.parametrize(
    ("names", "stands_for"),
    [(None, ALL), (["4"], ("4.weight", "4.bias")), (["6.weight", "1"], ("1.weight", "1.bias", "6.weight"))],
)
def test_gradients_are_those_of_plain_autograd_in_eval_mode(
    names: list[str] | None, stands_for: tuple[str, ...]
) -> None:
    net, rows = network(), torch.arange(2, 40)
    got = measured(net, rows, names=names)
    parent = rng.key("spectrum", "batches", 5)
    d = sum(p.numel() for n, p in net.named_parameters() if n in stands_for)
    sets = index_sets(d, 20, 4, 5)
    for i in range(9):
        full = by_hand(net, rows[rng.first(rng.fold(parent, i), len(rows), 7)], stands_for)
        for j in range(4):
            assert torch.allclose(got.on(j)[i], full[sets[j]], rtol=1e-12, atol=1e-15)


def test_a_tensor_that_the_loss_does_not_reach_has_gradient_zero() -> None:
    net = network()
    net.register_parameter("unused", nn.Parameter(torch.ones(4, dtype=torch.float64)))
    got = measured(net, names=["unused", "6.bias"], size=7, sets=1).on(0)
    assert torch.equal(got[:, :4], torch.zeros(9, 4, dtype=torch.float64))
    assert bool((got[:, 4:] != 0).all())


def test_only_coordinates_in_a_set_are_kept() -> None:
    assert measured(network(), size=3, sets=2).values.shape[1] <= 6
    assert measured(network(), size=100, sets=50).values.shape == (9, sum(p.numel() for p in network().parameters()))


def test_the_same_seed_gives_the_same_sets_and_batches_for_every_model() -> None:
    a, b, other = measured(network(0)), measured(network(1)), measured(network(0), seed=6)
    assert torch.equal(a.columns, b.columns)
    assert not torch.equal(a.values, b.values)
    assert torch.equal(a.values, measured(network(0)).values)
    assert not torch.equal(index_sets(300, 20, 4, 5), index_sets(300, 20, 4, 6))
    assert other.values.shape != a.values.shape or not torch.equal(other.values, a.values)


def test_a_set_has_no_index_twice_and_sets_differ() -> None:
    sets = index_sets(1000, 50, 30, 0)
    assert sets.shape == (30, 50)
    assert all(len(s.unique()) == 50 for s in sets)
    assert int(sets.min()) >= 0 and int(sets.max()) < 1000
    assert len({tuple(s.tolist()) for s in sets}) == 30
    assert torch.equal(index_sets(1000, 50, 7, 0), sets[:7])


def test_a_network_goes_through_to_its_content() -> None:
    net = network()
    psi = content(measured(net, batches=60, size=40, sets=3)).psi
    assert psi.shape == (40,)
    assert psi[-1] == 1.0
    assert 0.0 < alpha(psi, 0.95) < 0.5  # three classes, so that gradients lie near few directions


def test_measuring_leaves_the_model_as_it_was() -> None:
    net = network()
    template, params = Template(net, (6,)), params_of(net)
    gradients(template, params, data(), torch.arange(40), GradientSample(batch=8, batches=4, size=5, sets=2))
    assert all(torch.equal(params[name], value) for name, value in params_of(net).items())
    assert not any(value.requires_grad for value in params.values())


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batches": 2}, "at least 3 batches, not 2; raise batches"),
        ({"batch": 0}, "at least one row, not 0; raise batch"),
        ({"batch": 38}, "Batches of 38 out of 38 rows would all be the same; lower batch"),
        ({"size": 2000}, "2000 coordinates does not fit into 135 parameters; lower size"),
        ({"size": 20, "names": ["6.bias"]}, "20 coordinates does not fit into 3 parameters"),
        ({"size": 0}, "not 4 of 0; raise both"),
        ({"names": ["6.wieght"]}, "no trainable tensor .* Did you mean '6.weight'?"),
        ({"names": ["1.running_mean"]}, "'1.running_mean' is no trainable tensor"),
        ({"names": []}, "0 parameters; lower size, or name more tensors"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_remedy(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        measured(network(), **options)


def test_a_model_that_diverged_is_refused() -> None:
    net = network()
    with torch.no_grad():
        net[6].weight.fill_(torch.nan)
    with pytest.raises(UnfedError, match="NaN or infinite values; use a model from before it diverged"):
        measured(net)


@pytest.mark.parametrize("x", [torch.zeros(5, 4), torch.full((7, 4), 0.1), torch.rand(1, 4).expand(6, 4)])
def test_gradients_that_are_all_equal_have_no_spectrum(x: Tensor) -> None:
    with pytest.raises(UnfedError, match="All gradients are equal on these coordinates"):
        gram_spectrum(x)


def test_too_few_gradients_are_refused() -> None:
    with pytest.raises(UnfedError, match="at least 3 gradients, not 2; use more batches"):
        gram_spectrum(torch.rand(2, 4))


@pytest.mark.parametrize("mu", [np.zeros(4), np.array([1.0, np.nan]), np.array([np.inf, 1.0]), np.zeros(0)])
def test_a_spectrum_without_a_positive_finite_value_is_refused(mu: Floats) -> None:
    with pytest.raises(UnfedError, match="finite eigenvalues, one of them above zero"):
        el_karoui(mu, 4)


@pytest.mark.parametrize("beta", [0.0, 1.5, float("nan")])
def test_beta_is_a_share(beta: float) -> None:
    with pytest.raises(UnfedError, match="beta is a share above 0 and at most 1"):
        alpha(np.array([0.5, 1.0]), beta)


def test_the_grid_is_that_of_the_methods() -> None:
    assert (len(ATOMS), ATOMS[0], ATOMS[1], ATOMS[-1]) == (301, 0.0, pytest.approx(1e-6), 1.0)
