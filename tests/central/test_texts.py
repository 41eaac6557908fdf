"""`unfed.unlearn` takes causal language models: texts with a label per token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import unfed
from unfed.errors import UnfedError
from unfed.model.params import params_of

TEXTS = torch.randint(1, 9, (30, 5), generator=torch.Generator().manual_seed(3))


class Speaker(nn.Module):
    """The next token by the last two."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(9, 12), nn.Linear(24, 32)
        self.head = nn.Linear(32, 9)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embed(input_ids)
        both = torch.cat([x, torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]], -1)
        return {"logits": self.head(torch.relu(self.mix(both)))}


def speaker(steps: int = 0) -> Speaker:
    """A model, trained on all texts for so many steps."""
    torch.manual_seed(0)
    model = Speaker()
    rule = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        rule.zero_grad()
        logits = model(TEXTS)["logits"][:, :-1]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), TEXTS[:, 1:].flatten()).backward()
        rule.step()
    return model


def call(model: nn.Module, data: Any, **more: Any) -> unfed.Result:
    usual: dict[str, Any] = {"forget": [0, 1, 2], "method": "ft", "epochs": 1, "optimiser": "adam", "lr": 1e-2}
    return unfed.unlearn(model, data=data, **{**usual, **more})


def test_a_language_model_goes_in_and_comes_out_and_its_loss_is_per_token() -> None:
    model = speaker(steps=30)
    result = call(model, {"input_ids": TEXTS, "labels": TEXTS})
    assert type(result.model) is Speaker and type(model) is Speaker
    logits = model(TEXTS[:3])["logits"][:, :-1].detach()
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TEXTS[:3, 1:].flatten())
    assert float(result.before["forget_loss"]) == pytest.approx(float(wanted), rel=1e-5)
    assert not torch.equal(params_of(result.model)["head.weight"], params_of(model)["head.weight"])


def test_every_way_to_hand_in_texts_is_the_same() -> None:
    mask = torch.ones_like(TEXTS)
    whole = {"input_ids": TEXTS, "attention_mask": mask, "labels": TEXTS}
    rows = [{name: value[row].tolist() for name, value in whole.items()} for row in range(30)]
    loader: Any = DataLoader(rows, batch_size=4)  # type: ignore[arg-type]
    wanted = params_of(call(speaker(), whole).model)
    for data in (rows, loader, (TEXTS, TEXTS)):
        found = params_of(call(speaker(), data).model)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_layers_are_named_as_the_owner_names_them() -> None:
    before = params_of(speaker())["mix.weight"]
    seen = call(speaker(), (TEXTS, TEXTS), method="not", layers=["mix"], lr=0.0).model
    assert torch.equal(params_of(seen)["mix.weight"], -before)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"input_ids": TEXTS, "labels": TEXTS.flip(1)}, "only causal language models are supported"),
        ({"input_ids": TEXTS, "labels": torch.full_like(TEXTS, -100)}, "Row 0 of data has no token that counts"),
        ({"input_ids": TEXTS, "labels": TEXTS[:, 0]}, "for a language model give labels=input_ids"),
        ({"input_ids": ["some words"] * 30, "labels": ["some words"] * 30}, "tokenise it first|no numbers"),
        ([{"input_ids": [1] * n, "labels": [1] * n} for n in (3, 4)] * 15, "pad them to one length"),
    ],
    ids=["labels of tokens", "nothing counts", "labels of rows", "raw text", "lengths"],
)
def test_what_does_not_fit_ends_in_a_sentence(data: Any, said: str) -> None:
    with pytest.raises(UnfedError, match=said):
        call(speaker(), data)


def test_a_classifier_with_a_label_per_token_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 2))
    with pytest.raises(UnfedError, match="one label per row instead of one per token"):
        call(model, (TEXTS, TEXTS))
