"""What one forward pass of a network costs, in floating-point operations: two per multiply-add."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from unfed.errors import listed
from unfed.model.functional import Template
from unfed.values import not_measured

Flops = int | str
"""A count, or the words that say why there is none."""


def forward_flops(template: Template) -> Flops:
    """FLOPs of one forward pass of one sample, two per multiply-add; or why they could not be counted.

    Counted without fused kernels, of which the counter knows nothing: of an LSTM or an encoder layer it would see the
    head behind it, and call that the whole.
    """
    x = template.blank(1)
    with (
        torch.no_grad(),
        _unfused(),
        FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter,
        _Unknown() as unknown,
    ):
        template.bind(template.like)(x)
    if unknown.operations:
        return not_measured(f"no formula for {listed(sorted(unknown.operations))}")
    return int(counter.get_total_flops())


@contextmanager
def _unfused() -> Iterator[None]:
    """Attention, recurrent layers and encoder layers as the products they are made of."""
    libraries: list[Any] = [torch.backends.cudnn, torch.backends.mkldnn]
    before, fast = [one.enabled for one in libraries], torch.backends.mha.get_fastpath_enabled()
    try:
        for one in libraries:
            one.enabled = False  # `cudnn.flags` would also set how precise products are
        torch.backends.mha.set_fastpath_enabled(False)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for one, enabled in zip(libraries, before, strict=True):
            one.enabled = enabled
        torch.backends.mha.set_fastpath_enabled(fast)


def _of_vectors(at: int) -> Any:
    """Two FLOPs for each entry of the operand at this place."""
    return lambda *shapes, **rest: 2 * prod(shapes[at])


_FORMULAS: dict[Any, Any] = {
    torch.ops.aten.mv: _of_vectors(0),
    torch.ops.aten.addmv: _of_vectors(1),
    torch.ops.aten.dot: _of_vectors(0),
    torch.ops.aten.vdot: _of_vectors(0),
}
"""Products that the counter leaves out."""

_PRODUCTS = re.compile(
    r"(?<!_thnn_fused_)(rnn|lstm|gru)|attention|transformer|linear$|mm(_|$)|mv$|dot$|cdist|fft|linalg_(?!vector_norm)"
)
"""Operations of PyTorch's own that multiply and add, by what their names hold. All others work entry by entry, and so
do `_thnn_fused_lstm_cell` and its like, whose products come before them."""


class _Unknown(TorchDispatchMode):
    """Notices operations that may multiply and add, and for which the counter has no formula."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        own = func.namespace in ("aten", "prim", "prims")
        name = str(func.overloadpacket.__name__)
        counted = func.overloadpacket in flop_registry or func.overloadpacket in _FORMULAS
        if not counted and (not own or _PRODUCTS.search(name)):
            self.operations.add(name if own else f"{func.namespace}::{name}")
        return func(*args, **(kwargs or {}))
