"""Samples that are listed by their row in the training set: the very rows that were named leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command_line import called
from unfed import Config, Request, Run, UnfedError, allow_code
from unfed.data import SampleList, TensorSource, load

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
    with allow_code():
        Run.create(Config.parse(raw(request.param)), tmp_path / "run").execute()
    return tmp_path


def raw(setting: str) -> dict[str, Any]:
    parts: dict[str, Any] = {} if setting == "central" else {"partition": {"clients": 4}}
    named = {"name": "rows", "setting": setting, "device": "cpu", "data": {"name": "numbered_rows:forty"}}
    training = {"training": {"rounds": 1, "lr": 0.01}, "model": {"name": "mlp"}, "methods": {"run": []}}
    return {**named, **training, **parts}


def forget(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], listed: str) -> tuple[int, str, str]:
    Path("ids.csv").write_text(listed)
    words = ["forget", "run", "--samples", "ids.csv", "--until", "1", "--id", "r", "--method", "ft", "--allow-code"]
    return called(words, monkeypatch, capsys)


def left(run: Run, request: Request, seed: int = 0) -> list[int]:
    """Which rows a request takes out, as the rows themselves say."""
    with allow_code():
        clients = run.world(seed).scoped([request]).values()
    return sorted(int(row) for c in clients for row in c.source.fetch(c.rows[c.forget])[0][:, 0])


def test_the_rows_that_were_named_leave_and_no_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = forget(monkeypatch, capsys, "row\n3\n17\n21\n")
    assert code == 0, err
    run = Run.open(folder / "run")
    entry = run.queue.book.find("r")
    assert entry is not None and left(run, entry.request) == [3, 17, 21]
    assert entry.described is not None and entry.described["samples"] == 3 and len(entry.rows) == 3
    with allow_code():
        assert run.forget(Request("r", rows=(3, 17, 21)), "ft", 1).status == "already done"


def test_python_takes_rows_as_the_command_does(folder: Path) -> None:
    run = Run.open(folder / "run")
    with allow_code():
        assert run.forget(Request("r", rows=(3, 17, 21)), "ft", 1).status == "done"
    entry = Run.open(folder / "run").queue.book.find("r")
    assert entry is not None and left(run, entry.request) == [3, 17, 21]


@pytest.mark.parametrize("setting", ["central", "federated"])
def test_a_config_takes_rows_as_the_command_does_under_every_seed(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numbered_rows.py").write_text(DATA)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ids.csv").write_text("row\n3\n17\n21\n")
    asked = {"request": {"samples": str(tmp_path / "ids.csv")}, "methods": {"run": ["ft"]}, "seed": [0, 1]}
    with allow_code():
        run = Run.create(Config.parse({**raw(setting), **asked, "unlearning": {"rounds": 1}}), tmp_path / "run")
        run.execute()
    (request,) = run.config.requests()
    assert left(run, request, 0) == left(run, request, 1) == [3, 17, 21]
    assert run.info().requests[0].samples == 3


def test_a_row_that_is_not_there_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = forget(monkeypatch, capsys, "row\n3\n40\n41\n")
    assert code == 2 and "names row 40 and 1 more, which is no training row" in err
    assert Run.open(folder / "run").queue.book.find("r") is None


@pytest.mark.parametrize("folder", ["central"], indirect=True)
def test_positions_in_an_order_that_was_drawn_are_refused_at_every_door_of_a_centralised_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "mislead; name rows: a list with the header row"
    code, _, err = forget(monkeypatch, capsys, "client,position\n0,3\n0,17\n")
    assert code == 2 and wrong in err
    with allow_code():
        with pytest.raises(UnfedError, match=wrong):
            Run.open(folder / "run").forget(Request("r", samples=(("0", 3),)), "ft", 1)
        with pytest.raises(UnfedError, match=wrong):
            Config.parse({**raw("central"), "request": {"samples": "ids.csv"}})
    assert Run.open(folder / "run").queue.book.find("r") is None


def test_rows_keep_their_numbers_where_the_run_itself_drew_which_of_them_are_for_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = {
        "name": "drawn",
        "device": "cpu",
        "data": {"test_size": 1600, "train_size": 90},
        "partition": {"clients": 2},
    }
    Run.create(
        Config.parse({**drawn, "model": {"name": "cnn-tiny"}, "training": {"rounds": 1}, "methods": {"run": []}}), "run"
    ).execute()
    whole = load("digits", test_size=1).train  # all but one, so every row is at its number or just before it
    assert isinstance(whole, TensorSource)
    numbers = []
    for client in Run.open("run").world(0).clients:
        assert isinstance(client.source, TensorSource) and client.numbers is not None
        numbers += client.numbers.tolist()
        for image, number in zip(client.source.images[client.rows], client.numbers.tolist(), strict=True):
            assert any(bool((whole.images[place] == image).all()) for place in (number - 1, min(number, 1795)))
    assert len(set(numbers)) == 90 and max(numbers) > 90
    held_out = next(row for row in range(1797) if row not in numbers)
    code, _, err = forget(monkeypatch, capsys, f"row\n{held_out}\n")
    assert code == 2 and f"names row {held_out}, which is no training row" in err and "held out" in err


def test_a_list_of_rows_says_so_to_whoever_wants_clients_and_positions() -> None:
    listed = SampleList("ids.csv", "row\n3\n17\n")
    assert listed.rows == (3, 17)
    with pytest.raises(UnfedError, match="names rows of the data set"):
        _ = listed.samples
    with pytest.raises(UnfedError, match="Line 2 of ids.csv must hold a row, not '1,2'"):
        _ = SampleList("ids.csv", "row\n1,2\n").rows
    assert SampleList("ids.csv", "client,position\na,1\n").rows == ()
