"""Plausible mistakes, and the very sentence that answers each: `mistakes.txt` is the table."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from command_line import called
from unfed.data import TensorSource
from unfed.errors import UnfedError, members, nearest

TINY = """
name = "tiny"
partition.clients = 3
model.name = "cnn-tiny"
training = { rounds = 1, batch = 256 }
unlearning.rounds = 1
request = { id = "r1", clients = ["0"] }
methods.run = ["not"]
evaluation = { attack = false, samples = false }
device = "cpu"
gate.max_drop = 100.0
"""
FILES = {
    "tiny.toml": TINY,
    "bad.toml": "[training\n",
    "notes.txt": "hello",
    "model.pt": "junk",
    "empty.csv": "",
    "bad.csv": "client,position\nx,y\n",
    "far.csv": "client,position\n1,99999\n",
}


def table() -> list[tuple[str, str]]:
    text = (Path(__file__).parents[1] / "mistakes.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(lines[place], lines[place + 1].strip()) for place in range(0, len(lines), 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Path]:
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("UNFED_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "400")
    if not (folder / "run").exists():
        assert answer(["run", "tiny.toml", "--quiet", "--out", "run"], monkeypatch, capsys) == (0, "")
    yield folder
    signal.signal(signal.SIGTERM, handler)


def answer(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code, _, told = called(words, monkeypatch, capsys)
    said = " ".join(told.split())
    boxed = re.search(r"╮ │ (.*?) │ ╰", said)  # what typer finds before a command begins stands in a box
    return code, boxed[1] if boxed else said.rpartition("error: ")[2]


def test_there_are_enough_of_them() -> None:
    commands = [command for command, _ in table()]
    assert len(commands) == len(set(commands)) > 100
    for command, sentence in table():
        first = sentence.split()[0]  # what was typed, or stands in a config, keeps its small letter
        assert not first[0].islower() or "." in first or first in f"{command} {TINY}", sentence
        assert sentence.endswith((".", "?", ")")), sentence


@pytest.mark.parametrize(("command", "sentence"), table(), ids=[command for command, _ in table()])
def test_a_mistake_is_answered_by_this_very_sentence(
    command: str, sentence: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(os.listdir(here))
    code, said = answer(shlex.split(command), monkeypatch, capsys)
    wanted = ".+".join(re.escape(part) for part in sentence.split("…"))
    assert code == 2 and re.fullmatch(wanted, said), said
    after = sorted(os.listdir(here))
    for name in set(after) - set(before):  # for the tests that follow
        shutil.rmtree(here / name, ignore_errors=True)
    assert after == before, "something was written"


def test_a_missing_value_in_the_data_is_the_datas_fault_and_not_the_learning_rates() -> None:
    images = torch.zeros(5, 3)
    images[3, 1] = float("nan")
    with pytest.raises(UnfedError, match="Sample 3 has NaN or infinite values in it; clean the data"):
        TensorSource(images, torch.zeros(5, dtype=torch.int64))


def test_a_target_that_is_a_real_number_is_told_what_unfed_is_for() -> None:
    with pytest.raises(UnfedError, match=r"class numbers .*not torch.float32; unfed forgets in classifiers only"):
        TensorSource(torch.zeros(5, 3), torch.rand(5))


def test_nobody_is_suggested_in_a_leavers_place_and_case_does_not_matter_elsewhere() -> None:
    assert members(map(str, range(3))) == "0, 1 or 2"
    assert members(map(str, range(100))) == "0, 1, 2, 3, 4, 5, 6, 7 … 99 (100 in all)"
    assert nearest("NoT", ["ft", "not"]) == " Did you mean 'not'?"
