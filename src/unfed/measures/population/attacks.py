"""Membership attacks on a population: fitted on one half of its models, asked about the other.

U-LiRA, RMIA, IAM     scores of every (model, row); do unlearned models differ from Retrains?   AUC, TPR at low FPR
LiRA, RMIA            how high forgotten rows stand among held-out rows of the same model, beside Retrain's
SVC efficacy, entropy one number per model; the difference to Retrain's

SVC efficacy and entropy are two attacks on one model that other papers call "MIA", under their own names. Each learns
on rows of known standing, retained (1) against held out (0), and is asked about the forgotten ones:

    SVC efficacy   an RBF support vector classifier (C = 3, γ = 1) on p of the row's label
                   100 · share of forgotten rows called "not a member"       high: forgotten   (Jia et al. 2023, SalUn)
    entropy        a logistic regression, classes weighed alike, on the entropy H of the answer
                   100 · share of forgotten rows called "a member"           low: forgotten    (Golatkar 2020, BadT)

Neither knows what a model would say that never saw the rows: each number means something beside Retrain's alone. At
most 1,000 rows of either side are learnt from, drawn at random, and for the SVC as many of one as of the other: it does
not weigh classes, so of unequally many it calls every row one of the larger side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed import rng
from unfed.errors import UnfedError
from unfed.measures.population.distances import Floats, Seen
from unfed.measures.population.intervals import (
    LOW,
    Rates,
    Resampling,
    Roc,
    area,
    auc_by_slice,
    auc_p,
    over_models,
    over_models_and_rows,
    placed,
    too_few,
    tpr_at,
)
from unfed.values import not_measured

ATTACKS = {"u-lira": "U-LiRA", "rmia": "RMIA", "iam": "IAM"}
STANDING = {"lira": "LiRA", "rmia": "RMIA"}
"""Attacks that set forgotten rows beside held-out rows of the same model."""

ONE_ROW = not_measured("IAM takes its spread over rows, and there is only one forgotten row")
SINGLE_MODELS = 16
"""So many models of each kind are asked one by one; a classifier is fitted for each."""
CURVE = 60

NARROWEST = 1e-3
"""No Gaussian is narrower, in log odds: where models agree to the last digit, a ratio would be of rounding errors."""
LIRA_FEWEST = 2
"""Models a side that a spread can be taken of."""
RMIA_A = 0.3
STEPS = 100
EULER = 0.5772
LIFT, FLOOR = 1e-2, 1e-5
LARGEST = 1_000


# --- U-LiRA -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gaussians:
    """Mean and spread of φ for each row, among the unlearned models and among the Retrains.

    For each row two Gaussians are fitted to φ = log p − log(1 − p) over models of the first half of a population:

        μ_u, σ_u   over models that were trained with the row and unlearned it
        μ_r, σ_r   over models that never saw it (Retrain)

        score(φ) = log N(φ; μ_u, σ_u) − log N(φ; μ_r, σ_r)       high: trained with it, then unlearned

    and models of the other half are scored, so that no model is judged by a Gaussian it helped to fit. μ is the mean
    and σ divides by n − 1; the published code of LiRA (`mi_lira_2021`) takes the median and divides by n. This is the
    attack of Hayes et al. 2024, with a Gaussian for each row and each side. RULI's (kernel densities, three thirds) and
    those on right or wrong answers alone are others, and their numbers cannot be compared with these.
    """

    mean_unlearned: Floats
    std_unlearned: Floats
    mean_retrained: Floats
    std_retrained: Floats

    def score(self, phi: Floats) -> Floats:
        """log N(φ; μ_u, σ_u) − log N(φ; μ_r, σ_r), for [models, rows]."""
        unlearned = _log_normal(phi, self.mean_unlearned, self.std_unlearned)
        return unlearned - _log_normal(phi, self.mean_retrained, self.std_retrained)


def fit_lira(unlearned: Floats, retrained: Floats) -> Gaussians:
    """The Gaussians of U-LiRA from φ of both kinds, each [models, rows]."""
    fewest = min(len(unlearned), len(retrained))
    if fewest < LIRA_FEWEST:
        raise UnfedError(
            f"U-LiRA needs at least {LIRA_FEWEST} models a side and was given {fewest}; run `unfed population …"
            f" --models {2 * LIRA_FEWEST}`."
        )
    return Gaussians(*_moments(unlearned), *_moments(retrained))


def standardised(phi: Floats, retrained: Floats) -> Floats:
    """(φ − μ_r) / σ_r: how far a row lies from where Retrains have it."""
    mean, std = _moments(retrained)
    found: Floats = (phi - mean) / std
    return found


def _moments(phi: Floats) -> tuple[Floats, Floats]:
    return phi.mean(axis=0), np.maximum(phi.std(axis=0, ddof=1), NARROWEST)


def _log_normal(phi: Floats, mean: Floats, std: Floats) -> Floats:
    found: Floats = -0.5 * ((phi - mean) / std) ** 2 - np.log(std)
    return found


# --- RMIA -------------------------------------------------------------------------------------------------------------


def rmia_expected(out: Floats, a: float = RMIA_A) -> Floats:
    """p̄ of every row, from p under models that never saw it, [models, rows]."""
    found: Floats = (1 + a) / 2 * out.mean(axis=0) + (1 - a) / 2
    return found


def rmia_score(target: Floats, held_out: Floats, out: Floats, out_held_out: Floats, a: float = RMIA_A) -> Floats:
    """RMIA: the share of held-out rows that each row beats, for each target model.

    p̄(x)    = (1 + a)/2 · mean_out p(x) + (1 − a)/2              what a model gives to x, seen or not; out = Retrains
        ratio(x) = p(x) / p̄(x)
        score(x) = share of held-out rows z with ratio(x) / ratio(z) > 1

    This is the offline attack of Zarifzadeh et al. 2024 with γ = 1; `a` says how far seeing a row raises p, and 0.3 is
    what its authors take where nothing is known. `out` are Retrains of the first half; models of the other half are
    scored.

    `target` [models, rows] and `held_out` [models, z] are p under the models that are attacked; `out` and
    `out_held_out` the same rows under Retrains.
    """
    ratio, others = target / rmia_expected(out, a), held_out / rmia_expected(out_held_out, a)
    beaten = [np.searchsorted(np.sort(z), x, side="left") for x, z in zip(ratio, others, strict=True)]
    found: Floats = np.stack(beaten) / others.shape[1]
    return found


# --- IAM --------------------------------------------------------------------------------------------------------------


def iam_signal(p: Floats) -> Floats:
    """r: a bounded −log(−log p), which is near Gumbel."""
    found: Floats = -np.log(LIFT - np.log(p + FLOOR))
    return found


def iam_score(target: Floats, original: Floats, shadow: Floats) -> Floats:
    """IAM: how fitted each row still is, from 0 to 1, by p of its own label, [rows] each.

    r(p) = −log(0.01 − log(p + 0.00001))                        the signal of a row
        r_α  = r_shadow + α (r_original − r_shadow)                   100 steps of α from 0 (never saw it) to 1 (fitted)
        β_α  = √6/π · std over rows of r_α,   location = r_α − 0.5772 β_α       a Gumbel distribution by its moments
        score = Σ_α w_α · P(Gumbel_α ≤ r_target) / Σ_α w_α        w_α: the next step's α; 1: as fitted as the original

    The shadow is one model that never saw the rows (a Retrain), the original the model before unlearning: what an
    operator can afford. The measure is that of Wang et al. 2025, in its form with one shadow, whose spread is taken
    over rows.

    `target` is the model that is judged, `original` the one before, `shadow` one that never saw the rows.
    """
    if len(target) < 2:
        raise UnfedError("IAM takes its spread over rows, and there is only one; it needs at least 2 forgotten rows.")
    alphas = np.linspace(0.0, 1.0, STEPS)
    begin, end = iam_signal(shadow), iam_signal(original)
    steps = begin + alphas[:-1, None] * (end - begin)
    beta = np.maximum(np.sqrt(6.0) / np.pi * steps.std(axis=1, keepdims=True), 1e-12)
    below = np.exp(-np.exp(np.clip(-(iam_signal(target) - (steps - EULER * beta)) / beta, -700.0, 700.0)))
    weights = alphas[1:]
    found: Floats = weights @ below / weights.sum()
    return found


# --- attacks on one model alone ---------------------------------------------------------------------------------------


def svc_efficacy(retain: Floats, test: Floats, forget: Floats, seed: int = 0) -> float:
    """The percentage of forgotten rows that are taken for untrained rows; each is p, [rows]."""
    # Imported where it is used: it takes a second, and most commands need none of it.
    from sklearn.svm import SVC  # type: ignore[import-untyped, unused-ignore]

    alike = min(LARGEST, len(retain), len(test))
    member = _asked(SVC(C=3, gamma="auto", kernel="rbf"), (retain, test, forget), alike, seed)
    return 100.0 * (1.0 - member)


def entropy_attack(retain: Floats, test: Floats, forget: Floats, seed: int = 0) -> float:
    """The percentage of forgotten rows that their entropy gives away as trained on; each is H, [rows]."""
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped, unused-ignore]

    return 100.0 * _asked(LogisticRegression(class_weight="balanced"), (retain, test, forget), LARGEST, seed)


def _asked(classifier: Any, rows: tuple[Floats, Floats, Floats], most: int, seed: int) -> float:
    """The share of forgotten rows that a classifier calls members, once it has learnt from the others."""
    retain, test, forget = rows
    if min(len(retain), len(test), len(forget)) == 0:
        raise UnfedError(
            "The attack learns from retained and held-out rows and is asked about forgotten ones; one is empty."
        )
    learnt = [_drawn(values, most, seed, name) for values, name in ((retain, "retain"), (test, "test"))]
    known = np.repeat([1, 0], [len(values) for values in learnt])
    classifier.fit(np.concatenate(learnt)[:, None], known)
    return float(np.mean(classifier.predict(forget[:, None]) == 1))


def _drawn(values: Floats, most: int, seed: int, name: str) -> Floats:
    chosen = rng.order(rng.as_key(rng.key("efficacy", name, seed)), len(values))[:most].sort().values
    found: Floats = values[chosen.numpy()]
    return found


# --- all of them, on one kind of model --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sides:
    """Who is fitted on, and who is judged; `before` are the models that those who are judged began at."""

    fit_unlearned: Seen
    fit_retrained: Seen
    unlearned: Seen
    retrained: Seen
    before_unlearned: Seen
    before_retrained: Seen


def scores(sides: Sides) -> dict[str, tuple[Floats, Floats]]:
    """The scores of each attack for the judged models, [models, rows]: unlearned and Retrain.

    IAM has none where there is only one row.
    """
    gaussians = fit_lira(sides.fit_unlearned.phi, sides.fit_retrained.phi)
    out, shadow = sides.fit_retrained, sides.fit_retrained.forget[0]

    def of_rmia(target: Seen) -> Floats:
        return rmia_score(target.forget, target.test, out.forget, out.test)

    def of_iam(target: Seen, before: Seen) -> Floats:
        return np.stack([iam_score(t, b, shadow) for t, b in zip(target.forget, before.forget, strict=True)])

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
        return standardised(side.phi, fit.phi), standardised(side.phi_test, fit.phi_test)

    def of_rmia(side: Seen) -> tuple[Floats, Floats]:
        return side.forget / rmia_expected(fit.forget), side.test / rmia_expected(fit.test)

    scores = dict(zip(STANDING, (of_lira, of_rmia), strict=True))
    return {name: (placed(*one(unlearned)), placed(*one(retrained))) for name, one in scores.items()}


def attacked(
    pair: tuple[Floats, Floats], slices: Mapping[str, NDArray[np.bool_]], effort: Resampling, groups: int = 2
) -> dict[str, Any]:
    """What one attack's scores tell: AUC with interval and p, TPR at low FPR, the worst slice, the curve.

    `groups` are those into which a kind of model is cut: one to fit on and one to judge.
    """
    unlearned, retrained = pair
    models, rows = retrained.shape
    missing = {rate: too_few(rate, models, rows, groups) for rate in LOW}
    given = [rate for rate, why in missing.items() if why is None]
    statistics: list[Callable[[Rates], float]] = [area, *(partial(tpr_at, fpr=rate) for rate in given)]
    auc, *low = over_models_and_rows(unlearned, retrained, statistics, effort.seed, effort.draws)
    p = auc_p(unlearned, retrained, effort.seed, effort.permutations)
    found: dict[str, Any] = {"auc": auc.to_json() | {"p": p}}
    found |= {f"tpr_{rate:g}": why for rate, why in missing.items() if why is not None}
    found |= {f"tpr_{rate:g}": one.to_json() for rate, one in zip(given, low, strict=True)}
    by_slice = auc_by_slice(unlearned, retrained, slices)
    name, worst = next(iter(by_slice.items()))
    return found | {"worst_slice": {"name": name, "auc": worst}, "roc": curve(unlearned, retrained)}


def curve(unlearned: Floats, retrained: Floats) -> list[list[float]]:
    """(FPR, TPR) at rates that are evenly spaced in logarithms, from one score of all to 1."""
    rates = Roc(unlearned, retrained).rates()
    lowest = max(1e-4, 1 / retrained.size)
    at = np.geomspace(lowest, 1.0, CURVE)
    return [[round(float(fpr), 6), round(tpr_at(rates, fpr), 6)] for fpr in at]


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
    return svc_efficacy(side.retain[model], side.test[model], side.forget[model], seed)


def _entropy(side: Seen, model: int, seed: int) -> float:
    forget, retain, test = side.entropies
    return entropy_attack(retain[model], test[model], forget[model], seed)


_ALONE = {"svc": _svc, "entropy": _entropy}
