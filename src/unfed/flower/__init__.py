"""Flower: the same unlearning on real, separate machines.

    unfed flower init DIR; flwr run DIR        unfed's own app: train, unlearn, evaluate, resume (server.py, client.py)
    Unlearn(factory, perturb, exclude, ledger) forget a client in an app you already have (unlearn.py, leaving.py)
    introduce(ClientApp())                     let its clients say who they are (introduction.py)
    staying_rows(message, labels)              what its clients may train on where a class leaves (introduction.py)
    led_by, teacher_in, hinted                 start over in it, led by a teacher's features (led.py)
    GridTransport                              Flower's grid as a transport; what it carries is unfed.remote's

Needs the extra `flower`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unfed.flower.introduction import introduce, introduce_mod, staying_rows
    from unfed.flower.leaving import denied, node_with, of_class, registered
    from unfed.flower.led import hinted, led_by, teacher_in
    from unfed.flower.subset import SubsetGrid
    from unfed.flower.unlearn import Unlearn
    from unfed.remote.negating import negate, negate_arrays
    from unfed.remote.probes import Probes

_WHERE = {
    "flower.unlearn": ("Unlearn",),
    "remote.negating": ("negate", "negate_arrays"),
    "remote.probes": ("Probes",),
    "flower.introduction": ("introduce", "introduce_mod", "staying_rows"),
    "flower.led": ("hinted", "led_by", "teacher_in"),
    "flower.leaving": ("denied", "node_with", "of_class", "registered"),
    "flower.subset": ("SubsetGrid",),
}
__all__ = [
    "Probes",
    "SubsetGrid",
    "Unlearn",
    "denied",
    "hinted",
    "introduce",
    "introduce_mod",
    "led_by",
    "negate",
    "negate_arrays",
    "node_with",
    "of_class",
    "registered",
    "staying_rows",
    "teacher_in",
]


def __getattr__(name: str) -> Any:
    # Loaded when used: a client's process starts again for every message and needs next to nothing of it.
    for module, names in _WHERE.items():
        if name in names:
            return getattr(importlib.import_module(f"unfed.{module}"), name)
    raise AttributeError(f"module 'unfed.flower' has no attribute {name!r}")
