"""Rows in the shapes people have, taken apart into the model's inputs and a label.

    (x, y) · (x1, x2, y) · ((x1, x2), y) · ({"input_ids": …}, y) · {"input_ids": …, "attention_mask": …, "labels": y}

The same shapes serve for one row, for a batch and for a whole set. Entries of a dict that the model's `forward` does
not take (texts, row numbers) are left out, as trainers do.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unfed.data.source import MapStyle, as_array, unit
from unfed.errors import UnfedError
from unfed.model.calling import Inputs, Part

LABELS = ("labels", "label", "targets", "target", "y")
Names = frozenset[str] | None
"""What a model's `forward` takes by name; None where it takes anything."""


def taken_by(module: nn.Module) -> Names:
    """The names of what `forward` takes."""
    try:
        found = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    named = [p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return frozenset(named) or None


def is_row(item: Any) -> bool:
    """Whether something has inputs and a label in it."""
    return isinstance(item, Mapping) or (isinstance(item, tuple | list) and len(item) >= 2)


def taken_apart(item: Any, where: str, names: Names) -> tuple[dict[str | int, Any], Any]:
    """The inputs by place or name, and the label or labels."""
    if isinstance(item, Mapping):
        found = [name for name in LABELS if name in item]
        if len(found) != 1:
            many = f"{_all(found)} in it, of which one is the label" if found else f"no label in it, but {_all(item)}"
            raise UnfedError(f"{where} is a dict with {many}; call the label 'labels'.")
        return _read_by(names, {key: item[key] for key in item if key != found[0]}, where), item[found[0]]
    if not is_row(item):
        raise UnfedError(
            f"{where} is not a pair (x, y) but a {type(item).__name__}; give pairs, dicts with 'labels', or tuples that"
            " end with the label."
        )
    *inputs, label = item
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return _read_by(names, inputs[0], where), label
    if len(inputs) == 1 and isinstance(inputs[0], tuple | list) and _arrays(inputs[0]):
        inputs = list(inputs[0])
    return dict(enumerate(inputs)), label


def _arrays(values: Sequence[Any]) -> bool:
    return len(values) > 0 and all(isinstance(value, Tensor | np.ndarray) for value in values)


def _read_by(names: Names, inputs: Mapping[Any, Any], where: str) -> dict[str | int, Any]:
    """What of a dict the model reads. A lone input needs no name."""
    usable = {str(key): value for key, value in inputs.items() if _is_numbers(value)}
    if not usable and any(is_text(value) for value in inputs.values()):
        raise UnfedError(f"{where} holds raw text; {TOKENISE}")
    kept = usable if names is None else {key: value for key, value in usable.items() if key in names}
    if kept:
        return {key: value for key, value in kept.items()}
    if len(usable) == 1:
        return {0: next(iter(usable.values()))}
    raise UnfedError(
        f"{where} has {_all(inputs) or 'no inputs'}, and the model's forward takes {_all(sorted(names or ()))}; call"
        " them alike."
    )


TOKENISE = "tokenise it first and give the token ids, with the tokeniser that the model was trained with."


def is_text(value: Any) -> bool:
    """Whether this is a text, or a list of texts."""
    return isinstance(value, str) or (isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], str))


def _all(names: Iterable[Any]) -> str:
    return " and ".join(map(str, names))


def _is_numbers(value: Any) -> bool:
    if isinstance(value, Tensor) or hasattr(value, "mode"):  # only PIL images have a mode
        return True
    if value is None or isinstance(value, str | bytes):
        return False
    try:
        return np.asarray(value).dtype.kind in "biuf"
    except ValueError:  # lists of different lengths
        return False


def as_tensor(value: Any, where: str) -> Tensor:
    """An input as a tensor: numbers as they are, images of bytes as [C, H, W] in [0, 1]."""
    if not isinstance(value, Tensor):
        is_image, array = hasattr(value, "mode"), as_array(value)
        if array.dtype.kind not in "biuf":
            raise UnfedError(f"{where} holds a {type(value).__name__}, which is no tensor, image or array; convert it.")
        value = torch.from_numpy(np.array(array))
        if is_image:
            value = value[None] if value.ndim == 2 else value.permute(2, 0, 1)
    return unit(value, torch.float32) if value.dtype == torch.uint8 and value.ndim >= 3 else value


def layout(inputs: Mapping[str | int, Tensor], rows: bool) -> Inputs | None:
    """How these inputs lie in a row; None for one tensor that is no token ids.

    `rows` says that their first axis counts rows.
    """
    (key, lone), *more = inputs.items()
    if not more and key == 0 and lone.dtype == torch.uint8 and lone.ndim - rows < 2:
        raise UnfedError(
            "Vectors of uint8 are neither images nor floats or token ids; convert them with .float() or .long()."
        )
    if not more and key == 0 and (lone.is_floating_point() or lone.dtype == torch.uint8):
        return None
    return Inputs(tuple(Part(key, tuple(t.shape[1:] if rows else t.shape), _kind(t)) for key, t in inputs.items()))


def _kind(tensor: Tensor) -> torch.dtype:
    small = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32)
    return torch.int64 if tensor.dtype in small else tensor.dtype


def as_floats(inputs: Inputs) -> Inputs | None:
    """The same layout for a model that takes no whole numbers."""
    parts = tuple(Part(p.key, p.shape, torch.float32 if p.whole else p.dtype) for p in inputs.parts)
    return None if len(parts) == 1 and parts[0].key == 0 else Inputs(parts)


class PackedRows:
    """A map-style data set whose rows are put into one tensor each: `[i] -> (numbers, label)`."""

    def __init__(self, dataset: MapStyle, inputs: Inputs, names: Names) -> None:
        self._dataset, self._inputs, self._names = dataset, inputs, names

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> tuple[Tensor, Any]:
        where = f"Row {row} of the data set"
        found, label = taken_apart(self._dataset[row], where, self._names)
        tensors: dict[str | int, Tensor] = {}
        for part in self._inputs.parts:
            if part.key not in found:
                raise UnfedError(f"{where} lacks {part.key!r}, which row 0 has; give all rows the same inputs.")
            tensors[part.key] = as_tensor(found[part.key], where)[None]
            shape = tuple(tensors[part.key].shape[1:])
            if shape != part.shape:
                raise UnfedError(
                    f"{where} has {part.key!r} with the shape {list(shape)} and row 0 has {list(part.shape)}; pad or"
                    " cut them to one length."
                )
        return self._inputs.pack(tensors)[0], label
