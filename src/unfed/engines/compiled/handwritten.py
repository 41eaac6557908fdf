"""Which hand-written parts a recorded step is made of: one value says it for all of them.

Runs use every part that fits. A benchmark leaves some out to see what they gain, a test to see that nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Handwritten:
    """The parts; where one is left out, PyTorch's own operations stay in its place."""

    products: bool = True
    """The convolutions of a stack as products, instead of in groups (`convolution.py`), long sums in pieces."""
    blocks: bool = True
    """Convolution, norm, ReLU and pooling as one operator, instead of layer by layer (`fused.py`)."""
    triton: bool = True
    """Triton's kernels, instead of the readable operators that say the same (`kernels.py`)."""


chosen = Handwritten()
"""What steps are recorded with from now on; one that was recorded with other parts is not replayed."""
