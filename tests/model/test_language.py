"""A text is one row of logits whose cross-entropy is its loss per token; adapters are all that a federation sees."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unfed.errors import UnfedError
from unfed.model.functional import Template
from unfed.model.language import Adapter, TextRows, as_written, plain, text_rows, token_losses, with_adapters
from unfed.model.layers import choose
from unfed.model.params import params_of


class Speaker(nn.Module):
    """The next letter by the mean of the letters so far; the head shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embed(ids).cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]
        return {"logits": self.head(torch.tanh(self.inner(x)))}


IDS = torch.randint(0, 11, (5, 7), generator=torch.Generator().manual_seed(0))


def speaker() -> Speaker:
    torch.manual_seed(0)
    return Speaker()


def by_hand(model: nn.Module, text: Tensor, labels: Tensor) -> float:
    """The mean loss of a text's tokens, one by one."""
    logits = model(text[None])["logits"][0].detach().double()
    found = [-logits[t - 1].log_softmax(0)[int(labels[t])] for t in range(1, len(text)) if labels[t] != -100]
    return float(torch.stack(found).mean())


def test_the_cross_entropy_of_a_text_is_its_mean_loss_per_token() -> None:
    model = speaker()
    losses = F.cross_entropy(text_rows(model)(IDS), torch.zeros(5, dtype=torch.int64), reduction="none")
    assert losses.tolist() == pytest.approx([by_hand(model, text, text) for text in IDS], rel=1e-5)


def test_tokens_that_are_masked_or_skipped_do_not_count() -> None:
    model, labels, mask = speaker(), IDS.clone(), torch.ones_like(IDS)
    labels[:, 3] = -100
    mask[:, 5:] = 0
    wanted = labels.clone()
    wanted[:, 5:] = -100
    losses = -text_rows(model)(IDS, mask, labels)[:, 0]
    assert losses.tolist() == pytest.approx(
        [by_hand(model, t, own) for t, own in zip(IDS, wanted, strict=True)], rel=1e-5
    )


def test_the_gradient_of_a_row_is_that_of_its_loss_also_where_the_text_is_known_by_heart() -> None:
    for scale in (1.0, 1e-4):
        losses = (torch.rand(3, 6, generator=torch.Generator().manual_seed(1)) * scale).requires_grad_()
        F.cross_entropy(as_written(losses), torch.zeros(3, dtype=torch.int64)).backward()
        assert losses.grad is not None
        torch.testing.assert_close(losses.grad, torch.full((3, 6), 1 / 18), rtol=5e-3, atol=0)
    assert bool(as_written(torch.zeros(1, 4)).isfinite().all())  # p = 1


def test_the_two_classes_are_as_written_and_otherwise() -> None:
    logits = as_written(torch.tensor([[0.5, 0.7], [0.8, 0.9]]))
    assert logits.softmax(-1)[:, 0].tolist() == pytest.approx([float(torch.tensor(-v).exp()) for v in (0.6, 0.85)])
    assert logits.argmax(-1).tolist() == [0, 1]  # right where p > 1/2


def test_a_language_model_keeps_its_class_its_names_and_its_tensors() -> None:
    model = speaker()
    rows = text_rows(model)
    assert isinstance(rows, TextRows) and isinstance(rows, Speaker) and text_rows(rows) is rows
    assert [*params_of(rows)] == [*params_of(model)] and rows.embed.weight is model.embed.weight
    again = plain(copy.deepcopy(rows))
    assert type(again) is Speaker and type(model) is Speaker
    torch.testing.assert_close(again(IDS)["logits"], model(IDS)["logits"])


def test_a_model_without_logits_per_token_is_refused_in_a_sentence() -> None:
    with pytest.raises(UnfedError, match="one label per row instead"):
        text_rows(nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(28, 2)))(IDS)


def test_token_losses_are_cross_entropies_of_the_next_token() -> None:
    logits = torch.randn(2, 4, 11, generator=torch.Generator().manual_seed(2))
    found = token_losses(logits, IDS[:2, :4])
    wanted = F.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:2, 1:4].flatten(), reduction="none").view(2, 3)
    torch.testing.assert_close(found, wanted)


# --- adapters ---------------------------------------------------------------------------------------------------------


def test_only_adapters_are_params_and_they_begin_as_the_base() -> None:
    model, base = with_adapters(speaker(), ["inner"], rank=2, alpha=4.0), speaker()
    assert {name: tuple(t.shape) for name, t in params_of(model).items()} == {
        "inner.lora_A": (2, 6),
        "inner.lora_B": (6, 2),
    }
    torch.testing.assert_close(model(IDS)["logits"], base(IDS)["logits"])
    assert isinstance(model, Speaker)
    assert model.head.weight is model.embed.weight, "a tied weight stays one tensor"
    inner: nn.Module = model.inner
    assert isinstance(inner, Adapter)
    nn.init.ones_(inner.lora_B)
    x = torch.randn(3, 6)
    wanted = x @ base.inner.weight.T + base.inner.bias + 2.0 * x @ inner.lora_A.T @ inner.lora_B.T
    torch.testing.assert_close(inner(x), wanted)


def test_a_transposed_layer_gets_an_adapter_of_the_right_shape() -> None:
    class Conv1D(nn.Module):  # as in transformers' GPT-2
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    model = with_adapters(nn.Sequential(Conv1D()), ["0"], rank=2)
    assert {name: tuple(t.shape) for name, t in params_of(model).items()} == {"0.lora_A": (2, 6), "0.lora_B": (4, 2)}
    assert model(torch.randn(3, 6)).shape == (3, 4)


def test_adapters_are_addressed_trained_and_moved_while_the_base_stays() -> None:
    model = text_rows(with_adapters(speaker(), ["inner"], rank=2))
    assert [choice.name for choice in choose(model, ["first"])] == ["inner.lora_A"]
    template = Template(model, (7,)).to("cpu", torch.float64)
    assert template.trainable == ("inner.lora_A", "inner.lora_B") and template.state == ()
    moved = {name: value + 0.5 for name, value in template.like.items()}
    assert template.bind(moved)(IDS).dtype == torch.float64
    assert not torch.equal(template.bind(moved)(IDS), template.bind(template.like)(IDS))


def test_an_unknown_layer_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnfedError, match="No dense layer is called 'iner'.*inner"):
        with_adapters(speaker(), ["iner"])
