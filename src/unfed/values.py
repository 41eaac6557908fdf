"""A value is a number, or the sentence "not measured: reason".

It is never 0 and never blank in the place of a number.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, TypeGuard

Value = float | str

PREFIX = "not measured: "


def not_measured(reason: str) -> str:
    """The value that stands where a number should be; a reason that already says so is kept as it is."""
    return reason if reason.startswith(PREFIX) else PREFIX + reason


def is_measured(value: object) -> TypeGuard[float]:
    """True for a finite number, which a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def as_json(value: Any) -> Any:
    """The same as JSON can hold it: names are text, sequences lists, and a number that is none says so."""
    if isinstance(value, Mapping):
        return {str(name): as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return not_measured(f"it is {value}") if isinstance(value, float) and not math.isfinite(value) else value
