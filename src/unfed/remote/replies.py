"""Reading what somebody else sent: nothing is believed before it is checked.

    declared   names, shapes and types as the sender states them, against those known here: before a byte is decoded
    sized      as many bytes as such a tensor has
    decoded    by the transport's own format, never a pickle
    counted    whole numbers, at least 0, at most what the client holds by the census

Whatever goes wrong on the way, of whatever kind, becomes the refusal of the one who sent it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from unfed.errors import UnfedError
from unfed.model.params import Params

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


Declared = tuple[tuple[int, ...], str]
"""A tensor's shape and the name of its type."""

TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(torch.float16, torch.float32, torch.float64, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}
"""What can be read here, by its name."""


@dataclass(frozen=True)
class Packed:
    """One tensor as it came."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    unpack: Callable[[str, Packed], Tensor] | None = None
    """How the bytes are read, for a name to put into sentences; without one they are the numbers themselves."""

    @property
    def size(self) -> int | None:
        """The bytes that it has by its shape and type; None where either makes no sense."""
        kind = TYPES.get(self.dtype)
        if kind is None or any(not isinstance(size, int) or size < 0 for size in self.shape):
            return None
        return math.prod(self.shape) * int(torch.empty(0, dtype=kind).element_size())

    @property
    def counted(self) -> int:
        """The bytes of the tensor alone: shape times type, but never more than really came."""
        return len(self.data) if self.size is None else min(self.size, len(self.data))

    def read(self, name: str) -> Tensor:
        """The tensor, of the shape and type that it states, or the sentence that says what is wrong with it."""
        return (self.unpack or _plain)(name, self)


def unpacked(group: Mapping[str, Packed]) -> Params:
    """Tensors back, each as it is declared, or the sentence that says which one is damaged."""
    return {name: packed.read(name) for name, packed in group.items()}


def declared(like: Mapping[str, Tensor]) -> dict[str, Declared]:
    """Shapes and types of tensors that are known here."""
    return {name: (tuple(t.shape), _name(t)) for name, t in like.items()}


def tensors(group: Mapping[str, Packed], known: Mapping[str, Declared], what: str = "update") -> dict[str, Tensor]:
    """The tensors of a group that must hold exactly these, in their order."""
    if set(group) != known.keys():
        odd = sorted(set(group) ^ known.keys())[0]
        raise Unreadable(f"its {what} {'lacks the' if odd in known else 'has an unknown'} tensor {said(repr(odd), 80)}")
    for name, (shape, kind) in known.items():
        packed = group[name]
        if tuple(packed.shape) != shape:
            raise Unreadable(f"its {name!r} has shape {said(tuple(packed.shape), 80)}, not {shape}")
        if packed.dtype != kind:
            raise Unreadable(f"its {name!r} is {said(packed.dtype, 40)}, not {kind}")
    return {name: group[name].read(name) for name in known}


def wrong_size(name: str, packed: Packed) -> Unreadable:
    """The sentence on bytes that are not as many as such a tensor has."""
    shape = said(packed.shape, 80)
    return Unreadable(f"its {name!r} has {len(packed.data)} bytes, which is not the size of {shape} {packed.dtype}")


def unknown_type(name: str, packed: Packed) -> Unreadable:
    """The sentence on a type that is not among those known."""
    return Unreadable(f"its {name!r} is of the type {said(packed.dtype, 40)}, which is not read here")


def _plain(name: str, packed: Packed) -> Tensor:
    """The numbers themselves; never more memory than the bytes that came."""
    if packed.dtype not in TYPES:
        raise unknown_type(name, packed)
    if packed.size != len(packed.data):
        raise wrong_size(name, packed)
    values = np.frombuffer(packed.data, np.dtype(packed.dtype)).reshape(packed.shape)
    return torch.from_numpy(values.copy())


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
