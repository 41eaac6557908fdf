"""layers.py: an address means exactly the tensors a reader would think, or it is refused."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import unfed
from unfed.errors import UnfedError, UnfedWarning
from unfed.methods import METHODS
from unfed.methods.not_ import NoT
from unfed.model import layers, networks, perturb
from unfed.model.layers import choose, choose_in
from unfed.model.params import load_into, params_of


def tiny(name: str = "cnn-tiny", **options: object) -> nn.Module:
    return networks.build(name, shape=(1, 8, 8), classes=10, seed=0, **options)


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.zeros(1, 5, 4))


class Transformer(nn.Module):
    """torchvision's ViT in small: index 0 is the class token, index 1 the projection's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, 4))
        self.conv_proj = nn.Conv2d(3, 4, 2, 2)
        self.positions = Positions()
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(4, 1, 8) for _ in range(2))
        self.heads = nn.Linear(4, 2)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3)
        self.embedding = nn.Embedding(5, 3)
        self.decoder = nn.Linear(3, 5)
        self.decoder.weight = self.embedding.weight


def names(choices: tuple[layers.Choice, ...]) -> list[str]:
    return [choice.name for choice in choices]


def test_first_is_the_first_weight_and_never_a_token_a_bias_or_a_scale() -> None:
    assert names(choose(tiny(), ["first"])) == ["conv1.weight"]
    assert names(choose(Transformer(), ["first"])) == ["conv_proj.weight"]
    assert names(choose(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), ["first"])) == ["1.weight"]
    assert names(choose(Tied(), ["first"])) == ["embedding.weight"]
    assert names(choose(nn.Sequential(nn.LSTM(2, 3)), ["first"])) == ["0.weight_ih_l0"]
    (choice,) = choose(Transformer(), ["first"])
    assert choice.why == "the first convolution weight, parameter index 1"


def fine_tuned(*trained: str) -> nn.Module:
    """A network of which only some parts train, as where a backbone came from elsewhere."""
    model = tiny().requires_grad_(False)
    for part in trained:
        model.get_submodule(part).requires_grad_(True)
    return model


def test_a_frozen_first_layer_is_not_negated() -> None:
    (choice,) = choose(fine_tuned("norm1", "conv2", "head"), ["first"])
    assert choice.name == "conv2.weight" and "after 1 frozen ones" in choice.why
    assert names(choose(fine_tuned("head"), ["first"])) == ["head.linear.weight"]
    with pytest.raises(UnfedError, match="no convolution, dense or embedding weight"):
        choose(fine_tuned("norm1"), ["first"])


def test_where_everything_is_frozen_nothing_is_meant_by_it() -> None:
    assert names(choose(fine_tuned(), ["first"])) == ["conv1.weight"]
    assert layers.frozen(fine_tuned(), choose(fine_tuned(), ["conv1"])) == []


def test_a_frozen_layer_that_was_named_is_taken_and_said() -> None:
    model = fine_tuned("conv2", "head")
    assert names(choose(model, ["conv1"])) == ["conv1.weight"]
    with pytest.warns(UnfedWarning, match=r"frozen here, which no training will bring back: conv1\.weight"):
        NoT(layers=("conv1",)).check(model)
    with pytest.warns(UnfedWarning, match="frozen here"):
        unfed.negate(model, "conv1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        METHODS["not"]().check(model)
        unfed.negate(model, "first")


def test_the_papers_layers_are_the_first_one_but_on_efficientnet() -> None:
    assert names(choose(tiny(), ["paper"])) == ["conv1.weight"]
    assert names(choose(Transformer(), ["paper"])) == ["conv_proj.weight"]
    with pytest.raises(UnfedError, match="'paper' needs to know the network"):
        choose_in({"conv1.weight": (1, 1, 1, 1)}, ["paper"], order=["conv1.weight"])


def test_the_papers_index_is_the_position_among_the_parameters() -> None:
    model = Transformer()
    every = [name for name, _ in model.named_parameters()]
    for index in (0, 1, len(every) - 1):
        assert names(choose(model, [index])) == names(choose(model, [str(index)])) == [every[index]]
    assert names(choose(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Linear(1, 1)), ["2"])) == ["2.weight"]


def test_a_tensor_a_module_and_a_glob_can_be_named() -> None:
    model = Transformer()
    assert names(choose(model, ["conv_proj.bias"])) == ["conv_proj.bias"]
    assert names(choose(model, ["conv_proj"])) == ["conv_proj.weight"]
    assert names(choose(model, ["encoder.*.linear1.weight"])) == [f"encoder.{i}.linear1.weight" for i in (0, 1)]
    assert names(choose(model, ["*pos_embedding"])) == ["positions.pos_embedding"]


def test_no_address_chooses_nothing_and_a_lone_string_is_one_address() -> None:
    assert choose(tiny(), []) == ()
    assert names(choose(tiny(), "first")) == ["conv1.weight"]


def test_a_set_takes_kinds_up_to_an_index() -> None:
    model = Transformer()
    every = [name for name, _ in model.named_parameters()]
    bound = every.index("encoder.0.linear1.weight")
    assert names(choose(model, [f"conv+dense<={bound}"])) == [
        "conv_proj.weight",
        "encoder.0.self_attn.in_proj_weight",
        "encoder.0.self_attn.out_proj.weight",
        "encoder.0.linear1.weight",
    ]
    assert "encoder.0.linear1.weight" not in names(choose(model, [f"conv + dense < {bound}"]))
    assert names(choose(model, [f"dense>={every.index('heads.weight')}"])) == ["heads.weight"]
    assert names(choose(model, [f"dense>{every.index('encoder.1.linear1.bias')}"]))[0] == "encoder.1.linear2.weight"
    assert names(choose(model, ["conv"])) == ["conv_proj.weight"]
    assert names(choose(tiny(), ["norm"])) == ["norm1.weight", "norm2.weight"]
    assert names(choose(Tied(), ["embedding<3", "norm"])) == ["norm.weight", "embedding.weight"]


def test_a_module_named_like_a_kind_is_the_module() -> None:
    model = nn.Module()
    model.add_module("conv", nn.Conv2d(1, 1, 1))
    model.add_module("other", nn.Conv2d(1, 1, 1))
    assert names(choose(model, ["conv"])) == ["conv.weight"]
    assert names(choose(model, ["conv<9"])) == ["conv.weight", "other.weight"]


def test_the_kind_of_an_unknown_layer_is_judged_by_its_weight() -> None:
    class MyNorm(nn.Module):
        def __init__(self, *shape: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(shape))

    class MyLayer(MyNorm):
        pass

    model = nn.Sequential(MyNorm(2, 2), MyLayer(2, 2), nn.Linear(2, 2))
    assert names(choose(model, ["first"])) == ["1.weight"]


def test_rows_follow_python_slices() -> None:
    model = tiny()
    for address, rows in [("[1:3]", (1, 3)), ("[:2]", (0, 2)), ("[-1:]", (3, 4)), ("[1:-1]", (1, 3))]:
        (choice,) = choose(model, ["conv1.weight" + address])
        assert (choice.name, choice.rows) == ("conv1.weight", rows)
    assert [c.rows for c in choose(model, ["conv1[2:4]", "first[0:2]"])] == [(0, 2), (2, 4)]


def test_include_bias_adds_the_bias_of_the_same_module_and_the_same_rows() -> None:
    assert names(choose(tiny(), ["first"], include_bias=True)) == ["conv1.weight", "conv1.bias"]
    assert [c.rows for c in choose(tiny(), ["conv1[1:3]"], include_bias=True)] == [(1, 3), (1, 3)]
    attention = choose(nn.MultiheadAttention(2, 1), ["in_proj_weight"], include_bias=True)
    assert names(attention) == ["in_proj_weight", "in_proj_bias"]
    assert names(choose(nn.Conv2d(1, 1, 1, bias=False), ["first"], include_bias=True)) == ["weight"]


def test_include_bias_refuses_rows_that_are_inputs() -> None:
    with pytest.raises(UnfedError, match="are not the rows of"):
        choose(nn.Sequential(nn.ConvTranspose2d(2, 2, 1)), ["0[0:1]"], include_bias=True)


def test_choices_come_once_and_in_parameter_order() -> None:
    assert names(choose(tiny(), ["conv2", "first", "conv1.weight", 0])) == ["conv1.weight", "conv2.weight"]


def test_a_tied_weight_answers_to_all_its_names_and_counts_once() -> None:
    (choice,) = choose(Tied(), ["decoder.weight"])
    assert (choice.name, choice.why) == ("embedding.weight", "tied to decoder.weight, which was named")
    assert names(choose(Tied(), ["decoder", "embedding"])) == ["embedding.weight"]
    assert names(choose(Tied(), [3])) == ["decoder.bias"]


@pytest.mark.parametrize(
    ("addresses", "sentence"),
    [
        (
            ["conv1.wieght"],
            "There is no layer or tensor.*unfed negate FILE --layers '\\*' --dry-run.*Did you mean 'conv1.weight'",
        ),
        (["encoder.*"], "There is no layer or tensor 'encoder"),
        (["head"], "no weight of its own; name one of its tensors, such as head.linear.weight or head.linear.bias"),
        (["relu1"], "no weight of its own; name a module that has one"),
        ([99], "no parameter index 99: the model has 10 parameters, 0 to 9"),
        (["-1"], "no parameter index -1"),
        (["conv1[3:2]"], "is empty; choose a start below"),
        (["conv1[0:5]"], "reaches outside 'conv1.weight', which has 4 rows"),
        (["*.weight[0:1]"], "takes rows of 5 tensors; name one"),
        (["conv1", "conv1.weight[0:1]"], "Two addresses choose the same rows"),
        (["conv1[0:2]", "conv1[1:3]"], "Two addresses choose the same rows"),
        (["embedding"], "No tensor is in the set 'embedding'"),
        (["norm1.running_mean"], "is a buffer"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_in_one_sentence(addresses: list[str | int], sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        choose(tiny("cnn-tiny-bn"), addresses)


def test_first_is_refused_where_no_weight_or_a_hidden_weight_comes_first() -> None:
    with pytest.raises(UnfedError, match="no convolution, dense or embedding weight"):
        choose(nn.LayerNorm(3), ["first"])
    hidden = nn.Sequential(weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2))
    for model in (hidden, old):
        for address in ("first", "dense"):
            with pytest.raises(UnfedError, match="remove the parametrisation first"):
                choose(model, [address])
        assert names(choose(model, ["1"])) and names(choose(model, ["1.weight"])) == ["1.weight"]


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


@pytest.mark.parametrize("model", [tiny("cnn-tiny-bn"), Transformer()], ids=["cnn", "vit"])
@pytest.mark.parametrize("address", ["first", "0", 1, "conv+dense<=9", "*.weight", "conv"])
def test_names_and_shapes_with_an_order_choose_what_the_module_chooses(model: nn.Module, address: str | int) -> None:
    shapes = shapes_of(model)
    chosen = choose_in(dict(sorted(shapes.items())), [address], order=list(shapes))
    if address == "conv+dense<=9" and isinstance(model, Transformer):  # attention's in_proj_weight is dense by name too
        assert "encoder.0.self_attn.in_proj_weight" in names(chosen)
    assert names(chosen) == names(choose(model, [address]))
    assert all(choice.why.endswith("judged by name and shape") for choice in chosen)


def test_without_an_order_only_names_are_accepted() -> None:
    shapes = shapes_of(tiny())
    for address in ("first", 0, "conv<=3"):
        with pytest.raises(
            UnfedError, match=r"does not record; name the tensor instead: conv1.weight, conv2.weight or"
        ):
            choose_in(shapes, [address])
    assert names(choose_in(shapes, ["conv1", "head.linear.bias"])) == ["conv1.weight", "head.linear.bias"]
    assert names(choose_in(shapes, ["dense"])) == ["head.linear.weight"]
    assert names(choose_in(shapes, ["conv1"], include_bias=True)) == ["conv1.weight", "conv1.bias"]


def test_first_in_names_and_shapes_skips_what_is_called_a_position_or_a_class() -> None:
    order = ["cls_token", "embeddings.position_embeddings.weight", "wpe.weight", "wte.weight", "composer.weight"]
    shapes = dict.fromkeys(order, (4, 2))
    assert names(choose_in(shapes, ["first"], order=order)) == ["wte.weight"]
    assert names(choose_in(shapes, ["dense"], order=order)) == ["composer.weight"]


def test_an_order_that_does_not_fit_its_file_is_refused() -> None:
    with pytest.raises(UnfedError, match="`order` metadata does not list the tensors"):
        choose_in({"a.weight": (1, 1)}, ["first"], order=["b.weight"])


def test_a_file_with_many_weights_lists_a_few() -> None:
    with pytest.raises(UnfedError, match="or 3 more"):
        choose_in({f"l{i}.weight": (1, 1) for i in range(9)}, ["first"])
    with pytest.raises(UnfedError, match="it holds no weight"):
        choose_in({"a.bias": (1,)}, ["first"])


def test_both_copies_of_a_tied_weight_are_chosen_or_loading_would_undo_one() -> None:
    shapes = shapes_of(Tied())
    tied = {"decoder.weight": "embedding.weight"}
    for address in ("decoder", "embedding", "first"):
        chosen = choose_in(shapes, [address], order=list(shapes), tied=tied)
        assert names(chosen) == ["embedding.weight", "decoder.weight"]
    assert names(choose_in(shapes, [3], order=list(shapes), tied=tied)) == ["decoder.bias"], "as in the module"


def test_what_fcu_fuses_are_the_convolution_and_dense_weights() -> None:
    assert layers.weights_of(tiny()) == ("conv1.weight", "conv2.weight", "head.linear.weight")
    assert "encoder.0.self_attn.in_proj_weight" in layers.weights_of(Transformer())
    assert "positions.pos_embedding" not in layers.weights_of(Transformer())


def outputs_after(model: nn.Module, addresses: list[str], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    before = model(x)
    choices = choose(model, addresses)
    load_into(model, perturb.negate(params_of(model), choices))
    return before, model(x), len(layers.cancellations(model, choices))


def lively(model: nn.Module) -> nn.Module:
    """Norm scales and shifts away from 1 and 0, as training leaves them."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    return model.double()


X = torch.rand(5, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("norm", ["group", "batch", "layer"])
def test_negating_a_convolution_and_the_scale_after_it_cancels_and_warns(norm: str) -> None:
    model = lively(tiny(norm=norm)).train()
    before, after, warned = outputs_after(model, ["conv1.weight", "conv1.bias", "norm1.weight"], X)
    assert torch.allclose(before, after, atol=1e-12)
    assert warned == 1


@pytest.mark.parametrize(
    "addresses",
    [["conv1.weight"], ["conv1.weight", "norm1.weight"], ["conv1.weight", "conv1.bias"], ["conv1.*", "norm2.weight"],
     ["conv1.*", "norm1.weight[0:2]"]],
)  # fmt: skip
def test_negations_that_do_not_cancel_change_the_output_and_do_not_warn(addresses: list[str]) -> None:
    before, after, warned = outputs_after(lively(tiny()), addresses, X)
    assert not torch.allclose(before, after, atol=1e-3)
    assert warned == 0


def test_a_layer_without_bias_cancels_by_its_weight_alone() -> None:
    model = lively(nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.GroupNorm(2, 4), nn.ReLU()))
    before, after, warned = outputs_after(model, ["0", "1.weight"], X)
    assert torch.allclose(before, after, atol=1e-12)
    assert warned == 1
    dense = lively(nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.LayerNorm(3)))
    before, after, warned = outputs_after(dense, ["1.*", "2.weight"], X)
    assert torch.allclose(before, after, atol=1e-12)
    assert warned == 1


def test_two_neighbours_that_are_no_layer_and_its_normalisation_do_not_warn() -> None:
    model = nn.Sequential(nn.Linear(64, 3), nn.Linear(3, 3), nn.LayerNorm(3), nn.LayerNorm(3), nn.Linear(3, 2))
    assert layers.cancellations(model, choose(model, ["0.*", "1.*", "4.*"])) == []
    assert layers.cancellations(model, choose(model, ["0.*", "3.*"])) == []
    other_width = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(3))
    assert layers.cancellations(other_width, choose(other_width, ["*"])) == []
    no_scale = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3, elementwise_affine=False))
    assert layers.cancellations(no_scale, choose(no_scale, ["*"])) == []


def test_the_warning_names_both_tensors_and_when_it_holds() -> None:
    model = tiny("cnn-tiny-bn")
    (sentence,) = layers.cancellations(model, choose(model, ["conv1.*", "norm1.*"]))
    assert "conv1" in sentence and "norm1.weight" in sentence and "in training mode" in sentence
