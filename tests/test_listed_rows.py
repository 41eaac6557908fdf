"""Samples that are listed by their row in the training set: the very rows that were named leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commands import called
from unfed import Config, Run, UnfedError, allow_code
from unfed.data import SampleList

DATA = """
import torch

def forty():
    x = torch.arange(40.0)[:, None].repeat(1, 3)
    return (x, torch.arange(40) % 2), (x[:10] + 0.5, torch.arange(10) % 2)
"""


@pytest.fixture(params=["central", "federated"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trained run over rows that say their own number, held by one, or dealt to four clients."""
    (tmp_path / "numbered_rows.py").write_text(DATA)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    parts: dict[str, Any] = {} if request.param == "central" else {"partition": {"clients": 4}}
    raw = {"name": "rows", "setting": request.param, "device": "cpu", "data": {"name": "numbered_rows:forty"}}
    training = {"training": {"rounds": 1, "lr": 0.01}, "model": {"name": "mlp"}, "methods": {"run": []}}
    with allow_code():
        Run.create(Config.parse({**raw, **training, **parts}), tmp_path / "run").execute()
    return tmp_path


def forget(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], listed: str) -> tuple[int, str, str]:
    Path("ids.csv").write_text(listed)
    words = ["forget", "run", "--samples", "ids.csv", "--until", "1", "--id", "r", "--method", "ft", "--allow-code"]
    return called(words, monkeypatch, capsys)


def test_the_rows_that_were_named_leave_and_no_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = forget(monkeypatch, capsys, "row\n3\n17\n21\n")
    assert code == 0, err
    run = Run.open(folder / "run")
    entry = run.queue.find("r")
    assert entry is not None
    with allow_code():
        clients = run.world(0).population.scoped([entry.request]).values()
    left = sorted(int(row) for c in clients for row in c.source.fetch(c.rows[c.forget])[0][:, 0])
    assert left == [3, 17, 21]


def test_a_row_that_is_not_there_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = forget(monkeypatch, capsys, "row\n3\n40\n")
    assert code == 2 and "No client of this run holds row 40" in err
    assert Run.open(folder / "run").queue.find("r") is None


@pytest.mark.parametrize("folder", ["central"], indirect=True)
def test_positions_in_an_order_that_was_drawn_are_refused_where_rows_are_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = forget(monkeypatch, capsys, "client,position\n0,3\n0,17\n")
    assert code == 2 and "would name other samples than it seems to; give it the header row" in err


def test_rows_are_refused_where_the_run_itself_drew_which_of_them_are_for_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    raw = {"name": "drawn", "device": "cpu", "data": {"test_size": 1700}, "partition": {"clients": 2}}
    Run.create(
        Config.parse({**raw, "model": {"name": "cnn-tiny"}, "training": {"rounds": 1}, "methods": {"run": []}}), "run"
    ).execute()
    code, _, err = forget(monkeypatch, capsys, "row\n3\n")
    assert code == 2 and "so their numbers are not the data set's" in err


def test_a_list_of_rows_says_so_to_whoever_wants_clients_and_positions() -> None:
    listed = SampleList("ids.csv", "row\n3\n17\n")
    assert listed.rows == (3, 17)
    with pytest.raises(UnfedError, match="names rows of the data set"):
        _ = listed.samples
    with pytest.raises(UnfedError, match="Line 2 of ids.csv must hold a row, not '1,2'"):
        _ = SampleList("ids.csv", "row\n1,2\n").rows
    assert SampleList("ids.csv", "client,position\na,1\n").rows == ()
