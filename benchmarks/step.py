"""What a recorded step is made of on a GPU: its kernels in order, and what a round costs around its steps.

    PYTHONPATH=src python benchmarks/step.py [--federations 1,8] [--precision bf16]

The fitted CNN, 10 clients x 64 images a step and federation. A round is timed as it is; then one more is traced, and
the kernels of one step of it are listed with their microseconds. Written to benchmarks/records/ and $OUT as text.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from alike import PRECISIONS
from engines import Round, batched, timed
from unfed.engines.compiled import recorded
from workload import RECORDS, hardware, median, synthetic

LAST = "weight_at_once"
"""The kernel that a step of this network ends its backward pass with."""


def gaps(steps: list[Any]) -> list[str]:
    """Where the device waits: the three longest pauses before a kernel of a step, medians over all steps. The one
    between two replays is the most that several steps in one graph could save."""
    before = []
    for place in range(1, len(steps[0])):
        waits = [max(0.0, s[place].time_range.start - s[place - 1].time_range.end) for s in steps]
        before.append((median(waits), steps[0][place].name[:60]))
    total = sum(wait for wait, _ in before)
    longest = sorted(before, reverse=True)[:3]
    return [
        f"traced: {total:.1f} us a step without a kernel; the longest pauses: "
        + ", ".join(f"{wait:.1f} us before {name}" for wait, name in longest)
    ]


def timeline(one: Round) -> str:
    """What a round is made of on the device, without a tracer: medians over 15 rounds."""
    deck = [deck for decks in recorded._decks.values() for deck in decks.values()][-1]
    marks: dict[str, torch.cuda.Event] = {}

    def marked(name: str, replay: Callable[[], object]) -> Callable[[], None]:
        def call() -> None:
            if name not in marks:
                marks[name] = torch.cuda.Event(enable_timing=True)
                marks[name].record()
            replay()
            marks[f"after {name}"] = torch.cuda.Event(enable_timing=True)
            marks[f"after {name}"].record()

        return call

    steps, deal = dict(deck._steps), deck._deal
    assert deal is not None
    deck._steps.update({shape: marked("step", replay) for shape, replay in steps.items()})
    deck._deal = marked("deal", deal)
    found = []
    for _ in range(15):
        marks.clear()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        one()
        end.record()
        torch.cuda.synchronize()
        order = [begin, marks["deal"], marks["after deal"], marks["step"], marks["after step"], end]
        found.append([a.elapsed_time(b) * 1e3 for a, b in pairwise(order)])
    deck._steps.update(steps)
    deck._deal = deal
    names = ("to the shuffle", "shuffle", "to the first step", "steps", "after them")
    return "on the device, us: " + ", ".join(
        f"{n} {median(c):.0f}" for n, c in zip(names, zip(*found, strict=True), strict=True)
    )


def lines_of(federations: int, precision: str) -> list[str]:
    """What a round and one of its steps are made of."""
    device = torch.device("cuda")
    work = synthetic(device, 10 * federations, 50_000 * federations)
    one = batched(work, True, PRECISIONS[precision])
    for _ in range(3):
        timed(work, one)
    seconds = median([timed(work, one)[0] for _ in range(20)])
    between = timeline(one)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        timed(work, one)
    events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda e: e.time_range.start)
    ends = [i for i, e in enumerate(events) if e.name.startswith(LAST)]
    begun, last = events[ends[0]].time_range.start, events[ends[-1]].time_range.start
    step = events[ends[5] + 1 : ends[6] + 1]
    return [
        f"== {precision}, federations side by side: {federations}",
        f"a round of {work.images} images: {seconds * 1e3:.2f} ms, {work.images / seconds:,.0f} images/s",
        f"traced: {(last - begun) / (len(ends) - 1):.1f} us from step to step, {len(step)} kernels,"
        f" {sum(e.time_range.elapsed_us() for e in step):.1f} us of them busy",
        between,
        *gaps([events[a + 1 : b + 1] for a, b in pairwise(ends) if b - a == ends[6] - ends[5]]),
        *(f"{e.time_range.elapsed_us():8.1f} us  {e.name[:110]}" for e in step),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", default="1", help="how many, with commas")
    parser.add_argument("--precision", default="bf16", help="bf16, float32, or both with a comma")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    called = " ".join(["python benchmarks/step.py", *sys.argv[1:]])
    device = torch.device("cuda")
    lines = [f"{datetime.now(UTC):%Y-%m-%d}, {hardware(device)}, torch {torch.__version__}: {called}"]
    name = f"{datetime.now(UTC):%Y-%m-%d}-step-cuda.txt"
    for precision in options.precision.split(","):
        for federations in map(int, options.federations.split(",")):
            lines += (found := lines_of(federations, precision))
            print("\n".join(found), flush=True)
            for folder in (RECORDS, os.environ.get("OUT")):
                if folder:
                    (Path(folder) / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
