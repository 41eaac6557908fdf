"""Where a model is not there it is said why, and what is named as the way out of it is one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from command_line import called
from conftest import SMALL
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.folder.purge import prune
from unfed.requests.entry import Job
from unfed.runs.run import Run

SERVED, TRAINED = "models/0/leaves/not.safetensors", "models/0/train.safetensors"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that served one request; one was withdrawn, and one waits."""
    config = Config.parse({**SMALL, "request": []}, ["training.rounds=2", "unlearning.rounds=1", "methods.run=['not']"])
    run = Run.create(config, tmp_path_factory.mktemp("no-model") / "run")
    run.execute()
    run.forget(Request("leaves", clients=("1",)), "not", until=1)
    run.queue.file(Request("again", clients=("2",)), "ft", "1", 0)
    run.withdraw("again")
    run.queue.file(Request("waits", clients=("2",)), "ft", "1", 0)
    return run.folder.path


@pytest.fixture
def folder(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(template, "run"))


@pytest.mark.parametrize(
    "words",
    [
        ["export", "run", "-o", "model.safetensors"],
        ["evaluate", "run"],
        ["probe", "run"],
        ["resume", "run"],
    ],
    ids=lambda words: words[0],
)
def test_a_served_model_that_was_deleted_can_only_be_restored_and_everybody_says_so(
    folder: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / SERVED).unlink()
    code, _, said = called(words, monkeypatch, capsys)
    assert code == 2
    assert said.splitlines()[-1] == (
        f"error: The model {folder / SERVED} is gone, though its job has ended; restore it from a copy."
    )
    assert not (folder / SERVED).exists() and not Path("model.safetensors").exists()


def test_a_training_model_that_was_deleted_is_made_again_by_what_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / TRAINED).read_bytes()
    (folder / TRAINED).unlink()
    export = ["export", "run", "--method", "train", "-o", "model.safetensors"]
    code, _, said = called(export, monkeypatch, capsys)
    assert code == 2 and said == "error: This run has no model 0/train yet; go on with `unfed resume run`.\n"
    assert called(["resume", "run", "-q"], monkeypatch, capsys)[0] == 0
    assert (folder / TRAINED).read_bytes() == before and called(export, monkeypatch, capsys)[0] == 0


def test_one_whose_state_was_pruned_to_it_cannot_be_made_again_and_nobody_says_that_it_can(folder: Path) -> None:
    run = Run.open(folder)
    prune(run.folder)
    (folder / TRAINED).unlink()
    says = "train.safetensors is gone, though its job has ended; restore it from a copy."
    with pytest.raises(UnfedError, match=says):
        run.saved(method="train")
    with pytest.raises(UnfedError, match=says):
        run.execute()


def test_a_request_that_left_no_model_says_where_it_stands_and_what_can_be_done(folder: Path) -> None:
    run = Run.open(folder)
    with pytest.raises(UnfedError) as error:
        run.saved(request="again")
    assert str(error.value) == "Request 'again' is withdrawn and left no model; ask again under another --id."
    with pytest.raises(UnfedError) as error:
        run.saved(request="waits")
    assert str(error.value) == f"This run has no model 0/waits/ft yet; go on with `unfed resume {folder}`."
    waits = run.queue.book.find("waits")
    assert waits is not None
    begun = waits.stepped("in_progress", "2026-11-16T00:00:00Z")
    run.folder.put_request(begun.stepped("denied", "2026-11-16T00:00:01Z", reason="not recovered", why="Too weak."))
    with pytest.raises(UnfedError) as error:
        run.saved(request="waits")
    assert str(error.value) == (
        f"Request 'waits' is denied (not recovered) and left no model: `unfed forget {folder} --id waits --method"
        f" retrain --until 2` trains again without it, `unfed withdraw {folder} waits` lets it go."
    )


@pytest.mark.parametrize(
    ("described", "go_on"),
    [
        ({"engine": "flower"}, "`flwr run DIR --run-config 'resume-from=\"run\"'`"),
        ({"engine": "remote"}, 'the server that reaches them and the run config resume-from="run"'),
        ({"call": {"method": "not"}}, "the same call of unfed.unlearn, with checkpoint= this folder"),
    ],
)
def test_who_reaches_the_data_goes_on_and_no_reader_is_sent_to_a_command_that_refuses(
    folder: Path, described: dict[str, object], go_on: str
) -> None:
    run = Run.open(folder)
    run.description = run.description.model_copy(update=described)
    assert run.going_on == go_on
    assert run.no_model(Job(0, "waits", "ft")).endswith(f"yet; go on with {go_on}.")


def test_a_folder_of_something_else_is_not_to_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("letters").mkdir()
    Path("letters/one.txt").write_text("dear reader")
    code, _, said = called(["run", "demo", "--out", "letters", "-q"], monkeypatch, capsys)
    assert code == 2
    assert said == "error: letters is not empty; choose another folder with --out.\n"
