"""The attacks on one kind of model: fitted on one half of a population, asked about the other.

U-LiRA, RMIA, IAM     scores of every (model, row); are unlearned models told from Retrains?   AUC, TPR at low FPR
LiRA, RMIA            how high forgotten rows stand among held-out rows of the same model, beside Retrain's
SVC efficacy, entropy one number per model; the difference to Retrain's
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed.measures.population import efficacy, iam, lira, rmia, roc
from unfed.measures.population.interval import (
    DRAWS,
    PERMUTATIONS,
    Rates,
    auc_p,
    over_models,
    over_models_and_rows,
)
from unfed.measures.population.seen import Seen
from unfed.measures.population.signals import Floats
from unfed.values import not_measured

ATTACKS = {"u-lira": "U-LiRA", "rmia": "RMIA", "iam": "IAM"}
STANDING = {"lira": "LiRA", "rmia": "RMIA"}
"""Attacks that set forgotten rows beside held-out rows of the same model."""

ONE_ROW = not_measured("IAM takes its spread over rows, and there is only one forgotten row")
SINGLE_MODELS = 16
"""So many models of each kind are asked one by one; a classifier is fitted for each."""
CURVE = 60


@dataclass(frozen=True)
class Sides:
    """Who is fitted on, and who is judged; `before` are the models that those who are judged began at."""

    fit_unlearned: Seen
    fit_retrained: Seen
    unlearned: Seen
    retrained: Seen
    before_unlearned: Seen
    before_retrained: Seen


@dataclass(frozen=True)
class Care:
    """How carefully intervals and tests are drawn."""

    draws: int = DRAWS
    permutations: int = PERMUTATIONS
    seed: int = 0
    groups: int = 2
    """Into how many groups a kind of model is cut: one to fit on and one to judge."""


def scores(sides: Sides) -> dict[str, tuple[Floats, Floats]]:
    """The scores of each attack for the judged models, [models, rows]: unlearned and Retrain.

    IAM has none where there is only one row.
    """
    gaussians = lira.fit(sides.fit_unlearned.phi, sides.fit_retrained.phi)
    out, shadow = sides.fit_retrained, sides.fit_retrained.forget[0]

    def of_rmia(target: Seen) -> Floats:
        return rmia.score(target.forget, target.test, out.forget, out.test)

    def of_iam(target: Seen, before: Seen) -> Floats:
        return np.stack([iam.score(t, b, shadow) for t, b in zip(target.forget, before.forget, strict=True)])

    found = {
        "u-lira": (gaussians.score(sides.unlearned.phi), gaussians.score(sides.retrained.phi)),
        "rmia": (of_rmia(sides.unlearned), of_rmia(sides.retrained)),
    }
    if len(shadow) > 1:
        unlearned = of_iam(sides.unlearned, sides.before_unlearned)
        found["iam"] = unlearned, of_iam(sides.retrained, sides.before_retrained)
    return found


def standing(fit: Seen, unlearned: Seen, retrained: Seen) -> dict[str, tuple[tuple[Floats, ...], tuple[Floats, ...]]]:
    """How high forgotten rows stand among held-out rows: in unlearned models, in Retrains.

    Scores are relative to other Retrains (`fit`), so a row that is hard for every model stands no lower for it.
    U-LiRA's own score is not taken: its Gaussians also hold how a method's models differ on any row.
    """

    def of_lira(side: Seen) -> tuple[Floats, Floats]:
        return lira.standardised(side.phi, fit.phi), lira.standardised(side.phi_test, fit.phi_test)

    def of_rmia(side: Seen) -> tuple[Floats, Floats]:
        return side.forget / rmia.expected(fit.forget), side.test / rmia.expected(fit.test)

    scores = dict(zip(STANDING, (of_lira, of_rmia), strict=True))
    return {name: (roc.placed(*one(unlearned)), roc.placed(*one(retrained))) for name, one in scores.items()}


def attacked(pair: tuple[Floats, Floats], slices: Mapping[str, NDArray[np.bool_]], care: Care) -> dict[str, Any]:
    """What one attack's scores tell: AUC with interval and p, TPR at low FPR, the worst slice, the curve."""
    unlearned, retrained = pair
    models, rows = retrained.shape
    missing = {rate: roc.too_few(rate, models, rows, care.groups) for rate in roc.LOW}
    given = [rate for rate, why in missing.items() if why is None]
    statistics: list[Callable[[Rates], float]] = [roc.area, *(partial(roc.tpr_at, fpr=rate) for rate in given)]
    area, *low = over_models_and_rows(unlearned, retrained, statistics, care.seed, care.draws)
    p = auc_p(unlearned, retrained, care.seed, care.permutations)
    found: dict[str, Any] = {"auc": area.to_json() | {"p": p}}
    found |= {f"tpr_{rate:g}": why for rate, why in missing.items() if why is not None}
    found |= {f"tpr_{rate:g}": one.to_json() for rate, one in zip(given, low, strict=True)}
    by_slice = roc.slices(unlearned, retrained, slices)
    name, worst = next(iter(by_slice.items()))
    return found | {"worst_slice": {"name": name, "auc": worst}, "roc": curve(unlearned, retrained)}


def curve(unlearned: Floats, retrained: Floats) -> list[list[float]]:
    """(FPR, TPR) at rates that are evenly spaced in logarithms, from one score of all to 1."""
    rates = roc.Roc(unlearned, retrained).rates()
    lowest = max(1e-4, 1 / retrained.size)
    at = np.geomspace(lowest, 1.0, CURVE)
    return [[round(float(fpr), 6), round(roc.tpr_at(rates, fpr), 6)] for fpr in at]


def alone(side: Seen, seed: int) -> dict[str, Floats]:
    """What the attacks on one model alone say of each model."""
    some = side[:SINGLE_MODELS]
    return {name: np.array([one(some, i, seed) for i in range(len(some))]) for name, one in _ALONE.items()}


def singles(unlearned: Mapping[str, Floats], retrained: Mapping[str, Floats]) -> dict[str, Any]:
    """Their means over models, and the difference to Retrain's."""
    return {
        name: {
            "value": float(values.mean()),
            "retrain": float(retrained[name].mean()),
            "difference": over_models(values, retrained[name]).to_json(),
        }
        for name, values in unlearned.items()
    }


def _svc(side: Seen, model: int, seed: int) -> float:
    return efficacy.svc_efficacy(side.retain[model], side.test[model], side.forget[model], seed)


def _entropy(side: Seen, model: int, seed: int) -> float:
    forget, retain, test = side.entropies
    return efficacy.entropy_attack(retain[model], test[model], forget[model], seed)


_ALONE = {"svc": _svc, "entropy": _entropy}
