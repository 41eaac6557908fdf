"""A small set of rows in which every two values of different columns meet at least once.

    columns = {"model": ["cnn", "vit"], "poison": [False, True], "scope": ["client", "class"]}
    rows(columns)                                    four rows instead of eight; with ten columns, twenty instead of 10⁴

A fault that needs two settings at once (a poisoned client *and* a transformer) shows in such a set; one that needs
three may not. Greedy and deterministic: the row that covers most of what is still open comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs(row: Mapping[str, Any]) -> set[Pair]:
    """Every two values of a row, with their columns."""
    return set(combinations(row.items(), 2))


def feasible(
    columns: Mapping[str, Sequence[Any]], allowed: Callable[[Mapping[str, Any]], bool] = lambda row: True
) -> list[dict[str, Any]]:
    """Every combination that makes sense."""
    made = (dict(zip(columns, values, strict=True)) for values in product(*columns.values()))
    return [row for row in made if allowed(row)]


def rows(
    columns: Mapping[str, Sequence[Any]], allowed: Callable[[Mapping[str, Any]], bool] = lambda row: True
) -> list[dict[str, Any]]:
    """Few rows that make sense and hold every pair of values which any row that makes sense holds."""
    candidates = [(row, pairs(row)) for row in feasible(columns, allowed)]
    still = set[Pair]().union(*(held for _, held in candidates)) if candidates else set()
    chosen: list[dict[str, Any]] = []
    while still:
        best, held = max(candidates, key=lambda candidate: len(candidate[1] & still))
        chosen.append(best)
        still -= held
        candidates = [(row, own) for row, own in candidates if own & still]
    return chosen
