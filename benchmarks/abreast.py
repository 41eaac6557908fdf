"""Candidates for the CNN's products on a GPU: windows of several neighbouring outputs, and loads that stay close by.

    python benchmarks/abreast.py                     checks, then microseconds of each candidate beside what is in use
    TRITON_INTERPRET=1 python benchmarks/abreast.py --small     the checks alone, without a GPU

A window of G neighbouring outputs of a line is KH runs of (KW + G − 1)·CI numbers, and its product has G·CO columns:

    y[m, (g, o)] = Σ x[window(m) + i·row + j] · w'[(i, j), (g, o)]        w'[(i, j), (g, o)] = w[(i, j − g·CI), o], or 0

It reads (KW + G − 1)/(KW·G) of the numbers, for (KW + G − 1)/KW of the multiplications. With G = 4 the first layer
reads padded images as they are. Loads of 8 bytes go through a multiprocessor's own cache, those of 16 around it: that
is what `piece` says. No engine uses any of this: none of it has run on a GPU yet. What is faster there belongs into
`engines/compiled/`, the rest goes. `abreast.patch` puts G = 4 into the engine's first layers, to time whole rounds.
Candidates are compiled in 14 processes first; then they run one at a time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from unfed.engines.compiled import fused, triton_kernels
from unfed.engines.compiled.kernels import power
from unfed.engines.compiled.triton_kernels import _gradients, _offsets
from workload import write

WORKERS = 14


def abreast(w: Tensor, kh: int, kw: int, g: int) -> Tensor:
    """w [C, KH·KW·I, O] for windows of g outputs: [C, KH·(KW + g − 1)·I, g·O]."""
    each = w.unflatten(1, (kh, kw, -1))
    shifted = [F.pad(each, (0, 0, 0, 0, place, g - 1 - place)) for place in range(g)]
    return torch.stack(shifted, dim=4).flatten(4).flatten(1, 3).contiguous()


def folded(dw: Tensor, kh: int, kw: int, g: int) -> Tensor:
    """The gradient for w from that for w' [C, KH·(KW + g − 1)·I, g·O]: the sum over places."""
    each = dw.unflatten(2, (g, -1)).unflatten(1, (kh, kw + g - 1, -1))
    return sum(each[:, :, place : place + kw, :, place] for place in range(g)).flatten(1, 3)


@dataclass(frozen=True)
class Tried:
    """G, bytes that a thread loads at once, tiles."""

    g: int
    piece: int
    rows: int
    entries: int
    channels: int
    warps: int
    stages: int


def convolve(x: Tensor, wide: Tensor, bias: Tensor | None, kh: int, kw: int, leaving: int, t: Tried) -> Tensor:
    """y of padded images, by the `conv` in use: only its sizes are others. With a bias also the statistics."""
    clients, images, height, width, entering = x.shape
    oh, ow, run = height - kh + 1, width - kw + 1, (kw + t.g - 1) * entering
    y = x.new_empty((clients, images, oh, ow, leaving))
    per_image, columns = oh * ow // t.g, t.g * leaving
    units = images if bias is not None or per_image % t.rows == 0 else 1
    pixels = images // units * per_image
    rows, channels = min(t.rows, power(pixels)), min(t.channels, power(columns))
    tiles = -(-pixels // rows) * -(-columns // channels)
    stats = torch.empty((clients, units, tiles, 2) if bias is not None else 0, dtype=torch.float32, device=x.device)
    triton_kernels.conv[(tiles, units, clients)](
        x, wide, y if bias is None else bias, y, stats, x_unit=x[0].numel() // units, x_image=x[0, 0].numel(),
        x_row=width * entering, OW=ow // t.g, IMAGE=per_image, PIXELS=pixels, CIN=t.g * entering, COUT=columns, RUN=run,
        K=kh * run, NT=-(-columns // channels), STATS=bias is not None, VEC=vector(x, kw, t), BM=rows, BN=channels,
        BK=min(t.entries, power(kh * run)), STAGES=t.stages, PRECISION="tf32", num_warps=t.warps,
    )  # fmt: skip
    return y


def weight(x: Tensor, dy: Tensor, kh: int, kw: int, margin: int, t: Tried, programs: int) -> Tensor:
    """Σ windows ⊗ dy in partial sums [parts, C, K' + 1, g·O], by the `weight` in use; dy has `margin` zeros around."""
    clients, images, height, width, entering = x.shape
    oh, ow, run, columns = height - kh + 1, width - kw + 1, (kw + t.g - 1) * entering, t.g * dy.shape[4]
    entries, channels = min(t.entries, power(kh * run)), min(t.channels, power(columns))
    across, pixels = -(-columns // channels), images * oh * ow // t.g
    tiles = -(-kh * run // entries) * across
    splits = max(1, programs // (clients * tiles))
    share = -(-pixels // (splits * t.rows)) * t.rows
    out = torch.empty((splits, clients, kh * run + 1, columns), dtype=torch.float32, device=x.device)
    triton_kernels.weight[(tiles, splits, clients)](
        x, dy[:, :, margin:, margin:], out, images, SHARE=share, x_image=x[0, 0].numel(), x_row=width * entering,
        OW=ow // t.g, PIXELS=oh * ow // t.g, CIN=t.g * entering, COUT=columns, RUN=run, K=kh * run, NT=across, MARGIN=0,
        LINES=dy.shape[2], WIDE=dy.shape[3] // t.g, BM=t.rows, BN=channels, BK=entries, VEC=vector(x, kw, t),
        STAGES=t.stages, PRECISION="tf32", num_warps=t.warps,
    )  # fmt: skip
    return out


def vector(x: Tensor, kw: int, t: Tried) -> int:
    """So many neighbours a thread reads at once: every line, group and run is a multiple of it."""
    entering = x.shape[4]
    return math.gcd(x.shape[3] * entering, t.g * entering, (kw + t.g - 1) * entering, t.piece // x.element_size())


@triton.jit
def weight_at_once(
    x, y, dp, moments, levels, gamma, beta, out, images, SHARE: tl.constexpr, x_image: tl.constexpr,
    x_row: tl.constexpr, PW: tl.constexpr, OW: tl.constexpr, WINDOWS: tl.constexpr, CIN: tl.constexpr,
    COUT: tl.constexpr, RUN: tl.constexpr, K: tl.constexpr, G: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    VEC: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As the one in use, for windows of G outputs: the gradients of G neighbours stand side by side."""
    split, client = tl.program_id(0), tl.program_id(1)
    all_images = images * tl.num_programs(1)
    k = tl.arange(0, BK)
    o = tl.arange(0, COUT)
    n = tl.arange(0, G * COUT)
    run = _offsets(k, x_row, RUN, K, VEC)
    scale = tl.load(gamma + client * COUT + o)
    shift = tl.load(beta + client * COUT + o)
    total = tl.zeros((BK, G * COUT), dtype=tl.float32)
    plain = tl.zeros((G * COUT,), dtype=tl.float32)
    half = x.dtype.element_ty
    for step in range(0, SHARE):
        image = split * SHARE + step
        at = (client * images + tl.minimum(image, images - 1)).to(tl.int64)
        for begin in tl.range(0, WINDOWS, BQ, num_stages=STAGES):
            q = begin + tl.arange(0, BQ)
            mask = ((q < WINDOWS) & (image < images))[:, None] & (o < COUT)[None, :]
            a, b, c, d = _gradients(
                y, dp, moments, levels, at, all_images, scale, shift, q, o, mask, PW, OW, WINDOWS, COUT
            )  # fmt: skip
            a, b = tl.where(mask, a, 0.0).to(half), tl.where(mask, b, 0.0).to(half)
            c, d = tl.where(mask, c, 0.0).to(half), tl.where(mask, d, 0.0).to(half)
            top = tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), (BQ * 2 // G, G * COUT))
            bottom = tl.reshape(tl.permute(tl.join(c, d), (0, 2, 1)), (BQ * 2 // G, G * COUT))
            group = begin * 2 // G + tl.arange(0, BQ * 2 // G)
            group = tl.where(group < WINDOWS * 2 // G, group, 0)
            base = (group // (OW // G)) * 2 * x_row + (group % (OW // G)) * (G * CIN)
            where = x + at * x_image + base[:, None] + run[None, :]
            first = tl.load(where, mask=(k < K)[None, :], other=0.0)
            second = tl.load(where + x_row, mask=(k < K)[None, :], other=0.0)
            total = tl.dot(tl.trans(first), top, total, input_precision=PRECISION)
            total = tl.dot(tl.trans(second), bottom, total, input_precision=PRECISION)
            plain += tl.sum(top.to(tl.float32) + bottom.to(tl.float32), 0)
    out += (split * tl.num_programs(1) + client).to(tl.int64) * (K + 1) * (G * COUT)
    tl.store(out + k[:, None] * (G * COUT) + n[None, :], total, mask=(k < K)[:, None])
    tl.store(out + K * (G * COUT) + n, plain)


def at_once(
    x: Tensor, y: Tensor, dp: Tensor, moments: Tensor, levels: Tensor, gamma: Tensor, beta: Tensor, kh: int, kw: int,
    t: Tried, programs: int,
) -> Tensor:  # fmt: skip
    """dw' of a first layer in partial sums, by the kernel above."""
    clients, images, _, width, entering = x.shape
    oh, ow, leaving = y.shape[2:]
    run, splits = (kw + t.g - 1) * entering, min(images, max(1, programs // clients))
    out = torch.empty((splits, clients, kh * run + 1, t.g * leaving), dtype=torch.float32, device=x.device)
    weight_at_once[(splits, clients)](
        x, y, dp, moments, levels, gamma, beta, out, images, SHARE=-(-images // splits), x_image=x[0, 0].numel(),
        x_row=width * entering, PW=ow // 2, OW=ow, WINDOWS=oh * ow // 4, CIN=entering, COUT=leaving, RUN=run,
        K=kh * run, G=t.g, BQ=t.rows, BK=power(kh * run), VEC=vector(x, kw, t), STAGES=t.stages, PRECISION="tf32",
        num_warps=t.warps,
    )  # fmt: skip
    return out


class Case:
    """Both layers of the CNN: padded images, weights, and what the readable lines make of them."""

    def __init__(self, device: str, small: bool) -> None:
        self.clients, self.images = (2, 3) if small else (10, 64)
        side, dtype = (8, torch.float32) if small else (32, torch.bfloat16)
        make = torch.Generator(device).manual_seed(0)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return torch.randn(shape, generator=make, device=device) * scale

        stack = (self.clients, self.images)
        self.x1 = fused.padded(draw(*stack, side, side, 3), 2).to(dtype)
        self.x2 = fused.padded(draw(*stack, side // 2, side // 2, 32), 2).to(dtype)
        self.w1, self.w2 = (draw(self.clients, 25 * i, o, scale=0.1).to(dtype) for i, o in ((3, 32), (32, 64)))
        self.b1, self.b2, self.gamma, self.beta = (draw(self.clients, o) for o in (32, 64, 32, 32))
        self.dp = draw(*stack, side // 2, side // 2, 32).to(dtype)
        self.dy2 = draw(*stack, side // 2, side // 2, 64).to(dtype)
        self.y1 = self.product(self.x1, self.w1, self.b1)
        forward = fused.forward(self.x1, self.w1, self.b1, self.gamma, self.beta, 5, 5, 1e-5)
        self.kept = forward[1:]
        self.turned = self.w2.unflatten(1, (5, 5, -1)).flip(1, 2).transpose(3, 4).flatten(1, 3).contiguous()
        self.around = fused.padded(self.dy2, 2)
        self.expected = cache(self._expected)

    def product(self, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        """The convolution in float32."""
        y = torch.bmm(fused.windows(x.float(), 5, 5), w.float())
        y = y if bias is None else y + bias[:, None]
        return y.view(*x.shape[:2], x.shape[2] - 4, x.shape[3] - 4, -1)

    def levels(self) -> Tensor:
        """The two means that dy needs, image by image."""
        winners, _, (mean, inverse) = self.kept
        best = (winners.float() - mean[..., None, None, None]) * inverse[..., None, None, None]
        scale, shift = (t[:, None, None, None] for t in (self.gamma, self.beta))
        dz = torch.where(best * scale + shift > 0, self.dp.float(), 0.0) * scale
        return torch.stack([(dz * best).sum((2, 3, 4)), dz.sum((2, 3, 4))]) / self.kept[1][0, 0].numel()

    def _expected(self, name: str) -> Tensor:
        if name == "first":
            return self.y1
        if name == "second":
            return self.product(self.x2, self.w2, self.b2)
        if name == "dx":
            return self.product(self.around, self.turned)
        if name == "weight":
            return torch.bmm(fused.windows(self.x2.float(), 5, 5).transpose(1, 2), self.dy2.float().flatten(1, 3))
        winners, y, moments = self.kept
        given = (self.dp, self.x1, self.w1, self.gamma, self.beta, winners, y, moments)
        return fused.backward(*given, 5, 5, 2, False)[1][0, :, :-1]

    def made(self, name: str, t: Tried, programs: int) -> Callable[[], Tensor]:
        """A candidate, ready to run: weights are spread beforehand, as a compiled step would do it."""
        if name in ("first", "second", "dx"):
            x, w, bias = {
                "first": (self.x1, self.w1, self.b1),
                "second": (self.x2, self.w2, self.b2),
                "dx": (self.around, self.turned, None),
            }[name]
            wide, beside = abreast(w, 5, 5, t.g), None if bias is None else bias.repeat(1, t.g)
            return lambda: convolve(x, wide, beside, 5, 5, w.shape[2], t)
        if name == "weight":
            return lambda: weight(self.x2, self.around, 5, 5, 2, t, programs)
        _, y, moments = self.kept
        levels = self.levels()
        return lambda: at_once(self.x1, y, self.dp, moments, levels, self.gamma, self.beta, 5, 5, t, programs)

    def apart(self, name: str, found: Tensor, t: Tried) -> float:
        """The largest difference from the readable lines, in units of the largest value."""
        right = self.expected(name)
        if name in ("weight", "at_once"):
            found = folded(found.sum(0)[:, :-1], 5, 5, t.g)
        return float((found.float() - right.float()).abs().max() / right.float().abs().max())


GRID: dict[str, tuple[tuple[int, ...], ...]] = {
    #           g       piece    rows        entries         channels   warps   stages     programs
    "first": ((2, 4), (8,), (128, 256), (32, 64, 128), (64, 128), (4, 8), (1, 2), (0,)),
    "second": ((1, 2), (8, 16), (128, 256), (32, 64), (64, 128), (8,), (2, 3, 4), (0,)),
    "dx": ((1, 2), (8, 16), (128, 256), (32, 64), (32, 64), (4, 8), (2, 3, 4), (0,)),
    "weight": ((1, 2), (8, 16), (64, 128), (64, 128, 256), (64, 128), (4, 8), (2,), (264, 512)),
    "at_once": ((2, 4), (8,), (32, 64), (0,), (0,), (4, 8), (1, 2), (132, 264, 512)),
}


def candidates(name: str) -> Iterator[tuple[Tried, int]]:
    leaving = {"first": 32, "dx": 32, "at_once": 32}.get(name, 64)
    for *own, programs in itertools.product(*GRID[name]):
        t = Tried(*own)
        if name == "at_once" or t.channels <= t.g * leaving:
            yield t, programs


def timed(run: Callable[[], Any], repeats: int = 20) -> float:
    """Microseconds on the device, many calls in one CUDA graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / repeats)
    return round(min(times), 1)


def tried(case: Case, name: str, t: Tried, programs: int, small: bool, alone: bool) -> dict[str, object]:
    """A candidate: how far from right, and how fast."""
    row: dict[str, object] = {"kernel": name, "programs": programs, **vars(t)}
    try:
        run = case.made(name, t, programs)
        found = run()
        row |= {"apart": case.apart(name, found, t)} if alone else {}
        return row if small or not alone else {**row, "us": timed(run)}
    except Exception as error:
        if small:
            raise
        return {**row, "failed": type(error).__name__}


def head(splits: int, device: str = "cuda", entering: int = 4096) -> dict[str, Callable[[], Tensor]]:
    """The last layer, 4096 features to 10 classes: few, long sums; cut into pieces, more of them run at once.

    Features come in pieces [C·S, B, 4096/S], as the kernel that flattens them would write them.
    """
    clients, rows, dtype = 10, 64, torch.bfloat16 if device == "cuda" else torch.float32
    x = torch.randn(clients * splits, rows, entering // splits, device=device).to(dtype)
    w = torch.randn(clients, entering, 10, device=device).to(dtype)
    dy = torch.randn(clients, rows, 10, device=device).to(dtype)

    def forward() -> Tensor:
        return torch.bmm(x, w.view(len(x), -1, 10)).view(clients, splits, rows, 10).sum(1)

    def weight() -> Tensor:
        each = dy[:, None].expand(-1, splits, -1, -1).reshape(len(x), rows, 10)
        return torch.bmm(x.transpose(1, 2), each).view(clients, entering, 10)

    return {"head": forward, "head weight": weight}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="check one candidate of each kind on small images")
    parser.add_argument("--only", action="append", choices=[*GRID])
    parser.add_argument("--compile", type=int, help="only compile every 14th candidate, from this one")
    options = parser.parse_args()
    alone, names = options.compile is None, options.only or list(GRID)
    if alone and not options.small:
        words = [sys.executable, __file__, *(word for name in names for word in ("--only", name)), "--compile"]
        for one in [subprocess.Popen([*words, str(part)]) for part in range(WORKERS)]:
            one.wait()
    case = Case("cpu" if options.small else "cuda", options.small)
    wanted = [(name, *own) for name in names for own in (small(name) if options.small else candidates(name))]
    rows = [tried(case, *one, options.small, alone) for one in wanted[options.compile :: WORKERS if not alone else 1]]
    for splits in (1, 2, 4, 8, 16, 32) if alone and not options.small else ():
        rows += [{"kernel": name, "splits": splits, "us": timed(run)} for name, run in head(splits).items()]
    names += ["head", "head weight"]
    for name in names if alone else ():
        own = [row for row in rows if row["kernel"] == name]
        for row in sorted(own, key=lambda row: float(str(row.get("us", "inf"))))[:8]:
            print(json.dumps(row), flush=True)
    if alone and not options.small:
        write("abreast", torch.device("cuda"), {"rows": rows})


def small(name: str) -> Iterator[tuple[Tried, int]]:
    """Few candidates, small enough for the interpreter."""
    for g in GRID[name][0]:
        yield Tried(g, 8, 32, 32, 64, 4, 1), 4


if __name__ == "__main__":
    main()
