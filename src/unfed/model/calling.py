"""How a network is called, where its logits are, and which layers are called as one.

    x [N, …]             one tensor of floats: handed over as it is
    x [N, numbers]       several tensors, or whole numbers: `Inputs` takes a row apart into what `forward` wants

A row is always one tensor, so that data, stacks of clients and recorded steps need not know what a model reads. Whole
numbers (token ids, masks) lie in it as int64; beside floats they lie as floats, which is exact up to 2^24.

    tensor · (tensor, …) · {"logits": tensor} · output.logits          what `forward` may give back

Networks call a group of layers as one, so that an engine that knows a better way to compute it can step in.

    block(x, conv, norm, relu, pool) = pool(relu(norm(conv(x))))
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unfed.errors import UnfedError

EXACT = 1 << 24
"""Up to here a float32 holds every whole number."""


@dataclass(frozen=True)
class Part:
    """One tensor that a model is called with: its name or place, the shape of one row, its type."""

    key: str | int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def whole(self) -> bool:
        return not self.dtype.is_floating_point


@dataclass(frozen=True)
class Inputs:
    """What a model is called with, and how it lies in one row of numbers."""

    parts: tuple[Part, ...]

    @property
    def whole(self) -> bool:
        """Whether there are whole numbers only, so that rows are int64."""
        return all(part.whole for part in self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row; a lone tensor keeps its own."""
        sizes = [math.prod(part.shape) for part in self.parts]
        return self.parts[0].shape if len(self.parts) == 1 else (sum(sizes),)

    def pack(self, tensors: Mapping[str | int, Tensor]) -> Tensor:
        """Tensors [N, …] as rows of numbers."""
        if not self.whole:
            for part in self.parts:
                most = int(tensors[part.key].abs().max()) if part.whole and tensors[part.key].numel() else 0
                if most > EXACT:
                    raise UnfedError(
                        f"{part.key!r} holds {most}, and beside float inputs whole numbers are exact up to {EXACT}"
                        " only; renumber them."
                    )
        double = any(part.dtype == torch.float64 for part in self.parts)
        dtype = torch.int64 if self.whole else torch.float64 if double else torch.float32
        rows = [tensors[part.key].to(dtype) for part in self.parts]
        return rows[0] if len(rows) == 1 else torch.cat([row.flatten(1) for row in rows], 1)

    def arguments(self, x: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Rows as what `forward` is called with, by place and by name."""
        if len(self.parts) == 1:
            pieces: list[Tensor] = [x]
        else:
            cut = x.split([math.prod(part.shape) for part in self.parts], -1)
            pieces = [piece.unflatten(-1, part.shape or (1,)) for piece, part in zip(cut, self.parts, strict=True)]
            pieces = [p if part.shape else p.squeeze(-1) for p, part in zip(pieces, self.parts, strict=True)]
        typed = [p.to(part.dtype) if part.whole else p for p, part in zip(pieces, self.parts, strict=True)]
        placed = tuple(p for p, part in zip(typed, self.parts, strict=True) if isinstance(part.key, int))
        return placed, {part.key: p for p, part in zip(typed, self.parts, strict=True) if isinstance(part.key, str)}

    def blank(self, rows: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Rows of zeros, in which masks let everything through."""
        made = {}
        for part in self.parts:
            fill = 1 if part.dtype == torch.bool or "mask" in str(part.key) else 0
            made[part.key] = torch.full((rows, *part.shape), fill, dtype=torch.int64 if part.whole else dtype)
        packed = self.pack(made)
        return packed.to(device) if self.whole else packed.to(device, dtype)


def whole_numbers(shape: tuple[int, ...]) -> Inputs:
    """One tensor of token ids."""
    return Inputs((Part(0, shape, torch.int64),))


def called(module: nn.Module, x: Tensor, inputs: Inputs | None) -> Tensor:
    """The logits of some rows, by a module as it stands."""
    args, named = ((x,), {}) if inputs is None else inputs.arguments(x)
    return logits_in(module(*args, **named))


def logits_in(output: Any) -> Tensor:
    """The logits in what a forward pass gave back.

    In a tuple they are the first tensor with an axis for rows and one more, in a dict they are called `logits` or
    stand alone.
    """
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    if isinstance(output, Mapping):
        found: list[Tensor] = [value for value in output.values() if _may_be_logits(value)]
        if len(found) == 1:
            return found[0]
        said = f"a dict of {', '.join(map(str, output)) or 'nothing'}"
    else:
        found = [value for value in output if _may_be_logits(value)] if isinstance(output, tuple | list) else []
        if found:
            return found[0]
        said = f"a {type(output).__name__}"
    raise UnfedError(
        f"The model returned {said}; its forward must return logits [N, classes]: a tensor, first in a tuple, 'logits'"
        " of a dict, or .logits."
    )


def _may_be_logits(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 2


# --- modules in modules -----------------------------------------------------------------------------------------------


def unwrapped(module: nn.Module) -> nn.Module:
    """The network inside what was put around it for speed or for training.

    That is `torch.compile`, DataParallel, DistributedDataParallel, Fabric, or a Lightning module without a `forward`.
    """
    while True:
        inside = _inside(module)
        if inside is None:
            return module
        module = inside


def _inside(module: nn.Module) -> nn.Module | None:
    kinds = [kind.__name__ for kind in type(module).__mro__]
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel) or "_FabricModule" in kinds:
        found = module.module
    elif "OptimizedModule" in kinds and isinstance(getattr(module, "_orig_mod", None), nn.Module):
        found = module._orig_mod
    elif "FullyShardedDataParallel" in kinds or "FSDPModule" in kinds:
        raise UnfedError(
            "The model's parameters are sharded over processes; load its full state dict into a plain module and give"
            " that."
        )
    elif "LightningModule" in kinds and not _has_forward(module):
        learning = {name: part for name, part in module.named_children() if next(part.parameters(), None) is not None}
        if len(learning) != 1:
            names = f", such as model.{next(iter(learning))}" if learning else ""
            raise UnfedError(
                f"{type(module).__name__} has no forward, so it is not known how it makes logits; write one, or give"
                f" the network inside it{names}."
            )
        found = next(iter(learning.values()))
    else:
        return None
    assert isinstance(found, nn.Module)
    return found


def _has_forward(module: nn.Module) -> bool:
    """Whether a Lightning module's own class says what its forward pass is."""
    for kind in type(module).__mro__:
        if kind.__name__ == "LightningModule":
            return False
        if "forward" in vars(kind):
            return True
    return False


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module; what cannot be copied is named."""
    try:
        return copy.deepcopy(module)
    except Exception as error:  # whatever a user's attributes raise
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnfedError(
            f"The model cannot be copied ({said}); take what cannot be copied off it (a lock, an open file, a logger, a"
            " tensor with a history)."
        ) from error


# --- a group of layers as one call ------------------------------------------------------------------------------------


Better = Callable[..., Tensor | None]
"""Takes what `block` takes; its result, or None where the better way does not apply."""

_ways: list[Better] = []


def block(x: Tensor, conv: nn.Module, norm: nn.Module, relu: nn.Module, pool: nn.Module) -> Tensor:
    """The four layers one after another, unless `computed_by` offers another way."""
    for way in reversed(_ways):
        found = way(x, conv, norm, relu, pool)
        if found is not None:
            return found
    out: Tensor = pool(relu(norm(conv(x))))
    return out


@contextmanager
def computed_by(block: Better) -> Iterator[None]:
    """Within, `block` is offered to this function."""
    _ways.append(block)
    try:
        yield
    finally:
        _ways.remove(block)
