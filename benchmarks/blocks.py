"""The engines' own kernels on a GPU: are they right, how long do they take, which tiles are best?

    python benchmarks/blocks.py                 check, then the time of each kernel with the tiles in use
    python benchmarks/blocks.py --sweep         every candidate tile, one kernel after another

Shapes are those of the fitted CNN (10 clients x 64 images, 3 -> 32 -> 64 channels, 5x5 kernels).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from unfed.engines.compiled import fused, kernels
from unfed.engines.compiled.kernels import Tiles
from workload import write

SHAPES = {"first": (16, 32, (36, 32), (5, 1), 0, False), "second": (32, 64, (16, 16), (5, 5), 2, True)}
"""Channels in and out, sides of the input, of the kernel, padding, whether x wants a gradient. The first layer's input
comes with the five columns of three channels side by side."""

CANDIDATES = {
    "conv_flat": itertools.product((128, 256, 512), (16, 32, 64, 128), (4, 8), (1, 3)),
    "conv": itertools.product((128, 256), (32, 64), (4, 8), (2, 3, 4)),
    "weight": itertools.product((64, 128), (64, 128), (4, 8), (2, 3, 4)),
    "at_once": itertools.product((16, 32, 64), (64, 128), (2, 4, 8), (1, 2)),
    "pool": itertools.product((16, 32, 64, 128), (0,), (1, 2, 4), (1,)),
    "sums": itertools.product((8, 16, 32, 64), (0,), (2, 4, 8), (1,)),
    "spread": itertools.product((8, 16, 32), (0,), (1, 2, 4), (1,)),
}
KERNEL = {"conv_flat": ("first", "conv"), "conv": ("second", "conv"), "weight": ("second", "weight")}
KERNEL |= {"at_once": ("first", "weight_at_once")}
KERNEL |= {name: ("first", name) for name in ("pool", "sums")} | {"spread": ("second", "spread")}


class Block:
    """A convolution with its norm, ReLU and pool: tensors, and two operators on them, ours and the readable lines."""

    names = ("p", "winners", "y", "moments", "dx", "dw", "dγdβ")

    def __init__(self, name: str, dtype: torch.dtype, clients: int = 10, images: int = 64) -> None:
        entering, leaving, sides, self.kernel, self.padding, self.wants_x = SHAPES[name]
        make = torch.Generator("cuda").manual_seed(0)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return torch.randn(shape, generator=make, device="cuda") * scale

        self.x = fused.padded(draw(clients, images, *sides, entering), self.padding).to(dtype)
        self.w = draw(clients, math.prod(self.kernel) * entering, leaving, scale=0.1).to(dtype)
        self.bias, self.gamma, self.beta = (draw(clients, leaving) for _ in range(3))
        self.kept = self.forward(kernels)
        self.dp = draw(*self.kept[0].shape).to(dtype)
        each = self.w.unflatten(1, (*self.kernel, entering))
        self.turned = each.flip(1, 2).permute(0, 1, 2, 4, 3).flatten(1, 3).contiguous()

    def forward(self, how: object) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = how.forward(self.x, self.w, self.bias, self.gamma, self.beta, *self.kernel, 1e-5)  # type: ignore[attr-defined]
        return found

    def backward(self, how: object) -> tuple[Tensor, ...]:
        _, winners, y, moments = self.kept
        given = (self.dp, self.x, self.turned, self.gamma, self.beta, winners, y, moments)
        found: tuple[Tensor, ...] = how.backward(*given, *self.kernel, self.padding, self.wants_x)  # type: ignore[attr-defined]
        return found

    def differences(self) -> dict[str, float]:
        """The largest difference from the readable operators, in units of the largest value."""
        fast = (*self.forward(kernels), *self.backward(kernels))
        slow = (*self.forward(fused), *self.backward(fused))
        return {n: apart(a, b) for n, a, b in zip(self.names, fast, slow, strict=True) if b.numel()}

    def times(self, repeats: int = 10) -> dict[str, float]:
        """Microseconds of every kernel, of one forward and backward pass."""
        for _ in range(2):
            self.forward(kernels), self.backward(kernels)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(repeats):
                self.forward(kernels), self.backward(kernels)
            torch.cuda.synchronize()
        return {e.key[:60]: round(e.self_device_time_total / repeats, 2) for e in seen.key_averages()}


def apart(a: Tensor, b: Tensor) -> float:
    """Partial sums are added up first: there may be fewer of them on one side."""
    a, b = (t.sum(0) if t.dim() == 4 else t for t in (a, b))
    return float((a.float() - b.float()).abs().max() / b.float().abs().max())


def tunings(name: str) -> Iterator[tuple[Tiles, kernels.Tuning]]:
    base = kernels.Tuning()
    for rows, entries, warps, stages in CANDIDATES[name]:
        tiles = replace(getattr(base, name), rows=rows, entries=entries, warps=warps, stages=stages)
        yield tiles, replace(base, **{name: tiles})


def sweep(name: str) -> list[dict[str, object]]:
    which, kernel = KERNEL[name]
    case, rows = Block(which, torch.bfloat16), []
    for tiles, tuning in tunings(name):
        kernels.tuning = tuning
        try:
            found = case.times(5)
            rows.append({"kernel": name, "tiles": str(tiles), "us": found[kernel]})
        except Exception as error:
            rows.append({"kernel": name, "tiles": str(tiles), "failed": type(error).__name__})
    kernels.tuning = kernels.Tuning()
    rows.sort(key=lambda row: float(str(row.get("us", "inf"))))
    for row in rows[:5]:
        print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="append", nargs="?", const="all", help=f"a kernel: {', '.join(CANDIDATES)}")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    body: dict[str, object] = {}
    for name, dtype in itertools.product(SHAPES, (torch.float32, torch.bfloat16)):
        case = Block(name, dtype)
        row = {"differences": case.differences(), "microseconds": case.times()}
        body[f"{name} {dtype}"] = row
        print(name, dtype, json.dumps(row), flush=True)
    wanted = options.sweep or []
    names = list(CANDIDATES) if "all" in wanted else wanted
    if names:
        body["sweep"] = {name: sweep(name) for name in names}
    print(write("blocks", torch.device("cuda"), body))


if __name__ == "__main__":
    main()
