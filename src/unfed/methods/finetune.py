"""FT: start at θ* and let the remaining clients go on. Forgetting, if any, comes by itself.

begin: θ ← θ*          round: FedAvg over D_r
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import Lineage, Method, register


@register
@dataclass(frozen=True)
class FineTune(Method):
    """Fine-tuning on the retained data."""

    name: ClassVar[str] = "ft"
    title: ClassVar[str] = "FT"
    cite: ClassVar[str] = "the natural baseline of Khalil et al., NoT, CVPR 2025"
    lineage: ClassVar[Lineage] = "goes on"

    def begin(self, server: Server) -> State:
        return State(server.params)
