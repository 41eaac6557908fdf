"""A run folder's locks: held by one process at a time, gone with it, and never a file that was left behind."""

from __future__ import annotations

import errno
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from command_line import Started
from unfed.errors import UnfedError
from unfed.folder.folder import RunFolder


def holds(folder: Path) -> None:
    """In another process: hold the lock until it is killed."""
    with RunFolder(folder).lock() as free:
        print("held" if free else "taken", flush=True)
        time.sleep(300)


def test_a_lock_is_held_against_other_processes_and_ends_with_the_one_that_is_killed(tmp_path: Path) -> None:
    folder, other = RunFolder(tmp_path), Started(tmp_path, run=partial(holds, tmp_path))
    other.until(lambda: other.printed() == "held\n")
    assert folder.busy()
    with folder.lock() as free:
        assert not free
    with folder.lock("requests") as free:  # another name, another lock
        assert free
    other.send(signal.SIGKILL)
    other.ended()
    assert not folder.busy()
    with folder.lock() as free:
        assert free


def test_a_lock_that_is_held_here_is_not_given_twice_and_a_failure_lets_it_go(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(ZeroDivisionError), folder.lock() as free:
        assert free and folder.busy()
        raise ZeroDivisionError
    assert not folder.busy()


def test_a_file_left_behind_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / ".work.lock").write_text("4711\nsome host\n", encoding="utf-8")
    with RunFolder(tmp_path).lock() as free:
        assert free


def test_looking_whether_somebody_works_in_a_folder_that_is_not_there_makes_none(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="There is no folder"):
        RunFolder(tmp_path / "typo").busy()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="locks are another call there")
def test_a_file_system_without_locks_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def none(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(UnfedError, match="has no locks .* keep runs on another disk"), RunFolder(tmp_path).lock():
        pass
