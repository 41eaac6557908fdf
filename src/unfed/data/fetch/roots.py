"""Where a data set lies: under `data.root`, else under the folder that UNFED_DATA names.

    find("cifar10", root, ("cifar-10-batches-bin", "cifar-10-batches-py"))  ->  the folder that holds its files

A data root holds data sets in their standard layouts side by side. A root may also be the data set's own folder, so
that pointing at `…/cifar-10-batches-bin` itself works.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from unfed import storage
from unfed.errors import UnfedError, listed, typed

VARIABLE = "UNFED_DATA"


def data_root(root: str | Path | None) -> Path | None:
    """The root that was given, else the one in the environment, else None."""
    if root is not None:
        return Path(root).expanduser()
    named = os.environ.get(VARIABLE, "").strip()
    return Path(named).expanduser() if named else None


def find(name: str, root: Path | None, places: Sequence[str]) -> Path:
    """The first of the places that exists, or the sentence that says how to get the data."""
    base = data_root(root)
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


def locate(base: Path, places: Sequence[str]) -> Path | None:
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
