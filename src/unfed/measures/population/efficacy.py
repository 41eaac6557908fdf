"""Two attacks on one model that other papers call "MIA", under their own names.

Each learns on rows of known standing, retained (1) against held out (0), and is asked about the forgotten ones:

    SVC efficacy   an RBF support vector classifier (C = 3, γ = 1) on p of the row's label
                   100 · share of forgotten rows called "not a member"       high: forgotten   (Jia et al. 2023, SalUn)
    entropy        a logistic regression, classes weighed alike, on the entropy H of the answer
                   100 · share of forgotten rows called "a member"           low: forgotten    (Golatkar 2020, BadT)

Neither knows what a model would say that never saw the rows: each number means something beside Retrain's alone. At
most 1,000 rows of either side are learnt from, drawn at random, and for the SVC as many of one as of the other: it does
not weigh classes, so of unequally many it calls every row one of the larger side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from unfed import rng
from unfed.errors import UnfedError
from unfed.measures.population.signals import Floats

LARGEST = 1_000


def svc_efficacy(retain: Floats, test: Floats, forget: Floats, seed: int = 0) -> float:
    """The percentage of forgotten rows that are taken for rows nobody trained on; each is p, [rows]."""
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
