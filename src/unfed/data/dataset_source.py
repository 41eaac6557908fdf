"""A user's own map-style data set as a source: its transforms run as they are, one row at a time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unfed.data.source import MapStyle, as_array, checked_labels, unit
from unfed.errors import UnfedError, UnfedWarning
from unfed.model.calling import Inputs


class DatasetSource:
    """A user's own map-style data set, transforms included: `dataset[i] -> (x, y)`."""

    resident = False
    augments = False  # by draws of ours: its transforms draw for themselves

    def __init__(
        self,
        dataset: MapStyle,
        *,
        classes: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        warn: bool = True,
        inputs: Inputs | None = None,
    ) -> None:
        self.inputs = inputs
        self._dataset, self._dtype, self._device = dataset, dtype, torch.device(device)
        self._length = len(dataset)
        if self._length == 0:
            raise UnfedError("The data set is empty; give it at least one sample.")
        labels = _read_labels(dataset)
        self.classes = checked_labels(labels, self._length, classes)
        self.labels, self._listed = labels.to(device), labels
        self.shape = tuple(self._taken(_pair(dataset, 0)[0], 0).shape)
        if warn:
            warnings.warn(
                "the batched engine and bit-equal resume are off for a user's own data set,"
                " because its transforms draw their own random numbers",
                UnfedWarning,
                stacklevel=2,
            )

    def __len__(self) -> int:
        return self._length

    def fetch(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The samples of `rows`, one by one; `draws` is not used, because the data set draws for itself."""
        y = self._listed[rows.cpu()]
        pairs = zip(rows.reshape(-1).tolist(), y.reshape(-1).tolist(), strict=True)
        samples = [self._sample(row, label) for row, label in pairs]
        kind = torch.int64 if self.inputs is not None and self.inputs.whole else self._dtype
        x = torch.stack(samples) if samples else torch.empty((0, *self.shape), dtype=kind)
        return self._handed_over(x.reshape(*rows.shape, *self.shape)), self._handed_over(y)

    def _handed_over(self, tensor: Tensor) -> Tensor:
        """On the device. From pinned memory nobody waits for the copy."""
        if self._device.type != "cuda":
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def _taken(self, value: Any, row: int) -> Tensor:
        """A row's tensor: token ids as they are, everything else as floats."""
        if self.inputs is not None and self.inputs.whole:
            return torch.as_tensor(value).to(torch.int64)
        return as_sample(value, row, self._dtype)

    def _sample(self, row: int, label: int) -> Tensor:
        x, y = _pair(self._dataset, row)
        if _as_label(y, row) != label:
            raise UnfedError(
                f"Row {row} comes with the label {_as_label(y, row)}, but the data set listed it as {label};"
                " make its targets and its items agree."
            )
        sample = self._taken(x, row)
        if tuple(sample.shape) != self.shape:
            raise UnfedError(
                f"Row {row} has the shape {list(sample.shape)} and row 0 has {list(self.shape)};"
                " resize them to one shape in the data set's transform."
            )
        return sample


def _read_labels(dataset: MapStyle) -> Tensor:
    """All labels: from `.targets` or `.labels` where the data set has them, else by one pass over it."""
    listed: Sequence[Any] | None = None
    # A target transform would make the list and the items disagree.
    if getattr(dataset, "target_transform", None) is None:
        listed = next((v for a in ("targets", "labels") if (v := getattr(dataset, a, None)) is not None), None)
    if listed is not None and len(listed) != len(dataset):
        raise UnfedError(f"The data set has {len(dataset)} rows and lists {len(listed)} labels; make them agree.")
    if isinstance(listed, (Tensor, np.ndarray)):
        listed = listed.tolist()
    values: Sequence[Any] | Iterator[Any]
    values = listed if listed is not None else (_pair(dataset, row)[1] for row in range(len(dataset)))
    return torch.tensor([_as_label(value, row) for row, value in enumerate(values)], dtype=torch.int64)


def _pair(dataset: MapStyle, row: int) -> tuple[Any, Any]:
    item = dataset[row]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise UnfedError(f"Row {row} of the data set is not a pair (x, y) but a {type(item).__name__}; return pairs.")
    return item[0], item[1]


def _as_label(value: Any, row: int) -> int:
    if isinstance(value, (Tensor, np.ndarray)) and math.prod(value.shape) == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise UnfedError(f"Row {row} has the label {value!r}, which is not an integer; return class indices.")
    return int(value)


def as_sample(value: Any, row: int, dtype: torch.dtype) -> Tensor:
    """Tensors as they are; PIL images and arrays from [H, W] or [H, W, C] to [C, H, W].

    uint8 becomes [0, 1].
    """
    if not isinstance(value, Tensor):
        array = as_array(value)
        if array.dtype.kind not in "biuf" or array.ndim == 0:
            raise UnfedError(
                f"Row {row} holds a {type(value).__name__}, which is no tensor, image or array;"
                " convert it in the data set's transform."
            )
        value = torch.from_numpy(np.array(array))
        if value.ndim in (2, 3):
            value = value[None] if value.ndim == 2 else value.permute(2, 0, 1)
    return unit(value, dtype) if value.dtype == torch.uint8 else value.to(dtype)
