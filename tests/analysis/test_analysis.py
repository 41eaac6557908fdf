"""The paper's measurements: CKA, the unlearning-time bound, layer-wise optimality."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from test_central_methods import DIGITS, fresh, one_client, run, server_of, trained
from theorems import recovery_time
from unfed.analysis.activations import activations, called_layers, layers_of
from unfed.analysis.bound import BoundModels, Sets, bound, unlearning_time
from unfed.analysis.cka import Cka, compare, hsic, normalised
from unfed.data import TensorSource
from unfed.engines import Sequential
from unfed.errors import UnfedError, UnfedWarning
from unfed.federation.state import Schedule
from unfed.methods import FineTune, NoT, Retrain
from unfed.methods.nr_freeze import NRFreeze
from unfed.model.functional import Template
from unfed.model.layers import choose
from unfed.model.networks import build
from unfed.model.params import params_of
from unfed.model.perturb import negate
from unfed.runs.run import Run
from worlds import Small


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unbiased(x: Tensor, y: Tensor, batch: int) -> float | str:
    found = Cka()
    for begin in range(0, len(x), batch):
        found.add(x[begin : begin + batch], y[begin : begin + batch])
    return found.value()


def biased(x: Tensor, y: Tensor) -> float:
    """The plain estimate ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖), too high where there are more features than samples."""
    x, y = x - x.mean(0), y - y.mean(0)
    return float((y.T @ x).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


def number(value: float | str) -> float:
    assert not isinstance(value, str), value
    return value


# --- CKA --------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.floats(0.01, 100.0), st.booleans())
def test_cka_does_not_see_rotations_scales_and_shifts(seed: int, scale: float, many: bool) -> None:
    x, y = noise(12, 20 if many else 5, seed=seed), noise(12, 4, seed=seed + 1)
    rotation, _ = torch.linalg.qr(noise(x.shape[1], x.shape[1], seed=seed + 2))
    moved = scale * x @ rotation + noise(1, x.shape[1], seed=seed + 3)
    assert unbiased(x, -x, 12) == pytest.approx(1)
    assert unbiased(moved, y, 12) == pytest.approx(unbiased(x, y, 12), abs=1e-7)


def test_independent_noise_looks_alike_to_the_biased_estimate_only() -> None:
    x, y = noise(1024, 512), noise(1024, 512, seed=1)
    assert biased(x[:256], y[:256]) > 0.6
    assert abs(number(unbiased(x, y, 256))) < 0.05


def test_cka_averages_over_batches_before_it_divides() -> None:
    x, y = noise(24, 5), noise(24, 5, seed=1) + noise(24, 5)
    grams = [(m @ m.T, n @ n.T) for m, n in zip(x.split(8), y.split(8), strict=True)]
    both, own_x, own_y = (
        torch.stack([hsic(*pair) for pair in chosen]).sum()
        for chosen in (grams, [(K, K) for K, _ in grams], [(L, L) for _, L in grams])
    )
    assert unbiased(x, y, 8) == pytest.approx(float(both / (own_x * own_y).sqrt()))
    assert unbiased(x, y, 8) != pytest.approx(unbiased(x[-8:], y[-8:], 8), abs=1e-3)


def test_hsic_by_its_definition() -> None:
    """Over all ordered quadruples of different samples, counted one by one."""
    n = 5
    K, L = (m @ m.T for m in (noise(n, 3), noise(n, 2, seed=1)))
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    first = sum(K[i, j] * L[i, j] for i, j in pairs) / (n * (n - 1))
    four = [(i, j, q, r) for i, j in pairs for q, r in pairs if len({i, j, q, r}) == 4]
    second = sum(K[i, j] * L[q, r] for i, j, q, r in four) / len(four)
    three = [(i, j, q) for i, j in pairs for q in range(n) if q not in (i, j)]
    third = sum(K[i, j] * L[i, q] for i, j, q in three) / len(three)
    assert float(hsic(K, L)) == pytest.approx(float(first + second - 2 * third), rel=1e-9)


def test_a_negated_first_layer_answers_as_before_and_the_next_one_does_not() -> None:
    template, params = server_of(model="cnn-tiny").template, trained("cnn-tiny")
    negated = negate(params, choose(template.module, ("first",)))
    found = compare(template, params, {"θ*": params, "NoT": negated}, DIGITS, torch.arange(512), batch=128)
    assert all(value == pytest.approx(1) for value in found["θ*"].values())
    assert found["NoT"]["conv1"] == pytest.approx(1)  # its bias is not negated: a constant, which centring removes
    assert number(found["NoT"]["conv2"]) < 0.9


def test_normalised_cka_is_zero_at_the_untrained_model_and_one_at_the_reference() -> None:
    assert normalised({"a": 0.4, "b": 1.0, "c": 0.7}, {"a": 0.4, "b": 0.2, "c": 0.4}) == {
        "a": 0.0, "b": 1.0, "c": pytest.approx(0.5),
    }  # fmt: skip

    same: dict[str, float | str] = {"a": 1.0 - 1e-16}
    assert "an untrained model already sees" in str(normalised({"a": 0.5}, same)["a"])
    missing = normalised({"a": "not measured: x", "b": 0.5}, {"a": 0.1, "b": "not measured: y"})
    assert missing == {"a": "not measured: x", "b": "not measured: y"}


@pytest.mark.parametrize("n", [4, 8, 33])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_layers_that_compare_nothing_have_no_cka(n: int, scale: float) -> None:
    """HSIC₁(I, I) is 0 by its definition, and a constant's is: 0/0 is no number, least of all −1."""
    identity, constant, x = scale * torch.eye(n), scale * torch.ones(n, 3), noise(n, 5)
    for degenerate in (identity, constant):
        for one, other in ((degenerate, degenerate), (degenerate, x), (x, degenerate)):
            assert str(unbiased(one, other, n)).startswith("not measured: the layer tells no two")
    if n > 4:
        assert unbiased(x, -scale * x, n) == pytest.approx(1)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(UnfedError, match="at least 4"):
        Cka().add(noise(3, 2), noise(3, 2))
    with pytest.raises(UnfedError, match="at least 4"):
        compare(server_of().template, trained(), {"same": trained()}, DIGITS, torch.arange(3))


# --- activations ------------------------------------------------------------------------------------------------------


def test_the_paper_s_layers_are_found_from_input_to_output() -> None:
    assert layers_of(build("cnn-tiny", shape=(1, 8, 8), classes=10, seed=0)) == (
        "conv1",
        "norm1",
        "conv2",
        "norm2",
        "head",
    )
    resnet = layers_of(build("resnet-tiny", shape=(3, 32, 32), classes=10, seed=0))
    assert resnet == ("relu", "layer1.0", "layer2.0", "layer3.0", "layer4.0", "fc")
    vit = layers_of(build("vit-tiny", shape=(3, 16, 16), classes=10, seed=0))
    assert vit == ("conv_proj", "encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1", "heads")
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    assert layers_of(plain) == ("1", "3")


def test_activations_are_what_the_layers_answer() -> None:
    template, params = server_of(model="cnn-tiny").template, trained("cnn-tiny")
    rows = torch.arange(10)
    parts = list(activations(template, params, DIGITS, rows, ("conv1", "head"), batch=4))
    assert [len(part["head"]) for part in parts] == [4, 4, 2]
    x, _ = DIGITS.fetch(rows)
    logits = template.bind(params)(x)
    torch.testing.assert_close(torch.cat([part["head"] for part in parts]), logits)
    conv = torch.conv2d(x, params["conv1.weight"], params["conv1.bias"], padding=1).flatten(1)
    torch.testing.assert_close(torch.cat([part["conv1"] for part in parts]), conv)
    assert not template.module.get_submodule("conv1")._forward_hooks


def test_a_layer_that_is_not_there_is_named() -> None:
    with pytest.raises(UnfedError, match="no layer 'conv9'.*conv1"):
        next(activations(server_of().template, trained(), DIGITS, torch.arange(4), ("conv9",)))


# --- the bound --------------------------------------------------------------------------------------------------------


def test_gradient_flow_takes_at_least_the_bound() -> None:
    """Two quadratics in the plane: D_r pulls to the origin, D_u to another place."""
    away = torch.tensor([2.0, 0.0], dtype=torch.float64)
    theta, time, lr, steepest = torch.tensor([1.0, 1.0], dtype=torch.float64), 0.0, 1e-3, 0.0
    delta = [abs(float(theta.square().sum() - (theta - away).square().sum())) / 2]
    start = float(theta.square().sum()) / 2
    while time < 3.0:
        steepest = max(steepest, float((theta - (theta - away)).norm()))
        theta, time = theta - lr * theta, time + lr
    delta.append(abs(float(theta.square().sum() - (theta - away).square().sum())) / 2)
    found = unlearning_time(delta[1], delta[0], start, float(theta.square().sum()) / 2, steepest)
    assert 0 < found.time <= time


@given(st.floats(0.1, 10), st.floats(0.1, 3), st.floats(0.1, 3), st.floats(0.1, 3))
def test_losses_c_times_as_large_take_a_c_th_of_the_time(c: float, a: float, b: float, steep: float) -> None:
    one = unlearning_time(a, a + b, 2.0, 0.5, steep).time
    scaled = unlearning_time(c * a, c * (a + b), c * 2.0, c * 0.5, c * steep).time
    assert scaled == pytest.approx(one / c)


def test_by_hand() -> None:
    # (0.5 · (3 − 1))² / (2² · (|5 − 1| + 1)) = 1 / 20
    found = unlearning_time(3.0, 1.0, 5.0, 1.0, 2.0, noise=1.0, epsilon=0.5)
    assert found.time == pytest.approx(0.05)
    assert found.flops(lr=0.001, clients=9, batch=64, forward_flops=10) == pytest.approx(50 * 9 * 64 * 30)
    # The loss may also rise on the way to the long-trained model: its distance counts.
    assert unlearning_time(3.0, 1.0, 1.0, 5.0, 2.0, noise=1.0, epsilon=0.5).time == found.time


def test_nothing_to_forget_takes_no_time_and_nothing_to_drive_it_takes_forever() -> None:
    assert unlearning_time(0.3, 0.3, 1.0, 1.0, 0.0).time == 0.0
    with pytest.warns(UnfedWarning, match="infinite"):
        assert math.isinf(unlearning_time(0.3, 0.1, 1.0, 1.0, 2.0).time)
    with pytest.raises(UnfedError, match="ε"):
        unlearning_time(1, 0, 1, 0, 1, epsilon=1.0)


def test_a_recovery_is_over_when_the_loss_is_back() -> None:
    assert recovery_time([0.0, 1.0, 2.0, 3.0], [2.0, 0.6, 0.4, 0.5], optimum=0.3, within=0.2) == 2.0
    assert recovery_time([0.0, 1.0], [2.0, 1.0], optimum=0.0, within=0.5) is None
    with pytest.raises(UnfedError, match="one loss per time"):
        recovery_time([0.0], [1.0, 2.0], 0.0, 0.0)


def test_the_bound_of_not_lies_below_that_of_ft() -> None:
    """60 digits, of which 12 leave; every model trained for real, Lip over the checkpoints of each method's own run."""
    sets = Sets(DIGITS, torch.arange(12, 60), torch.arange(12), batch=20)
    constant = Schedule()
    first = server_of(0, params=fresh(3, "cnn-tiny"), model="cnn-tiny", schedule=constant)
    start = run(Retrain(), first, 60).params
    server = server_of(12, params=start, model="cnn-tiny", schedule=constant)
    retrained, long = run(Retrain(), server, 60).params, run(Retrain(), server, 120).params
    found = {}
    for method in (FineTune(), NoT()):
        states = [method.begin(server)]
        for _ in range(3):
            states.append(method.round(server, states[-1]))
        found[method.name] = bound(
            server.template,
            sets,
            BoundModels(states[0].params, retrained, long, [state.params for state in states[1:]]),
        )
    assert 0 < found["not"].time < found["ft"].time
    assert found["not"].loss_start > found["ft"].loss_start
    assert found["ft"].delta_start == pytest.approx(sets.delta(server.template, start))


def test_the_steepness_is_the_norm_of_the_difference_of_gradients() -> None:
    template, params = server_of(model="cnn-tiny").template, trained("cnn-tiny")
    sets = Sets(DIGITS, torch.arange(12, 60), torch.arange(12), batch=7)
    leaves = {n: t.clone().requires_grad_() for n, t in params.items()}

    def loss(rows: Tensor) -> Tensor:
        x, y = DIGITS.fetch(rows)
        return torch.nn.functional.cross_entropy(template.bind(leaves)(x), y)

    grads = torch.autograd.grad(loss(sets.retain) - loss(sets.forget), list(leaves.values()))
    expected = math.sqrt(sum(float(g.square().sum()) for g in grads))
    assert sets.steepness(template, params) == pytest.approx(expected, rel=1e-9)


def test_a_bound_without_forgotten_rows_is_refused() -> None:
    sets = Sets(DIGITS, torch.arange(5), torch.arange(0))
    with pytest.raises(UnfedError, match="rows of D_r and of D_u"):
        bound(server_of().template, sets, BoundModels(trained(), trained(), trained()))


# --- NR-Freeze --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
def test_the_frozen_layer_stays_negated_to_the_bit_and_the_rest_starts_anew(keep: bool) -> None:
    server = server_of(12, keep=keep)
    method, before = NRFreeze(), server.params
    begun = method.begin(server).params
    drawn = server.init("nr-freeze")
    assert torch.equal(begun["conv1.weight"], -before["conv1.weight"])
    assert not torch.equal(drawn["conv2.weight"], before["conv2.weight"])
    assert all(torch.equal(begun[name], drawn[name]) for name in before if name != "conv1.weight")
    after = run(method, server, 3).params
    assert torch.equal(after["conv1.weight"], -before["conv1.weight"])
    assert not torch.equal(after["conv2.weight"], begun["conv2.weight"])


def test_a_layer_that_the_model_has_frozen_itself_needs_no_holding() -> None:
    clients = {"all": one_client(12, DIGITS)}
    server = server_of(model="cnn-tiny", clients=clients)
    module = build("cnn-tiny", shape=(1, 8, 8), classes=10, seed=0)
    module.get_submodule("conv1").requires_grad_(False)
    server.template = Template(module, (1, 8, 8)).to("cpu", torch.float64)
    server.engine = Sequential(server.template, clients)
    before = server.params
    after = run(NRFreeze(layers=("conv1",)), server, 1).params
    assert torch.equal(after["conv1.weight"], -before["conv1.weight"])


def test_freezing_rows_of_a_tensor_is_refused() -> None:
    module = build("cnn-tiny", shape=(1, 8, 8), classes=10, seed=0)
    with pytest.raises(UnfedError, match="whole tensors"):
        NRFreeze(layers=("conv1.weight[0:2]",)).check(module)


def test_a_run_compares_it_with_retrain(small: Small, tmp_path: Path) -> None:
    path = "unfed.methods.nr_freeze:NRFreeze"
    done = Run.create(small(f'methods.run=["retrain", "{path}"]', "training.rounds=2"), tmp_path / "run")
    done.execute()
    last = {line["method"]: line["round"] for line in done.lines()}
    assert last["retrain"] == last[path] == 2
    start, frozen = done.model(), done.model(request="r1", method=path)
    assert torch.equal(frozen["conv1.weight"], -start["conv1.weight"])


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_s_examples_run(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = small('methods.run=["retrain", "ft", "not"]', 'request={id="client-0-leaves", clients=["0"]}')
    Run.create(made, tmp_path / "runs" / "demo").execute()
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/how-to/analysis.md").read_text()
    exec("".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})
    said = capsys.readouterr().out
    assert "NoT, round 0" in said and "at least" in said and "α = " in said


def test_layers_that_are_only_read_and_layers_with_two_answers_can_be_watched() -> None:
    class Reader(nn.Module):
        """Its table is read, never called; attention answers with a pair."""

        def __init__(self) -> None:
            super().__init__()
            self.places, self.attend = nn.Embedding(3, 4), nn.MultiheadAttention(4, 1, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.places.weight
            return self.head(self.attend(x, x, x)[0].mean(1))  # type: ignore[no-any-return]

    module = Reader().eval()
    template, source = Template(module, (3, 4)), TensorSource(torch.randn(8, 3, 4), torch.zeros(8, dtype=torch.int64))
    layers = called_layers(template, params_of(module), source)
    assert layers == ("attend", "head")
    (answers,) = activations(template, params_of(module), source, torch.arange(8), layers)
    assert answers["attend"].shape == (8, 12) and answers["head"].shape == (8, 2)
    with pytest.raises(UnfedError, match="'places' was not called in a forward pass; choose another"):
        list(activations(template, params_of(module), source, torch.arange(8), ("places",)))
