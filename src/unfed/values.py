"""A value is a number, or the sentence "not measured: reason".

It is never 0 and never blank in the place of a number.
"""

from __future__ import annotations

import math
from typing import TypeGuard

Value = float | str

PREFIX = "not measured: "


def not_measured(reason: str) -> str:
    """The value that stands where a number should be; a reason that already says so is kept as it is."""
    return reason if reason.startswith(PREFIX) else PREFIX + reason


def is_measured(value: object) -> TypeGuard[float]:
    """True for a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
