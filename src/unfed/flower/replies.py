"""Reading arrays that came in Flower's records: numpy's format, never a pickle, never an archive.

The header inside must state the same once more, and the bytes must be as many as such a tensor has.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from torch import Tensor

from unfed.remote import replies as neutral
from unfed.remote.replies import TYPES, Declared, Packed, Unreadable, said, unknown_type, wrong_size

_HEADER = 4096


def packed(record: ArrayRecord) -> dict[str, Packed]:
    """The arrays of a record, none of them read yet."""
    return {name: _packed(array) for name, array in record.items()}


def tensors(record: ArrayRecord, known: Mapping[str, Declared], what: str = "update") -> dict[str, Tensor]:
    """The tensors of a record that must hold exactly these, in their order."""
    return neutral.tensors(packed(record), known, what)


def decoded(name: str, array: Array) -> Tensor:
    """One tensor, of the shape and type that its record states."""
    return _packed(array).read(name)


def _packed(array: Array) -> Packed:
    read = _numpy if array.stype == "numpy.ndarray" else _foreign
    return Packed(array.dtype, tuple(array.shape), array.data, read)


def _foreign(name: str, array: Packed) -> Tensor:
    raise unknown_type(name, array)


def _numpy(name: str, array: Packed) -> Tensor:
    """An array in numpy's format; it never takes more memory than the bytes that came."""
    if array.dtype not in TYPES:
        raise unknown_type(name, array)
    size, data = array.size, array.data
    if size is None or not size <= len(data) <= size + _HEADER:
        raise wrong_size(name, array)
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        inside, fortran, stored = header(stream, max_header_size=_HEADER)
    except Exception as error:
        raise Unreadable(f"its {name!r} cannot be read ({said(error, 80)})") from error
    if inside != array.shape or stored != np.dtype(array.dtype) or len(data) - stream.tell() != size:
        raise Unreadable(f"its {name!r} holds another array than it declares")
    values = np.frombuffer(data, stored, offset=stream.tell()).reshape(array.shape, order="F" if fortran else "C")
    return torch.from_numpy(values.copy(order="C"))
