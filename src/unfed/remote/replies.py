"""Reading what somebody else sent: nothing is believed before it is checked.

    declared   names, shapes and types as the sender states them, against those known here: before a byte is decoded
    sized      as many bytes as such a tensor has
    decoded    by the transport's own format, never a pickle (`packed.py`)
    counted    whole numbers, at least 0, at most what the client holds by the census

Whatever goes wrong on the way, of whatever kind, becomes the refusal of the one who sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from unfed.errors import UnfedError

T = TypeVar("T")

MOST_ROWS = 1_000_000
"""Of one client, unless the run config's max-rows says otherwise: the server keeps a place for each of them."""
MOST_CLASSES = 100_000
USUAL_CLASSES = 1_000
"""More than these, and than ten times the median of all clients, one client cannot make of the model's classes."""
MOST_PIXELS = 100_000_000
"""Numbers in one sample."""
_WORDS = 500


@dataclass(frozen=True)
class Failure:
    """No usable answer, and why."""

    reason: str


class Unreadable(UnfedError):
    """Something sent that is not what it must be; the sentence goes on after 'client 3: '."""


def attempt(read: Callable[[], T]) -> T | Failure:
    """What a reader finds, or the sender's refusal.

    It is a refusal too where reading runs out of memory, or fails in a way that was not foreseen.
    """
    try:
        return read()
    except Unreadable as error:
        return Failure(said(error))
    except Exception as error:
        return Failure(f"its answer cannot be read ({said(repr(error))})")


def said(words: object, most: int = _WORDS) -> str:
    """Words that came from a client, cut to one printable line for a log and a terminal."""
    text = " ".join(str(words).split())
    text = "".join(sign if sign.isprintable() else "?" for sign in text[: most + 1])
    return text if len(text) <= most else text[:most] + "…"


def name_of(words: object) -> str:
    """A client's name as it gives it.

    It must be short and printable, so that it can stand in a file, a table and a log.
    """
    name = str(words)
    if len(name) > 100 or not name.isprintable():
        raise Unreadable("the name it gives is longer than 100 characters, or cannot be printed")
    return name


def count(values: Mapping[str, Any], key: str, most: int | None = None) -> int:
    """A whole number that somebody counted, at most so many."""
    if key not in values:
        raise Unreadable(f"its answer cannot be read (the count {key!r} is missing)")
    value = values[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Unreadable(f"its answer cannot be read ({key!r} is {said(repr(value), 40)}, which is no count)")
    if most is not None and value > most:
        raise Exceeds(f"it counts {value} rows as {key!r}, where by its census there are at most {most}")
    return value


class Exceeds(Unreadable):
    """A count above what the census says: the sender's data has grown, or the count is forged."""


def finite(found: Mapping[str, Tensor], what: str = "update") -> Mapping[str, Tensor]:
    """The same tensors, if none of them has a NaN or an infinity in it."""
    for name, tensor in found.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Unreadable(f"its {what} has NaN or infinite values in {name!r}")
    return found
