"""Methods killed for real, by SIGKILL through the command line, end as if nothing had happened."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from unfed.runs.progress import QuietWatch
from unfed.runs.run import Run

CONFIG = """
name = "killed"
partition.clients = 4
model.name = "cnn-tiny"
training = { rounds = 4, batch = 32, lr = 0.02 }
unlearning.rounds = 20
request = { id = "r1", clients = ["0"] }
methods.run = ["not"]
checkpoint.rounds = 2
evaluation = { attack = false, samples = false }
"""


def start(here: Any, *arguments: Any) -> Any:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "unfed", *arguments]
    return subprocess.Popen(command, cwd=here, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def result(folder: Path) -> Any:
    run = Run.open(folder)
    models = {p.name: p.read_bytes() for p in (folder / "models").rglob("*.safetensors")}
    return [{k: v for k, v in line.items() if k != "seconds"} for line in run.lines()], models


@pytest.mark.slow  # of the others, which carry more than a model along, every write: test_history.py
def test_a_method_killed_in_the_middle_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    from unfed.runs.config import Config

    whole = Run.create(Config.read(tmp_path / "config.toml"), tmp_path / "whole")
    whole._train(0, QuietWatch())
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    whole.execute()
    chance, trajectory = random.Random("not"), tmp_path / "killed/trajectory.jsonl"
    process = start(tmp_path, "resume", "killed", "--quiet")
    hit = 0
    for _ in range(2):
        seen, end = trajectory.stat().st_size, time.monotonic() + 120
        while trajectory.stat().st_size <= seen and process.poll() is None:
            assert time.monotonic() < end, "no round was evaluated within two minutes"
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.2))
        hit += process.poll() is None
        process.kill()
        process.communicate()
        process = start(tmp_path, "resume", "killed", "--quiet")
    _, error = process.communicate(timeout=240)
    assert process.returncode == 0, error.decode()
    assert hit, "nothing was killed: give the method more rounds"
    assert result(tmp_path / "killed") == result(tmp_path / "whole")
