"""What both campaigns need: a federation small enough to be trained a thousand times, and commands given in process."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parents[1]))  # the tests' in-process grid

import torch
import typer.main

import unfed
from unfed.cli.main import main
from unfed.config.config import Config
from unfed.runs.run import Run

# Commands are given by the thousand, and putting them together takes longer than most of them.
typer.main.get_command = functools.cache(typer.main.get_command)

PACKAGE = str(Path(unfed.__file__).parent)

TINY: dict[str, Any] = {
    "name": "tiny",
    "data": {"name": "digits"},
    "partition": {"clients": 3},
    "model": {"name": "cnn-tiny"},
    "training": {"rounds": 2, "batch": 512, "lr": 1e-3},
    "unlearning": {"rounds": 2},
    "request": [],
    "methods": {"run": ["not"]},
    "evaluation": {"attack": False, "samples": False},
    "checkpoint": {"rounds": 1},
    "device": "cpu",
}

TOML = """
name = "tiny"
request = []
device = "cpu"
[data]
name = "digits"
[partition]
clients = 3
scheme = "iid"
[model]
name = "cnn-tiny"
[training]
rounds = 2
batch = 512
lr = 0.02
record = []
[unlearning]
rounds = 2
[methods]
run = ["not"]
[methods.not]
layers = ["first"]
[evaluation]
attack = false
samples = false
[checkpoint]
rounds = 1
"""

FINE = {0: "done", 2: "refused in one sentence", 3: "a quorum or a gate said no"}
"""How a command may end, whatever it was given; 1 is an error that nobody foresaw."""


@dataclass
class Answer:
    """How a command ended: its exit code, or what it raised; and what it said."""

    code: int | None
    out: str
    err: str
    raised: BaseException | None = None

    @property
    def fault(self) -> str | None:
        """What is wrong with how it ended, in one line that is the same for the same fault; None if nothing is."""
        if self.raised is not None:
            return place(self.raised)
        if self.code not in FINE:
            return f"exit code {self.code}: {(self.err.strip().splitlines() or [''])[-1][:160]}"
        if "Traceback (most recent call last)" in self.out + self.err:
            return f"a traceback in the output: {self.err.strip().splitlines()[-1][:160]}"
        return None


def place(error: BaseException) -> str:
    """Type and message of an error, and the last line of the package that it went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
    where = f"{frames[-1].filename[len(PACKAGE) + 1 :]}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} at {where}: {(str(error).splitlines() or [''])[0][:120]}"


def give(*words: str) -> Answer:
    """Give a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    handler, argv = signal.getsignal(signal.SIGTERM), sys.argv
    sys.argv = ["unfed", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
                code: int | None = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        return Answer(code, out.getvalue(), err.getvalue())
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return Answer(None, out.getvalue(), err.getvalue(), error)
    finally:
        sys.argv = argv
        signal.signal(signal.SIGTERM, handler)


def made(folder: Path, **changes: Any) -> Path:
    """A trained run."""
    torch.set_num_threads(1)
    Run.create(Config.parse({**TINY, **changes}), folder).execute()
    return folder


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in this folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
