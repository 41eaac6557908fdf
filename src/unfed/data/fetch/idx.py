"""MNIST and Fashion-MNIST: four files in the idx format, plain or gzipped.

    0 0 type rank | rank sizes, 4 bytes each, big-endian | the values          type 8 = uint8

Both data sets use the same four file names, so each is looked for in a folder of its own name only: Fashion-MNIST
must never pass for MNIST.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unfed.data.fetch.catalogue import CATALOGUE, find, read_file
from unfed.errors import UnfedError

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_UINT8 = 8
MOST_BYTES = 1 << 30  # twenty times what the family's largest file unpacks to


def read(name: str, root: Path | None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((train images, labels), (test images, labels)): uint8 [N, 1, H, W] and int64 [N]."""
    folder = find(name, root)
    return _part(name, folder, "train"), _part(name, folder, "test")


def _part(name: str, folder: Path, part: str) -> tuple[Tensor, Tensor]:
    image_file, label_file = (file_of(folder, stem) for stem in FILES[part])
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(labels):
        raise UnfedError(
            f"{image_file} holds {len(images)} images and {label_file} {len(labels)} labels, so they do not belong"
            f" together; download {name} again."
        )
    high = int(labels.max(initial=0))
    if high >= len(CATALOGUE[name].labels):
        raise UnfedError(f"{label_file} holds the label {high}, which {name} has not; download it again.")
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64))


def file_of(folder: Path, stem: str) -> Path:
    """The plain file where there is one, else the gzipped one."""
    return folder / stem if (folder / stem).exists() else folder / f"{stem}.gz"


def plain_bytes(path: Path) -> bytes:
    """A file's bytes, decompressed where its name says that it is compressed."""
    data = read_file(path, "the data set")
    if path.suffix != ".gz":
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            plain = packed.read(MOST_BYTES + 1)
        if len(plain) > MOST_BYTES:
            raise UnfedError(f"{path} unpacks to more than {MOST_BYTES >> 30} GiB; download it again.")
        return plain
    except (OSError, EOFError, zlib.error) as error:
        raise UnfedError(f"{path} is truncated or no gzip file ({error}); download it again.") from error


def read_idx(path: Path, rank: int) -> npt.NDArray[np.uint8]:
    """The array in an idx file of bytes, or the sentence that says what is wrong with it."""
    data = plain_bytes(path)
    start = 4 + 4 * rank
    if len(data) < start or data[:4] != bytes((0, 0, _UINT8, rank)):
        raise UnfedError(f"{path} is no idx file of bytes with {rank} axes; download the data set again.")
    shape = struct.unpack(f">{rank}I", data[4:start])
    values = np.frombuffer(data, np.uint8, offset=start)
    count = int(np.prod([int(size) for size in shape], dtype=object))
    if values.size != count or count == 0:
        raise UnfedError(
            f"{path} announces {count} values and holds {values.size}, so it is truncated or damaged;"
            " download the data set again."
        )
    return values.reshape(shape).copy()
