"""Evaluation in the precision of training, and on CUDA with the kernels of a recorded step.

A run that trains in bf16 keeps its params in float32, and evaluates in float32, layer by layer, unless its config says
`evaluation.precision = "engine"`. Then logits come out of the same products as in training.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from unfed.client.scores import Way
from unfed.engines.compiled import kernels, transformer
from unfed.engines.compiled.fused import fused_block
from unfed.model.functional import Net, Template
from unfed.model.networks.blocks import computed_by

MOST = 32_768
"""Images that the kernels take at once."""


def as_trained(template: Template) -> Way:
    """Logits as a training step computes them, without its dropout."""
    return lambda net, x: _as_in_a_step(net, x, template.autocast)


def _as_in_a_step(net: Net, x: Tensor, half: torch.dtype | None) -> Tensor:
    kind = next((t.dtype for t in net.tensors.values() if t.is_floating_point()), torch.float32)
    with nullcontext() if half is None else torch.autocast(x.device.type, half):
        if not kernels.usable(x):
            return net(x).to(kind)
        with computed_by(block=fused_block, attend=transformer.short_attention):
            return torch.cat([net(some) for some in x.split(MOST)]).to(kind)
