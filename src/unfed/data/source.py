"""Sources give the samples of some rows: fetch(rows, draws) -> (x, y).

    x = normalise(stamp(flip(crop(resize(pad_crop(pixels / 255))))))          y = labels[rows]

`rows` has any shape, [B] for one client or [C, B] for a stack of clients, and so have x and y in front. `draws` is
one 32-bit word per row: every random choice is an integer hash of that word, so a row looks the same alone and in a
stack, today and after a resume, on any device. `draws=None` is evaluation: no padding, centre crop, no flip. A
backdoor's trigger is stamped after the geometry and before the normalisation: most random crops would lose it in the
stored image.

`TensorSource` holds a whole data set on the device; `DatasetSource` wraps a user's own, whose transforms run as they
are, one row at a time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from unfed import rng
from unfed.errors import UnfedError, UnfedWarning
from unfed.model.calling import Inputs, whole_numbers

# --- A source gives the samples of some rows: fetch(rows, draws) -> (x, y) --------------------------------------------


# What a row's word is hashed with, so that its flip, its padding and its crop are independent.
_FLIP, _PAD_TOP, _PAD_LEFT, _CROP_TOP, _CROP_LEFT = 0x1B56C4E9, 0x3C6EF372, 0x5A827999, 0x6ED9EBA1, 0x7F4A7C15


# On a CPU, images that always look the same are transformed once, up to this size: on digits a tenth of a visit.
MADE_BYTES = 1 << 25


class Source(Protocol):
    """Samples by row.

    `resident` sources live on the device: the batched engine and bit-equal resume need that.
    """

    @property
    def labels(self) -> Tensor: ...

    @property
    def resident(self) -> bool: ...

    @property
    def augments(self) -> bool:
        """Whether a fetch reads its draws at all."""
        ...

    @property
    def classes(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def inputs(self) -> Inputs | None:
        """How a row is taken apart for the model; None where it is one tensor of floats."""
        ...

    def __len__(self) -> int: ...

    def fetch(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]: ...


class Stamp(Protocol):
    """What `poison.Trigger` is to a source: a pure function on images in [0, 1]."""

    def stamp(self, images: Tensor) -> Tensor: ...


class MapStyle(Protocol):
    """A user's data set: `len(dataset)` and `dataset[i] -> (x, y)`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Transform:
    """From stored pixels to what the model sees; the same for every row but for the row's word."""

    flip: float = 0.0
    pad_crop: int = 0
    resize: int | None = None
    crop: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.flip <= 1.0:
            raise UnfedError(f"flip is a probability between 0 and 1, not {self.flip}.")
        if self.pad_crop < 0:
            raise UnfedError(f"pad_crop is a number of pixels, 0 for none, not {self.pad_crop}.")
        for name, size in (("resize", self.resize), ("crop", self.crop)):
            if size is not None and size < 1:
                raise UnfedError(f"{name} is a number of pixels, at least 1, not {size}.")
        if self.resize is not None and self.crop is not None and self.crop > self.resize:
            raise UnfedError(f"crop = {self.crop} does not fit into resize = {self.resize}; make resize larger.")
        if len(self.mean) != len(self.std):
            raise UnfedError(
                f"mean has {len(self.mean)} values and std has {len(self.std)}; give one of each per channel."
            )
        if not all(math.isfinite(m) for m in self.mean) or not all(0 < s < math.inf for s in self.std):
            raise UnfedError(f"mean {self.mean} must be finite and std {self.std} positive; check both.")

    def shape(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a transformed image, or the sentence that says why this transform does not fit it."""
        channels, height, width = image
        if self.mean and len(self.mean) != channels:
            raise UnfedError(f"mean and std have {len(self.mean)} values, the images have {channels} channels.")
        if self.resize is not None:
            height = width = self.resize
        if self.crop is None:
            return channels, height, width
        if self.crop > min(height, width):
            raise UnfedError(f"crop = {self.crop} does not fit into images of {height}x{width}; set resize as well.")
        return channels, self.crop, self.crop

    def geometry(self, images: Tensor, draws: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Pad-crop, resize, crop, flip of [n, C, H, W].

        Without a resize the pixels stay uint8, which is cheaper.
        """
        mirrored = rng.chance(_word(draws, _FLIP), self.flip) if draws is not None and self.flip else None
        if draws is not None and self.pad_crop:
            height, width = images.shape[-2:]
            top, left = (rng.below(_word(draws, k), 2 * self.pad_crop + 1) for k in (_PAD_TOP, _PAD_LEFT))
            last = self.resize is None and self.crop is None
            padded = F.pad(images, (self.pad_crop,) * 4)
            images = _window(padded, top, left, height, width, mirrored if last else None)
            mirrored = None if last else mirrored
        if self.resize is not None and images.shape[-2:] != (self.resize, self.resize):
            # Antialiasing matters, and costs, only where pixels get lost.
            shrinks = self.resize < max(images.shape[-2:])
            size = (self.resize, self.resize)
            images = F.interpolate(unit(images, dtype), size, mode="bilinear", antialias=shrinks, align_corners=False)
        if self.crop is not None:
            return self._cropped(images, draws, self.crop, mirrored)
        return images if mirrored is None else torch.where(mirrored[:, None, None, None], images.flip(-1), images)

    @staticmethod
    def _cropped(images: Tensor, draws: Tensor | None, size: int, mirrored: Tensor | None) -> Tensor:
        spare_y, spare_x = images.shape[-2] - size, images.shape[-1] - size
        if draws is None:
            top, left = spare_y // 2, spare_x // 2
            return images[..., top : top + size, left : left + size]
        tops = rng.below(_word(draws, _CROP_TOP), spare_y + 1)
        lefts = rng.below(_word(draws, _CROP_LEFT), spare_x + 1)
        return _window(images, tops, lefts, size, size, mirrored)


def _word(draws: Tensor, purpose: int) -> Tensor:
    """A row's word for one purpose.

    It is made of plain scalars only: no tensor is made on the host, so CUDA graphs can hold it.
    """
    return rng.mix(rng.mix(draws) ^ purpose)


def unit(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Pixels as numbers in [0, 1]; what is floating-point already stays."""
    return images if images.is_floating_point() else images.to(dtype).div_(255)


def as_array(value: Any) -> NDArray[Any]:
    """An image, or whatever else numpy reads; bits and palettes become intensities."""
    mode = getattr(value, "mode", None)  # only PIL images have one; a palette index is no intensity
    return np.asarray(value.convert("L" if mode == "1" else "RGB") if mode in ("1", "P") else value)


def _window(images: Tensor, top: Tensor, left: Tensor, height: int, width: int, mirrored: Tensor | None) -> Tensor:
    """The heightxwidth window of each image at its own corner, mirrored or not, by one gather."""
    row = torch.arange(len(images), device=images.device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=images.device)[:, None, None]
    y, x = (torch.arange(size, device=images.device) for size in (height, width))
    x = x if mirrored is None else torch.where(mirrored[:, None], width - 1 - x, x)
    y, x = top[:, None] + y, left[:, None] + x
    # Fused with what pads the images afterwards, the gather takes longer than the two kernels.
    return rng.stored(images[row, channel, y[:, None, :, None], x[:, None, None, :]])


class TensorSource:
    """The whole data set on the device.

    It holds uint8 images [N, C, H, W], or floats or whole numbers (token ids) [N, …] that are taken as they are.
    """

    resident = True

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        classes: int | None = None,
        transform: Transform | None = None,
        stamped: Tensor | None = None,
        trigger: Stamp | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not dtype.is_floating_point:
            raise UnfedError(f"dtype must be a floating-point type such as float32, not {dtype}.")
        if (stamped is None) != (trigger is None):
            raise UnfedError("Flags of stamped rows and a trigger belong together; give both or neither.")
        self.transform = transform or Transform()
        self.shape = _sample_shape(images, self.transform, trigger)
        self.classes = checked_labels(labels, len(images), classes)
        if stamped is not None and (stamped.shape != labels.shape or stamped.dtype != torch.bool):
            raise UnfedError(f"The flags of stamped rows must be {len(images)} booleans, one per row.")
        device = images.device
        self.dtype, self.trigger = dtype, trigger
        self.images = images.to(dtype) if images.is_floating_point() else images
        whole = self.prepared and not images.is_floating_point()
        self.inputs: Inputs | None = whole_numbers(self.shape) if whole else None
        self.labels = labels.to(device, torch.int64)
        self.stamped = None if stamped is None else stamped.to(device)
        # Made once: a fetch must not move anything from the host.
        mean, std = (torch.tensor(v, dtype=dtype, device=device) for v in (self.transform.mean, self.transform.std))
        self._mean, self._std = mean[:, None, None], std[:, None, None]
        self._made: Tensor | None = None
        size = len(images) * math.prod(self.shape) * mean.element_size()
        if device.type == "cpu" and not self.prepared and not self.augments and size <= MADE_BYTES:
            self._made = self.fetch(torch.arange(len(images)))[0]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def augments(self) -> bool:
        """Whether rows look different from pass to pass."""
        transform = self.transform
        return not self.prepared and bool(transform.flip or transform.pad_crop or transform.crop)

    @property
    def prepared(self) -> bool:
        """True for floats and token ids, which are handed out as they are."""
        return self.images.dtype != torch.uint8

    def fetch(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The transformed samples and the labels of `rows`, in the shape of `rows`."""
        flat = rows.reshape(-1).to(self.images.device)
        y = self.labels.index_select(0, flat).reshape(rows.shape)
        x = (self.images if self._made is None else self._made).index_select(0, flat)
        if not self.prepared and self._made is None:
            words = None if draws is None else draws.reshape(-1).to(x.device)
            x = unit(self.transform.geometry(x, words, self.dtype), self.dtype)
            if self.stamped is not None and self.trigger is not None:
                flags = self.stamped.index_select(0, flat)[:, None, None, None]
                x = torch.where(flags, self.trigger.stamp(x), x)
            if self.transform.mean:
                x = x.sub_(self._mean).div_(self._std)
        return x.reshape(*rows.shape, *self.shape), y

    def to(self, device: torch.device | str) -> TensorSource:
        """The same source on another device."""
        return self._like(self.images.to(device), self.labels, self.stamped, self.trigger)

    def relabelled(self, labels: Tensor, stamped: Tensor | None, trigger: Stamp | None) -> TensorSource:
        """The same images, not copied, with other labels and stamps."""
        return self._like(self.images, labels, stamped, trigger)

    def some(self, rows: Tensor) -> TensorSource:
        """A source of these rows only."""
        at = rows.to(self.images.device)
        stamped = None if self.stamped is None else self.stamped[at]
        return self._like(self.images[at], self.labels[at], stamped, self.trigger)

    def _like(self, images: Tensor, labels: Tensor, stamped: Tensor | None, trigger: Stamp | None) -> TensorSource:
        return TensorSource(
            images,
            labels,
            classes=self.classes,
            transform=self.transform,
            stamped=stamped,
            trigger=trigger,
            dtype=self.dtype,
        ).with_inputs(self.inputs)

    def with_inputs(self, inputs: Inputs | None) -> TensorSource:
        """This source, whose rows are taken apart like that."""
        self.inputs = inputs
        return self


def _sample_shape(images: Tensor, transform: Transform, trigger: Stamp | None) -> tuple[int, ...]:
    """The shape of one fetched x, after checking that the tensors are something a source can hold."""
    if images.ndim == 0 or len(images) == 0:
        raise UnfedError("The data set is empty; give it at least one sample.")
    if images.is_floating_point() or (images.dtype in (torch.int64, torch.int32) and images.ndim < 4):
        if transform != Transform():
            raise UnfedError("Float tensors are taken as prepared, without a transform; give uint8 images to use one.")
        if trigger is not None:
            raise UnfedError("A trigger needs uint8 images; float tensors are taken as prepared.")
        if images.is_floating_point() and not images.isfinite().all():
            row = int((~images.flatten(1).isfinite()).any(1).nonzero()[0]) if images.ndim > 1 else 0
            raise UnfedError(f"Sample {row} has NaN or infinite values in it; clean the data, no training mends it.")
        return tuple(images.shape[1:])
    if images.dtype != torch.uint8:
        raise UnfedError(
            f"Samples must be uint8 images or float tensors (or token ids [N, length]), not {list(images.shape)} of"
            f" {images.dtype}; convert them first."
        )
    if images.ndim != 4:
        raise UnfedError(
            f"uint8 images must have the shape [N, C, H, W], not {list(images.shape)}; reshape them, or give floats,"
            " which are taken as they are."
        )
    return transform.shape(tuple(images.shape[1:]))


def checked_labels(labels: Tensor, n: int, classes: int | None) -> int:
    """The number of classes, after checking every label; the sentence names the first bad row."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UnfedError(
            f"Labels must be class numbers (integers from 0 on), not {labels.dtype}; unfed forgets in classifiers only,"
            " so turn them into class numbers."
        )
    if labels.shape != (n,):
        raise UnfedError(
            f"There are {n} samples and labels of shape {list(labels.shape)}; give one label per sample"
            " (of one-hot rows that is labels.argmax(1))."
        )
    if classes is None:
        classes = int(labels.max()) + 1
    wide = labels.long()  # a byte compared with 300 is compared with 44
    bad = ((wide < 0) | (wide >= classes)).nonzero()
    if len(bad):
        row = int(bad[0])
        raise UnfedError(
            f"Row {row} has the label {int(labels[row])}, which is outside 0..{classes - 1};"
            " number the classes from 0 on."
        )
    return classes


# --- the next batch while the device works ----------------------------------------------------------------------------

T = TypeVar("T")


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items in the same order, each made while the one before it is in use.

    A user's data set reads files and transforms images on the host, one sample after another; one thread does that
    ahead of time. Only this thread reads, so a data set that draws random numbers draws the same ones. An error comes
    where its item would have come. Closing waits for the item in the making: nothing is left running.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="unfed-data") as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item


# --- A user's own map-style data set as a source: its transforms run as they are, one row at a time -------------------


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
        """The tensor on the device. A copy from pinned memory does not block."""
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
