"""The model as a dictionary of tensors, and SHA-256 of tensors.

`Params` holds parameters *and* persistent buffers by name, tied weights once, in the module's own order. Negating,
averaging, stacking clients, checkpoints and the wire are then the same simple thing.

    digest(t) = SHA-256 of the tensor's bytes, little-endian and row by row, as they lie in a safetensors file

Digests say which model went in, what the method did to it at the start, and which model came out; the model file alone
is enough to compute them again. They are of values and names: the same bytes in another shape or type have the same
digest, so a model file's header, evidence (`trust/verifier.py`) and `check_like` vouch for shapes. Saved states, logs
and evidence hold these numbers for good, so their definition must not change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unfed.errors import UnfedError, nearest

# --- the model is a dictionary of tensors -----------------------------------------------------------------------------


Params = dict[str, Tensor]


def params_of(module: nn.Module) -> Params:
    """The parameters, then the persistent buffers, detached copies.

    A tied weight appears under its first name.
    """
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(value):
            raise UnfedError(
                f"{name!r} has no shape yet, as in a lazy layer; call the model once on a batch first, or give the"
                " layer its sizes."
            )
    kept = set(module.state_dict(keep_vars=True))
    tensors: Params = {name: p.detach().clone() for name, p in module.named_parameters()}
    tensors.update({name: b.detach().clone() for name, b in module.named_buffers() if name in kept})
    return tensors


def load_into(module: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Write params into a module in place."""
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for name, value in params.items():
            own[name].copy_(value)


def trainable_names(module: nn.Module) -> tuple[str, ...]:
    """The names of the parameters that take part in training."""
    return tuple(name for name, p in module.named_parameters() if p.requires_grad)


def tensor_bytes(params: Mapping[str, Tensor]) -> int:
    """What these tensors weigh on a wire or a disk, without framing."""
    return sum(t.numel() * t.element_size() for t in params.values())


def cast(params: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device | str) -> Params:
    """Floating-point tensors in the given type, integer counters as they are, all on the device."""
    return {n: t.to(device, dtype if t.is_floating_point() else t.dtype) for n, t in params.items()}


def check_like(params: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str) -> None:
    """Refuse params of another architecture than `like`.

    The sentence names the first tensor that differs.
    """
    for name in like:
        if name not in params:
            raise UnfedError(
                f"{what} lacks the tensor {name!r}, so it belongs to another architecture;"
                f" set [model] to the one that wrote it.{nearest(name, params)}"
            )
        if params[name].shape != like[name].shape:
            raise UnfedError(
                f"{what} has {name!r} with shape {tuple(params[name].shape)}, the model expects"
                f" {tuple(like[name].shape)}; set [model] to the architecture that wrote it."
            )
        if params[name].is_floating_point() != like[name].is_floating_point():
            raise UnfedError(f"{what} has {name!r} as {params[name].dtype}, the model expects {like[name].dtype}.")
    extra = [name for name in params if name not in like]
    if extra:
        raise UnfedError(
            f"{what} has a tensor {extra[0]!r} that the model does not know, so it belongs to another architecture;"
            f" set [model] to the one that wrote it.{nearest(extra[0], like)}"
        )
    for name, value in params.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise UnfedError(f"{what} has NaN or infinite values in {name!r}; use a checkpoint from before that.")


# --- SHA-256 of tensors -----------------------------------------------------------------------------------------------


def digest(tensor: Tensor) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(_raw(tensor).numpy().data).hexdigest()


def digests(params: Mapping[str, Tensor]) -> dict[str, str]:
    """One per tensor."""
    return params.sha256 if isinstance(params, Fixed) else {name: digest(tensor) for name, tensor in params.items()}


class Fixed(Params):
    """Params that are changed no more, so that they are hashed once."""

    @cached_property
    def sha256(self) -> dict[str, str]:
        return {name: digest(tensor) for name, tensor in self.items()}


def _raw(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


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
    went_in = digests(before)
    changed = [n for n, new in after.items() if n not in before or not _raw(new).equal(_raw(before[n]))]
    return {
        "shapes": {name: list(tensor.shape) for name, tensor in after.items()},
        "went_in": went_in,
        "begun": {name: digest(after[name]) for name in changed},
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
