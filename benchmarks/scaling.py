"""How a round grows: with clients (10 to 10,000, and 1,000 of 1,000,000), with the model, with images per client.

    python benchmarks/scaling.py [--device cuda] [--quick]

Each row is one round of FedAvg on the engine that `auto` picks or that the row names: seconds, images per second, and
the peak of memory beyond what was there before (the process's on a CPU, the device's on CUDA).
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache

import torch

from unfed import aggregate, rng
from unfed.data import ClientData, TensorSource
from unfed.engines import Batched, Sequential
from unfed.engines.choice import choose
from unfed.ledger import forward_flops
from unfed.models import build
from unfed.params import params_of
from unfed.plan import Optimiser, Phase, Plan
from unfed.template import Template
from workload import attempt, median, synchronise, write


class Registry(Mapping[str, ClientData]):
    """Any number of registered clients, each made when it is asked for: memory follows the cohort."""

    def __init__(self, source: TensorSource, count: int, images: int) -> None:
        self._source, self._count, self._images = source, count, images
        self._made = lru_cache(maxsize=20_000)(self._make)

    def _make(self, name: str) -> ClientData:
        first = int(name) * self._images
        rows = torch.arange(first, first + self._images) % len(self._source)
        return ClientData(name, self._source, rows, torch.arange(self._images), torch.arange(0))

    def __getitem__(self, name: str) -> ClientData:
        found: ClientData = self._made(name)
        return found

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (str(k) for k in range(self._count))


def source_of(side: int, channels: int, device: torch.device) -> TensorSource:
    generator = rng.generator(0)
    pixels = torch.randint(0, 256, (50_000, channels, side, side), dtype=torch.uint8, generator=generator)
    return TensorSource(pixels.to(device), torch.randint(0, 10, (50_000,), generator=generator), classes=10)


def peak(device: torch.device) -> float:
    """GiB at the peak so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def one(
    model: str, source: TensorSource, registered: int, cohort: int, images: int, batch: int, engine: str, turns: int
) -> dict[str, object]:
    device = source.images.device
    module = build(model, shape=source.shape, classes=10, seed=0)
    template = Template(module, source.shape).to(device, torch.float32)
    params = {n: t.to(device) for n, t in params_of(module).items()}
    clients = Registry(source, registered, images)
    picked = choose(engine, template, source, min(batch, images), forward_flops(template)).name
    made = Batched(template, clients) if picked == "batched" else Sequential(template, clients)
    names = [str(k * (registered // cohort)) for k in range(cohort)]
    plan = Plan(0, 1, (Phase(batch=batch, optimiser=Optimiser(lr=0.01)),))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before, times = peak(device), []
    for _ in range(turns):
        synchronise(device)
        started = time.perf_counter()
        aggregate.average(params, made.train(plan, params, names, {}))
        synchronise(device)
        times.append(time.perf_counter() - started)
    seconds = median(times)
    return {
        "engine": picked,
        "clients": cohort,
        "registered": registered,
        "images_each": images,
        "seconds": round(seconds, 4),
        "images_per_second": round(cohort * images / seconds),
        "chunk": made.chunk(min(batch + 1, images)) if isinstance(made, Batched) else 1,
        "more_gib": round(peak(device) - before, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="no row over a few seconds")
    options = parser.parse_args()
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    source = source_of(32, 3, device) if cuda else source_of(8, 1, device)
    model, batch, turns = ("cnn", 64, 3) if cuda else ("cnn-small", 16, 1 if options.quick else 3)
    cases: list[tuple[str, str, int, int, int, str]] = []
    for clients in (10, 100, 1_000, *(() if options.quick else (10_000,))):
        cases.append(("clients", model, clients, clients, 400 if cuda else 16, "batched"))
    cases.append(("registered", model, 1_000_000, 1_000, 40 if cuda else 8, "batched"))
    for images in (16, 64, 256) if not cuda else (64, 640, 4_000):
        cases.append(("images per client", model, 10, 10, images, "batched"))
    for name in ("cnn-tiny", "cnn-small", "cnn") if not cuda else ("cnn-tiny", "cnn-small", "cnn", "cnn-wide"):
        for engine in ("sequential", "batched"):
            cases.append(("model", name, 10, 10, 64 if not cuda else 640, engine))
    rows = []
    for axis, name, registered, cohort, images, engine in cases:
        made = attempt(
            f"{axis}: {name}",
            lambda n=name, r=registered, c=cohort, i=images, e=engine: one(n, source, r, c, i, batch, e, turns),  # type: ignore[misc]
        )
        rows.append(made)
    print(write("scaling", device, {"rows": rows}))


if __name__ == "__main__":
    main()
