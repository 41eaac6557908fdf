"""The book of a run is read once, and asked often."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import unfed.client.step
from unfed import storage
from unfed.config.config import Config
from unfed.data import Request
from unfed.requests.book import Tombstone, bury, tombstones
from unfed.runs.run import Run

SMALL = {
    "partition": {"clients": 4},
    "model": {"name": "mlp"},
    "training": {"rounds": 2},
    "engine": {"name": "sequential"},
}


def test_one_forget_reads_every_request_and_the_tombstones_at_most_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run.create(Config.parse({"name": "once", **SMALL}), tmp_path / "run").execute()
    bury(tmp_path / "run", [Tombstone("models/0/gone/ft.safetensors", "0" * 64, "gone", "2026-01-31")])
    Run.open(tmp_path / "run").forget(Request("first", clients=("1",)), "ft", 1)
    for file in (tmp_path / "run").rglob("*.json"):
        os.utime(file, (1.0, 1.0))
    monkeypatch.setattr(storage, "_seen", type(storage._seen)())  # as a new process begins
    read: Counter[str] = Counter()
    content = storage.content

    def counted(path: Path, *more: Any, **named: Any) -> bytes:
        read[Path(path).relative_to(tmp_path / "run").as_posix()] += 1
        return content(path, *more, **named)

    monkeypatch.setattr(storage, "content", counted)
    Run.open(tmp_path / "run").forget(Request("second", clients=("3",)), "ft", 2)
    books = {file: times for file, times in read.items() if file.startswith("requests/") or "tombstones" in file}
    assert books == {"requests/0001-first.json": 1, "tombstones.json": 1}, "what is filed here need not be read"


def test_fourteen_frames_lie_between_forget_and_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(Config.parse({"name": "deep", **SMALL}), tmp_path / "run")
    run.execute()
    step, stacks = unfed.client.step.step, list[list[str]]()

    def seen(*given: Any, **named: Any) -> Any:
        stacks.append([frame.function for frame in inspect.stack(context=0)])
        return step(*given, **named)

    monkeypatch.setattr(unfed.client.step, "step", seen)
    run.forget(Request("leaves", clients=("3",)), "ft", 1)
    depths = {stack.index("forget") - 1 for stack in stacks if "forget" in stack}
    assert depths and max(depths) <= 14


def test_a_file_is_read_again_when_another_process_has_changed_it(tmp_path: Path) -> None:
    file, times = tmp_path / "file", 0

    def read(path: Path) -> bytes:
        nonlocal times
        times += 1
        return path.read_bytes()

    assert storage.unchanged(file, read) is None and times == 0
    file.write_bytes(b"one")
    assert storage.unchanged(file, read) == b"one" == storage.unchanged(file, read)
    assert times == 2, "it may change once more before the clock shows it"
    os.utime(file, ns=(1, 1))
    assert storage.unchanged(file, read) == b"one" == storage.unchanged(file, read) and times == 3
    file.write_bytes(b"two")
    assert storage.unchanged(file, read) == b"two"


def test_a_damaged_list_of_tombstones_is_refused(tmp_path: Path) -> None:
    bury(tmp_path, [Tombstone("models/0/a/ft.safetensors", "00", "a", "2026-01-31")])
    assert [*tombstones(tmp_path)] == ["models/0/a/ft.safetensors"]
    text = (tmp_path / "tombstones.json").read_text()
    (tmp_path / "tombstones.json").write_text(text.replace('"00"', "17"))
    with pytest.raises(unfed.UnfedError, match=r"has '17' as its 0.sha256 \(it should be a valid string\)"):
        tombstones(tmp_path)
