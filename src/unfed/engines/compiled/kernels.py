"""How the kernels of `triton_kernels.py` are called: grids, tiles, buffers.

`fused.py` has the formulas of a whole block, `convolution.py` those of a convolution alone; both are tested against
their readable lines.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from unfed.engines.compiled import handwritten

HALVES = (torch.bfloat16, torch.float16)
HERE = importlib.util.find_spec("triton") is not None

# How many programs keep every multiprocessor busy. A constant: the number of partial sums changes the last bits.
BUSY = 512


@dataclass(frozen=True)
class Tiles:
    """Tiles of one kernel: rows (pixels, windows), the kernel's entries, channels; warps, stages."""

    rows: int
    entries: int = 0
    channels: int = 64
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class Tuning:
    """What the sweep in `benchmarks/blocks.py` found best on an H200 for halves."""

    conv: Tiles = Tiles(rows=256, entries=32, warps=4, stages=3)
    conv_pool: Tiles = Tiles(rows=128, entries=64, channels=128, warps=8, stages=3)
    conv_flat: Tiles = Tiles(rows=128, entries=32, warps=4, stages=1)
    sums: Tiles = Tiles(rows=16)
    spread: Tiles = Tiles(rows=16, warps=2)
    weight: Tiles = Tiles(rows=64, entries=128, channels=128, warps=8, stages=3)
    at_once: Tiles = Tiles(rows=16, entries=128, warps=4, stages=1)
    at_a_time: int = 264
    """Programs of `weight`: two on every multiprocessor, so that all end together."""


tuning = Tuning()

# For float32: two warps, or 32 entries. More use Hopper's wide products, for which float32 is turned around first.
long_tuning = Tuning(
    conv=Tiles(rows=64, entries=32, warps=2, stages=2),
    conv_pool=Tiles(rows=64, entries=32, warps=2, stages=2),
    conv_flat=Tiles(rows=64, entries=32, warps=2, stages=1),
    weight=Tiles(rows=64, entries=32, channels=128, warps=4, stages=2),
    at_once=Tiles(rows=16, entries=64, warps=2, stages=1),
    at_a_time=1056,
)


def tuned(x: Tensor) -> Tuning:
    """The tiles for numbers of this length."""
    return tuning if x.element_size() == 2 else long_tuning


def usable(x: Tensor) -> bool:
    """Whether the kernels serve this tensor: float32 or a half on a CUDA device with Triton."""
    return handwritten.chosen.triton and HERE and x.is_cuda and x.dtype in (torch.float32, *HALVES)


def sums_in(x: Tensor) -> torch.dtype:
    """What sums are kept in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def precision(x: Tensor) -> str:
    """float32 products follow PyTorch's own switch for convolutions."""
    return "tf32" if torch.backends.cudnn.allow_tf32 or x.dtype != torch.float32 else "ieee"


def affordable(tiles: Tiles, per_row: int, once: int, memory: int) -> Tiles:
    """The same tiles with fewer stages, then fewer rows, until they fit a multiprocessor's memory.

    A stage holds `per_row` bytes for every row and `once` bytes besides; the last one is being computed on.
    """
    while tiles.stages > 1 and tiles.stages * (tiles.rows * per_row + once) > memory:
        tiles = replace(tiles, stages=tiles.stages - 1)
    while tiles.rows > 16 and tiles.stages * (tiles.rows * per_row + once) > memory:
        tiles = replace(tiles, rows=tiles.rows // 2)
    return tiles


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have; no limit in Triton's interpreter."""
    if device.type != "cuda":
        return 1 << 40
    import triton

    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])


def forward(x: Tensor, w: Tensor, bias: Tensor, gamma: Tensor, kh: int, kw: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `fused.forward`."""
    clients, images, height, width, _ = x.shape
    leaving, oh, ow = w.shape[2] // 2, height - kh + 1, width - kw + 1
    y = x.new_empty((clients, images, oh, ow, leaving))
    winners = x.new_empty((clients, images, oh // 2, ow // 2, leaving))
    return winners, y, convolve(x, w, y, kh, kw, (bias.contiguous(), gamma.contiguous(), winners))


def convolve(
    x: Tensor, w: Tensor, y: Tensor, kh: int, kw: int, pool: tuple[Tensor, Tensor, Tensor] | None = None
) -> Tensor:
    """y = conv(x, w), or for a pool conv(x, w) + b, with the winners and the tiles' statistics.

    `pool` is b, γ, and where the winners go. Statistics belong to one image, so a tile then lies within one. Without
    them, images smaller than a tile share it.
    """
    clients, images, _, width, entering = x.shape
    oh, ow, leaving = y.shape[2:]
    g = w.shape[2] // leaving
    run, rows, t = (kw + g - 1) * entering, oh * ow // g, conv_tiles(x, w, kh, pool is not None)
    units = 1 if pool is None and rows % t.rows else images
    count = images // units * rows
    tiles, across = tiles_of(t, count, w.shape[2])
    bias, gamma, winners = pool or (y, y, y)
    stats = torch.empty((clients, units, tiles, 3) if pool else 0, dtype=torch.float32, device=x.device)
    _jit().conv[(tiles, units, clients)](
        x, w, bias, gamma, y, winners, stats, x_unit=x[0].numel() // units, x_image=x[0, 0].numel(),
        x_row=width * entering, OW=ow, IMAGE=rows, ROWS=count, STEP=g * entering, COUT=leaving, G=g,
        RUN=run, K=kh * run, NT=across, POOL=pool is not None, VEC=math.gcd(width * entering, g * entering, run, 8),
        BM=min(t.rows, power(count)), BN=t.channels, BK=t.entries, STAGES=t.stages, PRECISION=precision(x),
        num_warps=t.warps,
    )  # fmt: skip
    return stats


def conv_tiles(x: Tensor, w: Tensor, kh: int, pool: bool) -> Tiles:
    """A convolution's tiles: a piece of the kernel lies in one line, unless lines are short."""
    run, own = w.shape[1] // kh, tuned(x)
    t = own.conv_flat if run % 32 else own.conv_pool if pool else own.conv
    if precision(x) == "ieee":  # multiplied number by number, in unrolled loops that must not grow too long
        t = replace(t, rows=min(t.rows, 128), entries=16)
    entries = next((e for e in (t.entries, 32, 16) if e <= t.entries and run % e == 0), min(t.entries, power(kh * run)))
    channels, size = min(t.channels, power(w.shape[2])), x.element_size()
    t = replace(t, entries=entries, channels=channels)
    return affordable(t, entries * size, entries * channels * size, shared_memory(x.device))


def tiles_of(t: Tiles, rows: int, columns: int) -> tuple[int, int]:
    """How many tiles, and how many side by side."""
    across = -(-columns // t.channels)
    return -(-rows // min(t.rows, power(rows))) * across, across


def tiles_of_image(x: Tensor, w: Tensor, kh: int, pixels: int) -> int:
    """How many tiles an image's statistics come from; a row of a tile is a pair of pixels."""
    return tiles_of(conv_tiles(x, w, kh, True), pixels // 2, w.shape[2])[0]


def backward(
    dp: Tensor,
    x: Tensor,
    turned: Tensor,
    gamma: Tensor,
    beta: Tensor,
    winners: Tensor,
    y: Tensor,
    moments: Tensor,
    kh: int,
    kw: int,
    padding: int,
    wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `fused.backward`."""
    (clients, images, oh, ow, leaving), (width, entering) = y.shape, x.shape[3:]
    gamma, beta, jit = gamma.contiguous(), beta.contiguous(), _jit()
    per_image = torch.empty((2, clients, images, leaving), dtype=torch.float32, device=x.device)
    levels = torch.empty((2, clients, images), dtype=torch.float32, device=x.device)
    of_weight, of_bias = block_parts(x, leaving, kh, kw, oh, ow, wants_x)
    db = torch.empty((of_bias, clients, leaving), dtype=torch.float32, device=x.device)
    sizes = {"WINDOWS": oh * ow // 4, "COUT": leaving, "BO": power(leaving)}
    t = tuning.sums
    jit.sums[(images, clients)](
        dp, winners, moments, gamma, beta, per_image, levels, PIXELS=oh * ow, BQ=min(t.rows, power(oh * ow // 4)),
        num_warps=t.warps, **sizes,
    )  # fmt: skip
    if not wants_x:
        t, entries = tuned(x).at_once, kh * kw * entering
        bk = min(t.entries, power(entries))
        dw = torch.empty((of_weight, clients, entries, leaving), dtype=torch.float32, device=x.device)
        jit.weight_at_once[(-(-entries // bk), of_weight, clients)](
            x, y, dp, moments, levels, gamma, beta, dw, db, images, SHARE=-(-images // of_weight),
            x_image=x[0, 0].numel(), x_row=width * entering, PW=ow // 2, CIN=entering, RUN=kw * entering, K=entries,
            BQ=min(t.rows, power(oh * ow // 4)), BK=bk, VEC=math.gcd(entering, 8), STAGES=t.stages,
            PRECISION=precision(x), num_warps=t.warps, **sizes,
        )  # fmt: skip
        return x.new_empty(0), dw, per_image, db
    margin = kh - 1 - padding
    lines, wide = oh + 2 * margin, ow + 2 * margin
    dy = x.new_empty((clients, images, lines, wide, leaving))
    tiles, rows = spread_tiles(oh * ow // 4)
    jit.spread[(tiles, images, clients)](
        y, dp, moments, levels, gamma, beta, dy, db, PW=ow // 2, MARGIN=margin, LINES=lines, WIDE=wide,
        SHARE=-(-lines * wide // tiles) if margin else 0, BQ=rows, num_warps=tuning.spread.warps, **sizes,
    )  # fmt: skip
    dw = weight(x, dy, kh, kw, margin, oh, ow)
    dx = x.new_empty((clients, images, x.shape[2] - 2 * padding, width - 2 * padding, entering))
    convolve(dy, turned.contiguous(), dx, kh, kw)
    return dx, dw, per_image, db


def weight(x: Tensor, dy: Tensor, kh: int, kw: int, margin: int, oh: int, ow: int) -> Tensor:
    """See `convolution.stacked_conv_weight`."""
    clients, images, _, width, entering = x.shape
    leaving, g, t = dy.shape[4], abreast(ow), weight_tiles(x)
    run = (kw + g - 1) * entering
    bk, bn = min(t.entries, power(kh * run)), min(t.channels, power(g * leaving))
    columns = -(-g * leaving // bn)
    tiles, rows, count = -(-kh * run // bk) * columns, oh * ow // g, parts(x, leaving, kh, kw, oh, ow)
    share = -(-images * rows // (count // g * t.rows)) * t.rows
    out = torch.empty((count, clients, kh * kw * entering, leaving), dtype=torch.float32, device=x.device)
    _jit().weight[(tiles, count // g, clients)](
        x, dy, out, images, SHARE=share, x_image=x[0, 0].numel(), x_row=width * entering, OW=ow, ROWS=rows,
        CIN=entering, COUT=leaving, G=g, RUN=run, K=kh * run, NT=columns, MARGIN=margin, LINES=dy.shape[2],
        WIDE=dy.shape[3], BM=t.rows, BN=bn, BK=bk, VEC=math.gcd(entering, 8), STAGES=t.stages,
        PRECISION=precision(x), num_warps=t.warps,
    )  # fmt: skip
    return out


def parts(x: Tensor, leaving: int, kh: int, kw: int, oh: int, ow: int) -> int:
    """In how many partial sums dw comes from `weight`, so that every multiprocessor has work."""
    clients, images, _, _, entering = x.shape
    g, t = abreast(ow), weight_tiles(x)
    entries = kh * (kw + g - 1) * entering
    tiles = -(-entries // min(t.entries, power(entries))) * -(-g * leaving // min(t.channels, power(g * leaving)))
    return g * max(1, min(tuned(x).at_a_time // (clients * tiles), images * oh * ow // (8 * g * t.rows)))


def block_parts(x: Tensor, leaving: int, kh: int, kw: int, oh: int, ow: int, wants_x: bool) -> tuple[int, int]:
    """In how many partial sums dw and db come: db has one from every program that makes dy."""
    clients, images, _, _, entering = x.shape
    if wants_x:
        return parts(x, leaving, kh, kw, oh, ow), images * spread_tiles(oh * ow // 4)[0]
    entries, splits = kh * kw * entering, 1
    tiles = -(-entries // min(tuned(x).at_once.entries, power(entries)))
    while clients * tiles * splits < BUSY and 2 * splits <= images:
        splits *= 2
    return splits, splits


def spread_tiles(windows: int) -> tuple[int, int]:
    """Into how many tiles `spread` cuts an image, and how many windows each has."""
    rows = min(tuning.spread.rows, power(windows))
    return -(-windows // rows), rows


def abreast(ow: int) -> int:
    """How many outputs a window of `weight` serves: two, where a line has pairs."""
    return 1 if ow % 2 else 2


def weight_tiles(x: Tensor) -> Tiles:
    """The tiles of `weight`, made smaller where they do not fit."""
    t, size = tuned(x).weight, x.element_size()
    return affordable(t, (t.entries + t.channels) * size, 0, shared_memory(x.device))


def power(n: int, least: int = 16) -> int:
    """The next power of two, at least what a matrix unit takes."""
    return max(least, 1 << (n - 1).bit_length())


def _jit() -> Any:
    """The kernels themselves, imported on first use."""
    return importlib.import_module("unfed.engines.compiled.triton_kernels")
