"""Real NVFlare: its simulator, and a deployment of one server and three sites as processes (minutes)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare.apis", reason="needs unfed[nvflare]; `make test-nvflare` runs these")

from nvflare_deployment import ALLOWED, Deployment
from unfed.nvflare.transport import job
from unfed.runs.run import Run
from worlds import experiment, run_config

pytestmark = pytest.mark.nvflare

SITES = {f"site-{k + 1}": {"partition-id": k, "device": "cpu", "allow": "forget"} for k in range(3)}


def values(folder: Path, **own: Any) -> dict[str, Any]:
    base = {"run_folder": str(folder), "forget_clients": "site-1", "min_nodes": 2, "wait_seconds": 120.0}
    return run_config(experiment(3), **{**base, "round_timeout": 60.0, **own})


def exported(where: Path, name: str, asked: dict[str, Any]) -> Path:
    job(asked, name=name).export_job(str(where))
    return where / name


def simulated(where: Path, folder: Path) -> str:
    """The log of a job in NVFlare's simulator; sites share the folder `local`."""
    local = where / "ws" / "local"
    local.mkdir(parents=True)
    (local / "resources.json").write_text(ALLOWED)
    for name, settings in SITES.items():
        (local / f"unfed.{name}.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator", str(folder)]
    command += ["-w", str(where / "ws"), "-n", "3", "-t", "3"]
    done = subprocess.run(command, env={**os.environ, "HOME": str(where)}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def test_a_job_runs_in_the_simulator(tmp_path: Path) -> None:
    said = simulated(tmp_path, exported(tmp_path / "jobs", "forget", values(tmp_path / "run")))
    lines = Run.open(tmp_path / "run").lines()
    assert [line["asked"] for line in lines if line["method"] == "not" and line["round"]] == [
        {str(number): ["site-2", "site-3"]} for number in (1, 2)
    ]
    assert "unfed: done; the results are in" in said


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("deployment"), SITES)
    try:
        deployment.up()
        yield deployment
    finally:
        deployment.down()


def rounds(folder: Path) -> int:
    file = folder / "trajectory.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_a_job_is_aborted_and_another_goes_on(deployed: Deployment, tmp_path: Path) -> None:
    asked = {**values(tmp_path / "run"), "experiment.training.rounds": 4}
    first = deployed.submit(exported(tmp_path, "first", asked))
    deployed.wait(lambda: rounds(tmp_path / "run") >= 1, "a round", 300)
    deployed.abort(first)
    assert "ABORTED" in deployed.ended(first)
    before = rounds(tmp_path / "run")
    again = {"resume-from": str(tmp_path / "run"), "min-nodes": 3, "wait-seconds": 120.0}
    second = deployed.submit(exported(tmp_path, "second", again))
    assert deployed.ended(second) == "FINISHED:COMPLETED"
    lines = Run.open(tmp_path / "run").lines()
    assert before < len(lines)
    assert [line["round"] for line in lines if line["method"] == "not"] == [0, 1, 2]  # negated once


def test_a_job_that_overrules_a_site_or_names_an_unknown_one_fails_in_a_sentence(
    deployed: Deployment, tmp_path: Path
) -> None:
    unknown = exported(tmp_path, "unknown", values(tmp_path / "run", forget_clients="site-9"))
    overruled = exported(tmp_path, "overruled", values(tmp_path / "other"))
    config = overruled / "app" / "config" / "config_fed_client.json"
    client = json.loads(config.read_text())
    client["executors"][0]["executor"]["args"] = {"allow": "forget,samples,gradients"}
    config.write_text(json.dumps(client))
    assert "EXECUTION_EXCEPTION" in deployed.ended(deployed.submit(unknown))
    assert "as site-1, site-2 and site-3 did; check the name" in deployed.log()
    assert "EXECUTION_EXCEPTION" in deployed.ended(deployed.submit(overruled))
    assert "The job sets 'allow' for this site, which only its own local/unfed.json may" in deployed.log()
    assert not (tmp_path / "run").exists() and not (tmp_path / "other").exists()


def test_a_site_that_is_killed_is_named_and_the_others_go_on(deployed: Deployment, tmp_path: Path) -> None:
    asked = {**values(tmp_path / "run", round_timeout=15.0), "experiment.training.rounds": 3}
    deployed.submit(exported(tmp_path, "killed", asked))
    deployed.wait(lambda: rounds(tmp_path / "run") >= 1, "a round", 300)
    deployed.kill("site-3")
    # NVFlare itself calls the job running until it gives the dead site up, minutes later.
    deployed.wait(lambda: f"unfed: done; the results are in {tmp_path / 'run'}" in deployed.log(), "the end", 400)
    refused = [one for line in Run.open(tmp_path / "run").lines() for one in line.get("refused", ())]
    assert {one["client"] for one in refused} == {"site-3"}
    reasons = {one["reason"] for one in refused}
    assert reasons <= {
        "it did not answer within 15 s",
        "it is not connected",
        "it did not answer the last time and gave no sign of life since",
    }
