"""What lets a run be repeated bit for bit: a fixed order of adding, and one library to the end.

A GPU may add up a gradient in whatever order its blocks finish, a library may time its kernels and pick another one
tomorrow, and PyTorch gives a library up for good at the first product that it refuses. All of these change last bits,
and a resumed run must not notice that it was interrupted.
"""

from __future__ import annotations

import os
from typing import Any

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
