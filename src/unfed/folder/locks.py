"""Who is at work in a run folder: locks for writers, a beacon and a heartbeat for readers.

    .work.lock        held while jobs are worked on          .requests.lock   held while a request is filed or changed
    .busy.lock        held beside the first, all along       progress.json    where the work is, as last heard

A reader tries the beacon, never the lock of the work: a `forget` that comes at that moment finds the lock free.
Locks are the system's own and end with the process that holds them, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unfed import storage
from unfed.errors import UnfedError

PATIENCE = 5.0
"""Seconds in which a lock that is held while no one works is tried again: someone is coming or going."""
LOCKS = (".work.lock", ".requests.lock", ".busy.lock")
_POLL = 0.02
_RECENT = 60.0


@contextlib.contextmanager
def held(folder: Path, name: str, wait: float = 0.0) -> Iterator[bool]:
    """Hold a lock for a while: True if it was free within so many seconds (-1: however long it takes)."""
    lock = FileLock(folder / f".{name}.lock", fallback_to_soft=False)  # never a mark that a killed process leaves
    with storage.disk_errors(folder):
        if not folder.is_dir():  # the lock would make it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            lock.acquire(timeout=wait, poll_interval=_POLL)
        except Timeout:
            pass
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                what = f"The file system of {folder} has no locks ({error.strerror})"
                raise UnfedError(f"{what}; keep runs on another disk.") from error
            raise
    try:
        yield lock.is_locked
    finally:
        lock.release()


@contextlib.contextmanager
def at_work(folder: Path) -> Iterator[bool]:
    """Hold the lock of the work, with the beacon on: False if another process is at work."""
    until = time.monotonic() + PATIENCE
    while True:
        with held(folder, "work") as free:
            if free:
                with held(folder, "busy", wait=-1):  # a reader at this moment lets go at once
                    try:
                        yield True
                    finally:
                        if (last := heard(folder)) is not None:
                            beat(folder, {**last, "ended": True})
                return
        if busy(folder) or time.monotonic() > until:
            yield False
            return
        time.sleep(_POLL)


def busy(folder: Path) -> bool:
    """Whether a process is at work here now; looking changes nothing, and needs no leave to write."""
    beacon = folder / ".busy.lock"
    if not folder.is_dir():
        raise UnfedError(f"There is no folder {folder}; check the path.")
    if not beacon.exists():
        return False
    if not os.access(beacon, os.W_OK):
        return _sounds_alive(heard(folder) or {})
    with held(folder, "busy") as free:
        return not free


def _sounds_alive(last: Mapping[str, Any]) -> bool:
    """Whether the process that was last heard of seems to be there.

    Where no lock can be tried, nothing else tells.
    """
    pid, at = last.get("pid"), last.get("at")
    if not isinstance(at, int | float) or isinstance(at, bool) or last.get("ended"):
        return False
    if sys.platform == "win32" or last.get("host") != platform.node() or not isinstance(pid, int) or pid <= 0:
        return abs(time.time() - at) < _RECENT
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    except OverflowError:
        return False
    return True


def beat(folder: Path, progress: Mapping[str, Any]) -> None:
    """Say where the work is. Only a hint, so it is neither synced nor an error when it fails."""
    file = folder / "progress.json"
    who = {"pid": os.getpid(), "host": platform.node(), "at": time.time()}
    with contextlib.suppress(OSError), storage.replacing(file) as temporary:
        temporary.write_text(json.dumps({**progress, **who}), encoding="utf-8")


def heard(folder: Path) -> dict[str, Any] | None:
    """Where the work was when it was last heard of; whatever cannot be read is as good as nothing."""
    with contextlib.suppress(OSError, ValueError, RecursionError, UnfedError):
        found = json.loads(storage.content(folder / "progress.json", storage.MOST_JSON))
        return found if isinstance(found, dict) else None
    return None
