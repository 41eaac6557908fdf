"""One CSV of the records of `ablations.py`, a row per cell with its seeds together, and two figures.

    python benchmarks/ablation_tables.py    writes records/2026-11-16-ablations.csv and docs/explanation/ablations-*.svg

`gap` is the average gap to Retrain, `back` the median round at which Test was within 2 points of θ*'s (empty: never).
`flipped` is the perturbation's public inverse; `realigned` the worst usable model of a grid of fits.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import ablations
from unfed.paper.pictures import PaperFigure
from unfed.report.drawing import INK, SERIES, STYLE, svg_text
from unfed.values import is_measured

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks/records/2026-11-16-ablations.csv"
PICTURES = ROOT / "docs/explanation"
ATTACKS = {"as left": ("numbers",), "flip": ("undo", "flip"), "realign": ("undo", "realign")}
PATHS: dict[str, tuple[str, ...]] = {
    "gap": ("gap",),
    "retain": ("numbers", "retain"),
    "forget": ("numbers", "forget"),
    "test": ("numbers", "test"),
    "mia": ("numbers", "mia"),
    "backdoor": ("numbers", "backdoor"),
    "realigned: backdoor": ("undo", "realign", "backdoor"),
    "resurface: forget rises by": ("undo", "resurface", "forget_rise"),
    "relearn: area": ("undo", "relearn"),
}
"""Column → where it stands in a cell; each has its standard deviation beside it."""
Row = Mapping[str, Any]
Fields = Mapping[tuple[str, str], float | None]


def values_of(rows: Sequence[Row], *path: str) -> list[float]:
    """A number of every row that has it."""
    values = []
    for row in rows:
        value: Any = row
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if is_measured(value):
            values.append(float(value))
    return values


def mean_of(rows: Sequence[Row], *path: str) -> float | None:
    values = values_of(rows, *path)
    return mean(values) if values else None


def cell(rows: Sequence[Row]) -> dict[str, Any]:
    """Means and standard deviations over the seeds, and the median of the rounds; a model that died counts in none."""
    alive = [row for row in rows if row["gap"] is not None]
    back = median([float("inf") if row["back"] is None else row["back"] for row in alive]) if alive else float("inf")
    made: dict[str, Any] = {"seeds": len(rows), "survived": len(alive), "back": "" if math.isinf(back) else f"{back:g}"}
    for name, path in PATHS.items():
        values = values_of(rows, *path)
        made[name] = round(mean(values), 3) if values else ""
        made[f"± {name}"] = round(stdev(values), 3) if len(values) > 1 else ""
    for name in ("backdoor", "test"):
        values = values_of(rows, "undo", "flip", name) or values_of(rows, "flipped", name)
        made[f"flipped: {name}"] = round(mean(values), 3) if values else ""
    return made


def table(lines: Sequence[Row], data: str) -> list[dict[str, Any]]:
    """The cells of one record, behind what θ* and Retrain show in each network."""
    found: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in lines:
        found.setdefault((row["network"], row["part"], row["layer"], row["how"]), []).append(row)
    for network in dict.fromkeys(row["network"] for row in lines):
        by_seed = {row["seed"]: row for row in lines if row["network"] == network and row["part"] == "layers"}
        for model in ("before", "retrain"):
            shown = [{"gap": None, "back": None, "numbers": row[model]} for row in by_seed.values()]
            found[network, "layers", "-", model] = shown
    made = []
    for (network, part, layer, how), rows in sorted(found.items(), key=lambda one: one[0][:2]):
        about = {"data": data, "network": network, "part": part, "layer": layer, "perturbation": how}
        plain = {"survived": len(rows), "gap": "", "± gap": ""} if how in ("before", "retrain") else {}
        made.append({**about, **cell(rows), **plain})
    return made


def text() -> str:
    made = [row for data, file in ablations.RECORDS.items() for row in table(ablations.read(file), data)]
    written = io.StringIO()
    out = csv.DictWriter(written, list(made[0]), lineterminator="\n")
    out.writeheader()
    out.writerows(made)
    return written.getvalue()


def cells(lines: Sequence[Row], network: str, part: str) -> dict[tuple[str, str], list[Row]]:
    """The rows of all seeds, by layer and perturbation."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in lines:
        if row["network"] == network and row["part"] == part:
            found.setdefault((row["layer"], row["how"]), []).append(row)
    return found


def layer_map(lines: Sequence[Row]) -> str:
    """Average gap on CIFAR-10 by layer and perturbation."""
    hows = (*ablations.OPEN, *ablations.SEALED)
    gaps = {
        (re.sub(r"\.weight$", "", layer), how): mean_of(rows, "gap")
        for (layer, how), rows in cells(lines, "cnn", "layers").items()
        if how in hows
    }
    sides = list(dict.fromkeys(layer for layer, _ in gaps)), [how for how in hows if any(h == how for _, h in gaps)]
    title = "Average gap to Retrain by layer and perturbation, cnn on CIFAR-10"
    return drawn(gaps, sides, "ablations-cnn on CIFAR-10", title)


def attack_map(lines: Sequence[Row]) -> str:
    """The backdoor as left and after two attacks; a flip that leaves less than half of Test is left out."""
    back: dict[tuple[str, str], float | None] = {}
    named = {"retrain": "Retrain", "before": "θ*", "none": "FT"}
    for network in ablations.TUNED:
        for (layer, how), rows in cells(lines, network, "undo").items():
            for attack, path in ATTACKS.items():
                value, test = mean_of(rows, *path, "backdoor"), mean_of(rows, "undo", "flip", "test")
                alive = test is not None and test >= (mean_of(rows, "numbers", "test") or 0.0) / 2
                if value is not None and (attack != "flip" or alive):
                    back[named.get(how, f"{layer}, {how}"), f"{network}: {attack}"] = value
    sides = [list(dict.fromkeys(where[i] for where in back)) for i in (0, 1)]
    title = "Backdoor in percent as left and after two attacks, four networks"
    return drawn(back, (sides[0], sides[1]), "ablations-undo", title, digits=0, darkest=100.0)


def drawn(
    values: Fields,
    sides: tuple[Sequence[str], Sequence[str]],
    name: str,
    title: str,
    digits: int = 1,
    darkest: float = 20.0,
) -> str:
    """One field per row and column, the darker the larger; a cross where no network survived."""
    rows, columns = sides
    known = sorted(value for value in values.values() if value is not None)
    told = f"{len(known)} fields, from {known[0]:.{digits}f} to {known[-1]:.{digits}f}."
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(2.2 + 0.52 * len(columns), 1.3 + 0.27 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for y, row in enumerate(rows):
            for x, column in enumerate(columns):
                if (row, column) not in values:
                    continue
                value = values[row, column]
                shade = 1.0 if value is None else math.sqrt(min(value, darkest) / darkest)
                axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=SERIES[0], alpha=0.75 * shade, lw=0))
                shown = "×" if value is None else f"{value:.{digits}f}"
                axes.text(x, y, shown, ha="center", va="center", fontsize=7.5, color=INK)
        axes.set_xlim(-0.6, len(columns) - 0.4)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="left", fontsize=8)
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        axes.tick_params(length=0)
        return PaperFigure(title, svg_text(figure, name, title, told)).file()


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    digits, cifar = (ablations.read(ablations.RECORDS[name]) for name in ("digits", "cifar10"))
    (PICTURES / "ablations-cifar10-cnn.svg").write_text(layer_map(cifar), encoding="utf-8")
    (PICTURES / "ablations-undo.svg").write_text(attack_map(digits), encoding="utf-8")
