"""Evaluation in the precision of training, and on CUDA with the kernels of a recorded step.

A run that trains in bf16 keeps its params in float32, and evaluates in float32 unless its config says
`evaluation.precision = "engine"`. Then logits come out of the same products as in training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unfed.client.scores import Way, called
from unfed.engines.compiled import transformer
from unfed.engines.compiled.fused import fused_block
from unfed.model.functional import Net, Template
from unfed.model.networks.blocks import computed_by

MOST = 32_768
"""Images that the kernels take at once."""


def as_trained(template: Template) -> Way:
    """Logits as a training step computes them, without its dropout.

    Where a step computes in the type of the params, that is the network as it is.
    """
    half = template.autocast
    return called if half is None else lambda net, x: _halved(net, x, half)


def _halved(net: Net, x: Tensor, half: torch.dtype) -> Tensor:
    kind = next((t.dtype for t in net.tensors.values() if t.is_floating_point()), torch.float32)
    with torch.autocast(x.device.type, half):
        if not x.is_cuda:
            return net(x).to(kind)
        with computed_by(block=fused_block, attend=transformer.short_attention):
            return torch.cat([net(some) for some in x.split(MOST)]).to(kind)
