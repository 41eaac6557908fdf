"""A grid: cells that are worked on side by side. The one runner under all studies.

    sweep         a cell is one run                 every combination of some values
    population    a cell is one cohort of seeds     what is missing of its models; with cases, of every case's
    tuning        a cell is one method              its trials, then all models with what was chosen
    judging       a cell is one method              beside Retrain against Retrain

All cells are made before any is worked on, so a mistake in the last is found at once. A study makes cells only of what
is missing in its folder, so after an interruption the same command goes on. A cell holds the folder's lock meanwhile,
so several commands share one grid. Each cell that ends leaves a line in FOLDER/cells.jsonl: its name, its seconds, and
the error, if there was one.
"""

from __future__ import annotations

import json
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import UnfedError
from unfed.runs.world import cores

LINES = "cells.jsonl"
Said = Callable[[str, int, int], None]
"""(kind, round, rounds): how far the work is."""


def quiet(kind: str, round: int, rounds: int) -> None:
    """Say nothing about how far it is."""


@dataclass(frozen=True)
class GridCell:
    """One piece of work: a function that is called with `said` and the arguments.

    For a process of its own it is a module's function, and its arguments and answer can be pickled.
    """

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How the work on a cell ended; `error` is empty where all went well."""

    cell: GridCell
    seconds: float
    error: str = ""
    found: Any = None
    """What the cell's function answered."""


def at_once(cells: int, alone: bool, wanted: int | None) -> int:
    """How many processes work at once.

    Args:
        cells: How many cells there are.
        alone: Whether each computes on one thread of the CPU: then every core takes one.
        wanted: What the user asked for.
    """
    if wanted is None:
        return max(1, min(cores(), cells)) if alone else 1
    if wanted < 1:
        raise UnfedError(f"At least 1 process must work, not {wanted}; leave --jobs out for what suits.")
    return max(1, min(wanted, cells))


def run(cells: Sequence[GridCell], jobs: int, folder: Path, said: Said = quiet) -> dict[str, Any]:
    """Work on every cell: in this process if it is one, else each in a process of its own.

    Returns:
        What each cell found, by its name.

    Raises:
        UnfedError: The first error of a cell. With several processes the other cells end first.
    """
    ended = list(work(cells, jobs, folder, said) if jobs > 1 else _here(cells, folder, said))
    failed = [one.error for one in ended if one.error]
    if failed:
        raise UnfedError(failed[0])
    return {one.cell.name: one.found for one in ended}


def _here(cells: Sequence[GridCell], folder: Path, said: Said) -> Iterator[Ended]:
    for cell in cells:
        began = time.monotonic()
        found = cell.work(said, *cell.arguments)
        yield _noted(Ended(cell, time.monotonic() - began, found=found), folder)


def _noted(one: Ended, folder: Path) -> Ended:
    """Write a cell's line."""
    line = {"cell": one.cell.name, "seconds": round(one.seconds, 3), "error": one.error}
    storage.append_line(folder / LINES, json.dumps(line, ensure_ascii=False))
    return one


def work(cells: Sequence[GridCell], jobs: int, folder: Path, said: Said = quiet) -> Iterator[Ended]:
    """Work on every cell in a process of its own, so many at once; yield each when it ends."""
    spawn = multiprocessing.get_context("spawn")  # a fork would copy PyTorch's threads half-way
    waiting = list(cells)
    busy: dict[Any, tuple[GridCell, SpawnProcess, float]] = {}  # by pipe, whose type is another one on Windows
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                cell = waiting.pop(0)
                here, there = spawn.Pipe(duplex=False)
                process = spawn.Process(target=_apart, args=(cell, there), daemon=True)
                process.start()
                there.close()
                busy[here] = cell, process, time.monotonic()
            pipe: Any
            for pipe in wait([*busy]):
                cell, process, began = busy[pipe]
                try:
                    heard = pipe.recv()
                except EOFError:  # killed, or a fault that it printed
                    process.join()
                    heard = [f"it ended with {process.exitcode}", None]
                if isinstance(heard, tuple):
                    said(*heard)
                    continue
                del busy[pipe]
                process.join()
                yield _noted(Ended(cell, time.monotonic() - began, *heard), folder)
    finally:
        for _, process, _ in busy.values():
            process.terminate()
        for _, process, _ in busy.values():
            process.join()


def _apart(cell: GridCell, pipe: Connection) -> None:
    """In a process of its own: work, say how far it is, end with [error, answer].

    An empty error means that all went well.
    """
    warnings.simplefilter("ignore")  # what a config warns of was said when the cell was made

    def said(kind: str, round: int, rounds: int) -> None:
        try:
            pipe.send((kind, round, rounds))
        except OSError as error:  # the process that asked is gone; the next command goes on with this cell
            raise KeyboardInterrupt from error

    try:
        pipe.send(["", cell.work(said, *cell.arguments)])
    except UnfedError as error:
        pipe.send([str(error), None])
    except KeyboardInterrupt:
        pipe.close()
