"""A block of the paper on a machine that is lent once: θ*, then one method after another, each kept when it ends.

`python tools/reproduction.py block` is the command. Everything happens in one process, because a compiled step is a
minute of a large model's time, and what is finished after each method lies in a small file, because a machine may go
at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import paper_record as record

from unfed.cli.options import watched_until
from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.paper.build import refuse_revised
from unfed.requests.entry import now
from unfed.runs.progress import OutOfTime, Watch
from unfed.runs.run import Run
from unfed.studies.same_training import take_training


def opened(config: Config, out: Path, source: Path | None) -> Run:
    """The run of a config, new or begun before; θ* is taken over from another folder if that has trained the same."""
    run = Run.open(out) if (out / "run.json").exists() else Run.create(config, out)
    if run.config != config:
        raise UnfedError(f"{out} holds a run of another config; give --out a new folder.")
    if source is not None and (source / "run.json").exists():
        taken = take_training(run, Run.open(source))
        print(f"{now()} θ* of {source}: {'taken over' if taken else 'not taken over'}", flush=True)
    return run


class Ended(NamedTuple):
    """How the work on a run ended: in words, and as an exit code."""

    said: str
    code: int


def outcome_of(run: Run, watch: Watch) -> Ended:
    """Do what is left of a run, or as much as the watch has time for; what fails is an outcome, unless θ* fails."""
    try:
        run.execute(watch)
    except OutOfTime:
        return Ended("the budget is spent; the same command goes on", 130)
    except Exception as error:
        if not all(run.trained(seed) for seed in run.config.seed_list):
            raise  # without θ* no other method can begin either
        return Ended(f"failed: {type(error).__name__}: {error}", 1)
    return Ended("done", 0)


def kept_so_far(run: Run, results: Path, commit: str, beside: Sequence[str] = ()) -> None:
    """Keep the jobs of a run that are finished, if there are any, and with whom it shared its stack."""
    if any(run.folder.finished(job) for job, _ in run.jobs()):
        print(record.write(record.kept(run, commit, beside), results), flush=True)


def block(run: Run, results: Path, commit: str, moment: float | None, labels: Sequence[str] | None = None) -> int:
    """Run a comparison, or some of its methods, one after another in one process; keep what is finished after each.

    A method that fails is said, and the others go on: what a machine is lent for once must not be lost with it. Exits
    with 1 where one failed, with 130 where the time is spent.
    """
    failed, labels = 0, run.labels if labels is None else labels
    refuse_revised(run, labels)
    for label in labels:
        run.only, started = frozenset({label}), time.monotonic()
        ended = outcome_of(run, watched_until(Watch(), moment))
        run.only = None
        print(f"{now()} {label}: {ended.said}, {time.monotonic() - started:.0f} s", flush=True)
        kept_so_far(run, results, commit)
        failed = ended.code or failed
        if failed == 130:
            break
    return failed
