"""The pages on Flower are what is run: every block is a script, every script is run by a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.common.config import flatten_dict, fuse_dicts, parse_config_args

from flower_deployment import SCRIPTS
from flower_grid import InProcessGrid
from test_flower_app import Breaking, nodes, state
from unfed.cli.main import app
from unfed.flower.server import run as serve
from unfed.runs.run import Run
from worlds import assert_same

ROOT = Path(__file__).parents[2]
PAGES = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "flower").glob("*.md")))
APP_PAGE = (ROOT / "docs" / "flower" / "forget-in-your-app.md").read_text()
SMALL = (
    "partition.clients=4; model.name=cnn-tiny; training.rounds=2; unlearning.rounds=2; training.batch=64;"
    " training.lr=0.02; engine.precision=float64; evaluation.attack=false; gate.max_drop=100"
)


def test_every_block_of_the_pages_is_a_script_and_every_script_is_named() -> None:
    blocks = dict(re.findall(r"<!-- (\S+\.sh) -->\n```bash\n(.*?)\n```", PAGES, re.S))
    assert len(blocks) == PAGES.count("```bash") == len(re.findall(r"^```\w*sh", PAGES, re.M)) > 7
    scripts = {path.name: path.read_text() for path in SCRIPTS.glob("*.sh")}
    assert blocks.keys() <= scripts.keys()
    assert [name for name in scripts if name not in PAGES] == []
    for name in blocks:
        text = scripts[name]
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        body = "\n".join(lines).replace('. "$(dirname "$0")/settings.sh"', "", 1).removeprefix(" && ")
        assert body.strip() == blocks[name].strip(), name


def test_every_script_is_run_by_a_test() -> None:
    sources = (
        "flower/test_flower_docs.py",
        "flower/test_flower_processes.py",
        "flower/test_flower_simulation.py",
        "flower_deployment.py",
    )
    text = "\n".join((Path(__file__).parents[1] / name).read_text() for name in sources)
    named = set(re.findall(r'"([\w-]+)"', text)) | {"settings"}  # the others begin by reading it
    assert {path.stem for path in SCRIPTS.glob("*.sh")} <= named


class Page:
    """The page's scripts, run by bash; `flwr run` is put down, and then done without processes."""

    def __init__(self, where: Path) -> None:
        self.where = where
        commands = where / "bin"
        commands.mkdir()
        note = f'for word in "$@"; do printf "%s\\0" "$word"; done > "{where}/said"'
        (commands / "flwr").write_text(f"#!/bin/sh\n{note}\n")
        (commands / "flwr").chmod(0o755)
        path = [str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]
        self.env = {**os.environ, "PATH": os.pathsep.join(path), "WHERE": str(where), "NODES": "4"}

    def run(self, script: str, grid: InProcessGrid, run_id: int = 1) -> Run:
        """Do what a script says, as Flower would read it; the run is made a small one."""
        more = ["--run-config", f'set="{SMALL}" wait-seconds=0.01 round-timeout=5.0']
        command = ["bash", "-eu", str(SCRIPTS / f"{script}.sh"), *more]
        subprocess.run(command, env=self.env, check=True, capture_output=True)
        said = (self.where / "said").read_text().split("\0")[:-1]
        assert said[:4] == ["run", str(self.where / "app"), "local", "--stream"]
        assert said[4::2] == ["--run-config"] * 2
        written = tomllib.loads((self.where / "app" / "pyproject.toml").read_text())
        config: dict[str, Any] = flatten_dict(written["tool"]["flwr"]["app"]["config"])
        return serve(grid, fuse_dicts(config, parse_config_args(said[5::2])), run_id)

    def init(self) -> None:
        """The app as the first script would make it, by a process that first imports everything."""
        words = ["flower", "init", str(self.where / "app"), "--nodes", "4", "--run-folder", str(self.where / "run")]
        assert CliRunner().invoke(app, words).exit_code == 0


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def test_every_flwr_run_of_the_page_does_what_the_page_says(page: Page) -> None:
    grid = nodes(allow="")  # nobody needs to allow anything for it
    page.run("4-train", grid)
    page.run("5-forget", grid)
    before = len(grid.asked(1000, "train", "evaluate"))
    later = page.run("deny", grid)
    assert len(grid.asked(1000, "train", "evaluate")) == before and later.config.deny.clients == ("0",)
    page.run("forget-classes", grid)
    run = page.run("forget-samples", grid)
    assert len(grid.asked(1000, "train", "evaluate")) == before  # the leaver is left alone by later requests too
    assert [entry.request.kind for entry in run.folder.book().entries] == ["client", "class", "instance"]
    assert run.folder.book().entries[-1].request.samples == (("1", 3), ("1", 5), ("2", 0))
    assert all(run.folder.model_file(job).exists() for job, _ in run.jobs())
    assert state(page.where / "run")["state"] == "finished"


def test_the_tutorial_ends_with_a_measured_forget_accuracy(page: Page) -> None:
    settings, started = ((SCRIPTS / name).read_text() for name in ("settings.sh", "3-supernodes.sh"))
    assert 'export ALLOW="${ALLOW-forget}"' in settings and 'allow=\\"$ALLOW\\"' in started
    grid = nodes(allow="forget")
    page.init()
    page.run("4-train", grid)
    trained = len(grid.asked(1000, "train"))
    run = page.run("5-forget", grid)
    lines = [line for line in run.lines() if line["method"] == "not"]
    assert lines and all(isinstance(line["forget"], float) for line in lines)
    assert len(grid.asked(1000, "train")) == trained  # its leave is to count, and it is not asked to train


@pytest.mark.slow
def test_the_pages_way_to_resume_ends_where_an_uninterrupted_run_does(page: Page, tmp_path_factory: Any) -> None:
    other = Page(tmp_path_factory.mktemp("whole"))
    for one in (page, other):
        one.init()
    other.run("4-train", nodes())
    whole = other.run("5-forget", nodes())
    page.run("4-train", nodes())
    with pytest.raises(ConnectionError):
        page.run("5-forget", Breaking(nodes().nodes.values(), 2), 2)
    assert state(page.where / "run")["state"] == "failed"
    resumed = page.run("resume", nodes(), 3)
    assert state(page.where / "run")["state"] == "finished"
    assert_same(whole.current(0), resumed.current(0))


@pytest.mark.parametrize(("app", "count"), [("after.py", 5), ("client.py", 2)])
def test_the_lines_of_the_documentation_are_those_of_the_example(app: str, count: int) -> None:
    source = (ROOT / "examples" / "flower" / "digits" / app).read_text().splitlines()
    new = [line.strip() for line in source if "  # new" in line]
    assert len(new) == count and all(line in APP_PAGE for line in new)
