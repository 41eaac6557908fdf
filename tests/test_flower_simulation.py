"""Flower's own simulator runs the same app, to the same end. Needs `pip install 'unfed[simulation]'`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")
pytest.importorskip("ray", reason="needs unfed[simulation]")

from flower_deployment import Deployment
from test_flower_app import nodes
from unfed.flower.server import run as serve
from unfed.runs.run import Run

pytestmark = pytest.mark.flower_processes

SET = (
    "training.rounds=2; unlearning.rounds=2; model.name=cnn-tiny; training.batch=64; training.lr=0.02;"
    " engine.precision=float64"
)


def test_flowers_simulator_ends_with_the_in_process_result(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    try:
        out = deployment.script("simulation", "--run-config", f'set="{SET}"', timeout=300)
    finally:
        deployment.down()
    folder = tmp_path / "tryout" / "run"
    assert json.loads((folder / "flower.json").read_text())["state"] == "finished", out
    values = {"run-folder": str(tmp_path / "here"), "forget-clients": "0", "min-nodes": 4}
    here = serve(nodes(allow=""), {**values, "set": f"{SET}; partition.clients=4"})
    there = Run.open(folder).folder
    for job, _ in here.jobs():
        for name, value in here.folder.load_model(job).items():
            torch.testing.assert_close(there.load_model(job)[name], value, rtol=0, atol=1e-9)
