"""`unfed new`: a project that runs at once."""

from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path

import pytest

from command_line import Started, called
from unfed.runs.run import Run

FILES = {"README.md", "experiment.toml", "my_data.py", "my_model.py", "test_project.py"}


def test_a_new_project_runs_and_its_test_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = called(["new", "My project"], monkeypatch, capsys)
    assert code == 0 and "unfed run experiment.toml --allow-code" in out
    assert {path.name for path in Path("My project").iterdir()} == FILES
    monkeypatch.chdir("My project")
    code, _, err = called(["run", "experiment.toml", "--allow-code", "--quiet"], monkeypatch, capsys)
    assert code == 0, err
    run = Run.open("runs/my-project")
    assert {line["method"] for line in run.lines()} >= {"before", "retrain", "not"}
    assert float(run.lines()[-1]["test"]) > 60
    alone = partial(runpy.run_module, "pytest", run_name="__main__", alter_sys=True)
    code, said = Started(Path.cwd(), "-q", "-p", "no:cacheprovider", "test_project.py", run=alone).ended()
    assert code == 0 and "1 passed" in said, said


def test_a_folder_that_holds_something_and_a_file_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/mine").write_text("mine")
    Path("file").write_text("mine")
    for name in ("full", "file"):
        code, _, err = called(["new", name], monkeypatch, capsys)
        assert code == 2 and "is there already and not an empty folder; name another" in " ".join(err.split())
    assert [path.name for path in Path("full").iterdir()] == ["mine"] and Path("file").read_text() == "mine"
    Path("empty").mkdir()
    assert called(["new", "empty"], monkeypatch, capsys)[0] == 0
