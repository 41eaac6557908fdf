"""Which engine suits a model and a device, what makes runs repeatable, and evaluation as in training.

    CPU    batched while one client's step keeps at most 1.3 MB of activations
    CUDA   batched while one client's step takes at most 50 GFLOP forward
    else   sequential

A stack saves the overhead of many small operations. On two CPU cores that is worth ×2.4 (10 clients) to ×4.6 (100) on
digits, nothing at 1.5 MB per step, and a loss of ×0.5 for a 32×32 CNN at batch 64, whose activations leave the cache.
A GPU is idle under small steps: one client's step of the fitted CNN is 2 GFLOP, of ViT-B/16 at 224 it is 2,200.

To repeat a run bit for bit, sums must be added in a fixed order and one library must be used to the end. A GPU may add
up a gradient in whatever order its blocks finish, a library may time its kernels and pick another one tomorrow, and
PyTorch gives a library up for good at the first product that it refuses.

A run in bf16 keeps its params in float32. `evaluation.precision = "engine"` evaluates by the products of training.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unfed.data import Source
from unfed.engines.batched import kept_bytes
from unfed.engines.compiled import kernels
from unfed.engines.compiled.fused import fused_block
from unfed.errors import UnfedError
from unfed.model.calling import computed_by
from unfed.model.functional import Flops, Net, Template

# --- which engine suits a model and a device: what was measured, as a rule --------------------------------------------


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


# --- what lets a run be repeated bit for bit: a fixed order of adding, and one library to the end ---------------------


def fixed_order(device: torch.device) -> None:
    """Ask cuDNN and cuBLAS for kernels that add in the same order every time.

    It must be called before the device's first product, because cuBLAS reads its setting once.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def fixed_library(device: torch.device, half: torch.dtype | None) -> None:
    """Leave oneDNN out from the beginning where training multiplies bf16 on a CPU that has none.

    `half` is the type of training's products, where it is not the params' own. PyTorch would ask oneDNN for the first
    of them, be refused, warn with a screen of C++ frames and switch oneDNN off for the rest of the process: float32
    products before and after would differ in their last bits.
    """
    if device.type == "cpu" and half is torch.bfloat16 and not has_bf16():
        backend: Any = torch.backends.mkldnn
        backend.enabled = False


def has_bf16() -> bool:
    """Whether oneDNN multiplies bf16 on this CPU, or is not there to be asked."""
    return not torch.backends.mkldnn.is_available() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


# --- evaluation in the precision of training, and on CUDA with the kernels of a recorded step -------------------------


MOST = 32_768
"""Images that the kernels take at once."""


def as_trained(net: Net, x: Tensor) -> Tensor:
    """Logits as a training step computes them, without its dropout: a way of `client.scores.score`."""
    net = net.as_in_training()
    if not kernels.usable(x):
        return net(x)
    with computed_by(block=fused_block):
        return torch.cat([net(some) for some in x.split(MOST)])
