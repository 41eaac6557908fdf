"""Networks of many kinds in a size for 8x8 digits: for ablations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 24


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two hidden layers of 64."""
    entering = shape[0] * shape[1] * shape[2]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(entering, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes)
    )


class _Channels(nn.Module):
    """A layer norm over the channels of images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return found


class _ConvNeXtBlock(nn.Module):
    """x + pw2(GELU(pw1(LN(depthwise(x)))))"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = _Channels(width)
        self.pw1, self.pw2 = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.pw2(F.gelu(self.pw1(self.norm(self.depthwise(x)))))
        return found


class ConvNeXt(nn.Module):
    """A patch stem, blocks, a down-sampling, blocks, a head."""

    head_name = "head"

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(channels, WIDTH, 2, stride=2), _Channels(WIDTH)
        self.block1 = _ConvNeXtBlock(WIDTH)
        self.down = nn.Conv2d(WIDTH, 2 * WIDTH, 2, stride=2)
        self.block2 = _ConvNeXtBlock(2 * WIDTH)
        self.norm, self.head = nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block2(self.down(self.block1(self.stem_norm(self.stem(x)))))
        found: Tensor = self.head(self.norm(x.mean((2, 3))))
        return found


def convnext(shape: tuple[int, ...], classes: int) -> nn.Module:
    return ConvNeXt(shape[0], classes)


class _MixerBlock(nn.Module):
    """x + tokens(LN(x)), then x + channels(LN(x))"""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens1, self.tokens2 = nn.Linear(length, 2 * length), nn.Linear(2 * length, length)
        self.channels1, self.channels2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens2(F.gelu(self.tokens1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
        found: Tensor = x + self.channels2(F.gelu(self.channels1(self.norm2(x))))
        return found


class Mixer(nn.Module):
    """Patches of 2x2, two blocks, a head."""

    head_name = "head"

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, WIDTH, 2, stride=2)
        self.block1, self.block2 = (_MixerBlock((size // 2) ** 2, WIDTH) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block2(self.block1(self.patches(x).flatten(2).transpose(1, 2)))
        found: Tensor = self.head(self.norm(x).mean(1))
        return found


def mixer(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Mixer(shape[0], shape[1], classes)


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        found: Tensor = self.out(weights @ v)
        return found


class TextTransformer(nn.Module):
    """Grey values of 2x2 places as words: an embedding, positions, one layer, a head."""

    head_name = "head"

    def __init__(self, length: int, classes: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(17, WIDTH), nn.Embedding(length, WIDTH)
        self.norm1, self.attention = nn.LayerNorm(WIDTH), _Attention(WIDTH)
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(length * WIDTH), nn.Linear(length * WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        places = F.avg_pool2d(x, 2).flatten(1)
        words = ((places + 0.81) * 6).round().clamp(0, 16).long()  # 17 grey values, as they come standardised
        x = self.embedding(words) + self.positions.weight
        x = x + self.attention(self.norm1(x))
        x = x + self.down(torch.relu(self.up(self.norm2(x))))
        found: Tensor = self.head(self.norm(x.flatten(1)))
        return found


def text(shape: tuple[int, ...], classes: int) -> nn.Module:
    return TextTransformer(shape[0] * shape[1] * shape[2] // 4, classes)
