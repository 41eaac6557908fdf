"""What evaluation adds to training, and where its time goes.

    PYTHONPATH=src python benchmarks/evaluating.py --preset cifar10-cnn --device cuda --precision bf16 --root DATA
    PYTHONPATH=src python benchmarks/evaluating.py --preset digits-cnn --device cpu --rounds 20

One process, one world, fine-tuning for `--rounds` rounds: evaluated at both ends only, and every `--every` rounds, in
turns, `--repeats` times each, of which the shortest counts. `alone` is a round without evaluation, `evaluation` what
one more of them adds to the wall clock, and `ratio` is (every · alone + evaluation) / (every · alone): a run against
its training alone.

    before     rows copied batch by batch, every column moved by itself, the attack waited for (kept here to compare)
    params     as the package does it: one copy, one move, the attack beside the next round
    engine     the same with evaluation.precision = "engine"

Then the parts of one evaluation alone, each until the device is done: fetching, logits in several ways, the move, the
attack. The record is printed and appended to benchmarks/records/ and $OUT line by line.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unfed.client.scores import Scores, Way, called, columns, moved, score
from unfed.config.config import Config
from unfed.engines.choice import as_trained
from unfed.engines.compiled.fused import fused_block
from unfed.federation.state import State
from unfed.measures import attacks, evaluator
from unfed.methods.finetune import FineTune
from unfed.model.calling import computed_by
from unfed.model.functional import Net, Template
from unfed.model.params import Params
from unfed.requests.entry import Job
from unfed.runs.job import JobRunner, JobSpec
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.world import World, process_as_before
from workload import add_rows, attempt, median, synchronise

Row = dict[str, object]


# --- as it was --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def score_before(template: Template, params: Params, source: Any, rows: Tensor, batch: int, way: Way) -> Scores:
    """Scores as they were computed before: a copy of rows for every batch, a move for every column."""
    net, parts = template.bind(params), []
    for some in torch.split(rows, batch):
        x, y = source.fetch(some, None)
        log_p = net(x).log_softmax(-1)
        top, predicted = log_p.max(-1)
        loss, entropy = F.nll_loss(log_p, y, reduction="none"), -(log_p.exp() * log_p).sum(-1)
        parts.append((loss, predicted == y, top.exp(), entropy, predicted))
    return Scores(*(torch.cat(column).cpu() for column in zip(*parts, strict=True)))


@contextmanager
def as_before() -> Iterator[None]:
    """Within, evaluation goes the old way, and is waited for."""
    module: Any = evaluator
    kept = module.score, module.Evaluator.begun
    module.score = score_before
    module.Evaluator.begun = lambda self, params: kept[1](self, params).complete()
    try:
        yield
    finally:
        module.score, module.Evaluator.begun = kept


# --- the whole run ----------------------------------------------------------------------------------------------------


def seconds(world: World, params: Params, rounds: int, where: Path) -> float:
    """One job from its beginning to its end, in a folder of its own."""
    request = world.config.requests()[:1]
    folder = Run.create(world.config, where, world).folder
    settings = replace(world.unlearning_settings(retrain=False, label="ft"), rounds=rounds)
    spec = JobSpec(Job(world.seed, request[0].id, "ft"), FineTune(), settings, 1, params, tuple(request))
    runner = JobRunner(folder, world, spec)
    synchronise(world.device)
    started = time.perf_counter()
    runner.run()
    synchronise(world.device)
    return time.perf_counter() - started


def whole(worlds: dict[str, World], params: Params, rounds: int, every: int, repeats: int) -> Iterator[Row]:
    """Rows of all variants, measured in turns."""
    taken: dict[str, list[float]] = {name: [] for name in worlds}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(repeats + 1):
            for name, world in worlds.items():
                with as_before() if name == "before" else process_as_before():
                    found = seconds(world, params, rounds, Path(folder) / f"{name}-{turn}")
                if turn:  # the first one compiles and warms up
                    taken[name].append(found)
    alone = min(taken["alone"])
    round_ms = 1000 * alone / rounds
    for name, times in taken.items():
        more = rounds // every - 1
        each = 1000 * (min(times) - alone) / more if name != "alone" else 0.0
        yield {
            "what": "whole", "variant": name, "rounds": rounds, "every": every, "seconds": times,
            "alone_ms_a_round": round_ms, "evaluation_ms": each, "ratio": 1 + each / (every * round_ms),
        }  # fmt: skip


# --- the parts --------------------------------------------------------------------------------------------------------


def channels_last(net: Net, x: Tensor) -> Tensor:
    return net(x.contiguous(memory_format=torch.channels_last))


def with_kernels(net: Net, x: Tensor) -> Tensor:
    with computed_by(block=fused_block):
        return net(x)


def halves_layer_by_layer(net: Net, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16):
        return net(x).float()


def timed(work: Callable[[], object], device: torch.device, times: int) -> float:
    """Milliseconds, the median."""
    found = []
    for _ in range(times + 2):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        found.append(1000 * (time.perf_counter() - started))
    return median(found[2:])


@torch.no_grad()
def parts(world: World, params: Params, times: int) -> Iterator[Row]:
    """What one evaluation is made of, on the rows that it reads."""
    look = world.evaluator(world.config.requests()[:1])
    assert isinstance(look, evaluator.Evaluator)
    views = look.views()
    retain, forget, test = views["retain"], views["forget"], views["test"]
    assert retain is not None and forget is not None and test is not None
    device, batch = world.device, world.config.evaluation.batch
    net, source = world.template.bind(params), retain.source
    rows = torch.cat([retain.rows, forget.rows]).to(source.labels.device)
    groups = torch.split(rows, batch)
    plain = score(world.template, params, source, rows, batch)
    ways: dict[str, Way] = {"params": called}
    if device.type == "cuda":
        ways |= {
            "params, channels last": channels_last,
            "params, kernels": with_kernels,
            "halves, layer by layer": halves_layer_by_layer,
            "halves, kernels (engine)": as_trained(world.template),
        }
    yield {"what": "part", "part": "fetch", "rows": len(rows),
           "ms": timed(lambda: [source.fetch(some, None) for some in groups], device, times)}  # fmt: skip
    for name, way in ways.items():

        def one(name: str = name, way: Way = way) -> Row:
            def logits() -> object:
                return [way(net, source.fetch(some, None)[0]) for some in groups]

            seen = score(world.template, params, source, rows, batch, way)
            return {
                "what": "part", "part": "fetch and logits", "way": name, "rows": len(rows),
                "ms": timed(logits, device, times), "accuracy": seen.accuracy, "mean_loss": seen.mean_loss,
                "other_class_percent": 100 * float((seen.predicted != plain.predicted).double().mean()),
                "largest_loss_apart": float((seen.loss - plain.loss).abs().max()),
            }  # fmt: skip

        yield attempt(name, one)
    done = [columns(called(net, x), y) for x, y in (source.fetch(some, None) for some in groups)]
    yield {"what": "part", "part": "move", "ms": timed(lambda: moved(done), device, times)}
    seen, held = plain[len(retain.rows) :], score(world.template, params, test.source, test.rows, batch)
    losses = seen.loss, held.loss
    yield {"what": "part", "part": "attack", "forget": len(losses[0]), "test": len(losses[1]),
           "ms": timed(lambda: attacks.membership_inference(*losses, seed=0), device, times)}  # fmt: skip
    yield {"what": "part", "part": "everything but the attack",
           "ms": timed(lambda: look.begun(params), device, times)}  # fmt: skip


# --- the command ------------------------------------------------------------------------------------------------------


def main() -> None:
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("--preset", default="digits-cnn")
    told.add_argument("--device", default="cpu")
    told.add_argument("--precision", default="float32")
    told.add_argument("--root")
    told.add_argument("--rounds", type=int, default=100)
    told.add_argument("--every", type=int, default=10)
    told.add_argument("--repeats", type=int, default=3)
    told.add_argument("--batch", type=int, default=8192)
    told.add_argument("--train-size", type=int)
    given = told.parse_args()
    if given.rounds < 2 * given.every:
        told.error("--rounds must be at least twice --every")

    def config(every: int, precision: str) -> Config:
        sets: list[str] = ["seed=0", f"device={given.device}", f"engine.precision={given.precision}"]
        sets += [f"evaluation.batch={given.batch}", "evaluation.samples=false", f"evaluation.every={every}"]
        sets += [f"evaluation.precision={precision}", "methods.run=['ft']", "checkpoint.seconds=100000"]
        sets += [f"data.root={given.root}"] if given.root else []
        sets += [f"data.train_size={given.train_size}"] if given.train_size else []
        return Config.preset(given.preset, sets)

    world = simulated(config(given.rounds, "params"), 0)
    often = replace(world, config=config(given.every, "params"))
    worlds = {"alone": world, "before": often, "params": often}
    if given.precision == "bf16":
        worlds["engine"] = replace(world, config=config(given.every, "engine"))
    with process_as_before(), tempfile.TemporaryDirectory() as folder:
        world.settle()
        run = Run.create(world.config, folder, world)
        settings = replace(world.training_settings(), rounds=given.every)
        spec = JobSpec(run.training_job(0), FineTune(), settings, 0, world.fresh(0))
        state: State = JobRunner(run.folder, world, spec).run()
        for rows in (
            parts(world, state.params, 5),
            whole(worlds, state.params, given.rounds, given.every, given.repeats),
        ):
            for row in rows:
                print(row, flush=True)
                add_rows("evaluating", world.device, [{"preset": given.preset, "precision": given.precision, **row}])


if __name__ == "__main__":
    main()
