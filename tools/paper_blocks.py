"""The paper on real data, cut into blocks that fit a machine which is lent for half an hour.

    tools/blocks.toml       which there are: settings, methods in the order in which they are wanted, analyses
    OUT/BLOCK               its run folder; a folder for each method where they run side by side
    RESULTS                 every method and every analysis as soon as it ends
    RESULTS/records         what the scripts about differences and readings found; benchmarks/records by default

`python tools/reproduction.py blocks` is the command. What RESULTS have is not run again: on another machine θ* is
trained from its seed once more, and the methods that are left follow. Given again in the same OUT, a block goes on.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import paper_analyses as analyses
import paper_record as record
from paper_block import block, kept_so_far, opened
from paper_together import gathered, together

from unfed.cli.options import chosen as chosen_methods
from unfed.config.config import Config
from unfed.data.fetch.catalogue import CATALOGUE, find
from unfed.errors import UnfedError, listed, nearest
from unfed.paper.items import Item
from unfed.paper.items import chosen as chosen_items
from unfed.paper.views import VIEWS
from unfed.paper.views.models import LONG
from unfed.runs.description import now, rounds_of
from unfed.runs.run import Run
from unfed.runs.world import World
from unfed.studies.same_training import take_training

ROOT = Path(__file__).resolve().parent.parent
FILE = Path(__file__).with_name("blocks.toml")
RECORDS = ROOT / "benchmarks" / "records"


class Place(NamedTuple):
    """Where a block works, where it keeps what ends, and until when."""

    out: Path
    results: Path
    records: Path
    commit: str
    moment: float | None

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return 1e6 if self.moment is None else max(0.0, self.moment - time.monotonic())


@dataclass(frozen=True)
class Block:
    """One run of the paper, with what is measured on its models."""

    name: str
    items: tuple[str, ...]
    """What of the paper it serves."""
    preset: str
    sets: tuple[str, ...]
    methods: tuple[str, ...]
    round: float
    """Expected seconds of a round, evaluation included."""
    more: float = 0.0
    """Expected seconds for compiling and analysing."""
    together: bool = False
    analyse: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @cached_property
    def config(self) -> Config:
        return self._config(self.methods)

    def _config(self, methods: Sequence[str]) -> Config:
        return Config.preset(self.preset, [*self.sets, chosen_methods(",".join(methods))])

    @property
    def pieces(self) -> list[str]:
        """Its methods, and what is measured on their models."""
        return [*self.methods, *self.analyse]

    @property
    def partial(self) -> str:
        """How many of the paper's rounds it has, where it has fewer."""
        ours, paper = ((c.training.rounds, c.unlearning.rounds) for c in (self.config, Config.preset(self.preset)))
        return "" if ours == paper else f"partial: {ours[0]:,} + {ours[1]:,} of {paper[0]:,} + {paper[1]:,} rounds"

    def check(self) -> None:
        """Raise what would only be missed after the machine was lent: a wrong setting, missing data."""
        _data_there(self.config.data.name, self.config.data.root)

    def left(self, results: Path, records: Path) -> list[str]:
        """Methods and analyses that the results do not have, or that were revised since."""
        return [*self._methods_left(results), *self._analyses_left(results)]

    def seconds(self, left: Sequence[str]) -> float:
        """Expected, for some methods and θ*."""
        rounds = [rounds_of(self.config, label, self.config.method(label)) for label in self.methods if label in left]
        return (self.config.training.rounds + sum(rounds)) * self.round + self.more

    def run(self, at: Place) -> int:
        """Methods, then analyses; exits with 1 where one failed, with 130 where the time is spent."""
        folder, wanted = at.out / self.name, self._methods_left(at.results)
        asked = chosen_items(left) if (left := self._analyses_left(at.results)) else []
        needed = {label for item in asked for label in VIEWS[item.view].needs}
        needed |= {LONG} if "table-7" in left else set()
        labels = [label for label in self.methods if label in {*wanted, *needed}]

        worlds: list[World] = []

        def prepare(run: Run) -> None:
            worlds.append(run.world(self.config.seed_list[0]))  # analyses go on in it: what is compiled stays so
            _take_training(run, at.out)
            for item in asked:  # before minutes are spent: what a fresh model does not give, a trained one does not
                analyses.rehearsed(item, run)

        if self.together:
            own = {label: self._config([label]) for label in labels}
            keep: Callable[..., None] = partial(kept_so_far, results=at.results, commit=at.commit)
            code = together(self.config, own, (), folder, keep, at.moment, prepare)
        else:
            run = opened(self.config, folder, None)
            prepare(run)
            code = block(run, at.results, at.commit, at.moment, labels)
        if code == 130 or not asked:
            return code
        analysed = gathered(folder, labels) if self.together else Run.open(folder)
        analysed.use(worlds[0])
        return max(code, *(self._analyse(item, analysed, at) for item in asked))

    def _analyse(self, item: Item, run: Run, at: Place) -> int:
        """What an analysis finds is kept as soon as it is found; one that fails does not keep the others from it."""
        if not at.left:
            return 130
        started, code, said = time.monotonic(), 0, "done"
        try:
            kept = analyses.measured(item, run, at.commit, self.analyse[item.id])
            print(analyses.write(kept, at.results), flush=True)
        except Exception as error:
            said, code = f"failed: {type(error).__name__}: {error}", 1
        print(f"{now()} {item.id}: {said}, {time.monotonic() - started:.0f} s", flush=True)
        return code

    def _methods_left(self, results: Path) -> list[str]:
        there = {
            job
            for kept in record.all_in(results)
            if self._same(kept.preset, kept.config)
            for job in record.current(kept).jobs
        }
        wanted = [f"{seed}/{request}" for seed in self.config.seed_list for request in self.config.request_ids()]
        return [label for label in self.methods if any(f"{where}/{label}" not in there for where in wanted)]

    def _analyses_left(self, results: Path) -> list[str]:
        there = {
            kept.item
            for kept in analyses.all_in(results)
            if self._same(kept.preset, kept.config) and not analyses.outdated(kept)
            if kept.made.get("seed") == self.config.seed_list[0]
        }
        return [item for item in self.analyse if item not in there]

    def _same(self, preset: str, config: Mapping[str, Any]) -> bool:
        return preset == self.config.name and not record.differences(config, self.config.to_json())


@dataclass(frozen=True)
class Script:
    """A short run of its own, whose record is kept beside the others and never among the results."""

    name: str
    about: str
    data: str
    commands: tuple[str, ...]
    record: str
    """The record's name, `*` for the day."""
    expected: float
    lines: int = 1
    """How many a whole record has at least: one that is written line by line may have been cut off."""
    items: tuple[str, ...] = ()

    @property
    def pieces(self) -> list[str]:
        """What it makes."""
        return ["its record"]

    def check(self) -> None:
        """Raise what would only be missed after the machine was lent."""
        _data_there(self.data, None)

    def left(self, results: Path, records: Path) -> list[str]:
        """Its record, or what a record lacks that was cut off."""
        files = [path for place in (records, RECORDS) for path in place.glob(self.record)]
        there = {line for path in files for line in path.read_text(encoding="utf-8").splitlines()}
        if not there:
            return self.pieces
        gone = self.lines - len(there)
        return [f"{gone} of {self.lines} lines of its record"] if gone > 0 else []

    def seconds(self, left: Sequence[str]) -> float:
        """Expected."""
        return self.expected

    def run(self, at: Place) -> int:
        """One command after another; what the last one prints is the record, unless that is written line by line."""
        at.records.mkdir(parents=True, exist_ok=True)
        at.out.mkdir(parents=True, exist_ok=True)
        code = 0
        for number, command in enumerate(self.commands, 1):
            fields = {"out": at.out / self.name, "records": at.records, "left": int(at.left)}
            words = [sys.executable, *(word.format(**fields) for word in shlex.split(command))]
            paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = {**os.environ, "COMMIT": at.commit, "PYTHONPATH": os.pathsep.join(paths)}
            environment |= {} if at.records == RECORDS else {"OUT": str(at.records)}
            environment.pop("PYTHONSAFEPATH", None)  # the scripts take others from their own folder
            printed = number == len(self.commands) and self.record.endswith(".md")
            done = subprocess.run(
                words, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE if printed else None
            )
            if printed and not done.returncode:
                path = at.records / self.record.replace("*", f"{datetime.now(UTC):%Y-%m-%d}")
                path.write_text(done.stdout, encoding="utf-8")
                print(f"{done.stdout}{path}", flush=True)
            if code := done.returncode:
                break
        return code


Piece = Block | Script


def blocks(sets: Sequence[str] = ()) -> dict[str, Piece]:
    """All of them, by name; `sets` come after a block's own."""
    raw = tomllib.loads(FILE.read_text(encoding="utf-8"))
    found: list[Piece] = []
    for told in raw.get("block", ()):
        seeds = told.pop("seeds", [None])
        found += [_block(told, raw["settings"], seed, sets) for seed in seeds]
    for told in raw.get("script", ()):
        told["expected"] = told.pop("seconds")
        found.append(Script(**{**told, "commands": tuple(told["commands"])}))
    return {one.name: one for one in found}


def _block(told: Mapping[str, Any], settings: Mapping[str, list[str]], seed: int | None, more: Sequence[str]) -> Block:
    values = dict(told)
    own = [*settings.get(values.pop("base", ""), ()), *values.pop("set", ())]
    values["name"] += "" if seed is None else f"-seed-{seed}"
    own += [] if seed is None else [f"seed={seed}"]
    for name in ("items", "methods"):
        values[name] = tuple(values[name])
    return Block(**values, sets=(*own, *more))


def _data_there(name: str, root: Path | None) -> None:
    """Raise how to get a data set that lies in files and is not there."""
    if CATALOGUE[name].places:
        find(name, root)


def _take_training(run: Run, out: Path) -> None:
    """θ* from another block in the same folder that has trained the very same."""
    for path in sorted([*out.glob("*/run.json"), *out.glob("*/train/run.json")]):
        if path.parent != run.folder.path and (seeds := take_training(run, Run.open(path.parent))):
            print(f"{now()} θ* of {path.parent}: taken over (seed {', '.join(map(str, seeds))})", flush=True)


def table(results: Path, records: Path) -> Iterator[str]:
    """A line per block: what it serves, how long it takes, and what is left of it."""
    for one in blocks().values():
        left, whole = one.left(results, records), one.pieces
        done = (isinstance(one, Block) and one.partial) or "done"
        said = done if not left else "not run" if left == whole else f"left: {', '.join(left)}"
        said += f" ({one.seconds(left) / 60:.0f} minutes)" if said.startswith("left") and isinstance(one, Block) else ""
        serves = ", ".join(one.items) if one.items else one.about
        yield f"{one.name:<20} {one.seconds(whole) / 60:>3.0f} minutes   {said:<45} {serves}"


def work(names: Sequence[str], at: Place, sets: Sequence[str] = ()) -> int:
    """Run these blocks one after another, in one process, and say what is missing at the end."""
    known = blocks(sets)
    for name in names:
        if name not in known:
            raise UnfedError(f"There is no block {name!r}; choose {listed(known)}.{nearest(name, known)}")
    for name in names:
        known[name].check()
    code = 0
    for name in names:
        started, left = time.monotonic(), known[name].left(at.results, at.records)
        if not left:
            print(f"{name}: done already in {at.results}; give --results a new folder to run it again", flush=True)
            continue
        print(f"{now()} {name}: {', '.join(left)}; about {known[name].seconds(left) / 60:.0f} minutes", flush=True)
        code = known[name].run(at) or code
        print(f"{now()} {name}: {time.monotonic() - started:.0f} s", flush=True)
        if code == 130:
            break
    for name in names:
        missing = known[name].left(at.results, at.records)
        print(f"{name}: {'nothing is missing' if not missing else 'missing: ' + ', '.join(missing)}", flush=True)
    return code
