"""The lines of `prices.py` as one table and one figure.

    python benchmarks/prices_table.py TABLE.csv FIGURE.svg LINES.jsonl …

The table has one row per regime, scope and recipe: means over seeds and, behind ±, half the 95 % interval (Student's t)
of the difference to the tuned Retrain (`REFERENCE`) of the same seeds. The figure shows test accuracy against the
trace, which is the larger of the backdoor itself and the backdoor read by θ*'s head through a linear map, with the
rounds as area.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy import stats

COLUMNS = {
    "Test": ("after", "test"),
    "Forget": ("after", "forget"),
    "MIA": ("after", "mia"),
    "backdoor": ("after", "backdoor"),
    "stitched": ("attacks", "stitch", "backdoor"),
    "flipped": ("attacks", "flip", "backdoor"),
    "taught with own trigger": ("attacks", "triggers", "own"),
    "taught with the planted trigger": ("attacks", "triggers", "known"),
    "gained by ten rows": ("attacks", "triggers", "gained"),
    "trigger AUC": ("attacks", "trigger", "auc"),
    "class lifted by 1 point": ("attacks", "lift", "back_1"),
    "class stitched and lifted": ("attacks", "stitch", "class_back"),
    "class read from 20 rows": ("attacks", "probe", "reads_20"),
}
AT_PRICE = {
    "stitched at the price": ("paid", "attacks", "stitch", "backdoor"),
    "taught at the price": ("paid", "attacks", "triggers", "known"),
}
"""The same attacks on the model of the round that is counted as the price, where it was attacked."""
REFERENCE = {
    "cifar10-cnn": "retrain@0.06x60e3",
    "cifar10-resnet18": "retrain@0.05x20",
    "digits-cnn": "retrain@0.1x6e3",
    "reviews-transformer": "retrain@0.005x12",
}
COLOURS = {
    "retrain": "#222222",
    "not": "#d1495b",
    "ft": "#edae49",
    "sealed": "#66a182",
    "led": "#00798c",
    "θ*": "#999999",
}
Line = dict[str, Any]


def number(line: Line, path: tuple[str, ...]) -> float | None:
    """What a line says there, if it is a number."""
    found: Any = line
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return float(found) if isinstance(found, int | float) else None


def mean_of(lines: list[Line], path: tuple[str, ...]) -> float | None:
    found = [value for line in lines if (value := number(line, path)) is not None]
    return mean(found) if found else None


def cells(lines: list[Line]) -> dict[tuple[Any, ...], dict[int, Line]]:
    """The lines by regime, scope, requests in a row, leavers and recipe, then by seed."""
    found: dict[tuple[Any, ...], dict[int, Line]] = defaultdict(dict)
    for line in lines:
        if "after" in line and not (line["other"] and line["recipe"] == "θ*"):
            recipe = line["recipe"] + (" drawn again" if line["other"] else "")
            found[line["regime"], line["scope"], line["k"], line["leave"], recipe][line["seed"]] = line
    return found


def rows(lines: list[Line]) -> list[dict[str, Any]]:
    """One row of the table per cell."""
    known, found = cells(lines), []
    for key, own in sorted(known.items()):
        reference = known.get((*key[:4], REFERENCE["-".join(key[0].split("-")[:2])]), {})
        paid = [at for line in own.values() if (at := number(line, ("paid", "round"))) is not None]
        row = dict(zip(("regime", "scope", "requests", "leavers", "recipe"), key, strict=True))
        some = list(own.values())
        row |= {
            "seeds": len(own),
            "rounds": some[0]["rounds"],
            "paid": f"{mean(paid):.1f}" if paid else "",
            "reached": len(paid),
        }
        row["MB"] = f"{(mean_of(some, ('cost', 'comm_bytes')) or 0) / 1e6:.1f}"
        row["TFLOP"] = f"{(mean_of(some, ('cost', 'flops')) or 0) / 1e12:.4g}"
        for name, path in (COLUMNS | AT_PRICE).items():
            value = mean_of(some, path)
            row[name] = "" if value is None else f"{value:.1f}{half_width(own, reference, path)}"
        found.append(row)
    return found


def half_width(own: dict[int, Line], reference: dict[int, Line], path: tuple[str, ...]) -> str:
    """Half the interval of the difference to Retrain, where three seeds or more have both."""
    pairs = [(number(own[seed], path), number(reference[seed], path)) for seed in own if seed in reference]
    apart = [a - b for a, b in pairs if a is not None and b is not None]
    if own is reference or len(apart) < 3:
        return ""
    return f" ±{float(stats.t.ppf(0.975, len(apart) - 1)) * stdev(apart) / math.sqrt(len(apart)):.1f}"


def draw(lines: list[Line], file: Path) -> None:
    """Test accuracy against the trace, one panel per data set, for a client that leaves an IID federation."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "prices"
    from matplotlib import pyplot as plt

    panels = {"cifar10-cnn-iid": "CIFAR-10, two to five seeds", "digits-cnn-iid": "digits, eight to 32 seeds"}
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2))
    for axis, (regime, title) in zip(axes, panels.items(), strict=True):
        for key, own in cells(lines).items():
            some = list(own.values())
            test, seen = mean_of(some, COLUMNS["Test"]), [mean_of(some, COLUMNS[n]) for n in ("backdoor", "stitched")]
            if key[:4] != (regime, "client", 1, 1) or test is None or test < (76 if "cifar" in regime else 94):
                continue
            trace, method = max(value for value in seen if value is not None), key[4].split("@")[0].split("-")[0]
            area = 200 if key[4] == "θ*" else 4 * some[0]["rounds"]
            mark = "*" if key[4] == "θ*" else "s" if key[4].startswith(("led-clean", "led-model")) else "o"
            axis.scatter(trace, test, s=area, c=COLOURS[method], marker=mark, alpha=0.65, linewidths=0)
        axis.set(title=title, xlabel="trace of the leaver, %", ylabel="Test, %", xscale="log")
        axis.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
        axis.grid(alpha=0.3)
    names = {"retrain": "Retrain", "not": "NoT", "ft": "fine-tuning", "sealed": "Sealed", "led": "Led", "θ*": "before"}
    marks = [plt.Line2D([], [], marker="o", ls="", c=COLOURS[name], label=text) for name, text in names.items()]
    axes[1].legend(handles=marks, loc="lower right", fontsize=8, framealpha=0.9)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    table, figure, *files = map(Path, sys.argv[1:])
    lines = [json.loads(text) for file in files for text in file.read_text().splitlines()]
    found = rows(lines)
    with table.open("w", newline="") as out:
        writer = csv.DictWriter(out, found[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    draw(lines, figure)


if __name__ == "__main__":
    main()
