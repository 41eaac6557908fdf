"""Tensors on their way: what each is said to be, and bytes that nobody has read yet.

A transport says how its bytes are read (`unpack`); the names, shapes and types that a tensor must have are compared
before that is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unfed.model.params import Params
from unfed.remote.replies import Unreadable, said

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
