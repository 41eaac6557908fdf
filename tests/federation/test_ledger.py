"""ledger.py: what a pass costs by hand, fused kernels or not; what cannot be counted is said, never small."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unfed
from unfed import api
from unfed.federation.state import Ledger
from unfed.model import functional
from unfed.model.functional import Template, forward_flops
from unfed.runs.run import Run
from worlds import Small

ROWS, WIDTH, HIDDEN = 8, 8, 16


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, hidden: int) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out.forward(self.layer(x.view(-1, ROWS, WIDTH))[0][:, -1])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, ROWS, WIDTH)
        return self.out.forward(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Encoding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, HIDDEN, dropout=0.0, batch_first=True)
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out.forward(self.layer(x.view(-1, ROWS, WIDTH)).mean(1))


class Pairs(nn.Module):
    """A bilinear layer is one operation of PyTorch's, of which nobody knows the FLOPs."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.out = nn.Bilinear(32, 32, 4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.flatten(1).chunk(2, 1)
        return self.out.forward(self.pair(left, right))


def pairs() -> nn.Module:
    return Pairs()


class Weighing(nn.Module):
    """x ↦ (x · v) for all classes: a product with a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.out = nn.Parameter(torch.ones(64)), nn.Linear(1, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out.forward((x.flatten(1) @ self.v)[:, None])


HEAD = {HIDDEN: HIDDEN * 10, WIDTH: WIDTH * 10}
PROJECTIONS = ROWS * WIDTH * (3 * WIDTH + WIDTH)  # q, k, v and what comes out
SCORES = 2 * ROWS * ROWS * WIDTH  # q kᵀ and its product with v, over both heads

BY_HAND: list[tuple[str, Callable[[], nn.Module], int]] = [
    ("LSTM", lambda: Recurrent(nn.LSTM(WIDTH, HIDDEN, batch_first=True), HIDDEN), 4 * ROWS * HIDDEN * (WIDTH + HIDDEN)),
    ("GRU", lambda: Recurrent(nn.GRU(WIDTH, HIDDEN, batch_first=True), HIDDEN), 3 * ROWS * HIDDEN * (WIDTH + HIDDEN)),
    ("MHA", Attending, PROJECTIONS + SCORES),
    ("encoder", Encoding, PROJECTIONS + SCORES + 2 * ROWS * WIDTH * HIDDEN),
]


@pytest.mark.parametrize(("name", "make", "products"), BY_HAND, ids=[name for name, *_ in BY_HAND])
def test_recurrent_layers_and_attention_cost_what_their_products_cost(
    name: str, make: Callable[[], nn.Module], products: int
) -> None:
    module = make()
    head = HEAD[HIDDEN if isinstance(module, Recurrent) else WIDTH]
    assert forward_flops(Template(module, (1, 8, 8))) == 2 * (products + head)


def test_a_product_with_a_vector_is_counted() -> None:
    assert forward_flops(Template(Weighing(), (1, 8, 8))) == 2 * (64 + 10)


def test_counting_leaves_the_fused_paths_as_they_were() -> None:
    before = torch.backends.mha.get_fastpath_enabled(), torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled
    forward_flops(Template(Encoding(), (1, 8, 8)))
    assert before == (
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cudnn.enabled,
        torch.backends.mkldnn.enabled,
    )


def test_an_operation_nobody_can_count_is_named() -> None:
    found = forward_flops(Template(Pairs(), (1, 8, 8)))
    assert found == "not measured: no formula for _trilinear"


class Normalising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out.forward(F.gelu(F.normalize(x.flatten(1)).sigmoid().cumsum(1)))


def test_what_works_entry_by_entry_costs_nothing_and_hides_nothing() -> None:
    assert forward_flops(Template(Normalising(), (1, 8, 8))) == 2 * 64 * 10
    known = {"_cudnn_rnn": True, "mkldnn_rnn_layer": True, "_sparse_mm": True, "linalg_inv_ex": True, "_fft_r2c": True}
    known |= {
        "_thnn_fused_lstm_cell": False,
        "_thnn_fused_gru_cell": False,
        "linalg_vector_norm": False,
        "lgamma": False,
    }
    assert {name: bool(functional._PRODUCTS.search(name)) for name in known} == known


def test_work_that_was_not_counted_makes_the_sum_unknown_and_no_work_does_not() -> None:
    costs = Ledger()
    costs.worked(10, trained=2, forwarded=1)
    costs.worked("not measured: x", trained=0)
    assert costs.flops == 70
    costs.worked("not measured: x", trained=1)
    costs.worked(10, trained=2)
    assert str(costs.flops) == "not measured: x" == Ledger.from_json(costs.to_json()).flops


def test_a_run_whose_flops_are_unknown_goes_through_and_says_so(small: Small, tmp_path: Path, allow_code: None) -> None:
    sets = (
        "model.name=test_ledger:pairs",
        "methods.run=['retrain', 'ft']",
        "training.rounds=1",
        "unlearning.rounds=1",
        "engine.name=sequential",
    )
    run = Run.create(small(*sets), tmp_path / "run")
    run.execute()
    (row,) = (row for row in api.results(run) if row.method == "ft")
    assert row.costs["flops"].mean == "not measured: no formula for _trilinear"
    assert "no formula for _trilinear" in api.write_report(run).read_text()


def test_the_result_of_a_call_says_that_its_flops_are_unknown() -> None:
    x, y = torch.randn(24, 1, 8, 8), torch.arange(24) % 10
    done = unfed.unlearn(pairs(), data=(x, y), forget=[1, 2, 3], epochs=1, method="ft")
    assert "1 epoch, FLOPs not measured: no formula for _trilinear" in str(done)


@pytest.mark.parametrize("column", [one.name for one in fields(Ledger)])
def test_every_column_is_written_somewhere(column: str) -> None:
    """A column that is always 0 would say of every method that it costs nothing there."""
    sources = (Path(__file__).parents[2] / "src/unfed").rglob("*.py")
    assert any(re.search(rf"\.{column} (\+)?= ", path.read_text(encoding="utf-8")) for path in sources)
