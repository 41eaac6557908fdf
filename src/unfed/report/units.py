"""Numbers with their units, as people read them: 7.1 MB, 3.4 GFLOP, 4 min 5 s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP")


def bytes_text(value: float) -> str:
    """Bytes in decimal units: 7.1 MB."""
    return _scaled(value, BYTES)


def flops_text(value: float) -> str:
    """Floating-point operations: 3.4 GFLOP."""
    return _scaled(value, FLOPS)


class Unit(NamedTuple):
    """What an axis is written in."""

    size: float
    name: str

    def text(self, value: float) -> str:
        """A value on the axis: with as many digits as tell it from its neighbours."""
        return f"{value / self.size:g}"


def axis_unit(largest: float, units: Sequence[str]) -> Unit:
    """One unit for all ticks up to the largest value."""
    power = sum(largest >= 1000**power for power in range(1, len(units)))
    return Unit(1000.0**power, units[power])


def seconds_text(value: float) -> str:
    """A duration: 12.3 s, 4 min 5 s, 2 h 3 min."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _scaled(value: float, units: Sequence[str]) -> str:
    for power, unit in enumerate(units):
        scaled = value / 1000**power
        # 999.95 would be printed as 1000.0; the next unit says it better.
        if scaled < 999.95 or power == len(units) - 1:
            return f"{scaled:.0f} {unit}" if power == 0 else f"{scaled:.1f} {unit}"
    raise AssertionError("the last unit takes everything")
