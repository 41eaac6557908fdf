"""ResNet-18, ViT-B/16 and EfficientNet-B0: torchvision's names, order and sizes, and the paper's layer addresses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from unfed import storage
from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.methods.not_ import NoT
from unfed.model import networks
from unfed.model.functional import Template, forward_flops
from unfed.model.layers import choose
from unfed.model.params import Params, params_of
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.world import World

PHOTO = (3, 224, 224)
TINY = ("resnet-tiny", "vit-tiny", "efficientnet-tiny")
FULL = ("resnet18", "vit-b-16", "efficientnet-b0")


def bare(name: str, classes: int = 10) -> nn.Module:
    """The full model without its numbers: names and shapes cost nothing on the meta device."""
    kind, knobs = networks.MODELS[name]
    with torch.device("meta"):
        return kind(**knobs, classes=classes)


def tiny(name: str, seed: int = 0, shape: tuple[int, ...] = (1, 8, 8), **options: object) -> nn.Module:
    return networks.build(name, shape=shape, classes=10, seed=seed, **options)


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


# --- torchvision's names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "classes", "parameters", "tensors"),
    [
        ("resnet18", 10, 11_181_642, 62),
        ("resnet18", 100, 11_227_812, 62),
        ("vit-b-16", 101, 85_876_325, 152),
        ("vit-b-16", 1000, 86_567_656, 152),
        ("efficientnet-b0", 1000, 5_288_548, 213),
    ],
)
def test_the_sizes_are_torchvisions(name: str, classes: int, parameters: int, tensors: int) -> None:
    module = bare(name, classes)
    assert sum(p.numel() for p in module.parameters()) == parameters
    assert len(names(module)) == tensors


def test_resnet_18_has_torchvisions_names_in_its_order() -> None:
    norm: Callable[..., Any] = lambda at: [f"{at}.weight", f"{at}.bias"]  # noqa: E731
    expected = ["conv1.weight", *norm("bn1")]
    for layer in range(1, 5):
        for block in range(2):
            at = f"layer{layer}.{block}"
            expected += [f"{at}.conv1.weight", *norm(f"{at}.bn1"), f"{at}.conv2.weight", *norm(f"{at}.bn2")]
            if layer > 1 and block == 0:
                expected += [f"{at}.downsample.0.weight", *norm(f"{at}.downsample.1")]
    assert names(bare("resnet18")) == [*expected, *norm("fc")]
    state = list(bare("resnet18").state_dict())
    assert state[1:6] == [
        f"bn1.{leaf}" for leaf in ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    ]


def test_vit_b_16_has_torchvisions_names_in_its_order() -> None:
    expected = ["class_token", "conv_proj.weight", "conv_proj.bias", "encoder.pos_embedding"]
    leaves = ["ln_1", "self_attention.in_proj_", "self_attention.out_proj", "ln_2", "mlp.0", "mlp.3"]
    for i in range(12):
        for leaf in leaves:
            for kind in ("weight", "bias"):
                expected.append(f"encoder.layers.encoder_layer_{i}.{leaf}{'' if leaf.endswith('_') else '.'}{kind}")
    expected += ["encoder.ln.weight", "encoder.ln.bias", "heads.head.weight", "heads.head.bias"]
    module = bare("vit-b-16")
    assert names(module) == expected == list(module.state_dict())
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert shapes["class_token"] == (1, 1, 768) and shapes["encoder.pos_embedding"] == (1, 197, 768)
    assert shapes["encoder.layers.encoder_layer_0.self_attention.in_proj_weight"] == (2304, 768)


def test_efficientnet_b0_has_torchvisions_names_in_its_order() -> None:
    unit: Callable[..., Any] = lambda at: [f"{at}.0.weight", f"{at}.1.weight", f"{at}.1.bias"]  # noqa: E731
    expected = unit("features.0")
    for stage, blocks in enumerate((1, 2, 2, 3, 3, 4, 1), start=1):
        for block in range(blocks):
            at, place = f"features.{stage}.{block}.block", 0
            if stage > 1:  # the first stage does not expand
                expected += unit(f"{at}.0")
                place = 1
            expected += unit(f"{at}.{place}")
            expected += [f"{at}.{place + 1}.{fc}.{leaf}" for fc in ("fc1", "fc2") for leaf in ("weight", "bias")]
            expected += unit(f"{at}.{place + 2}")
    expected += [*unit("features.8"), "classifier.1.weight", "classifier.1.bias"]
    module = bare("efficientnet-b0")
    assert names(module) == expected
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert shapes["features.2.0.block.1.0.weight"] == (96, 1, 3, 3), "depthwise"
    assert shapes["features.2.0.block.2.fc1.weight"] == (4, 96, 1, 1), "squeezed by the block's input"
    drops = [m.p for m in module.modules() if isinstance(m, networks.StochasticDepth)]
    assert drops == pytest.approx([0.2 * i / 16 for i in range(16)])


@pytest.mark.parametrize(("small", "full"), list(zip(TINY, FULL, strict=True)))
def test_the_tiny_variants_are_the_same_code(small: str, full: str) -> None:
    module = tiny(small)
    assert type(module) is type(bare(full)) and sum(p.numel() for p in module.parameters()) < 60_000
    assert (
        networks.head_of(module)
        == networks.head_of(bare(full))
        == {"r": "fc", "v": "heads", "e": "classifier"}[full[0]]
    )
    assert names(module)[:2] == names(bare(full))[:2]
    assert module(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert tiny(small, shape=(3, 32, 32))(torch.rand(2, 3, 32, 32)).shape == (2, 10)


# --- initialisation ---------------------------------------------------------------------------------------------------


def close(value: Tensor, std: float) -> bool:
    return abs(float(value.std()) - std) < 0.1 * std


def test_initialisation_follows_torchvisions_rules() -> None:
    resnet = params_of(networks.build("resnet-tiny", shape=PHOTO, classes=10, seed=0, widths=(32, 64), blocks=(1, 1)))
    assert close(resnet["conv1.weight"], (2 / (32 * 49)) ** 0.5), "He over the outputs"
    vit = params_of(networks.build("vit-tiny", shape=(3, 32, 32), classes=10, seed=0, width=64, mlp=128))
    assert not vit["class_token"].any() and not vit["heads.head.weight"].any() and not vit["conv_proj.bias"].any()
    assert close(vit["encoder.pos_embedding"], 0.02) and close(vit["conv_proj.weight"], (1 / 48) ** 0.5)
    first = "encoder.layers.encoder_layer_0."
    assert close(vit[first + "mlp.0.weight"], (2 / (64 + 128)) ** 0.5), "Xavier"
    assert 0 < float(vit[first + "mlp.3.bias"].abs().max()) < 1e-5
    assert not vit[first + "self_attention.in_proj_bias"].any()
    net = params_of(tiny("efficientnet-tiny"))
    assert not net["classifier.1.bias"].any() and float(net["classifier.1.weight"].abs().max()) <= 10**-0.5
    assert not net["features.1.0.block.1.fc1.bias"].any()


@pytest.mark.parametrize("name", TINY)
def test_reset_reaches_every_parameter_and_follows_the_same_rules(name: str) -> None:
    module, like = tiny(name), params_of(tiny(name, seed=1))
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(7.0)
    assert networks.reset(module, seed=1) == ()
    for key, value in params_of(module).items():
        assert not (value == 7.0).any(), key
        if value.numel() > 500:
            assert abs(float(value.std()) - float(like[key].std())) <= 0.1 * float(like[key].std()), key


# --- the paper's layers -----------------------------------------------------------------------------------------------


def test_the_papers_addresses_on_vit() -> None:
    module = bare("vit-b-16", 101)
    chosen: Callable[..., Any] = lambda address: [(c.name, c.rows) for c in choose(module, [address])]  # noqa: E731
    assert chosen("first") == chosen("conv_proj") == chosen(1) == [("conv_proj.weight", None)]
    assert chosen(0) == [("class_token", None)]
    assert chosen("encoder.pos_embedding") == [("encoder.pos_embedding", None)]
    for i in (0, 1):
        name = f"encoder.layers.encoder_layer_{i}.self_attention.in_proj_weight"
        assert chosen(f"{name}[0:768]") == [(name, (0, 768))]


def test_the_query_rows_are_the_queries() -> None:
    module = tiny("vit-tiny").double().eval()
    attention: Any = module.get_submodule("encoder.layers.encoder_layer_0.self_attention")
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    reference = nn.MultiheadAttention(16, 2, batch_first=True).double()
    reference.load_state_dict(attention.state_dict())
    assert torch.allclose(attention(x), reference(x, x, x, need_weights=False)[0])
    with torch.no_grad():
        attention.in_proj_weight[:16].zero_()
        attention.in_proj_bias[:16].zero_()
    # Without a query every token attends to all tokens alike.
    value = x @ attention.in_proj_weight[32:].T + attention.in_proj_bias[32:]
    expected = attention.out_proj(value.mean(1, keepdim=True)).expand(-1, 5, -1)
    assert torch.allclose(attention(x), expected)


def test_the_papers_set_on_efficientnet_is_every_convolution_up_to_index_150() -> None:
    module = bare("efficientnet-b0", 10)
    listed = names(module)
    chosen = [c.name for c in choose(module, ["conv+dense<=150"])]
    expected = [n for n, p in list(module.named_parameters())[:151] if p.ndim == 4]
    assert chosen == expected and "classifier.1.weight" not in chosen
    assert listed.index(chosen[-1]) <= 150 < listed.index("features.6.3.block.0.0.weight")
    assert chosen[0] == "features.0.0.weight" and all(".1.weight" not in n or "block.1." in n for n in chosen)


def test_not_negates_the_papers_set_on_efficientnet_unless_told_otherwise() -> None:
    module, papers = bare("efficientnet-b0", 10), NoT().layers
    assert choose(module, papers)[0].name == "features.0.0.weight"
    assert [c.name for c in choose(module, papers)] == [c.name for c in choose(module, ["conv+dense<=150"])]
    assert [c.name for c in choose(module, ["first"])] == ["features.0.0.weight"]
    small = tiny("efficientnet-tiny")  # 44 parameters: up to 150 would be all of it, its head too
    assert [c.name for c in choose(small, papers)] == ["features.0.0.weight"]
    for name, first in (("resnet18", "conv1.weight"), ("vit-b-16", "conv_proj.weight")):
        assert [c.name for c in choose(bare(name), papers)] == [first]


# --- keyed, stacked, counted ------------------------------------------------------------------------------------------


def shaken(module: nn.Module, seed: int) -> Params:
    """Params without zeros: a head that starts at zero would make every gradient behind it zero."""
    generator = torch.Generator().manual_seed(seed)
    noise: Callable[..., Any] = lambda t: 0.1 * torch.randn(t.shape, generator=generator, dtype=t.dtype)  # noqa: E731
    return {
        n: t + noise(t) if t.is_floating_point() and "running" not in n else t for n, t in params_of(module).items()
    }


NO_CPU_RULE = "ignore:There is a performance drop.*scaled_dot_product:UserWarning"


@pytest.mark.filterwarnings(NO_CPU_RULE)
@pytest.mark.parametrize("name", TINY)
def test_a_batched_gradient_of_two_copies_equals_separate_gradients(name: str) -> None:
    module = tiny(name).double()
    template = Template(module, (1, 8, 8))
    copies = [shaken(module, seed) for seed in (1, 2)]
    x = torch.randn(2, 6, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y, keys = torch.arange(6) % 10, torch.tensor([11, 12])
    rows = torch.tensor([1.0, 1, 1, 1, 1, 0], dtype=torch.float64)

    def loss(weights: Params, state: Params, x: Tensor, key: Tensor) -> Tensor:
        net = template.bind(weights | {n: t.clone() for n, t in state.items()}, key=key, rows=rows)
        return (nn.functional.cross_entropy(net(x), y, reduction="none") * rows).sum()

    split = [tuple({n: c[n] for n in part} for part in (template.trainable, template.state)) for c in copies]
    alone = [grad(loss)(w, s, x[i], keys[i]) for i, (w, s) in enumerate(split)]
    stacked: list[Any] = [{n: torch.stack([one[n], two[n]]) for n in one} for one, two in zip(*split, strict=True)]
    weights, state = stacked
    together = vmap(grad(loss))(weights, state, x, keys)
    for key, value in together.items():
        for i in range(2):
            assert torch.allclose(value[i], alone[i][key], rtol=1e-8, atol=1e-10), (name, key)
    assert all(float(g.abs().max()) > 0 for n, g in alone[0].items() if n.endswith("weight") and "ln_1" not in n)


def test_stochastic_depth_is_keyed_per_row_and_off_in_eval_mode() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = networks.StochasticDepth(0.5)
            self.head = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(x)  # type: ignore[no-any-return]

    template = Template(Branch(), (3,))
    assert template.keyed and not template.draws_its_own
    x = torch.ones(2000, 3)
    net: Callable[..., Any] = lambda key: template.bind(template.like, key=torch.tensor(key))(x)  # noqa: E731
    assert torch.equal(net(5), net(5)) and not torch.equal(net(5), net(6))
    assert set(net(5).unique().tolist()) == {0.0, 2.0}, "kept branches are scaled by 1 / (1 - p)"
    assert (net(5) == net(5)[:, :1]).all(), "a row is dropped as a whole"
    assert abs(float((net(5)[:, 0] == 0).float().mean()) - 0.5) < 0.05
    assert torch.equal(template.bind(template.like)(x), x)
    plain = networks.StochasticDepth(0.25).train()
    assert abs(float((plain(torch.ones(4000, 1)) == 0).float().mean()) - 0.25) < 0.05
    assert torch.equal(networks.StochasticDepth(1.0).train()(x), torch.zeros_like(x))


def test_efficientnet_trains_reproducibly_through_its_template() -> None:
    template = Template(tiny("efficientnet-tiny"), (1, 8, 8))
    assert template.keyed and template.batch_normed and not template.draws_its_own
    x = torch.rand(4, 1, 8, 8)
    out = [template.bind({n: t.clone() for n, t in template.like.items()}, key=torch.tensor(k))(x) for k in (1, 1, 2)]
    assert torch.equal(out[0], out[1]) and not torch.equal(out[0], out[2])


@pytest.mark.filterwarnings(NO_CPU_RULE)
@pytest.mark.parametrize("name", TINY)
def test_the_engines_agree_on_a_trained_model(name: str, tmp_path: Path) -> None:
    small = ["device='cpu'", "engine.precision='float64'", f"model.name='{name}'", "partition.clients=2"]
    small += ["training.rounds=1", "training.batch=16", "training.lr=0.05", "evaluation.attack=false"]
    trained = []
    for engine in ("sequential", "batched"):
        data = {"data": {"name": "digits", "test_size": 1740}}
        run = Run.create(Config.parse(data, [*small, f"engine.name='{engine}'"]), tmp_path / engine)
        run.execute()
        trained.append(run.model(None, None, "train"))
    for key, value in trained[0].items():
        assert torch.allclose(value, trained[1][key], rtol=1e-9, atol=1e-12), key


@pytest.mark.parametrize("name", TINY)
def test_features_are_what_enters_the_head(name: str) -> None:
    module = tiny(name).eval()
    template, x = Template(module, (1, 8, 8)), torch.rand(2, 1, 8, 8)
    params = shaken(module, 3)
    net = template.bind(params)
    models_head = module.get_submodule(networks.head_of(module))
    with torch.no_grad():
        for key, value in params.items():
            if key.startswith(networks.head_of(module) + "."):
                models_head.get_parameter(key.split(".", 1)[1]).copy_(value)
        assert torch.allclose(models_head(net.features(x)), net(x), atol=1e-6)


def test_attention_is_counted() -> None:
    template = Template(tiny("vit-tiny", shape=(3, 32, 32)), (3, 32, 32))
    tokens, width = 65, 16
    projections = 64 * 48 * width + 2 * tokens * (4 * width**2 + 2 * width * 32) + width * 10
    assert forward_flops(template) == 2 * (projections + 2 * 2 * tokens**2 * width)


class Recurrent(nn.Module):
    """An LSTM over the rows of an image, and products of every kind that the count must not leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.cells(x.flatten(0, 1))[0][:, -1]
        return torch.einsum("bi,ci->bc", last, self.head.weight) + torch.matmul(last, self.head.weight.T)


@pytest.mark.parametrize("name", [*TINY, "recurrent"])
def test_flops_are_those_of_pytorchs_own_counter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = Template(Recurrent() if name == "recurrent" else tiny(name), (1, 8, 8))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        template.bind(template.like)(template.blank(1))
    assert forward_flops(template) == counter.get_total_flops() > 0
    with (
        torch.inference_mode()
    ):  # here PyTorch hands over whole operations, such as a linear layer, and not their parts
        assert forward_flops(template) == counter.get_total_flops()


# --- checkpoints ------------------------------------------------------------------------------------------------------


def world(path: Path, name: str, *sets: str) -> World:
    small = ["partition.clients=2", "device='cpu'", f"model.name='{name}'", f"model.initial='{path}'"]
    return simulated(Config.parse({"data": {"name": "digits"}}, [*small, *sets]), 0)


def test_old_names_and_missing_counters_of_torchvisions_files_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    vit = params_of(tiny("vit-tiny", seed=4))
    rename: Callable[..., Any] = lambda n: n.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2.")  # noqa: E731
    storage.save(path, {rename(n): t for n, t in vit.items()}, {})
    loaded = world(path, "vit-tiny").initial
    assert loaded is not None and all(torch.equal(loaded[n], t) for n, t in vit.items())
    resnet = params_of(tiny("resnet-tiny", seed=4))
    storage.save(path, {n: t for n, t in resnet.items() if "num_batches" not in n}, {})
    loaded = world(path, "resnet-tiny").initial
    assert loaded is not None and all(torch.equal(loaded[n], t) for n, t in resnet.items())


def test_a_checkpoint_of_other_classes_needs_a_fresh_head(tmp_path: Path) -> None:
    path = tmp_path / "imagenet.safetensors"
    other = params_of(networks.build("resnet-tiny", shape=(1, 8, 8), classes=1000, seed=4))
    storage.save(path, other, {})
    with pytest.raises(UnfedError, match=r"'fc.weight' with shape \(1000, 16\), the model expects \(10, 16\)"):
        world(path, "resnet-tiny")
    mine = world(path, "resnet-tiny", "model.fresh_head=true")
    assert mine.initial is not None and mine.initial["fc.weight"].shape == (10, 16)
    assert torch.equal(mine.initial["conv1.weight"], other["conv1.weight"])


# --- bad options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("resnet-tiny", {"blocks": (1, 1)}, "as many blocks as widths"),
        ("resnet-tiny", {"widths": "wide"}, "cannot be built with"),
        ("vit-tiny", {"heads": 3}, "a width that heads divides"),
        ("vit-tiny", {"patch": 3}, r"8x8 cannot be cut into patches of 3x3; set data.crop"),
        ("vit-tiny", {"dept": 3}, "no option 'dept'.*Did you mean 'depth'"),
        ("efficientnet-tiny", {"stages": 8}, "1 to 7 stages"),
        ("efficientnet-tiny", {"dropout": 1}, r"dropout must lie in \[0, 1\)"),
        ("efficientnet-tiny", {"stochastic_depth": 40.0}, "stochastic depth must lie in"),
    ],
)
def test_impossible_options_are_refused_in_one_sentence(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        tiny(name, **options)


def test_an_unknown_model_lists_all_of_them() -> None:
    with pytest.raises(UnfedError, match=r"resnet18.*efficientnet-b0.*Did you mean 'resnet18'"):
        tiny("resnet-18")
