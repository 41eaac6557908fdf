"""What a language model knows of texts, beside answers that were computed by hand."""

from __future__ import annotations

import csv
import importlib
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unfed.errors import UnfedError
from unfed.measures.text import continued, losses, min_k, relearning_steps, score_texts, text_membership

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


class Counter(nn.Module):
    """Says that the letter after n is n + 1, by four fifths of the probability; ten letters."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.full((10, 10), math.log(0.2 / 9))
        table[torch.arange(10), (torch.arange(10) + 1) % 10] = math.log(0.8)
        self.table = nn.Parameter(table)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids]


COUNTED = torch.tensor([[0, 1, 2, 3, 4, 5], [4, 5, 6, 7, 8, 9]])
MIXED = torch.tensor([[0, 1, 2, 3, 9, 0], [5, 2, 8, 1, 7, 3]])
SURE, ODD = -math.log(0.8), -math.log(0.2 / 9)


def test_losses_perplexity_and_extraction_are_what_a_hand_counts() -> None:
    found = score_texts(Counter(), COUNTED, prompt=2)
    assert found.loss == pytest.approx(SURE) and found.perplexity == pytest.approx(1 / 0.8)
    assert (found.longest, found.verbatim) == (4, 100.0)
    assert continued(Counter(), MIXED, prompt=2).tolist() == [2, 0]  # 2, 3, then 9 where 4 was expected
    mixed = score_texts(Counter(), MIXED, prompt=2)
    assert (mixed.longest, mixed.verbatim) == (2, 0.0)
    assert mixed.loss == pytest.approx((4 * SURE + 6 * ODD) / 10)


def test_a_greedy_continuation_is_what_writing_token_by_token_gives() -> None:
    model, prompt = Counter(), 2
    for text in torch.cat([COUNTED, MIXED]):
        written = text[:prompt].tolist()
        while len(written) < len(text):
            written.append(int(model(torch.tensor([written]))[0, -1].argmax()))
        right = 0
        while prompt + right < len(text) and written[prompt + right] == int(text[prompt + right]):
            right += 1
        assert continued(model, text[None], prompt).tolist() == [right]


def test_min_k_is_the_mean_of_the_least_likely_tokens() -> None:
    tokens = torch.tensor([[1.0, 5.0, 2.0, 4.0, 3.0]])
    assert min_k(tokens, 0.4).tolist() == [4.5]
    assert min_k(tokens, 0.01).tolist() == [5.0]  # one token at least


def test_membership_tells_texts_that_the_model_knows() -> None:
    found = text_membership(Counter(), COUNTED, MIXED)
    assert (found.loss, found.min_k) == (1.0, 1.0)
    same = text_membership(Counter(), MIXED, MIXED)
    assert (same.loss, same.min_k) == (0.5, 0.5)


def test_relearning_counts_steps_and_leaves_the_model_as_it_was() -> None:
    model = Counter()
    before = model.table.detach().clone()
    now = float(losses(model, MIXED).double().mean())
    assert relearning_steps(model, MIXED, now) == 0
    steps = relearning_steps(model, MIXED, now - 0.5, lr=0.05)
    assert isinstance(steps, int) and 1 <= steps <= 50
    assert relearning_steps(model, MIXED, now - 0.5, lr=1e-6, limit=3) == "not measured: more than 3 steps"
    assert torch.equal(model.table, before)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["some words"], "must be token ids.*not a list; tokenise"),
        (torch.rand(2, 5), "must be token ids.*float32"),
        (torch.zeros(5, dtype=torch.int64), r"not \[5\]"),
        (torch.zeros(2, 2, dtype=torch.int64), "2 tokens each; give texts of at least 3"),
    ],
)
def test_what_is_no_text_is_refused_in_a_sentence(texts: Tensor, said: str) -> None:
    with pytest.raises(UnfedError, match=said):
        continued(Counter(), texts, prompt=2)


def test_a_model_that_gives_no_logits_per_token_is_refused() -> None:
    with pytest.raises(UnfedError, match="give a causal language model"):
        losses(nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(24, 2)), COUNTED)


def test_a_speaker_leaves_a_federation_in_which_only_adapters_travel(tmp_path: Path) -> None:
    """The study of docs/how-to/language-models.md in its smallest size."""
    lora: Any = importlib.import_module("lora")

    lora.main(["--size", "tiny", "-o", str(tmp_path / "out")])
    with open(tmp_path / "out/lora.csv", encoding="utf-8") as file:
        found = {row["method"]: row for row in csv.DictReader(file)}
    assert [*found] == ["before", "retrain", "ft", "not", "not-all"]
    adapters = 4 * 2 * (16 + 48 + 16 + 16 + 16 + 64 + 64 + 16)  # four bytes, rank 2, four dense layers of a block
    asked = 5  # of six clients one left
    assert int(found["retrain"]["wire_bytes"]) == 2 * asked * 2 * adapters  # rounds, clients, down and up
    assert len({row["forgotten_loss"] for row in found.values()}) == 4  # with one block, the two NoTs are the same
    for row in found.values():
        assert float(row["forgotten_perplexity"]) == pytest.approx(math.exp(float(row["forgotten_loss"])), rel=1e-3)
    run = tmp_path / "out/run"
    sizes = [file.stat().st_size for file in run.rglob("*.safetensors")]
    assert sizes and max(sizes) < 4 * adapters + 20_000, "no file of the run holds the base"
