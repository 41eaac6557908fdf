"""models.py: the CNN family has the sizes the paper's tables allow, and a user's module is as welcome as a preset."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch import nn

from unfed.errors import UnfedError
from unfed.model import networks
from unfed.model.networks.cnn import HalvingPool
from unfed.model.params import params_of

CIFAR = (3, 32, 32)
DIGITS = (1, 8, 8)


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def cnn(name: str = "cnn-tiny", seed: int = 0, **options: object) -> Any:
    return networks.build(name, shape=DIGITS, classes=10, seed=seed, **options)


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [("cnn", 10, 94_858), ("cnn", 100, 463_588), ("cnn-wide", 10, 215_306), ("cnn-wide", 100, 261_476)],
)
def test_presets_have_the_parameter_counts_they_were_chosen_with(name: str, classes: int, parameters: int) -> None:
    assert size(networks.build(name, shape=CIFAR, classes=classes, seed=0)) == parameters


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({"norm": "layer"}, 192_970),
        ({"kernel": 3, "widths": (64, 128)}, 157_962),
        ({"hidden": 512}, 2_156_682),
        ({"norm": "batch"}, 94_858),
        ({"norm": "none"}, 94_858 - 192),
    ],
)
def test_the_family_covers_the_other_candidates_for_the_paper_s_cnn(
    options: dict[str, object], parameters: int
) -> None:
    assert size(networks.build("cnn", shape=CIFAR, classes=10, seed=0, **options)) == parameters


@pytest.mark.parametrize("name", networks.PRESETS)
def test_every_preset_gives_logits_and_its_first_parameter_is_conv1_weight(name: str) -> None:
    shape = CIFAR if name == "cnn-wide" else DIGITS
    model: Any = networks.build(name, shape=shape, classes=7, seed=0)
    assert model(torch.rand(2, *shape)).shape == (2, 7)
    assert next(iter(model.named_parameters()))[0] == "conv1.weight"
    assert next(iter(model.parameters())) is model.conv1.weight


def test_any_depth_pool_and_hidden_layer_fit_together() -> None:
    model: Any = networks.build("cnn", shape=CIFAR, classes=3, seed=0, widths=[4, 6, 8], pool=2, hidden=5, dropout=0.1)
    assert model(torch.rand(2, *CIFAR)).shape == (2, 3)
    assert model.features(torch.rand(2, *CIFAR)).shape == (2, 5)
    assert [name for name, _ in model.head.named_children()] == ["dropout", "linear"]


def test_the_batchnorm_preset_has_running_statistics_and_the_groupnorm_preset_has_none() -> None:
    assert "norm1.running_mean" in params_of(cnn("cnn-tiny-bn"))
    assert not list(cnn("cnn-tiny").buffers())


def test_features_are_what_enters_the_heads_dropout() -> None:
    model = cnn("cnn-tiny-dropout").train()
    x = torch.rand(2, *DIGITS)
    assert torch.equal(model.features(x), model.features(x))
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.head.linear(model.features(x)), model.eval()(x))
    model.head = nn.Identity()
    assert torch.equal(model(x), model.features(x))


def test_a_model_is_a_function_of_its_seed_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = cnn(seed=1), cnn(seed=1), cnn(seed=2)
    assert torch.equal(torch.rand(3), expected)
    assert one is not same
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.conv1.weight, other.conv1.weight)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"widths": ()}, "needs widths of at least one"),
        ({"kernel": 4}, "kernel must be odd"),
        ({"norm": "grup"}, "no norm 'grup'.*Did you mean 'group'"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
        ({"hidden": -1}, "hidden >= 0"),
        ({"widths": (4, 4, 4, 4)}, "too small for 4 max-poolings"),
        ({"pool": 3}, "average-pool of 3 does not fit the last 2x2 map"),
        ({"drop": 0.1}, "no option 'drop'.*Did you mean 'dropout'"),
        ({"size": 3}, "no option 'size'"),
    ],
)
def test_impossible_knobs_are_refused_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        cnn(**options)


def test_an_unknown_preset_lists_the_presets_and_the_nearest() -> None:
    with pytest.raises(UnfedError, match=r"cnn-wide.*package.module:factory.*Did you mean 'cnn-wide'"):
        networks.build("cnn-wid", shape=CIFAR, classes=10, seed=0)


def test_a_preset_refuses_images_that_are_not_square() -> None:
    with pytest.raises(UnfedError, match="takes square images"):
        networks.build("cnn", shape=(3, 32, 16), classes=10, seed=0)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, allow_code: None) -> Any:
    module = types.ModuleType("my_models")
    monkeypatch.setitem(sys.modules, "my_models", module)
    return module


def test_a_users_factory_gets_only_the_facts_it_asks_for(mine: Any) -> None:
    mine.by_classes = lambda classes: nn.Linear(2, classes)
    mine.by_both = lambda shape, classes, width=1: nn.Linear(shape[0], classes * width)
    mine.by_all = lambda **facts: nn.Linear(len(facts), 1)
    mine.by_none = lambda: nn.Linear(1, 1)

    def build(name: str, **options: Any) -> Any:
        return networks.build(f"my_models:{name}", shape=(3, 4, 4), classes=5, seed=0, **options)

    assert build("by_classes").out_features == 5
    assert build("by_both", width=2).weight.shape == (10, 3)
    assert build("by_all").in_features == 2
    assert torch.equal(build("by_none").weight, build("by_none").weight)


def test_a_users_factory_must_make_a_new_module_on_every_call(mine: Any) -> None:
    only = nn.Linear(1, 1)
    mine.make = lambda: only
    networks.build("my_models:make", shape=(1,), classes=1, seed=0)
    with pytest.raises(UnfedError, match="same module twice"):
        networks.build("my_models:make", shape=(1,), classes=1, seed=0)


def test_what_is_wrong_with_a_users_factory_is_said_in_one_sentence(mine: Any) -> None:
    mine.make_net = lambda classes: nn.Linear(1, classes)
    mine.number = lambda: 3
    mine.broken = lambda: 1 / 0
    for name, options, sentence in [
        ("no_such_module:make", {}, "cannot be imported.*PYTHONPATH"),
        (":make", {}, "cannot be imported"),
        ("my_models:make_ne", {}, "has no 'make_ne'.*Did you mean 'make_net'"),
        ("my_models:make_net", {"width": 2}, "takes no argument 'width'"),
        ("my_models:number", {}, "returned a int"),
        ("my_models:broken", {}, "failed .ZeroDivisionError"),
    ]:
        with pytest.raises(UnfedError, match=sentence):
            networks.build(name, shape=(1,), classes=1, seed=0, **options)


class Named(nn.Module):
    head_name = "body.1"

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.fc = nn.Linear(2, 2)


def with_child(**children: nn.Module) -> nn.Module:
    module = nn.Module()
    for name, child in children.items():
        module.add_module(name, child)
    return module


def test_the_head_is_found_by_declaration_then_by_name_then_as_the_last_linear() -> None:
    dropout_and_linear = nn.Sequential(nn.Dropout(), nn.Linear(2, 2))
    assert networks.head_of(cnn()) == "head"
    assert networks.head_of(Named()) == "body.1"
    assert networks.head_of(with_child(fc=nn.Linear(2, 2), last=nn.Linear(2, 2))) == "fc"
    assert networks.head_of(with_child(a=nn.Linear(2, 2), classifier=dropout_and_linear)) == "classifier"
    assert networks.head_of(with_child(heads=nn.Linear(2, 2))) == "heads"
    assert networks.head_of(with_child(a=nn.Linear(2, 2), b=nn.Linear(2, 2), c=nn.ReLU())) == "b"
    assert networks.head_of(with_child(a=nn.Linear(2, 2), tail=dropout_and_linear)) == "tail"
    assert networks.head_of(nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2))) == "2"


def test_a_model_without_a_head_is_told_to_declare_one() -> None:
    with pytest.raises(UnfedError, match="set the class attribute head_name"):
        networks.head_of(nn.Sequential(nn.Conv2d(1, 1, 1)))
    lost = type("Lost", (nn.Module,), {"head_name": "haed"})()
    lost.add_module("head", nn.Linear(1, 1))
    with pytest.raises(UnfedError, match=r"is no submodule.*Did you mean 'head'"):
        networks.head_of(lost)


class Token(nn.Module):
    """A class token and a zero bias: what reset_parameters does not reach, and what looks untouched but is not."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 3))
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.attention = nn.MultiheadAttention(3, 1)


def test_reset_reinitialises_what_it_can_and_names_the_rest() -> None:
    module = Token()
    assert module.norm.running_mean is not None
    module.norm.running_mean.fill_(9.0)
    before = params_of(module)
    assert networks.reset(module, seed=3) == ("token",)
    after = params_of(module)
    assert torch.equal(after["token"], before["token"])
    assert not torch.equal(after["linear.weight"], before["linear.weight"])
    assert not torch.equal(after["attention.in_proj_weight"], before["attention.in_proj_weight"])
    assert torch.equal(after["attention.out_proj.bias"], torch.zeros(3)), "the composite's own rule wins"
    assert torch.equal(after["norm.running_mean"], torch.zeros(3))
    assert networks.reset(cnn(), seed=3) == ()


def test_reset_is_a_function_of_its_seed() -> None:
    one, two = cnn(seed=1), cnn(seed=2)
    networks.reset(one, seed=7)
    networks.reset(two, seed=7)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    networks.reset(two, seed=8)
    assert not torch.equal(one.conv1.weight, two.conv1.weight)


def test_a_failing_reset_leaves_the_values_as_they_were() -> None:
    module = nn.Sequential(nn.Linear(2, 2))

    def fail() -> None:
        raise RuntimeError("no")

    module[0].reset_parameters = fail  # type: ignore[assignment]  # a layer that fails
    before = params_of(module)
    with pytest.raises(RuntimeError):
        networks.reset(module, seed=0)
    assert all(torch.equal(before[name], value) for name, value in params_of(module).items())


def test_patches_are_the_convolution_they_stand_for() -> None:
    from unfed.model.networks.vit import Patches

    layer, x = Patches(3, 6, 4).double(), torch.randn(2, 3, 8, 12, dtype=torch.float64, requires_grad=True)
    plain = torch.nn.functional.conv2d(x, layer.weight, layer.bias, stride=4)
    torch.testing.assert_close(layer(x), plain, rtol=1e-12, atol=1e-12)
    weights = torch.randn(plain.shape, dtype=torch.float64)
    assert layer.bias is not None
    wanted = [x, layer.weight, layer.bias]
    found = torch.autograd.grad((layer(x) * weights).sum(), wanted)
    for one, other in zip(found, torch.autograd.grad((plain * weights).sum(), wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("shape", [(5, 3, 8, 8), (2, 4, 7, 9), (3, 2, 5, 4, 6)])
def test_the_pool_of_evaluation_is_pytorch_s_bit_for_bit(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).relu()  # zeros: ties
    x.view(-1)[0] = torch.nan
    pool, want = HalvingPool(2), torch.nn.functional.max_pool2d(x.flatten(0, -4), 2)
    with torch.no_grad():
        found = pool(x)
    assert torch.equal(found.flatten(0, -4).nan_to_num(7), want.nan_to_num(7))
    assert torch.equal(pool(x.flatten(0, -4)).nan_to_num(7), want.nan_to_num(7)), (
        "the same where gradients are asked for"
    )
