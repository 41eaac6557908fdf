"""Triton kernels for the convolutions of a stack of clients (see `convolution.py` for the shapes).

Both read an image as runs: for one row i of the kernel, the KW·I numbers under the window of pixel m lie side by side.
A program holds a tile of pixels times output channels and goes through the runs in pieces of BK. Sums are float32;
partial sums of the weight gradient are written side by side and added in order, never by atomics, so that the same
step gives the same bits.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

HERE = importlib.util.find_spec("triton") is not None


@dataclass(frozen=True)
class Tiles:
    """The sizes of a kernel's tiles; what the benchmark's sweep found best on an H200."""

    pixels: int
    run: int
    channels: int
    warps: int
    stages: int


FORWARD = Tiles(pixels=128, run=32, channels=64, warps=4, stages=4)
WEIGHT = Tiles(pixels=64, run=64, channels=64, warps=4, stages=4)
enabled = True
"""Set to False to measure the same step with cuBLAS instead."""


def usable(x: Tensor) -> bool:
    """Whether the kernels serve this tensor: Triton is there, and it is float32 or a half on a CUDA device."""
    return enabled and HERE and x.is_cuda and x.dtype in (torch.float32, torch.bfloat16, torch.float16)


def forward(x: Tensor, w: Tensor, kh: int, kw: int, tiles: Tiles | None = None) -> Tensor:
    """[C, B, H, W, I], [C, KH·KW·I, O] -> [C, B, OH, OW, O]"""
    clients, images, height, width, _ = x.shape
    oh, ow, leaving = height - kh + 1, width - kw + 1, w.shape[2]
    y = torch.empty((clients, images, oh, ow, leaving), dtype=x.dtype, device=x.device)
    t, pixels = tiles or FORWARD, images * oh * ow
    sizes = _sizes(x, kh, kw, leaving, t)
    grid = (-(-pixels // t.pixels), -(-leaving // sizes["BN"]), clients)
    even = sizes["RUN"] % sizes["BK"] == 0
    _jit().conv_forward[grid](x, w, y, pixels, x[0].numel(), EVEN=even, PRECISION=precision(x), **sizes)
    return y


def weight(x: Tensor, dy: Tensor, kh: int, kw: int, margin: int, splits: int, tiles: Tiles | None = None) -> Tensor:
    """[C, B, H, W, I], [C, B, OH + 2m, OW + 2m, O] -> [splits, C, KH·KW·I, O]"""
    clients, images, height, width, entering = x.shape
    pixels, leaving = images * (height - kh + 1) * (width - kw + 1), dy.shape[4]
    out = torch.empty((splits, clients, kh * kw * entering, leaving), dtype=torch.float32, device=x.device)
    t = tiles or WEIGHT
    sizes = _sizes(x, kh, kw, leaving, t)
    pieces = -(-sizes["RUN"] // sizes["BK"])
    around = {"dy_image": dy.shape[2] * dy.shape[3], "dy_row": dy.shape[3], "margin": margin}
    share = -(-pixels // (splits * t.pixels)) * t.pixels
    grid = (kh * pieces * -(-leaving // sizes["BN"]), splits, clients)
    _jit().conv_weight[grid](
        x,
        dy,
        out,
        pixels,
        x[0].numel(),
        clients,
        share=share,
        pieces=pieces,
        PRECISION=precision(x),
        **around,
        **sizes,
    )
    return out


def _sizes(x: Tensor, kh: int, kw: int, leaving: int, t: Tiles) -> dict[str, int]:
    """What both kernels are compiled for: divisions by constants are cheap, divisions by arguments are not."""
    _, _, height, width, entering = x.shape
    oh, ow, run = height - kh + 1, width - kw + 1, kw * entering
    return {
        "per_image": oh * ow,
        "per_row": ow,
        "x_image": height * width * entering,
        "x_row": width * entering,
        "CIN": entering,
        "COUT": leaving,
        "RUN": run,
        "KH": kh,
        "BM": t.pixels,
        "BN": min(t.channels, _power(leaving)),
        "BK": min(t.run, _power(run)),
        "num_warps": t.warps,
        "num_stages": t.stages,
    }


def precision(x: Tensor) -> str:
    """float32 products follow PyTorch's own switch for convolutions."""
    return "tf32" if torch.backends.cudnn.allow_tf32 or x.dtype != torch.float32 else "ieee"


def _power(n: int) -> int:
    """The next power of two, at least 16: what a matrix unit takes."""
    return max(16, 1 << (n - 1).bit_length())


def _jit() -> Any:
    from unfed.engines import triton_kernels

    return triton_kernels
