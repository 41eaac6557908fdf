"""The command line as a process would call it: in this process, or in one that has imported what it needs."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from unfed.__main__ import main as begun
from unfed.cli.main import main
from unfed.studies import grid


def called(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["unfed", *words])
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


class Started:
    """A command in a process of its own, which may be killed; its imports are done when it begins (`grid.READY`)."""

    def __init__(self, folder: Path, *words: object, run: Callable[[], object] = begun) -> None:
        self.said = tempfile.NamedTemporaryFile()  # noqa: SIM115 (it goes with this object)
        given = folder, [*map(str, words)], self.said.name, run
        self.process = grid.beginning().Process(target=_command, args=given)
        self.process.start()

    def running(self) -> bool:
        return self.process.exitcode is None

    def send(self, kill: signal.Signals) -> None:
        assert self.process.pid
        os.kill(self.process.pid, kill)

    def ended(self, seconds: float = 300) -> tuple[int, str]:
        """Its exit code and what it printed."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "it still runs"
        return self.process.exitcode, self.printed()

    def printed(self) -> str:
        """What it printed so far."""
        return Path(self.said.name).read_text(encoding="utf-8")

    def until(self, condition: Callable[..., Any], seconds: float = 60) -> None:
        """Wait for something that the command does."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end and self.running(), "the process ended or took too long"
            time.sleep(0.01)


def script(path: Path) -> Callable[[], object]:
    """What `Started` runs instead of `unfed`: a Python file."""
    return partial(runpy.run_path, str(path), run_name="__main__")


def _command(folder: Path, words: list[str], said: str, run: Callable[[], object]) -> None:
    """As a shell begins it: in a folder, with a terminal's signals, its output in a file."""
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    into = os.open(said, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(into, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    sys.argv = ["unfed", *words]
    try:
        run()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
