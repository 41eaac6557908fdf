"""The real thing: a SuperLink and four SuperNodes as processes on 127.0.0.1, with TLS and node authentication.

What is run are the tutorial's own scripts, in its order. A round trip costs about six seconds on two idle cores, most
of them for client processes that import PyTorch, so there is no round more than the claims need.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flower_deployment import Deployment, end
from flower_grid import InProcessGrid
from unfed.data import Request
from unfed.federation.server import JobServer, Members, Setup
from unfed.flower.server import run as serve
from unfed.folder.folder import RunFolder
from unfed.methods import NoT
from unfed.remote.options import Options
from unfed.requests.entry import Job
from unfed.runs.run import Run
from unfed.runs.simulated import simulated

pytestmark = pytest.mark.flower_processes

SET = (
    "training.rounds=1; unlearning.rounds=1; evaluation.every=9; model.name=cnn-tiny; training.batch=64;"
    " training.lr=0.02; engine.precision=float64; methods.conv2={use='not', layers=['conv2']}; data.train_size=300"
)

ATTACKS = ("scale", "3.4e38", "weight")
"""What the hostile client sends in rounds 1, 2 and 3 (tests/hostile.py)."""
HOSTILE_APP = """import sys
sys.path.insert(0, {tests!r})
from flower_grid import hostile_app
app = hostile_app(1, *{attacks!r})
"""
PATIENCE = 600.0
"""Seconds: a busy machine takes several times as long as an idle one."""
FIRST, SECOND = Request("client-0", clients=("0",)), Request("client-1", clients=("1",))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    try:
        made.up()
        yield made
    finally:
        made.down()


def words(**changes: Any) -> tuple[str, str]:
    pairs = {key.replace("_", "-"): value for key, value in changes.items()}
    return "--run-config", " ".join(f"{key}={json.dumps(value)}" for key, value in pairs.items())


def in_process(where: Path) -> dict[str, torch.Tensor]:
    """What the same app gives without processes."""
    grid = InProcessGrid({"partition-id": k, "device": "cpu"} for k in range(4))
    values = {"run-folder": str(where), "min-nodes": 4, "set": f"{SET}; partition.clients=4"}
    serve(grid, {**values, "mode": "train"})
    return serve(grid, {**values, "mode": "unlearn", "forget-clients": "0"}).model()


def states(folder: Path) -> list[str]:
    return [run["state"] for run in json.loads((folder / "flower.json").read_text())["runs"]]


def test_a_clean_run_ends_with_the_in_process_result_and_the_leaver_is_left_alone(
    deployment: Deployment, tmp_path: Path
) -> None:
    stranger = deployment.supernode("stranger", 5, "partition-id=0")  # a key that nobody registered
    out = deployment.script("4-train", *words(set=SET), timeout=PATIENCE)
    assert deployment.asked(0, "train") == deployment.asked(1, "train") == 1, out
    out = deployment.script("5-forget", timeout=PATIENCE)
    looked = deployment.script("6-look", timeout=PATIENCE)
    run = Run.open(deployment.where / "run")
    listed = json.loads((deployment.where / "ls.json").read_text())["runs"]
    assert [one["status"] for one in listed] == ["finished:completed"] * 2, out
    assert states(run.folder.path) == ["finished", "finished"]

    params = run.folder.load_model(Job(0, "client-0", "not"))
    for name, value in in_process(tmp_path / "here").items():
        torch.testing.assert_close(params[name], value, rtol=0, atol=1e-9)

    held = json.loads((run.folder.path / "clients.json").read_text())["held"]  # what the nodes themselves counted
    assert sum(census["all"] + census["val"] for census in held.values()) == 300, "what data.train_size leaves"

    # Node 0 took part in the training and in nothing after the request: its own log says so.
    assert [deployment.asked(0, kind) for kind in ("train", "measure", "scores")] == [1, 2, 0]
    assert deployment.asked(1, "train") == 2 and deployment.asked(1, "measure") > 2
    last = run.lines()[-1]
    assert last["asked"] == {"1": ["1", "2", "3"]}
    assert last["forget"] == "not measured: client 0 does not allow it"
    assert "does not allow it" in (run.folder.path / "report.html").read_text()

    # What crossed: the tensors are fewer bytes than our messages, and these fewer than Flower's own figure.
    costs = {line["method"]: line for line in run.lines() if "wire_bytes" in line}
    messages = sum(float(line["serialised_bytes"]) for line in costs.values())
    flower = sum(one["network-traffic"]["total-bytes"] for one in listed)
    assert sum(float(line["wire_bytes"]) for line in costs.values()) < messages < flower
    assert "client-0/not" in looked and looked.count("through the SuperLink") == 2

    # A key that nobody registered is not let in.
    assert deployment.online() == 4
    assert stranger.poll() != 0 and "unfed: asked for" not in deployment.log("stranger")


def test_a_run_is_resumed_after_a_killed_superlink_and_survives_a_killed_node(deployment: Deployment) -> None:
    folder, job = deployment.where / "run", Job(0, "client-1", "conv2")  # the first layer would be turned back
    leaver = [deployment.received(0, kind) for kind in ("train", "evaluate")]
    asked = {node: deployment.asked(node, "train") for node in (2, 3)}
    started = time.monotonic()
    behind = deployment.script_behind("5-forget", *words(forget_clients="1", methods="conv2"))

    def at_work() -> bool:
        return all(deployment.asked(node, "train") > before for node, before in asked.items())

    # The SuperLink dies while those who stay are at work on the negated model; the server app ends with it.
    deployment.wait(at_work, "round 1 of the recovery", PATIENCE)
    patience = time.monotonic() - started  # the start of a run and three round trips, as busy as this machine is
    end(behind.pid)
    os.kill(deployment.pid("superlink"), signal.SIGKILL)
    deployment.wait(lambda: not RunFolder(folder).busy(), "the server app ends", 60)
    assert RunFolder(folder).state_file(job).exists() and not RunFolder(folder).model_file(job).exists()
    assert states(folder)[-1] == "failed"

    # The run is resumed, and node 3 dies in the middle of its round: it was asked, and never answers.
    deployment.script("2-superlink")
    before = deployment.received(3, "train")
    behind = deployment.script_behind("resume", *words(round_timeout=max(15.0, patience)))
    deployment.wait(lambda: deployment.received(3, "train") > before, "the resumed round", PATIENCE)
    end(deployment.pid("node3"))
    behind.wait(PATIENCE)
    assert states(folder) == ["finished", "finished", "failed", "finished"]

    run = Run.open(folder)
    lines = [line for line in run.lines() if (line["request"], line["method"]) == ("client-1", "conv2")]
    assert [line["round"] for line in lines] == [0, 1]  # begun once: NoT was not applied a second time
    assert lines[-1]["asked"] == {"1": ["2", "3"]}
    assert [(r["round"], r["client"]) for r in lines[-1]["refused"]] == [(1, "3")]
    assert "client 3" in cast(Any, lines[-1])["unheard"]
    assert [deployment.received(0, kind) for kind in ("train", "evaluate")] == leaver

    # From what the first request left everything is known, so the end can be computed here: negated once, one round.
    config = Options.of({"run-folder": str(folder), "set": f"{SET}; partition.clients=4"}).config()
    local = simulated(config, 0)
    clients = local.scoped([FIRST, SECOND], gone=[FIRST])
    server = JobServer(
        Setup(local.template, local.fresh, local.forward_flops),
        Members(clients, local.engine(clients)),
        run.folder.load_model(Job(0, "client-0", "not")),
        local.unlearning_settings(False, "conv2"),
        local.seeds.request("client-1"),
    )
    state = server.advance(NoT(layers=("conv2",)).begin(server), ["2"])
    for name, value in run.folder.load_model(job).items():
        torch.testing.assert_close(value, state.params[name], rtol=0, atol=1e-9)


def test_the_example_forgets_a_partition_in_a_second_run_on_real_nodes(tmp_path: Path) -> None:
    app, model = tmp_path / "example", tmp_path / "model.pt"
    shutil.copytree(Path(__file__).parents[2] / "examples" / "flower", app, ignore=shutil.ignore_patterns("deploy"))
    deployment = Deployment(tmp_path, nodes=4)  # as many partitions as digits/after.py names
    said = f'rounds=1 model="{model}" ledger="{tmp_path / "ledger"}"'

    def run() -> list[int]:
        command = ["flwr", "run", str(app), "local", "--stream", "--run-config", said]
        subprocess.run(command, env=deployment.env, check=True, timeout=PATIENCE, capture_output=True)
        return [deployment.received(node, kind) for node in range(4) for kind in ("train", "evaluate")]

    try:
        deployment.up()
        assert run() == [1] * 8
        project = app / "pyproject.toml"
        project.write_text(project.read_text().replace("digits.before:app", "digits.after:app"))
        # Node 0 is partition 0: it is asked who it is, and nothing else. The others also measure the model before.
        assert run() == [1, 1, 2, 3, 2, 3, 2, 3]
    finally:
        deployment.down()
    before, after = (torch.load(f"{model}{end}", weights_only=True) for end in ("", ".unlearned"))
    assert before.keys() == after.keys() and not torch.equal(before["0.weight"], after["0.weight"])


def test_a_hostile_node_is_named_in_every_round_and_the_model_is_that_of_the_others(tmp_path: Path) -> None:
    deployment, app, folder = Deployment(tmp_path), tmp_path / "app", tmp_path / "run"
    three = f"{SET}; training.rounds=3"
    try:
        deployment.up()
        made = ["unfed", "flower", "init", str(app), "--nodes", "4", "--run-folder", str(folder)]
        subprocess.run(made, env=deployment.env, check=True, timeout=PATIENCE, capture_output=True)
        (app / "hostile_client.py").write_text(
            HOSTILE_APP.format(tests=str(Path(__file__).parents[1]), attacks=ATTACKS)
        )
        project = app / "pyproject.toml"
        honest = project.read_text()
        project.write_text(honest.replace("unfed.flower.client:app", "hostile_client:app"))
        assert project.read_text() != honest
        out = deployment.script("4-train", *words(set=three), timeout=PATIENCE)
    finally:
        deployment.down()
    run = Run.open(folder)
    assert states(folder) == ["finished"], out
    refused = [(r["round"], r["client"], r["reason"]) for line in run.lines() for r in line.get("refused", [])]
    assert [(round, client) for round, client, _ in refused] == [(1, "1"), (2, "1"), (3, "1")], out
    for (*_, reason), begins in zip(refused, ("its update has", "its update has", "it counts 10000"), strict=True):
        assert reason.startswith(begins) and reason in out
    checked = subprocess.run(["unfed", "check", str(folder)], env=deployment.env, capture_output=True, text=True)
    assert checked.returncode == 0 and "whole" in checked.stdout, checked.stdout + checked.stderr

    grid = InProcessGrid({"partition-id": k, "device": "cpu"} for k in range(4))
    grid.tamper[1001] = lambda question, reply: None if question.metadata.message_type == "train" else reply
    values = {"run-folder": str(tmp_path / "here"), "min-nodes": 4, "set": f"{three}; partition.clients=4"}
    for name, value in serve(grid, {**values, "mode": "train"}).model().items():
        torch.testing.assert_close(run.folder.load_model(Job(0, None, "train"))[name], value, rtol=0, atol=1e-9)
