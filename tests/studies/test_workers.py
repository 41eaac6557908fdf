"""Who works on a grid's cells: processes and Ray clusters, killed ones replaced; several commands in one folder."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import unfed
from command_line import Started
from unfed.cli.main import app
from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.folder import locks as presence
from unfed.runs.simulated import simulated
from unfed.studies import grid, sweep
from unfed.studies import population as populations
from unfed.studies.grid import GridCell, Ray, Said, Workers
from unfed.studies.judging import QUICK, judged
from unfed.studies.population import populate
from unfed.studies.sweep import Axis
from worlds import Small

TINY = (
    "engine.precision=float64",
    "engine.name=batched",
    "checkpoint.rounds=1",
    'request={id="r1", clients=["0"]}',
    'methods.run=["not", "retrain"]',
    "training.rounds=1",
    "unlearning.rounds=1",
    "data.test_size=60",
    "data.train_size=240",
)
SETS = [w for text in (*TINY, "partition.clients=3", "model.name=cnn-tiny", "device=cpu") for w in ("--set", text)]
SWEEP = ("sweep", "demo", "--over", "seed=0,1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ray]:
    """This machine as a Ray cluster, whose workers find the tests."""
    pytest.importorskip("ray", reason="needs unfed[simulation]")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])]))
        patched.delenv("RAY_ADDRESS", raising=False)
        with grid.on_ray() as made:
            yield made


# --- what cells do ----------------------------------------------------------------------------------------------------


def first_killed(said: Said, folder: str, name: str) -> str:
    """The first worker is killed in the middle of it."""
    tried = len(list(Path(folder).glob(f"{name}.*")))
    Path(folder, f"{name}.{tried}").touch()
    said(name, tried, 3)
    if not tried:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{name} found, {torch.get_num_threads()} threads, in {os.getcwd()}"


def always_killed(said: Said) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def answers(said: Said) -> str:
    return "an answer"


def refuses(said: Said) -> None:
    raise UnfedError("It cannot be trained.")


def threads_there(said: Said) -> int:
    return torch.get_num_threads()


def test_a_worker_computes_on_the_threads_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    try:
        cell = GridCell("a", threads_there)
        assert grid._on_worker(cell, None, str(tmp_path), ".", before + 1) == ["", before + 1]
    finally:
        torch.set_num_threads(before)


# --- killed workers ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["processes", "ray"])
def workers(request: pytest.FixtureRequest) -> Workers:
    return 2 if request.param == "processes" else request.getfixturevalue("cluster")


@pytest.mark.slow
def test_a_killed_worker_is_replaced(workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a cell that kills every worker ends with one sentence, and costs no other cell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grid, "TRIES", 2)
    heard: list[tuple[str, int, int]] = []
    cells = [
        GridCell("a", first_killed, (str(tmp_path), "a")),
        GridCell("c", always_killed),
        GridCell("d", refuses),
    ]
    work = grid.work(cells, workers, tmp_path, lambda *line: heard.append(line))
    ended = {one.cell.name: (one.error, one.found) for one in work}
    error, found = ended.pop("a")
    assert error == "" and found.startswith("a found")
    if isinstance(workers, Ray):
        assert found == f"a found, {workers.threads} threads, in {tmp_path}"
    assert ("a", 1, 3) in heard
    assert ended == {
        "c": ("2 workers were killed at c; give it more memory, then give the same command again.", None),
        "d": ("It cannot be trained.", None),
    }
    lines = [json.loads(line) for line in (tmp_path / grid.LINES).read_text().splitlines()]
    assert sorted(line["cell"] for line in lines) == ["a", "c", "d"], "one line for each cell"


@pytest.mark.slow
def test_a_population_on_ray_is_that_of_one_process(small: Small, cluster: Ray, tmp_path: Path) -> None:
    """Trained in two cohorts and judged, the results are the same bytes."""
    config = small(*TINY)
    one, found = populate(config, 10, tmp_path / "one"), populate(config, 10, tmp_path / "ray", jobs=cluster)
    assert len(found.about.cohorts) == 2 and _bytes(found.folder) == _bytes(one.folder)
    assert judged(found, QUICK, cluster) == judged(one, QUICK)


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("logits/*/*"))}


@pytest.mark.slow
def test_the_command_takes_a_cluster(cluster: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "demo", "--over", "seed=0", *SETS, "--workers", "ray", "--out", "out", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["failed"] == {}
    assert len((tmp_path / "out" / grid.LINES).read_text().splitlines()) == 1


def test_cells_of_a_gpu_get_one_each_and_share_the_seeds_of_a_population(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = simulated(small(*TINY), 0)
    assert populations.at_once(world, 4, Ray(8, most=3)) == Ray(8, most=3, gpu=False, threads=1)
    world.__dict__["device"] = torch.device("cuda")
    assert isinstance(taken := populations.at_once(world, 4, Ray(8)), Ray)
    assert taken.each == {"CPU": 1, "GPU": 1} and Ray(0, threads=4).each == {"CPU": 4, "GPU": 0}
    monkeypatch.setattr(populations, "simulated", lambda *_: world)
    rows = populations.RowGroups({}, {})
    monkeypatch.setattr(populations, "hardware", lambda *_: "a GPU")
    cut = [populations._about(world, {}, rows, range(64), gpus).cohorts for gpus in (0, 1, 8)]
    assert [len(cohorts) for cohorts in cut] == [1, 1, 8] and {len(seeds) for seeds in cut[2]} == {8}


# --- several commands -------------------------------------------------------------------------------------------------


def test_two_commands_that_begin_the_same_sweep_make_each_run_once(small: Small, tmp_path: Path) -> None:
    together, found = threading.Barrier(2), list[Path]()

    def read(changes: Sequence[str]) -> Config:
        config = small(*TINY, *changes)
        together.wait()
        return config

    def begin() -> None:
        found.extend(one.run.folder.path for one in sweep.make(read, sweep.variants([Axis.of("seed=0,1")]), tmp_path))

    commands = [threading.Thread(target=begin) for _ in range(2)]
    for one in commands:
        one.start()
    for one in commands:
        one.join()
    assert found == [tmp_path / "seed-0", tmp_path / "seed-1"] * 2


def test_a_run_that_another_command_is_at_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grid, "work", lambda cells, jobs, folder: grid._here(cells, folder, grid.quiet))
    words = [*SWEEP, *SETS, "--out", "out"]
    sweep.make(
        lambda changes: Config.preset("demo", [*SETS[1::2], *changes]),
        sweep.variants([Axis.of("seed=0,1")]),
        Path("out"),
    )
    monkeypatch.setattr(presence, "PATIENCE", 0.0)
    monkeypatch.setattr(presence, "busy", lambda folder: False)  # the other ends as soon as it was met
    with presence.at_work(Path("out/seed-0")):
        said = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert said.exit_code == 0, said.output
    assert "Another process is at 1 of the runs in out; give the same command again" in said.output
    assert "seed-1 in" in said.output and "seed-0 in" not in said.output


def test_a_run_that_another_command_has_ended_meanwhile_is_not_called_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes on one GPU both said that the other was at some runs when all were done."""
    monkeypatch.chdir(tmp_path)

    def work(cells: Sequence[GridCell], jobs: Workers, folder: Path) -> Iterator[grid.Ended]:
        for cell in cells:
            cell.work(grid.quiet, *cell.arguments)
            yield grid.Ended(cell, 1.0, found="seed-0" in cell.name)  # met at work, and done by the end

    monkeypatch.setattr(grid, "work", work)
    said = CliRunner().invoke(app, [*SWEEP, *SETS, "--out", "out"], env={"COLUMNS": "200"})
    assert said.exit_code == 0 and "Another process" not in said.output, said.output


@pytest.mark.slow
@pytest.mark.parametrize("words", [SWEEP, ("population", "demo", "--models", "10")], ids=["sweep", "population"])
def test_two_commands_in_one_folder_share_the_work_and_leave_what_one_would(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an array of Slurm's starts them: at once, each for itself."""
    monkeypatch.chdir(tmp_path)
    given = [*words, *SETS, "--jobs", "1", "--out"]
    started = [Started(tmp_path, *given, "two") for _ in range(2)]
    assert CliRunner().invoke(app, [*given, "one"]).exit_code == 0
    said = [process.ended(300) for process in started]
    assert [code for code, _ in said] == [0, 0], said
    files = [
        {
            str(path.relative_to(out)): path.read_bytes()
            for path in out.rglob("*.safetensors")
            if "state" not in str(path)
        }
        for out in (tmp_path / "one", tmp_path / "two")
    ]
    assert len(files[0]) > 4 and files[0] == files[1], said
    lines = [json.loads(line) for line in (tmp_path / "two" / grid.LINES).read_text().splitlines()]
    assert not any(line["error"] for line in lines)


# --- what cannot be done ----------------------------------------------------------------------------------------------


def test_what_is_missing_is_said_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def says(*words: str) -> str:
        return str(CliRunner().invoke(app, ["population", "demo", "--models", "2", *words]).exception)

    assert says("--workers", "slurm") == "--workers takes ray, not 'slurm'; leave it out for processes of this machine."
    assert says("--workers", "ray", "--jobs", "0").startswith("At least 1 process must work, not 0")
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # another test of this process may hold a cluster
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "nowhere"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert says("--workers", "ray") == (
            f"No Ray cluster answers at {address} (RAY_ADDRESS); start one with `ray start`, or unset RAY_ADDRESS to"
            " use this machine."
        )
    monkeypatch.setitem(sys.modules, "ray", None)
    assert says("--workers", "ray").startswith("--workers ray needs Ray; install it with `pip install '.[simulation]'`")
    assert not list(tmp_path.iterdir())


def test_code_of_the_users_own_stays_in_one_process(small: Small, tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["bench", "mine.py", "--allow-code", "--workers", "ray"])
    assert str(said.exception) == "Code of your own runs in one process only; leave --workers out."
    with unfed.allow_code():
        mine = small(*TINY, 'model.name="mine:Net"')
    with pytest.raises(UnfedError, match="leave --jobs and --workers out"):
        populate(mine, 2, tmp_path / "p", jobs=Ray(0))


@pytest.mark.slow
def test_a_cell_that_no_machine_has_room_for_is_refused(cluster: Ray, tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match=re.escape("No machine of the Ray cluster has 1 GPU and 1 cores")):
        grid.run([GridCell("a", answers)], Ray(0, gpu=True), tmp_path)
    assert grid.run([], Ray(0, gpu=True), tmp_path) == {}


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    error, found = grid._on_worker(GridCell("a", answers), None, str(tmp_path / "other"), "out", 1)
    assert re.fullmatch(r"The worker on .+ has no folder out; use a disk that all machines share\.", error)
    assert found is None
