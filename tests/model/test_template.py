"""A module as a pure function: keyed dropout, row-weighted BatchNorm, features, and a caller's module left alone."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from unfed import rng
from unfed.errors import UnfedError, UnfedWarning
from unfed.model.functional import Template
from unfed.model.keyed import WeightedBatchNorm, keyed_dropout
from unfed.model.networks import build, head_of
from unfed.model.params import params_of

KEY = rng.as_key(rng.key("test"))


class Hand(nn.Module):
    """A user's module that calls dropout by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc.forward(F.dropout(x, 0.5, self.training))


class OwnDraws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc.forward(x + torch.rand_like(x) if self.training else x)


def net(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


def test_the_callers_module_is_not_changed() -> None:
    module = net(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    before = copy.deepcopy(module.state_dict())
    template = Template(module, (6,))
    template.bind(params_of(module), key=KEY)(torch.randn(5, 6))
    assert [type(m) for m in module] == [nn.Linear, nn.BatchNorm1d, nn.Dropout, nn.Linear]
    assert module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_without_a_key_the_network_is_in_eval_mode() -> None:
    module = net(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.9))
    x = torch.randn(5, 6)
    assert torch.equal(Template(module, (6,)).bind(params_of(module))(x), module.eval()(x))


def test_dropout_is_a_function_of_its_key() -> None:
    template = Template(net(nn.Linear(6, 40), nn.Dropout(0.5)), (6,))
    x, params = torch.randn(5, 6), template.like
    first = template.bind(params, key=KEY)(x)
    assert torch.equal(first, template.bind(params, key=KEY)(x))
    assert not torch.equal(first, template.bind(params, key=rng.fold(KEY, 1))(x))


def test_two_dropout_layers_draw_different_masks() -> None:
    template = Template(net(nn.Dropout(0.5), nn.Dropout(0.5)), (1000,))
    kept = template.bind({}, key=KEY)(torch.ones(1, 1000)) > 0
    assert 0.2 < float(kept.double().mean()) < 0.3  # a quarter, were they the same it would be a half


@given(st.floats(0.0, 0.9), st.integers(0, 2**62))
def test_dropout_keeps_the_mean(p: float, key: int) -> None:
    out = keyed_dropout(torch.ones(100, 200), p, rng.as_key(key))
    assert abs(float(out.mean()) - 1) < 6 * (p / (1 - p) / out.numel()) ** 0.5 + 10 / out.numel()  # six standard errors
    kept = out[out > 0]
    assert torch.allclose(kept, torch.full_like(kept, 1 / (1 - p)))


def test_a_mask_does_not_depend_on_rows_that_come_after() -> None:
    short, long = keyed_dropout(torch.ones(3, 7), 0.5, KEY), keyed_dropout(torch.ones(8, 7), 0.5, KEY)
    assert torch.equal(short, long[:3])


def test_channel_dropout_drops_whole_channels() -> None:
    out = Template(nn.Sequential(nn.Dropout2d(0.5)), (16, 4, 4)).bind({}, key=KEY)(torch.ones(6, 16, 4, 4))
    whole = out.flatten(2)
    assert torch.equal(whole.amin(2), whole.amax(2))
    assert 0.2 < float((whole.amax(2) == 0).double().mean()) < 0.8


def test_stacked_clients_draw_what_each_draws_alone() -> None:
    template = Template(net(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3)), (6,))
    keys, x = rng.fold(KEY, torch.arange(3)), torch.randn(3, 5, 6)
    stacked = {n: t.expand(3, *t.shape) for n, t in template.like.items()}
    together = torch.vmap(lambda p, k, x: template.bind(p, key=k)(x))(stacked, keys, x)
    for i in range(3):
        assert torch.allclose(template.bind(template.like, key=keys[i])(x[i]), together[i], atol=1e-6)


def test_dropout_called_by_hand_is_keyed_too() -> None:
    template = Template(Hand(), (6,))
    assert template.keyed and not template.draws_its_own
    x = torch.randn(50, 6)
    first = template.bind(template.like, key=KEY)(x)
    assert torch.equal(first, template.bind(template.like, key=KEY)(x))
    assert not torch.equal(first, template.bind(template.like, key=rng.fold(KEY, 1))(x))
    keys = rng.fold(KEY, torch.arange(2))
    together = torch.vmap(lambda k: template.bind(template.like, key=k)(x))(keys)
    assert torch.allclose(together[1], template.bind(template.like, key=keys[1])(x), atol=1e-6)


def test_a_model_that_draws_its_own_numbers_is_noticed() -> None:
    with pytest.warns(UnfedWarning, match="bit-equal resume are off"):
        template = Template(OwnDraws(), (6,))
    assert template.draws_its_own


@pytest.mark.parametrize(
    "layer",
    [
        nn.MultiheadAttention(4, 2, dropout=0.1, add_zero_attn=True),
        nn.AlphaDropout(0.1),
        nn.LSTM(4, 4, 2, dropout=0.1),
    ],
)
def test_dropout_that_cannot_be_keyed_is_refused(layer: nn.Module) -> None:
    with pytest.raises(UnfedError, match="cannot be keyed; set it to 0"):
        Template(net(nn.Linear(4, 4), layer), (4,))


def test_a_model_that_does_not_fit_the_data_is_named() -> None:
    with pytest.raises(UnfedError, match=r"does not accept a batch of inputs of shape \(7,\)"):
        Template(nn.Linear(6, 4), (7,))


def test_a_forward_must_return_logits() -> None:
    class Says(nn.Module):
        def forward(self, x: Tensor) -> str:
            return "a seven"

    with pytest.raises(UnfedError, match="returned a str; its forward must return logits"):
        Template(Says(), (3,))


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 3)])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_padded_rows_do_not_touch_batch_statistics(shape: Any, momentum: float | None) -> None:
    layer: Any = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[len(shape)](4, momentum=momentum).double()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    template = Template(net(layer), shape)
    real, padding = torch.randn(3, *shape, dtype=torch.float64), 100 * torch.ones(5, *shape, dtype=torch.float64)
    rows = torch.tensor([1.0] * 3 + [0.0] * 5, dtype=torch.float64)
    params = {n: t.clone() for n, t in template.like.items()}
    out = template.bind(params, key=KEY, rows=rows)(torch.cat([real, padding]))[:3]
    truth = copy.deepcopy(layer).train()
    assert torch.allclose(out, truth(real), atol=1e-12)
    assert torch.allclose(params["0.running_mean"], truth.running_mean, atol=1e-12)
    assert torch.allclose(params["0.running_var"], truth.running_var, atol=1e-12)
    assert int(params["0.num_batches_tracked"]) == 1


def test_batchnorm_that_averages_over_all_batches_is_the_same_in_a_stack() -> None:
    template = Template(net(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=None)), (6,)).to("cpu", torch.float64)
    x = torch.randn(2, 5, 6, dtype=torch.float64)

    def step(params: dict[str, Tensor], rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        own = dict(params)
        return template.bind(own, key=KEY)(rows), {n: own[n] for n in template.state}

    stacked = {n: torch.stack([t, t]) for n, t in template.like.items()}
    out, state = torch.vmap(step)({n: t.clone() for n, t in stacked.items()}, x)
    for client in range(2):
        params = {n: t.clone() for n, t in template.like.items()}
        alone = template.bind(params, key=KEY)(x[client])
        truth = copy.deepcopy(template.module).train()
        assert torch.allclose(out[client], alone) and torch.allclose(alone, truth(x[client]))
        assert torch.allclose(state["1.running_var"][client], truth.get_buffer("1.running_var"))


def test_a_layer_that_is_made_in_the_first_call_is_refused() -> None:
    class Late(nn.Module):
        """A head that is as wide as what comes to it."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 4)
            self.head: nn.Linear | None = None

        def forward(self, x: Tensor) -> Tensor:
            x = self.body(x)
            if self.head is None:
                self.head = nn.Linear(x.shape[1], 2)
            return self.head.forward(x)

    with pytest.raises(UnfedError, match=r"makes 'head\.weight' only when it is first called; make it in __init__"):
        Template(Late(), (6,))
    called = Late()
    called(torch.zeros(2, 6))
    assert "head.weight" in Template(called, (6,)).trainable


def test_weighted_batchnorm_without_weights_is_pytorchs_own() -> None:
    layer = nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 2, 2)
    assert torch.equal(WeightedBatchNorm(layer).train()(x), copy.deepcopy(layer).train()(x))


def test_a_single_row_on_one_pixel_maps_does_not_break_batchnorm() -> None:
    template = Template(net(nn.Linear(6, 4), nn.BatchNorm1d(4)), (6,))
    params = {n: t.clone() for n, t in template.like.items()}
    assert torch.isfinite(template.bind(params, key=KEY)(torch.randn(1, 6))).all()
    assert torch.isfinite(params["1.running_var"]).all()


def test_features_are_what_enters_the_head_before_its_dropout() -> None:
    module = build("cnn-tiny-dropout", shape=(1, 8, 8), classes=3, seed=0)
    template = Template(module, (1, 8, 8))
    x = torch.randn(4, 1, 8, 8)
    features = template.bind(template.like).features(x)
    head = module.get_submodule("head").eval()
    assert torch.allclose(head(features), template.bind(template.like)(x), atol=1e-6)
    trained = template.bind({n: t.clone() for n, t in template.like.items()}, key=KEY).features(x)
    assert torch.allclose(trained, features, atol=1e-6)  # no dropout before the head


def test_features_of_a_model_that_drops_out_by_hand_are_keyed_as_its_logits_are() -> None:
    module = Hand()
    template, x = Template(module, (6,)), torch.randn(5, 6)
    net = template.bind(template.like, key=KEY)
    head = module.get_submodule(head_of(module))
    assert torch.allclose(head(net.features(x)), net(x), atol=1e-6)
    assert not torch.equal(net.features(x), template.bind(template.like).features(x))


def test_tied_weights_appear_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.b = nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b.forward(self.a(x))

    module = Tied()
    template = Template(module, (4,))
    assert list(template.like) == ["a.weight"]
    x, doubled = torch.randn(2, 4), {"a.weight": 2 * module.a.weight.detach()}
    assert torch.allclose(template.bind(doubled)(x), 4 * module(x), atol=1e-6)


def test_frozen_parameters_are_not_trainable_but_there() -> None:
    module = net(nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    template = Template(module, (4,))
    assert template.trainable == ("1.weight", "1.bias")
    assert template.state == ("0.weight", "0.bias")
    rebuilt: Any = template.module
    assert not rebuilt[0].weight.requires_grad and rebuilt[1].weight.requires_grad
