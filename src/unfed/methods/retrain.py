"""Retrain: start afresh without D_u.

This is exact unlearning, and what every other method is measured against.

    begin: θ ← a fresh initialisation          round: FedAvg over D_r

It draws under its own seed, so it differs from the original training in nothing but the seed and the missing data:
with D_u = ∅ and the original's seed it reproduces θ* bit for bit. The original training *is* this method on an empty
scope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import Lineage, Method, register


@register
@dataclass(frozen=True)
class Retrain(Method):
    """Training from scratch on the retained data."""

    name: ClassVar[str] = "retrain"
    title: ClassVar[str] = "Retrain"
    cite: ClassVar[str] = "exact unlearning; the gold standard of Khalil et al., NoT, CVPR 2025"
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "init"})
    lineage: ClassVar[Lineage] = "anew"
    lasts: ClassVar[bool] = True

    def begin(self, server: Server) -> State:
        return State(server.init())
