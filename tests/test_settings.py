"""One spine under every setting: what is written, read and reported is the same, whoever holds the rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import unfed
from unfed import storage
from unfed.runs.run import Run
from unfed.runs.status import status
from worlds import Small


def called(folder: Path) -> Path:
    """The folder of a call of `unlearn` on a model and data of one's own."""
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    torch.manual_seed(0)
    unfed.unlearn(
        nn.Linear(4, 3), retain=(x[9:], y[9:]), forget=(x[:9], y[:9]), method="ft", epochs=1, checkpoint=folder
    )
    return folder


def test_run_json_has_the_same_keys_in_every_setting(small: Small, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs unfed[flower]")
    from flower_grid import flower_world, grid_of

    config = small("training.rounds=1")
    simulated = Run.create(config, tmp_path / "simulated").description
    remote = Run.create(config, tmp_path / "flower", flower_world(config, grid_of(config))).description
    alone = storage.read_json(called(tmp_path / "call") / "run.json", "run")
    assert list(simulated) == list(remote) == list(alone)
    for key in ("rounds", "methods"):
        assert simulated[key].keys() == remote[key].keys()
    assert simulated["rounds"].keys() == alone["rounds"].keys()


def test_a_call_that_has_ended_is_finished_for_whoever_reads_its_folder(tmp_path: Path) -> None:
    """Nobody trains in a call: no training is waited for."""
    found = status(Run.open(called(tmp_path / "call")))
    assert found["state"] == "finished"
    assert [job["job"] for job in found["jobs"]] == ["0/forget/ft"]
