"""BadT: be taught by the old model on D_r, and by one that knows nothing on D_u.

    θ ← θ*          on the shuffled union of D_u and D_r:  min  KL( q ‖ softmax(z_θ(x)/τ) )

    q = softmax(z_bad(x)/τ)     for x ∈ D_u      bad  = a fresh random initialisation, frozen
    q = softmax(z_good(x)/τ)    for x ∈ D_r      good = θ*, frozen

No label is read. The divergence is averaged per sample; the published code divides by the number of classes as well
(`reduction = "mean"`) and trains with Adam, which mostly amounts to another learning rate, on 30 % of D_r, drawn once
(`retain_frac = 0.3`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

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
    optimiser: Literal["sgd", "adam", "adamw"] | None = option(None, "default: the training's (original: adam)", "ours")
    reduction: Literal["batchmean", "mean"] = option("batchmean", "'mean' also divides by the classes", "ours")
    retain_frac: float = option(1.0, "the share of D_r that is taught (original: 0.3)", "ours")

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UnfedError(f"BadT's temperature must be positive, not {self.temperature}; 1 is the default.")
        if not 0 < self.retain_frac <= 1:
            raise UnfedError(
                f"BadT's retain_frac is a share of the retained rows, above 0 and at most 1, not {self.retain_frac}."
            )

    def begin(self, server: Server) -> State:
        return State(server.params, tensors={"bad": server.init("bad teacher")})

    def round(self, server: Server, state: State) -> State:
        objective = term("bad_teacher", temperature=float(self.temperature), per_class=self.reduction == "mean")
        taught = replace(server.base, objective=objective, view="all")
        if self.retain_frac < 1:
            taught = replace(taught, thinned=term("drawn", share=float(self.retain_frac), seed=server.seed))
        if self.optimiser is not None:
            taught = taught.with_optimiser(rule=self.optimiser)
        teachers = {"good": server.params, "bad": state.tensors["bad"]}
        asked = server.participants(state.round + 1, server.clients)
        return server.advance(state, asked, taught, context=teachers)
