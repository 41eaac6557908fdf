"""What a value of JSON may be: small questions, put together to that of a whole file.

Files are damaged, edited and handed on, so whoever reads one asks first. Numbers must fit a float: `NaN`, `Infinity`
and whole numbers of 400 digits are JSON to Python, and end what computes with them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]


def parsed(data: str | bytes, constant: Callable[[str], Any] | None = None) -> Any:
    """The value in a text of JSON, or ValueError; `constant` is asked about `NaN` and `Infinity`.

    UTF-8 and nothing else. What is named twice is refused, for another reader may take the other one.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        return json.loads(text, object_pairs_hook=_once, parse_constant=constant)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it names something twice")
    return found


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_name(value: Any) -> bool:
    """The name of a file, which leads into no other folder."""
    return isinstance(value, str) and value not in ("", ".", "..") and not {*value} & {*"/\\\0"}


def is_table(value: Any) -> bool:
    return isinstance(value, dict)


def is_yes(value: Any) -> bool:
    return isinstance(value, bool)


def is_number(value: Any) -> bool:
    """A finite number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_plain_number(value: Any) -> bool:
    """A number as something that was measured may be: not a number, too, or without end."""
    return isinstance(value, float) or is_number(value)


def is_whole(value: Any) -> bool:
    """A whole number of 64 bits, with its sign or without one."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 64


def is_count(value: Any) -> bool:
    return is_whole(value) and bool(value >= 0)


def is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def is_percent(value: Any) -> bool:
    """A share of a hundred as something that was measured may be: off by rounding, or not a number."""
    return is_plain_number(value) and not (value < -1e-6 or value > 100 + 1e-6)


def is_plain(value: Any) -> bool:
    """Anything that JSON can say, as long as its numbers fit a float; one that is none is let through."""
    try:
        if isinstance(value, dict):
            return all(map(is_plain, value.values()))
        if isinstance(value, list):
            return all(map(is_plain, value))
    except RecursionError:
        return False
    return not isinstance(value, int) or is_number(int(value))


def or_null(fits: Check) -> Check:
    return lambda value: value is None or fits(value)


def either(*fits: Check) -> Check:
    return lambda value: any(one(value) for one in fits)


def list_of(fits: Check, least: int = 0) -> Check:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(fits, value))


def table_of(fits: Check) -> Check:
    """A table whose keys may be any."""
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def table_with(must: Mapping[str, Check], may: Mapping[str, Check] | None = None) -> Check:
    """A table that has these fields, and perhaps those; what else it has is not asked about."""

    def fits(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(name in value and own(value[name]) for name, own in must.items())
            and all(name not in value or own(value[name]) for name, own in (may or {}).items())
        )

    return fits
