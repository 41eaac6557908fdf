"""A sweep: every combination once, gone on with after a stop, compared on one page; and the list of all runs."""

from __future__ import annotations

import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from unfed.cli.main import app
from unfed.cli.reports import folders
from unfed.config.config import Config
from unfed.errors import UnfedError, UnfedWarning
from unfed.report.compare import Compared, compared_rows
from unfed.runs.probe import first_look
from unfed.runs.run import Run
from unfed.runs.status import status
from unfed.studies import grid, sweep
from unfed.studies.grid import Ended, GridCell, Said, quiet
from unfed.studies.sweep import Axis, Member, variants

TINY = """
name = "tiny"
data = { train_size = 240, test_size = 60 }
partition.clients = 2
model.name = "cnn-tiny"
training = { rounds = 1, batch = 256 }
unlearning.rounds = 1
request = { id = "r1", clients = ["0"] }
methods.run = ["not", "retrain"]
evaluation = { attack = false, samples = false }
device = "cpu"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The work is done here and not in a process of its own; which runs were worked on is listed."""
    done: list[str] = []

    def work(cells: list[GridCell], jobs: int, folder: Path, said: Said = quiet) -> Any:
        for cell in cells:
            cell.work(said, *cell.arguments)
            done.append(Path(cell.name).name)
            yield Ended(cell, 1.0)

    monkeypatch.setattr(grid, "work", work)
    return done


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


def test_values_are_cut_at_commas_but_not_inside_brackets_or_quotes() -> None:
    assert Axis.of("seed=0,1,2").values == ("0", "1", "2")
    assert Axis.of('methods.not.layers=["conv1"],["conv1","conv2"]').values == ('["conv1"]', '["conv1","conv2"]')
    assert Axis.of("data.root='a,b',c").values == ("'a,b'", "c")


def test_every_combination_has_a_folder_and_repetitions_share_a_group() -> None:
    found = variants([Axis.of("methods.not.layers=conv1,conv2"), Axis.of("seed=0,1")])
    assert [one.name for one in found] == [
        "layers-conv1_seed-0",
        "layers-conv1_seed-1",
        "layers-conv2_seed-0",
        "layers-conv2_seed-1",
    ]
    assert [one.group for one in found] == ["layers-conv1"] * 2 + ["layers-conv2"] * 2
    assert found[1].changes == ("methods.not.layers=conv1", "seed=1")


def test_values_that_look_alike_as_names_of_folders_are_told_apart() -> None:
    names = [one.name for one in variants([Axis.of("a.b=x y,x-y")])]
    assert len(set(names)) == 2


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ([], "A sweep needs at least one --over, for example --over seed=0,1,2."),
        (["seed"], "--over takes key.path=value,value, not 'seed'; for example seed=0,1,2."),
        (["seed=0,,1"], "--over takes key.path=value,value, not 'seed=0,,1'; for example seed=0,1,2."),
        (["seed=0,0"], "--over seed names a value twice; every value is a run of its own."),
        (["seed=0,1", "seed=2"], "Two --over name the same key; list its values in one."),
        (
            ["seed=" + ",".join(map(str, range(101))), "training.lr=" + ",".join(f"0.{n}" for n in range(1, 12))],
            "This sweep would be 1,111 runs, and 1,000 are the most; give fewer values.",
        ),
    ],
)
def test_a_sweep_that_cannot_be_meant_is_refused(over: list[str], says: str) -> None:
    with pytest.raises(UnfedError, match=re.escape(says)):
        variants([Axis.of(text) for text in over])


def test_a_sweep_ends_with_one_page_and_is_not_done_again(here: Path, in_process: list[str]) -> None:
    words = ["sweep", "tiny.toml", "--over", "methods.not.layers=conv1,conv2", "--over", "seed=0,1"]
    done = call(*words)
    assert done.exit_code == 0, done.output
    assert in_process == ["seed-0", "seed-1"] and "4 combinations share 2 runs" in done.output
    assert "layers-conv1" in done.output and "±" in done.output
    page = (here / "runs/tiny-sweep/sweep.html").read_text()
    assert "layers-conv2" in page and "methods.not.layers" in page
    assert page.count("In a comparison, ") == 2, "what was forgotten is still in the model in force"
    config = json.loads((here / "runs/tiny-sweep/seed-1/run.json").read_text())["config"]
    assert config["methods"]["not-layers-conv2"]["layers"] == "conv2" and config["seed"] == 1
    again = call(*words, "--json")
    assert again.exit_code == 0 and len(in_process) == 2
    assert [one["methods"] for one in json.loads(again.output)["runs"]] == [
        [f"not-layers-conv{layer}", "retrain"] for layer in (1, 1, 2, 2)
    ]
    other = call(*words, "--set", "training.rounds=2")
    assert isinstance(other.exception, UnfedError) and "holds another run than this sweep would make" in str(
        other.exception
    )


def test_repetitions_are_one_line_with_their_spread(here: Path, in_process: list[str]) -> None:
    call("sweep", "tiny.toml", "--over", "seed=0,1", "--over", "training.lr=0.01,0.02", "-q")
    found = variants([Axis.of("seed=0,1"), Axis.of("training.lr=0.01,0.02")])
    members = sweep.make(lambda c: Config.read("tiny.toml", c), found, here / "runs/tiny-sweep")
    runs = [members[0].run, members[2].run]
    about, lines = sweep.merged([members[0], members[2]])
    (row,) = [row for row in compared_rows([Compared("a", about, lines)], "last") if row.method == "not"]
    alone = [[x for x in run.lines() if x["method"] == "not"][-1]["test"] for run in runs]
    assert all(isinstance(value, float) for value in alone)
    assert row.seeds == (0, 1) and row.metrics["test"].mean == pytest.approx(sum(map(float, alone)) / 2)
    assert about.config["seed"] == [0, 1]


def test_every_config_is_read_before_anything_is_made(here: Path, in_process: list[str]) -> None:
    wrong = call("sweep", "tiny.toml", "--over", "training.rounds=1,none")
    assert isinstance(wrong.exception, UnfedError) and "training.rounds" in str(wrong.exception)
    assert not (here / "runs").exists()
    listed = json.loads(call("sweep", "tiny.toml", "--over", "seed=0,1", "--dry-run").output)
    assert list(listed) == ["seed-0", "seed-1"] and not (here / "runs").exists()


def test_methods_stand_in_the_place_of_the_configs_in_every_run(here: Path, in_process: list[str]) -> None:
    call("sweep", "tiny.toml", "--over", "seed=0,1", "--methods", "ft, retrain", "--set", "methods.run=['not']")
    made = [Run.open(here / "runs/tiny-sweep" / name) for name in ("seed-0", "seed-1")]
    assert [list(run.config.methods.run) for run in made] == [["ft", "retrain"]] * 2
    assert {str(line["method"]) for run in made for line in run.lines()} >= {"ft", "retrain"}
    wrong = call("sweep", "tiny.toml", "--over", "seed=0,1", "--methods", "ftt")
    assert isinstance(wrong.exception, UnfedError) and "'ftt'" in str(wrong.exception)
    twice = call("sweep", "tiny.toml", "--over", "methods.run=['not'],['ft']", "--methods", "ft")
    assert isinstance(twice.exception, UnfedError) and "give one of them" in str(twice.exception)


@pytest.mark.slow
def test_the_work_is_done_in_processes_of_their_own(here: Path) -> None:
    """One of two cannot be worked on; the other ends all the same."""
    members = sweep.make(
        lambda changes: Config.read("tiny.toml", [*changes, "methods.run=['not']"]),
        variants([Axis.of("seed=0,1")]),
        here / "out",
    )
    cells = sweep.cells(sweep.runs_of(members))
    (here / "out/seed-1/run.json").write_text("{")
    ended = {Path(one.cell.name).name: one.error for one in grid.work(cells, 2, here / "out")}
    assert ended["seed-0"] == "" and "run.json" in ended["seed-1"]
    lines = [json.loads(line) for line in (here / "out" / grid.LINES).read_text().splitlines()]
    assert sorted((Path(line["cell"]).name, bool(line["error"])) for line in lines) == [
        ("seed-0", False),
        ("seed-1", True),
    ]
    assert all(line["seconds"] > 0 for line in lines)
    assert sweep.cells([Run.open(here / "out/seed-0")]) == []
    assert status(Run.open(here / "out/seed-0")).state == "finished"


def test_a_cell_ends_with_the_process_that_asked_for_it() -> None:
    rounds: list[int] = []

    def work(said: Said) -> None:
        for round in (1, 2):
            rounds.append(round)
            said("before", round, 2)

    here, there = multiprocessing.Pipe(duplex=False)
    here.close()
    grid._apart(GridCell("orphan", work), there)
    assert rounds == [1] and there.closed


def test_a_cell_tells_how_far_it_is_and_why_it_ended() -> None:
    def work(said: Said, why: str) -> str:
        said("before", 1, 2)
        if why:
            raise UnfedError(why)
        return "an answer"

    for why in ("", "The disk is full."):
        here, there = multiprocessing.Pipe(duplex=False)
        grid._apart(GridCell("one", work, (why,)), there)
        assert (here.recv(), here.recv()) == (("before", 1, 2), [why, None if why else "an answer"])


def test_one_process_works_here_and_stops_at_the_first_error(tmp_path: Path) -> None:
    done: list[str] = []

    def work(said: Said, name: str) -> str:
        done.append(name)
        if name == "b":
            raise UnfedError("b cannot be trained.")
        return f"{name} found"

    cells = [GridCell(name, work, (name,)) for name in "abc"]
    with pytest.raises(UnfedError, match="b cannot be trained"):
        grid.run(cells, 1, tmp_path)
    assert done == ["a", "b"]
    assert grid.run(cells[::2], 1, tmp_path) == {"a": "a found", "c": "c found"}
    lines = [json.loads(line) for line in (tmp_path / grid.LINES).read_text().splitlines()]
    assert [line["cell"] for line in lines] == ["a", "a", "c"], "one line for each cell that ends"


def test_several_processes_end_all_cells_and_raise_the_first_error(in_process: list[str], tmp_path: Path) -> None:
    def failing(cells: list[GridCell], jobs: int, folder: Path, said: Said = quiet) -> Any:
        yield from (Ended(cell, 1.0, "" if cell.name == "a" else f"{cell.name} cannot be trained.") for cell in cells)
        in_process.append("all")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grid, "work", failing)
        with pytest.raises(UnfedError, match="b cannot be trained"):
            grid.run([GridCell(name, print) for name in "abc"], 2, tmp_path)
    assert in_process == ["all"]


def test_how_many_work_at_once(here: Path) -> None:
    made = sweep.make(lambda c: Config.read("tiny.toml", c), variants([Axis.of("seed=0,1")]), here / "out")
    runs = sweep.runs_of(made)
    assert sweep.at_once(runs, 1) == 1 and sweep.at_once(runs, 9) == 2 and sweep.at_once(runs, None) in (1, 2)
    runs[0].description = runs[0].description.model_copy(update={"hardware": "CPU, 4 CPU threads"})
    assert sweep.at_once(runs, None) == 1
    with pytest.raises(UnfedError, match="At least 1 process must work, not 0"):
        sweep.at_once(runs, 0)


# --- variants that share a run ----------------------------------------------------------------------------------------


def made(where: Path, *over: str, sets: tuple[str, ...] = ()) -> list[Member]:
    found = variants([Axis.of(text) for text in over])
    return sweep.make(lambda changes: Config.read("tiny.toml", [*sets, *changes]), found, where)


def test_variants_of_a_method_share_one_training_and_equal_what_each_is_alone(here: Path) -> None:
    double = ('methods.run=["not","ft","retrain"]', "engine.precision='float64'")
    members = made(here / "out", "methods.not.layers=conv1,conv2", sets=double)
    (run,) = sweep.runs_of(members)
    run.execute()
    assert [job.label for job, _ in run.jobs()] == ["train", "not-layers-conv1", "ft", "retrain", "not-layers-conv2"]
    for one in members:
        alone = Run.create(Config.read("tiny.toml", [*double, *one.variant.changes]), here / one.variant.name)
        alone.execute()
        for label, own in one.place.labels.items():
            there, here_ = alone.model(method=own), run.model(method=label)
            assert all(torch.equal(there[name], here_[name]) for name in there)
        about, lines = one.shown()
        key = lambda line: (str(line["request"]), line["method"], line["round"])  # noqa: E731
        apart = sorted(alone.lines(), key=key)
        assert [{**line, "seconds": 0} for line in sorted(lines, key=key)] == [{**x, "seconds": 0} for x in apart]
        assert about.config == alone.info().config
        assert {job.method for job in about.jobs} == {job.method for job in alone.info().jobs}


def test_only_what_differs_in_a_method_gets_a_name_of_its_own(here: Path) -> None:
    members = made(here / "out", "methods.not.layers=conv1,conv2", "methods.ft.unlearning.lr=0.1,0.2")
    (run,) = sweep.runs_of(members)
    assert run.folder.path.name == "all" and len(members) == 4
    assert set(run.config.methods.run) == {"not-layers-conv1", "not-layers-conv2", "retrain"}, "FT is not run"
    assert [list(one.place.labels) for one in members[:2]] == [["not-layers-conv1", "retrain"]] * 2


def test_methods_that_differ_in_nothing_are_run_once_for_all(here: Path) -> None:
    members = made(here / "out", 'methods.run=["not","retrain"],["ft","retrain"]')
    (run,) = sweep.runs_of(members)
    assert run.config.methods.run == ("not", "retrain", "ft")
    assert [list(one.place.labels.values()) for one in members] == [["not", "retrain"], ["ft", "retrain"]]


def test_another_training_or_another_retrain_is_another_run(here: Path) -> None:
    members = made(here / "a", "training.lr=0.01,0.02", "methods.not.layers=conv1,conv2")
    assert [one.place.folder for one in members] == ["lr-0.01"] * 2 + ["lr-0.02"] * 2
    members = made(here / "b", "methods.retrain.unlearning.rounds=1,2")
    assert [one.place.folder for one in members] == ["rounds-1", "rounds-2"]


def test_a_sweep_that_was_begun_with_a_folder_for_each_goes_on_with_them(here: Path) -> None:
    over = "methods.not.layers=conv1,conv2"
    Run.create(Config.read("tiny.toml", ["methods.not.layers=conv2"]), here / "out/layers-conv2")
    assert [one.place.folder for one in made(here / "out", over)] == ["layers-conv1", "layers-conv2"]


# --- the list of runs -------------------------------------------------------------------------------------------------


def test_the_index_lists_every_run_and_request_and_links_their_reports(here: Path, in_process: list[str]) -> None:
    assert call("sweep", "tiny.toml", "--over", "seed=0,1", "-q").exit_code == 0
    first = here / "runs/tiny-sweep/seed-0"
    assert call("report", str(first)).exit_code == 0
    assert call("withdraw", str(first), "r1").exit_code != 0
    (here / "runs/broken").mkdir()
    (here / "runs/broken/run.json").write_text("{")
    done = call("index", "runs")
    assert done.exit_code == 0 and "runs/index.html (3 runs, 1 of them cannot be read)" in done.output
    page = (here / "runs/index.html").read_text()
    assert '<a href="tiny-sweep/seed-0/report.html">tiny-sweep/seed-0</a>' in page
    assert 'scope="row">tiny-sweep/seed-1' in page, "no link where there is no report yet"
    assert "broken" in page and "damaged" in page and page.count(">r1</td>") == 2
    assert page.count("In a comparison, client 0") == 2 and "<script" not in page, "it is still in the model in force"
    assert page.count("Whether it can be undone is not known.") == 2
    assert first_look(Run.open(first), "not") is not None and call("index", "runs").exit_code == 0
    assert (here / "runs/index.html").read_text().count("Whether it can be undone is not known.") == 1, "it was tried"
    (first / "handed-out.jsonl").write_text("damaged")
    with pytest.warns(UnfedWarning, match=r"is not entered in .*seed-0: Line 1 of .* is no JSON"):
        assert call("index", "runs").exit_code == 0


def test_a_run_inside_a_run_is_its_own_and_no_folder_is_an_error(here: Path) -> None:
    (here / "a/b/run").mkdir(parents=True)
    (here / "a/b/run.json").touch()
    (here / "a/b/run/run.json").touch()
    assert folders(here / "a") == [here / "a/b"]
    missing = call("index", "nowhere")
    assert isinstance(missing.exception, UnfedError) and "nowhere is not a folder" in str(missing.exception)
