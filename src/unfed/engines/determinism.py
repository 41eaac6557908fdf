"""What lets a run on a GPU be repeated bit for bit: kernels that add in a fixed order.

A GPU may add up a gradient in whatever order its blocks finish, and a library may time its kernels and pick another one
tomorrow. Both change last bits, and a resumed run must not notice that it was interrupted.
"""

from __future__ import annotations

import os

import torch


def fixed_order(device: torch.device) -> None:
    """Ask cuDNN and cuBLAS for kernels that add in the same order every time.

    It must be called before the device's first product, because cuBLAS reads its setting once.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
