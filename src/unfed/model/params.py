"""The model is a dictionary of tensors.

`Params` holds parameters *and* persistent buffers by name, tied weights once, in the module's own order. Negating,
averaging, stacking clients, checkpoints and the wire are then the same simple thing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unfed.errors import UnfedError, nearest

Params = dict[str, Tensor]


def params_of(module: nn.Module) -> Params:
    """The parameters, then the persistent buffers, detached copies.

    A tied weight appears under its first name.
    """
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(value):
            raise UnfedError(
                f"{name!r} has no shape yet, as in a lazy layer; call the model once on a batch before it is handed"
                " over, or give the layer its sizes."
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
