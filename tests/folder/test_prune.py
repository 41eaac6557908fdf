"""Pruning: a folder becomes smaller, and everything that could be asked of it is answered with the same bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conftest import SMALL
from unfed import storage
from unfed.cli.main import app
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError, counted
from unfed.folder.check import check
from unfed.folder.purge import Keep, prune, purge
from unfed.requests.entry import Job
from unfed.runs.run import Run
from unfed.runs.status import status

SETS = ["training.rounds=2", "unlearning.rounds=2", "evaluation.attack=false", "engine.name=sequential"]
SETS += ["gate.max_drop=100", "evaluation.recovered_within=100", "methods.run=['not']", "training.record=['fukd']"]


def made(folder: Path, *sets: str) -> Run:
    run = Run.create(Config.parse({**SMALL}, [*SETS, *sets]), folder)
    run.execute()
    return run


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that compared a method, trained with a history, and served a request."""
    run = made(tmp_path_factory.mktemp("prune") / "run")
    run.forget(Request("first", clients=("1",)), "not", until=1)
    return run.folder.path


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(template, tmp_path / "run"))


def files(folder: Path, kind: str = "") -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in (folder / kind).rglob("*") if p.is_file()}


def models(run: Run) -> dict[str, bytes]:
    return files(run.folder.path, "models")


def held(run: Run) -> dict[str, bytes]:
    return {
        name: data for kind in ("models", "state", "samples") for name, data in files(run.folder.path, kind).items()
    }


@pytest.mark.parametrize(("keep", "left"), [("all", None), ("last", 1), ("none", 0)])
def test_scores_of_single_rows_are_kept_as_asked(run: Run, keep: Keep, left: int | None) -> None:
    before = files(run.folder.path, "samples")
    prune(run.folder, samples=keep, states=False)
    after = files(run.folder.path, "samples")
    if left is None:
        assert after == before
        return
    jobs = {name.rpartition("/")[0] for name in before}
    last = {max(name for name in before if name.rpartition("/")[0] == job) for job in jobs}
    assert set(after) == (last if left else set()) and len(last) < len(before)


def test_a_model_is_kept_once_and_the_state_is_read_with_it(run: Run) -> None:
    jobs = [Job(0, None, "train"), Job(0, "r1", "not"), Job(0, "first", "not")]
    before = [run.folder.load_state(job) for job in jobs]
    size = sum(len(data) for data in held(run).values())
    freed = prune(run.folder)
    assert sum(len(data) for data in held(run).values()) == size - sum(one.bytes for one in freed)
    for job, saved in zip(jobs, before, strict=True):
        assert not any(name.startswith("params/") for name in storage.names_of(run.folder.state_file(job)))
        found = run.folder.load_state(job)
        assert found is not None and saved is not None
        assert found[1].to_json() == {**saved[1].to_json(), "pruned": "params"}
        assert {n: t.tolist() for n, t in found[0].params.items()} == {
            n: t.tolist() for n, t in saved[0].params.items()
        }


def test_a_best_epoch_that_is_the_model_is_kept_once_too(tmp_path: Path) -> None:
    run = made(tmp_path / "run", "training.keep_model=best-test", "training.record=[]")
    job = Job(0, None, "train")
    before, _ = run.folder.load_state(job) or (None, None)
    assert before is not None and "best" in before.tensors
    prune(run.folder)
    names = storage.names_of(run.folder.state_file(job))
    assert not any(n.startswith("best/") for n in names) and any(n.startswith("params/") for n in names)
    after, _ = run.folder.load_state(job) or (None, None)
    assert after is not None
    assert {n: t.tolist() for n, t in after.tensors["best"].items()} == {
        n: t.tolist() for n, t in before.tensors["best"].items()
    }
    assert check(run.folder).findings == []


def test_a_pruned_folder_is_whole_and_answers_as_before(run: Run) -> None:
    told = Run.open(run.folder.path).info(), run.folder.lines(), status(run).requests
    prune(run.folder, samples="none")
    again = Run.open(run.folder.path)
    assert check(again.folder).findings == []
    unscored = tuple(one for one in told[0].influence or () if not one.file.startswith("samples/"))
    assert again.info() == told[0].model_copy(update={"influence": unscored})
    assert (again.folder.lines(), status(again).requests) == told[1:]
    for words in (["status"], ["check"], ["report", "--format", "md"]):
        assert CliRunner().invoke(app, [words[0], str(run.folder.path), *words[1:]]).exit_code == 0


def test_what_is_done_after_pruning_leaves_the_same_models(run: Run, tmp_path: Path) -> None:
    """Resuming, asking a served request for more rounds, a method that needs a history, another request."""
    whole = Run.open(shutil.copytree(run.folder.path, tmp_path / "whole"))
    prune(run.folder, samples="none")
    for one in (Run.open(run.folder.path), whole):
        one.execute()
        one.forget(Request("first", clients=("1",)), "not", until=3)
        one.forget(Request("second", clients=("2",)), "fukd", until=1)
        one.forget(Request("third", classes=(3,)), "ft", until=1)
    assert models(run) == models(whole)
    assert check(run.folder).findings == []


def test_pruning_twice_is_pruning_once_and_a_dry_run_changes_nothing(run: Run) -> None:
    before = held(run)
    would = prune(run.folder, dry_run=True)
    assert held(run) == before
    assert prune(run.folder) == would
    after = held(run)
    assert prune(run.folder) == [] and held(run) == after != before


def test_what_is_pruned_can_be_purged(run: Run) -> None:
    prune(run.folder)
    purge(Run.open(run.folder.path), "first")
    again = Run.open(run.folder.path)
    assert check(again.folder).findings == []
    assert run.folder.load_state(Job(0, None, "train")) is not None, "the state of a purged model is numbers alone"
    again.forget(Request("second", classes=(3,)), "ft", until=1)
    assert check(again.folder).findings == []


def test_a_model_that_is_not_its_job_s_is_no_reason_to_drop_the_right_one(run: Run) -> None:
    theta, other = (run.folder.model_file(Job(0, name, label)) for name, label in ((None, "train"), ("first", "not")))
    shutil.copy(other, theta)
    before = run.folder.state_file(Job(0, None, "train")).read_bytes()
    with pytest.raises(UnfedError, match="is not the one that its job left"):
        prune(run.folder)
    assert run.folder.state_file(Job(0, None, "train")).read_bytes() == before


def test_nothing_is_pruned_while_another_works(run: Run) -> None:
    with run.folder.lock() as free:
        assert free
        with pytest.raises(UnfedError, match="Another process is at work"):
            prune(Run.open(run.folder.path).folder)


def test_a_config_can_keep_the_last_scores_only(tmp_path: Path) -> None:
    run = made(tmp_path / "run", "evaluation.samples=last", "training.record=[]")
    kept = sorted(files(run.folder.path, "samples"))
    jobs = ("r1/before/000000", "r1/not/000002", "train/000002")
    assert kept == [f"samples/0/{job}.safetensors" for job in jobs]


def test_the_command_says_how_much_it_freed(run: Run) -> None:
    found = CliRunner().invoke(app, ["prune", str(run.folder.path), "--samples", "none", "--json"])
    told = json.loads(found.stdout)
    assert found.exit_code == 0 and {one["what"] for one in told["freed"]} == {"scores", "model in state"}
    assert all(one["bytes"] > 0 for one in told["freed"])
    assert "0 files of scores" in CliRunner().invoke(app, ["prune", str(run.folder.path)]).stdout
    assert counted(1, "state") == "1 state" and counted(1200, "line") == "1,200 lines"
