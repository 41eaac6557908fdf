"""ViT-B/16 (Dosovitskiy et al., ICLR 2021), with torchvision's parameter names and order.

    conv_proj cuts the image into patches ─► class token in front ─► + pos_embedding ─► encoder layers ─► ln ─► heads
    layer:  x ─► + self_attention(ln_1(x)) ─► + mlp(ln_2(x))

Parameter 0 is `class_token`, 1 is `conv_proj.weight`, the tensor the paper negates. `in_proj_weight` holds query, key
and value one below the other, so its rows [0:width] are the queries. 101 classes make 85,876,325 parameters.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unfed.errors import UnfedError


class Patches(nn.Conv2d):
    """A convolution whose windows do not overlap, as the one matrix product that it is.

    Libraries treat it as any convolution, and spend most of its time on bringing images into another layout.
    """

    def __init__(self, entering: int, width: int, patch: int) -> None:
        super().__init__(entering, width, patch, stride=patch)

    def forward(self, input: Tensor) -> Tensor:
        (images, channels, height, width), patch = input.shape, self.kernel_size[0]
        cut = input.reshape(images, channels, height // patch, patch, width // patch, patch)
        patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(3)
        return F.linear(patches, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


class SelfAttention(nn.MultiheadAttention):
    """PyTorch's multi-head attention of a sequence with itself, spelled out.

    The parent gives the parameters, their names and their initialisation. Its own forward takes a fused kernel in eval
    mode that neither `vmap` nor the FLOP counter knows, so what it stands for is written here.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        rows, length, width = x.shape
        projected = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        query, key, value = projected.view(rows, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(rows, length, width)
        return self.out_proj(attended)  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Attention and a two-layer perceptron, each behind a normalisation and beside a shortcut."""

    def __init__(self, width: int, heads: int, mlp: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = SelfAttention(width, heads)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp, width), nn.Dropout(dropout)
        )

    def reset_parameters(self) -> None:
        """The perceptron by Xavier's rule, with next to no bias."""
        for part in self.mlp:
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight)
                nn.init.normal_(part.bias, std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attention(self.ln_1(x)))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """The position embedding, the layers, the last normalisation."""

    def __init__(self, length: int, depth: int, heads: int, width: int, mlp: int, dropout: float) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, length, width))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential()
        for i in range(depth):
            self.layers.add_module(f"encoder_layer_{i}", EncoderLayer(width, heads, mlp, dropout))
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.pos_embedding, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(self.layers(self.dropout(x + self.pos_embedding)))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """A vision transformer; `features` is the class token behind the last normalisation."""

    head_name = "heads"
    # The published checkpoints were written before torchvision named the perceptron's layers by their place.
    old_names = ((".mlp.linear_1.", ".mlp.0."), (".mlp.linear_2.", ".mlp.3."))

    def __init__(
        self,
        patch: int = 16,
        depth: int = 12,
        heads: int = 12,
        width: int = 768,
        mlp: int = 3072,
        dropout: float = 0.0,
        *,
        in_channels: int = 3,
        size: int = 224,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        if min(patch, depth, heads, width, mlp) < 1 or width % heads:
            raise UnfedError(
                f"A ViT needs values of at least 1 and a width that heads divides, not patch={patch}, depth={depth},"
                f" heads={heads}, width={width}, mlp={mlp}; try 16, 12, 12, 768, 3072."
            )
        if size % patch:
            raise UnfedError(
                f"Images of {size}x{size} cannot be cut into patches of {patch}x{patch}; set data.crop to a multiple of"
                f" {patch}, or patch to a divisor of {size}."
            )
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.conv_proj = Patches(in_channels, width, patch)
        self.encoder = Encoder((size // patch) ** 2 + 1, depth, heads, width, mlp, dropout)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes)))
        # The whole follows its parts, as `unfed.model.networks.reset` calls them.
        for part in reversed(list(self.modules())):
            if isinstance(part, (EncoderLayer, Encoder, VisionTransformer)):
                part.reset_parameters()

    def reset_parameters(self) -> None:
        """The patch projection by a truncated normal over its inputs; class token and head start at zero."""
        inputs = self.conv_proj.weight[0].numel()
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / inputs))
        head = self.heads.get_submodule("head")
        assert isinstance(head, nn.Linear) and self.conv_proj.bias is not None
        for zero in (self.conv_proj.bias, self.class_token, head.weight, head.bias):
            nn.init.zeros_(zero)

    def features(self, x: Tensor) -> Tensor:
        """The class token after the last layer."""
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1)
        return self.encoder(tokens)[:, 0]  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.heads(self.features(x))  # type: ignore[no-any-return]
