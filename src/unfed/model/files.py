"""Model files without a model: negate a safetensors file, however large, in constant memory.

A safetensors file is 8 bytes of length, a JSON header and the tensors' bytes. Negation is one bit per number, so a file
is copied in chunks and the sign bits of the chosen byte ranges are turned on the way: exact in every floating type,
nothing is loaded, and a 100 GB model needs no more memory than a small one.

The target appears whole or not at all: everything is written to a temporary file beside it, synced, then renamed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BufferedReader, BufferedWriter
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from unfed import records, storage
from unfed.errors import UnfedError, UnfedWarning, listed
from unfed.model.layers import Choice, choose_in, refuse_both_halves

CHUNK_BYTES = 4 << 20
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_WIDTHS = FLOATS | {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_HEADER_LIMIT = 100_000_000  # the format's own limit
_STATE_KEYS = ("state_dict", "model", "model_state_dict")


@dataclass(frozen=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class _Header:
    tensors: dict[str, _Entry]
    metadata: dict[str, str]
    data_start: int
    data_bytes: int


def choose_in_file(path: Path, addresses: Sequence[str | int], include_bias: bool = False) -> tuple[Choice, ...]:
    """What `negate_file` would negate."""
    return _choose_floats(Path(path), _read_header(Path(path)), addresses, include_bias)


def negate_file(
    source: Path, target: Path, addresses: Sequence[str | int], include_bias: bool = False
) -> tuple[Choice, ...]:
    """Write `source` to `target` with the addressed tensors negated (Eq. 3).

    A note of it goes into the metadata.

    The note `unfed.negated` lists all negations so far, so a second one of the same tensor (an undo) can be seen.
    """
    source, target = Path(source), Path(target)
    header = _read_header(source)
    _refuse_same(source, target)
    choices = _choose_floats(source, header, addresses, include_bias)
    if not choices:
        raise UnfedError("Nothing was chosen to negate; give at least one address, such as conv1.weight.")
    refuse_both_halves(choices)
    if back := storage.way_back(_notes(header.metadata)):
        warnings.warn(
            f"{source} can be turned back ({back}): what is negated once more brings back what was taken out.",
            UnfedWarning,
            stacklevel=2,
        )
    note = _noted(header.metadata, source) + [asdict(choice) for choice in choices]
    # Sums and notes were those of the model before, so they go: without them it is read like one of other makers.
    kept = {key: value for key, value in header.metadata.items() if key not in (storage.SUMS, storage.NUMBERS)}
    metadata = kept | {"unfed.negated": json.dumps(note)}
    flips = sorted(_byte_range(header.tensors[choice.name], choice) for choice in choices)
    with _replacing(target) as part, open(source, "rb") as reading, open(part, "wb") as writing:
        shutil.copymode(source, part)  # a private model stays private, from the first byte on
        writing.write(_header_bytes(header.tensors, metadata))
        reading.seek(header.data_start)
        at = 0
        for start, stop, width in flips:
            _copy(reading, writing, start - at, None, source)
            _copy(reading, writing, stop - start, width, source)
            at = stop
        _copy(reading, writing, header.data_bytes - at, None, source)
    return choices


def convert_file(source: Path, target: Path) -> None:
    """A PyTorch state dict (.pt, .pth) as safetensors, read without running a line of its code.

    Accepts a state dict, or a dict that holds one as state_dict, model or model_state_dict. The module order is kept in
    the metadata `order`; a tied weight is written under all its names, which `tied` maps to the first.
    """
    source, target = Path(source), Path(target)
    if target.suffix != ".safetensors":
        raise UnfedError(f"{target} does not end in .safetensors; give the converted file that ending.")
    _refuse_same(source, target)
    tensors = _without_prefix(_state_dict(_load(source), source))
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            raise UnfedError(
                f"{name!r} in {source} is a sparse tensor; make it dense, save the file and convert again."
            )
    tied = _tied(tensors)
    metadata = {"format": "pt", "order": json.dumps(list(tensors))}
    if tied:
        metadata["tied"] = json.dumps(tied)
    # Each tensor gets a storage of its own: safetensors refuses shared ones. A lone contiguous one needs no copy.
    users = Counter(_storages(tensors))
    own = {
        name: tensor.contiguous() if users[storage] == 1 else tensor.clone(memory_format=torch.contiguous_format)
        for (name, tensor), storage in zip(tensors.items(), _storages(tensors), strict=True)
    }
    with _replacing(target) as part:
        try:
            save_file(own, part, metadata)
            shutil.copymode(source, part)
        except (SafetensorError, ValueError, KeyError, RuntimeError, NotImplementedError) as error:
            raise UnfedError(
                f"{source} could not be written as safetensors ({error});"
                " it must hold plain dense tensors, and the disk must have room."
            ) from error


def _read_header(path: Path) -> _Header:
    """The header of a safetensors file, checked against the file's own length."""
    storage.refuse_no_file(path)
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            first = file.read(8)
            length = int.from_bytes(first, "little")
            if length > _HEADER_LIMIT and first.startswith((b"PK\x03\x04", b"\x80")):
                raise UnfedError(f"{path} is a PyTorch file, not safetensors; convert it first (.pt to .safetensors).")
            if len(first) < 8 or not 2 <= length <= _HEADER_LIMIT:
                raise UnfedError(f"{path} is not a safetensors file; give one, or convert a .pt file first.")
            if 8 + length > size:
                raise UnfedError(f"{path} is cut off inside its header; copy or download it again.")
            text = file.read(length)
    except OSError as error:
        raise UnfedError(f"{path} cannot be read ({error.strerror}); check the path and its permissions.") from error
    tensors, metadata = _parsed(text, path)
    end = max((entry.stop for entry in tensors.values()), default=0)
    if 8 + length + end != size:
        wrong = "cut off" if 8 + length + end > size else "longer than its header says"
        raise UnfedError(f"{path} is {wrong}; copy or download it again.")
    return _Header(tensors, metadata, 8 + length, end)


def _parsed(text: bytes, path: Path) -> tuple[dict[str, _Entry], dict[str, str]]:
    try:
        raw = json.loads(text, object_pairs_hook=_no_twins)
        metadata = raw.pop("__metadata__", {})
        entries = {name: _entry(value) for name, value in raw.items()}
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnfedError(f"The header of {path} is corrupt; copy or download the file again.") from error
    tensors = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)))
    at = 0
    for name, entry in tensors.items():
        width = _WIDTHS.get(entry.dtype)
        expected = math.prod(entry.shape) * width if width else entry.stop - entry.start
        if entry.start != at or entry.stop - entry.start != expected:
            raise UnfedError(f"The header of {path} gives {name!r} impossible bytes; copy or download the file again.")
        at = entry.stop
    return tensors, metadata


def _no_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """JSON keeps the last of two equal keys; here that would hide a tensor."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


def _entry(value: Mapping[str, object]) -> _Entry:
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not (isinstance(dtype, str) and isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2):
        raise ValueError
    if not all(type(n) is int and n >= 0 for n in [*shape, *offsets]) or offsets[0] > offsets[1]:
        raise ValueError
    return _Entry(dtype, tuple(shape), offsets[0], offsets[1])


def _json_names(metadata: Mapping[str, str], key: str, path: Path) -> list[str] | None:
    if key not in metadata:
        return None
    try:
        names = json.loads(metadata[key])
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UnfedError(f"The metadata {key!r} of {path} is not a JSON list of tensor names; write the file again.")
    return names


def _json_tied(metadata: Mapping[str, str], names: Mapping[str, object], path: Path) -> dict[str, str]:
    try:
        tied = json.loads(metadata.get("tied", "{}"))
    except ValueError:
        tied = None
    if not isinstance(tied, dict) or not all(a in names and isinstance(b, str) and b in names for a, b in tied.items()):
        raise UnfedError(f"The metadata 'tied' of {path} does not map its tensors to each other; write the file again.")
    return tied


def _notes(metadata: Mapping[str, str]) -> object:
    """What `unfed` said of the model; nothing where that cannot be read."""
    try:
        return records.parsed(metadata.get(storage.NUMBERS, "{}"))
    except ValueError:
        return None


def _noted(metadata: Mapping[str, str], path: Path) -> list[object]:
    try:
        note = json.loads(metadata.get("unfed.negated", "[]"))
    except ValueError:
        note = None
    if not isinstance(note, list):
        raise UnfedError(f"The metadata 'unfed.negated' of {path} is not a JSON list; write the file again.")
    return note


def _choose_floats(
    path: Path, header: _Header, addresses: Sequence[str | int], include_bias: bool
) -> tuple[Choice, ...]:
    shapes = {name: entry.shape for name, entry in header.tensors.items()}
    order = _json_names(header.metadata, "order", path)
    tied = _json_tied(header.metadata, shapes, path)
    choices = choose_in(shapes, addresses, include_bias, order=order, tied=tied)
    for choice in choices:
        dtype = header.tensors[choice.name].dtype
        if dtype not in FLOATS:
            raise UnfedError(
                f"{choice.name!r} is stored as {dtype} and has no sign bit to turn; choose {listed(FLOATS)}."
            )
    return choices


def _byte_range(entry: _Entry, choice: Choice) -> tuple[int, int, int]:
    """Start, stop and item width of the chosen bytes; rows of axis 0 lie together."""
    width = FLOATS[entry.dtype]
    if choice.rows is None:
        return entry.start, entry.stop, width
    row = math.prod(entry.shape[1:]) * width
    return entry.start + choice.rows[0] * row, entry.start + choice.rows[1] * row, width


def _header_bytes(tensors: Mapping[str, _Entry], metadata: Mapping[str, str]) -> bytes:
    raw: dict[str, object] = {"__metadata__": dict(metadata)}
    for name, entry in tensors.items():
        raw[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [entry.start, entry.stop]}
    text = json.dumps(raw, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    return len(text).to_bytes(8, "little") + text


def _copy(reading: BufferedReader, writing: BufferedWriter, left: int, width: int | None, source: Path) -> None:
    """Copy `left` bytes in chunks.

    With a `width`, the sign bit of every little-endian number of that width is turned.
    """
    chunk = bytearray(min(left, CHUNK_BYTES))
    while left:
        view = memoryview(chunk)[: min(left, CHUNK_BYTES)]
        if reading.readinto(view) != len(view):
            raise UnfedError(f"{source} became shorter while it was read; nothing was written, try again.")
        if width is not None:
            np.frombuffer(view, dtype=np.uint8)[width - 1 :: width] ^= 0x80
        writing.write(view)
        left -= len(view)


def _refuse_same(source: Path, target: Path) -> None:
    same = os.path.realpath(source) == os.path.realpath(target)  # links that lead in a circle end at themselves
    if same or (target.exists() and source.exists() and source.samefile(target)):
        raise UnfedError(f"Source and target are the same file {source}; give the target another name.")


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A path to write to; it becomes `target` if the block succeeds, and vanishes if not."""
    if not target.parent.is_dir():
        raise UnfedError(f"The folder {target.parent} does not exist; make it, or give another target.")
    storage.sweep_beside(target)
    try:
        with storage.replacing(target) as part:
            yield part
            storage.sync(part)
        storage.sync(target.parent)
    except OSError as error:
        raise UnfedError(
            f"{target} cannot be written ({error.strerror or error}); check the folder, its permissions and its space."
        ) from error


def _load(source: Path) -> object:
    """`torch.load` with weights only, mapped where the format allows it: no code of the file ever runs."""
    try:
        try:
            return torch.load(source, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the format from before PyTorch 1.6 cannot be mapped
            return torch.load(source, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UnfedError(f"{source} cannot be read ({error.strerror}); check the path and its permissions.") from error
    except Exception as error:  # refused pickles and damaged files fail in many ways, and mean the same here
        raise UnfedError(
            f"{source} does not hold plain tensors, or is damaged; if you trust it, save it again with"
            " torch.save(model.state_dict(), ...)."
        ) from error


def _is_state(value: object) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items())
    )


def _state_dict(loaded: object, source: Path) -> dict[str, Tensor]:
    if _is_state(loaded):
        return dict(loaded)  # type: ignore[call-overload, no-any-return]
    found = [key for key in _STATE_KEYS if isinstance(loaded, dict) and _is_state(loaded.get(key))]
    if len(found) != 1:
        what = f"holds {' and '.join(found)}" if found else "holds no state dict"
        raise UnfedError(
            f"{source} {what}; save one dict of tensors, alone or under {listed(_STATE_KEYS)},"
            " with torch.save(model.state_dict(), ...)."
        )
    return dict(loaded[found[0]])  # type: ignore[index]


def _without_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names without the `module.` that DataParallel puts before all of them."""
    if all(name.startswith("module.") and name != "module." for name in tensors):
        return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors


def _storages(tensors: Mapping[str, Tensor]) -> list[int]:
    return [t.untyped_storage().data_ptr() for t in tensors.values()]


def _tied(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The later names of tensors that are the same memory, seen the same way, with their first name."""
    first: dict[tuple[object, ...], str] = {}
    tied = {}
    for (name, t), memory in zip(tensors.items(), _storages(tensors), strict=True):
        if t.numel():
            seen = first.setdefault((memory, t.dtype, t.storage_offset(), t.shape, t.stride()), name)
            if seen != name:
                tied[name] = seen
    return tied
