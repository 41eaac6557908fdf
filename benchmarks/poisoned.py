"""What a poisoned client costs: rounds with and without one, in turns, in one process.

    PYTHONPATH=src python benchmarks/poisoned.py                      CUDA, CIFAR-sized data, the fitted CNN, bf16
    PYTHONPATH=src python benchmarks/poisoned.py --device cpu --images 400 --model cnn-tiny --precision float32

Ten clients; in the poisoned federation client 0 has stamped the trigger on 80 % of its images and relabelled them. Both
federations train the same images by the same engine. The record says images/s of both, their ratio, and whether the
compiler took the poisoned step; the exit code is 1 if the poisoned rounds are more than a tenth slower, or uncompiled.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import replace

import torch

from engines import batched, timed
from unfed.data import backdoor
from unfed.errors import UnfedWarning
from workload import Workload, median, synthetic, write

ALLOWED = 0.9
"""Images/s of the poisoned rounds, of those without."""


def poisoned(work: Workload) -> Workload:
    """The same federation, its first client an attacker."""
    first = work.clients["0"]
    source = backdoor(work.train, first.rows[first.train], target_class=0, seed=0)
    clients = {name: replace(client, source=source) for name, client in work.clients.items()}
    return replace(work, name=f"{work.name}, client 0 poisoned", clients=clients, train=source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--images", type=int, default=50_000, help="in all; 80 %% of them are trained on")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--precision", choices=("bf16", "float32"), default="bf16")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    device, autocast = torch.device(options.device), torch.bfloat16 if options.precision == "bf16" else None
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    plain = synthetic(device, images=options.images, model=options.model)
    works = {"plain": plain, "poisoned": poisoned(plain)}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = {name: batched(work, device.type == "cuda", autocast) for name, work in works.items()}
        first = {name: timed(works[name], one)[0] for name, one in made.items()}
    fallen_back = sorted({str(w.message) for w in said if issubclass(w.category, UnfedWarning)})
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(options.rounds):
        for name, one in made.items():
            times[name].append(timed(works[name], one)[0])
    speeds = {name: works[name].images / median(seen) for name, seen in times.items()}
    ratio = speeds["poisoned"] / speeds["plain"]
    ok = ratio >= ALLOWED and not fallen_back
    body: dict[str, object] = {
        "workload": plain.name,
        "model": plain.model,
        "precision": options.precision,
        "clients": len(plain.clients),
        "images": plain.images,
        "stamped": int(works["poisoned"].train.stamped.sum()),  # type: ignore[union-attr]
        "rounds": options.rounds,
        "images_per_second": {name: round(speed) for name, speed in speeds.items()},
        "spread_seconds": {name: [round(min(seen), 5), round(max(seen), 5)] for name, seen in times.items()},
        "first_round_seconds": {name: round(seconds, 1) for name, seconds in first.items()},
        "poisoned_to_plain": round(ratio, 3),
        "allowed": ALLOWED,
        "said": fallen_back,
        "ok": ok,
    }
    print(body)
    print(write("poisoned", device, body))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
