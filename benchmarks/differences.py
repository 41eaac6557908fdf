"""Where our Retrain differs from the paper's: what could explain it, one change at a time.

    PYTHONPATH=src python benchmarks/differences.py --device cuda --precision bf16 --root DATA --beside 4
    PYTHONPATH=src python benchmarks/differences.py --preset digits-cnn --rounds 4 --every 2 --variants 3
    PYTHONPATH=src python benchmarks/differences.py --table benchmarks/records/*-differences-*cuda.jsonl [--write]
    PYTHONPATH=src python benchmarks/differences.py --rows results/cifar10-cnn-….json

On CIFAR-10 with the CNN the paper prints Retain 91.66, Forget 83.05, Test 82.32 for Retrain; ours has more Retain and
less Test. Each variant is Retrain from the same start for `--rounds` rounds, one thing changed. Its line has the
evaluated rounds, and three readings of Retain at the end: over the training rows (ours), over all rows of the clients
that stay (with the fifth that they keep for validation), and over the training rows as training sees them (augmented).
Each variant is a process of its own, `--beside` of them at a time: one compiles while another computes. A line is
written as soon as its variant is done, and the record keeps the order of the variants; one that fails is said and costs
no other; none begins after `--budget` seconds. `--long "pad-crop 4=2000"` is a variant once more for that many rounds,
in a record of its own: short runs tell what moves a curve, not where it ends. `--rows` reads kept results instead:
Retain of every method at its last round over training rows and over all rows, beside the paper's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import nn

from differences_kept import still_true
from unfed import plugins, rng
from unfed.client.plan import Plan
from unfed.client.scores import columns, moved, score
from unfed.config.config import Config
from unfed.engines.base import Block
from unfed.methods import Retrain
from unfed.model.networks.cnn import CNN, PRESETS
from unfed.model.params import Params
from unfed.paper.items import published
from unfed.report.rules import trajectories
from unfed.report.tables import name_of, row_name
from unfed.requests.entry import Job
from unfed.runs.job import JobRunner, JobSpec
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.world import World, local_engine, process_as_before
from unfed.studies import grid
from workload import add_rows

PAPER = {"retain": 91.66, "forget": 83.05, "test": 82.32, "mia": 50.23}
VARIANTS: dict[str, tuple[str, ...]] = {
    "as the preset": (),
    "no validation rows": ("partition.validation=0",),
    "pad-crop 4": ("data.pad_crop=4",),
    "weight decay 5e-3": ("training.decay=5e-3",),
    "no dropout": ("model.options={dropout=0.0}",),
    "momentum kept between rounds": (),
    "no flip": ("data.flip=0",),
    "rate falls to 0 (cosine)": ("training.schedule.kind=cosine",),
    "batch 128": ("training.batch=128",),
    "rate 2e-3": ("training.lr=2e-3",),
    "weight decay 0": ("training.decay=0",),
    "weight decay 1e-3": ("training.decay=1e-3",),
}
"""The most promising first: a budget cuts the last."""
REGIMES: dict[str, tuple[str, ...]] = {
    "rate 1e-2": ("training.lr=1e-2",),
    "rate 5e-3": ("training.lr=5e-3",),
    "rate 1e-2, dropout 0.7": ("training.lr=1e-2", "model.options={dropout=0.7}"),
    "rate 5e-3, weight decay 5e-3": ("training.lr=5e-3", "training.decay=5e-3"),
    "rate 1e-2, weight decay 2e-3": ("training.lr=1e-2", "training.decay=2e-3"),
    "rate 5e-3, pad-crop 2": ("training.lr=5e-3", "data.pad_crop=2"),
    "pad-crop 2": ("data.pad_crop=2",),
    "dropout 0.7": ("model.options={dropout=0.7}",),
    "no validation rows, dropout 0.7": ("partition.validation=0", "model.options={dropout=0.7}"),
    "no validation rows, weight decay 5e-3": ("partition.validation=0", "training.decay=5e-3"),
    "64-64, dropout 0.5": ("model.options={widths=[64, 64]}",),
    "average pooling": ('model.name="differences:averaging"',),
    "average pooling, rate 5e-3": ('model.name="differences:averaging"', "training.lr=5e-3"),
}
"""Where would Retrain stand still near the paper's row? By `--long` only, at full length; float32 by `--precision`."""
CHANGES = VARIANTS | REGIMES
KEPT = "momentum kept between rounds"


def averaging(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The preset's network, with the mean of four values where it takes the largest."""
    found = CNN(**PRESETS["cnn"], in_channels=shape[0], size=shape[1], classes=classes)
    for part in range(1, found.depth + 1):
        setattr(found, f"pool{part}", nn.AvgPool2d(2))
    return found


class Remembering:
    """An engine whose clients go on with the momentum of their last visit; in FedAvg they begin anew."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.name, self._kept = inner, inner.name, dict[str, Params]()

    def train(self, plan: Plan, params: Params, clients: Sequence[str], context: Any, optimiser: Any = None) -> Any:
        def blocks() -> Iterator[Block]:
            kept = dict(self._kept)
            for block in self._inner.train(replace(plan, keep=True), params, clients, context, kept or None):
                for place, name in enumerate(block.clients):
                    self._kept[name] = {n: t[place].clone() for n, t in block.optimiser.items()}
                yield replace(block, optimiser=None)

        return blocks()

    def measure(self, *asked: Any) -> Any:
        return self._inner.measure(*asked)


def variant(config: Config, name: str, rounds: int, folder: Path) -> dict[str, object]:
    """Retrain under one change."""
    started = time.perf_counter()
    world = simulated(config, 0)
    if name == KEPT:
        world = replace(world, engines=lambda own, clients: Remembering(local_engine(own, clients)))
    run, request = Run.create(config, folder, world), config.requests()[:1]
    settings = replace(world.unlearning_settings(retrain=True), rounds=rounds)
    job = Job(0, request[0].id, "retrain")
    spec = JobSpec(job, Retrain(), settings, world.seeds.request(request[0].id), world.fresh(0), tuple(request))
    with process_as_before():
        world.settle()
        params = JobRunner(run.folder, world, spec).run().params
    shown = ("round", "retain", "forget", "test", "validation", "mia", "retain_loss", "test_loss")
    curve = [{key: line.get(key) for key in shown} for line in run.lines()]
    return {
        "variant": name, "sets": list(CHANGES[name]), "rounds": rounds, "seed": 0, "curve": curve,
        **readings(world, params), "seconds": time.perf_counter() - started,
    }  # fmt: skip


@torch.no_grad()
def readings(world: World, params: Params) -> dict[str, object]:
    """Retain three times: training rows, all rows, training rows as they are augmented."""
    holders = [c for c in world.scoped(world.config.requests()[:1]).values() if len(c.view("retain"))]
    source, batch = holders[0].source, world.config.evaluation.batch
    train = torch.cat([c.rows[c.view("retain")] for c in holders])
    every = torch.cat([train, *(c.rows[c.view("val")] for c in holders)])
    net, parts = world.template.bind(params), []
    for number, some in enumerate(torch.split(train.to(source.labels.device), batch)):
        words = torch.randint(0, rng.WORD, some.shape, generator=rng.generator(number)).to(some.device)
        x, y = source.fetch(some, words)
        parts.append(columns(net(x), y))
    return {
        "retain_training_rows": score(world.template, params, source, train, batch).accuracy,
        "retain_all_rows": score(world.template, params, source, every, batch).accuracy,
        "retain_augmented": moved(parts).accuracy,
    }


def table(paths: Sequence[Path]) -> str:
    """Records as one table in Markdown: the short runs first, variants in their order."""
    order = [*CHANGES].index
    found = sorted(_rows(paths), key=lambda one: (one["rounds"], order(one["variant"])))
    heads = (
        "Change",
        "Rounds",
        "Retain",
        "Forget",
        "Test",
        "MIA",
        "Retain, all rows",
        "Retain, augmented",
        "Test at Retain 80 %",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for one in found:
        last = one["curve"][-1]
        values = [last["retain"], last["forget"], last["test"], last["mia"], one["retain_all_rows"]]
        values += [one["retain_augmented"], test_at(one["curve"], 80.0)]
        cells = [f"{v:.2f}" if isinstance(v, float) else "–" for v in values]
        lines.append(f"| {one['variant']} | {one['rounds']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _rows(paths: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


def test_at(curve: Sequence[Mapping[str, float]], retain: float) -> float | None:
    """Test accuracy where the curve crosses a Retain: variants that learn at other speeds, set side by side."""
    for before, after in pairwise(curve):
        if before["retain"] <= retain < after["retain"]:
            share = (retain - before["retain"]) / (after["retain"] - before["retain"])
            return before["test"] + share * (after["test"] - before["test"])
    return None


def rows_table(path: Path) -> str:
    """Retain over two sets of rows, from what was kept of runs: a fifth of a client's rows are for validation."""
    found = still_true(path)
    share = float(found.config["partition"]["validation"])
    (methods,) = (by for request, by in trajectories(found.lines()).items() if request)
    paper = {row["method"]: row for row in published("T1") if (row["dataset"], row["model"]) == ("CIFAR-10", "CNN")}
    lines = [
        "| Method | Retain, training rows | Retain, all rows | Retain, paper | Seeds |",
        "|---|---:|---:|---:|---:|",
    ]
    for method, by_seed in methods.items():
        title = name_of(method)
        if title not in paper:
            continue
        ends = [own[-1] for own in by_seed.values()]
        train = [float(line["retain"]) for line in ends]
        every = [(1 - share) * float(line["retain"]) + share * float(line["validation"]) for line in ends]
        printed = paper[title]["retain"]
        lines.append(f"| {row_name(method)} | {fmean(train):.2f} | {fmean(every):.2f} | {printed} | {len(ends)} |")
    return "\n".join(lines) + "\n"


def tried(folders: Sequence[Path], record: str, alike: tuple[str, int, str]) -> set[str]:
    """The variants that a record in one of these folders has of the same preset, rounds and device."""
    files = [path for folder in folders for path in sorted(folder.glob(f"*-{record}-{alike[2]}.jsonl"))]
    return {row["variant"] for row in _rows(files) if (row["preset"], row["rounds"]) == alike[:2]}


class Asked(NamedTuple):
    """A variant, for so many rounds, evaluated every so many, and the record that its line belongs to."""

    record: str
    variant: str
    rounds: int
    every: int


def asked(given: argparse.Namespace) -> list[Asked]:
    """What the command names and no record has, the longest first."""
    short = [Asked(given.name, name, given.rounds, given.every) for name in [*VARIANTS][: given.variants]]
    long = [Asked(f"{given.name}-long", name, rounds, max(1, rounds // 20)) for name, rounds in given.long]
    alike = {one: (given.preset, one.rounds, given.device) for one in [*sorted(long, key=_longest), *short]}
    return [one for one in alike if one.variant not in tried(given.after, one.record, alike[one])]


def _longest(one: Asked) -> int:
    return -one.rounds


def long_of(told: str) -> tuple[str, int]:
    """`pad-crop 4=2000`: a variant, and for how many rounds."""
    name, _, rounds = told.rpartition("=")
    if name not in CHANGES or not rounds.isdigit() or not int(rounds):
        raise argparse.ArgumentTypeError(f"{told!r} is no variant and its rounds, such as 'pad-crop 4=2000'")
    return name, int(rounds)


def config_of(given: argparse.Namespace, name: str) -> Config:
    """The preset under one change."""
    sets = ["seed=0", f"device={given.device}", f"engine.precision={given.precision}", "methods.run=['retrain']"]
    sets += ["evaluation.batch=8192", "evaluation.samples=false", f"evaluation.every={given.every}"]
    sets += [f"training.rounds={given.rounds}", "checkpoint.seconds=100000"]
    sets += [f"data.root={given.root}"] if given.root else []
    return Config.preset(given.preset, [*sets, *CHANGES[name]])


def row_of(given: argparse.Namespace, name: str) -> dict[str, object]:
    """The line of a variant, but for where and when it was made."""
    with tempfile.TemporaryDirectory() as folder, plugins.allow_code():
        row = variant(config_of(given, name), name, given.rounds, Path(folder) / "run")
    return {**row, "preset": given.preset}


def side_by_side(
    wanted: Sequence[Asked], given: argparse.Namespace, arguments: Sequence[str]
) -> Iterator[tuple[Asked, dict[str, Any] | None, str]]:
    """Each in a process of its own, `--beside` at a time: its line when it is done, or why there is none."""
    began, waiting, running = time.monotonic(), deque(wanted), dict[Asked, tuple[BaseProcess, Path]]()
    # The cores are shared, and each compiler takes up to 32.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and len(running) < given.beside:
                    one = waiting.popleft()
                    if time.monotonic() - began > given.budget:
                        yield one, None, "not tried, the budget is spent"
                        continue
                    file = Path(folder) / f"{len(waiting)}.json"
                    more = ["--rounds", one.rounds, "--every", one.every, "--only", one.variant, "--line", file]
                    process = grid.beginning().Process(target=_alone, args=([*arguments, *map(str, more)],))
                    process.start()
                    running[one] = process, file
                for one, (process, file) in [*running.items()]:
                    if (code := process.exitcode) is not None:
                        del running[one]
                        whole = code in (0, 1) and file.exists()
                        row = json.loads(file.read_text(encoding="utf-8")) if whole else {}
                        yield one, None if code else row, row.get("failed", f"failed: its process ended with {code}")
                time.sleep(0.1)
        finally:
            for process, _ in running.values():
                process.kill()
                process.join()


def _alone(arguments: Sequence[str]) -> None:
    """In a process of its own."""
    sys.exit(main(arguments))


def main(arguments: Sequence[str]) -> int:
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("--preset", default="cifar10-cnn")
    told.add_argument("--device", default="cpu")
    told.add_argument("--precision", default="float32")
    told.add_argument("--root")
    told.add_argument("--rounds", type=int, default=600)
    told.add_argument("--every", type=int, default=50)
    told.add_argument("--variants", type=int, default=len(VARIANTS), help="only so many of them")
    told.add_argument("--long", type=long_of, action="append", default=[], help="a variant=rounds, into NAME-long")
    told.add_argument("--name", default="differences", help="of the record")
    told.add_argument("--after", type=Path, nargs="*", default=[], help="folders: what records there have is left out")
    told.add_argument("--beside", type=int, default=1, help="how many processes at a time")
    told.add_argument("--budget", type=float, default=1e9, help="seconds after which no variant begins")
    told.add_argument("--only", choices=CHANGES, help="this variant, in this process, its line into --line")
    told.add_argument("--line", type=Path)
    told.add_argument("--table", type=Path, nargs="+")
    told.add_argument("--rows", type=Path)
    given = told.parse_args(arguments)
    if given.beside < 1:
        told.error("--beside takes a number of at least 1")
    if given.rows:
        print(rows_table(given.rows))
        return 0
    if given.table:
        print(table(given.table))
        return 0
    if given.only:
        try:
            row = row_of(given, given.only)
        except Exception as error:
            traceback.print_exc()
            row = {"failed": f"failed: {type(error).__name__}: {error}"}
        given.line.write_text(json.dumps(row), encoding="utf-8")
        return int("failed" in row)
    order, code = [*CHANGES].index, 0
    for one, made, why in side_by_side(asked(given), given, arguments):
        if made is None:
            print(f"{one.variant}, {one.rounds} rounds: {why}", flush=True)
            code = 1 if why.startswith("failed") else code
            continue
        print(json.dumps({k: v for k, v in made.items() if k != "curve"} | {"last": made["curve"][-1]}), flush=True)
        add_rows(one.record, torch.device(given.device), [made], lambda other: order(other["variant"]))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
