"""What an item shows of its runs.

    results     the methods' rows, the paper's beside them with a verdict per cell, costs as ratios     tables 1 to 6, 8
    bound       t ≥ …, and what that time would cost                                                   table 7
    bars        the same rows as a picture                                                             figure 1
    gaps        the average gap to Retrain after each round, with its spread over seeds                 figures 4, 5
    ratios      gap and costs by the share of clients that leave                                       figure 6
    cka         each layer's CKA with the original, with Retrain, and the negated twin's with controls  figures 3, 7
    spectrum    Ψ(α): which share of the gradients' variance lies in which share of directions          figure 8

Analyses are made of the run's first repetition; a value that could not be had says why.
"""

from __future__ import annotations

from unfed.api import results as reported
from unfed.paper.views import layers, results, spectra, times
from unfed.paper.views.base import ItemView, by_name
from unfed.runs.run import Run


def _under_rules(run: Run) -> results.ByRule:
    return results.under_rules(run.lines(), run.config.evaluation.recovered_within)


VIEWS: dict[str, ItemView] = {
    "results": by_name(_under_rules, results.table),
    "bars": by_name(reported, results.bars),
    "gaps": by_name(Run.lines, results.gaps),
    "ratios": by_name(reported, results.ratios),
    "cka": ItemView(layers.ANALYSIS.make, layers.ANALYSIS),
    "bound": ItemView(times.ANALYSIS.make, times.ANALYSIS),
    "spectrum": ItemView(spectra.ANALYSIS.make, spectra.ANALYSIS),
}
