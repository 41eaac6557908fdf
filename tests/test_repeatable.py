"""Settings of the process that make a run repeatable, and that they do not outlive it."""

from __future__ import annotations

import torch

from unfed.engines.determinism import fixed_order
from unfed.runs.world import process_as_before


def test_kernels_of_a_fixed_order_are_asked_for_on_cuda_only() -> None:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    with process_as_before():
        cudnn.deterministic, cudnn.benchmark = False, True
        fixed_order(torch.device("cpu"))
        assert (cudnn.deterministic, cudnn.benchmark) == (False, True)
        fixed_order(torch.device("cuda"))
        assert (cudnn.deterministic, cudnn.benchmark) == (True, False)
    assert (cudnn.deterministic, cudnn.benchmark) == before
