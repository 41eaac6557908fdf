"""How the kernels of this part are called: grids, tiles, buffers."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch
from torch import Tensor

from unfed.engines.compiled import kernels
from unfed.engines.compiled.kernels import SHARE, power


def gelu(x: Tensor) -> Tensor:
    """See `gelu.gelu`."""
    y, t = torch.empty_like(x), kernels.tuning.gelu
    _jit().gelu[(-(-x.numel() // t.rows),)](x, y, x.numel(), BLOCK=t.rows, num_warps=t.warps)
    return y


def gelu_backward(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """See `gelu.gelu_backward`."""
    (rows, columns), t = x.shape, kernels.tuning.gelu_backward
    dx, sums = torch.empty_like(x), torch.empty((gelu_parts(x), columns), dtype=torch.float32, device=x.device)
    _jit().gelu_backward[(-(-columns // t.channels), len(sums))](
        dy, x, dx, sums, rows, COLUMNS=columns, SHARE=SHARE, BM=t.rows, BN=t.channels, STAGES=t.stages,
        num_warps=t.warps,
    )  # fmt: skip
    return dx, sums


def gelu_parts(x: Tensor) -> int:
    """In how many partial sums the gradient of the bias comes."""
    return -(-x.shape[0] // SHARE)


def attend(x: Tensor) -> tuple[Tensor, Tensor]:
    """See `attention.forward`."""
    images, length, _, heads, width = x.shape
    out = x.new_empty((images, length, heads * width))
    level = torch.empty((images, heads, length), dtype=torch.float32, device=x.device)
    t = kernels.tuning.attend
    _jit().attend[(heads, images)](
        x, out, level, math.log2(math.e) / math.sqrt(width), LENGTH=length, HEADS=heads, D=width, LP=power(length),
        BM=min(t.rows, power(length)), STAGES=t.stages, num_warps=t.warps,
    )  # fmt: skip
    return out, level


def attend_backward(dout: Tensor, x: Tensor, out: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """See `attention.backward`; the sums come image by image."""
    images, length, _, heads, width = x.shape
    dx, sums = torch.empty_like(x), torch.empty((images, 3 * heads * width), dtype=torch.float32, device=x.device)
    t, scale = kernels.tuning.attend_backward, 1 / math.sqrt(width)
    _jit().attend_backward[(heads, images)](
        x, out, level, dout, dx, sums, scale, scale * math.log2(math.e), LENGTH=length, HEADS=heads, D=width,
        LP=power(length), BM=min(t.rows, power(length)), STAGES=t.stages, num_warps=t.warps,
    )  # fmt: skip
    return dx, sums


def _jit() -> Any:
    """The kernels themselves, imported on first use."""
    return importlib.import_module("unfed.engines.compiled.transformer.triton_kernels")
