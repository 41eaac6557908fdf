"""The campaigns see what they are there to see: a traceback, a process killed before an operation, a full disk."""

from __future__ import annotations

import collections
import signal
import sys
from pathlib import Path

import pytest
import torch

from unfed import storage
from unfed.data import SampleList
from unfed.runs.run import Run

sys.path.append(str(Path(__file__).parents[1] / "campaigns"))

import chaos
import common
import fuzz
import signed


def faults(kind: str, here: Path, count: int = 20) -> dict[tuple[str, str], int]:
    tried: collections.Counter[str] = collections.Counter()
    found: dict[tuple[str, str], int] = {}
    fuzz.batch(kind, fuzz.KINDS[kind], here, count, "0", tried, found)
    assert tried[kind] >= count
    return found


@pytest.mark.parametrize("kind", ["configs, their text", "configs, their values", "sample lists"])
def test_drawn_inputs_end_in_sentences(kind: str, tmp_path: Path) -> None:
    assert faults(kind, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["signed requests", "proofs and answers", "logs", "evidence bundles", "calls of the service"]
)
def test_drawn_requests_proofs_and_logs_end_in_sentences(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert faults(kind, tmp_path) == {}


@pytest.mark.slow
def test_of_several_who_hand_in_at_once_none_is_lost(tmp_path: Path) -> None:
    home = signed.logged(tmp_path / "home")
    names = signed.requests(home, 5)
    with Run.open(home / "run").folder.lock():
        children = [chaos.start((*signed.handing_in(name), "--quiet"), home) for name in names]
        ends = [chaos.wait(*child) for child in children]
    assert [(end.code, end.fault) for end in ends] == [(0, None)] * 5
    assert signed.lost(home, names) is None


@pytest.mark.slow
def test_nothing_that_a_killed_service_acknowledged_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="needs unfed[serve]")
    import serving

    answered, wrong = serving.trial(signed.logged(tmp_path / "home"), 6, 2, chaos.start)
    assert answered >= 2 and wrong == []


def test_what_ends_in_no_sentence_is_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> SampleList:
        raise ValueError("no sentence")

    monkeypatch.setattr(SampleList, "read", broken)
    ((kind, fault), times), *rest = faults("sample lists", tmp_path).items()
    assert (kind, fault) == ("sample lists", "ValueError at outside: no sentence") and times >= 20 and not rest


def test_a_command_may_refuse_but_neither_raise_nor_end_with_1() -> None:
    assert common.give("status", "nowhere").fault is None
    assert common.Answer(3, "", "").fault is None
    assert common.Answer(1, "", "error: something").fault == "exit code 1: error: something"
    assert (
        common.Answer(2, "", "Traceback (most recent call last):\nKeyError").fault
        == "a traceback in the output: KeyError"
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    storage.save(tmp_path / "model.safetensors", {"conv1.weight": torch.ones(2, 1, 3, 3)}, {})
    return tmp_path


WORDS = ("negate", "model.safetensors", "-o", "out.safetensors")


def test_a_child_is_killed_before_each_of_its_operations(model: Path) -> None:
    end = chaos.wait(*chaos.start(WORDS, model))
    assert (end.code, end.fault) == (0, None) and end.operations >= 3
    truth = (model / "out.safetensors").read_bytes()
    (model / "out.safetensors").unlink()
    for at in range(1, end.operations + 1):
        assert chaos.wait(*chaos.start(WORDS, model, at, chaos.KILLED)).signal == signal.SIGKILL
        left = model / "out.safetensors"
        assert not left.exists() or left.read_bytes() == truth
        left.unlink(missing_ok=True)


def test_a_full_disk_refuses_what_takes_room(model: Path) -> None:
    end = chaos.wait(*chaos.start(WORDS, model, 1, chaos.FULL))
    assert end.code == 2 and "No space left" in end.said and end.fault is None
    assert not (model / "out.safetensors").exists()


def test_what_differs_is_named() -> None:
    truth = {"a": 1, "b": 2}
    assert chaos.difference(dict(truth), truth) is None
    assert chaos.difference({"a": 1}, truth) == "b is missing"
    assert chaos.difference({"a": 1, "b": 3}, truth) == "b differs"
    assert chaos.difference({**truth, "c.12.tmp": 1}, truth) == "c.N.tmp is left over"
