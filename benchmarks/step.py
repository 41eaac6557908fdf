"""What a recorded step is made of on a GPU: its kernels in order, and what a round costs around its steps.

    PYTHONPATH=src python benchmarks/step.py [--federations 1,8] [--precision bf16]

The fitted CNN, 10 clients x 64 images a step and federation. A round is timed as it is; then one more is traced, and
the kernels of one step of it are listed with their microseconds. Written to benchmarks/records/ and $OUT as text.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from alike import PRECISIONS
from engines import batched, timed
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


def around(where: str, events: list[Any]) -> str:
    """What a round does before its first step, or after its last."""
    busy = sum(e.time_range.elapsed_us() for e in events)
    whole = events[-1].time_range.end - events[0].time_range.start
    longest = sorted(events, key=lambda e: -e.time_range.elapsed_us())[:4]
    names = ", ".join(f"{e.time_range.elapsed_us():.0f} us {e.name[:60]}" for e in longest)
    return f"traced: {where} the steps {len(events)} kernels in {whole:.0f} us, {busy:.0f} busy; longest: {names}"


def lines_of(federations: int, precision: str) -> list[str]:
    """What a round and one of its steps are made of."""
    device = torch.device("cuda")
    work = synthetic(device, 10 * federations, 50_000 * federations)
    one = batched(work, True, PRECISIONS[precision])
    for _ in range(3):
        timed(work, one)
    seconds = median([timed(work, one)[0] for _ in range(20)])
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
        f"traced: first step ends {begun - events[0].time_range.start:.0f} us after the round's first kernel",
        around("before", events[: ends[0] + 1 - len(step)]),
        around("after", events[ends[-1] + 1 :]),
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
