"""Logits of a small population on scikit-learn's digits: what attacks here were compared on with others' code.

    python benchmarks/attack_logits.py logits.npz        # about half a minute on one core

Three kinds of model, 32 of each: `before` (trained on everything), `retrain` (never saw 120 rows), `ft` (before, then
fine-tuned without them). The file holds KIND_GROUP [models, rows, classes] and labels_GROUP, in float64.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

MODELS, WIDTH = 32, 48


def begin(seed: int) -> list[Tensor]:
    """A small network with one hidden layer."""
    draw = torch.Generator().manual_seed(seed)
    first = torch.randn(64, WIDTH, generator=draw, dtype=torch.float64) / 8
    second = torch.randn(WIDTH, 10, generator=draw, dtype=torch.float64) / 7
    return [first, torch.zeros(WIDTH, dtype=torch.float64), second, torch.zeros(10, dtype=torch.float64)]


def logits(params: list[Tensor], rows: Tensor) -> Tensor:
    return torch.tanh(rows @ params[0] + params[1]) @ params[2] + params[3]


def train(params: list[Tensor], rows: Tensor, labels: Tensor, steps: int, seed: int) -> list[Tensor]:
    """SGD on batches of 128 at the rate 0.5."""
    now, draw = [p.clone().requires_grad_() for p in params], torch.Generator().manual_seed(seed + 10_000)
    for _ in range(steps):
        batch = torch.randint(len(rows), (128,), generator=draw)
        loss = torch.nn.functional.cross_entropy(logits(now, rows[batch]), labels[batch])
        slopes = torch.autograd.grad(loss, now)
        with torch.no_grad():
            for p, slope in zip(now, slopes, strict=True):
                p -= 0.5 * slope
    return [p.detach() for p in now]


def main(path: str) -> None:
    torch.set_num_threads(1)
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float64), torch.tensor(digits)
    order = torch.tensor(np.random.default_rng(0).permutation(len(y)))
    test, forget, retain = order[:600], order[600:720], order[720:]
    groups = {"forget": forget, "retain": retain[:600], "test": test}
    everything = torch.cat([retain, forget])
    found: dict[str, list[np.ndarray]] = {}
    for seed in range(MODELS):
        before = train(begin(seed), x[everything], y[everything], 600, seed)
        models = {
            "before": before,
            "retrain": train(begin(seed + 500), x[retain], y[retain], 600, seed + 500),
            "ft": train(before, x[retain], y[retain], 60, seed + 900),
        }
        for kind, params in models.items():
            for group, rows in groups.items():
                found.setdefault(f"{kind}_{group}", []).append(logits(params, x[rows]).numpy())
    labels = {f"labels_{group}": y[rows].numpy() for group, rows in groups.items()}
    np.savez(path, **{name: np.stack(values) for name, values in found.items()}, **labels)


if __name__ == "__main__":
    main(sys.argv[1])
