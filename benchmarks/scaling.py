"""How a round grows: with clients (10 to 10,000), with registered clients, with the model, with images per client.

    python benchmarks/scaling.py [--device cuda] [--quick] [--axis registered]

Each row is one round of FedAvg on the engine that `auto` picks or that the row names: seconds, images per second, and
the peak of memory beyond what was there before (the process's on a CPU, the device's on CUDA). On CUDA training is in
bf16 and the first round, which compiles, is not counted. The rows of the axis
`registered` are whole rounds of a server that asks 1,000 of 10,000 and of 100,000 clients: drawing whom to ask,
training, checking, averaging and the ledger.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from unfed import rng
from unfed.client.plan import Optimiser, Phase, Plan
from unfed.data import ClientData, TensorSource
from unfed.engines import Batched, Sequential
from unfed.engines.choice import choose_engine
from unfed.federation import aggregate
from unfed.federation.server import JobServer, Members, Setup
from unfed.federation.state import Settings, State
from unfed.model.functional import Template, forward_flops
from unfed.model.networks import build
from unfed.model.params import params_of
from workload import attempt, median, synchronise, write


def registry(source: TensorSource, count: int, images: int) -> dict[str, ClientData]:
    """So many clients with so many images each."""
    return {str(k): _client(str(k), source, k * images, images) for k in range(count)}


def _client(name: str, source: TensorSource, first: int, images: int) -> ClientData:
    rows = torch.arange(first, first + images) % len(source)
    return ClientData(name, source, rows, torch.arange(images), torch.arange(0))


def source_of(side: int, channels: int, device: torch.device) -> TensorSource:
    generator = rng.generator(0)
    pixels = torch.randint(0, 256, (50_000, channels, side, side), dtype=torch.uint8, generator=generator)
    return TensorSource(pixels.to(device), torch.randint(0, 10, (50_000,), generator=generator), classes=10)


def template_of(module: torch.nn.Module, source: TensorSource) -> Template:
    template = Template(module, source.shape).to(source.images.device, torch.float32)
    template.autocast = torch.bfloat16 if source.images.is_cuda else None
    return template


def peak(device: torch.device) -> float:
    """GiB at the peak so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def one(
    model: str, source: TensorSource, cohort: int, images: int, batch: int, engine: str, turns: int
) -> dict[str, object]:
    device = source.images.device
    module = build(model, shape=source.shape, classes=10, seed=0)
    template = template_of(module, source)
    params = {n: t.to(device) for n, t in params_of(module).items()}
    clients = registry(source, cohort, images)
    picked = choose_engine(engine, template, source, min(batch, images), forward_flops(template)).name
    made = Batched(template, clients) if picked == "batched" else Sequential(template, clients)
    names = list(clients)
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
    seconds = median(times[1:] if device.type == "cuda" else times)
    return {
        "engine": picked,
        "clients": cohort,
        "images_each": images,
        "seconds": round(seconds, 4),
        "images_per_second": round(cohort * images / seconds),
        "chunk": made.chunk(min(batch + 1, images)) if isinstance(made, Batched) else 1,
        "more_gib": round(peak(device) - before, 2),
    }


def served(source: TensorSource, model: str, registered: int, asked: int, images: int, batch: int) -> dict[str, object]:
    """Rounds of a server that asks some of very many clients, each time others."""
    device = source.images.device
    template = template_of(build(model, shape=source.shape, classes=10, seed=0), source)
    settings = Settings(Phase(batch=batch, optimiser=Optimiser(lr=0.01)), participation=asked / registered)
    before, started = peak(device), time.perf_counter()
    clients = registry(source, registered, images)
    engine, flops = Batched(template, clients), forward_flops(template)
    setup = Setup(template, lambda seed: template.like, flops)
    server = JobServer(setup, Members(clients, engine), template.like, settings, 0)
    made, drawing, times, state = time.perf_counter() - started, [], [], State(server.params)
    for _ in range(4):
        synchronise(device)
        started = time.perf_counter()
        server.participants(state.round + 1, server.retained)
        drawing.append(time.perf_counter() - started)
        state = server.recover(state)
        synchronise(device)
        times.append(time.perf_counter() - started - drawing[-1])
    return {
        "engine": engine.name,
        "registered": registered,
        "clients": asked,
        "images_each": images,
        "seconds": round(median(times[1:]), 4),
        "of_which_drawing_whom_to_ask": round(median(drawing[1:]), 4),
        "seconds_to_make_clients_and_server": round(made, 4),
        "more_gib": round(peak(device) - before, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="no row over a few seconds")
    parser.add_argument("--axis", action="append", help="only these: clients, registered, images per client, model")
    options = parser.parse_args()
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    source = source_of(32, 3, device) if cuda else source_of(8, 1, device)
    model, batch, turns = ("cnn", 64, 3) if cuda else ("cnn-small", 16, 1 if options.quick else 3)
    cases: list[tuple[str, str, int, int, str]] = []
    for clients in (10, 100, 1_000, *(() if options.quick else (10_000,))):
        cases.append(("clients", model, clients, 400 if cuda else 16, "batched"))
    for images in (16, 64, 256) if not cuda else (64, 640, 4_000):
        cases.append(("images per client", model, 10, images, "batched"))
    for name in ("cnn-tiny", "cnn-small", "cnn") if not cuda else ("cnn-tiny", "cnn-small", "cnn", "cnn-wide"):
        for engine in ("sequential", "batched"):
            cases.append(("model", name, 10, 64 if not cuda else 640, engine))
    wanted = options.axis or ("registered", *dict.fromkeys(case[0] for case in cases))
    rows = []
    for registered in (10_000, 100_000) if "registered" in wanted else ():
        few = 40 if cuda else 8
        row = attempt(f"registered: {model}", lambda r=registered, n=few: served(source, model, r, 1_000, n, batch))  # type: ignore[misc]
        rows.append(row)
    for axis, name, clients, images, engine in cases:
        if axis in wanted:
            row = attempt(
                f"{axis}: {name}",
                lambda n=name, c=clients, i=images, e=engine: one(n, source, c, i, batch, e, turns),  # type: ignore[misc]
            )
            rows.append(row)
    print(write("scaling", device, {"rows": rows}))


if __name__ == "__main__":
    main()
