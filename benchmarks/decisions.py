"""Where two ways to compute a round part: which ReLU or max-pool decided otherwise, and by how little.

    python benchmarks/decisions.py --device cuda            the float32 CNN of together.py, operation by operation
    python benchmarks/decisions.py --device cpu --noise 1e-6          with noise on the convolutions of one of the ways

A stack of three federations and the three alone take the same steps on the same batches. Every ReLU's signs and every
max-pool's winners are noted below autograd, step by step. Said of the first step at which one decides otherwise: how
far the weights stood apart before it and after it, how many decisions differ, how far apart the two ways' own numbers
were there (rounding), and by how much the decision was taken (its margin). A margin within the rounding is a near-tie:
either decision is right in float32, and the gradient jumps. If the weights jump without such a decision, something else
is wrong; the command then exits with 1. A window whose largest entry is 0 sends no gradient back: it decides nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from together import SEEDS, exactly
from unfed.client.plan import Optimiser, Phase, Plan
from unfed.engines import Batched
from unfed.engines.base import Visit
from unfed.engines.compiled.capture import as_traced
from unfed.model.functional import Template
from unfed.model.params import Params, cast, params_of
from workload import synthetic

SAME = 1e-5
"""Weights that are farther apart than this have jumped (together.py's limit)."""
CLIENTS, BATCH = 4, 16


@dataclass(frozen=True)
class Decision:
    """One ReLU or max-pool of a step, of every client of a stack: [clients, …]."""

    name: str
    entered: Tensor
    chosen: Tensor
    """Signs, or winners."""
    margin: Tensor
    """By how much it was decided; infinite where it sends nothing back."""


class Notes(TorchDispatchMode):
    """Notes what is decided, for a stack of so many clients; adds noise to convolutions, if asked to."""

    def __init__(self, clients: int, noise: float = 0.0) -> None:
        super().__init__()
        self.clients, self.noise, self.found = clients, noise, list[Decision]()
        self._draw = torch.Generator().manual_seed(1)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.__name__.split(".")[0]
        if name in ("relu", "relu_"):
            self._note(Decision(name, args[0], out > 0, args[0].abs()))
        elif name == "max_pool2d_with_indices":
            self._note(Decision(name, args[0], out[1], _lead(args[0], out[0], out[1])))
        elif name == "convolution" and self.noise:
            drawn = torch.randn(out.shape, generator=self._draw, dtype=torch.float64).to(out)
            return out * (1 + self.noise * drawn)
        return out

    def _note(self, one: Decision) -> None:
        parts = (_by_client(t, self.clients) for t in (one.entered, one.chosen, one.margin))
        self.found.append(Decision(one.name, *parts))


def _lead(x: Tensor, best: Tensor, where: Tensor) -> Tensor:
    """By how much a 2 × 2 window's winner leads; a window of zeros behind a ReLU decides nothing."""
    rows, columns = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    windows = x[..., :rows, :columns].unfold(-2, 2, 2).unfold(-2, 2, 2).flatten(-2)
    top = windows.topk(2, dim=-1).values
    assert torch.equal(top[..., 0], best), "only 2 × 2 windows without padding are known here"
    return torch.where(best > 0, top[..., 0] - top[..., 1], torch.inf)


def _by_client(t: Tensor, clients: int) -> Tensor:
    """[clients, …], whichever way `vmap` folded them into the batch or the channels."""
    if t.dim() == 5:
        return t.detach()
    if t.shape[0] % clients == 0 and t.shape[0] > BATCH:
        return t.detach().reshape(clients, t.shape[0] // clients, *t.shape[1:])
    return t.detach().reshape(t.shape[0], clients, -1, *t.shape[2:]).transpose(0, 1)


def visits_of(device: torch.device, seeds: Sequence[int], lr: float) -> tuple[Batched, Callable[[int], list[Visit]]]:
    """together.py's float32 round, up to step t."""
    work = synthetic(device, clients=CLIENTS, images=700, side=16, model="cnn", batch=BATCH, dtype=torch.float32)
    template = Template(work.fresh(0), work.train.shape).to(device, torch.float32)
    engine, names = Batched(template, work.clients, compile=False), tuple(work.clients)
    engine.chunk(BATCH + 1)  # which runs the model once, before anybody takes notes
    starts = {seed: cast(params_of(work.fresh(seed)), torch.float32, device) for seed in seeds}

    def visits(steps: int) -> list[Visit]:
        phase = replace(Phase(batch=work.batch, optimiser=Optimiser(lr=lr)), steps=steps)
        return [Visit(Plan(seed, 1, (phase,)), starts[seed], names, {}) for seed in seeds]

    return engine, visits


def apart(ones: Sequence[Params], others: Sequence[Params]) -> float:
    pairs = zip(ones, others, strict=True)
    return max(float((one[n] - other[n]).abs().max()) for one, other in pairs for n in one)


def differing(together: Decision, alone: Decision) -> dict[str, Any] | None:
    """What was decided otherwise: how often, by how much, and how far the two ways' numbers were apart there."""
    counts = (together.margin < torch.inf) & (alone.margin < torch.inf)
    other = (together.chosen != alone.chosen) & counts
    if not bool(other.any()):
        return None
    rounding = (together.entered - alone.entered).abs()
    return {
        "of": together.name,
        "decisions": int(counts.sum()),
        "otherwise": int(other.sum()),
        "margin": float(torch.maximum(together.margin, alone.margin)[other].max()),
        "rounding": float(rounding.max()),
        "size": float(together.entered.abs().max()),
    }


def compared(device: torch.device, seeds: Sequence[int], lr: float, noise: float) -> dict[str, Any]:
    """The first step at which a stack of federations and the federations alone decide otherwise."""
    engine, visits = visits_of(device, seeds, lr)
    steps = -(-(700 // CLIENTS) // BATCH)
    with exactly(as_traced):
        whole, single = Notes(CLIENTS * len(seeds), noise), [Notes(CLIENTS) for _ in seeds]
        with whole:
            engine.train_together(visits(steps))
        for notes, visit in zip(single, visits(steps), strict=True):
            with notes:
                list(engine.train(visit.plan, visit.params, visit.clients, visit.context))
        per_step = len(whole.found) // steps
        first = None
        for place, together in enumerate(whole.found):
            parts = [notes.found[place] for notes in single]
            alone = Decision(
                parts[0].name,
                *(torch.cat([getattr(part, n) for part in parts]) for n in ("entered", "chosen", "margin")),
            )
            found = differing(together, alone)
            if found is not None:
                first = {"step": place // per_step + 1, **found}
                break
        line: dict[str, Any] = {"steps": steps, "lr": lr, "noise": noise, "first": first}
        if not noise:  # noise is drawn anew from the beginning, so parts of a round would be other rounds

            def at(count: int) -> float:
                together = [block.params for (block,) in engine.train_together(visits(count))]
                alone = [next(iter(engine.train(v.plan, v.params, v.clients, v.context))).params for v in visits(count)]
                return apart(together, alone)

            line["apart"] = [float(f"{at(count):.3g}") for count in range(1, steps + 1)]
    return line


def explained(line: Mapping[str, Any]) -> bool:
    """Whether nothing jumped, or the first decision that differs was within the rounding and came no later."""
    first, apart = line["first"], line.get("apart", [])
    jumped = next((t for t, far in enumerate(apart, 1) if far > SAME), None)
    if first is None:
        return jumped is None
    near = first["margin"] <= 2 * first["rounding"] <= 1e-4 * first["size"]
    return near and (jumped is None or first["step"] <= jumped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--noise", type=float, default=0.0, help="relative, on the stack's convolutions")
    parser.add_argument("--out", type=Path, help="a .jsonl that lines are appended to")
    told = parser.parse_args()
    device = torch.device(told.device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    good = True
    for lr in (0.005, 0.05):
        line = compared(device, SEEDS, lr, told.noise)
        line |= {"explained": explained(line), "hardware": where, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        print(json.dumps(line), flush=True)
        if told.out:
            with open(told.out, "a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
        good = good and bool(line["explained"])
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
