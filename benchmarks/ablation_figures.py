"""A map of every layer under every perturbation: the darker, the farther from Retrain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from unfed.paper.pictures import Picture
from unfed.report.drawing import INK, SERIES, STYLE, svg_text

DARKEST = 20.0
"""The gap from which on a field is as dark as can be."""


def field_map(
    gaps: Mapping[tuple[str, str], float | None], layers: Sequence[str], hows: Sequence[str], name: str
) -> Picture:
    """One field per layer and perturbation with its mean gap; a cross where the network did not survive."""
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(2.2 + 0.52 * len(hows), 1.3 + 0.27 * len(layers)), layout="constrained")
        axes = figure.add_subplot()
        for y, layer in enumerate(layers):
            for x, how in enumerate(hows):
                if (layer, how) not in gaps:
                    continue
                gap = gaps[layer, how]
                shade = 1.0 if gap is None else math.sqrt(min(gap, DARKEST) / DARKEST)
                axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=SERIES[0], alpha=0.75 * shade, lw=0))
                text = "×" if gap is None else f"{gap:.1f}"
                axes.text(x, y, text, ha="center", va="center", fontsize=7.5, color=INK)
        axes.set_xlim(-0.6, len(hows) - 0.4)
        axes.set_ylim(len(layers) - 0.4, -0.6)
        axes.set_xticks(range(len(hows)), hows, rotation=45, ha="left", fontsize=8)
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(layers)), layers, fontsize=8)
        axes.tick_params(length=0)
        title = f"Average gap to Retrain by layer and perturbation, {name}"
        best = min((g, *where) for where, g in gaps.items() if g is not None)
        told = f"The smallest mean gap is {best[0]:.1f}, {best[1]} under {best[2]}."
        return Picture(title, svg_text(figure, f"ablations-{name}", title, told))
