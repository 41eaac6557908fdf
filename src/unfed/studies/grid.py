"""A grid: cells that are worked on side by side. The one runner under sweep, population and stress.

    sweep         a cell is one run                 every combination of some values
    population    a cell is one cohort of seeds     what is missing of its models
    stress        the cohorts of every case         all in one grid

All cells are made before any is worked on, so a mistake in the last is found at once. A cell does what is missing of
its folder and passes over what is there, so after an interruption the same command goes on. It holds the folder's lock
meanwhile, so several commands share one grid.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from unfed.errors import UnfedError
from unfed.runs.world import cores

Said = Callable[[str, int, int], None]
"""(kind, round, rounds): how far the work is."""


def quiet(kind: str, round: int, rounds: int) -> None:
    """Say nothing about how far it is."""


@dataclass(frozen=True)
class GridCell:
    """One piece of work: a function that is called with `said` and the arguments.

    For a process of its own it is a module's function, and its arguments can be pickled.
    """

    name: str
    work: Callable[..., None]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How the work on a cell ended; `error` is empty where all went well."""

    cell: GridCell
    seconds: float
    error: str = ""


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
        raise UnfedError(f"At least 1 process must work, not {wanted}; leave the number out for what suits.")
    return max(1, min(wanted, cells))


def run(cells: Sequence[GridCell], processes: int, said: Said = quiet) -> None:
    """Work on every cell: in this process if it is one, else each in a process of its own.

    Raises:
        UnfedError: The first error of a cell. With several processes the other cells end first.
    """
    if processes == 1:
        for cell in cells:
            cell.work(said, *cell.arguments)
        return
    failed = [one.error for one in work(cells, processes, said) if one.error]
    if failed:
        raise UnfedError(failed[0])


def work(cells: Sequence[GridCell], processes: int, said: Said = quiet) -> Iterator[Ended]:
    """Work on every cell in a process of its own, so many at once; yield each when it ends."""
    spawn = multiprocessing.get_context("spawn")  # a fork would copy PyTorch's threads half-way
    waiting = list(cells)
    busy: dict[Any, tuple[GridCell, SpawnProcess, float]] = {}  # by pipe, whose type is another one on Windows
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
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
                    told = pipe.recv()
                except EOFError:  # killed, or a fault that it printed
                    process.join()
                    told = f"it ended with {process.exitcode}"
                if isinstance(told, tuple):
                    said(*told)
                    continue
                del busy[pipe]
                process.join()
                yield Ended(cell, time.monotonic() - began, told)
    finally:
        for _, process, _ in busy.values():
            process.terminate()
        for _, process, _ in busy.values():
            process.join()


def _apart(cell: GridCell, pipe: Connection) -> None:
    """In a process of its own: work, say how far it is, end with a sentence (empty: all went well)."""
    warnings.simplefilter("ignore")  # what a config warns of was said when the cell was made

    def said(kind: str, round: int, rounds: int) -> None:
        try:
            pipe.send((kind, round, rounds))
        except OSError as error:  # the process that asked is gone; the next command goes on with this cell
            raise KeyboardInterrupt from error

    try:
        cell.work(said, *cell.arguments)
        pipe.send("")
    except UnfedError as error:
        pipe.send(str(error))
    except KeyboardInterrupt:
        pipe.close()
