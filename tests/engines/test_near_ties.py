"""What is said of two ways that part: which decision differs, by how little, and whether that explains it."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_a_window_is_decided_by_how_much_its_largest_leads_and_one_of_zeros_decides_nothing(ours: Any) -> None:
    x = torch.tensor([[[[3.0, 1.0, 0.0, 0.0], [2.5, 0.0, 0.0, 0.0]]]])
    best, where = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    assert ours("decisions")._lead(x, best, where).tolist() == [[[[0.5, math.inf]]]]


def test_decisions_that_differ_are_counted_with_their_margin_and_the_rounding(ours: Any) -> None:
    decisions = ours("decisions")
    one, other = torch.tensor([[1e-7, 2.0, -1.0]]), torch.tensor([[-1e-7, 2.0, -1.0]])
    found = decisions.differing(*(decisions.Decision("relu", x, x > 0, x.abs()) for x in (one, other)))
    assert (found["otherwise"], found["decisions"]) == (1, 3)
    assert found["margin"] == pytest.approx(1e-7) and found["rounding"] == pytest.approx(2e-7)
    same = decisions.Decision("relu", one, one > 0, one.abs())
    assert decisions.differing(same, same) is None


def test_a_jump_is_explained_only_by_a_near_tie_that_came_no_later(ours: Any) -> None:
    explained = ours("decisions").explained
    near = {"step": 2, "margin": 1e-7, "rounding": 2e-7, "size": 1.0}
    assert explained({"first": None, "apart": [1e-7, 2e-7]})
    assert explained({"first": near, "apart": [1e-7, 1e-3]})
    assert not explained({"first": None, "apart": [1e-7, 1e-3]}), "nothing was decided otherwise"
    assert not explained({"first": near, "apart": [1e-3, 1e-3]}), "it had jumped before"
    assert not explained({"first": near | {"margin": 0.1}, "apart": [1e-7, 1e-3]}), "that was no near-tie"


def test_decisions_that_were_noted_are_taken_again(ours: Any) -> None:
    noted = ours("near_ties").Decisions

    def gradient(x: torch.Tensor) -> list[float]:
        x = x.clone().requires_grad_()
        torch.nn.functional.max_pool2d(torch.relu(x), 2).sum().backward()
        return [float(v) for v in x.grad.flatten()] if x.grad is not None else []

    first, second = torch.tensor([[[[2.0, 1.0], [0.5, -1.0]]]]), torch.tensor([[[[1.0, 2.0], [-0.5, 1.0]]]])
    with noted() as mode:
        assert gradient(first) == [1.0, 0.0, 0.0, 0.0]
    assert gradient(second) == [0.0, 1.0, 0.0, 0.0]
    with noted(mode.found):
        assert gradient(second) == [1.0, 0.0, 0.0, 0.0]
