"""Settings of the process that make a run repeatable, and that they do not outlive it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import apart
from unfed.engines import choice
from unfed.engines.choice import fixed_library, fixed_order
from unfed.remote.client import describe, node_data_of
from unfed.requests.entry import Job
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.world import process_as_before
from worlds import Small

onednn: Any = torch.backends.mkldnn


def test_kernels_of_a_fixed_order_are_asked_for_on_cuda_only() -> None:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    with process_as_before():
        cudnn.deterministic, cudnn.benchmark = False, True
        fixed_order(torch.device("cpu"))
        assert (cudnn.deterministic, cudnn.benchmark) == (False, True)
        fixed_order(torch.device("cuda"))
        assert (cudnn.deterministic, cudnn.benchmark) == (True, False)
    assert (cudnn.deterministic, cudnn.benchmark) == before


@pytest.mark.parametrize(
    ("device", "half", "has", "asked"),
    [
        ("cpu", torch.bfloat16, False, False),
        ("cpu", torch.bfloat16, True, True),
        ("cpu", None, False, True),
        ("cuda", torch.bfloat16, False, True),
    ],
)
def test_onednn_is_left_out_only_where_it_would_refuse_bf16(
    device: str, half: torch.dtype | None, has: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "has_bf16", lambda: has)
    with process_as_before():
        onednn.enabled = True
        fixed_library(torch.device(device), half)
        assert onednn.enabled is asked
    assert onednn.enabled


def test_a_node_leaves_it_out_too_before_it_computes_anything(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "has_bf16", lambda: False)
    with process_as_before():
        node_data_of(describe(small('engine.precision="bf16"'), 0), {"partition-id": "0"}, "0")
        assert not onednn.enabled


class Looking(Watch):
    """Notes, from before the first round on, which float32 products the process computes."""

    def __init__(self) -> None:
        self.seen: list[list[bytes]] = []

    def begins(self, job: Job, round: int, rounds: int) -> None:
        self.seen.append(apart.products())

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        self.seen.append(apart.products())


@pytest.mark.own_process
def test_a_run_in_bf16_multiplies_float32_by_one_library_from_its_first_round_to_its_last(
    small: Small, tmp_path: Path
) -> None:
    """A resumed one, whose process begins later, computes the same; PyTorch would not, without bf16."""
    before, looking = apart.products(), Looking()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="mkldnn")
        Run.create(small('engine.precision="bf16"'), tmp_path / "run").execute(looking)
    assert len(looking.seen) > 6 and all(products == looking.seen[0] for products in looking.seen)
    assert apart.products() == before and onednn.enabled, "the next run of this process would be another"
