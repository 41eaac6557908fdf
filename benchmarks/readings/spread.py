"""How far the weights of a fresh network spread: what a step of a fixed length is beside them.

    PYTHONPATH=src python benchmarks/readings/spread.py

The standard deviation over all weights of layers (biases and norms aside), as FCU moves and fuses them.
"""

import torch

from unfed.model.layers import weights_of
from unfed.model.networks import build

NETWORKS = {
    "resnet18": ((3, 224, 224), 10),
    "resnet-tiny": ((1, 8, 8), 10),
    "vit-b-16": ((3, 224, 224), 101),
    "vit-tiny": ((1, 8, 8), 10),
}


def spread(name: str) -> float:
    """Of one network at its first seed."""
    shape, classes = NETWORKS[name]
    module = build(name, shape=shape, classes=classes, seed=0)
    own = dict(module.named_parameters())
    return float(torch.cat([own[weight].detach().flatten() for weight in weights_of(module)]).std())


if __name__ == "__main__":
    for network in NETWORKS:
        print(f"{network}: {spread(network):.3f}")
