"""Which edition of the numbers a run was made by.

A number here is raised when a change of code changes what comes out of a run with the same config and seed. Results
that were kept carry the numbers they were made by, and what is of an earlier edition is not shown: a method's own rows,
or everything where it is the engine or the evaluator. The version and the commit are shown, not compared. A test holds
every number to the digest of a small run (`tests/test_revisions.py`), so that none is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ENGINE = 1
"""Data, partition, batches, steps, averaging."""
EVALUATOR = 1
"""Metrics and the membership attack."""
METHODS: dict[str, int] = {
    **dict.fromkeys(("retrain", "ft", "not", "federaser", "fukd", "pgd", "nr-freeze"), 1),
    **dict.fromkeys(("randl", "ga", "badt", "l1-sparse", "ssd", "salun"), 1),
    "mode": 2,  # plain SGD in φ and the guidance
    "fcu": 2,  # a parameter without a gradient rests
    "sealed": 1,  # for a class, whose results were never kept, the head is drawn too since 2026-11-17
}
ANALYSES = {"bound": 1, "cka": 1, "spectrum": 1}
"""What is measured on models for an item of the paper, by its view."""
FIRST = 1
"""The edition of what had no number yet when it was used."""


def of(methods: Iterable[str]) -> dict[str, int]:
    """The revisions that a run with these methods depends on; a method that is not ours has none."""
    return {"engine": ENGINE, "evaluator": EVALUATOR} | {name: METHODS[name] for name in methods if name in METHODS}


def raised(then: Mapping[str, int], methods: Iterable[str]) -> list[str]:
    """What these methods depend on and has another revision than in `then`."""
    return [name for name, number in of(methods).items() if then.get(name, FIRST) != number]


def told(names: Iterable[str]) -> str:
    """As a sentence names them: "not revised" would read as the opposite."""
    return ", ".join(f"`{name}`" for name in names)
