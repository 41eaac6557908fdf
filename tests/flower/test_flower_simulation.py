"""Flower's own simulator: unfed's app ends as it does in process, foreign apps forget, refusals are sentences.

Needs `pip install '.[simulation]'`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs unfed[flower]")
pytest.importorskip("ray", reason="needs unfed[simulation]")

from flower_deployment import Deployment, Simulator, asked, forgets_in_a_second_run, quickstart
from test_flower_app import nodes
from unfed.cli.main import app as cli
from unfed.flower.server import run as serve
from unfed.flower.transport import UNANSWERED
from unfed.remote.messages import FORMAT
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


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    made = Simulator(tmp_path_factory.mktemp("simulator"))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.mark.parametrize("name", ["torch", "sklearn", "lora"])
def test_an_app_in_the_shape_of_a_quickstart_forgets_in_a_second_run(
    name: str, simulator: Simulator, tmp_path: Path
) -> None:
    assert forgets_in_a_second_run(simulator, name, tmp_path) == {}  # it neither trains nor measures


NEWER = """
from unfed.remote import messages
messages.FORMAT += 1  # in the process of the server app alone
from unfed.flower import server
app = server.app
"""


def test_clients_of_another_version_are_told_to_install_the_same(simulator: Simulator, tmp_path: Path) -> None:
    app = tmp_path / "newer"
    made = CliRunner().invoke(cli, ["flower", "init", str(app), "--nodes", "4", "--run-folder", str(tmp_path / "run")])
    assert made.exit_code == 0, made.output
    (app / "newer").mkdir()
    (app / "newer" / "__init__.py").write_text("")
    (app / "newer" / "server.py").write_text(NEWER)
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace("unfed.flower.server:app", "newer.server:app"))
    out = simulator.run(app, mode="train", wait_seconds=1.0)
    sentence = f"The server speaks format {FORMAT + 1}, this client format {FORMAT}; install the same version of unfed"
    assert out.count("Only 0 of 4 clients are there") == 1 and sentence in out and "Traceback" not in out, out
    assert simulator.flwr("ls", "local")["runs"][0]["status"] == "finished:failed"
    assert not (tmp_path / "run").exists()


LOADING = "while it is loaded"  # Flower says it once of the client app, and then of the simulation
REFUSALS = {
    "nobody is meant": ("", "", 9, "There is no partition 9 of 4: they are 0 to 3"),
    "before the start": ("node_with(partition_id=", "node_with(partition=", 0, "node_with takes client, client_name"),
    LOADING: ('negate_arrays("0")', "negate_arrays()", 0, "negate_arrays takes the names of the arrays"),
    "clients say nothing": (
        "introduce(ClientApp())",
        "ClientApp()",
        0,
        "4 of 4 connected nodes might be it. Of",
    ),
}


@pytest.mark.parametrize("case", list(REFUSALS))
def test_a_refusal_stands_in_the_stream_with_its_sentence(case: str, simulator: Simulator, tmp_path: Path) -> None:
    app, (old, new, forget, sentence) = quickstart(tmp_path, "sklearn"), REFUSALS[case]
    for source in (app / "quickstarts").glob("*.py"):
        source.write_text(source.read_text().replace(old, new))
    arrays: Any = {"0": np.zeros((10, 64)), "1": np.zeros(10)}
    np.savez(tmp_path / "model.npz", **arrays)
    out = simulator.run(app, forget=forget, model=str(tmp_path / "model.npz"), asked=str(tmp_path / "asked"))
    assert "Simulation raised an exception" in out and sentence in out, out
    assert all(words not in out for words in UNANSWERED), out  # the server says that in one sentence
    assert asked(tmp_path / "asked") == {}
    last = simulator.flwr("ls", "local")["runs"][0]
    assert last["status"] == "finished:failed" and (case == LOADING or sentence in last["status-details"])
