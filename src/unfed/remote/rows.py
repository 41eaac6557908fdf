"""Rows of a class that leaves, in apps of others: left out where they lie, and counted.

    stays = staying(note, labels)             client: which rows may be trained on; `note` takes the counts
    why = unheeded(note, [3], weights, line)  server: why an update is not to be believed, if it is not

A client imports this for every message, so there is no PyTorch in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from unfed.errors import UnfedError, listed

ASKED = "unfed-forget-classes"
"""In what a server sends: the classes whose rows are not to be trained on."""
LEFT_OUT, ALL_ROWS = "unfed-left-out", "unfed-rows"
"""Beside it, once labels were looked at: how many rows of each of these classes there were, and how many in all."""


def staying(note: MutableMapping[str, Any], labels: Iterable[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows may be trained on: False for every row of a class that `note` says leaves."""
    own = np.asarray(labels)
    if own.ndim != 1 or (own.size and (own.dtype.kind not in "biuf" or bool((own != np.floor(own)).any()))):
        raise UnfedError(
            f"staying_rows takes the class number of every row, one after another, not {own.dtype} of the shape"
            f" {own.shape}; give it the labels as whole numbers."
        )
    gone: list[int] = list(note.get(ASKED, ()))
    if not gone:
        return np.ones(len(own), dtype=bool)
    found = [int((own == number).sum()) for number in gone]
    before: list[int] = list(note.get(LEFT_OUT, [0] * len(gone)))
    note[LEFT_OUT] = [was + now for was, now in zip(before, found, strict=True)]
    note[ALL_ROWS] = int(note.get(ALL_ROWS, 0)) + len(own)
    return ~np.isin(own, gone)


def class_words(numbers: Iterable[int]) -> str:
    """Classes in a sentence."""
    return listed([f"class {number}" for number in numbers], "and")


def unheeded(note: Mapping[str, Any], classes: Sequence[int], weights: Collection[Any], weighed: str) -> str | None:
    """Why it is not believed that a client left the rows of these classes out; None where it is.

    `weights`: what it says that its update counts · `weighed`: what the app calls that.
    """
    counts: Any = note.get(LEFT_OUT)
    rows: Any = note.get(ALL_ROWS)
    words = class_words(classes)
    sound = isinstance(rows, int) and isinstance(counts, list) and all(type(one) is int for one in counts)
    fits = sound and list(note.get(ASKED, ())) == [*classes] and len(counts) == len(classes)
    if not fits or not 0 <= sum(counts) <= rows:
        return f"what it says of the rows of {words} cannot be read; install the same unfed there"
    if sum(counts) and rows in weights:
        return (
            f"its weight {weighed!r} is {rows}, which counts the {sum(counts)} rows of {words} too;"
            " let it train on and count the rows of staying_rows(message, labels) alone"
        )
    return None
