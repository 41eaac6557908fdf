"""The table of `benchmarks/records/2026-11-15-undoing-digits.md`, from a run that was probed.

unfed run benchmarks/undoing.toml --out runs/undoing
python benchmarks/undoing.py runs/undoing
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from unfed.folder.study_results import measured
from unfed.runs.run import Run
from unfed.values import Value, is_measured

FOUR = ("retain", "forget", "test", "backdoor")


def _cell(value: object) -> str:
    return f"{value:.1f}" if is_measured(value) else "–"


def _four(numbers: Mapping[str, Value]) -> str:
    return " / ".join(_cell(numbers.get(name)) for name in FOUR) if "forget" in numbers else "–"


def _line(title: str, found: Mapping[str, Any]) -> str:
    realign, at = found["realign"], found["realign"].get("backdoor_at") or {}
    where = (
        f"{at['start']}, {'+'.join(n.removesuffix('.weight') for n in at['layers'])}, n={at['n']}, {at['steps']} steps"
        f" at {at['rate']:g}"
    )
    path = found["path"]["before"]
    cells = [
        title,
        _four(found["published"]),
        _four(found["flip"]),
        f"{_cell(realign['forget'])} / **{_cell(realign['backdoor'])}**",
        where,
        _cell(found["resurface"]["forget_rise"]),
        _cell(found["relearn"]["area"]),
        f"{path['relative_l2']:.2f} / {path['peak']:.2f}" if "peak" in path else "–",
    ]
    return f"| {' | '.join(cells)} |"


def main(folder: str) -> None:
    run = Run.open(folder)
    found = measured(run.folder, run.config)
    heads = (
        "model",
        "as published: retain / forget / test / backdoor",
        "after the inverse of its own perturbation",
        "worst usable after realign: forget / backdoor",
        "found by",
        "resurface",
        "relearn",
        "distance / peak to θ*",
    )
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    negated = next(one for one in found if one["method"] == "not")["measured"]
    print(_line("Retrain, negation of conv1 taken back", negated["retrain"]))
    print(_line("θ*, the same", negated["before"]))
    for one in found:
        if one["method"] != "retrain":
            how = one["perturbed"]
            what = (
                "" if how is None else f" ({how['how']}, {'+'.join(n.removesuffix('.weight') for n in how['layers'])})"
            )
            print(_line(f"{one['title']}{what}", one["measured"]["unlearned"]))


if __name__ == "__main__":
    main(sys.argv[1])
