"""Every method on every engine: small runs on a device, each compared with the same run in float64 on the CPU.

    a row = method × scope × way × precision × model × poison × partition
    truth = the same run by `client.step.visit`, one client after another, in float64 on the CPU, kept on disk

A row is a real run, as `unfed run` does it: two rounds of training, a request, two rounds of one method, on clients of
10 and 30 images (and, where a client leaves, a third of 20). Compared is every tensor of θ* and of the method's model.

    full       every method × every scope it serves × every way × every precision, on the fitted CNN
    covering   poison, Dirichlet, ResNet-18 and a small transformer: every two values meet in some row (`covering.py`)

Rates are such that rounding stays rounding: at 0.01 the CNN and the transformer in float32 are within 1e-5 of float64
on one CPU. ResNet-18, fresh, with batch norms over a handful of values, is off by 1e-2 at 1e-3 there: it gets 1e-5, and
whole clients as batches (with a last batch of four rows its running variances are off by 2e-4).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import covering
import unfed
from unfed import plugins, rng
from unfed.config.config import Config
from unfed.data.partition import Deal, Partition
from unfed.engines.compiled import recorded
from unfed.errors import UnfedWarning
from unfed.methods.sealed import drawn_from
from unfed.model.params import Params
from unfed.model.sealing import DRAW_BYTES
from unfed.requests.entry import Job
from unfed.runs.run import Run
from unfed.runs.simulated import deal, simulated
from unfed.runs.world import Residents, World, process_as_before

FEDERATED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("retrain", "ft", "not", "sealed", "led", "mode", "nr-freeze"), ("client", "class", "instance")),
    **{name: ("client",) for name in ("federaser", "fukd", "pgd", "fcu")},
}
"""Methods of a federation, and the scopes they serve."""
CENTRAL = ("retrain", "ft", "not", "sealed", "led", "randl", "ga", "badt", "l1-sparse", "ssd", "salun")
"""Methods where one place holds all data; they serve classes and samples."""

WAYS = {
    "sequential eager": ("sequential", False, recorded.as_traced),
    "sequential graph": ("sequential", True, recorded.as_traced),
    "sequential compiled": ("sequential", True, recorded.inductor),
    "batched eager": ("batched", False, recorded.as_traced),
    "batched graph": ("batched", True, recorded.as_traced),
    "batched compiled": ("batched", True, recorded.inductor),
}
"""The engine, whether its step is recorded, and by which compiler. Recorded steps are CUDA graphs on CUDA."""
UNCOMPILED = tuple(way for way in WAYS if not way.endswith("compiled"))

ALLOWED: dict[str, float | None] = {"float64": 1e-9, "float32": 1e-4, "bf16": None}
"""How far a weight may be from the truth; None is reported and not judged."""

RATES = {"cnn": 0.01, "vit-tiny": 0.01, "resnet18": 1e-5}


OWN_CODE = ("matrix:images", "matrix:few_images", "unfed.methods.nr_freeze:NRFreeze")
"""What the rows' configs name, and nothing else of that kind may run."""


def options(method: str, model: str) -> dict[str, Any]:
    """Hyperparameters where the paper's depend on the network, or ask for more rounds than two."""
    rate = RATES.get(model, 0.01)
    known: dict[str, dict[str, Any]] = {
        "nr-freeze": {"use": "unfed.methods.nr_freeze:NRFreeze"},
        "fukd": {"lr": min(rate, 1e-4)},
        "pgd": {"lr": rate, "iterations": 2, "updates": 2, "threshold": 3.0, "clip": 2.0},
        "mode": {"guidance": 2, "degradation": 1, "coefficient": 0.4, "lr": rate / 2, "degradation_lr": rate},
        "fcu": {"lr": rate, "iterations": 4, "fuse_every": 2, "rho": 0.7},
    }
    if model == "resnet18":
        known["fcu"] |= {"lr": 1e-6}  # Adam's steps are as large where a gradient is mostly rounding
    if model.startswith("vit"):
        # No loss depends on the bias of an attention's keys, and Adam divides what rounding leaves of its gradient by
        # 1e-8; with a decay it grows from there, 1e-17 to 2e-4 in four steps at 0.01.
        known["fcu"] |= {"lr": 1e-5, "decay": 0.0}
    return known.get(method, {})


REQUESTS: dict[str, dict[str, Any]] = {
    "client": {"id": "gone", "clients": ["2"]},
    "class": {"id": "gone", "classes": [3]},
    "instance": {"id": "gone", "fraction": 0.25},
}
SIZES = (10, 30, 20)
"""Images of the clients; the third takes part where it is the one that leaves."""
SIDE, CLASSES = 16, 4


@dataclass(frozen=True)
class Row:
    """One run to compare."""

    method: str
    scope: str
    way: str
    precision: str
    model: str = "cnn"
    poison: bool = False
    partition: str = "uneven"
    """`uneven` (10, 30, 20), `dirichlet`, or `one` holder of everything."""

    @property
    def name(self) -> str:
        poison = "poisoned" if self.poison else "clean"
        return ", ".join((self.method, self.scope, self.way, self.precision, self.model, poison, self.partition))

    @property
    def truth(self) -> Row:
        """What the row is compared with."""
        return Row(**{**asdict(self), "way": "sequential eager", "precision": "float64"})


# --- which rows -------------------------------------------------------------------------------------------------------


def full() -> list[Row]:
    """Every method and scope, on the fitted CNN: each way and precision, the compiler once per method."""
    found = []
    served = [(m, s, "uneven") for m, scopes in FEDERATED.items() for s in scopes]
    served += [(m, s, "one") for m in CENTRAL for s in ("class", "instance")]
    for precision in ALLOWED:
        for way in UNCOMPILED:
            found += [Row(m, s, way, precision, partition=p) for m, s, p in served]
    seen: set[tuple[str, str]] = set()
    once = [(m, s, p) for m, s, p in served if (m, p) not in seen and not seen.add((m, p))]  # type: ignore[func-returns-value]
    compiled = [Row(m, s, "batched compiled", precision, partition=p) for precision in ALLOWED for m, s, p in once]
    return [*compiled, *found]  # what takes longest first, so that no worker is left alone with it


COLUMNS: dict[str, tuple[Any, ...]] = {
    "method": tuple(dict.fromkeys((*FEDERATED, *CENTRAL))),
    "way": tuple(WAYS),
    "model": ("cnn", "resnet18", "vit-tiny"),
    "scope": ("client", "class", "instance"),
    "precision": tuple(ALLOWED),
    "partition": ("uneven", "dirichlet", "one"),
    "poison": (False, True),
}
COMPILED = ("not",)
"""The method by which the covering set asks for the compiler; a compilation takes up to a minute."""


def sensible(values: Mapping[str, Any]) -> bool:
    """Whether such a run exists, and is worth its time."""
    row = Row(**values)
    if row.way.endswith("compiled") and row.method not in COMPILED:
        return False
    if row.method == "ssd" and row.model == "resnet18" and row.precision == "float32":
        return False  # it divides squares of gradients that are zero but for rounding: off by 0.13 on one CPU
    if row.partition == "one":
        return row.method in CENTRAL and row.scope != "client"
    return row.method in FEDERATED and row.scope in FEDERATED[row.method]


@cache
def covered() -> tuple[Row, ...]:
    """The covering set; rows that the full table has are left out, and what takes longest comes first."""
    known = set(full())
    found = [Row(**values) for values in covering.rows(COLUMNS, sensible)]
    found.sort(key=lambda row: (not row.way.endswith("compiled"), row.model != "resnet18"))
    return tuple(row for row in found if row not in known)


def all_rows() -> list[Row]:
    return [*covered(), *full()]


# --- one row ----------------------------------------------------------------------------------------------------------


def images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images that can be learnt: a pattern per class under noise. The rows' configs name it."""
    generator = rng.generator(7)
    patterns = torch.rand((CLASSES, 3, 4, 4), generator=generator)
    patterns = torch.nn.functional.interpolate(patterns, SIDE, mode="bilinear")

    def draw(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % CLASSES
        noise = torch.rand((count, 3, SIDE, SIDE), generator=generator)
        return ((0.5 * patterns[labels] + 0.5 * noise) * 255).to(torch.uint8), labels

    return draw(sum(SIZES)), draw(20)


def few_images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The same without those of the client that leaves."""
    (x, y), test = images()
    return (x[: sum(SIZES[:2])], y[: sum(SIZES[:2])]), test


def config(row: Row, device: str) -> Config:
    """The row as `unfed run` would read it."""
    engine, compile, _ = WAYS[row.way]
    central, three, rate = row.partition == "one", row.scope == "client", RATES.get(row.model, 0.01)
    clients = 3 if three else 2
    larger = {"resize": 2 * SIDE} if row.model == "resnet18" else {}
    scheme = {"scheme": "dirichlet", "beta": 1.0, "min_samples": 6} if row.partition == "dirichlet" else {}
    raw: dict[str, Any] = {
        "name": "matrix",
        "setting": "central" if central else "federated",
        "device": device,
        "data": {"name": f"matrix:{'images' if three else 'few_images'}", "flip": 0.5, "pad_crop": 2, **larger},
        "partition": {} if central else {"clients": clients, "validation": 0.2, **scheme},
        "model": {"name": row.model},
        "training": {"rounds": 2, "batch": 64 if larger else 10, "lr": rate},
        "unlearning": {"rounds": 2, "lr": rate},
        "request": REQUESTS[row.scope],
        "methods": {"run": [row.method], row.method: options(row.method, row.model)},
        "evaluation": {"attack": False, "samples": False, "every": 100},
        "checkpoint": {"rounds": None, "seconds": None},
        "engine": {"name": engine, "compile": compile, "precision": row.precision, "threads": 1},
    }
    if row.poison:  # the leaver where one leaves; a class or samples are forgotten at a poisoned client as well
        raw["poison"] = {"client": "2" if three else "0", "target_class": 0, "share": 0.8}
    return Config.parse(raw)


def uneven(rows: int, clients: int, seed: int) -> Partition:
    """In the place of equal pieces: clients of 10, 30 and 20 images."""
    return Partition(Deal(rng.order(rng.as_key(rng.key(seed, "uneven")), rows), np.asarray(SIZES[:clients])))


@process_as_before()
def world(row: Row, device: str) -> World:
    """The world of the row's config; where its clients are to be uneven, with other rows in their hands."""
    built = simulated(config(row, device), 0)
    if row.partition != "uneven":
        return built
    dealt = uneven(len(built.dataset.train.labels), len(built.clients), built.seeds.partition)
    hand = deal(built.config, built.seeds, built.dataset, dealt)
    return replace(built, holders=Residents(hand.clients, built.seeds.partition))


@contextmanager
def prepared(row: Row) -> Iterator[None]:
    """The process as the row needs it: its own code, its compiler, and no TF32 where float32 is judged."""
    before = (recorded.compiler, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    recorded.compiler = WAYS[row.way][2]
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = row.precision == "bf16"
    try:
        with plugins.allow_only(OWN_CODE):
            yield
    finally:
        recorded.compiler, tf32, matmul = before
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32, matmul


def models(row: Row, device: str) -> Params:
    """θ* and what the method left, by the names of their tensors."""
    with prepared(row), drawn_from(_repeatable), tempfile.TemporaryDirectory() as folder:
        built = world(row, device)
        run = Run.create(built.config, Path(folder, "run"), built)
        run.execute()
        kept = {"θ*": Job(0, None, "train"), "θ": Job(0, "gone", row.method)}
        return {f"{w}/{n}": t.cpu() for w, job in kept.items() for n, t in run.folder.load_model(job).items()}


def _repeatable(seed: int) -> bytes:
    """The reference and the row must draw the same, so a sealed draw comes from the job's seed here."""
    return rng.key(seed, "matrix").to_bytes(DRAW_BYTES, "big")


def truth(row: Row) -> Params:
    """The reference's models, computed once and then read from disk, by whichever process comes first."""
    folder = Path(os.environ.get("UNFED_TRUTH", Path(tempfile.gettempdir(), "unfed-truth"))) / source_digest()
    path = folder / (hashlib.sha256(row.truth.name.encode()).hexdigest()[:24] + ".safetensors")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        save_file({name: t.contiguous() for name, t in models(row.truth, "cpu").items()}, partial)
        partial.replace(path)
    found: Params = load_file(path)
    return found


def source_digest() -> str:
    """Which code computed a number: a hash of the package and of this file."""
    found = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(Path(unfed.__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def compared(row: Row, device: str) -> dict[str, object]:
    """The row's numbers: the largest difference of a weight, what is allowed, how far the method moved, the time."""
    wanted = truth(row)
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = models(row, device)
    seconds = time.perf_counter() - started
    assert set(found) == set(wanted), "the models have other tensors than the truth"
    worst = max(float((found[n].double() - t.double()).abs().max()) for n, t in wanted.items())
    pairs = [(t, wanted[f"θ*/{n[2:]}"]) for n, t in wanted.items() if n.startswith("θ/") and t.is_floating_point()]
    moved = max(float((after - before).abs().max()) for after, before in pairs)
    allowed = ALLOWED[row.precision]
    fallen_back = sorted({str(w.message) for w in said if issubclass(w.category, UnfedWarning)})
    return {
        "worst": worst,
        "allowed": allowed,
        "moved": moved,
        "seconds": round(seconds, 1),
        "said": fallen_back,
        "ok": not fallen_back and (worst == worst if allowed is None else worst <= allowed),
    }
