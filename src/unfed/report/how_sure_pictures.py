"""Pictures of a population: where margins lie, and what an attacker gets who may hardly err."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from unfed.measures.population.attacks import ATTACKS
from unfed.report.drawing import DASHES, INK, REFERENCE, SERIES, STYLE
from unfed.report.picture import Picture, Point, picture
from unfed.values import is_measured

MARGINS = "Margins on the forgotten rows: how often (%)"
ROC = "{}: true against false positives (both scales log.)"
BEFORE_DASH = (2.0, 1.6)


def legend(judged: Mapping[str, Any], numbers: Mapping[str, int]) -> list[dict[str, str]]:
    """How each kind of model is drawn."""
    found = [
        {"name": "Retrain", "colour": "var(--reference)", "dash": "none"},
        {"name": "before", "colour": "currentColor", "dash": "3.6 2.9"},
    ]
    for kind, one in judged["methods"].items():
        pattern = DASHES[numbers[kind] % len(DASHES)]
        drawn = " ".join(f"{1.8 * part:g}" for part in pattern) if pattern else "none"
        found.append(
            {"name": str(one["title"]), "colour": f"var(--series-{numbers[kind] % len(SERIES)})", "dash": drawn}
        )
    return found


def distributions(judged: Mapping[str, Any], numbers: Mapping[str, int], name: str) -> Picture | None:
    """One outline per kind of model: where its margins lie."""
    edges, shares = judged["distributions"]["edges"], judged["distributions"]["shares"]
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    looks: dict[str, tuple[str, str, Any]] = {"retrain": ("Retrain", REFERENCE, None)}
    for kind, one in judged["methods"].items():
        looks[kind] = (str(one["title"]), *_look(numbers[kind]))
    looks["before"] = ("before", INK, BEFORE_DASH)
    points = []
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.8, 3.0), layout="constrained")
        axes = figure.add_subplot()
        for key, (title, colour, dash) in looks.items():
            heights = [100 * share for share in shares[key]]
            if key == "retrain":
                axes.stairs(heights, edges, fill=True, color=colour, alpha=0.25, linewidth=0)
            (line,) = axes.plot(middles, heights, color=colour, label=title, linewidth=1.8)
            if dash:
                line.set_dashes(dash)
            points += [
                Point(x, y, f"{title}: {y:.1f} % near {x:.1f}", (title, x, y))
                for x, y in zip(middles, heights, strict=True)
                if y >= 0.5
            ]
        axes.set_xlabel("log odds of the row's own label")
        axes.set_ylim(bottom=0)
        told = "; ".join(f"{title} lies around {_mean(middles, shares[key]):.1f}" for key, (title, *_) in looks.items())
        return picture(figure, name, MARGINS, told + ".", ("model", "margin", "percent"), points)


def _look(number: int) -> tuple[str, Any]:
    return SERIES[number % len(SERIES)], DASHES[number % len(DASHES)]


def _mean(middles: list[float], shares: list[float]) -> float:
    return sum(x * share for x, share in zip(middles, shares, strict=True))


def roc(judged: Mapping[str, Any], numbers: Mapping[str, int], name: str, attack: str = "u-lira") -> Picture | None:
    """One line per method; the dashed one is a coin toss. None where the attack could not be tried."""
    tried = {kind: one["attacks"][attack] for kind, one in judged["methods"].items()}
    if not all(isinstance(found, Mapping) for found in tried.values()):
        return None
    points, told = [], []
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "both"}):
        figure = Figure(figsize=(4.8, 3.0), layout="constrained")
        axes = figure.add_subplot()
        lowest = min(found["roc"][0][0] for found in tried.values())
        axes.plot([lowest, 1], [lowest, 1], color=REFERENCE, linestyle="--", linewidth=1.4, label="a coin toss")
        for kind, found in tried.items():
            title = str(judged["methods"][kind]["title"])
            curve = [(x, y) for x, y in found["roc"] if y > 0]
            colour, dash = _look(numbers[kind])
            (line,) = axes.plot([x for x, _ in curve], [y for _, y in curve], color=colour, label=title)
            if dash:
                line.set_dashes(dash)
            points += [
                Point(x, y, f"{title}: {100 * y:.2f} % at {100 * x:.2f} % false alarms", (title, x, y))
                for x, y in curve[::3]
            ]
            told.append(f"{title} has AUC {found['auc']['value']:.3f}{_low(found)}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(lowest, 1)
        axes.set_ylim(lowest, 1.15)
        axes.set_xlabel("false positives among Retrains")
        ticks = [tick for tick in (1e-4, 1e-3, 1e-2, 1e-1, 1) if tick >= lowest]
        axes.set_xticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
        axes.set_yticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
        axes.minorticks_off()
        return picture(
            figure, name, ROC.format(ATTACKS[attack]), "; ".join(told) + ".", ("method", "fpr", "tpr"), points
        )


def _low(found: Mapping[str, Any]) -> str:
    at = found["tpr_0.01"]
    value = at["value"] if isinstance(at, Mapping) else at
    return f", finds {100 * value:.1f} % at 1 % false alarms" if is_measured(value) else ""
