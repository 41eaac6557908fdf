"""How far does rounding carry in one round? Noise on the convolutions of the equality check, against none, on the CPU.

    python benchmarks/near_ties.py

A max-pool or a ReLU decides between two numbers. Where they are nearly equal, noise decides, and the gradient takes
another way: a jump that does not shrink with the noise that caused it. This is why float32 engines can differ by 1e-3
after a round on a device whose convolutions are right to 1e-6, at the learning rate of the check (0.05), and why the
check judges float32 at a tenth of it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unfed.client.plan import Optimiser, Phase, Plan
from unfed.engines import Batched, Engine, Sequential
from unfed.federation import aggregate
from unfed.model.functional import Template
from unfed.model.params import Params
from workload import synthetic, write


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
        exact = one_round(torch.float64, lr)
        row: dict[str, object] = {
            "lr": lr,
            "float32 sequential": distance(exact, one_round(torch.float32, lr)),
            "float32 batched": distance(exact, one_round(torch.float32, lr, stacked=True)),
        }
        for noise in (1e-8, 1e-7, 1e-6, 1e-5):
            row[f"noise {noise:g}"] = distance(exact, one_round(torch.float64, lr, noise))
        print({name: f"{value:.2g}" for name, value in row.items()}, flush=True)
        rows.append(row)
    print(write("near-ties", torch.device("cpu"), {"rows": rows}))


if __name__ == "__main__":
    main()
