"""Who is marked as the best of a request, and when nobody is.

smallest     the smallest average gap to Retrain, and whatever seeds and rows do not tell from it
ahead        the smallest that are nearer to Retrain than Before, which is what doing nothing leaves
marked ★     those ahead, unless they are several and more than half of the methods: such a mark would tell nothing,
             and a sentence below the table names them instead
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from unfed.report.rules import Row
from unfed.values import is_measured


def is_marked(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a row carries the star."""
    return is_ahead(row, rows) and row.request not in crowded(rows)


def crowded(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Of each request (or run) in which more than half of the methods would be marked: those."""
    found = {}
    for name in dict.fromkeys(row.request for row in rows):
        methods = _methods(rows, name)
        ahead = [row for row in methods if is_ahead(row, rows)]
        if len(ahead) > max(1, len(methods) / 2):
            found[name] = ahead
    return found


def is_ahead(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a gap is among the smallest of its request, and smaller than doing nothing's."""
    before = [r.average_gap.mean for r in rows if r.request == row.request and r.is_before]
    mine = row.average_gap.mean
    if row.is_before or not is_measured(mine):
        return False
    if any(is_measured(nothing) and round(mine, 2) >= round(nothing, 2) for nothing in before):
        return False
    return is_smallest(row, rows)


def is_smallest(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a row has the smallest average gap of its request's methods, or is not told from it.

    Two standard deviations of the difference tell, by what seeds differ or, if that is more, by what so few rows leave
    open: nobody is crowned for luck. Where neither is known, two decimals tell.
    """
    rivals = _methods(rows, row.request)
    gaps = [(r.average_gap.mean, _by_luck(r)) for r in rivals if is_measured(r.average_gap.mean)]
    mine = row.average_gap.mean
    if row.is_reference or not gaps or not is_measured(mine):
        return False
    least, around = min(gaps)
    return round(mine, 2) <= round(least, 2) or mine - least <= 2 * math.hypot(_by_luck(row), around)


def without(rows: Sequence[Row]) -> list[str]:
    """The requests (or runs) of which no method is nearer to Retrain than the model before."""
    compared = {row.request: None for row in rows if _is_method(row) and is_measured(row.average_gap.mean)}
    ahead = {row.request for row in rows if is_ahead(row, rows)}
    return [name for name in compared if name not in ahead]


def beside_before(rows: Sequence[Row]) -> list[str]:
    """The requests (or runs) in which doing nothing is not told from the best by its gap."""
    ahead = {row.request for row in rows if is_ahead(row, rows)}
    return [row.request for row in rows if row.is_before and row.request in ahead and is_smallest(row, rows)]


def star(rows: Sequence[Row]) -> str:
    """What the mark means in these rows, and why it is missing."""
    nobody, many = without(rows), crowded(rows)
    if not any(is_marked(row, rows) for row in rows):
        if many:
            return "No ★: more than half of the methods share the smallest average gap"
        return "No ★: no method " + ("is nearer to Retrain than Before" if nobody else "has an average gap to Retrain")
    several = any(len(row.seeds) > 1 for row in rows)
    unsure = several or any(row.gap_error for row in rows)
    return (
        "★ smallest average gap to Retrain"
        + (f", and what is within two standard {'deviations' if several else 'errors'} of it" if unsure else "")
        + ("; none where no method is nearer than Before" if nobody else "")
        + ("; none where that is more than half of the methods" if many else "")
    )


def _methods(rows: Sequence[Row], request: str) -> list[Row]:
    return [row for row in rows if row.request == request and _is_method(row)]


def _is_method(row: Row) -> bool:
    return not (row.is_reference or row.is_before)


def _by_luck(row: Row) -> float:
    return max(row.average_gap.std or 0.0, row.gap_error)
