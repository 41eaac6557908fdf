"""A block of the paper on a machine that is lent once: θ*, then one method after another, each kept when it ends.

`python tools/reproduction.py block` is the command. Everything happens in one process, because a compiled step is a
minute of a large model's time, and what is finished after each method lies in a small file, because a machine may go
at any moment.
"""

from __future__ import annotations

import time
from pathlib import Path

from unfed.cli.options import watched_until
from unfed.errors import UnfedError
from unfed.paper import record
from unfed.runs.config import Config
from unfed.runs.description import now
from unfed.runs.progress import OutOfTime, QuietWatch
from unfed.runs.run import Run
from unfed.runs.same_training import take_training


def opened(config: Config, out: Path, source: Path | None) -> Run:
    """The run of a config, new or begun before; θ* is taken over from another folder if that has trained the same."""
    run = Run.open(out) if (out / "run.json").exists() else Run.create(config, out)
    if run.config != config:
        raise UnfedError(f"{out} holds a run of another config; give --out a new folder.")
    if source is not None and (source / "run.json").exists():
        taken = take_training(run, Run.open(source))
        print(f"{now()} θ* of {source}: {'taken over' if taken else 'not taken over'}", flush=True)
    return run


def block(run: Run, results: Path, commit: str, moment: float | None) -> int:
    """Run a comparison one method after another in one process, and keep what is finished after each.

    A method that fails is said, and the others go on: what a machine is lent for once must not be lost with it. Exits
    with 1 where one failed, with 130 where the time is spent.
    """
    failed = 0
    for label in run.labels:
        run.only, started, outcome = frozenset({label}), time.monotonic(), "done"
        try:
            run.execute(watched_until(QuietWatch(), moment))
        except OutOfTime:
            outcome, failed = "the budget is spent; the same command goes on", 130
        except Exception as error:
            if not all(run.trained(seed) for seed in run.config.seed_list):
                raise  # without θ* no other method can begin either
            outcome, failed = f"failed: {type(error).__name__}: {error}", 1
        run.only = None
        print(f"{now()} {label}: {outcome}, {time.monotonic() - started:.0f} s", flush=True)
        if any(run.folder.finished(job) for job, _ in run.jobs()):
            print(record.write(record.kept(run, commit), results), flush=True)
        if failed == 130:
            break
    return failed
