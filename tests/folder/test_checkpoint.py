"""Files are whole or not there."""

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Started
from unfed import storage
from unfed.errors import UnfedError

TENSORS = {"z": torch.arange(3.0), "a": torch.tensor([1, 2]), "m/x": torch.ones(2, 2, dtype=torch.float64)}


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    storage.save(tmp_path / "s.safetensors", TENSORS, {"round": 3, "list": [1, "x"]})
    tensors, numbers = storage.load(tmp_path / "s.safetensors")
    assert list(tensors) == ["z", "a", "m/x"]  # in its own order, not the file's
    assert all(torch.equal(tensors[n], TENSORS[n]) and tensors[n].dtype == TENSORS[n].dtype for n in TENSORS)
    assert numbers == {"round": 3, "list": [1, "x"]} == storage.numbers_of(tmp_path / "s.safetensors")


def test_what_was_loaded_does_not_hang_on_its_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    storage.save(path, {"w": torch.arange(5000.0)}, {})
    tensors, _ = storage.load(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(tensors["w"], torch.arange(5000.0))


def test_a_file_is_written_where_folders_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: a folder cannot be opened, and a file opened for reading cannot be synced."""
    original_open, original_sync = os.open, os.fsync

    def open_files_only(path: Path, flags: int, *more: Any, **named: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original_open(path, flags, *more, **named)

    def sync_written_only(descriptor: int) -> None:
        os.write(descriptor, b"")  # fails with EBADF where it was opened for reading
        original_sync(descriptor)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "open", open_files_only)
    monkeypatch.setattr(os, "fsync", sync_written_only)
    storage.write_bytes(tmp_path / "s", b"new")
    storage.append_line(tmp_path / "s", "line")
    storage.cut(tmp_path / "s", 3)
    storage.sync(tmp_path / "s")
    assert (tmp_path / "s").read_bytes() == b"new"


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    seen = set()
    for _ in range(8):  # safetensors itself writes metadata in a random order
        storage.save(tmp_path / "s", TENSORS, {"round": 3})
        seen.add((tmp_path / "s").read_bytes())
    assert len(seen) == 1


def test_tensors_that_share_memory_can_be_saved(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    storage.save(tmp_path / "s", {"a": whole[:3], "b": whole}, {})
    assert storage.load(tmp_path / "s")[0]["a"].tolist() == [0, 1, 2]


def test_groups_are_joined_and_parted() -> None:
    groups = {"params": {"w": torch.ones(1)}, "phi": {"a/b": torch.zeros(1)}}
    assert storage.part(storage.join(groups)) == groups


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    storage.write_bytes(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnfedError, match="The disk is full.*untouched.*Free some space and resume"):
        storage.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["s"]


def test_a_crash_before_the_rename_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    storage.write_bytes(path, b"old")

    def crash(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        storage.write_bytes(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["s"]


def test_an_unwritable_path_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnfedError, match="could not be written"):
        storage.write_bytes(tmp_path / "file" / "below", b"x")


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\xff" * 100])
def test_a_foreign_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s").write_bytes(content)
    with pytest.raises(UnfedError, match="cannot be read as safetensors.*unfed convert"):
        storage.load(tmp_path / "s")
    with pytest.raises(UnfedError, match="damaged"):
        storage.numbers_of(tmp_path / "s")


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    storage.save(tmp_path / "s", TENSORS, {})
    whole = (tmp_path / "s").read_bytes()
    (tmp_path / "s").write_bytes(whole[:-5])
    with pytest.raises(UnfedError, match="truncated"):
        storage.load(tmp_path / "s")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="There is no model at"):
        storage.load(tmp_path / "s", "model")
    with pytest.raises(UnfedError, match="There is no run description"):
        storage.read_json(tmp_path / "x.json", "run description")


def test_lines_are_appended_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = storage.append_line(path, "one")
    storage.append_line(path, "two")
    storage.cut(path, first)
    assert path.read_text() == "one\n"
    storage.cut(path, 1000)  # never grows
    assert path.read_text() == "one\n"


@pytest.mark.skipif(sys.platform == "win32", reason="links are not for everybody there")
def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """A run folder may have come from somebody else, with a link to a file of the reader's in it."""
    (tmp_path / "mine").write_bytes(b"a file of mine\n")
    (tmp_path / "lines").symlink_to(tmp_path / "mine")
    ways: list[Callable[[Path], object]] = [
        lambda path: storage.append_line(path, "x"),
        lambda path: storage.cut(path, 0),
        lambda path: storage.write_at(path, 0, b"x"),
    ]
    for way in ways:
        with pytest.raises(UnfedError, match="lines is a link, and nothing is written through one; put the file"):
            way(tmp_path / "lines")
    assert (tmp_path / "mine").read_bytes() == b"a file of mine\n"


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '\ufeff{"a": 1}', "[" * 100_000])
def test_json_that_others_may_read_otherwise_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "j.json").write_text(text, encoding="utf-8")
    with pytest.raises(UnfedError, match=r"The list at .*j\.json is damaged .*restore it from a copy"):
        storage.read_json(tmp_path / "j.json", "list")


def test_json_is_readable_by_people(tmp_path: Path) -> None:
    storage.write_json(tmp_path / "x.json", {"b": 1, "a": [2]})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [2], "b": 1}
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UnfedError, match="damaged"):
        storage.read_json(tmp_path / "x.json", "thing")


def test_a_header_with_a_table_where_a_text_belongs_is_a_sentence(tmp_path: Path) -> None:
    storage.save(tmp_path / "s", TENSORS, {"round": 1})
    whole = (tmp_path / "s").read_bytes()
    size = int.from_bytes(whole[:8], "little")
    described = json.loads(whole[8 : 8 + size])
    described["__metadata__"]["unfed"] = {"round": 1}
    text = json.dumps(described).encode()
    (tmp_path / "s").write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + size :])
    with pytest.raises(UnfedError, match="cannot be read as safetensors"):
        storage.load(tmp_path / "s")
    with pytest.raises(UnfedError, match="is damaged"):
        storage.numbers_of(tmp_path / "s")


def writes(page: Path, until: Path | None) -> None:
    """In another process: begin to write a file, then wait for another one, or be killed."""
    with storage.replacing(page):
        if until is None:
            os.kill(os.getpid(), signal.SIGKILL)
        print("writes", flush=True)
        while until is not None and not until.exists():
            time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there no file is locked while it is written")
def test_what_a_killed_writer_left_goes_with_the_next_one_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    page, until = tmp_path / "pages" / "report.html", tmp_path / "go on"
    page.parent.mkdir()
    assert Started(tmp_path, run=partial(writes, page, None)).ended() == (-signal.SIGKILL, "")
    (left,) = page.parent.iterdir()
    assert storage.is_leftover(left)
    other = Started(tmp_path, run=partial(writes, page, until))
    other.until(lambda: other.printed() == "writes\n")
    (page.parent / ".other.html.1.tmp").touch()  # another file's, so none of ours
    storage.deliver(page, b"ours")
    assert sorted(p.name for p in page.parent.iterdir()) == [
        ".other.html.1.tmp",
        f".report.html.{other.process.pid}.tmp",
        "report.html",
    ]
    until.touch()
    assert other.ended()[0] == 0 and page.read_bytes() == b""  # it came last


def test_a_writer_whose_file_was_swept_before_it_held_it_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, held = iter([False, True]), storage._held

    def swept_once(descriptor: int) -> bool:
        if next(answers):
            return held(descriptor)
        for path in tmp_path.iterdir():
            path.unlink()
        return held(descriptor)

    monkeypatch.setattr(storage, "_held", swept_once)
    storage.write_bytes(tmp_path / "s", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["s"] and (tmp_path / "s").read_bytes() == b"new"
