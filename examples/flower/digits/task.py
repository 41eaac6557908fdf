"""The model and the data, as any Flower app has them."""

import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Sequential):
    """A small CNN for 8×8 images."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 10),
        )


def data(partition: int, partitions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every n-th image."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    return x[partition::partitions], y[partition::partitions]


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, lr: float = 0.1) -> float:
    """One epoch of SGD."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    loss = torch.zeros(())
    for rows in torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split(32):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimiser.step()
    return loss.item()


@torch.no_grad()
def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """The share of images that are read right."""
    return float((model.eval()(x).argmax(1) == y).float().mean())
