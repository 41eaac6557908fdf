"""The convolutions of the paper's CNN for a stack of clients, alone: PyTorch's groups, unfold + bmm, and our kernels.

    PYTHONPATH=src python benchmarks/convolutions.py [--clients 10] [--quick]

For each product (forward, input gradient, weight gradient) and each tile size the median time of a launch is printed,
with the rate it means; the best tiles go into `unfed/engines/kernels.py` by hand. Ceilings (copy, matrix product) are
measured in the same run.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import torch
from triton.testing import do_bench

from unfed.engines import convolution, kernels
from unfed.engines.kernels import Tiles
from workload import attempt, write

CUDA = torch.device("cuda")
# name: entering, leaving, side, kernel, padding
LAYERS = {"conv1": (3, 32, 32, 5, 2), "conv2": (32, 64, 16, 5, 2)}


def microseconds(work: Callable[[], object]) -> float:
    return float(do_bench(work, warmup=10, rep=40, return_mode="median")) * 1e3


def tiles_of(product: str, quick: bool) -> list[Tiles]:
    if product == "weight":
        found = [
            (p, r, c, w, s) for p, r, c, w, s in itertools.product((32, 64, 128), (32, 64, 128), (64,), (4, 8), (3, 4))
        ]
    else:
        found = [
            (p, r, c, w, s) for p, r, c, w, s in itertools.product((64, 128, 256), (32, 64), (64,), (4, 8), (3, 5))
        ]
    return [Tiles(*t) for t in (found[::4] if quick else found)]


def layer(name: str, clients: int, images: int, quick: bool) -> dict[str, object]:
    entering, leaving, side, kernel, padding = LAYERS[name]
    x = torch.randn(images, clients * entering, side, side, device=CUDA, dtype=torch.bfloat16)
    w = torch.randn(clients * leaving, entering, kernel, kernel, device=CUDA, dtype=torch.bfloat16)
    dy = torch.randn(images, clients * leaving, side, side, device=CUDA, dtype=torch.bfloat16)
    gflop = 2e-9 * clients * images * side * side * leaving * entering * kernel**2
    margin = kernel - 1 - padding
    xp, dyp = convolution.padded(x, clients, padding).contiguous(), convolution.padded(dy, clients, margin).contiguous()
    flat = w.reshape(clients, leaving, entering, kernel, kernel).permute(0, 3, 4, 2, 1).flatten(1, 3).contiguous()
    turned = w.reshape(clients, leaving, entering, kernel, kernel).flip(3, 4).permute(0, 3, 4, 1, 2).flatten(1, 3)
    turned = turned.contiguous()
    both = [padding, padding]

    def groups(wants: list[bool]) -> Callable[[], object]:
        arguments = ([1, 1], both, [1, 1], False, [0, 0], clients, wants)
        return lambda: torch.ops.aten.convolution_backward(dy, x, w, None, *arguments)

    kernels.enabled = False
    found: dict[str, object] = {"gflop_each": round(gflop, 2)}
    found["grouped us"] = {
        "forward": microseconds(lambda: torch.conv2d(x, w, None, 1, padding, 1, clients)),
        "input": microseconds(groups([True, False, False])),
        "weight": microseconds(groups([False, True, False])),
    }
    last = torch.channels_last
    xc, wc, dyc = x.to(memory_format=last), w.to(memory_format=last), dy.to(memory_format=last)
    found["grouped channels-last us"] = {
        "forward": microseconds(lambda: torch.conv2d(xc, wc, None, 1, padding, 1, clients)),
        "weight": microseconds(
            lambda: torch.ops.aten.convolution_backward(
                dyc, xc, wc, None, [1, 1], both, [1, 1], False, [0, 0], clients, [False, True, False]
            )
        ),
    }
    found["unfold us"] = {
        "forward": microseconds(lambda: convolution.stacked_conv(xp, flat, kernel, kernel)),
        "input": microseconds(lambda: convolution.stacked_conv(dyp, turned, kernel, kernel)),
        "weight": microseconds(lambda: convolution.stacked_conv_weight(xp, dyp, kernel, kernel, margin)),
    }
    kernels.enabled = True
    products: dict[str, Callable[[Tiles, int], object]] = {
        "forward": lambda t, s: kernels.forward(xp, flat, kernel, kernel, t),
        "input": lambda t, s: kernels.forward(dyp, turned, kernel, kernel, t),
        "weight": lambda t, s: kernels.weight(xp, dyp, kernel, kernel, margin, s, t),
    }
    for product, launch in products.items():
        if name == "conv1" and product == "input":
            continue  # nobody asks for the gradient of the images
        seen = []
        for t in tiles_of(product, quick):
            for splits in (2, 4, 8) if product == "weight" and not quick else (4,):
                try:
                    seen.append((microseconds(lambda t=t, s=splits, go=launch: go(t, s)), str(t), splits))
                except Exception as error:
                    seen.append((float("inf"), f"{t}: {type(error).__name__}", splits))
        seen.sort(key=lambda entry: entry[0])
        rate = gflop / seen[0][0] * 1e3
        found[f"triton {product}"] = {"us": seen[0][0], "tflops": round(rate, 1), "best": seen[:4], "worst": seen[-1]}
    return found


def ceilings() -> dict[str, object]:
    a = torch.randn(2**30, device=CUDA, dtype=torch.bfloat16)
    b = torch.empty_like(a)
    copy = microseconds(lambda: b.copy_(a))
    m = torch.randn(8192, 8192, device=CUDA, dtype=torch.bfloat16)
    product = microseconds(lambda: m @ m)
    return {"copy TB/s": round(4 * 2**30 / copy / 1e6, 2), "matrix TFLOP/s": round(2 * 8192**3 / product / 1e6, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="a quarter of the tile sizes")
    options = parser.parse_args()
    rows = [attempt("ceilings", ceilings)]
    for name in LAYERS:
        rows.append(attempt(name, lambda n=name: layer(n, options.clients, options.images, options.quick)))  # type: ignore[misc]
    print(write("convolutions", CUDA, {"rows": rows}))


if __name__ == "__main__":
    main()
