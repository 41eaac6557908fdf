"""How far a number can be trusted that is taken from few rows, in percentage points.

    an accuracy of n rows          √( p (1 − p) / n )
    the MIA of n rows a side       √( a (1 − a) · 1.9 / 2n )         48.7 / √n at a = ½: more than a coin's 35.4 / √n

These are standard errors: other rows of the same kind would move the number by as much. The attack holds a share h of
its rows out, k times; a row is held out c times, c binomial with mean k·h, and called right or wrong much the same each
time. So 2n rows count as 2n · (k h)² / E c² independent ones, and E c² / (k h)² = 1 + (1 − h) / (k h) = 1.9. Attacks on
drawn losses, alike and not, scatter by 0.7 to 1.3 times that; a test draws some.

Two models are asked about the same rows, so between them it is rows that tell: even if every row that one reads
otherwise than the other speaks for the same one, a coin that falls so five times in a row is no news, six times is (3 %
of the time, either side).
"""

from __future__ import annotations

import math

HELD_OUT = 0.1
"""The share of its rows that the attack is scored on."""
FOLDS = 10
"""How often it is."""
FEWEST_APART = 6
"""On how many rows two models must differ before that is news: 2 · ½⁶ = 3 %."""


def accuracy_error(percent: float, rows: int) -> float:
    """The standard error of an accuracy over `rows`."""
    return _error(percent, rows, 1.0)


def attack_error(percent: float, rows: int) -> float:
    """The standard error of an MIA with `rows` on each side."""
    return _error(percent, 2 * rows, 1 + (1 - HELD_OUT) / (FOLDS * HELD_OUT))


def _error(percent: float, rows: int, counted: float) -> float:
    """Two rows right and two wrong are added (Agresti–Coull): three of three are not certain."""
    share = (percent / 100 * rows + 2) / (rows + 4)
    return 100 * math.sqrt(counted * share * (1 - share) / (rows + 4))
