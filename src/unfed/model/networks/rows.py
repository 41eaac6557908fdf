"""Networks for what is no image: a perceptron for rows of numbers, a small transformer for token ids.

    mlp                   flatten ─► (hidden_i ─► ReLU)… ─► head
    transformer-small     embedding + place ─► encoder layers ─► ln ─► mean over what is no padding ─► head

Token 0 is padding. NoT's `first` is `hidden1` here and `embedding` there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unfed.errors import UnfedError
from unfed.model.networks.vit import EncoderLayer

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
