"""A run's methods side by side, round by round: what each reading of a method leads to.

    python benchmarks/readings/table.py RUN [--at 10,100,300] [--seed 0] [--kept results/FILE.json --of retrain,ft]

Retain / forget / test in % at the evaluated rounds nearest before those asked for, the last round, and how much of θ*
is left in the model that came out: cosine and relative distance ‖θ − θ*‖ / ‖θ*‖ over all parameters. `--kept` puts
methods of an earlier run of the same seed below them, whose models are gone; what a revision outdated is refused.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import paper_record as record

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--at", default="10,100,300")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--of", default="", help="with --kept: which methods of it")
    options = parser.parse_args()
    asked = [int(r) for r in options.at.split(",")]
    by_method: dict[str, dict[int, dict[str, object]]] = {}
    lines = [json.loads(text) for text in (options.run / "trajectory.jsonl").read_text().splitlines()]
    for line in [*lines, *(kept_lines(options.kept, options.of.split(",")) if options.kept else [])]:
        if line["request"] is not None and line["seed"] == options.seed:
            by_method.setdefault(line["method"], {})[line["round"]] = line
    print("| method |", " | ".join(f"round {r}" for r in asked), "| last | MIA | cos θ* | distance |")
    print("|---|", "---|" * (len(asked) + 4))
    for method, own in by_method.items():
        cells = [_scores(_before(own, r)) for r in asked]
        last = own[max(own)]
        left = _left(options.run, options.seed, str(last["request"]), method)
        mia = last.get("mia")
        shown = f"{mia:.2f}" if isinstance(mia, float) else str(mia)
        print(f"| {method} |", " | ".join(cells), f"| {max(own)}: {_scores(last)} | {shown} | {left} |")


def kept_lines(path: Path, methods: Sequence[str]) -> list[Any]:
    """The lines of these methods; one that the file has not, or has from before a revision of it, is refused."""
    found = record.current(whole := record.read(path)).lines()
    if missing := [method for method in methods if method not in {line["method"] for line in found}]:
        said = " ".join(record.outdated(whole))
        raise SystemExit(
            f"{path.name} has no row of {', '.join(missing)} that still counts; leave it out. {said}".strip()
        )
    return [line for line in found if line["method"] in methods]


def _before(lines: dict[int, dict[str, object]], asked: int) -> dict[str, object] | None:
    there = [r for r in lines if r <= asked]
    return lines[max(there)] if asked <= max(lines) and there else None


def _scores(line: dict[str, object] | None) -> str:
    if line is None:
        return "—"
    values = (line[name] for name in ("retain", "forget", "test"))
    return " / ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in values)


def _left(run: Path, seed: int, request: str, method: str) -> str:
    models = run / "models" / str(seed)
    own, start = models / request / f"{method}.safetensors", models / "train.safetensors"
    if not own.exists() or not start.exists():
        return "— | —"
    flat = [_parameters(path) for path in (own, start)]
    cosine = float(torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0))
    return f"{cosine:.3f} | {float((flat[0] - flat[1]).norm() / flat[1].norm()):.3f}"


def _parameters(path: Path) -> torch.Tensor:
    """All of them in one row; BatchNorm's statistics are none, and its counter would outweigh every weight."""
    own = {name: one for name, one in load_file(path).items() if not name.endswith(STATISTICS)}
    return torch.cat([own[name].double().flatten() for name in sorted(own)])


if __name__ == "__main__":
    main()
