"""What a client minimises: named pure functions that give one loss per *sample*.

    objective(net, batch, models, **numbers) -> losses [B]

`net` is the network in training, `batch` marks its D_u rows (`batch.forget`), `models` are the frozen context models,
in eval mode. Because the losses are per sample and the rows are marked, one line serves client, class and instance
scope alike. The step takes their mean over the rows that count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from unfed.errors import UnfedError, listed, nearest

if TYPE_CHECKING:
    from unfed.local import Batch, Models
    from unfed.template import Net

Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Objective:
    """A loss, and the extra forward passes of context models that the ledger must count."""

    name: str
    loss: Loss
    forwards: int = 0
    """Context models run on every row."""
    forget_forwards: int = 0
    """Context models run on D_u rows only."""


OBJECTIVES: dict[str, Objective] = {}


def objective(name: str, *, forwards: int = 0, forget_forwards: int = 0) -> Callable[[Loss], Loss]:
    """Register a loss under the name that plans use."""

    def register(loss: Loss) -> Loss:
        OBJECTIVES[name] = Objective(name, loss, forwards, forget_forwards)
        return loss

    return register


def find(name: str) -> Objective:
    if name not in OBJECTIVES:
        raise UnfedError(
            f"The objective {name!r} is not known; use {listed(sorted(OBJECTIVES))}.{nearest(name, OBJECTIVES)}"
        )
    return OBJECTIVES[name]


@objective("ce")
def cross_entropy(net: Net, batch: Batch, models: Models) -> Tensor:
    """−log softmax(z)_y"""
    return F.cross_entropy(net(batch.x), batch.y, reduction="none")
