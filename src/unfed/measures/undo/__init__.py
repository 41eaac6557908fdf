"""Undoing: how much of what was forgotten comes back, and by how little.

    flip         the public inverse of the perturbation                                        no data, no training
    lift         the head's bias of a forgotten class raised as far as the others allow         no data, no training
    realign      layers turned back or drawn afresh and fitted on a few retained rows; mixing matrices fitted
    resurface    some more passes over retained data alone
    relearn      a few forgotten rows mixed in at a low rate
    triggers     a planted backdoor taught again with five stamped rows of those who stay
    inside       what the features carry: θ*'s head stitched or grafted onto them, linear probes of them
    path         distance, angle and loss peak to θ*, to perturb(θ*), to Retrain
    difference   what the models before and after tell together about the leaver

Each number stands beside the same number for Retrain and for θ*, made by the same grid under the same budget: what
Retrain gives away too is no memory. All are pure functions of params, a functional model and views of data (`Scene`).
"""

from unfed.measures.undo.flip import INVERSES, REDRAWN, Knowledge, flip, flipped, lift
from unfed.measures.undo.measure import (
    MEASUREMENTS,
    NOT_TRIED,
    UNTRIED,
    Effort,
    Found,
    Going,
    ProbedModels,
    Shared,
    turned_back,
    undo,
)
from unfed.measures.undo.refits import Grid, realign, relearn, resurface, triggers
from unfed.measures.undo.scene import Budget, FitTask, Problem, Scene, View, fit
from unfed.measures.undo.traces import difference, inside, path

__all__ = [
    "INVERSES",
    "MEASUREMENTS",
    "NOT_TRIED",
    "REDRAWN",
    "UNTRIED",
    "Budget",
    "Effort",
    "FitTask",
    "Found",
    "Going",
    "Grid",
    "Knowledge",
    "ProbedModels",
    "Problem",
    "Scene",
    "Shared",
    "View",
    "difference",
    "fit",
    "flip",
    "flipped",
    "inside",
    "lift",
    "path",
    "realign",
    "relearn",
    "resurface",
    "triggers",
    "turned_back",
    "undo",
]
