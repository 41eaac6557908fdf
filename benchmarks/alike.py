"""Like for like: our engine, a plain loop, a compiled loop and pfl, each in float32 and bf16, on real CIFAR-10.

    UNFED_DATA=DATA python benchmarks/alike.py --device cuda --clients 1,10,100        rows into the day's record
    python benchmarks/alike.py --draw RECORD.jsonl docs/speed.svg                      its figure; prints the table

Everyone trains the fitted CNN for one epoch a round on the same rows with the same augmentation, then averages. All
contestants take turns, round by round; the first round warms up. float32 means TF32 products for all of them. After as
many rounds as were timed, accuracies must agree within `--tolerance` points, or the exit code is 1. For pfl
0.6.0 unpack also multiprocess, dill, dp-accounting, absl-py, attrs, dm-tree, prv-accountant, h5py and mpmath.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from engines import BF16, Round, batched, plain, timed
from peers import pfl
from unfed.engines.compiled import handwritten
from unfed.report.drawing import drawn
from workload import Workload, add_rows, attempt, cifar10, median, synthetic

CONTESTANTS: dict[str, Callable[[Workload, torch.dtype | None], Round]] = {
    "plain loop": plain,
    "compiled loop": partial(plain, compile=True),
    "pfl": pfl,
    "unfed": lambda work, autocast: batched(work, work.device.type == "cuda", autocast),
}
PRECISIONS = {"float32": None, "bf16": BF16}


def raced(work: Workload, rounds: int) -> list[dict[str, object]]:
    """Every contestant in both precisions, in turns."""
    made: dict[tuple[str, str], Round] = {}
    rows: list[dict[str, object]] = []

    def begin(name: str, precision: str) -> dict[str, object]:
        one = CONTESTANTS[name](work, PRECISIONS[precision])
        seconds, _ = timed(work, one)
        made[name, precision] = one
        return {"precision": precision, "first_round_seconds": round(seconds, 1)}

    for name in CONTESTANTS:
        for precision in PRECISIONS:
            row = attempt(name, partial(begin, name, precision))
            rows += [] if "precision" in row else [{**row, "precision": precision}]
    seen: dict[tuple[str, str], list[float]] = {who: [] for who in made}
    last = {}
    for _ in range(rounds):
        for who, one in made.items():
            seconds, last[who] = timed(work, one)
            seen[who].append(seconds)
    for (name, precision), times in seen.items():
        speed, reached = round(work.images / median(times)), round(work.accuracy(last[name, precision]), 2)
        rows.append({"name": name, "precision": precision, "images_per_second": speed, "accuracy": reached})
    return [{"clients": len(work.clients), "images": work.images, "data": work.name, **row} for row in rows]


def draw(record: Path, picture: Path) -> None:
    """images/s against clients, a line per contestant, bf16 solid and float32 dashed; and the table of ten clients."""
    from matplotlib.figure import Figure

    rows = [row for row in map(json.loads, record.read_text().splitlines()) if "images_per_second" in row]
    axes = (figure := Figure(figsize=(6.4, 3.6), layout="constrained")).add_subplot()
    for place, name in enumerate(CONTESTANTS):
        for precision, style in (("bf16", "-"), ("float32", "--")):
            own = sorted(
                (r["clients"], r["images_per_second"]) for r in rows if (r["name"], r["precision"]) == (name, precision)
            )
            axes.plot(*zip(*own, strict=True), style, color=f"C{place}", marker="o", label=f"{name}, {precision}")
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="images per second")
    counts = sorted({r["clients"] for r in rows})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.legend(fontsize=8)
    picture.write_text(drawn(figure, "speed"), encoding="utf-8")
    print("| images/s, 10 clients | float32 | bf16 |\n|---|---:|---:|")
    for name in CONTESTANTS:
        at = {r["precision"]: r["images_per_second"] for r in rows if (r["name"], r["clients"]) == (name, 10)}
        print(f"| {name} | {at.get('float32', 0):,} | {at.get('bf16', 0):,} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--clients", default="10", help="how many, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, help="so many drawn images instead of CIFAR-10: a first look")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--tolerance", type=float, default=3.0, help="points by which accuracies may differ")
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("RECORD", "PICTURE"), help="only draw a record")
    options = parser.parse_args()
    if options.draw:
        draw(*options.draw)
        return
    device, apart = torch.device(options.device), 0.0
    torch.backends.cuda.matmul.allow_tf32 = True
    handwritten.chosen = handwritten.Handwritten(blocks=True)
    for clients in map(int, options.clients.split(",")):
        work = (
            synthetic(device, clients, options.images, model=options.model)
            if options.images
            else cifar10(device, clients, options.model)
        )
        rows = raced(work, options.rounds)
        add_rows("alike", device, rows)
        reached = [float(str(row["accuracy"])) for row in rows if "accuracy" in row]
        apart = max(apart, max(reached) - min(reached))
        print(*rows, sep="\n")
    sys.exit(apart > options.tolerance)


if __name__ == "__main__":
    main()
