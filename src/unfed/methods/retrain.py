"""Retrain: start afresh without D_u. Every other method is measured against this exact unlearning.

    begin: θ ← a fresh initialisation          round: FedAvg over D_r
           or θ^k, a model that training kept after round k, before any client with rows in D_u was asked

It draws under its own seed, so it differs from the original training in nothing but the seed and the missing data:
with D_u = ∅ and the original's seed it reproduces θ* bit for bit. The original training *is* this method on an empty
scope. Rewound to θ^k it repeats none of the first k rounds, and the schedule goes on at round k + 1.
`folder/carriers.py` finds θ^k by what the training recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from unfed.federation.protocol import Server
from unfed.federation.state import STAGE, State
from unfed.methods.base import Lineage, Method, option, register

KEPT = "kept"
"""What the model is called that a rewound Retrain is handed as its history."""


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

    start: Literal["fresh", "rewind"] = option(
        "fresh", "'rewind': the newest kept model from before those who leave took part", "ours"
    )

    def begin(self, server: Server) -> State:
        if self.start == "fresh":
            return State(server.init())
        past = server.history
        return State(past.shared[KEPT], numbers={STAGE: [-past.rounds, None]})
