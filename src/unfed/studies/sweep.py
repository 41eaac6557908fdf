"""Many runs that differ in a few keys: all are made first, then worked on.

    --over training.lr=0.01,0.1 --over seed=0,1,2              2 × 3 runs under one folder
    --over methods.not.layers=conv1,conv2 --over seed=0,1,2    3 runs: variants of methods share one (`families`)

Every config is read and every folder made before anything is trained, so a mistake in the last is found at once. The
work on one is `unfed resume` in a process of its own: killed at any moment, the same sweep goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.folder.folder import RunFolder
from unfed.runs.run import Run
from unfed.runs.status import status
from unfed.runs.world import cores
from unfed.studies.families import Member, Variant, places

MOST = 1000
"""Runs of one sweep; more is a slip of the keyboard."""


@dataclass(frozen=True)
class Axis:
    """A key and the values that it takes in turn, as they were written."""

    key: str
    values: tuple[str, ...]

    @staticmethod
    def of(text: str) -> Axis:
        """`key=a,b,c`; commas inside brackets or quotes belong to a value."""
        key, separator, values = text.partition("=")
        found = tuple(part.strip() for part in _parts(values))
        if not separator or not key.strip() or not all(found):
            raise UnfedError(f"--over takes key.path=value,value, not {text!r}; for example seed=0,1,2.")
        if len(set(found)) < len(found):
            raise UnfedError(f"--over {key} names a value twice; every value is a run of its own.")
        return Axis(key.strip(), found)


def _parts(text: str) -> Iterator[str]:
    """A text cut at its commas, but for those inside brackets or quotes."""
    depth, quote, begin = 0, "", 0
    for place, mark in enumerate(text):
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "\"'":
            quote = mark
        elif mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        elif mark == "," and depth == 0:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


def variants(axes: Sequence[Axis]) -> list[Variant]:
    """Every combination, the last key changing fastest."""
    if not axes:
        raise UnfedError("A sweep needs at least one --over, for example --over seed=0,1,2.")
    keys = [axis.key for axis in axes]
    if len(set(keys)) < len(keys):
        raise UnfedError("Two --over name the same key; list its values in one.")
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MOST:
        raise UnfedError(f"This sweep would be {count:,} runs, and {MOST:,} are the most; give fewer values.")
    short = _short_names(keys)
    found = []
    for values in itertools.product(*(axis.values for axis in axes)):
        named = [(key, f"{short[key]}-{_plain(value)}") for key, value in zip(keys, values, strict=True)]
        changes = tuple(f"{key}={value}" for key, value in zip(keys, values, strict=True))
        group = "_".join(text for key, text in named if key != "seed") or "seeds"
        found.append(Variant("_".join(text for _, text in named), group, changes, tuple(named)))
    return _told_apart(found)


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """Each key by its last part, or whole where two end alike."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: end if last.count(end) == 1 else key.replace(".", "-") for key, end in zip(keys, last, strict=True)}


def _plain(value: str) -> str:
    return re.sub(r"[^\w.]+", "-", value).strip("-.")[:40] or "empty"


def _told_apart(found: Sequence[Variant]) -> list[Variant]:
    """Two values may look alike once they are names of folders: then they are numbered."""
    names = [one.name for one in found]
    if len(set(names)) == len(names):
        return list(found)
    return [replace(one, name=f"{n:03d}_{one.name}", group=f"{n:03d}_{one.group}") for n, one in enumerate(found, 1)]


def make(config: Callable[[Sequence[str]], Config], found: Sequence[Variant], out: Path) -> list[Member]:
    """The run of every variant; one that is there with the same config is gone on with."""
    read = [config(one.changes) for one in found]
    there = places(found, read, lambda name: not RunFolder(out / name).vacant())
    made: dict[str, Run] = {}
    for place in there:
        if place.folder not in made:
            made[place.folder] = _run(place.config, out / place.folder)
    return [Member(one, place, made[place.folder]) for one, place in zip(found, there, strict=True)]


def _run(wanted: Config, folder: Path) -> Run:
    if RunFolder(folder).vacant():
        return Run.create(wanted, folder)
    run = Run.open(folder)
    if run.config != wanted:
        raise UnfedError(f"{folder} holds another run than this sweep would make; give another --out.")
    return run


def runs_of(members: Sequence[Member]) -> list[Run]:
    """The runs behind some variants, each once."""
    return list({one.run.folder.path: one.run for one in members}.values())


def at_once(runs: Sequence[Run], wanted: int | None) -> int:
    """How many processes work at once.

    As many as there are cores where each computes on one thread of the CPU, else one.
    """
    if wanted is not None:
        if wanted < 1:
            raise UnfedError(f"--jobs takes a number of processes, at least 1, not {wanted}.")
        return min(wanted, len(runs))
    alone = all(str(run.description.get("hardware", "")).endswith(", 1 CPU threads") for run in runs)
    on_cpu = all(run.description.get("device") == "cpu" for run in runs)
    return min(cores(), len(runs)) if alone and on_cpu else 1


@dataclass(frozen=True)
class Ended:
    """How a run of the sweep ended."""

    run: Run
    seconds: float
    error: str = ""


def work(runs: Sequence[Run], jobs: int, arguments: Sequence[str] = ()) -> Iterator[Ended]:
    """Go on with every run that is not finished, so many at once; each is told of when it ends."""
    waiting = [run for run in runs if status(run)["state"] != "finished"]
    busy: dict[subprocess.Popen[str], tuple[Run, float]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                run = waiting.pop(0)
                command = [sys.executable, "-m", "unfed", "resume", str(run.folder.path), "--quiet", *arguments]
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                busy[process] = (run, time.monotonic())
            yield from _ended(busy)
    finally:
        for process in busy:
            process.terminate()
        for process in busy:
            process.communicate()


def _ended(busy: dict[subprocess.Popen[str], tuple[Run, float]]) -> Iterable[Ended]:
    """Those that have ended by now; the first is waited for a moment."""
    first = next(iter(busy))
    with contextlib.suppress(subprocess.TimeoutExpired):
        first.wait(timeout=0.1)
    over = [process for process in busy if process.poll() is not None]
    for process in over:
        run, began = busy.pop(process)
        _, said = process.communicate()
        text = " ".join(said.split()).partition("error: ")[2] or said.strip()
        error = "" if process.returncode == 0 else text or f"it ended with {process.returncode}"
        yield Ended(run, time.monotonic() - began, error)


def grouped(members: Sequence[Member]) -> dict[str, list[Member]]:
    """Variants that are repetitions of one another, under one name.

    Where there is only one such group, each variant stands by itself.
    """
    groups: dict[str, list[Member]] = {}
    for one in members:
        groups.setdefault(one.variant.group, []).append(one)
    return groups if len(groups) > 1 else {one.variant.name: [one] for one in members}


def merged(members: Sequence[Member]) -> tuple[dict[str, Any], list[Any]]:
    """Repetitions as one run: what the first says of itself, all seeds, all lines."""
    shown = [one.shown() for one in members]
    infos = [info for info, _ in shown]
    seeds = [seed for one in members for seed in one.run.config.seed_list]
    config: Mapping[str, Any] = infos[0].get("config") or {}
    jobs = [job for info in infos for job in info.get("jobs") or []]
    about = {**infos[0], "seeds": seeds, "config": {**config, "seed": seeds}, "jobs": jobs}
    return about, [line for _, lines in shown for line in lines]
