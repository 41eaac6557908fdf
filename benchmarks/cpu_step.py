"""Other ways to compute a step of stacked clients on a CPU, beside a plain loop and the map that the engine uses.

    OMP_NUM_THREADS=1 python benchmarks/cpu_step.py            10 and 100 clients, 16 digits each, `cnn-small`

    loop        one client after another, PyTorch's own layers
    map         `torch.func.vmap` over clients, as in engines/batched.py
    products    channels last; a convolution is a product of unfolded images (`bmm`), the pool two maxima
    mixed       the same products; PyTorch's layer norm and max-pool, which has a fast path for channels last

Only forward and backward are timed: ten times, in turns, best of them. Gradients agree to 1e-6 in the mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from unfed.client.objectives import nll
from workload import add_rows

Params = dict[str, Tensor]
Loss = Callable[[Params, Tensor, Tensor], Tensor]


def one(p: Params, x: Tensor, y: Tensor) -> Tensor:
    """The loss of one client."""
    for i in "12":
        x = F.conv2d(x, p[f"w{i}"], p[f"b{i}"], padding=1)
        x = F.max_pool2d(F.group_norm(x, 1, p[f"scale{i}"], p[f"shift{i}"]).relu(), 2)
    return nll(F.linear(x.flatten(1), p["w"], p["b"]), y).mean()


def loop(p: Params, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([one({n: t[k] for n, t in p.items()}, x[k], y[k]) for k in range(len(x))]).sum()


def mapped(p: Params, x: Tensor, y: Tensor) -> Tensor:
    return torch.func.vmap(one)(p, x, y).sum()


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def maxima(x: Tensor) -> Tensor:
    rows = torch.maximum(x[:, ::2], x[:, 1::2])
    return torch.maximum(rows[:, :, ::2], rows[:, :, 1::2])


def pytorch_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)


def channels_last(norm: Callable[[Tensor], Tensor], pool: Callable[[Tensor], Tensor]) -> Loss:
    def loss(p: Params, x: Tensor, y: Tensor) -> Tensor:
        clients, rows = x.shape[:2]
        x = x.movedim(2, -1)
        for i in "12":
            side, padded = x.shape[2], F.pad(x, (0, 0, 1, 1, 1, 1))
            near = [padded[:, :, a : a + side, b : b + side] for a in range(3) for b in range(3)]
            unfolded = torch.cat(near, -1).flatten(1, 3)
            kernel = p[f"w{i}"].permute(0, 3, 4, 2, 1).flatten(1, 3)
            made = torch.baddbmm(p[f"b{i}"][:, None], unfolded, kernel)
            normed = norm(made.view(clients * rows, -1)).view_as(made)
            shown = torch.addcmul(p[f"shift{i}"][:, None], normed, p[f"scale{i}"][:, None]).relu()
            x = pool(shown.view(clients * rows, side, side, -1)).unflatten(0, (clients, rows))
        features = x.movedim(-1, 2).flatten(2)
        return nll(torch.baddbmm(p["b"][:, None], features, p["w"].mT), y).mean(1).sum()

    return loss


VARIANTS: dict[str, Loss] = {
    "loop": loop,
    "map": mapped,
    "products": channels_last(layer_norm, maxima),
    "mixed": channels_last(lambda x: F.layer_norm(x, x.shape[-1:]), pytorch_pool),
}


def main() -> None:
    torch.set_num_threads(1)
    for clients in (10, 100):
        draw = torch.Generator().manual_seed(0)
        shapes = {"w1": (16, 1, 3, 3), "b1": (16,), "scale1": (16,), "shift1": (16,), "w2": (32, 16, 3, 3), "b2": (32,)}
        shapes |= {"scale2": (32,), "shift2": (32,), "w": (10, 128), "b": (10,)}
        params = {n: 0.1 * torch.randn(clients, *s, generator=draw) for n, s in shapes.items()}
        x, y = torch.rand(clients, 16, 1, 8, 8, generator=draw), torch.arange(clients * 16).view(clients, 16) % 10
        seconds, found = dict.fromkeys(VARIANTS, float("inf")), {}
        for _ in range(10):
            for name, loss in VARIANTS.items():
                leaves = {n: t.clone().requires_grad_() for n, t in params.items()}
                began = time.perf_counter()
                found[name] = torch.autograd.grad(loss(leaves, x, y), list(leaves.values()))
                seconds[name] = min(seconds[name], time.perf_counter() - began)
        for gradients in found.values():
            apart = [(own - its).abs().mean() for own, its in zip(gradients, found["loop"], strict=True)]
            assert max(apart) < 1e-6, "rounding may switch a ReLU or a pool of a few"
        rows = [
            {"variant": n, "clients": clients, "ms": round(1e3 * s, 2), "ratio": round(seconds["loop"] / s, 2)}
            for n, s in seconds.items()
        ]
        print(*rows, sep="\n")
        add_rows("cpu-step", torch.device("cpu"), rows)


if __name__ == "__main__":
    main()
