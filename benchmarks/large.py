"""Large models, one client after another: ViT-B/16 and ResNet-18 at 224, batch 64, against the device's own rate.

    PYTHONPATH=src python benchmarks/large.py --part vit-plain --part vit-unfed [--profile]
    PYTHONPATH=src python benchmarks/large.py --part vit-unfed --option max_autotune=1
    python benchmarks/large.py --smoke                      tiny models on the CPU: does it run at all?

`matmul` measures what the device gives to matrix products: a large square one, and those of a ViT. `…-plain` is a loop
as one writes it for speed: `torch.compile`, bf16 autocast, fused SGD, channels-last for convolutions, images on the
device. `…-unfed` are whole rounds of unfed's sequential engine, averaging included. Images are random: only time is
measured here; that the results are right is shown by `gpu_check.py`. A compilation takes a minute or two, so each part
can be run alone; rows of the same day are added to one record, as they come.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from unfed.data import ClientData, TensorSource, Transform
from unfed.engines import Sequential
from unfed.engines.choice import fixed_order
from unfed.engines.compiled import recorded
from unfed.model.functional import forward_flops
from unfed.model.params import Params
from workload import Batches, Workload, add_rows, attempt, digest, median, rounds, synchronise

BF16 = torch.bfloat16
ATTENTION = {
    "cudnn": [SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
}


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    vit: str
    resnet: str
    side: int
    batch: int
    images: int
    clients: int
    square: int


FULL = Scale("vit-b-16", "resnet18", 224, 64, 512, 3, 8192)
SMOKE = Scale("vit-tiny", "resnet-tiny", 32, 8, 20, 2, 256)


def work_of(model: str, classes: int, scale: Scale, device: torch.device) -> Workload:
    """Clients with random uint8 images, stored a little larger than they are cropped to."""
    torch.manual_seed(0)
    count, stored = scale.clients * scale.images, scale.side * 8 // 7
    pixels = torch.randint(0, 256, (count, 3, stored, stored), dtype=torch.uint8, device=device)
    labels = torch.randint(0, classes, (count,))
    transform = Transform(crop=scale.side, flip=0.5, mean=(0.48, 0.46, 0.41), std=(0.23, 0.22, 0.23))
    source = TensorSource(pixels, labels, classes=classes, transform=transform)
    parts = torch.arange(count).split(scale.images)
    none = torch.arange(0)
    clients = {str(k): ClientData(str(k), source, rows, torch.arange(len(rows)), none) for k, rows in enumerate(parts)}
    return Workload(f"random {stored}x{stored}", model, clients, source, source, scale.batch, 1e-3, device)


# --- contestants ------------------------------------------------------------------------------------------------------


def plain(work: Workload, smoke: bool) -> Callable[[], object]:
    """One epoch over every client's images, from the weights the last one left: the device's work without a server."""
    last = torch.channels_last if work.model.startswith("resnet") else torch.contiguous_format
    module: Any = work.fresh().to(work.device, memory_format=last).train()
    run = module if smoke else torch.compile(module)
    data = [Batches(work.train, client.rows) for client in work.clients.values()]

    def one() -> None:
        for batches in data:
            optimiser = torch.optim.SGD(module.parameters(), work.lr, momentum=0.9, weight_decay=5e-4, fused=True)
            order = torch.randperm(len(batches), device=work.device)
            for begin in range(0, len(batches), work.batch):
                x, y = batches(order[begin : begin + work.batch])
                optimiser.zero_grad(set_to_none=True)
                with torch.autocast(work.device.type, BF16):
                    loss = F.cross_entropy(run(x.contiguous(memory_format=last)), y)
                loss.backward()
                optimiser.step()

    return one


def unfed(work: Workload, autocast: torch.dtype | None, compile: bool = True) -> Callable[[], object]:
    template = work.template(autocast)
    server = work.server(template, Sequential(template, work.clients, compile=compile))
    state = None

    def one() -> Params:
        nonlocal state
        state = rounds(server, 1, state)
        return state.params

    return one


def matmul(scale: Scale, device: torch.device) -> dict[str, object]:
    """TFLOP/s of bf16 products: a large square one, and those of a ViT's step."""
    tokens = 64 if scale is SMOKE else scale.batch * 197
    n = scale.square
    shapes = {
        f"square {n}": (n, n, n),
        "vit qkv": (tokens, 768, 2304),
        "vit mlp in": (tokens, 768, 3072),
        "vit mlp out": (tokens, 3072, 768),
        "vit mlp weight gradient": (768, tokens, 3072),
    }
    found: dict[str, object] = {}
    for name, (m, k, columns) in shapes.items():
        a = torch.randn(m, k, device=device, dtype=BF16)
        b = torch.randn(k, columns, device=device, dtype=BF16)
        turns = 30 if device.type == "cuda" else 1
        for _ in range(3 if device.type == "cuda" else 0):
            a @ b
        synchronise(device)
        started = time.perf_counter()
        for _ in range(turns):
            a @ b
        synchronise(device)
        found[name] = round(turns * 2 * m * k * columns / (time.perf_counter() - started) / 1e12, 1)
    return {"tflops": found, "rate": found[f"square {n}"]}


# --- measuring --------------------------------------------------------------------------------------------------------


def timed(
    name: str, work: Workload, maker: Callable[[], Callable[[], object]], rate: float, options: argparse.Namespace
) -> dict[str, object]:
    """One round to compile and warm up, then the median of some."""
    cuda = work.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    one, times = maker(), []
    for _ in range(options.rounds + 1):
        synchronise(work.device)
        started = time.perf_counter()
        last = one()
        synchronise(work.device)
        times.append(time.perf_counter() - started)
    seconds, bits = median(times[1:]), digest(last) if isinstance(last, dict) else "not compared"
    if options.profile and cuda:
        profile(name, one)
    flops = 3 * forward_flops(work.template()) * work.images / seconds
    return {
        "model": work.model,
        "batch": work.batch,
        "images": work.images,
        "seconds_per_round": round(seconds, 4),
        "images_per_second": round(work.images / seconds),
        "model_tflops": round(flops / 1e12, 1),
        "share_of_matrix_rate": round(flops / 1e12 / rate, 3) if rate else "not measured: no rate",
        "first_round_seconds": round(times[0], 1),
        "spread": [round(min(times[1:]), 4), round(max(times[1:]), 4)],
        "digest": bits,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else "not measured: no CUDA",
    }


def profile(name: str, one: Callable[[], object]) -> None:
    """The longest kernels of a round, and the longest pauses between kernels, to $OUT if set and to the screen."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as seen:
        one()
        torch.cuda.synchronize()
    kernels = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in kernels) or 1
    lines = [f"{total / 1e3:10.3f} ms on the device in all"]
    for e in kernels[:70]:
        spent = e.self_device_time_total
        lines.append(f"{spent / 1e3:10.3f} ms {100 * spent / total:5.1f} % {e.count:6d} x {e.key}")
    events = sorted(
        (e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA), key=lambda e: e.time_range.start
    )
    pauses = [(b.time_range.start - a.time_range.end, a.name, b.name) for a, b in pairwise(events)]
    waited = sum(p for p, *_ in pauses if p > 0)
    span = events[-1].time_range.end - events[0].time_range.start
    lines.append(f"{span / 1e3:10.3f} ms from the first kernel to the last, {waited / 1e3:.3f} ms of them without one:")
    lines += [f"{p / 1e3:10.3f} ms after {a[:60]} before {b[:60]}" for p, a, b in sorted(pauses, reverse=True)[:12]]
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], f"profile-large-{name}.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(line[:150] for line in lines[:25]), flush=True)


PARTS = (
    "matmul",
    *(f"{m}-{p}" for m in ("vit", "resnet") for p in ("plain", "unfed", "unfed-fp32", "unfed-reference")),
)


def part(name: str, scale: Scale, device: torch.device, rate: float, options: argparse.Namespace) -> dict[str, object]:
    if name == "matmul":
        return matmul(scale, device)
    kind, _, way = name.partition("-")
    work = work_of(*((scale.vit, 101) if kind == "vit" else (scale.resnet, 10)), scale, device)
    makers: dict[str, Callable[[], Callable[[], object]]] = {
        "plain": lambda: plain(work, options.smoke),
        "unfed": lambda: unfed(work, BF16),
        "unfed-fp32": lambda: unfed(work, None),
        "unfed-reference": lambda: unfed(work, BF16, compile=False),
    }
    return timed(name, work, makers[way], rate, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only these; repeat for more")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, help="images in a batch; a client has eight batches")
    parser.add_argument("--option", action="append", default=[], help="for the compiler of unfed's step: name=1")
    parser.add_argument(
        "--attention", choices=sorted(ATTENTION), help="the kernel of attention; default: PyTorch's choice"
    )
    parser.add_argument("--fixed-order", action="store_true", help="deterministic libraries, as `unfed run` asks for")
    parser.add_argument("--profile", action="store_true", help="the longest kernels of every part, also to $OUT")
    parser.add_argument("--smoke", action="store_true", help="tiny models on the CPU; no record is written")
    options = parser.parse_args()
    device, scale = torch.device("cpu" if options.smoke else "cuda"), SMOKE if options.smoke else FULL
    if options.batch:
        scale = replace(scale, batch=options.batch, images=8 * options.batch)
    if options.smoke:
        recorded.compiler = recorded.as_traced
    else:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if options.fixed_order:
        fixed_order(device)
    recorded.OPTIONS.update({name: bool(int(value)) for name, value in (o.split("=") for o in options.option)})
    rows, rate = [], 0.0
    for name in dict.fromkeys(["matmul", *(options.part or PARTS)]):  # a share needs the rate of the same day and card
        with sdpa_kernel(ATTENTION[options.attention]) if options.attention else nullcontext():
            row = attempt(name, lambda n=name, r=rate: part(n, scale, device, r, options))  # type: ignore[misc]
        rate = float(str(row.get("rate", rate)))
        row |= {
            "options": options.option,
            "attention": options.attention or "default",
            "fixed_order": options.fixed_order,
        }
        rows.append(row)
        if not options.smoke:
            add_rows("large", device, [row])
    if any("failed" in row for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
