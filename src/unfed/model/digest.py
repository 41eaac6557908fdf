"""SHA-256 of tensors.

They say which model went in, what the method did to it at the start, and which model came out.

    digest(t) = SHA-256 of the tensor's bytes, little-endian and row by row, as they lie in a safetensors file

So anybody with the model file can compute the same numbers without this library. A job notes them when it begins (they
are saved with its state, hence survive a crash) and when it writes its model (in that file's header).

They are of values and names. The same bytes in other shapes, or of another type, have the same digest: for those the
sum in a model file's own header vouches, evidence signs them beside (`trust/verifier.py`), and a model of other shapes
than its network's is refused where it is used.
Saved states, signed logs and evidence hold these numbers for good, so what goes into them stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unfed.model.params import Params


def digest(tensor: Tensor) -> str:
    """64 hexadecimal digits."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def digests(params: Mapping[str, Tensor]) -> dict[str, str]:
    """One per tensor."""
    return {name: digest(tensor) for name, tensor in params.items()}


def fingerprint(found: Mapping[str, str]) -> str:
    """One number for a whole model: SHA-256 of the lines `digest  name`, as `sha256sum` would write them."""
    return hashlib.sha256(listing(found).encode()).hexdigest()


def listing(found: Mapping[str, str]) -> str:
    """The lines `digest  name`, sorted by name.

    Readers of safetensors give their tensors in any order.
    """
    return "".join(f"{value}  {name}\n" for name, value in sorted(found.items()))


def beginning(before: Params, after: Params) -> dict[str, Any]:
    """What a job notes when it begins: the model that went in, and what the method itself made of it."""
    went_in, begun = digests(before), digests(after)
    changed = [name for name in after if begun[name] != went_in.get(name)]
    return {
        "shapes": {name: list(tensor.shape) for name, tensor in after.items()},
        "went_in": went_in,
        "begun": {name: begun[name] for name in changed},
        "changes": {name: change(before[name], after[name]) for name in changed if name in before},
    }


def change(before: Tensor, after: Tensor) -> str:
    """How a tensor differs from what it was, in words.

    It says `negated`, `negated: 8 of 24 values`, `set to zero` or `changed`.
    """
    moved = before != after
    many, whole = int(moved.sum()), before.numel()
    if bool((after[moved] == -before[moved]).all()):
        # A value of zero does not move when it is negated, and the tensor is negated as a whole all the same.
        return "negated" if bool((after == -before).all()) else f"negated: {many:,} of {whole:,} values"
    if not bool(after.any()):
        return "set to zero"
    return "changed" if many == whole else f"changed: {many:,} of {whole:,} values"
