"""A grid: cells that are worked on side by side. The one runner under all studies.

    sweep         a cell is one run                 every combination of some values
    population    a cell is one cohort of seeds     what is missing of its models; with cases, of every case's
    tuning        a cell is one method              its trials, then all models with what was chosen
    judging       a cell is one method              beside Retrain against Retrain

All cells are made before any is worked on, so a mistake in the last is found at once. A study makes cells only of what
is missing in its folder, so after an interruption the same command goes on. A cell holds the folder's lock meanwhile,
so several commands share one grid. Each cell that ends leaves a line in FOLDER/cells.jsonl: its name, its seconds, and
the error, if there was one.

    one           this process                      one cell after another
    several       processes of this machine         each cell in its own
    Ray           processes of a Ray cluster        each with a GPU of its own, or with cores

Where a cell has its own process and that is killed, another takes its place.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import platform
import socket
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, cast

import torch

from unfed import storage
from unfed.errors import UnfedError, extra
from unfed.runs.world import cores

LINES = "cells.jsonl"
TRIES = 3
"""So many workers may be killed at one cell."""
READY = ["unfed.runs.run"]
"""What the processes of cells need, seconds of imports: it is imported once, in the process that begins them."""
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


@dataclass(frozen=True)
class Ray:
    """A Ray cluster whose workers take cells; `on_ray` connects to one."""

    gpus: int
    """How many GPUs it has."""
    most: int | None = None
    """Cells at once; None is as many as it has room for."""
    gpu: bool = False
    """Whether a cell computes on a GPU: then it gets one for itself."""
    threads: int = 1
    """CPU threads that a cell computes on."""

    @property
    def each(self) -> dict[str, int]:
        """What one cell takes of the cluster."""
        return {"CPU": 1, "GPU": 1} if self.gpu else {"CPU": self.threads, "GPU": 0}


Workers = int | Ray
"""So many processes of this machine, or a cluster."""


@contextmanager
def on_ray(most: int | None = None) -> Iterator[Ray]:
    """Connect to the Ray cluster that RAY_ADDRESS names; without it, start one on this machine.

    Args:
        most: How many cells are worked on at once; None is as many as the cluster has room for.

    Raises:
        UnfedError: Ray is not installed, or no cluster answers.
    """
    at_once(1, False, most)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to Ray's makers
    ray = _ray()
    address, ours = os.environ.get("RAY_ADDRESS") or "local", not ray.is_initialized()
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if ours and host:
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray itself would try for minutes
        if ours:
            with warnings.catch_warnings(action="ignore"):
                ray.init(address, logging_level=logging.CRITICAL, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise UnfedError(
            f"No Ray cluster answers at {address} (RAY_ADDRESS); start one with `ray start`, or unset RAY_ADDRESS to"
            " use this machine."
        ) from error
    try:
        yield Ray(int(ray.cluster_resources().get("GPU", 0)), most)
    finally:
        if ours:
            ray.shutdown()  # ends what its workers are at


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UnfedError(f"--workers ray needs Ray; install it with {extra('simulation')}.") from error
    return ray


def at_once(cells: int, alone: bool, wanted: Workers | None, gpu: bool = False, threads: int = 1) -> Workers:
    """How many processes work at once; a cluster sees to that itself.

    Args:
        cells: How many cells there are.
        alone: Whether each computes on one thread of the CPU: then every core takes one.
        wanted: What the user asked for.
        gpu: Whether a cell computes on a GPU, which a cluster must know.
        threads: How many CPU threads a cell computes on.
    """
    if isinstance(wanted, Ray):
        return replace(wanted, gpu=gpu, threads=threads)
    if wanted is None:
        return max(1, min(cores(), cells)) if alone else 1
    if wanted < 1:
        raise UnfedError(f"At least 1 process must work, not {wanted}; leave --jobs out for what suits.")
    return max(1, min(wanted, cells))


def run(cells: Sequence[GridCell], jobs: Workers, folder: Path, said: Said = quiet) -> dict[str, Any]:
    """Work on every cell: in this process if it is one, else each in a process of its own.

    Returns:
        What each cell found, by its name.

    Raises:
        UnfedError: The first error of a cell. With several processes the other cells end first.
    """
    ended = list(_here(cells, folder, said) if jobs == 1 else work(cells, jobs, folder, said))
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


def work(cells: Sequence[GridCell], jobs: Workers, folder: Path, said: Said = quiet) -> Iterator[Ended]:
    """Work on every cell in a process of its own, so many at once; yield each when it ends.

    A process that is killed is replaced, up to `TRIES` in all.
    """
    if isinstance(jobs, Ray):
        yield from _on_cluster(cells, jobs, folder, said)
        return
    processes = beginning()
    waiting, killed = list(cells), Counter[str]()
    busy: dict[Any, tuple[GridCell, SpawnProcess, float]] = {}  # by pipe, of two types on Windows
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                cell = waiting.pop(0)
                here, there = processes.Pipe(duplex=False)
                process = processes.Process(target=_apart, args=(cell, there), daemon=True)
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
                    heard = [f"it ended with {process.exitcode}", None] if (process.exitcode or 0) >= 0 else None
                if isinstance(heard, tuple):
                    said(*heard)
                    continue
                del busy[pipe]
                process.join()
                killed[cell.name] += heard is None
                if heard is None and killed[cell.name] < TRIES:
                    waiting.append(cell)
                else:
                    yield _noted(Ended(cell, time.monotonic() - began, *(heard or _lost(cell))), folder)
    finally:
        for _, process, _ in busy.values():
            process.terminate()
        for _, process, _ in busy.values():
            process.join()


def beginning() -> SpawnContext:
    """How processes of this machine begin: as copies of one that has imported `READY`.

    That one computes nothing; a copy of this process would have PyTorch's threads half-way. Elsewhere than on Linux
    each imports for itself.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    multiprocessing.set_forkserver_preload(READY)
    return cast(SpawnContext, multiprocessing.get_context("forkserver"))  # of a type that Windows does not have


def _lost(cell: GridCell) -> list[Any]:
    """How a cell ends that no worker survived."""
    return [f"{TRIES} workers were killed at {cell.name}; give it more memory, then give the same command again.", None]


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


# --- on a Ray cluster -------------------------------------------------------------------------------------------------


def _on_cluster(cells: Sequence[GridCell], cluster: Ray, folder: Path, said: Said) -> Iterator[Ended]:
    """As `work` does it. Ray chooses the machine; what ends without an answer is asked for again here."""
    ray = _ray()
    from ray.exceptions import RayError, RayTaskError
    from ray.util.queue import Queue

    each, waiting, killed = cluster.each, list(cells), Counter[str]()
    if cells and not any(all(node["Resources"].get(k, 0) >= v for k, v in each.items()) for node in ray.nodes()):
        raise UnfedError(
            f"No machine of the Ray cluster has {each['GPU']} GPU and {each['CPU']} cores, as each worker needs; add"
            " one, or set engine.threads or --device."
        )
    progress = Queue(actor_options={"num_cpus": 0})
    # A process for every cell: what it takes of a GPU goes with it.
    remote = ray.remote(num_cpus=each["CPU"], num_gpus=each["GPU"], max_calls=1, max_retries=0)(_on_worker)
    shared = progress, os.getcwd(), str(folder), cluster.threads
    busy: dict[Any, tuple[GridCell, float]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < (cluster.most or len(cells)):
                cell = waiting.pop(0)
                busy[remote.remote(cell, *shared)] = cell, time.monotonic()
            done, _ = ray.wait([*busy], timeout=1.0)
            for line in progress.get_nowait_batch(progress.qsize()):
                said(*line)
            for one in done:
                cell, began = busy.pop(one)
                try:
                    ended = ray.get(one)
                except RayTaskError as error:
                    print(error, file=sys.stderr)
                    ended = [f"it ended with {error.cause!r}", None]
                except RayError:  # its process or its machine is gone
                    ended = None
                killed[cell.name] += ended is None
                if ended is None and killed[cell.name] < TRIES:
                    waiting.append(cell)
                else:
                    yield _noted(Ended(cell, time.monotonic() - began, *(ended or _lost(cell))), folder)
    finally:
        for one in busy:
            ray.cancel(one, force=True)


def _on_worker(cell: GridCell, progress: Any, here: str, folder: str, threads: int) -> list[Any]:
    """In a worker's process: work, say how far it is, end with [error, answer].

    It works in the folder where the command was given, with as many threads as one process would use.
    """
    warnings.simplefilter("ignore")
    if not Path(here, folder).is_dir():
        return [f"The worker on {platform.node()} has no folder {folder}; use a disk that all machines share.", None]
    os.chdir(here)
    torch.set_num_threads(threads)
    try:
        return ["", cell.work(lambda *line: progress.put(line), *cell.arguments)]
    except UnfedError as error:
        return [str(error), None]
