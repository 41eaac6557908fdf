"""Very many clients are a config like any other: all are made at the start, a few are asked in a round."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from unfed import rng
from unfed.config.config import Config
from unfed.data import split
from unfed.runs.run import Run

ASKED = 4


def rows(count: int) -> Dataset[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    images, classes = torch.rand((count, 1, 8, 8), generator=generator), torch.randint(0, 3, (count,))
    return TensorDataset(images, classes)


def thousand() -> tuple[Dataset[tuple[Tensor, ...]], Dataset[tuple[Tensor, ...]]]:
    return rows(2_000), rows(20)


@pytest.mark.filterwarnings("ignore:the batched engine and bit-equal resume are off")
def test_a_run_asks_its_share_of_very_many_clients(tmp_path: Path, allow_code: None) -> None:
    raw = {
        "name": "many",
        "data": {"name": "test_many_clients:thousand"},
        "partition": {"clients": 1_000},
        "model": {"name": "cnn-tiny"},
        "training": {"rounds": 2, "participation": ASKED / 1_000, "record": []},
        "unlearning": {"rounds": 2},
        "request": {"id": "r1", "clients": ["7"]},
        "methods": {"run": ["not"]},
        "evaluation": {"attack": False, "samples": False, "every": 2},
        "device": "cpu",
    }
    run = Run.create(Config.parse(raw), tmp_path / "run")
    run.execute()
    asked = [names for line in run.lines() for names in line.get("asked", {}).values()]
    assert [len(names) for names in asked] == [ASKED] * 4
    assert len({name for names in asked for name in names}) > ASKED, "each round others"
    served = [names for line in run.lines() if line["request"] for names in line.get("asked", {}).values()]
    assert served and all("7" not in names for names in served)


def test_a_client_is_split_by_a_number_as_it_was_by_a_tensor() -> None:
    """Which rows validate is part of a run: folding the key on the host is only faster."""
    train, val = split(9, 123456789123456789, 0.3)
    assert (train.tolist(), val.tolist()) == ([2, 3, 4, 5, 6, 7, 8], [0, 1])
    for key in (0, 1, 2**63 - 1, 123456789123456789):
        assert torch.equal(rng.order(key, 50), rng.order(rng.as_key(key), 50))
