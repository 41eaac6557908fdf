"""Which engine suits a model and a device: what was measured, as a rule.

    CPU    batched while one client's step keeps at most 1.3 MB of activations
    CUDA   batched while one client's step takes at most 50 GFLOP forward
    else   sequential

A stack saves the overhead of many small operations. On two CPU cores that is worth ×2.4 (10 clients) to ×4.6 (100) on
digits, nothing at 1.5 MB per step, and a loss of ×0.5 for a 32×32 CNN at batch 64, whose activations leave the cache.
A GPU is idle under small steps: one client's step of the fitted CNN is 2 GFLOP, of ViT-B/16 at 224 it is 2,200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from unfed.data import Source
from unfed.engines.batched import kept_bytes
from unfed.errors import UnfedError
from unfed.model.flops import Flops
from unfed.model.functional import Template

CPU_BYTES = 1_300_000
CUDA_FLOPS = 50_000_000_000


@dataclass(frozen=True)
class EngineChoice:
    """An engine's name, and the reason in a few words."""

    name: Literal["sequential", "batched"]
    why: str


def choose_engine(wanted: str, template: Template, source: Source, batch: int, forward_flops: Flops) -> EngineChoice:
    """The engine that was asked for, if it can do the work; for `auto`, the one that suits."""
    if wanted == "sequential":
        return EngineChoice("sequential", "as asked")
    hindrance = _hindrance(template, source)
    if wanted == "batched":
        if hindrance:
            raise UnfedError(f'The batched engine cannot run here, because {hindrance}; set engine.name to "auto".')
        return EngineChoice("batched", "as asked")
    if wanted != "auto":
        raise UnfedError(f"The engine {wanted!r} is not known; use auto, sequential or batched.")
    return EngineChoice("sequential", hindrance) if hindrance else _suited(template, batch, forward_flops)


def _hindrance(template: Template, source: Source) -> str:
    if template.draws_its_own:
        return "the model draws random numbers of its own"
    if any(isinstance(part, nn.Embedding) and part.padding_idx is not None for part in template.module.modules()):
        # PyTorch maps an embedding without its padding: in a stack that row would learn, alone it does not.
        return "an nn.Embedding with padding_idx is not the same in a stack"
    if not source.resident:
        return "the data is not held on the device"
    return ""


def _suited(template: Template, batch: int, forward_flops: Flops) -> EngineChoice:
    device = template.device.type
    if device == "cuda":
        if isinstance(forward_flops, str):
            return EngineChoice("sequential", "what a client's step computes could not be counted")
        flops = batch * forward_flops
        said = f"one client's step is {flops / 1e9:.3g} GFLOP forward"
        return EngineChoice("batched" if flops <= CUDA_FLOPS else "sequential", said)
    if device == "cpu":
        kept = batch * kept_bytes(template)
        said = f"one client's step keeps {kept / 1e6:.2g} MB of activations"
        return EngineChoice("batched" if kept <= CPU_BYTES else "sequential", said)
    return EngineChoice("sequential", f"on {device} only this one was tried")
