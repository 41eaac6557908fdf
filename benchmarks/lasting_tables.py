"""One CSV of all records of `lasting.py`: a row per request, variant and seed.

    python benchmarks/lasting_tables.py              writes benchmarks/records/2026-11-17-lasting.csv
    python benchmarks/lasting_tables.py FILE …       shows the rows of these records

A row says what the variant left, its average gap to Retrain, how many rounds it took to come within 2 points of θ* (and
to stated accuracies), and what each attack brought back: of the model at the first round near enough (`paid`) where it
was attacked, and of the last one. The variant `before` is θ*: where it does not hold the leaver, there is nothing to
forget. `within N: backdoor` is the worst backdoor among attacked models at most N points of Test below the published
one: a fit that is not finished yet shows there, and NoT beside it tells whether the attack was strong enough.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unfed.measures.metrics import average_gap
from unfed.values import is_measured

RECORDS = Path(__file__).parent / "records"
FILE = RECORDS / "2026-11-17-lasting.csv"
CONTROLS = ("retrain", "reinit")
WITHIN = 2.0
"""Points of Test below θ* that end the counting of rounds."""
STATED = {("cifar10", "cnn"): (70, 72, 74)}
"""Test accuracies, in percent, to which rounds are counted as well."""
FURTHER = (5, 10, 15)
"""Points of Test below the published model."""
FOUND = ("retain", "forget", "test", "mia", "backdoor")
UNDONE: dict[str, tuple[str, ...]] = {
    "undone: forget": ("forget",),
    "undone: backdoor": ("backdoor",),
    "own trigger taught": ("triggers", "own"),
    "planted trigger taught": ("triggers", "known"),
    "class lifted by 1 point": ("lift", "back_1"),
    "class lifted by 5 points": ("lift", "back_5"),
    "flip: forget": ("flip", "forget"),
    "flip: backdoor": ("flip", "backdoor"),
    "flip: test": ("flip", "test"),
    "resurface: forget rises by": ("resurface", "forget_rise"),
    "resurface: backdoor rises by": ("resurface", "backdoor_rise"),
    "relearn: area": ("relearn", "area"),
    "distance to θ*": ("path", "relative_l2"),
    "loss peak on the way": ("path", "peak"),
    "cosine with the leaver's gradient": ("difference", "cosine"),
    "label histogram: error": ("difference", "variation"),
    "label histogram: error of equal shares": ("difference", "variation_of_equal_shares"),
}
"""Column → where it stands in what undoing found."""
ALSO_PAID = tuple(UNDONE)[:6]
Line = Mapping[str, Any]


def reached(line: Line, goal: float) -> int | None:
    """The first round that was looked at and whose test accuracy is good enough."""
    return next((r for r, test in line["curve"] if r and test >= goal), None)


def rounds(line: Line, goal: float) -> str:
    found = reached(line, goal)
    return f"> {line['rounds']}" if found is None else str(found)


def at_most_half(line: Line, controls: Sequence[Line], goal: float) -> str:
    """Whether it takes at most half the rounds of either control; one that never came counts with all of its rounds."""
    if line["variant"] in CONTROLS or {one["variant"] for one in controls} != set(CONTROLS):
        return ""
    own, others = reached(line, goal), [reached(one, goal) or one["rounds"] for one in controls]
    return "yes" if own is not None and 2 * own <= min(others) else "no"


def worst(line: Line, within: float) -> float:
    """The largest backdoor among attacked models at most so far below the published one's Test."""
    kept = [one for one in line["undo"]["tries"] if one[5] >= line["after"]["test"] - within]
    return max((one[6] for one in kept), default=0.0)


def _at(found: Any, path: Sequence[str]) -> Any:
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return round(float(found), 3) if found is not None and is_measured(found) else ""


def row(line: Line, beside: Sequence[Line]) -> dict[str, Any]:
    """One line of a record, with what needs the others of its seed and number of requests."""
    by = {one["variant"]: one for one in beside}
    reference = by.get("reference") or by.get("retrain")
    controls = [by[name] for name in CONTROLS if name in by]
    found: dict[str, Any] = {name: _at(line["after"], (name,)) for name in FOUND}
    found["avg. gap"] = round(average_gap(line["after"], reference["after"]), 3) if reference else ""
    if "curve" in line:
        goal = line["before"]["test"] - WITHIN
        found |= {"rounds to θ* − 2": rounds(line, goal), "at most half": at_most_half(line, controls, goal)}
        for level in STATED.get((line["data"], line["model"]), ()):
            found[f"rounds to {level} %"] = rounds(line, level)
    undone, paid = line.get("undo", {}), line.get("paid", {})
    found |= {name: _at(undone, path) for name, path in UNDONE.items()}
    found |= {f"paid: {name}": _at(paid.get("after", {}), (name,)) for name in ("forget", "backdoor")}
    found |= {f"paid, {name}": _at(paid.get("undo", {}), UNDONE[name]) for name in ALSO_PAID}
    if undone.get("tries") and line["scope"] == "client":
        found |= {f"within {w}: backdoor": round(worst(line, w), 3) for w in FURTHER}
    return found


def table(lines: Sequence[Line], record: str) -> list[dict[str, Any]]:
    """The rows of one record, θ* before those of its seed."""
    made: list[dict[str, Any]] = []
    places = list(dict.fromkeys((x["data"], x["model"], x["scope"], x["k"], x["seed"]) for x in lines))
    for place in places:
        own = [x for x in lines if (x["data"], x["model"], x["scope"], x["k"], x["seed"]) == place]
        names = ("data", "model", "scope", "requests", "seed")
        first = next(x for x in own if "before" in x)
        for line in own:
            about = {"record": record, **dict(zip(names, place, strict=True))}
            how = {n: line.get(n, "") for n in ("trained", "rounds", "lr", "hardware", "precision")}
            if line is first:
                star = {name: _at(line["before"], (name,)) for name in FOUND}
                given = {name: _at(line["before"].get("undo", {}), UNDONE[name]) for name in ALSO_PAID}
                made.append({**about, "variant": "before", **how, "rounds": "", **star, **given})
            made.append({**about, "variant": line["variant"], **how, **row(line, own)})
    return made


def text(files: Sequence[Path]) -> str:
    made: list[dict[str, Any]] = []
    for file in files:
        made += table([json.loads(one) for one in file.read_text(encoding="utf-8").splitlines()], file.stem)
    written = io.StringIO()
    columns = list(dict.fromkeys(name for one in sorted(made, key=len, reverse=True) for name in one))
    out = csv.DictWriter(written, columns, restval="", lineterminator="\n")
    out.writeheader()
    out.writerows(made)
    return written.getvalue()


def records() -> list[Path]:
    return sorted([*RECORDS.glob("*lasting*.jsonl"), *RECORDS.glob("*sealed-candidates*.jsonl")])


if __name__ == "__main__":
    if sys.argv[1:]:
        print(text([Path(name) for name in sys.argv[1:]]), end="")
    else:
        FILE.write_text(text(records()), encoding="utf-8")
