"""Speed of the engines against a plain loop and other simulators: the same workload, in one process, in turns.

    python benchmarks/engines.py                            digits on the CPU: 10 clients, then 100
    python benchmarks/engines.py --device cuda              CIFAR-shaped data, the fitted CNN, every variant
    python benchmarks/engines.py --device cuda --variant plain --variant fused-bf16 --profile

A round trains every client for one epoch, validates and averages. Every contestant does the same work: where the data
is augmented (CUDA: pad, crop, flip), the plain loop and pfl augment too, by the same function of random words. All of
them run the same number of rounds, and then their accuracies must agree within a stated number of points: the record
says `learn_the_same`, and the exit code is 1 if they do not. On the CPU contestants take turns, so that a busy machine
slows all of them; medians and ratios are printed. Peers that are not installed are skipped and named.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from peers import END_TO_END, PEERS
from unfed.engines import Batched, Engine, Sequential
from unfed.engines.compiled import handwritten, recorded
from unfed.model.functional import Template
from unfed.model.params import Params
from workload import Workload, attempt, digest, digits, median, rounds, synchronise, synthetic, write

Round = Callable[[], Params]


# --- contestants ------------------------------------------------------------------------------------------------------


def plain(work: Workload, autocast: torch.dtype | None = None, compile: bool = False) -> Round:
    """A loop as one writes it: one module, one optimiser per client; images that are not augmented are prepared as
    floats beforehand."""
    module = work.fresh().to(work.device)
    network = torch.compile(module) if compile else module
    state = {n: t.detach().clone() for n, t in module.state_dict().items()}
    data = [work.batches(client) for client in work.clients.values()]
    total = sum(len(batches) for batches in data)

    def one() -> Params:
        nonlocal state
        new = {n: t.clone() for n, t in state.items()}
        for batches in data:
            module.load_state_dict(state)
            optimiser = torch.optim.SGD(module.parameters(), lr=work.lr, momentum=0.9, weight_decay=5e-4)
            order = torch.randperm(len(batches), device=work.device)
            for begin in range(0, len(batches), work.batch):
                x, y = batches(order[begin : begin + work.batch])
                optimiser.zero_grad()
                with torch.autocast(work.device.type, autocast, enabled=autocast is not None):
                    loss = F.cross_entropy(network(x), y)
                loss.backward()
                optimiser.step()
            for name, value in module.state_dict().items():
                new[name] += (value - state[name]) * (len(batches) / total)
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


def sequential(work: Workload, compile: bool = False, autocast: torch.dtype | None = None) -> Round:
    template = work.template(autocast)
    return engine_rounds(work, template, Sequential(template, work.clients, compile=compile))


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


@dataclass(frozen=True)
class Variant:
    """One way to run the workload on CUDA."""

    make: Callable[[Workload], Round]
    rewritten: bool = True
    """Grouped convolutions replaced by operators of our own…"""
    triton: bool = True
    """… whose kernels are Triton's."""
    fused: bool = False
    """Whole blocks at once."""


OTHERS = {
    "plain loop": Variant(plain),
    "unfed sequential": Variant(sequential),
    **{name: Variant(maker) for name, maker in PEERS.items()},
}
VARIANTS = {
    "sequential-fp32": Variant(lambda w: sequential(w, True)),
    "sequential-bf16": Variant(lambda w: sequential(w, True, BF16)),
    "eager-fp32": Variant(batched),
    "graph-fp32": Variant(traced),
    "grouped-bf16": Variant(lambda w: batched(w, True, BF16), rewritten=False, triton=False),
    "unfold-bf16": Variant(lambda w: batched(w, True, BF16), triton=False),
    "triton-fp32": Variant(lambda w: batched(w, True)),
    "triton-bf16": Variant(lambda w: batched(w, True, BF16)),
    "fused-fp32": Variant(lambda w: batched(w, True), fused=True),
    "fused-bf16": Variant(lambda w: batched(w, True, BF16), fused=True),
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
            seconds, params = run(work, count + 1)
            each, accuracy = seconds / (count + 1), round(work.accuracy(params), 2)
            rows[name] = {"name": name, "seconds_per_round": round(each, 3), "accuracy": accuracy}
            rows[name]["ratio_to_plain_loop"] = round(base / each, 3)
        except ImportError as error:
            rows[name] = {"name": name, "skipped": f"not installed ({error.name})"}
    return [rows[name] for name in (*makers, *END_TO_END)]


def agreement(rows: Sequence[dict[str, object]], tolerance: float) -> dict[str, object]:
    """Whether all contestants that finished stand within `tolerance` points of each other."""
    reached = [float(str(row["accuracy"])) for row in rows if "accuracy" in row]
    apart = round(max(reached) - min(reached), 2) if reached else 0.0
    same = apart <= tolerance and not any("failed" in row for row in rows)
    print(f"   accuracies {apart} points apart, {tolerance} allowed: learn the same: {same}", flush=True)
    return {"learn_the_same": same, "accuracies_apart": apart, "accuracies_allowed": tolerance}


def on_cpu(clients: int, lr: float, options: argparse.Namespace) -> dict[str, object]:
    work = digits(clients, lr=lr)
    makers: dict[str, Callable[[Workload], Round]] = {
        "plain loop": plain,
        "unfed sequential": sequential,
        "unfed batched": batched,
        **PEERS,
    }
    count = options.rounds
    rows = in_turns(work, makers, count)
    print(f"\n{work.name}, {clients} clients, {work.images} images a round, {work.model}, {count + 1} rounds")
    for row in rows:
        print("  ", {k: v for k, v in row.items()})
    head = {"workload": work.name, "clients": clients, "images": work.images, "rounds": count + 1, "lr": lr}
    return {**head, **agreement(rows, options.tolerance), "rows": rows}


def on_cuda(options: argparse.Namespace) -> dict[str, object]:
    device = torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    work = synthetic(device, options.clients, options.images, model=options.model, beta=options.beta)
    print(f"{work.name}, {options.clients} clients, {work.images} images a round, {work.model}", flush=True)
    wanted = options.variant or ["plain", *VARIANTS]
    contestants = (OTHERS if "plain" in wanted else {}) | {n: v for n, v in VARIANTS.items() if n in wanted}
    rows = [attempt(name, lambda n=name, v=v: measured(n, v, work, options)) for name, v in contestants.items()]  # type: ignore[misc]
    base = next((float(str(r["images_per_second"])) for r in rows if r["name"] == "plain loop"), None)
    for row in sorted(rows, key=lambda row: -float(str(row.get("images_per_second", 0)))):
        speed = row.get("images_per_second")
        if base is not None and speed is not None:
            row["ratio_to_plain_loop"] = round(float(str(speed)) / base, 2)
        said = row.get("images_per_second", row.get("failed", row.get("skipped")))
        print(f"{row['name']!s:24} {said!s:>12} images/s {row.get('ratio_to_plain_loop', '')!s:>8}")
    head = {"workload": work.name, "model": work.model, "clients": options.clients, "images": work.images}
    return {**head, **agreement(rows, options.tolerance), "rows": rows}


def measured(name: str, variant: Variant, work: Workload, options: argparse.Namespace) -> dict[str, object]:
    """A contestant's row: one round to warm up, then as many as were asked for, and the accuracy after all of them."""
    handwritten.chosen = handwritten.Handwritten(
        products=variant.rewritten, triton=variant.triton, blocks=variant.fused
    )
    torch.cuda.reset_peak_memory_stats()
    try:
        one = variant.make(work)
    except ImportError as error:
        return {"skipped": f"not installed ({error.name})"}
    first, _ = timed(work, one)
    seen = [timed(work, one) for _ in range(options.rounds)]
    times = [seconds for seconds, _ in seen]
    if options.profile and name in VARIANTS:
        profile(name, one)
    return {
        "seconds_per_round": round(median(times), 5),
        "images_per_second": round(work.images / median(times)),
        "first_round_seconds": round(first, 1),
        "spread": [round(min(times), 5), round(max(times), 5)],
        "accuracy": round(work.accuracy(seen[-1][1]), 2),
        "digest": digest(seen[-1][1]),
        "rounds": len(seen) + 1,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


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
    parser.add_argument("--tolerance", type=float, default=3.0, help="points by which accuracies may differ at the end")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.device == "cuda":
        body = on_cuda(options)
    else:
        # A hundred clients take one step each: at the rate of ten clients nobody would learn anything in ten rounds.
        runs = [on_cpu(10, 0.01, options), on_cpu(100, 0.03, options)]
        body = {"learn_the_same": all(run["learn_the_same"] for run in runs), "runs": runs}
    print(write("engines", device, body))
    sys.exit(0 if body["learn_the_same"] else 1)


if __name__ == "__main__":
    main()
