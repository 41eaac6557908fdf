"""The real thing: a SuperLink and four SuperNodes as processes on 127.0.0.1, with TLS and node authentication."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flower_deployment import Deployment, end
from flower_grid import InProcessGrid
from unfed import checkpoint
from unfed.api import write_report
from unfed.data import Request
from unfed.federation import Server
from unfed.flower.options import Options
from unfed.flower.server import run as serve
from unfed.folder import Job, RunFolder
from unfed.methods import NoT
from unfed.run import Run
from unfed.world import World

pytestmark = pytest.mark.flower_processes

SET = (
    "training.rounds=1; evaluation.every=9; model.name=cnn-tiny; training.batch=64;"
    " training.lr=0.02; engine.precision=float64"
)

PATIENCE = 600.0
"""Seconds: a busy machine takes several times as long as an idle one."""
TRAINING, FORGOTTEN = Job(0, None, "train"), Job(0, "client-0", "not")
LEAVES = Request("client-0", clients=("0",))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    try:
        made.up()
        yield made
    finally:
        made.down()


def words(**changes: Any) -> str:
    pairs = {key.replace("_", "-"): value for key, value in changes.items()}
    return " ".join(f"{key}={json.dumps(value)}" for key, value in pairs.items())


def in_process(where: Path) -> dict[str, torch.Tensor]:
    """What the same app gives without processes."""
    grid = InProcessGrid({"partition-id": k, "device": "cpu"} for k in range(4))
    values = {
        "run-folder": str(where),
        "forget-clients": "0",
        "min-nodes": 4,
        "set": f"{SET}; unlearning.rounds=1; partition.clients=4",
    }
    return serve(grid, values).model(method="not")


def started_stranger(deployment: Deployment) -> subprocess.Popen[bytes]:
    """A SuperNode whose key nobody registered."""
    where, port = deployment.where, int(deployment.env["PORT"])
    key = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(where / "stranger")]
    subprocess.run(key, check=True)
    command = ["flower-supernode", "--ssl-ca-certfile", f"{where}/ca.crt", "--ssl-certfile", f"{where}/server.crt"]
    command += ["--ssl-keyfile", f"{where}/server.key", "--root-certificates", f"{where}/ca.crt"]
    command += ["--superlink", f"127.0.0.1:{port}", "--auth-supernode-private-key", f"{where}/stranger"]
    command += ["--host", "127.0.0.1", "--port", str(port + 6), "--node-config", "partition-id=0"]
    return deployment.start(command, "stranger.log")


def test_a_clean_run_ends_with_the_in_process_result_and_the_leaver_is_left_alone(
    deployment: Deployment, tmp_path: Path
) -> None:
    stranger = started_stranger(deployment)
    out = deployment.script("4-run", "--run-config", words(set=f"{SET}; unlearning.rounds=1"), timeout=PATIENCE)
    run = Run.open(deployment.where / "run")
    (listed,) = json.loads((deployment.where / "ls.json").read_text())["runs"]
    assert listed["status"] == "finished:completed", out
    assert json.loads((run.folder.path / "flower.json").read_text())["state"] == "finished"

    params = run.folder.load_model(FORGOTTEN)
    for name, value in in_process(tmp_path / "here").items():
        torch.testing.assert_close(params[name], value, rtol=0, atol=1e-9)

    # Node 0 took part in the training and in nothing after the request: its own log says so.
    assert [deployment.asked(0, kind) for kind in ("train", "measure", "scores")] == [1, 2, 0]
    assert deployment.asked(1, "train") == 2 and deployment.asked(1, "measure") > 2
    last = run.lines()[-1]
    assert last["asked"] == {"1": ["1", "2", "3"]}
    assert last["forget"] == "not measured: client 0 does not allow it"
    assert "does not allow it" in write_report(run).read_text()

    # What crossed: the tensors are fewer bytes than our messages, and these fewer than Flower's own figure.
    costs = {line["method"]: line for line in run.lines() if "wire_bytes" in line}
    messages = sum(line["serialised_bytes"] for line in costs.values())
    assert sum(line["wire_bytes"] for line in costs.values()) < messages < listed["network-traffic"]["total-bytes"]

    # A key that nobody registered is not let in.
    assert deployment.online() == 4
    assert stranger.poll() != 0 and "unfed: asked for" not in deployment.log("stranger")


def test_a_run_survives_a_killed_node_and_is_resumed_after_a_killed_superlink(deployment: Deployment) -> None:
    folder = deployment.where / "faults"
    before = deployment.asked(3, "train")
    (clean,) = deployment.flwr("ls", "local")["runs"]
    patience = max(20.0, 3 * clean["elapsed"] / 8)  # a clean run has eight round trips
    options = words(set=f"{SET}; unlearning.rounds=2", run_folder=str(folder), min_nodes=3, round_timeout=patience)
    app = ["flwr", "run", str(deployment.where / "app"), "local", "--run-config", options]
    deployment.start(app, "faults.log").wait(60)

    # Node 3 dies in the middle of a round: it was asked, and never answers.
    deployment.wait(lambda: deployment.asked(3, "train") > before, "round 1", PATIENCE)
    end(deployment.pid("node3"))

    # The run goes on without it, up to the recovery; there the SuperLink dies, and the server app ends with it.
    deployment.wait(lambda: (checkpoint_round(folder, FORGOTTEN) or 0) >= 1, "round 1 of the recovery", PATIENCE)
    os.kill(deployment.pid("superlink"), signal.SIGKILL)
    deployment.wait(lambda: not RunFolder(folder).busy(), "the server app ends", 60)
    assert not RunFolder(folder).model_file(FORGOTTEN).exists()
    assert json.loads((folder / "flower.json").read_text())["state"] == "failed"

    deployment.script("2-superlink")
    deployment.wait(lambda: deployment.online() >= 3, "the SuperNodes are back", 90)
    resume = words(resume_from=str(folder), min_nodes=3, round_timeout=patience)
    deployment.script("4-run", "--run-config", resume, timeout=PATIENCE)
    run = Run.open(folder)
    assert [r["state"] for r in json.loads((folder / "flower.json").read_text())["runs"]] == ["failed", "finished"]
    lines = [line for line in run.lines() if line["method"] == "not"]
    assert [line["round"] for line in lines] == [0, 2]  # begun once: NoT was not applied a second time
    trained = next(line for line in run.lines() if line["method"] == "train" and line["round"] == 1)
    assert [r["client"] for r in trained["refused"]] == ["3"]

    # From θ* on everything is known, so the end can be computed here: clients 1 and 2, two rounds, negated once.
    config = Options.of({"run-folder": str(folder), "set": f"{SET}; unlearning.rounds=2; partition.clients=4"}).config()
    local = World(config, 0)
    clients = local.scoped([LEAVES])
    server = Server(
        local.template,
        local.engine(clients),
        clients,
        run.folder.load_model(TRAINING),
        local.unlearning_settings(False, "not"),
        local.seeds.request("client-0"),
        local.fresh,
        local.forward_flops,
    )
    state = NoT().begin(server)
    for _ in range(2):
        state = server.advance(state, ["1", "2"])
    for name, value in run.folder.load_model(FORGOTTEN).items():
        torch.testing.assert_close(value, state.params[name], rtol=0, atol=1e-9)


def checkpoint_round(folder: Path, job: Job) -> int | None:
    """The round of a job's saved state, or None."""
    path = RunFolder(folder).state_file(job)
    return int(checkpoint.numbers_of(path)["round"]) if path.exists() else None
