"""CIFAR-10 and CIFAR-100 in both of their standard layouts.

    binary  cifar-10-batches-bin/*.bin     a record is  label | 1024 red | 1024 green | 1024 blue        (3,073 bytes)
            cifar-100-binary/*.bin         a record is  coarse | fine | 3 x 1024                         (3,074 bytes)
    python  cifar-10-batches-py/*          a pickle of {data: uint8 [N, 3072], labels: [N]}
            cifar-100-python/*             a pickle of {data, fine_labels, …}

A pickle is a program, so it is read by an unpickler that knows only what such a batch is made of: the builtin
containers, and uint8 arrays. Any other name in it, `os.system` say, is refused before anything is called. The binary
layout needs no such care and is preferred where both are there. Coarse labels are ignored.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unfed.data.fetch.catalogue import CATALOGUE, find, read_file
from unfed.errors import UnfedError

Bytes = npt.NDArray[np.uint8]
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """One CIFAR data set: the files of its two layouts, and what their records look like."""

    name: str
    train: tuple[str, ...]
    test: str
    label_bytes: int
    label_key: bytes

    @property
    def classes(self) -> tuple[str, ...]:
        return CATALOGUE[self.name].labels

    @property
    def binary(self) -> str:
        return CATALOGUE[self.name].places[0]

    @property
    def python(self) -> str:
        return CATALOGUE[self.name].places[1]


CIFAR10 = Layout("cifar10", tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", 1, b"labels")
CIFAR100 = Layout("cifar100", ("train",), "test", 2, b"fine_labels")


def read(layout: Layout, root: Path | None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((train images, labels), (test images, labels)).

    Images are uint8 [N, 3, 32, 32] and labels int64 [N], in the official order.
    """
    folder = find(layout.name, root)
    return _part(layout, folder, layout.train), _part(layout, folder, (layout.test,))


def _part(layout: Layout, folder: Path, stems: Sequence[str]) -> tuple[Tensor, Tensor]:
    batches = [read_batch(layout, folder, stem) for stem in stems]
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return torch.from_numpy(images).view(-1, 3, 32, 32), torch.from_numpy(labels.astype(np.int64))


def read_batch(layout: Layout, folder: Path, stem: str) -> tuple[Bytes, Bytes]:
    """(pixels [N, 3072], labels [N]) of one file, in whichever layout the folder has."""
    binary = is_binary(folder, layout)
    path = folder / (f"{stem}.bin" if binary else stem)
    images, labels = (_binary if binary else _pickled)(layout, path)
    high = int(labels.max(initial=0))
    if high >= len(layout.classes):
        raise UnfedError(
            f"The file {path} holds the label {high}, but {layout.name} has the classes 0 to"
            f" {len(layout.classes) - 1}; it belongs to another data set: download {layout.name} again."
        )
    return images, labels


def is_binary(folder: Path, layout: Layout) -> bool:
    """Which of the two layouts a folder has: its test file tells."""
    return (folder / f"{layout.test}.bin").exists() or folder.name == layout.binary


def _binary(layout: Layout, path: Path) -> tuple[Bytes, Bytes]:
    raw = np.frombuffer(read_file(path, layout.name), np.uint8)
    record = layout.label_bytes + PIXELS
    if raw.size == 0 or raw.size % record:
        raise UnfedError(
            f"The file {path} has {raw.size} bytes, which is no whole number of {layout.name} records of {record}; it"
            " is damaged: download it again."
        )
    rows = raw.reshape(-1, record)
    return np.ascontiguousarray(rows[:, layout.label_bytes :]), rows[:, layout.label_bytes - 1].copy()


def _pickled(layout: Layout, path: Path) -> tuple[Bytes, Bytes]:
    batch = unpickle(read_file(path, layout.name), path)
    images, labels = (batch.get(b"data"), batch.get(layout.label_key)) if isinstance(batch, dict) else (None, None)
    right = (
        isinstance(images, np.ndarray)
        and images.ndim == 2
        and images.shape[1] == PIXELS
        and isinstance(labels, list)
        and len(labels) == len(images) > 0
        and all(isinstance(label, int) and 0 <= label < 256 for label in labels)
    )
    if not right:
        raise UnfedError(
            f"The file {path} is no batch of {layout.name}: it lacks an N x {PIXELS} array 'data' with N"
            f" {layout.label_key.decode()!r}; download the data set again."
        )
    return np.ascontiguousarray(images), np.array(labels, np.uint8)


class _AnArray:
    """What a pickle gets for `numpy.ndarray`: a name to pass on to `_reconstruct`, nothing to call."""

    def __new__(cls, *_: Any) -> _AnArray:
        raise pickle.UnpicklingError("an array is built directly")


def _array(kind: Any, shape: Any, code: Any) -> Bytes:
    """numpy's `_reconstruct`: an empty array, whose content follows as its state."""
    return np.ndarray((0,), np.uint8)


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: Any) -> Bytes:
    """numpy's `_frombuffer`, as protocol 5 writes arrays."""
    return np.frombuffer(buffer, np.uint8).reshape(shape, order=order)


def _uint8(code: Any, *_: Any) -> np.dtype[np.uint8]:
    """numpy's `dtype`: pixels are bytes, and nothing else is taken for pixels."""
    if code not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"an array of {code!r} is not made of pixels")
    return np.dtype(np.uint8, copy=True)


def _bytes(text: Any, encoding: Any) -> bytes:
    """Python 3 writes bytes in old protocols as an encoded string; only that one use is allowed."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("only bytes are written as encoded text")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """Python 3 writes b"" in old protocols as a call of `bytes` without arguments."""
    return b""


# numpy 2 moved numpy.core to numpy._core: official files name the first, files written today the second.
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _AnArray,
    ("numpy", "dtype"): _uint8,
    ("_codecs", "encode"): _bytes,
    ("__builtin__", "bytes"): _no_bytes,
    ("builtins", "bytes"): _no_bytes,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}


class _Refused(Exception):
    """A pickle asked for a name that no batch needs."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _ALLOWED:
            raise _Refused(f"{module}.{name}")
        return _ALLOWED[module, name]


def unpickle(data: bytes, path: Path) -> Any:
    """The value of a pickle that holds nothing but builtin containers and uint8 arrays."""
    try:
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except _Refused as error:
        raise UnfedError(
            f"The pickle {path} asks for {error}, which no CIFAR batch needs; nothing of it ran: delete it and download"
            " the data set again."
        ) from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise UnfedError(
            f"The pickle {path} is truncated, damaged or no CIFAR batch"
            f" ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}); download the data set again."
        ) from error
