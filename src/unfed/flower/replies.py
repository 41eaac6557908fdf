"""Reading what somebody else sent: nothing is believed before it is checked.

    declared   names, shapes and types as the record states them, against those known here: before a byte is decoded
    sized      as many bytes as such a tensor has, and a short header
    decoded    numpy's format, never a pickle, never an archive; the header inside must state the same once more
    counted    whole numbers, at least 0, at most what the client holds by the census

Whatever goes wrong on the way, of whatever kind, becomes the refusal of the one who sent it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from torch import Tensor

from unfed.errors import UnfedError

T = TypeVar("T")
Declared = tuple[tuple[int, ...], str]
"""A tensor's shape and the name of its type."""

MOST_ROWS = 10_000_000
"""Of one client: the server keeps a place for each of them."""
MOST_CLASSES = 100_000
MOST_PIXELS = 100_000_000
"""Numbers in one sample."""
_WORDS = 500
_HEADER = 4096
_TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(torch.float16, torch.float32, torch.float64, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


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


def declared(like: Mapping[str, Tensor]) -> dict[str, Declared]:
    """Shapes and types of tensors that are known here."""
    return {name: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in like.items()}


def tensors(record: ArrayRecord, known: Mapping[str, Declared], what: str = "update") -> dict[str, Tensor]:
    """The tensors of a record that must hold exactly these, in their order."""
    if set(record) != known.keys():
        odd = sorted(set(record) ^ known.keys())[0]
        raise Unreadable(f"its {what} {'lacks the' if odd in known else 'has an unknown'} tensor {said(repr(odd), 80)}")
    for name, (shape, kind) in known.items():
        array = record[name]
        if tuple(array.shape) != shape:
            raise Unreadable(f"its {name!r} has shape {said(tuple(array.shape), 80)}, not {shape}")
        if array.dtype != kind:
            raise Unreadable(f"its {name!r} is {said(array.dtype, 40)}, not {kind}")
    return {name: decoded(name, record[name]) for name in known}


def finite(found: Mapping[str, Tensor], what: str = "update") -> Mapping[str, Tensor]:
    """The same tensors, if none of them has a NaN or an infinity in it."""
    for name, tensor in found.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Unreadable(f"its {what} has NaN or infinite values in {name!r}")
    return found


def decoded(name: str, array: Array) -> Tensor:
    """One tensor, of the shape and type that its record states.

    It never takes more memory than the bytes that came.
    """
    shape, kind = tuple(array.shape), _TYPES.get(array.dtype)
    if kind is None or array.stype != "numpy.ndarray":
        raise Unreadable(f"its {name!r} is of the type {said(array.dtype, 40)}, which is not read here")
    size, data = tensor_bytes(array), array.data
    if size is None or not size <= len(data) <= size + _HEADER:
        raise Unreadable(
            f"its {name!r} has {len(data)} bytes, which is not the size of {said(shape, 80)} {array.dtype}"
        )
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        inside, fortran, stored = header(stream, max_header_size=_HEADER)
    except Exception as error:
        raise Unreadable(f"its {name!r} cannot be read ({said(error, 80)})") from error
    if inside != shape or stored != np.dtype(array.dtype) or len(data) - stream.tell() != size:
        raise Unreadable(f"its {name!r} holds another array than it declares")
    values = np.frombuffer(data, stored, offset=stream.tell()).reshape(shape, order="F" if fortran else "C")
    return torch.from_numpy(values.copy(order="C"))


def tensor_bytes(array: Array) -> int | None:
    """Shape times type; None where either makes no sense."""
    kind = _TYPES.get(array.dtype)
    if kind is None or any(not isinstance(size, int) or size < 0 for size in array.shape):
        return None
    return math.prod(array.shape) * int(torch.empty(0, dtype=kind).element_size())
