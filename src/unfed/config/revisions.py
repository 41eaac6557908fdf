"""Which edition of the numbers a run was made by.

A number here is raised when a change of code changes what comes out of a run with the same config and seed. Results
that were kept carry the numbers they were made by, and what is of an earlier edition is not shown: a method's own rows,
or everything where it is the engine or the evaluator. The version and the commit are shown, not compared. A test holds
every number to the digest of a small run (`tests/project/test_revisions.py`), so that none is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

ENGINE = 1
"""Data, partition, batches, steps, averaging."""
EVALUATOR = 1
"""Metrics and the membership attack."""
METHODS: dict[str, int] = {
    **dict.fromkeys(("retrain", "ft", "not", "federaser", "fukd", "pgd", "nr-freeze"), 1),
    **dict.fromkeys(("randl", "ga", "badt", "l1-sparse", "ssd", "salun"), 1),
    "mode": 2,  # plain SGD in φ and the guidance
    "fcu": 2,  # a parameter without a gradient rests
    "sealed": 1,
    "led": 1,
}
FOR_A_CLASS = {"sealed": 2}  # the head is drawn too
"""Of runs in which a class leaves: methods that were revised for these alone."""
ANALYSES = {"bound": 1, "cka": 1, "spectrum": 1}
"""What is measured on models for an item of the paper, by its view."""
FIRST = 1
"""The edition of what had no number yet when it was used."""


def of(methods: Iterable[str], config: Mapping[str, Any] | None = None) -> dict[str, int]:
    """The revisions that a run with these methods depends on; a method that is not ours has none.

    `config` tells whether a class leaves.
    """
    known, used = {"engine": ENGINE, "evaluator": EVALUATOR, **METHODS}, ["engine", "evaluator", *methods]
    if any(one.get("classes") for one in (config or {}).get("request") or ()):
        known |= {f"{name} for a class": number for name, number in FOR_A_CLASS.items()}
        used += [f"{name} for a class" for name in used]
    return {name: known[name] for name in used if name in known}


def raised(then: Mapping[str, int], methods: Iterable[str], config: Mapping[str, Any] | None = None) -> list[str]:
    """What these methods depend on and has another revision than in `then`."""
    return [name for name, number in of(methods, config).items() if then.get(name, FIRST) != number]


def told(names: Iterable[str]) -> str:
    """As a sentence names them: "not revised" would read as the opposite."""
    return ", ".join(f"`{name}`" for name in names)
