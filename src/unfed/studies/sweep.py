"""Many runs that differ in a few keys: the grid of their combinations, and how each is shown.

    --over training.lr=0.01,0.1 --over seed=0,1,2              2 × 3 runs under one folder
    --over methods.not.layers=conv1,conv2 --over seed=0,1,2    3 runs: variants that differ in methods alone share one
        └► one run, `all`                    [methods.not-layers-conv1] and [methods.not-layers-conv2] that `use` not

Variants that share a run share its θ* and its Retrain. Every method starts from the same θ* and draws from its
request's seed, so its numbers do not depend on the methods beside it. Each variant is then shown as if it had been
alone: its own config, its own methods under their own names. A cell of the grid goes on with one run, in a process of
its own.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unfed import plugins
from unfed.config.config import Config
from unfed.errors import AtWork, UnfedError
from unfed.folder import locks as presence
from unfed.folder.folder import RunFolder
from unfed.folder.info import RunInfo
from unfed.runs.run import Run
from unfed.runs.status import info_of, status
from unfed.studies import grid
from unfed.studies.grid import GridCell, Said, Workers

METHODS = "methods."
MOST = 1000
"""Runs of one sweep; more is a slip of the keyboard."""


@dataclass(frozen=True)
class Variant:
    """One line of a sweep: its name, and what it changes in the config."""

    name: str
    """Its folder, where it has one of its own."""
    group: str
    """The same without the seed: variants that differ in nothing else are repetitions of one another."""
    changes: tuple[str, ...]
    parts: tuple[tuple[str, str], ...] = ()
    """(key, how it reads in a name) of every change."""


@dataclass(frozen=True)
class Place:
    """Where a variant's results are made: the folder, the run's config, and which methods are its own."""

    folder: str
    config: Config
    own: Config
    labels: Mapping[str, str]
    """Label in that run → label in the variant's own config."""


@dataclass(frozen=True)
class Member:
    """A variant whose run is there."""

    variant: Variant
    place: Place
    run: Run

    def shown(self) -> tuple[RunInfo, list[Any]]:
        """What the run says of itself, and its lines, as if this variant had been alone."""
        labels, info = self.place.labels, info_of(self.run)
        jobs = tuple(
            job.model_copy(update={"method": labels.get(job.method, job.method)})
            for job in info.jobs
            if job.request is None or job.method in labels
        )
        lines = [
            {**line, "method": labels.get(line["method"], line["method"])}
            for line in self.run.lines()
            if line["method"] in labels or line["method"] not in self.run.config.methods.run
        ]
        return info.model_copy(update={"config": self.place.own.to_json(), "jobs": jobs}), lines


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
    read, made = [config(one.changes) for one in found], dict[str, Run]()
    out.mkdir(parents=True, exist_ok=True)
    with presence.held(out, "begin", wait=-1):  # another command may begin the same runs
        there = places(found, read, lambda name: not RunFolder(out / name).vacant())
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


def at_once(runs: Sequence[Run], wanted: Workers | None) -> Workers:
    """How many of these runs are worked on at once."""
    alone = all(run.description.hardware.endswith(", 1 CPU threads") for run in runs)
    on_cpu = all(run.description.device == "cpu" for run in runs)
    return grid.at_once(len(runs), alone and on_cpu, wanted, not on_cpu, 1 if alone else torch.get_num_threads())


def cells(runs: Sequence[Run], allow_code: bool = False) -> list[GridCell]:
    """The runs that are not finished, as cells of a grid; each is called by its folder."""
    left = [str(run.folder.path) for run in runs if status(run).state != "finished"]
    return [GridCell(folder, _go_on, (folder, allow_code)) for folder in left]


def _go_on(said: Said, folder: str, allow_code: bool) -> bool:
    """As `unfed resume` does it; users' modules lie where the command is given.

    It says whether the run is left to another process, which is at it.
    """
    with ExitStack() as allowed:
        if allow_code:
            allowed.enter_context(plugins.current_folder_last())
            allowed.enter_context(plugins.allow_code())
        run = Run.open(Path(folder))
        try:
            run.execute()
        except AtWork:
            return True
    return False


def places(found: Sequence[Variant], configs: Sequence[Config], taken: Callable[[str], bool]) -> list[Place]:
    """The place of every variant.

    A family whose members have folders already, from before variants shared one, keeps them (`taken`).
    """
    families: dict[str, list[int]] = {}
    for n, config in enumerate(configs):
        families.setdefault(_all_but_methods(config), []).append(n)
    made: dict[int, Place] = {}
    used = {one.name for one in found}
    for family in families.values():
        parts = [text for key, text in found[family[0]].parts if not key.startswith(METHODS)]
        folder = "_".join(parts) or "all"
        if len(family) > 1 and folder not in used and not any(taken(found[n].name) for n in family):
            used.add(folder)
            made |= _one_run(folder, {n: (found[n], configs[n]) for n in family})
        else:
            for n in family:
                own = configs[n]
                made[n] = Place(found[n].name, own, own, {label: label for label in own.methods.run})
    return [made[n] for n in range(len(found))]


def _all_but_methods(config: Config) -> str:
    """What variants of one run have in common; Retrain, to which gaps are taken, included."""
    raw = config.to_json()
    methods = raw.pop("methods")
    return json.dumps([raw, methods.get("retrain"), "retrain" in methods["run"]], sort_keys=True)


def _one_run(folder: str, members: Mapping[int, tuple[Variant, Config]]) -> dict[int, Place]:
    tables: dict[str, Mapping[str, Any]] = {}
    labels: dict[int, dict[str, str]] = {n: {} for n in members}
    for n, (variant, config) in members.items():
        for label in config.methods.run:
            table = _table(config, label)
            alike = all(_table(other, label) == table for _, other in members.values() if label in other.methods.run)
            name = label if alike else _named(label, table, variant, tables)
            tables[name] = table if alike else {"use": label, **table}
            labels[n][name] = label
    first = next(iter(members.values()))[1].to_json()
    noted = {name: table for name, table in tables.items() if table}
    whole = Config.parse({**first, "methods": {"run": list(tables), **noted}})
    return {n: Place(folder, whole, config, labels[n]) for n, (_, config) in members.items()}


def _table(config: Config, label: str) -> Mapping[str, Any]:
    return dict((config.methods.model_extra or {}).get(label, {}))


def _named(label: str, table: Mapping[str, Any], variant: Variant, tables: Mapping[str, Mapping[str, Any]]) -> str:
    """A label that says what is different about it; one that is there for the same table is used again."""
    own = [text for key, text in variant.parts if key.startswith(f"{METHODS}{label}.")]
    base = re.sub(r"[^\w-]+", "-", "-".join([label, *(own or [variant.name])]))
    name, count = base, 1
    while name in tables and tables[name] != {"use": label, **table}:
        count += 1
        name = f"{base}-{count}"
    return name


def grouped(members: Sequence[Member]) -> dict[str, list[Member]]:
    """Variants that are repetitions of one another, under one name.

    Where there is only one such group, each variant stands by itself.
    """
    groups: dict[str, list[Member]] = {}
    for one in members:
        groups.setdefault(one.variant.group, []).append(one)
    return groups if len(groups) > 1 else {one.variant.name: [one] for one in members}


def merged(members: Sequence[Member]) -> tuple[RunInfo, list[Any]]:
    """Repetitions as one run: what the first says of itself, all seeds, all lines."""
    shown = [one.shown() for one in members]
    first, seeds = shown[0][0], [seed for one in members for seed in one.run.config.seed_list]
    jobs = tuple(job for info, _ in shown for job in info.jobs)
    about = {"seeds": tuple(seeds), "config": {**first.config, "seed": seeds}, "jobs": jobs}
    return first.model_copy(update=about), [line for _, lines in shown for line in lines]
