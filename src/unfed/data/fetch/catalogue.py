"""What can be downloaded, from where, and how one knows that it is the real thing.

    catalogue(root)      every data set that has a name, and where it lies under the root
    verify(name, root)   read all of it: published checksums where they exist, counts everywhere

Archives carry the checksums that their authors publish. What is unpacked is checked by *content*, CIFAR-10's batches
as records and the idx files as their plain bytes, so that it does not matter in which layout they lie or who compressed
them again. Caltech-101 has no checksums for its single images: they are counted and decoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unfed import storage
from unfed.data.fetch import cifar, folders, idx
from unfed.data.fetch.roots import data_root, find, locate
from unfed.errors import UnfedError, listed, nearest


@dataclass(frozen=True)
class Archive:
    """One file to download, with the MD5 that its authors publish."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DatasetEntry:
    """One data set: what it is, where its files lie under a data root, what is known about them."""

    name: str
    about: str
    train: int
    test: int
    classes: int
    places: tuple[str, ...] = ()
    archives: tuple[Archive, ...] = ()
    megabytes: int = 0
    contents: Mapping[str, str] = field(default_factory=dict)
    """MD5 or SHA-1 by file stem: of a CIFAR batch as binary records, of an idx file as its plain bytes."""
    files: Mapping[str, str] = field(default_factory=dict)
    """MD5 by file name, of files as they lie in the folder."""


@dataclass(frozen=True)
class Listed:
    """A line of `unfed data list`."""

    entry: DatasetEntry
    found: Path | None
    """Where it lies under the data root, if it does."""

    @property
    def downloadable(self) -> bool:
        return bool(self.entry.archives)


@dataclass(frozen=True)
class Verified:
    """What `verify` saw."""

    name: str
    folder: Path
    images: int
    classes: int
    how: str


_IDX_STEMS = tuple(stem for pair in idx.FILES.values() for stem in pair)


def _idx_archives(base: str, *md5s: str) -> tuple[Archive, ...]:
    return tuple(Archive(f"{base}/{stem}.gz", md5) for stem, md5 in zip(_IDX_STEMS, md5s, strict=True))


_MNIST = _idx_archives(
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_MNIST_MD5 = (
    "6bbc9ace898e44ae57da46a324031adb",
    "a25bea736e30d166cdddb491f175f624",
    "2646ac647ad5339dbf082846283269ea",
    "27ae3e4e09519cfbb04c329615203637",
)
_FASHION = _idx_archives(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
_FASHION_MD5 = (
    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "9018921c3c673c538a1fc5bad174d6f9",
    "8181f5470baa50b63fa0f6fddb340f0a",
    "15d484375f8d13e6eb1aabb0c3f46965",
)
_CIFAR10_SHA1 = (
    "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "67eb016db431130d61cd03c7ad570b013799c88c",
)

# The binary archives of CIFAR, because nothing in them has to be unpickled.
CATALOGUE: dict[str, DatasetEntry] = {
    entry.name: entry
    for entry in (
        DatasetEntry("digits", "handwritten digits of 8x8, bundled", 1437, 360, 10),
        DatasetEntry(
            "cifar10",
            "photographs of 32x32 in 10 classes",
            50_000,
            10_000,
            10,
            cifar.CIFAR10.places,
            (Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
            170,
            contents=dict(zip((*cifar.CIFAR10.train, cifar.CIFAR10.test), _CIFAR10_SHA1, strict=True)),
        ),
        DatasetEntry(
            "cifar100",
            "photographs of 32x32 in 100 classes",
            50_000,
            10_000,
            100,
            cifar.CIFAR100.places,
            (Archive("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
            169,
            # Only the pickles' are published file by file; the binary layout has its archive's.
            files={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        ),
        DatasetEntry(
            "mnist",
            "handwritten digits of 28x28",
            60_000,
            10_000,
            10,
            idx.MNIST.places,
            _MNIST,
            12,
            contents=dict(zip(_IDX_STEMS, _MNIST_MD5, strict=True)),
        ),
        DatasetEntry(
            "fashion-mnist",
            "clothes of 28x28, grey, in 10 classes",
            60_000,
            10_000,
            10,
            idx.FASHION.places,
            _FASHION,
            31,
            contents=dict(zip(_IDX_STEMS, _FASHION_MD5, strict=True)),
        ),
        DatasetEntry(
            "caltech101",
            "photographs of about 300x200 in 101 classes, no background class",
            8677,
            0,
            101,
            folders.CALTECH101_PLACES,
            (
                Archive(
                    "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
                    "3138e1922a9193bfa496528edbbc45d0",
                ),
            ),
            137,
        ),
    )
}


def catalogue(root: str | Path | None = None) -> tuple[Listed, ...]:
    """All data sets that have a name, and where each lies under the root (or under UNFED_DATA)."""
    base = data_root(root)
    return tuple(Listed(e, locate(base, e.places) if base is not None else None) for e in CATALOGUE.values())


def entry_of(name: str) -> DatasetEntry:
    """The entry of a data set that lies in files, or the sentence that lists them."""
    outside = [n for n, e in CATALOGUE.items() if e.places]
    if name not in outside:
        raise UnfedError(
            f"{name!r} is not in the catalogue of downloads; it has {listed(outside)}.{nearest(name, outside)}"
        )
    return CATALOGUE[name]


_CIFAR = {layout.name: layout for layout in (cifar.CIFAR10, cifar.CIFAR100)}


def verify(name: str, root: str | Path | None = None) -> Verified:
    """Read the whole data set and compare it with what is published; the first difference is an error."""
    entry = entry_of(name)
    folder = find(name, None if root is None else Path(root), entry.places)
    hashed = _check_files(entry, folder) + _check_contents(entry, folder)
    if name in _CIFAR:
        parts = [labels for _, labels in cifar.read(_CIFAR[name], folder)]
    elif name == "caltech101":
        (files, labels), _ = folders.caltech101(folder)
        files.decode(8)  # an image that cannot be decoded is named
        parts = [labels]
    else:
        family = idx.MNIST if name == "mnist" else idx.FASHION
        parts = [labels for _, labels in idx.read(family, folder)]
    _check_counts(entry, folder, parts)
    counted = f"{sum(map(len, parts)):,} images in {entry.classes} classes counted"
    how = f"{hashed} published checksums, {counted}" if hashed else counted
    return Verified(name, folder, sum(map(len, parts)), entry.classes, how)


def md5_of(path: Path) -> str:
    """The MD5 of a file, read in pieces."""
    storage.refuse_no_file(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _check_files(entry: DatasetEntry, folder: Path) -> int:
    there = [name for name in entry.files if (folder / name).is_file()]
    for name in there:
        _compare(entry, folder / name, md5_of(folder / name), entry.files[name])
    return len(there)


def _check_contents(entry: DatasetEntry, folder: Path) -> int:
    for stem, published in entry.contents.items():
        if entry.name in _CIFAR:
            pixels, labels = cifar.read_batch(_CIFAR[entry.name], folder, stem)
            content = np.concatenate([labels[:, None], pixels], 1).tobytes()
        else:
            content = idx.plain_bytes(idx.file_of(folder, stem))
        kind = "sha1" if len(published) == 40 else "md5"
        _compare(entry, folder / stem, hashlib.new(kind, content, usedforsecurity=False).hexdigest(), published)
    return len(entry.contents)


def _compare(entry: DatasetEntry, path: Path, found: str, published: str) -> None:
    if found != published:
        raise UnfedError(
            f"The content of {path} has the checksum {found}, published is {published}; delete {path.parent} and run"
            f" `unfed data download {entry.name} --root DIR`."
        )


def _check_counts(entry: DatasetEntry, folder: Path, parts: list[Tensor]) -> None:
    expected = [n for n in (entry.train, entry.test) if n]
    found = [len(labels) for labels in parts]
    present = len(torch.unique(torch.cat(parts)))
    if found != expected or present != entry.classes:
        raise UnfedError(
            f"The data set in {folder} has {' + '.join(map(str, found))} images of {present} classes, {entry.name} has"
            f" {' + '.join(map(str, expected))} of {entry.classes}; delete the folder and run `unfed data download"
            f" {entry.name} --root DIR`."
        )
