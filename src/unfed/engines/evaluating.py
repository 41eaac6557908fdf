"""Evaluation in the precision of training, and on CUDA with the kernels of a recorded step.

A run that trains in bf16 keeps its params in float32, and evaluates in float32, layer by layer, unless its config says
`evaluation.precision = "engine"`. Then logits come out of the same products as in training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unfed.engines.compiled import kernels, transformer
from unfed.engines.compiled.fused import fused_block
from unfed.model.functional import Net
from unfed.model.networks.blocks import computed_by

MOST = 32_768
"""Images that the kernels take at once."""


def as_trained(net: Net, x: Tensor) -> Tensor:
    """Logits as a training step computes them, without its dropout: a way of `client.scores.score`."""
    net = net.as_in_training()
    if not kernels.usable(x):
        return net(x)
    with computed_by(block=fused_block, attend=transformer.short_attention):
        return torch.cat([net(some) for some in x.split(MOST)])
