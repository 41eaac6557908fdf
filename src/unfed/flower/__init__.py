"""Flower: the same unlearning on real, separate machines.

    unfed flower init DIR; flwr run DIR        unfed's own app: train, unlearn, evaluate, resume (server.py, client.py)
    Unlearn(factory, perturb, exclude)         forget a client in an app you already have (existing.py)
    unfed.engines.flower.Flower                the engine contract over Flower's grid

Needs `pip install unfed[flower]`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unfed.flower.existing import SubsetGrid, Unlearn, negate, registered

__all__ = ["SubsetGrid", "Unlearn", "negate", "registered"]


def __getattr__(name: str) -> Any:
    # Loaded when used: a client's process starts anew for every message and needs none of it.
    if name in __all__:
        return getattr(importlib.import_module("unfed.flower.existing"), name)
    raise AttributeError(f"module 'unfed.flower' has no attribute {name!r}")
