"""What a caller hands in: tensors, a map-style data set, a DataLoader or something to iterate over.

    (x, y) · (x1, x2, y) · {"input_ids": …, "labels": y}     tensors [N, …]; uint8 images [N, C, H, W] become numbers
                               in [0, 1], floats stay as they are, whole numbers are token ids
    data[i] -> one of these    a map-style data set, transforms included, read row by row whenever rows are needed
    DataLoader                 its data set, in the data set's order; a collate_fn of its own is called once, on all
                               rows, so that it pads them to one length
    for batch in data          anything else: read once into memory, so its random transforms are frozen

Rows are compared before any work starts: a row that is to be forgotten must not also stay, nor be test data; of test
rows that stay a warning is given.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from unfed.data import DatasetSource, Source, TensorSource
from unfed.data.packing import TOKENISE, Names, PackedRows, as_floats, as_tensor, is_text, layout, taken_apart
from unfed.errors import UnfedError, UnfedWarning
from unfed.model.calling import Inputs, called
from unfed.model.language import AS_WRITTEN, SKIPPED

Data = Any
"""Tensors with labels, a map-style data set of rows, a DataLoader, or an iterable of rows or batches."""


@dataclass(frozen=True, eq=False)
class Rows:
    """One of the sets a caller named: tensors in memory, or a map-style data set."""

    name: str
    pair: tuple[Tensor, Tensor] | None = None
    dataset: Any = None
    inputs: Inputs | None = None
    """How a row is taken apart; None where it is one tensor of floats."""
    names: Names = None
    """What the model takes by name."""

    def __len__(self) -> int:
        return len(self.dataset if self.pair is None else self.pair[0])

    @property
    def texts(self) -> bool:
        """Whether a row is a text with a label per token, for a language model."""
        return self.inputs is not None and any(part.key == "labels" for part in self.inputs.parts)

    def pick(self, rows: Tensor, name: str) -> Rows:
        """Some of the rows, under another name."""
        if self.pair is not None:
            return replace(self, name=name, pair=(self.pair[0][rows], self.pair[1][rows]))
        return replace(self, name=name, dataset=Subset(self.dataset, rows.tolist()))

    @cached_property
    def sums(self) -> Tensor:
        """A word per row of tensors, by which equal rows meet; summed once, whatever it is compared with."""
        assert self.pair is not None
        return row_sums(*self.pair)

    def as_floats(self) -> Rows:
        """The same for a model that takes no whole numbers."""
        assert self.inputs is not None
        pair = None if self.pair is None else (self.pair[0].float(), self.pair[1])
        return replace(self, pair=pair, inputs=as_floats(self.inputs))


def read(data: Data, name: str, names: Names = None) -> Rows:
    """Whatever was handed in, as rows. `names` are what the model takes by name."""
    if isinstance(data, DataLoader):
        data = _behind(data, name)
    if isinstance(data, TensorDataset) and len(data.tensors) >= 2:
        data = data.tensors
    if isinstance(data, Subset):
        inside = read(data.dataset, name, names)
        if inside.pair is not None:  # rows of tensors are tensors: much faster than one by one
            return inside.pick(torch.as_tensor(list(data.indices), dtype=torch.int64), name)
        return replace(inside, dataset=data)
    if _is_whole(data):
        return _in_one(*taken_apart(data, name, names), name, names)
    plain = not isinstance(data, tuple | Mapping | str | IterableDataset)
    if plain and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        if len(data) == 0:
            raise UnfedError(f"{name} is empty; give it at least one row.")
        if np.ndim(taken_apart(data[0], f"Row 0 of {name}", names)[1]) == 1:
            return _texts_in_memory(data, name, names)
        return Rows(name, dataset=data, inputs=_layout_of_rows(data, name, names), names=names)
    if isinstance(data, Iterable) and not isinstance(data, tuple | Mapping | str):
        return _in_memory(data, name, names)
    raise UnfedError(
        f"{name} is a {type(data).__name__}; give a pair of tensors (x, y), a dict of tensors with 'labels', a data set"
        " or a DataLoader."
    )


def _is_whole(data: Data) -> bool:
    """Whether this is a whole set: tensors with all labels at the end, or a dict of them."""
    arrays = Tensor | np.ndarray
    if isinstance(data, Mapping):
        return True
    if not isinstance(data, tuple | list) or len(data) < 2 or not isinstance(data[-1], arrays):
        return False
    if all(isinstance(part, arrays) for part in data):
        return True
    return len(data) == 2 and isinstance(data[0], Mapping | tuple | list) and data[-1].ndim == 1


def _in_one(inputs: Mapping[str | int, Any], labels: Any, name: str, names: Names) -> Rows:
    """A whole set in one pair of tensors."""
    _refuse_text(inputs, labels, name)
    try:
        tensors = {key: torch.as_tensor(value) for key, value in inputs.items()}
        y = torch.as_tensor(labels)
    except (ValueError, TypeError, RuntimeError) as error:
        said = str(error).splitlines()[0]
        raise UnfedError(f"{name} cannot be made a tensor ({said}); pad its rows to one length.") from error
    first = next(iter(tensors.values()))
    if first.ndim == 0 or len(first) == 0:
        raise UnfedError(f"{name} is empty; give it at least one row.")
    for key, value in tensors.items():
        if value.ndim == 0 or len(value) != len(first):
            shape = list(value.shape)
            raise UnfedError(f"{name} has {len(first)} rows in one input and the shape {shape} in {key!r}; align them.")
    if y.ndim == 2 and y.shape == first.shape and not (first.is_floating_point() or y.is_floating_point()):
        tensors, y = _texts(tensors, y, name)
    if y.shape != (len(first),):
        raise UnfedError(f"{name} has {len(first)} rows and labels of shape {list(y.shape)}; give one label per row.")
    if len(tensors) > 1:  # beside others an image cannot stay bytes
        tensors = {key: as_tensor(t, name) if t.ndim >= 4 else t for key, t in tensors.items()}
    inside = layout(tensors, rows=True)
    return Rows(name, (first if inside is None else inside.pack(tensors), y), inputs=inside, names=names)


def _texts(tensors: dict[str | int, Tensor], labels: Tensor, name: str) -> tuple[dict[str | int, Tensor], Tensor]:
    """Texts with a label per token.

    These labels become an input, and the row's own label says "as written".
    """
    (_, ids), *_ = tensors.items()
    counts = labels != SKIPPED
    if not bool((~counts | (labels == ids)).all()):
        raise UnfedError(
            f"{name} has a label per token that is not the token; only causal language models are supported, with"
            f" labels = input_ids, or {SKIPPED} for tokens that do not count."
        )
    if "attention_mask" in tensors:
        counts = counts & (tensors["attention_mask"] != 0)
    silent = (~counts[:, 1:].any(1)).nonzero().flatten()
    if len(silent):
        raise UnfedError(f"Row {int(silent[0])} of {name} has no token that counts after its first; leave it out.")
    return {**tensors, "labels": labels}, torch.full((len(labels),), AS_WRITTEN)


def _refuse_text(inputs: Mapping[str | int, Any], labels: Any, name: str) -> None:
    """Refuse names in the place of labels, and texts in the place of token ids."""
    if is_text(labels) or (isinstance(labels, np.ndarray) and labels.dtype.kind not in "biuf"):
        said = labels if isinstance(labels, str) else labels[0]
        raise UnfedError(f"{name} has labels that are no numbers (such as {str(said)!r}); number them in the order.")
    if any(is_text(value) for value in inputs.values()):
        raise UnfedError(f"{name} holds raw text; {TOKENISE}")


def _layout_of_rows(data: Any, name: str, names: Names) -> Inputs | None:
    """How the rows of a map-style data set lie, by its first one."""
    where = f"Row 0 of {name}"
    found, label = taken_apart(data[0], where, names)
    (key, lone), *more = found.items()
    _refuse_text(found, label, where)
    if not more and key == 0 and not (isinstance(lone, Tensor | np.ndarray | list) and np.ndim(lone) == 1):
        return None  # an image, or whatever else a data set of pairs holds
    return layout({key: as_tensor(value, where) for key, value in found.items()}, rows=False)


# --- loaders and iterables --------------------------------------------------------------------------------------------


def _behind(loader: DataLoader[Any], name: str) -> Data:
    """The data set of a loader, in its own order, whatever order the loader draws."""
    dataset: Any = loader.dataset
    sampler = loader.sampler
    if isinstance(dataset, IterableDataset):
        return loader  # a stream, which has no rows to name
    rows = None
    if isinstance(sampler, SubsetRandomSampler):
        rows = sorted(int(row) for row in sampler.indices)
    drawn = isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == len(dataset)
    whole = drawn or isinstance(sampler, SequentialSampler)
    if loader.batch_size is None or not (whole or rows is not None):
        kind = type(sampler if loader.batch_size else loader.batch_sampler).__name__
        raise UnfedError(f"{name} is a DataLoader with a {kind}, which may repeat or skip rows; give its data set.")
    part: Any = dataset if rows is None else Subset(dataset, rows)
    if loader.collate_fn is default_collate:
        return part
    warnings.warn(
        f"{name} has a collate_fn of its own: it is called once, and every epoch sees the same random draws",
        UnfedWarning,
        stacklevel=4,
    )
    return loader.collate_fn([part[row] for row in range(len(part))])


def _in_memory(data: Iterable[Any], name: str, names: Names) -> Rows:
    """Single rows or batches, whichever the iterable gives, in one pair of tensors."""
    warnings.warn(
        f"{name} is not a map-style data set: it is read once into memory, and every epoch sees the same random draws",
        UnfedWarning,
        stacklevel=4,
    )
    parts: dict[str | int, list[Tensor]] = {}
    labels: list[Tensor] = []
    for number, item in enumerate(data):
        found, label = taken_apart(item, f"Item {number} of {name}", names)
        _refuse_text(found, label, f"Item {number} of {name}")
        y = torch.as_tensor(label)
        for key, value in found.items():
            x = torch.as_tensor(value)
            parts.setdefault(key, []).append(x if y.ndim else x[None])
        labels.append(y if y.ndim else y[None])
    if not labels:
        raise UnfedError(f"{name} is empty; give it at least one row.")
    try:
        whole = {key: torch.cat(pieces) for key, pieces in parts.items()}
    except RuntimeError as error:
        raise UnfedError(f"The rows of {name} differ in shape; pad or cut them to one.") from error
    return _in_one(whole, torch.cat(labels), name, names)


def _texts_in_memory(data: Any, name: str, names: Names) -> Rows:
    """A data set of texts with a label per token, in one set of tensors."""
    rows = [taken_apart(data[row], f"Row {row} of {name}", names) for row in range(len(data))]
    for row, (inputs, labels) in enumerate(rows):
        _refuse_text(inputs, labels, f"Row {row} of {name}")
    try:
        inputs = {key: torch.stack([torch.as_tensor(found[key]) for found, _ in rows]) for key in rows[0][0]}
        return _in_one(inputs, torch.stack([torch.as_tensor(labels) for _, labels in rows]), name, names)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UnfedError(f"The rows of {name} differ in length or inputs; pad them to one length.") from error


def fitting(model: nn.Module, sets: Sequence[Rows]) -> list[Rows]:
    """The sets as the model wants them: whole numbers if it takes these, as an embedding does."""
    first = sets[0]
    for other in sets[1:]:
        if other.inputs != first.inputs:
            raise UnfedError(f"{first.name} and {other.name} differ in their inputs ({_said(first)}; {_said(other)}).")
        kinds = [rows.pair[0].dtype == torch.uint8 for rows in (first, other) if rows.pair is not None]
        if len(set(kinds)) > 1:
            raise UnfedError(
                f"One of {first.name} and {other.name} has uint8 images, the other floats; make them alike."
            )
    if first.inputs is None or not any(part.whole for part in first.inputs.parts):
        return list(sets)
    some = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    try:
        with torch.no_grad():
            called(model, first.inputs.blank(1, some.device, some.dtype), first.inputs)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return [rows.as_floats() for rows in sets]
    return list(sets)


def _said(rows: Rows) -> str:
    if rows.inputs is None:
        return "one tensor of floats" if rows.pair is None else f"one tensor of {rows.pair[0].dtype}"
    return ", ".join(f"{p.key} {list(p.shape)} {p.dtype}" for p in rows.inputs.parts)


def chosen(forget: Any, n: int) -> Tensor:
    """The rows of `data` that `forget` names: positions or a mask. Anything outside the data is refused."""
    try:
        given = torch.as_tensor(forget)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnfedError("With data=, forget is row numbers or a mask; give retain= where it is a data set.") from error
    if given.numel() == 0:
        given = given.long()  # of a list without numbers PyTorch makes floats
    if given.dtype == torch.bool:
        if given.shape != (n,):
            raise UnfedError(f"forget is a mask of shape {list(given.shape)}, but data has {n} rows; give one per row.")
        given = given.nonzero().flatten()
    if given.ndim != 1 or given.is_floating_point():
        raise UnfedError(f"forget must list row numbers, not a {given.dtype} tensor of shape {list(given.shape)}.")
    outside = [int(row) for row in given if not 0 <= int(row) < n]
    if outside:
        raise UnfedError(f"forget names row {outside[0]}, but data has the {n} rows 0 to {n - 1}; name some of these.")
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
    both = shared(forget, other)
    if both:
        (mine, theirs), more = both[0], f" ({len(both)} rows are in both)" if len(both) > 1 else ""
        raise UnfedError(f"Row {mine} of {forget.name} is also row {theirs} of {other.name}{more}; {why}: take it out.")


def shared(a: Rows, b: Rows) -> list[tuple[int, int]]:
    """(row of a, row of b) wherever the two are the same."""
    if a.pair is not None and b.pair is not None:
        return _equal_rows(a, b)
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


def _equal_rows(a: Rows, b: Rows) -> list[tuple[int, int]]:
    assert a.pair is not None and b.pair is not None
    (x, y), (other, labels) = a.pair, b.pair
    if x.shape[1:] != other.shape[1:] or x.dtype != other.dtype:
        return []
    # Rows meet by a 64-bit sum first; only those that meet are compared entry by entry.
    place = {value: i for i, value in enumerate(b.sums.tolist())}
    found = [(i, place[value]) for i, value in enumerate(a.sums.tolist()) if value in place]
    return [(i, j) for i, j in found if int(y[i]) == int(labels[j]) and torch.equal(x[i].cpu(), other[j].cpu())]


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
        whole = TensorSource(images.to(device), labels, classes=classes, dtype=dtype)
        return whole.with_inputs(parts[0].inputs)
    sets = [_as_pairs(part) for part in parts]
    joined = sets[0] if len(sets) == 1 else _Joined(sets)
    return DatasetSource(joined, classes=classes, dtype=dtype, device=device, warn=False, inputs=parts[0].inputs)


def _as_pairs(rows: Rows) -> Any:
    """A map-style data set of (x, y) with everything that the model reads in x."""
    if rows.pair is not None:
        return _Pairs(*rows.pair)
    return rows.dataset if rows.inputs is None else PackedRows(rows.dataset, rows.inputs, rows.names)
