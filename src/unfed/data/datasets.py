"""Data sets by name: `load("digits")`, or `load("package.module:factory")` for your own.

    DATASETS[name](root) -> Raw(images, labels, classes, …)            what is on the disk
    load                 -> Dataset(train, test)                       split by seed, normalised, on the device

    test  = the first `test_size` of a permutation of all rows         permutation = order(key(seed, "split"))
    mean, std = the training part's own, per channel, where the data set does not bring published ones

A new data set is one function that reads its files and one entry in `DATASETS`. A factory returns (train, test), each
a map-style data set with `len` and `[i] -> (x, y)`, or a pair of tensors (x, y) with uint8 images [N, C, H, W] or
prepared float samples [N, …].
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unfed import rng
from unfed.data.source import DatasetSource, Source, TensorSource, Transform
from unfed.errors import UnfedError, listed, nearest

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training source, a test source, and the names of the classes."""

    name: str
    train: Source
    test: Source
    classes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Raw:
    """What a loader reads: pixels and labels, the data set's own test part or the size of the one to hold out."""

    train: Pair
    classes: tuple[str, ...]
    test: Pair | None = None
    test_size: int | None = None
    transform: Transform = field(default_factory=Transform)  # its mean and std, if set, are the published ones


Loader = Callable[[Path | None], Raw]


def load(
    name: str,
    *,
    root: str | Path | None = None,
    test_size: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    transform: Transform | None = None,
) -> Dataset:
    """The data set, split and ready to fetch; `test_size` pools all rows and holds out that many anew."""
    folder = None if root is None else Path(root)
    if ":" in name:
        made = _from_factory(name, folder, device, dtype, test_size, transform)
        if isinstance(made, Dataset):
            return made
        raw = made
    elif name in DATASETS:
        raw = DATASETS[name](folder)
    else:
        raise UnfedError(
            f"There is no data set {name!r}; the names are {listed(DATASETS)}, and your own is"
            f" 'package.module:factory'.{nearest(name, DATASETS)}"
        )
    (x, y), (test_x, test_y) = _split(raw, name, test_size, seed)
    chosen = _with_normalisation(transform or raw.transform, raw.transform, x)

    def source(images: Tensor, labels: Tensor) -> TensorSource:
        return TensorSource(images.to(device), labels, classes=len(raw.classes), transform=chosen, dtype=dtype)

    return Dataset(name, source(x, y), source(test_x, test_y), raw.classes)


def _split(raw: Raw, name: str, test_size: int | None, seed: int) -> tuple[Pair, Pair]:
    """(train, test): the data set's own, or drawn by the seed from everything there is."""
    if test_size is None and raw.test is not None:
        return raw.train, raw.test
    held_out = raw.test_size if test_size is None else test_size
    x, y = raw.train if raw.test is None else (torch.cat(both) for both in zip(raw.train, raw.test, strict=True))
    if held_out is None or not 0 < held_out < len(x):
        raise UnfedError(f"test_size must be between 1 and {len(x) - 1} for the data set {name!r}, not {held_out}.")
    order = rng.order(rng.as_key(rng.key(seed, "split")), len(x))
    test, train = order[:held_out].sort().values, order[held_out:].sort().values
    return (x[train], y[train]), (x[test], y[test])


def _with_normalisation(transform: Transform, own: Transform, images: Tensor) -> Transform:
    """The transform with a mean and std: as asked for, else as published, else the training part's own."""
    if transform.mean or images.dtype != torch.uint8 or images.ndim != 4:
        return transform
    mean, std = (own.mean, own.std) if own.mean else _statistics(images)
    return replace(transform, mean=mean, std=std)


def _statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel in [0, 1], from a histogram: exact, and no float copy of the images."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.cpu().unbind(1):
        share = torch.bincount(channel.reshape(-1), minlength=256).double() / channel.numel()
        mean = float((share * levels).sum())
        std = float((share * (levels - mean) ** 2).sum()) ** 0.5
        means.append(mean)
        stds.append(std or 1.0)  # a constant channel has nothing to scale
    return tuple(means), tuple(stds)


def _digits(root: Path | None) -> Raw:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, bundled with it; 360 are held out."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]

    bunch = load_digits()
    pixels = np.rint(bunch.images * 255 / 16).astype(np.uint8)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    return Raw((torch.from_numpy(pixels)[:, None], labels), tuple(str(d) for d in range(10)), test_size=360)


DATASETS: dict[str, Loader] = {"digits": _digits}


def _from_factory(
    name: str,
    root: Path | None,
    device: torch.device | str,
    dtype: torch.dtype,
    test_size: int | None,
    transform: Transform | None,
) -> Raw | Dataset:
    """A user's own data: tensors go the way of every data set, map-style data sets are wrapped as they are."""
    parts = _call(_factory(name), name, root)
    pairs = [_as_tensors(part) for part in parts]
    if pairs[0] is not None and pairs[1] is not None:
        (x, y), (test_x, test_y) = pairs[0], pairs[1]
        if x.shape[1:] != test_x.shape[1:] or x.dtype != test_x.dtype:
            raise UnfedError(
                f"The factory {name!r} returned training samples of {_described(x)} and test samples of"
                f" {_described(test_x)}; make them alike."
            )
        return Raw((x, y), _class_names(None, _highest((y, test_y))), test=(test_x, test_y))
    if any(pair is not None for pair in pairs):
        raise UnfedError(f"The factory {name!r} mixes tensors and data sets; return two of the same sort.")
    for part in parts:
        if not (hasattr(part, "__len__") and hasattr(part, "__getitem__")):
            raise UnfedError(
                f"The factory {name!r} returned a {type(part).__name__}, which has no len and no [i]; return map-style"
                " data sets or pairs of tensors (x, y)."
            )
    if test_size is not None:
        raise UnfedError(f"test_size cannot be used with {name!r}, whose data sets are split already; leave it out.")
    if transform is not None:
        raise UnfedError(f"A transform cannot be used with {name!r}, whose data sets have their own; leave it out.")
    train = DatasetSource(parts[0], dtype=dtype, device=device)
    test = DatasetSource(parts[1], dtype=dtype, device=device, warn=False)  # once is enough
    classes = _class_names(parts[0], _highest((train.labels, test.labels)))
    train.classes = test.classes = len(classes)  # one of the two may lack the last classes
    return Dataset(name, train, test, classes)


def _factory(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise UnfedError(
            f"The module {module_name!r} of the data set {name!r} cannot be imported ({_brief(error)});"
            " check its name and that it is on the Python path."
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise UnfedError(f"The module {module_name!r} has no function {attribute!r}.{nearest(attribute, vars(module))}")
    return factory  # type: ignore[no-any-return]


def _call(factory: Callable[..., Any], name: str, root: Path | None) -> tuple[Any, Any]:
    """The factory's (train, test); it is given `root` where the user set one."""
    try:
        made = factory() if root is None else factory(root)
    except Exception as error:  # the sentence must name the user's function, whatever it raised
        raise UnfedError(f"The factory {name!r} failed ({_brief(error)}); call it by itself to see where.") from error
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise UnfedError(f"The factory {name!r} must return (train, test), not a {type(made).__name__}.")
    return made[0], made[1]


def _brief(error: Exception) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _as_tensors(part: Any) -> Pair | None:
    """A pair of tensors or arrays, or None for anything else."""
    if not isinstance(part, (tuple, list)) or len(part) != 2:
        return None
    if not all(isinstance(value, (Tensor, np.ndarray)) for value in part):
        return None
    return torch.as_tensor(part[0]), torch.as_tensor(part[1])


def _described(samples: Tensor) -> str:
    return f"{list(samples.shape[1:])} {str(samples.dtype).removeprefix('torch.')}"


def _highest(labels: tuple[Tensor, Tensor]) -> int:
    return max((int(values.max()) for values in labels if values.numel()), default=0)


def _class_names(dataset: Any, highest: int) -> tuple[str, ...]:
    """The data set's own names where it lists enough of them, else the numbers."""
    names = getattr(dataset, "classes", ())
    if isinstance(names, (list, tuple)) and len(names) > highest:
        return tuple(str(name) for name in names)
    return tuple(str(c) for c in range(highest + 1))
