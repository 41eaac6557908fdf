"""The engines' own kernels on a GPU: are they right, how long do they take, which tiles are best?

    python benchmarks/blocks.py                 check, then the time of each kernel with the tiles in use
    python benchmarks/blocks.py --sweep         every candidate tile, one kernel after another

Shapes are those of the fitted CNN (10 clients x 64 images, 3 -> 32 -> 64 channels, 5x5 kernels).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from unfed.engines.compiled import fused, kernels
from unfed.engines.compiled.kernels import Tiles
from workload import write

SHAPES = {"first": (4, 32, 32, False), "second": (32, 64, 16, True)}
"""Channels in and out, side of the images, whether x wants a gradient; the first layer's third channel is padded."""
KERNEL, PADDING = 5, 2

CANDIDATES = {
    "conv_flat": itertools.product((64, 128, 256), (32, 64, 128), (64,), (4, 8), (1, 2)),
    "conv_pool": itertools.product((64, 128, 256), (32, 64), (64, 128), (4, 8), (2, 3, 4)),
    "conv": itertools.product((128, 256), (32, 64), (64,), (4, 8), (2, 3, 4)),
    "weight": itertools.product((32, 64, 128), (64, 128), (64, 128), (4, 8), (2, 3)),
    "at_once": itertools.product((16, 32, 64), (64, 128), (64,), (2, 4, 8), (1, 2)),
    "sums": itertools.product((8, 16, 32, 64), (0,), (64,), (2, 4, 8), (1,)),
    "spread": itertools.product((8, 16, 32), (0,), (64,), (1, 2, 4), (1,)),
}
LAUNCHED = {"conv_flat": ("first", "conv"), "conv_pool": ("second", "conv"), "conv": ("second", "conv")}
LAUNCHED |= {"at_once": ("first", "weight_at_once"), "sums": ("first", "sums")}
LAUNCHED |= {name: ("second", name) for name in ("weight", "spread")}
"""By tiles: the layer that is timed, and the kernel. The second layer's `conv` runs forward and backward."""


class Block:
    """A convolution with its norm, ReLU and pool: tensors, and two operators on them, ours and the readable lines."""

    names = ("winners", "y", "moments", "dx", "dw", "dγdβ", "db")

    def __init__(self, name: str, dtype: torch.dtype, clients: int = 10, images: int = 64) -> None:
        entering, leaving, side, self.wants_x = SHAPES[name]
        make = torch.Generator("cuda").manual_seed(0)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return torch.randn(shape, generator=make, device="cuda") * scale

        self.x = fused.padded(draw(clients, images, side, side, entering), PADDING).to(dtype)
        w = draw(clients, KERNEL, KERNEL, entering, leaving, scale=0.1).to(dtype)
        self.w, self.turned = fused.in_pairs(w), fused.in_pairs(w.flip(1, 2).transpose(3, 4))
        self.bias, self.gamma, self.beta = (draw(clients, leaving) for _ in range(3))
        self.kept = self.forward(kernels)
        self.dp = draw(*self.kept[0].shape).to(dtype)

    def forward(self, how: object) -> tuple[Tensor, ...]:
        winners, y, statistics = how.forward(self.x, self.w, self.bias, self.gamma, KERNEL, KERNEL)  # type: ignore[attr-defined]
        return winners, y, fused.moments_of(statistics, 1e-5)

    def backward(self, how: object) -> tuple[Tensor, ...]:
        given = (self.dp, self.x, self.turned, self.gamma, self.beta, *self.kept, KERNEL, KERNEL, PADDING, self.wants_x)
        found: tuple[Tensor, ...] = how.backward(*given)  # type: ignore[attr-defined]
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
    a, b = (t.sum(0) if a.shape != b.shape else t for t in (a, b))
    return float((a.float() - b.float()).abs().max() / b.float().abs().max())


def tunings(name: str) -> Iterator[tuple[Tiles, kernels.Tuning]]:
    base = kernels.Tuning()
    for rows, entries, channels, warps, stages in CANDIDATES[name]:
        tiles = Tiles(rows, entries, channels, warps, stages)
        yield tiles, replace(base, **{name: tiles})


def sweep(name: str) -> list[dict[str, object]]:
    which, kernel = LAUNCHED[name]
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
