"""The convolutions of the fitted CNN for a stack of clients, alone: PyTorch's groups, unfold + bmm, and our kernels.

    PYTHONPATH=src python benchmarks/convolutions.py [--clients 10] [--images 64]

The median time of each product (forward, input gradient, weight gradient) in each way, in bf16, and the rate it means;
with what the same device gives to a copy and to a large matrix product in the same run. Tiles are swept by `blocks.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from triton.testing import do_bench

from unfed.engines.compiled import convolution, handwritten
from workload import attempt, write

CUDA, HALF = torch.device("cuda"), torch.bfloat16
# name: entering, leaving, side, kernel, padding
LAYERS = {"conv1": (3, 32, 32, 5, 2), "conv2": (32, 64, 16, 5, 2)}


def microseconds(work: Callable[[], object]) -> float:
    return round(float(do_bench(work, warmup=10, rep=40, return_mode="median")) * 1e3, 1)


def grouped(x: Tensor, w: Tensor, dy: Tensor, padding: int, clients: int) -> dict[str, Callable[[], object]]:
    """PyTorch's convolution with a group per client."""

    def backward(*wants: bool) -> object:
        both = [padding, padding]
        return torch.ops.aten.convolution_backward(
            dy, x, w, None, [1, 1], both, [1, 1], False, [0, 0], clients, [*wants, False]
        )

    return {
        "forward": lambda: torch.conv2d(x, w, None, 1, padding, 1, clients),
        "input": lambda: backward(True, False),
        "weight": lambda: backward(False, True),
    }


def stacked(x: Tensor, w: Tensor, dy: Tensor, padding: int, clients: int) -> dict[str, Callable[[], object]]:
    """Our operators, on images that are padded and channels-last already."""
    side = w.shape[2]
    margin = side - 1 - padding
    wide, around = convolution.padded(x, clients, padding), convolution.padded(dy, clients, margin)
    each = w.unflatten(0, (clients, -1))
    flat = each.permute(0, 3, 4, 2, 1).flatten(1, 3).contiguous()
    turned = each.flip(3, 4).permute(0, 3, 4, 1, 2).flatten(1, 3).contiguous()
    return {
        "forward": lambda: convolution.stacked_conv(wide, flat, side, side),
        "input": lambda: convolution.stacked_conv(around, turned, side, side),
        "weight": lambda: convolution.stacked_conv_weight(wide, around, side, side, margin),
    }


def layer(name: str, clients: int, images: int) -> dict[str, object]:
    entering, leaving, side, kernel, padding = LAYERS[name]
    x = torch.randn(images, clients * entering, side, side, device=CUDA, dtype=HALF)
    w = torch.randn(clients * leaving, entering, kernel, kernel, device=CUDA, dtype=HALF)
    dy = torch.randn(images, clients * leaving, side, side, device=CUDA, dtype=HALF)
    gflop = 2e-9 * clients * images * side * side * leaving * entering * kernel**2
    last = [t.to(memory_format=torch.channels_last) for t in (x, w, dy)]
    ways = {
        "grouped": grouped(x, w, dy, padding, clients),
        "grouped, channels-last": grouped(*last, padding, clients),
        "unfold": stacked(x, w, dy, padding, clients),
        "triton": stacked(x, w, dy, padding, clients),
    }
    found: dict[str, object] = {"gflop_each": round(gflop, 2)}
    for way, products in ways.items():
        handwritten.chosen = handwritten.Handwritten(triton=way == "triton")
        times = {product: microseconds(work) for product, work in products.items()}
        found[way] = {p: {"us": us, "tflops": round(gflop / us * 1e3, 1)} for p, us in times.items()}
    return found


def ceilings() -> dict[str, object]:
    a = torch.randn(2**30, device=CUDA, dtype=HALF)
    b = torch.empty_like(a)
    copy = microseconds(lambda: b.copy_(a))
    m = torch.randn(8192, 8192, device=CUDA, dtype=HALF)
    product = microseconds(lambda: m @ m)
    return {"copy TB/s": round(4 * 2**30 / copy / 1e6, 2), "matrix TFLOP/s": round(2 * 8192**3 / product / 1e6, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=64)
    options = parser.parse_args()
    rows = [attempt("ceilings", ceilings)]
    for name in LAYERS:
        rows.append(attempt(name, lambda n=name: layer(n, options.clients, options.images)))  # type: ignore[misc]
    print(write("convolutions", CUDA, {"rows": rows}))


if __name__ == "__main__":
    main()
