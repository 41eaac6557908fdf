"""The small networks: a CNN family with the paper's two presets, a perceptron, a text transformer.

    cnn                   conv1 → norm1 → ReLU → max-pool 2 → conv2 → … → [average-pool] → flatten → [hidden] → head
    mlp                   flatten ─► (hidden_i ─► ReLU)… ─► head
    transformer-small     embedding + place ─► encoder layers ─► ln ─► mean over what is no padding ─► head

The paper does not print its CNN, so the family has knobs, and the presets are those that were measured to come closest
(`cnn` on CIFAR-10, `cnn-wide` on CIFAR-100). Parameter 0 is the tensor that NoT negates: `conv1.weight`, `hidden1` or
`embedding`. The head is dropout + linear, so that features are taken before the dropout's noise. Token 0 is padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unfed.errors import UnfedError, listed, nearest
from unfed.model.calling import block
from unfed.model.networks.vit import EncoderLayer

# --- the small CNN family, with the paper's two presets in it ---------------------------------------------------------


PRESETS: dict[str, dict[str, Any]] = {
    "cnn": {"widths": (32, 64), "kernel": 5, "norm": "group", "dropout": 0.5},
    "cnn-wide": {"widths": (64, 128), "kernel": 5, "norm": "group", "pool": 4},
    "cnn-small": {"widths": (16, 32), "kernel": 3, "norm": "group"},
    "cnn-tiny": {"widths": (4, 8), "kernel": 3, "norm": "group"},
    "cnn-tiny-bn": {"widths": (4, 8), "kernel": 3, "norm": "batch"},
    "cnn-tiny-dropout": {"widths": (4, 8), "kernel": 3, "norm": "group", "dropout": 0.5},
}

NORMS: dict[str, Callable[[int, int], nn.Module]] = {
    "group": lambda channels, side: nn.GroupNorm(1, channels),
    "batch": lambda channels, side: nn.BatchNorm2d(channels),
    "layer": lambda channels, side: nn.LayerNorm([channels, side, side]),
    "none": lambda channels, side: nn.Identity(),
}


class HalvingPool(nn.MaxPool2d):
    """2×2 max-pool: the larger of two rows, then of two columns, a tenth of PyTorch's time on a CPU.

    Where a gradient is asked for it is PyTorch's own, which knows which of the four it was.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or torch.is_grad_enabled():
            return super().forward(x)  # type: ignore[no-any-return]
        high, wide = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
        rows = torch.maximum(x[..., :high:2, :wide], x[..., 1:high:2, :wide])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


class CNN(nn.Module):
    """Convolution blocks and a linear head; `features` is what enters the head."""

    head_name = "head"

    def __init__(
        self,
        widths: Sequence[int] = (32, 64),
        kernel: int = 5,
        norm: str = "group",
        pool: int = 0,
        hidden: int = 0,
        dropout: float = 0.0,
        *,
        in_channels: int = 3,
        size: int = 32,
        classes: int = 10,
    ) -> None:
        super().__init__()
        _check(kernel, norm, pool, hidden, dropout, classes)
        side = _side(widths, pool, size)
        self.depth = len(widths)
        for i, (before, width) in enumerate(zip((in_channels, *widths), widths, strict=False), start=1):
            self.add_module(f"conv{i}", nn.Conv2d(before, width, kernel, padding=kernel // 2))
            self.add_module(f"norm{i}", NORMS[norm](width, size >> (i - 1)))
            self.add_module(f"relu{i}", nn.ReLU())
            self.add_module(f"pool{i}", HalvingPool(2))
        self.average = nn.AvgPool2d(pool) if pool else nn.Identity()
        entering = widths[-1] * side**2
        self.hidden = nn.Sequential()
        if hidden:
            self.hidden.add_module("linear", nn.Linear(entering, hidden))
            self.hidden.add_module("relu", nn.ReLU())
        self.head = nn.Sequential()
        if dropout:
            self.head.add_module("dropout", nn.Dropout(dropout))
        self.head.add_module("linear", nn.Linear(hidden or entering, classes))

    def features(self, x: Tensor) -> Tensor:
        """The penultimate activations, before the head's dropout."""
        for i in range(1, self.depth + 1):
            x = block(x, *(self.get_submodule(f"{part}{i}") for part in ("conv", "norm", "relu", "pool")))
        return self.hidden(self.average(x).flatten(1))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.features(x))  # type: ignore[no-any-return]


def _check(kernel: int, norm: str, pool: int, hidden: int, dropout: float, classes: int) -> None:
    """Raise the sentence that says which number cannot be."""
    if kernel < 1 or kernel % 2 == 0:
        raise UnfedError(f"A CNN's kernel must be odd, so that 'same' padding is symmetric, not {kernel}; try 3 or 5.")
    if norm not in NORMS:
        raise UnfedError(f"There is no norm {norm!r}; choose {listed(NORMS)}.{nearest(norm, NORMS)}")
    if not 0 <= dropout < 1:
        raise UnfedError(f"A CNN's dropout must lie in [0, 1), not {dropout}; use 0 for none.")
    if classes < 1 or pool < 0 or hidden < 0:
        raise UnfedError(
            f"A CNN needs classes >= 1, pool >= 0 and hidden >= 0, not {classes}, {pool} and {hidden}; use 0 for none."
        )


def _side(widths: Sequence[int], pool: int, size: int) -> int:
    """The side of the map that is flattened, or the sentence that says what does not fit."""
    if not widths or min(widths) < 1:
        raise UnfedError(f"A CNN needs widths of at least one channel each, not {list(widths)}; try widths = [32, 64].")
    side = size >> len(widths)
    if side < 1:
        raise UnfedError(
            f"Images of {size}x{size} are too small for {len(widths)} max-poolings; use fewer widths or larger images."
        )
    if pool > side:
        raise UnfedError(f"An average-pool of {pool} does not fit the last {side}x{side} map; use {side} or less.")
    return side // pool if pool else side


# --- networks for what is no image: a perceptron for rows of numbers, a small transformer for token ids ---------------


PADDING = 0


class MLP(nn.Module):
    """Dense layers over a flattened row."""

    head_name = "head"

    def __init__(
        self, widths: Sequence[int] = (64, 64), dropout: float = 0.0, *, shape: Sequence[int], classes: int
    ) -> None:
        super().__init__()
        if not widths or min(widths) < 1:
            raise UnfedError(f"An MLP needs widths of at least one unit each, not {list(widths)}; try widths = [64].")
        self.depth = len(widths)
        for i, (before, width) in enumerate(zip((math.prod(shape), *widths), widths, strict=False), 1):
            self.add_module(f"hidden{i}", nn.Linear(before, width))
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = x.flatten(1)
        for i in range(1, self.depth + 1):
            x = self.get_submodule(f"hidden{i}")(x).relu()
        return self.head(self.dropout(x))  # type: ignore[no-any-return]


class TextTransformer(nn.Module):
    """A transformer that reads token ids and classifies the whole of them."""

    head_name = "head"

    def __init__(
        self,
        vocabulary: int = 4096,
        width: int = 32,
        depth: int = 1,
        heads: int = 2,
        dropout: float = 0.1,
        *,
        shape: Sequence[int],
        classes: int,
    ) -> None:
        super().__init__()
        if len(shape) != 1:
            raise UnfedError(f"A text transformer reads rows of token ids [length], not {tuple(shape)}; tokenise them.")
        if width % heads:
            raise UnfedError(f"A text transformer's width {width} must be a multiple of its {heads} heads.")
        self.embedding = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.empty(shape[0], width).normal_(std=0.02))
        self.layers = nn.Sequential(*(EncoderLayer(width, heads, 2 * width, dropout) for _ in range(depth)))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        read = (ids != PADDING)[..., None]
        x = self.ln(self.layers(self.embedding(ids) + self.place))
        mean = (x * read).sum(-2) / read.sum(-2).clamp(min=1)
        return self.head(mean)  # type: ignore[no-any-return]
