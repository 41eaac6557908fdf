"""BadT: be taught by the old model on D_r, and by one that knows nothing on D_u.

    θ ← θ*          on the shuffled union of D_u and D_r:  min  KL( q ‖ softmax(z_θ(x)/τ) )

    q = softmax(z_bad(x)/τ)     for x ∈ D_u      bad  = a fresh random initialisation, frozen
    q = softmax(z_good(x)/τ)    for x ∈ D_r      good = θ*, frozen

No label is read. The divergence is averaged per sample. The published code also divides by the number of classes and
trains with Adam on 30 % of D_r.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from unfed.client.plan import term
from unfed.errors import UnfedError
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import Central, option, register


@register
@dataclass(frozen=True)
class BadTeacher(Central):
    """A competent and an incompetent teacher."""

    name: ClassVar[str] = "badt"
    title: ClassVar[str] = "BadT"
    cite: ClassVar[str] = "Chundawat et al., Can Bad Teaching Induce Forgetting?, AAAI 2023"
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "forget", "init"})

    temperature: float = option(1.0, "τ: how soft the teachers' answers are", "paper")

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UnfedError(f"BadT's temperature must be positive, not {self.temperature}; 1 is the default.")

    def begin(self, server: Server) -> State:
        return State(server.params, tensors={"bad": server.init("bad teacher")})

    def round(self, server: Server, state: State) -> State:
        objective = term("bad_teacher", temperature=float(self.temperature))
        taught = replace(server.base, objective=objective, view="all")
        teachers = {"good": server.params, "bad": state.tensors["bad"]}
        asked = server.participants(state.round + 1, server.clients)
        return server.advance(state, asked, taught, context=teachers)
