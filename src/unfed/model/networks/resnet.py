"""ResNet-18 (He et al., CVPR 2016), with torchvision's parameter names and order.

    block:  x ─► conv1 ─► bn1 ─► relu ─► conv2 ─► bn2 ─► (+ x, or downsample(x)) ─► relu
    net:    conv1 7x7/2 ─► bn1 ─► relu ─► max-pool 3/2 ─► layer1 … layer4 ─► average-pool ─► fc

Parameter 0 is `conv1.weight`. Ten classes make 11,181,642 parameters. Any number of layers may be asked for; the first
keeps the size, each other one halves it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from unfed.errors import UnfedError


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + shortcut)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A residual network of basic blocks; `features` is what enters `fc`."""

    head_name = "fc"

    def __init__(
        self,
        widths: Sequence[int] = (64, 128, 256, 512),
        blocks: Sequence[int] = (2, 2, 2, 2),
        *,
        in_channels: int = 3,
        size: int = 224,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        if not widths or len(widths) != len(blocks) or min(*widths, *blocks) < 1:
            raise UnfedError(
                f"A ResNet needs as many blocks as widths, each at least 1, not {list(blocks)} and {list(widths)}; try"
                " [2, 2, 2, 2] and [64, 128, 256, 512]."
            )
        self.depth = len(widths)
        self.conv1 = nn.Conv2d(in_channels, widths[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        before = widths[0]
        for i, (width, count) in enumerate(zip(widths, blocks, strict=True), start=1):
            first = BasicBlock(before, width, stride=1 if i == 1 else 2)
            self.add_module(f"layer{i}", nn.Sequential(first, *(BasicBlock(width, width, 1) for _ in range(count - 1))))
            before = width
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Convolutions by He's rule over their outputs, as torchvision does.

        The rest keeps PyTorch's own rules.
        """
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """The pooled activations of the last layer."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for i in range(1, self.depth + 1):
            x = self.get_submodule(f"layer{i}")(x)
        return self.avgpool(x).flatten(1)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(self.features(x))  # type: ignore[no-any-return]
