"""Are federations side by side the federations one after another, on this device?

    python benchmarks/together.py --device cuda [--row dropout] [--out FILE]        under a minute on an H200
    python benchmarks/together.py --device cpu --row eager                          a first look

engine rows      three federations of four clients, each from its own model under its own seed, as one stack and one by
                 one: operation by operation, in a CUDA graph, and through the compiler; Dirichlet, BatchNorm, and a
                 transformer whose dropout sits inside its attention
population rows  the same through servers, threads and methods: θ* and what methods make of it, three training seeds

float64 must agree to 1e-9, recorded float32 (without TF32) to 1e-5. Float32 operation by operation is reported: there a
library picks another kernel for another number of groups, and near-ties fall otherwise (decisions.py shows which).
So is bf16. A row is printed, and appended to FILE, when it is done. Exits with 1 if anything that must be equal is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from unfed.client.plan import Optimiser, Phase, Plan
from unfed.config.config import Config
from unfed.engines import Batched
from unfed.engines.base import Visit
from unfed.engines.compiled import recorded
from unfed.engines.compiled.capture import Backend, as_traced
from unfed.model.functional import Template
from unfed.model.params import Params, cast, params_of
from unfed.runs.simulated import simulated
from unfed.studies.cohort import Cohort
from workload import Workload, attempt, synthetic

SEEDS = (11, 12, 13)
LIMITS = {torch.float64: 1e-9, torch.float32: 1e-5}
RATES = {torch.float64: 0.05, torch.float32: 0.005}  # in float32 one near-tie of a max-pool would decide (near_ties.py)
Row = Callable[[], dict[str, object]]


class Attentive(nn.Module):
    """Patches, one encoder layer with dropout in all the places PyTorch has for it, a head."""

    def __init__(self, seed: int, classes: int = 10, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.encoder = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.encoder(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return found


def network(work: Workload, seed: int) -> nn.Module:
    return Attentive(seed) if work.model == "dropout in attention" else work.fresh(seed)


@contextmanager
def exactly(backend: Backend) -> Iterator[None]:
    """Recorded steps by this backend, float32 without TF32."""
    before = recorded.compiler, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    recorded.compiler = backend
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        recorded.compiler, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def loudly(row: Row) -> Row:
    """The row, whose error is seen whole before `attempt` makes a line of it."""

    def told() -> dict[str, object]:
        try:
            return row()
        except Exception:
            traceback.print_exc()
            raise

    return told


def apart(ones: Sequence[Params], others: Sequence[Params]) -> float:
    pairs = zip(ones, others, strict=True)
    return max(float((one[n].double() - other[n].double()).abs().max()) for one, other in pairs for n in one)


def judged(found: float, moved: float, dtype: torch.dtype | None) -> dict[str, object]:
    said: dict[str, object] = {"apart": found, "moved": moved}
    if dtype is not None:
        assert found < LIMITS[dtype] < moved, f"off by {found:.2g}, allowed {LIMITS[dtype]:g}, moved {moved:.2g}"
        said["allowed"] = LIMITS[dtype]
    return said


def one_round(device: torch.device, model: str, dtype: torch.dtype, way: str, half: bool) -> tuple[list[Params], ...]:
    """What three federations make of a round together and alone, and where they began."""
    beta = 0.3 if dtype == torch.float64 else None
    known = "cnn" if model == "dropout in attention" else model
    work = synthetic(device, clients=4, images=700, side=16, model=known, batch=16, beta=beta, dtype=dtype)
    work = replace(work, model=model)
    template = Template(network(work, 0), work.train.shape).to(device, dtype)
    template.autocast = torch.bfloat16 if half else None
    engine = Batched(template, work.clients, compile=way != "eager")
    phase = Phase(batch=work.batch, optimiser=Optimiser(lr=RATES[dtype]))
    visits = [
        Visit(Plan(seed, 1, (phase,)), cast(params_of(network(work, seed)), dtype, device), tuple(work.clients), {})
        for seed in SEEDS
    ]
    with exactly(recorded.inductor if way == "compiled" else as_traced):
        together = [block.params for (block,) in engine.train_together(visits)]
        alone = [next(iter(engine.train(v.plan, v.params, v.clients, v.context))).params for v in visits]
    return together, alone, [{n: t[None] for n, t in visit.params.items()} for visit in visits]


def engine_row(device: torch.device, model: str, dtype: torch.dtype, way: str, half: bool = False) -> Row:
    """One round of three federations. Operation by operation in float32 it is only reported, with how much differs."""

    def row() -> dict[str, object]:
        together, alone, starts = one_round(device, model, dtype, way, half)
        loose = half or (way == "eager" and dtype == torch.float32)
        found = judged(apart(alone, together), apart(alone, starts), None if loose else dtype)
        if loose:
            pairs = [(one[n], other[n]) for one, other in zip(alone, together, strict=True) for n in one]
            entries = sum(t.numel() for t, _ in pairs)
            found["share beyond 1e-5"] = sum(int(((a - b).abs() > 1e-5).sum()) for a, b in pairs) / entries
        return found

    return row


def population_row(device: torch.device, method: str, way: str) -> Row:
    """Three rounds of training and three of a method, on digits in float64."""

    def row() -> dict[str, object]:
        sets = [
            "seed=0",
            f'device="{device}"',
            "engine.precision=float64",
            "engine.name=batched",
            "model.name=cnn-tiny",
        ]
        sets += [
            "model.name=cnn-tiny",
            "training.rounds=3",
            "unlearning.rounds=3",
            f"engine.compile={str(way != 'eager').lower()}",
        ]
        world = simulated(Config.preset("demo", [*sets, f'methods.run=["retrain","{method}"]']), 0)
        made = world.config.method(method)
        found: list[list[Params]] = []
        with exactly(as_traced):
            for together in (True, False):
                with tempfile.TemporaryDirectory() as folder:
                    cohort = Cohort(world, range(3), Path(folder), together)
                    recording = {method: made} if "history" in made.needs else {}
                    before = cohort.trained(recording, lambda kind, round, rounds: None)
                    found.append([*before, *cohort.unlearned(method, lambda kind, round, rounds: None)])
        return judged(apart(*found), apart(found[0][:3], found[0][3:]), torch.float64)

    return row


def rows(device: torch.device) -> dict[str, Row]:
    double, single = torch.float64, torch.float32
    found: dict[str, Row] = {}
    ways = ("eager", "graph") if device.type == "cuda" else ("eager",)
    for way in ways:
        for method in ("not", "fcu", "pgd"):
            found[f"population, {method}, {way}"] = population_row(device, method, way)
        for model in ("cnn", "cnn-tiny-bn", "dropout in attention"):
            found[f"float64 {model}, {way}"] = engine_row(device, model, double, way)
            found[f"float32 {model}, {way}"] = engine_row(device, model, single, way)
    if device.type == "cuda":
        found["float64 dropout in attention, compiled"] = engine_row(device, "dropout in attention", double, "compiled")
        found["float32 cnn, compiled"] = engine_row(device, "cnn", single, "compiled")
        found["bf16 cnn, compiled"] = engine_row(device, "cnn", single, "compiled", half=True)
        found["bf16 dropout in attention, compiled"] = engine_row(
            device, "dropout in attention", single, "compiled", half=True
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--row", action="append", help="only rows whose name contains this; repeat for more")
    parser.add_argument("--out", type=Path, help="a .jsonl that rows are appended to")
    told = parser.parse_args()
    device, failed = torch.device(told.device), False
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    for name, row in rows(device).items():
        if told.row and not any(wanted in name for wanted in told.row):
            continue
        began = time.perf_counter()
        found = attempt(name, loudly(row)) | {"seconds": round(time.perf_counter() - began, 1), "hardware": where}
        failed = failed or "failed" in found
        if told.out:
            with open(told.out, "a", encoding="utf-8") as out:
                out.write(json.dumps(found) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
