"""Speed of the engines against a plain loop and other simulators: the same workload, in one process, in turns.

    python benchmarks/engines.py                            digits on the CPU: 10 clients, then 100
    python benchmarks/engines.py --device cuda              CIFAR-shaped data, the paper's CNN, every variant
    python benchmarks/engines.py --device cuda --variant triton-bf16 --profile

A round trains every client for one epoch, validates and averages. Contestants take turns, so that a busy machine slows
all of them; medians and ratios are printed, and that all of them learn the same. Peers that are not installed are
skipped and named. The plain loop (`nn.Module`, `torch.optim.SGD`, float images on the device) does not augment; unfed
does, on CUDA.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from peers import END_TO_END, PEERS
from unfed.engines import Batched, Engine, Sequential, convolution, kernels, recorded
from unfed.params import Params
from unfed.template import Template
from workload import Workload, attempt, digits, median, rounds, synchronise, synthetic, write

Round = Callable[[], Params]


# --- contestants ------------------------------------------------------------------------------------------------------


def plain(work: Workload) -> Round:
    """A loop as one writes it: one module, one optimiser per client, images prepared as floats beforehand."""
    module = work.fresh().to(work.device)
    state = {n: t.detach().clone() for n, t in module.state_dict().items()}
    data = []
    for client in work.clients.values():
        x, y = work.train.fetch(client.rows[client.view("retain")], None)
        data.append((x, y))

    def one() -> Params:
        nonlocal state
        total = sum(len(y) for _, y in data)
        new = {n: t.clone() for n, t in state.items()}
        for x, y in data:
            module.load_state_dict(state)
            optimiser = torch.optim.SGD(module.parameters(), lr=work.lr, momentum=0.9, weight_decay=5e-4)
            order = torch.randperm(len(y), device=work.device)
            for begin in range(0, len(y), work.batch):
                rows = order[begin : begin + work.batch]
                optimiser.zero_grad()
                F.cross_entropy(module(x[rows]), y[rows]).backward()
                optimiser.step()
            for name, value in module.state_dict().items():
                new[name] += (value - state[name]) * (len(y) / total)
        state = new
        return state

    return one


def engine_rounds(work: Workload, template: Template, engine: Engine) -> Round:
    server = work.server(template, engine)
    state = None

    def one() -> Params:
        nonlocal state
        state = rounds(server, 1, state)
        return state.params

    return one


def sequential(work: Workload) -> Round:
    template = work.template()
    return engine_rounds(work, template, Sequential(template, work.clients))


def batched(work: Workload, compile: bool = False, autocast: torch.dtype | None = None) -> Round:
    template = work.template(autocast)
    return engine_rounds(work, template, Batched(template, work.clients, compile=compile))


def traced(work: Workload) -> Round:
    """The recorded step without a compiler: what the CUDA graph alone gives."""
    one = batched(work, compile=True)

    def with_traced() -> Params:
        recorded.compiler = recorded.as_traced
        try:
            return one()
        finally:
            recorded.compiler = recorded.inductor

    return with_traced


BF16 = torch.bfloat16
# name: (how to make it, grouped convolutions rewritten?, by Triton?, compiler options)
VARIANTS: dict[str, tuple[Callable[[Workload], Round], bool, bool, dict[str, Any]]] = {
    "eager-fp32": (batched, True, True, {}),
    "graph-fp32": (traced, True, True, {}),
    "grouped-fp32": (lambda w: batched(w, True), False, False, {}),
    "grouped-bf16": (lambda w: batched(w, True, BF16), False, False, {}),
    "unfold-fp32": (lambda w: batched(w, True), True, False, {}),
    "unfold-bf16": (lambda w: batched(w, True, BF16), True, False, {}),
    "triton-fp32": (lambda w: batched(w, True), True, True, {}),
    "triton-bf16": (lambda w: batched(w, True, BF16), True, True, {}),
    "triton-bf16-tuned": (lambda w: batched(w, True, BF16), True, True, {"coordinate_descent_tuning": True}),
    "triton-bf16-autotune": (lambda w: batched(w, True, BF16), True, True, {"max_autotune": True}),
}


# --- measuring --------------------------------------------------------------------------------------------------------


def timed(work: Workload, one: Round) -> tuple[float, Params]:
    synchronise(work.device)
    started = time.perf_counter()
    params = one()
    synchronise(work.device)
    return time.perf_counter() - started, params


def in_turns(work: Workload, makers: dict[str, Callable[[Workload], Round]], count: int) -> list[dict[str, object]]:
    """Every contestant runs round after round, in turns; the first round warms up and is not counted."""
    made: dict[str, Round] = {}
    rows: dict[str, dict[str, object]] = {}
    for name, maker in makers.items():
        try:
            made[name] = maker(work)
        except ImportError as error:
            rows[name] = {"name": name, "skipped": f"not installed ({error.name})"}
    times: dict[str, list[float]] = {name: [] for name in made}
    last: dict[str, Params] = {}
    for turn in range(count + 1):
        for name, one in made.items():
            seconds, last[name] = timed(work, one)
            if turn:
                times[name].append(seconds)
    base = median(times["plain loop"])
    for name, seen in times.items():
        seconds = median(seen)
        rows[name] = {
            "name": name,
            "seconds_per_round": round(seconds, 5),
            "rounds_per_second": round(1 / seconds, 3),
            "images_per_second": round(work.images / seconds),
            "ratio_to_plain_loop": round(base / seconds, 2),
            "accuracy": round(work.accuracy(last[name]), 2),
        }
    for name, run in END_TO_END.items():
        try:
            seconds, params = run(work, count)
            each, accuracy = seconds / count, round(work.accuracy(params), 2)
            rows[name] = {"name": name, "seconds_per_round": round(each, 3), "accuracy": accuracy}
            rows[name]["ratio_to_plain_loop"] = round(base / each, 3)
        except ImportError as error:
            rows[name] = {"name": name, "skipped": f"not installed ({error.name})"}
    return [rows[name] for name in (*makers, *END_TO_END)]


def on_cpu(clients: int, count: int) -> dict[str, object]:
    work = digits(clients)
    makers: dict[str, Callable[[Workload], Round]] = {
        "plain loop": plain,
        "unfed sequential": sequential,
        "unfed batched": batched,
        **PEERS,
    }
    rows = in_turns(work, makers, count)
    print(f"\n{work.name}, {clients} clients, {work.images} images a round, {work.model}, {count} rounds")
    for row in rows:
        print("  ", {k: v for k, v in row.items()})
    return {"workload": work.name, "clients": clients, "images": work.images, "rounds": count, "rows": rows}


def on_cuda(options: argparse.Namespace) -> dict[str, object]:
    device = torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    work = synthetic(device, options.clients, options.images, model=options.model, beta=options.beta)
    print(f"{work.name}, {options.clients} clients, {work.images} images a round, {work.model}", flush=True)
    contestants: dict[str, tuple[Callable[[Workload], Round], bool, bool, dict[str, Any]]] = {}
    if not options.variant or "plain" in options.variant:
        contestants["plain loop"] = (plain, True, True, {})
        contestants["unfed sequential"] = (sequential, True, True, {})
        contestants |= {name: (maker, True, True, {}) for name, maker in PEERS.items()}
    contestants |= {n: v for n, v in VARIANTS.items() if not options.variant or n in options.variant}
    rows = []
    for name, (maker, rewriting, triton, compiler) in contestants.items():
        few = name in ("plain loop", "unfed sequential", *PEERS)

        def measure(
            maker: Callable[[Workload], Round] = maker,
            name: str = name,
            few: bool = few,
            rewriting: bool = rewriting,
            triton: bool = triton,
            compiler: dict[str, Any] = compiler,
        ) -> dict[str, object]:
            convolution.enabled, kernels.enabled = rewriting, triton
            recorded.OPTIONS.clear()
            recorded.OPTIONS.update({"triton.cudagraphs": False, **compiler})
            torch.cuda.reset_peak_memory_stats()
            one = maker(work)
            first, _ = timed(work, one)
            seen = [timed(work, one) for _ in range(2 if few else options.rounds)]
            seconds = median([s for s, _ in seen])
            if options.profile and not few:
                profile(name, one)
            return {
                "seconds_per_round": round(seconds, 5),
                "images_per_second": round(work.images / seconds),
                "first_round_seconds": round(first, 1),
                "spread": [round(min(s for s, _ in seen), 5), round(max(s for s, _ in seen), 5)],
                "accuracy": round(work.accuracy(seen[-1][1]), 2),
                "rounds": len(seen) + 1,
                "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
            }

        rows.append(attempt(name, measure))
    for row in sorted(rows, key=lambda row: -float(str(row.get("images_per_second", 0)))):
        print(f"{row['name']!s:24} {row.get('images_per_second', row.get('failed'))!s:>12} images/s")
    return {"workload": work.name, "clients": options.clients, "images": work.images, "rows": rows}


def profile(name: str, one: Round) -> None:
    """Where a round's time goes: the fifteen longest kernels, to $OUT if set and to the screen."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        one()
        torch.cuda.synchronize()
    table = seen.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=90)
    lines = [line for line in table.splitlines() if line.strip()]
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], f"profile-{name}.txt").write_text(table)
    print("\n".join(line[:92] + line[-110:] for line in lines[:30]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=50_000, help="CUDA: images in all; 80 %% of them are trained on")
    parser.add_argument("--model", default="cnn", help="CUDA: the network")
    parser.add_argument("--beta", type=float, help="CUDA: Dirichlet instead of IID")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--variant", action="append", help=f"CUDA: plain, or {', '.join(VARIANTS)}; repeat for more")
    parser.add_argument("--profile", action="store_true", help="CUDA: a kernel table of every variant")
    options = parser.parse_args()
    if options.device == "cuda":
        print(write("engines", torch.device("cuda"), on_cuda(options)))
        return
    runs = [on_cpu(10, options.rounds), on_cpu(100, max(3, options.rounds // 2))]
    print(write("engines", torch.device("cpu"), {"runs": runs}))


if __name__ == "__main__":
    main()
