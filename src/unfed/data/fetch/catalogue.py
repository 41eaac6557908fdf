"""The data sets that lie in files: what is published of them, and where they lie on this machine.

    catalogue.toml    names of classes, archives, checksums
    find(name, root)  the folder of a data set: under `data.root`, else under the folder that UNFED_DATA names

A data root holds data sets in their standard layouts side by side. It may also be the data set's own folder, such as
`…/cifar-10-batches-bin`.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import UnfedError, listed, nearest, typed

VARIABLE = "UNFED_DATA"


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
    labels: tuple[str, ...] = ()
    """The names of its classes."""
    archives: tuple[Archive, ...] = ()
    megabytes: int = 0
    contents: Mapping[str, str] = field(default_factory=dict)
    """MD5 or SHA-1 by file stem: of a CIFAR batch as binary records, of an idx file as its plain bytes."""
    files: Mapping[str, str] = field(default_factory=dict)
    """MD5 by file name, of files as they lie in the folder."""


def _entry(name: str, given: Mapping[str, Any]) -> DatasetEntry:
    archives = tuple(Archive(**one) for one in given.get("archives", ()))
    lists = {key: tuple(given.get(key, ())) for key in ("places", "labels")}
    return DatasetEntry(name, **{**given, **lists, "archives": archives})


_published = tomllib.loads(files("unfed.data.fetch").joinpath("catalogue.toml").read_text(encoding="utf-8"))
CATALOGUE: dict[str, DatasetEntry] = {name: _entry(name, given) for name, given in _published.items()}


def entry_of(name: str) -> DatasetEntry:
    """The entry of a data set that lies in files, or the sentence that lists them."""
    outside = [n for n, e in CATALOGUE.items() if e.places]
    if name not in outside:
        raise UnfedError(
            f"{name!r} is not in the catalogue of downloads; it has {listed(outside)}.{nearest(name, outside)}"
        )
    return CATALOGUE[name]


def data_root(root: str | Path | None) -> Path | None:
    """The root that was given, else the one in the environment, else None."""
    if root is not None:
        return Path(root).expanduser()
    named = os.environ.get(VARIABLE, "").strip()
    return Path(named).expanduser() if named else None


def found(root: str | Path | None = None) -> dict[str, Path | None]:
    """Where each data set of the catalogue lies under the root (or under UNFED_DATA), if it does."""
    base = data_root(root)
    return {name: None if base is None else locate(base, entry.places) for name, entry in CATALOGUE.items()}


def find(name: str, root: Path | None) -> Path:
    """The folder of a data set, or the sentence that says how to get the data."""
    base, places = data_root(root), CATALOGUE[name].places
    if base is None:
        raise UnfedError(
            f"The data set {name!r} needs a data root: set data.root or {VARIABLE} to the folder that holds it;"
            f" `{typed('data', 'download', name, '--root', 'DIR')}` gets it into one."
        )
    if not base.is_dir():
        raise UnfedError(
            f"The data root {base} is not a folder; correct data.root or {VARIABLE},"
            f" or get the data with `{typed('data', 'download', name, '--root', base)}`."
        )
    found = locate(base, places)
    if found is None:
        raise UnfedError(
            f"The data root {base} has no {listed(places)}; get the data with"
            f" `{typed('data', 'download', name, '--root', base)}`, or set data.root or {VARIABLE} to where it is."
        )
    return found


def locate(base: Path, places: tuple[str, ...]) -> Path | None:
    """The first of the places under `base` that exists, or `base` itself where it is one of them."""
    own = base.absolute().as_posix()
    for place in places:
        if (base / place).is_dir():
            return base / place
        if base.is_dir() and own.endswith("/" + place):
            return base
    return None


def read_file(path: Path, what: str) -> bytes:
    """A file's bytes, or the sentence that names it."""
    storage.refuse_no_file(path)
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UnfedError(f"The file {path} of {what} is missing; download the data set again.") from error
    except OSError as error:
        raise UnfedError(f"The file {path} cannot be read ({error.strerror}); check its permissions.") from error


def md5_of(path: Path) -> str:
    """The MD5 of a file, read in pieces."""
    storage.refuse_no_file(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
