"""Model files without a model: negate a safetensors file, however large, in constant memory.

A safetensors file is 8 bytes of length, a JSON header and the tensors' bytes. Negation is one bit per number, so the
file is copied and the sign bits of the chosen bytes are turned in the copy: exact in every floating type, nothing is
loaded, and a 100 GB model needs no more memory than a small one.

The target appears whole or not at all: everything is written to a temporary file beside it, synced, then renamed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unfed import records, storage
from unfed.errors import UnfedError, UnfedWarning, listed
from unfed.model.layers import Choice, choose_in, refuse_both_halves

FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_STATE_KEYS = ("state_dict", "model", "model_state_dict")


@dataclass(frozen=True)
class _Header:
    tensors: dict[str, Any]
    """What the file says of each: `dtype`, `shape`, and where its bytes lie."""
    metadata: dict[str, str]
    start: int
    """Where the tensors' bytes begin."""


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
    note = (_said(header.metadata, "unfed.negated", list[Any], source) or []) + [asdict(choice) for choice in choices]
    # Sums and notes were those of the model before, so they go: without them it is read like one of other makers.
    kept = {key: value for key, value in header.metadata.items() if key not in (storage.SUMS, storage.NUMBERS)}
    metadata = kept | {"unfed.negated": json.dumps(note)}
    text = _header_bytes(header.tensors, metadata)
    with _replacing(target) as part:
        shutil.copymode(source, part)  # a private model stays private, from the first byte on
        with open(source, "rb") as reading, open(part, "wb") as writing:
            writing.write(text)
            reading.seek(header.start)
            shutil.copyfileobj(reading, writing)
        if part.stat().st_size - len(text) != max(entry["data_offsets"][1] for entry in header.tensors.values()):
            raise UnfedError(f"{source} changed while it was read; nothing was written, try again.")
        _turn_signs(part, [_byte_range(header.tensors[choice.name], choice, len(text)) for choice in choices])
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
    _refuse_no_folder(target)
    try:
        storage.save(target, tensors, {}, {"format": "pt", "tied": json.dumps(_tied(tensors))})
        target.chmod(stat.S_IMODE(source.stat().st_mode))
    except (SafetensorError, ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        raise UnfedError(
            f"{source} could not be written as safetensors ({error}); it must hold plain dense tensors."
        ) from error


def _read_header(path: Path) -> _Header:
    """The header of a safetensors file; the library checks it against the file's own length."""
    storage.refuse_no_file(path)
    try:
        with open(path, "rb") as file:
            first = file.read(8)
            if first.startswith((b"PK\x03\x04", b"\x80")) and int.from_bytes(first, "little") > path.stat().st_size:
                raise UnfedError(f"{path} is a PyTorch file, not safetensors; convert it first (.pt to .safetensors).")
            with safe_open(path, framework="pt") as checked:
                metadata = checked.metadata() or {}
            text = file.read(int.from_bytes(first, "little"))
    except SafetensorError as error:
        why = str(error).removeprefix("Error while deserializing header: ")
        raise UnfedError(
            f"{path} is no whole safetensors file ({why}); copy it again, or convert a .pt file first."
        ) from error
    except OSError as error:
        raise UnfedError(f"{path} cannot be read ({error.strerror}); check the path and its permissions.") from error
    tensors = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
    return _Header(tensors, metadata, 8 + len(text))


def _said(metadata: Mapping[str, str], key: str, kind: Any, path: Path) -> Any:
    """What the metadata says under a key, as JSON of this kind; None where it says nothing."""
    if key not in metadata:
        return None
    try:
        found = json.loads(metadata[key])
    except ValueError:
        found = None
    if not records.fits(kind, found):
        raise UnfedError(f"The metadata {key!r} of {path} cannot be read; write the file again.")
    return found


def _notes(metadata: Mapping[str, str]) -> object:
    """What `unfed` said of the model; nothing where that cannot be read."""
    try:
        return records.parsed(metadata.get(storage.NUMBERS, "{}"))
    except ValueError:
        return None


def _choose_floats(
    path: Path, header: _Header, addresses: Sequence[str | int], include_bias: bool
) -> tuple[Choice, ...]:
    shapes = {name: tuple(entry["shape"]) for name, entry in header.tensors.items()}
    order = _said(header.metadata, "order", list[str], path)
    tied = _said(header.metadata, "tied", dict[str, str], path) or {}
    if not {*tied, *tied.values()} <= shapes.keys():
        raise UnfedError(f"The metadata 'tied' of {path} names tensors that it does not hold; write the file again.")
    choices = choose_in(shapes, addresses, include_bias, order=order, tied=tied)
    for choice in choices:
        dtype = header.tensors[choice.name]["dtype"]
        if dtype not in FLOATS:
            raise UnfedError(
                f"{choice.name!r} is stored as {dtype} and has no sign bit to turn; choose {listed(FLOATS)}."
            )
    return choices


def _byte_range(entry: Mapping[str, Any], choice: Choice, data: int) -> slice:
    """Where the bytes with the sign bits of the chosen numbers lie; rows of axis 0 lie together."""
    width, (start, stop) = FLOATS[entry["dtype"]], entry["data_offsets"]
    if choice.rows is not None:
        row = math.prod(entry["shape"][1:]) * width
        start, stop = start + choice.rows[0] * row, start + choice.rows[1] * row
    return slice(data + start + width - 1, data + stop, width)


def _turn_signs(path: Path, places: Sequence[slice]) -> None:
    """Turn the highest bit of these bytes, in the file itself."""
    data = np.memmap(path, np.uint8, "r+")
    for place in places:
        data[place] ^= 0x80
    data.flush()


def _header_bytes(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    text = json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    return len(text).to_bytes(8, "little") + text


def _refuse_same(source: Path, target: Path) -> None:
    same = os.path.realpath(source) == os.path.realpath(target)  # links that lead in a circle end at themselves
    if same or (target.exists() and source.exists() and source.samefile(target)):
        raise UnfedError(f"Source and target are the same file {source}; give the target another name.")


def _refuse_no_folder(target: Path) -> None:
    if not target.parent.is_dir():
        raise UnfedError(f"The folder {target.parent} does not exist; make it, or give another target.")


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A path to write to; it becomes `target` if the block succeeds, and vanishes if not."""
    _refuse_no_folder(target)
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


def _tied(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The later names of tensors that are the same memory, seen the same way, with their first name."""
    first: dict[tuple[object, ...], str] = {}
    tied = {}
    for name, t in tensors.items():
        if t.numel():
            seen = first.setdefault(
                (t.untyped_storage().data_ptr(), t.dtype, t.storage_offset(), t.shape, t.stride()), name
            )
            if seen != name:
                tied[name] = seen
    return tied
