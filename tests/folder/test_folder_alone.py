"""A run folder means the same after the files it was made from are gone; one of another layout is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unfed.cli.main import app
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.folder import locks
from unfed.folder.folder import RunFolder
from unfed.report import RunInfo
from unfed.report.html import config_text
from unfed.runs.run import Run
from worlds import Small

ROWS = (("0", 0), ("0", 3), ("1", 2))
TEXT = "client,position\n0,0\n0,3\n1,2\n"


@pytest.fixture
def listed(small: Small, tmp_path: Path) -> Any:
    """A config whose request lists samples in a file, and the file."""
    file = tmp_path / "ids.csv"
    file.write_text(TEXT)
    raw = small("training.rounds=1", "unlearning.rounds=1", "methods.run=['not']").to_json()
    return Config.parse({**raw, "request": [{"id": "rows", "samples": str(file)}]}), file


def test_a_list_of_samples_is_read_once_and_kept_with_its_sha256(listed: Any, tmp_path: Path) -> None:
    config, file = listed
    run = Run.create(config, tmp_path / "run")
    file.write_text("client,position\n1,0\n")  # somebody else's rows now
    again = Run.open(tmp_path / "run")
    assert again.config == config and again.config.requests() == (Request("rows", samples=ROWS),)
    kept = json.loads((run.folder.path / "run.json").read_text())["config"]["request"][0]["samples"]
    assert kept == {"source": str(file), "sha256": hashlib.sha256(TEXT.encode()).hexdigest(), "text": TEXT}


@pytest.mark.parametrize("fate", ["deleted", "replaced"])
def test_a_run_goes_on_and_is_read_after_its_list_is_gone(listed: Any, tmp_path: Path, fate: str) -> None:
    config, file = listed
    Run.create(config, tmp_path / "whole").execute()
    run = Run.create(config, tmp_path / "run")
    file.unlink() if fate == "deleted" else file.write_text("client,position\n1,0\n1,1\n")
    run.execute()
    whole, here = Run.open(tmp_path / "whole"), Run.open(tmp_path / "run")
    of = [[{k: v for k, v in line.items() if k != "seconds"} for line in one.lines()] for one in (whole, here)]
    assert of[0] == of[1] and here.info().requests == whole.info().requests
    for command in (["status"], ["report"], ["evaluate"], ["resume", "-q"]):
        found = CliRunner().invoke(app, [command[0], str(tmp_path / "run"), *command[1:]], catch_exceptions=False)
        assert found.exit_code == 0, found.output


def test_a_filed_request_keeps_its_rows_and_the_sha256_of_its_list(listed: Any, tmp_path: Path) -> None:
    config, file = listed
    run = Run.create(config, tmp_path / "run")
    run.execute()
    made = ["forget", str(tmp_path / "run"), "--samples", str(file), "--id", "filed", "--until", "1", "-q"]
    assert CliRunner().invoke(app, made, catch_exceptions=False).exit_code == 0
    file.unlink()
    entry = Run.open(tmp_path / "run").queue.book.find("filed")
    assert entry is not None
    assert entry.request.samples == ROWS and entry.request.listed == hashlib.sha256(TEXT.encode()).hexdigest()


def test_the_same_rows_in_another_file_are_the_same_request() -> None:
    assert Request("r", samples=ROWS, listed="a" * 64) == Request("r", samples=ROWS)


def test_a_kept_list_that_was_changed_is_refused(listed: Any, tmp_path: Path) -> None:
    config, _ = listed
    Run.create(config, tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    file.write_text(file.read_text().replace("1,2", "1,1"))
    with pytest.raises(UnfedError, match="request.0.samples.*not the one its SHA-256 vouches for"):
        Run.open(tmp_path / "run")


def test_a_page_shows_where_a_list_was_read_and_not_who_is_on_it(listed: Any, tmp_path: Path) -> None:
    config, file = listed
    shown = config_text(RunInfo.of({"config": config.to_json()}))
    assert "sha256" in shown and str(file) in shown and "client,position" not in shown


# --- another layout ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [1, 3, None])
def test_a_folder_of_another_layout_is_refused(listed: Any, tmp_path: Path, layout: int | None) -> None:
    Run.create(listed[0], tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": layout}))
    with pytest.raises(
        UnfedError, match=f"was written in layout {layout}, this version reads layout 2; use the version"
    ):
        Run.open(tmp_path / "run")


# --- looking ----------------------------------------------------------------------------------------------------------


def test_looking_writes_nothing_and_holds_nothing_that_work_needs(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.busy() and list(tmp_path.iterdir()) == []
    with folder.lock():
        assert folder.busy()
    from unfed.folder import locks as presence

    with presence.held(tmp_path, "busy") as looking:  # a look, held still
        assert looking
        with presence.held(tmp_path, "work") as free:
            assert free


def test_a_folder_that_cannot_be_written_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    folder = RunFolder(tmp_path)
    with folder.lock():
        locks.beat(folder.path, {"round": 1})
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
        assert folder.busy()
    assert not folder.busy()
    (tmp_path / "progress.json").write_text(json.dumps({"pid": 10**30, "host": "elsewhere", "at": 0}))
    assert not folder.busy()
