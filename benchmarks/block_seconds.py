"""Where the seconds of a block of table 1 go, read from the evaluated rounds of kept results.

    PYTHONPATH=src python benchmarks/block_seconds.py results/cifar10-cnn-….json --seed 2

Of every job: its rounds' seconds, what passed before round 1 (a method's own beginning, with what that compiles), how
much longer the first evaluated stretch took than the median one (compiling the round's step), and the median round.
Evaluation, start and saving are no rounds and are not in here.
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import paper_record as record

from unfed.report.tables import name_of

HEAD = "| Job | seconds | before round 1 | first stretch, beyond the median one | median round, ms |"


def table(path: Path, seed: int) -> str:
    """A line per job of one seed, and their sum."""
    lines, total = [HEAD, "|---|---:|---:|---:|---:|"], 0.0
    for name, columns in record.read(path).jobs.items():
        own, label = name.partition("/")[0], name.rpartition("/")[2]
        if own != str(seed) or len(columns["round"]) < 3:
            continue
        rounds, seconds = columns["round"], columns["seconds"]
        stretches = [(b - a) / (s - r) for (r, s), (a, b) in zip(pairwise(rounds), pairwise(seconds), strict=True)]
        usual = median(stretches)
        first = (stretches[0] - usual) * (rounds[1] - rounds[0])
        total += seconds[-1]
        title = "θ*" if label == "train" else name_of(label)
        lines.append(f"| {title} | {seconds[-1]:.0f} | {seconds[0]:.1f} | {max(0.0, first):.1f} | {1000 * usual:.1f} |")
    return "\n".join([*lines, f"| together | {total:.0f} | | | |"]) + "\n"


def main() -> None:
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("results", type=Path)
    told.add_argument("--seed", type=int, default=0)
    given = told.parse_args()
    print(table(given.results, given.seed))


if __name__ == "__main__":
    main()
