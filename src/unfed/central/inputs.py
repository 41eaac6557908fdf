"""What a caller hands in: tensors, a map-style data set or something to iterate over.

    (x, y)                     tensors; uint8 images [N, C, H, W] become numbers in [0, 1], floats stay as they are
    data[i] -> (x, y)          a map-style data set, transforms included, read row by row whenever rows are needed
    for x, y in data           anything else: read once into memory, so its random transforms are frozen

Rows are compared before any work starts: a row that is to be forgotten must not also stay, nor be test data.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from unfed.data import DatasetSource, Source, TensorSource
from unfed.errors import UnfedError, UnfedWarning

Data = Any
"""A pair of tensors, a map-style data set of (x, y), or an iterable of (x, y)."""


@dataclass(frozen=True, eq=False)
class Rows:
    """One of the sets a caller named: tensors in memory, or a map-style data set."""

    name: str
    pair: tuple[Tensor, Tensor] | None = None
    dataset: Any = None

    def __len__(self) -> int:
        return len(self.dataset if self.pair is None else self.pair[0])

    def pick(self, rows: Tensor, name: str) -> Rows:
        """Some of the rows, under another name."""
        if self.pair is not None:
            return Rows(name, (self.pair[0][rows], self.pair[1][rows]))
        return Rows(name, dataset=Subset(self.dataset, rows.tolist()))


def read(data: Data, name: str) -> Rows:
    """Whatever was handed in, as rows."""
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, Subset):
        inside = read(data.dataset, name)
        if inside.pair is not None:  # rows of tensors are tensors: much faster than one by one
            return inside.pick(torch.as_tensor(list(data.indices), dtype=torch.int64), name)
    if _is_pair(data):
        return Rows(name, _checked_pair(torch.as_tensor(data[0]), torch.as_tensor(data[1]), name))
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, tuple | dict | str):
        if len(data) == 0:
            raise UnfedError(f"{name} is empty; give it at least one row.")
        return Rows(name, dataset=data)
    if isinstance(data, Iterable) and not isinstance(data, tuple | dict | str):
        return Rows(name, _in_memory(data, name))
    raise UnfedError(
        f"{name} is a {type(data).__name__}; give a pair of tensors (x, y), a map-style data set of (x, y) or an"
        " iterable of (x, y)."
    )


def _is_pair(data: Data) -> bool:
    arrays = Tensor | np.ndarray
    return isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, arrays) for part in data)


def _checked_pair(x: Tensor, y: Tensor, name: str) -> tuple[Tensor, Tensor]:
    if x.ndim == 0 or len(x) == 0:
        raise UnfedError(f"{name} is empty; give it at least one row.")
    if y.shape != (len(x),):
        raise UnfedError(f"{name} has {len(x)} rows and labels of shape {list(y.shape)}; give one label per row.")
    return x, y


def _in_memory(data: Iterable[Any], name: str) -> tuple[Tensor, Tensor]:
    """Single rows or batches, whichever the iterable gives, in one pair of tensors."""
    warnings.warn(
        f"{name} is not a map-style data set, so it is read once into memory: what its random transforms drew now is"
        " what every epoch will see",
        UnfedWarning,
        stacklevel=4,
    )
    xs, ys = [], []
    for number, item in enumerate(data):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UnfedError(f"Item {number} of {name} is not a pair (x, y) but a {type(item).__name__}; give pairs.")
        x, y = torch.as_tensor(item[0]), torch.as_tensor(item[1])
        xs.append(x if y.ndim else x[None])
        ys.append(y if y.ndim else y[None])
    if not xs:
        raise UnfedError(f"{name} is empty; give it at least one row.")
    return _checked_pair(torch.cat(xs), torch.cat(ys), name)


def chosen(forget: Any, n: int) -> Tensor:
    """The rows of `data` that `forget` names: positions or a mask. Anything outside the data is refused."""
    try:
        given = torch.as_tensor(forget)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnfedError(
            "With data=, forget is a list of row numbers or a mask of booleans; give retain= instead of data= where"
            " forget is a data set."
        ) from error
    if given.dtype == torch.bool:
        if given.shape != (n,):
            raise UnfedError(f"forget is a mask of shape {list(given.shape)}, but data has {n} rows; give one per row.")
        given = given.nonzero().flatten()
    if given.ndim != 1 or given.is_floating_point():
        raise UnfedError(f"forget must list row numbers, not a {given.dtype} tensor of shape {list(given.shape)}.")
    outside = [int(row) for row in given if not 0 <= int(row) < n]
    if outside:
        raise UnfedError(
            f"forget names row {outside[0]}, which is not among the {n} rows of data (0 to {n - 1}); only what the"
            " model was trained on can be forgotten."
        )
    rows = torch.tensor(sorted(set(given.tolist())), dtype=torch.int64)
    if not 0 < len(rows) < n:
        what = "no row" if len(rows) == 0 else "every row"
        raise UnfedError(f"forget names {what} of data; leave something to forget and something to keep.")
    return rows


# --- rows that are in two sets ----------------------------------------------------------------------------------------


def refuse_overlap(forget: Rows, other: Rows, why: str) -> None:
    """Refuse sets in which a row of `forget` is also a row of the other one.

    It sees as far as is possible without reading a data set whose transforms are random.
    """
    shared = _shared(forget, other)
    if shared:
        (mine, theirs), more = shared[0], f" ({len(shared)} rows are in both)" if len(shared) > 1 else ""
        raise UnfedError(
            f"Row {mine} of {forget.name} is also row {theirs} of {other.name}{more}; {why}, so take it out of one."
        )


def _shared(a: Rows, b: Rows) -> list[tuple[int, int]]:
    """(row of a, row of b) wherever the two are the same."""
    if a.pair is not None and b.pair is not None:
        return _equal_rows(a.pair, b.pair)
    if a.pair is not None or b.pair is not None:
        return []
    (base_a, rows_a), (base_b, rows_b) = _origin(a.dataset), _origin(b.dataset)
    if base_a is not base_b:
        return []
    place = {row: i for i, row in enumerate(rows_b)}
    return [(i, place[row]) for i, row in enumerate(rows_a) if row in place]


def _origin(dataset: Any) -> tuple[Any, Sequence[int]]:
    """The data set behind subsets of subsets, and which of its rows these are."""
    rows: Sequence[int] = range(len(dataset))
    while isinstance(dataset, Subset):
        indices = list(dataset.indices)
        rows = [int(indices[row]) for row in rows]
        dataset = dataset.dataset
    return dataset, rows


def _equal_rows(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> list[tuple[int, int]]:
    if a[0].shape[1:] != b[0].shape[1:] or a[0].dtype != b[0].dtype:
        return []
    # Rows meet by a 64-bit sum first; only those that meet are compared entry by entry.
    place = {value: i for i, value in enumerate(row_sums(*b).tolist())}
    found = [(i, place[value]) for i, value in enumerate(row_sums(*a).tolist()) if value in place]
    return [(i, j) for i, j in found if int(a[1][i]) == int(b[1][j]) and torch.equal(a[0][i].cpu(), b[0][j].cpu())]


def row_sums(x: Tensor, y: Tensor, chunk: int = 256) -> Tensor:
    """One 64-bit word per row: a weighted sum of its bytes, odd weights, modulo 2^64, and its label."""
    parts = []
    for begin in range(0, len(x), chunk):
        some = x[begin : begin + chunk].detach().cpu().contiguous()
        octets = some.reshape(len(some), -1).view(torch.uint8).long()
        parts.append((octets * _weights(octets.shape[1])).sum(1))
    return torch.cat(parts) * 31 + y.cpu().long()


def _weights(n: int) -> Tensor:
    generator = torch.Generator().manual_seed(0x5EED)
    return torch.randint(1, 1 << 62, (n,), generator=generator) | 1


# --- sources ----------------------------------------------------------------------------------------------------------


class _Joined:
    """Map-style data sets one after another."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: int) -> Any:
        part = int(np.searchsorted(self._ends, row, side="right"))
        return self._parts[part][row - (int(self._ends[part - 1]) if part else 0)]


class _Pairs:
    """Tensors as a map-style data set, for the caller who mixes the two."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self._x[row], self._y[row]


def source(parts: Sequence[Rows], classes: int, device: torch.device, dtype: torch.dtype) -> Source:
    """The parts one after another, as the engine reads them."""
    pairs = [part.pair for part in parts if part.pair is not None]
    if len(pairs) == len(parts):
        alike = {(tuple(x.shape[1:]), x.dtype) for x, _ in pairs}
        if len(alike) > 1:
            texts = [f"{p.name} {list(x.shape[1:])} {x.dtype}" for p, (x, _) in zip(parts, pairs, strict=True)]
            raise UnfedError(f"The sets differ in shape or type ({', '.join(texts)}); make them alike.")
        images, labels = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))
        return TensorSource(images.to(device), labels, classes=classes, dtype=dtype)
    sets = [part.dataset if part.pair is None else _Pairs(*part.pair) for part in parts]
    joined = sets[0] if len(sets) == 1 else _Joined(sets)
    return DatasetSource(joined, classes=classes, dtype=dtype, device=device, warn=False)
