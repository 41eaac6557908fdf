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
from torch.utils.flop_counter import flop_registry, shape_wrapper

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
    counter = _Counter()
    with torch.no_grad(), _unfused(), counter:
        template.bind(template.like)(x)
    if counter.unknown:
        return not_measured(f"no formula for {listed(sorted(counter.unknown))}")
    return counter.flops


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


_FORMULAS: dict[Any, Any] = flop_registry | {
    torch.ops.aten.mv: shape_wrapper(_of_vectors(0)),
    torch.ops.aten.addmv: shape_wrapper(_of_vectors(1)),
    torch.ops.aten.dot: shape_wrapper(_of_vectors(0)),
    torch.ops.aten.vdot: shape_wrapper(_of_vectors(0)),
}
"""PyTorch's own formulas, and products that it leaves out."""

_PRODUCTS = re.compile(
    r"(?<!_thnn_fused_)(rnn|lstm|gru)|attention|transformer|linear$|mm(_|$)|mv$|dot$|cdist|fft|linalg_(?!vector_norm)"
)
"""Operations of PyTorch's own that multiply and add, by what their names hold. All others work entry by entry, and so
do `_thnn_fused_lstm_cell` and its like, whose products come before them."""


class _Counter(TorchDispatchMode):
    """Adds up what products cost, and notices operations that may be some and have no formula.

    It counts as `torch.utils.flop_counter.FlopCounterMode` does, which cannot be used without importing PyTorch's
    compiler: that takes longer than a small training.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.unknown: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to be skipped by the compiler, PyTorch would import it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given, packet = kwargs or {}, func.overloadpacket
        if func is not torch.ops.prim.device.default:
            with self:  # an operation that is made of others, as these: each is counted
                parts = func.decompose(*args, **given)
            if parts is not NotImplemented:
                return parts
        own, name = func.namespace in ("aten", "prim", "prims"), str(packet.__name__)
        if packet not in _FORMULAS and (not own or _PRODUCTS.search(name)):
            self.unknown.add(name if own else f"{func.namespace}::{name}")
        out = func(*args, **given)
        if packet in _FORMULAS:
            self.flops += int(_FORMULAS[packet](*args, **given, out_val=out))
        return out
