"""How far does rounding carry in one round? Noise on the convolutions of the equality check, against none, on the CPU.

    python benchmarks/near_ties.py

A max-pool or a ReLU decides between two numbers. Where they are nearly equal, noise decides, and the gradient takes
another way: a jump that does not shrink with the noise that caused it. This is why float32 engines can differ by 1e-3
after a round on a device whose convolutions are right to 1e-6, at the learning rate of the check (0.05), and why the
check judges float32 at a tenth of it. That it is the decisions and nothing else: in the rows "decided alike" the noise
is there too, but every ReLU's sign and every max-pool's winner is that of the round without noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unfed.client.plan import Optimiser, Phase, Plan
from unfed.engines import Batched, Engine, Sequential
from unfed.federation import aggregate
from unfed.model.functional import Template
from unfed.model.params import Params
from workload import synthetic, write


class Decisions(TorchDispatchMode):
    """Notes the signs of ReLUs and the winners of max-pools, or decides as was noted."""

    def __init__(self, noted: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.found, self._noted = list[Tensor](), None if noted is None else iter(noted)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out, name = func(*args, **(kwargs or {})), func.__name__.split(".")[0]
        if name == "relu":
            if self._noted is not None:
                # Its gradient looks at the sign of what comes out, so what is let through must be above 0.
                return torch.where(next(self._noted), args[0].abs().clamp_min(1e-300), 0.0)
            self.found.append(out > 0)
        elif name == "max_pool2d_with_indices":
            if self._noted is not None:
                winners = next(self._noted)
                return args[0].flatten(-2).gather(-1, winners.flatten(-2)).view_as(winners), winners
            self.found.append(out[1])
        return out


def one_round(dtype: torch.dtype, lr: float, noise: float = 0.0, stacked: bool = False) -> Params:
    """One round of the equality check's federation, every convolution's output off by `noise`, relatively."""
    work = synthetic(torch.device("cpu"), clients=4, images=700, side=16, model="cnn", batch=16, beta=0.3, dtype=dtype)
    template = work.template()
    if noise:
        _disturb(template, noise)
    engine: Engine = Batched(template, work.clients) if stacked else Sequential(template, work.clients, compile=False)
    plan = Plan(5, 1, (Phase(batch=work.batch, optimiser=Optimiser(lr=lr)),))
    blocks = list(engine.train(plan, work.params(), list(work.clients), {}))
    order = {name: place for place, name in enumerate(work.clients)}
    return aggregate.average(work.params(), sorted(blocks, key=lambda block: order[block.clients[0]]))


def _disturb(template: Template, noise: float) -> None:
    draw = torch.Generator().manual_seed(1)

    def off(_: nn.Module, __: object, out: Tensor) -> Tensor:
        return out * (1 + noise * torch.randn(out.shape, generator=draw, dtype=out.dtype))

    for part in template._trainer.modules():
        if isinstance(part, nn.Conv2d):
            part.register_forward_hook(off)


def distance(a: Params, b: Params) -> float:
    return max(float((a[n].double() - b[n].double()).abs().max()) for n in a)


def main() -> None:
    rows = []
    for lr in (0.05, 0.005):
        with Decisions() as noted:
            exact = one_round(torch.float64, lr)
        row: dict[str, object] = {
            "lr": lr,
            "float32 sequential": distance(exact, one_round(torch.float32, lr)),
            "float32 batched": distance(exact, one_round(torch.float32, lr, stacked=True)),
        }
        for noise in (1e-8, 1e-7, 1e-6, 1e-5):
            row[f"noise {noise:g}"] = distance(exact, one_round(torch.float64, lr, noise))
            with Decisions(noted.found):
                row[f"noise {noise:g}, decided alike"] = distance(exact, one_round(torch.float64, lr, noise))
        print({name: f"{value:.2g}" for name, value in row.items()}, flush=True)
        rows.append(row)
    print(write("near-ties", torch.device("cpu"), {"rows": rows}))


if __name__ == "__main__":
    main()
