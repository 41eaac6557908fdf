"""Noise of mini-batches against brute force, the corrected time bound by hand, and two tests of Theorem 3's premise."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from theorems import sliced_wasserstein, symmetry_test, wasserstein
from unfed.analysis.bound import Bound, BoundModels, Sets, bound, corrected_time, squared_gap_limit, unlearning_time
from unfed.analysis.gradient_noise import Descent, Noise, covariance_trace, gradient_noise
from unfed.config.config import Config
from unfed.data import TensorSource
from unfed.errors import UnfedError
from unfed.model.functional import Template
from unfed.model.params import params_of
from unfed.runs.simulated import simulated


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def small() -> tuple[Template, TensorSource]:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = drawn(30, 3), torch.arange(30) % 2
    return Template(module, (3,)).to("cpu", torch.float64), TensorSource(x, y, classes=2, dtype=torch.float64)


def test_the_noise_is_what_every_gradient_and_the_whole_hessian_say(small: tuple[Template, TensorSource]) -> None:
    template, source = small
    params = {n: t.detach() for n, t in params_of(template.module).items()}
    lopsided = torch.tensor([1.0, -1.0], dtype=torch.float64)  # so that the mean of the gradients is far from zero
    params |= {"2.bias": params["2.bias"] + lopsided}
    rows = torch.arange(30)
    x, y = source.fetch(rows, None)
    names = list(params)
    shapes = [params[n].shape for n in names]

    def losses(flat: Tensor) -> Tensor:
        parts = flat.split([s.numel() for s in shapes])
        own = {n: p.reshape(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        return F.cross_entropy(template.bind(own)(x), y, reduction="none")

    flat = torch.cat([params[n].flatten() for n in names])
    g = torch.func.jacrev(losses)(flat)
    hessian = torch.func.hessian(lambda t: losses(t).mean())(flat)
    away = g - g.mean(0)
    covariance = away.T @ away / len(g)
    assert covariance_trace(template, params, x, y) == pytest.approx(float(covariance.trace()))
    # η/(1 − μ) = 0.5, over 4 rows at 5 clients: a fortieth of C
    found = gradient_noise(template, params, source, rows, Descent(0.05, 4, momentum=0.9, clients=5), probes=400)
    assert found.diffusion == pytest.approx(float(covariance.trace()) / 40)
    truth = float((covariance @ hessian).trace()) / 40 / 2
    assert found.spread > 0 and abs(found.stochasticity - abs(truth)) < 4 * found.spread


def test_attention_has_a_noise_too() -> None:
    """Its fused kernels have no second derivative; it is taken of the written-out form."""
    world = simulated(Config.preset("digits-cnn", ["model.name=vit-tiny", "engine.precision=float64"]), 0)
    some = world.fresh(0)
    params = {name: t + 0.1 if t.is_floating_point() else t for name, t in some.items()}  # its head is zero
    assert world.held_out is not None
    found = gradient_noise(world.template, params, world.held_out, torch.arange(8), Descent(0.1, 4), probes=4)
    assert found.diffusion > 0 and found.stochasticity > 0 and found.spread > 0


def test_momentum_makes_steps_longer() -> None:
    assert Descent(0.01, 16, momentum=0.9).time(50) == pytest.approx(5.0)
    assert Descent(0.01, 16).time(50) == pytest.approx(0.5)
    for wrong in (Descent, lambda lr, batch: Descent(1.0, 1, momentum=1.0)):
        with pytest.raises(UnfedError, match="A descent has"):
            wrong(0.0, 1)


def test_the_corrected_time_by_hand() -> None:
    printed = unlearning_time(1.0, 0.0, 0.0, 0.0, 1.0, noise=1e-9)
    # nothing to go down, and Lip = 1: √t·√2 = 1
    assert corrected_time(printed, Noise(2.0, 0.0)).time == pytest.approx(0.5)
    steep = unlearning_time(3.0, 1.0, 5.0, 1.0, 2.0)  # 4 / (4·4)
    assert steep.time == pytest.approx(0.25)
    assert corrected_time(steep, Noise(0.0, 0.0)).time == pytest.approx(0.25), "without noise it is the printed one"
    # 2 = 2·(√(4t) + √(9t)): √t = 1/5
    assert corrected_time(steep, Noise(9.0, 0.0)).time == pytest.approx(0.04)
    half = unlearning_time(3.0, 1.0, 5.0, 1.0, 2.0, epsilon=0.5)
    assert corrected_time(half, Noise(9.0, 0.0)).time == pytest.approx(0.01)
    grown = corrected_time(steep, Noise(0.0, 3.0))
    assert grown.time * (4 + 3 * grown.time) == pytest.approx(1.0) and grown.noise == pytest.approx(3 * grown.time)
    assert corrected_time(Bound(0.0, 1.0, 1.0, 2.0, 1.0, 3.0), Noise(1.0, 1.0)).time == 0.0
    assert math.isinf(corrected_time(Bound(1.0, 1.0, 0.0, 2.0, 1.0, 0.0), Noise(1.0, 1.0)).time)


def test_the_corrected_limit_holds_where_noise_alone_carries_the_gap() -> None:
    """δ = √(1 + W_t²) from 1: by quadrature for many t, beside Lip²·t."""
    w = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    density = torch.exp(-(w**2) / 2) / math.sqrt(2 * math.pi)
    for t in (0.01, 0.1, 1.0, 10.0, 1000.0):
        change = float(torch.trapezoid((torch.sqrt(1 + t * w**2) - 1) ** 2 * density, w))
        assert 0 == squared_gap_limit(t, 0.0, 1.0) < change <= squared_gap_limit(t, 0.0, 1.0, diffusion=t)


def test_noise_lowers_the_corrected_bound_of_models(
    small: tuple[Template, TensorSource],
) -> None:
    template, source = small
    params = {n: t.detach() for n, t in params_of(template.module).items()}
    other = {n: t + 0.1 for n, t in params.items()}
    sets = Sets(source, torch.arange(20), torch.arange(20, 30))
    models = BoundModels(params, other, other)
    plain = bound(template, sets, models)
    assert corrected_time(plain, Noise(0.0, 0.0)).time == pytest.approx(plain.time)
    assert corrected_time(plain, Noise(5.0, 0.0)).time < plain.time
    with pytest.raises(UnfedError, match="two rows"):
        gradient_noise(template, params, source, torch.arange(1), Descent(0.1, 1))


def test_symmetry_is_refused_where_there_is_none_and_only_there() -> None:
    even = [symmetry_test(drawn(60, 4, seed=s), draws=199) for s in range(20)]
    assert sum(p <= 0.05 for p in even) <= 4, "a true premise is refused about once in twenty"
    assert symmetry_test(drawn(60, 4) + 1.0, draws=199) == 1 / 200
    skewed = drawn(200, 2).exp()
    assert symmetry_test(skewed, centred=True, draws=199) <= 0.02, "a mean that is taken off does not hide a skew"
    assert symmetry_test(drawn(200, 2) + 5.0, centred=True, draws=199) > 0.05
    with pytest.raises(UnfedError, match="at least 6 rows"):
        symmetry_test(drawn(3, 2))


@pytest.mark.parametrize("width", [1, 60])
def test_a_symmetric_sample_around_an_unknown_centre_is_rarely_refused(width: int) -> None:
    """At most about one in twenty at p ≤ 0.05, also where answers are many: an estimated centre is not a shift."""
    refused = [symmetry_test(drawn(60, width, seed=i) + 3, centred=True, draws=59, seed=i) <= 0.05 for i in range(40)]
    assert sum(refused) <= 6


def test_slices_never_show_more_than_there_is() -> None:
    x, y = drawn(40, 3), drawn(40, 3, seed=1) + 1
    assert 0 < sliced_wasserstein(x, y) <= wasserstein(x, y)
    assert sliced_wasserstein(x, x.flip(0)) == 0.0
    one = drawn(50, 1)
    assert sliced_wasserstein(one, one + 2.0) == pytest.approx(2.0)
    with pytest.raises(UnfedError, match="same shape"):
        sliced_wasserstein(x, y[:3])
