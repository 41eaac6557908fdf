"""EfficientNet-B0 (Tan and Le, ICML 2019), with torchvision's parameter names and order.

    block:  x ─► expand 1x1 ─► depthwise kxk ─► squeeze and excite ─► project 1x1 ─► (+ x, by stochastic depth)
    net:    features.0 stem ─► features.1 … features.7 stages ─► features.8 1x1 ─► average-pool ─► classifier

Parameter 0 is `features.0.0.weight`; 1,000 classes make 5,288,548 parameters. `width` and `depth` scale channels and
blocks as the paper does for B1 to B7, and `stages` keeps only the first ones, which gives the small net for tests.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unfed.errors import UnfedError


class Stage(NamedTuple):
    """Blocks of one width.

    It says how far they expand, their kernel, the first one's stride, channels in and out, and how many they are.
    """

    expand: int
    kernel: int
    stride: int
    before: int
    after: int
    blocks: int


B0 = (
    Stage(1, 3, 1, 32, 16, 1),
    Stage(6, 3, 2, 16, 24, 2),
    Stage(6, 5, 2, 24, 40, 2),
    Stage(6, 3, 2, 40, 80, 3),
    Stage(6, 5, 1, 80, 112, 3),
    Stage(6, 5, 2, 112, 192, 4),
    Stage(6, 3, 1, 192, 320, 1),
)


def channels(base: int, width: float) -> int:
    """base · width as a multiple of 8, never more than a tenth below."""
    wanted = base * width
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded


class ConvNormAct(nn.Sequential):
    """Convolution without bias, BatchNorm and, where asked for, SiLU."""

    def __init__(
        self, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
    ) -> None:
        parts = [
            nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(after),
        ]
        super().__init__(*parts, *([nn.SiLU()] if active else []))


class StochasticDepth(nn.Module):
    """Drops the branch of each row with probability `p` while training (Huang et al., ECCV 2016).

        x · keep / (1 − p)          keep ~ Bernoulli(1 − p), one draw per row

    `unfed.model.functional` swaps this layer for a keyed twin, as it does with dropout, so that a client alone and the
    same client in a stack drop the same branches.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise UnfedError(f"The probability of stochastic depth must lie in [0, 1], not {p}; use 0 for none.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        keep = torch.rand(x.shape[:1] + (1,) * (x.dim() - 1), device=x.device, dtype=x.dtype) >= self.p
        return x * keep / (1.0 - self.p) if self.p < 1.0 else torch.zeros_like(x)


class SqueezeExcitation(nn.Module):
    """Each channel is weighed by what all channels look like on average."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(width, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, width, 1)
        self.activation = nn.SiLU()
        self.scale_activation = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x)))))  # type: ignore[no-any-return]


class MBConv(nn.Module):
    """The inverted bottleneck with squeeze and excitation."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expand: int, drop: float) -> None:
        super().__init__()
        wide = channels(before * expand, 1.0) if expand != 1 else before
        parts: list[nn.Module] = [ConvNormAct(before, wide, 1)] if wide != before else []
        parts += [
            ConvNormAct(wide, wide, kernel, stride, groups=wide),
            SqueezeExcitation(wide, max(1, before // 4)),
            ConvNormAct(wide, after, 1, active=False),
        ]
        self.block = nn.Sequential(*parts)
        self.stochastic_depth = StochasticDepth(drop)
        self.shortcut = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return x + self.stochastic_depth(out) if self.shortcut else out


class EfficientNet(nn.Module):
    """The network; `features` is a submodule here, as in torchvision.

    What enters `classifier` is its pooled output.
    """

    head_name = "classifier"

    def __init__(
        self,
        width: float = 1.0,
        depth: float = 1.0,
        stages: int = 7,
        dropout: float = 0.2,
        stochastic_depth: float = 0.2,
        *,
        in_channels: int = 3,
        size: int = 224,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        if width <= 0 or depth <= 0 or not 1 <= stages <= len(B0):
            raise UnfedError(
                f"An EfficientNet needs a positive width and depth and 1 to {len(B0)} stages, not {width}, {depth} and"
                f" {stages}; B0 has 1, 1 and {len(B0)}."
            )
        if not 0 <= dropout < 1:
            raise UnfedError(f"An EfficientNet's dropout must lie in [0, 1), not {dropout}; use 0 for none.")
        plan = [stage._replace(blocks=math.ceil(stage.blocks * depth)) for stage in B0[:stages]]
        total = sum(stage.blocks for stage in plan)
        parts: list[nn.Module] = [ConvNormAct(in_channels, channels(B0[0].before, width), 3, stride=2)]
        number = 0
        for stage in plan:
            before, after = channels(stage.before, width), channels(stage.after, width)
            blocks = []
            for i in range(stage.blocks):
                # Deeper branches are dropped more often: p grows linearly from 0.
                drop = stochastic_depth * number / total
                first = i == 0
                blocks.append(
                    MBConv(
                        before if first else after,
                        after,
                        stage.kernel,
                        stage.stride if first else 1,
                        stage.expand,
                        drop,
                    )
                )
                number += 1
            parts.append(nn.Sequential(*blocks))
        last = channels(plan[-1].after, width)
        self.features = nn.Sequential(*parts, ConvNormAct(last, 4 * last, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(4 * last, classes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Convolutions by He's rule over their outputs, the head uniform over its outputs, biases zero."""
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out")
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
            elif isinstance(part, nn.Linear):
                reach = 1 / math.sqrt(part.out_features)
                nn.init.uniform_(part.weight, -reach, reach)
                nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))  # type: ignore[no-any-return]
