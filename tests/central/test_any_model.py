"""`unfed.unlearn` takes models and data as people have them."""

from __future__ import annotations

import copy
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import unfed
from unfed.central import Result
from unfed.client.optimiser import update
from unfed.client.plan import Optimiser, Rule
from unfed.config.config import Config
from unfed.errors import UnfedError, UnfedWarning
from unfed.federation.protocol import Server
from unfed.measures.trajectory import Line
from unfed.methods import METHODS, Method, State, option
from unfed.model.calling import Inputs, Part, logits_in, unwrapped
from unfed.model.functional import Template
from unfed.model.keyed import KeyedAttention, keyed_fused
from unfed.model.networks import build
from unfed.model.params import Params, params_of
from unfed.report.rules import rows
from unfed.report.sentences import falls, fell
from worlds import slow

GENERATOR = torch.Generator().manual_seed(0)
TOKENS = torch.randint(1, 30, (60, 6), generator=GENERATOR)
MASK = (torch.arange(6) < torch.randint(2, 7, (60, 1), generator=GENERATOR)).long()
SIZES = torch.randn(60, 4, generator=GENERATOR)
Y = (TOKENS[:, 0] > 15).long()


class Text(nn.Module):
    """Reads token ids and a mask, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        x = self.embedding(input_ids)
        weight = torch.ones_like(x[..., :1]) if attention_mask is None else attention_mask[..., None].to(x.dtype)
        return self.out((x * weight).sum(1) / weight.sum(1))


class Both(nn.Module):
    """Reads token ids and floats."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dense, self.out = nn.Embedding(30, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, ids: Tensor, sizes: Tensor) -> Any:
        assert ids.dtype == torch.int64
        return self.out(self.embedding(ids).mean(1) + self.dense(sizes))


class Rows(Dataset[Any]):
    """A map-style data set of whatever it is given."""

    def __init__(self, *rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        return self.rows[row]


def made(kind: type[nn.Module] = Text, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind()


def call(model: nn.Module, data: Any, **changes: Any) -> Result:
    usual: dict[str, Any] = {"data": data, "forget": [0, 1, 2, 3], "method": "not", "epochs": 2, "lr": 0.05}
    return unfed.unlearn(model, **{**usual, **changes})


def same(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = params_of(a), params_of(b)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


# --- what a model gives back ------------------------------------------------------------------------------------------


class Output(NamedTuple):
    loss: None
    logits: Tensor


class Saying(Text):
    """The same network with another way to give its logits back."""

    how: Any = None

    def forward(self, *args: Any, **named: Any) -> Any:
        return type(self).how(super().forward(*args, **named))


@pytest.mark.parametrize(
    "how",
    [
        lambda z: (z, z.sum(0)),
        lambda z: (z.sum(), z),
        lambda z: {"logits": z, "hidden": z},
        lambda z: {"scores": z},
        lambda z: Output(None, z),
    ],
    ids=["tuple", "loss first", "dict", "lone in a dict", "an attribute"],
)
def test_logits_are_found_in_tuples_dicts_and_objects(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = call(made(), (TOKENS, Y)).model
    monkeypatch.setattr(Saying, "how", staticmethod(how))
    assert same(call(made(Saying), (TOKENS, Y)).model, plain)


@pytest.mark.parametrize(
    ("output", "said"),
    [({"a": Y[:, None].float(), "b": SIZES}, "a dict of a, b"), (None, "a NoneType"), ((), "a tuple")],
)
def test_what_holds_no_logits_is_refused_in_a_sentence(output: Any, said: str) -> None:
    with pytest.raises(UnfedError, match=f"The model returned {said}; its forward must return logits"):
        logits_in(output)


# --- what a model reads -----------------------------------------------------------------------------------------------


def test_a_set_of_named_tensors_pairs_tuples_and_rows_give_the_same_bits() -> None:
    expected = call(made(), {"input_ids": TOKENS, "attention_mask": MASK, "labels": Y}).model
    rows = [
        {"input_ids": TOKENS[i].tolist(), "attention_mask": MASK[i].tolist(), "label": int(Y[i])} for i in range(60)
    ]
    for data in (
        ({"input_ids": TOKENS, "attention_mask": MASK}, Y),
        (TOKENS, MASK, Y),
        ((TOKENS, MASK), Y),
        TensorDataset(TOKENS, MASK, Y),
        Rows(*rows),
        Rows(*({**row, "text": "not for the model", "idx": i} for i, row in enumerate(rows))),
        Rows(*zip(TOKENS, MASK, Y, strict=True)),
    ):
        assert same(call(made(), data).model, expected)
    assert not same(call(made(), (TOKENS, Y)).model, expected), "the mask is read"


def test_token_ids_stay_whole_numbers_beside_floats_too() -> None:
    result = call(made(Both), (TOKENS, SIZES, Y), test=(TOKENS[:9] + 0, SIZES[:9] + 1, Y[:9]))
    assert result.before["retain"] != result.before["forget"]
    by_hand = copy.deepcopy(result.model)(TOKENS[:9], SIZES[:9] + 1).argmax(1)
    assert result.after["test"] == pytest.approx(100 * float((by_hand == Y[:9]).float().mean()), abs=1e-4)


def test_whole_numbers_that_a_float_cannot_hold_are_refused_beside_floats() -> None:
    inputs = Inputs((Part(0, (1,), torch.int64), Part(1, (1,), torch.float32)))
    with pytest.raises(UnfedError, match="holds 16777217, and beside float inputs whole numbers are exact up to"):
        inputs.pack({0: torch.tensor([[2**24 + 1]]), 1: torch.zeros(1, 1)})


def test_whole_numbers_are_floats_to_a_model_that_wants_floats() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(6, 2))
    assert same(call(dense, (TOKENS, Y)).model, call(dense, (TOKENS.float(), Y)).model)


def test_a_lone_input_needs_no_name_and_wrong_names_are_listed() -> None:
    assert same(call(made(), {"anything": TOKENS, "y": Y}).model, call(made(), (TOKENS, Y)).model)
    with pytest.raises(
        UnfedError, match="has ids and mask, and the model's forward takes attention_mask and input_ids"
    ):
        call(made(), {"ids": TOKENS, "mask": MASK, "labels": Y})
    with pytest.raises(UnfedError, match="is a dict with no label in it, but input_ids; call the label 'labels'"):
        call(made(), {"input_ids": TOKENS})


def test_rows_of_different_lengths_are_named_and_a_collate_function_pads_them() -> None:
    lengths = MASK.sum(1).tolist()
    rows = Rows(*({"input_ids": TOKENS[i, : lengths[i]], "label": int(Y[i])} for i in range(60)))
    with pytest.raises(UnfedError, match="pad or cut them to one length"):
        call(made(), rows)

    def padded(batch: list[Mapping[str, Any]]) -> dict[str, Tensor]:
        ids = nn.utils.rnn.pad_sequence([row["input_ids"] for row in batch], batch_first=True)
        return {
            "input_ids": ids,
            "attention_mask": (ids > 0).long(),
            "labels": torch.tensor([r["label"] for r in batch]),
        }

    with pytest.warns(UnfedWarning, match="collate_fn of its own: it is called once"):
        result = call(made(), DataLoader(rows, batch_size=8, shuffle=True, collate_fn=padded))
    assert same(result.model, call(made(), {"input_ids": TOKENS * MASK, "attention_mask": MASK, "labels": Y}).model)


# --- loaders ----------------------------------------------------------------------------------------------------------


def test_row_numbers_mean_the_data_set_of_a_loader_that_shuffles() -> None:
    data = TensorDataset(TOKENS, Y)
    result = call(made(), DataLoader(data, batch_size=16, shuffle=True))
    assert same(result.model, call(made(), data).model)


def test_a_loader_over_some_rows_stands_for_these_rows_only() -> None:
    data, rows = TensorDataset(TOKENS, Y), list(range(20, 60))
    loader = DataLoader(data, batch_size=16, sampler=SubsetRandomSampler(rows))
    expected = call(made(), None, retain=(TOKENS[20:], Y[20:]), forget=(TOKENS[:4], Y[:4])).model
    assert same(call(made(), None, retain=loader, forget=(TOKENS[:4], Y[:4])).model, expected)


def test_a_loader_that_draws_some_rows_more_often_is_refused() -> None:
    loader = DataLoader(TensorDataset(TOKENS, Y), sampler=WeightedRandomSampler([1.0] * 60, 60))
    with pytest.raises(UnfedError, match="DataLoader with a WeightedRandomSampler, which may repeat or skip rows"):
        call(made(), loader)


# --- parameters -------------------------------------------------------------------------------------------------------


class Tied(Text):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.back = nn.Linear(8, 30, bias=False)
        self.back.weight = self.embedding.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        x = self.back(self.embedding(input_ids).mean(1))
        return self.out(x @ self.embedding.weight)


def test_frozen_parameters_stay_and_the_first_that_trains_is_negated() -> None:
    model = made()
    model.get_submodule("embedding").requires_grad_(False)
    result = call(model, (TOKENS, Y)).model
    before, after = params_of(model), params_of(result)
    assert torch.equal(before["embedding.weight"], after["embedding.weight"])
    assert not torch.equal(before["out.weight"], after["out.weight"])


def test_tied_weights_stay_tied() -> None:
    result = call(made(Tied), (TOKENS, Y)).model
    assert result.get_parameter("back.weight") is result.get_parameter("embedding.weight")
    assert not torch.equal(result.get_parameter("back.weight"), made(Tied).get_parameter("back.weight"))


class Adapted(nn.Linear):
    """W + B·A, where only A and B train."""

    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__(entering, leaving)
        self.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(2, entering))
        self.lora_B = nn.Parameter(torch.randn(leaving, 2))

    @property
    def delta(self) -> Tensor:
        return self.lora_B @ self.lora_A

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(x, self.delta)


def test_negating_one_half_of_an_adapter_turns_its_sign_and_both_halves_are_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Adapted(4, 3), nn.ReLU(), Adapted(3, 2))
    first = model[0]
    assert isinstance(first, Adapted)
    before = first.delta.detach().clone()
    (chosen,) = unfed.negate(model)
    assert chosen.name == "0.lora_A", "the first weight that trains"
    assert torch.equal(first.delta, -before)
    unfed.negate(model, "0.lora_B")
    assert torch.equal(first.delta, before)
    with pytest.raises(UnfedError, match=r"halves of one adapter, ΔW = B·A, so negating both changes nothing"):
        unfed.negate(model, "*lora_*")
    assert torch.equal(first.delta, before)
    with pytest.raises(UnfedError, match="negate only one"):
        call(model, (SIZES, Y), layers=["*lora_*"])
    assert len(unfed.negate(model, "*lora_A*")) == 2


# --- what is around a model -------------------------------------------------------------------------------------------


class LightningModule(nn.Module):
    """Lightning's base class as far as it matters: a `forward` that is nobody's."""

    def forward(self, *args: Any, **named: Any) -> Any:
        return super().forward(*args, **named)


class Lit(LightningModule):
    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        for number, network in enumerate(networks):
            setattr(self, f"net{number}", network)
        self.loss = nn.CrossEntropyLoss()


@pytest.mark.parametrize(
    "around", [nn.DataParallel, partial(torch.compile, backend="eager"), Lit, lambda m: nn.DataParallel(Lit(m))]
)
def test_what_is_put_around_a_network_is_taken_off(around: Any) -> None:
    network = made()
    wrapped = around(network)
    assert unwrapped(wrapped) is network
    result = call(wrapped, (TOKENS, Y)).model
    assert type(result) is Text and same(result, call(network, (TOKENS, Y)).model)
    unfed.negate(wrapped, "embedding")
    assert torch.equal(network.get_parameter("embedding.weight"), -made().get_parameter("embedding.weight"))


def test_a_lightning_module_of_two_networks_must_say_how_it_makes_logits() -> None:
    with pytest.raises(UnfedError, match=r"Lit has no forward, .* give the network inside it, such as model.net0"):
        call(Lit(made(), made()), (TOKENS, Y))


@dataclass(frozen=True)
class Halved(Method):
    """Every weight halved, then fine-tuning."""

    name: ClassVar[str] = "halved"
    title: ClassVar[str] = "Halved"
    cite: ClassVar[str] = "this test"
    left: float = option(0.5, "what is left of a weight", "ours")

    def begin(self, server: Server) -> State:
        return State({n: self.left * t for n, t in server.params.items()})


@pytest.fixture
def without_halved() -> Iterator[None]:
    yield
    METHODS.pop("halved", None)


@pytest.mark.usefixtures("without_halved")
def test_a_method_of_ones_own_is_handed_over_as_a_class() -> None:
    result = unfed.unlearn(nn.Linear(4, 2), data=(SIZES, Y), forget=[0, 1], method=Halved, left=0.25, epochs=1)
    assert str(result).startswith("Halved")
    with pytest.raises(UnfedError, match=r"not Halved; hyperparameters are given as keywords"):
        unfed.unlearn(nn.Linear(4, 2), data=(SIZES, Y), forget=[0, 1], method=cast(Any, Halved()))


def test_a_name_of_this_package_is_not_taken_over() -> None:
    with pytest.raises(UnfedError, match="The name 'not' is that of NoT; give Halved a name of its own"):
        unfed.unlearn(nn.Linear(4, 2), data=(SIZES, Y), forget=[0], method=type("Halved", (Halved,), {"name": "not"}))
    assert METHODS["not"].title == "NoT"


def one_output(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A regression head: one number per row, whatever the classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 1))


def squeezed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """No axis for classes at all."""
    return nn.Sequential(one_output(shape, classes), nn.Flatten(0))


@pytest.mark.parametrize(("name", "gives"), [("one_output", "[N, 1]"), ("squeezed", "[N]")])
def test_a_model_with_fewer_outputs_than_classes_is_refused_before_it_trains(
    name: str, gives: str, tmp_path: Path
) -> None:
    with unfed.allow_code(), pytest.raises(UnfedError, match="gives") as refused:
        unfed.Run.create(Config.preset("demo", [f"model.name='test_any_model:{name}'"]), tmp_path / "run")
    said = str(refused.value)
    assert gives in said and "10 classes" in said and not (tmp_path / "run").exists()


def frozen(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).requires_grad_(False)


def test_a_model_of_which_nothing_trains_is_refused_in_a_run_too(tmp_path: Path) -> None:
    with unfed.allow_code(), pytest.raises(UnfedError, match="No parameter of the model can be trained"):
        unfed.Run.create(Config.preset("demo", ["model.name='test_any_model:frozen'"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_layer_without_a_shape_is_named() -> None:
    with pytest.raises(UnfedError, match=r"'1\.weight' has no shape yet.*call the model once"):
        unfed.unlearn(nn.Sequential(nn.Flatten(), nn.LazyLinear(2)), retain=(SIZES, Y), forget=(SIZES[:3] + 9, Y[:3]))
    with pytest.raises(UnfedError, match="has no shape yet"):
        Template(nn.LazyLinear(2), (4,))


def test_a_module_that_cannot_be_copied_is_answered_with_a_sentence() -> None:
    model = made()
    model.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(UnfedError, match="The model cannot be copied .*take what cannot be copied off it"):
        call(model, (TOKENS, Y))


# --- optimisers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_and_adamw_are_pytorchs(rule: Rule, kind: Any) -> None:
    weight = nn.Parameter(torch.randn(3, 2, dtype=torch.float64))
    params: Params = {"w": weight.detach().clone()}
    zero = torch.zeros((), dtype=torch.float64)
    state: Params = {"mean/w": torch.zeros_like(weight), "square/w": torch.zeros_like(weight), "count/w": zero}
    theirs = kind([weight], lr=0.1, weight_decay=0.3)
    for number in range(1, 6):
        weight.grad = weight.detach().cos()
        grads = {"w": params["w"].cos()}
        theirs.step()
        rule_ = Optimiser(rule, lr=0.1, decay=0.3)
        params, state = update(rule_, {"params": params, "optimiser": state}, grads, zero, number)
    assert torch.allclose(params["w"], weight, rtol=0, atol=1e-12)


def test_adamw_without_a_rate_takes_one_of_its_own() -> None:
    bare, said = (call(made(), (TOKENS, Y), optimiser="adamw", lr=rate).model for rate in (None, 1e-3))
    assert same(bare, said)


def test_a_call_can_take_adamw_and_refuses_what_is_unknown() -> None:
    results = [call(made(), (TOKENS, Y), optimiser=rule, lr=0.01).model for rule in ("sgd", "adam", "adamw")]
    assert not same(results[0], results[1]) and not same(results[1], results[2])
    with pytest.raises(UnfedError, match="optimiser must be sgd, adam or adamw, not 'lion'"):
        call(made(), (TOKENS, Y), optimiser="lion")


# --- dropout inside attention -----------------------------------------------------------------------------------------


class Attending(nn.Module):
    def __init__(self, dropout: float, fused: bool) -> None:
        super().__init__()
        self.fused, self.p = fused, dropout
        self.embedding, self.out = nn.Embedding(30, 8), nn.Linear(8, 2)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)

    def forward(self, ids: Tensor) -> Any:
        x = self.embedding(ids)
        if self.fused:
            p = self.p if self.training else 0.0
            return self.out(F.scaled_dot_product_attention(x, x, x, dropout_p=p, is_causal=True).mean(1))
        return self.out(self.attention(x).mean(1))


@pytest.mark.parametrize("fused", [True, False])
def test_dropout_inside_attention_is_a_function_of_the_key(fused: bool) -> None:
    template = Template(Attending(0.5, fused), (6,))
    assert template.keyed and not template.draws_its_own
    key = torch.tensor(7)
    first = template.bind(template.like, key=key)(TOKENS)
    assert torch.equal(first, template.bind(template.like, key=key)(TOKENS))
    assert not torch.equal(first, template.bind(template.like, key=key + 1)(TOKENS))


@pytest.mark.parametrize("mask", [None, torch.ones(6, 6).triu(1).bool()])
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_written_out_is_pytorchs_where_nothing_is_dropped(mask: Tensor | None, batch_first: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, batch_first=batch_first).double()
    ours = KeyedAttention.of(copy.deepcopy(theirs), 0)
    x = torch.randn(6, 6, 8, dtype=torch.float64)
    padding = torch.zeros(6, 6, dtype=torch.bool)
    padding[:, 5] = True
    for a, b in zip(
        ours(x, x, x, attn_mask=mask, key_padding_mask=padding),
        theirs(x, x, x, attn_mask=mask, key_padding_mask=padding),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_fused_attention_written_out_is_pytorchs_where_nothing_is_dropped() -> None:
    q, k = torch.randn(2, 4, 5, 8, dtype=torch.float64), torch.randn(2, 2, 5, 8, dtype=torch.float64)
    for options in ({"enable_gqa": True}, {"enable_gqa": True, "is_causal": True}, {"enable_gqa": True, "scale": 0.1}):
        theirs = F.scaled_dot_product_attention(q, k, k, **options)
        assert torch.allclose(keyed_fused(torch.tensor(0), q, k, k, **options), theirs, atol=1e-12)


def test_rows_that_are_dropped_by_classes_of_other_libraries_are_keyed() -> None:
    class DropPath(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop_prob = 0.5

        def forward(self, x: Tensor) -> Tensor:
            return x * (torch.rand(len(x), 1) > self.drop_prob)

    template = Template(nn.Sequential(nn.Linear(4, 2), DropPath()), (4,))
    assert template.keyed and not template.draws_its_own


# --- defaults ---------------------------------------------------------------------------------------------------------


class Reading(nn.Module):
    """A small transformer that reads an image line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.place = nn.Linear(8, 32), nn.Parameter(torch.randn(8, 32) * 0.02)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.layer(self.line(x[:, 0]) + self.place).mean(1))


NETWORKS = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    "cnn": lambda: build("cnn-small", shape=(1, 8, 8), classes=10, seed=0),
    "transformer": Reading,
}


def trained_on_digits(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A model of one's own loop, with Adam, as people train them."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(found.images, dtype=torch.float32)[order, None] / 16, torch.tensor(found.target)[order]
    torch.manual_seed(0)
    model = NETWORKS[name]()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(8):
        for some in torch.randperm(1400).split(64):
            optimiser.zero_grad()
            F.cross_entropy(model(x[some]), y[some]).backward()
            optimiser.step()
    return model.eval(), (x[:1400], y[:1400]), (x[1400:], y[1400:])


@pytest.mark.parametrize("name", ["mlp", *slow("cnn", "transformer")])
def test_a_plain_call_gives_a_good_model(name: str) -> None:
    model, data, test = trained_on_digits(name)
    result = unfed.unlearn(model, data=data, forget=range(140), test=test)
    assert float(result.after["test"]) > max(90.0, float(result.before["test"]) - 3)
    assert result.note == "" and str(result).splitlines()[5:] == [result.verdict]


def test_few_rows_get_enough_epochs_to_mend_what_was_broken() -> None:
    model, (x, y), test = trained_on_digits("mlp")
    result = unfed.unlearn(model, retain=(x[:100], y[:100]), forget=(x[100:110], y[100:110]), test=test)
    assert result.epochs == 100, "two steps an epoch, two hundred steps"
    assert float(result.after["test"]) > 60


def test_the_rate_reaches_its_minimum_in_the_last_of_the_epochs_that_were_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Config] = []
    call = sys.modules["unfed.central.call"]
    known = call._config

    def seen(*args: Any) -> Config:
        made.append(known(*args))
        return made[0]

    monkeypatch.setattr(call, "_config", seen)
    model, data, test = trained_on_digits("mlp")
    unfed.unlearn(model, data=data, forget=range(140), test=test, epochs=3)
    schedule = made[0].unlearning.schedule
    assert schedule is not None and (schedule.kind, schedule.over) == ("cosine", 3), "the paper's ten, stretched"


def test_a_model_that_is_ruined_says_so_at_the_end() -> None:
    model, data, test = trained_on_digits("mlp")
    result = unfed.unlearn(model, data=data, forget=range(140), test=test, epochs=1, lr=1e-5)
    lost = float(result.before["test"]) - float(result.after["test"])
    assert lost > 20 and str(result).splitlines()[-1] == result.note
    assert result.note.startswith(f"Test fell by {lost:.1f} points, from {result.before['test']:.1f} to ")
    assert result.note.endswith('hardly of use: try more epochs=, another lr=, fewer layers=, or method="sealed".')


def test_methods_of_a_run_that_ruined_the_model_are_named_unless_retrain_fell_too() -> None:
    def line(method: str, test: float, request: str = "r") -> Line:
        told: Any = {"seed": 0, "request": request, "method": method, "round": 1, "test": test, "retain": test}
        return cast(Line, told)

    lines = [line("before", 94.0), line("retrain", 93.5), line("not", 60.0), line("salun", 88.0), line("ft", 93.0)]
    ruined, lower = falls(rows(lines, "last"))
    assert ruined.startswith("NoT: Test fell by 34.0 points, from 94.0 to 60.0; this model is hardly of use: try more")
    assert lower.startswith("SalUn: Test fell by 6.0 points, from 94.0 to 88.0; to win some of them back, try more")
    assert falls(rows([line("before", 97.0), line("retrain", 82.0), line("not", 80.0)], "last")) == []


@pytest.mark.slow
def test_a_config_that_says_nothing_but_who_leaves_gives_good_models(tmp_path: Path) -> None:
    evaluation = {"every": 60, "attack": False}
    config = Config.parse({"request": {"clients": ["0"]}, "evaluation": evaluation, "methods": {"run": ["not"]}})
    run = unfed.Run.create(config, tmp_path / "run")
    run.execute()
    last = {line["method"]: float(line["test"]) for line in run.lines()}
    assert min(last["train"], last["not"]) > 90


def memorised() -> tuple[nn.Module, Tensor, Tensor]:
    """An embedding and a head, trained on 300 of 600 rows. Nothing between them bends, so two minus signs cancel."""
    torch.manual_seed(0)
    ids = torch.randint(0, 100, (600, 7))
    y = ((ids > 49).sum(1) > 3).long()
    model = nn.Sequential(nn.Embedding(100, 32), Mean(), nn.Linear(32, 2))
    nn.init.normal_(cast(nn.Embedding, model[0]).weight, std=3.0)
    nn.init.normal_(cast(nn.Linear, model[2]).weight, std=0.02)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        F.cross_entropy(model(ids[:300]), y[:300]).backward()
        optimiser.step()
    return model, ids, y


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def test_a_head_that_took_the_other_sign_forgot_nothing_and_the_result_says_so() -> None:
    """A small transformer under NoT did this: the numbers stay as they were, and the note was empty."""
    model, ids, y = memorised()
    sets: Any = {"data": (ids[:300], y[:300]), "forget": [0, 1, 2], "test": (ids[300:], y[300:])}
    result = unfed.unlearn(model, **sets, method="not", epochs=50, lr=0.1)
    before, after = params_of(model), params_of(result.model)
    turned = [
        float(F.cosine_similarity(before[n].flatten(), after[n].flatten(), dim=0)) for n in ("0.weight", "2.weight")
    ]
    assert turned[0] < -0.99 and turned[1] < -0.9, "the embedding was negated, and the head followed"
    assert result.before["forget"] == result.after["forget"] == 100.0
    assert result.forgetting is not None and (result.forgetting.kind, result.forgetting.by) == ("nothing", "sign")
    assert result.verdict == (
        "Nothing was forgotten: 2.weight took the opposite sign as well, which takes the negation back."
        ' Try other layers=, or method="retrain".'
    )
    assert result.verdict in str(result) and result.verdict.partition(" Try")[0] in result.report()
    again = unfed.unlearn(model, **sets, method="retrain", epochs=5)
    assert again.verdict == "Retrain never saw these rows."
    kept = unfed.unlearn(model, **sets, method="ft", epochs=1)
    assert kept.verdict == "Whether it was forgotten cannot be decided: 3 rows are too few."


def test_a_call_without_test_data_says_why_nothing_can_be_decided() -> None:
    model, ids, y = memorised()
    result = unfed.unlearn(model, data=(ids[:300], y[:300]), forget=[*range(60)], method="ft", epochs=1)
    assert result.verdict == "Whether it was forgotten cannot be decided: no held-out data."


def test_a_test_loss_that_multiplied_is_said_and_so_is_a_retain_that_was_ruined() -> None:
    before = {"test": 90.0, "retain": 100.0, "test_loss": 0.3}
    assert fell(before, {**before, "test_loss": 0.9}, "X") == (
        "The test loss rose from 0.3 to 0.9: the model is surer of its errors; try fewer rounds."
    )
    assert fell(before, {**before, "test_loss": 0.5}, "X") == fell(before, {**before, "retain": 80.0}, "X") == ""
    assert fell({**before, "test_loss": 0.01}, {**before, "test_loss": 0.05}, "X") == "", (
        "a small loss that stays small"
    )
    assert fell(before, {**before, "retain": 1.0}, "X").startswith("Retain fell by 99.0 points")


def test_a_call_hears_of_a_default_that_can_be_undone() -> None:
    model, ids, y = memorised()
    sets: Any = {"data": (ids[:300], y[:300]), "forget": [0, 1, 2], "epochs": 1}
    with pytest.warns(UnfedWarning, match='NoT .default.. NoT can be undone; use method="sealed" or "retrain"'):
        unfed.unlearn(model, **sets)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfedWarning)
        unfed.unlearn(model, **sets, method="not")
        unfed.unlearn(model, **sets, perturbation="zero")
