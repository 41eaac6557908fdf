"""MoDE: dissolve the model in one that never saw D_u, and let that one say what D_u is.

    begin:     φ ← a fresh initialisation,  θ ← θ*
    round r ≤ r_de:    φ ← FedAvg(φ; D_r, η_deg)                 degradation
                       θ ← λ·θ + (1−λ)·φ                         erasure
    round r ≤ r_max:   θ ← FedAvg(θ; D_r with true labels, D_u with argmax φ(x), η_model), all clients    guidance
    after that:        FedAvg over D_r

Labels of D_u are never read. Because losses are per sample and D_u rows are marked, the same lines serve clients,
classes and samples. φ goes only to those who hold a row of D_u: one more download each. The guidance rounds come before
the recovery rounds that the config grants.

The original's text was not at hand: this follows the one public re-implementation, whose parameters are those the paper
lists ("memory guidance rounds" = r_max, "MoDE rounds" = r_de, "MoDe coefficient" = λ, on the old model). It steps by
plain SGD, and so do φ and the guidance here: with the run's momentum of 0.9 a rate of 0.1 becomes one of 1, φ dies, and
the network it is mixed into does not come back. What other readings lead to on CIFAR-10 is measured in
`benchmarks/records/2026-11-15-mode-readings.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from unfed.client.plan import term
from unfed.errors import UnfedError
from unfed.federation.protocol import Server
from unfed.federation.state import State, Transfer
from unfed.methods.base import Lineage, Method, option, register
from unfed.model.params import Params


@register
@dataclass(frozen=True)
class MoDE(Method):
    """Momentum degradation, then memory guidance."""

    name: ClassVar[str] = "mode"
    title: ClassVar[str] = "MoDE"
    cite: ClassVar[str] = "Zhao et al., Federated Unlearning with Momentum Degradation, IEEE IoT-J 2023"
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "forget", "init"})
    lineage: ClassVar[Lineage] = "moved"
    federation_only: ClassVar[bool] = True
    paper: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cnn": {"guidance": 3, "degradation": 2, "coefficient": 0.4, "lr": 5e-3, "degradation_lr": 0.1},
        "resnet18": {"guidance": 9, "degradation": 8, "coefficient": 0.95, "lr": 0.05, "degradation_lr": 0.1},
        "vit-b-16": {"guidance": 15, "degradation": 12, "coefficient": 0.9, "lr": 1e-3, "degradation_lr": 1e-3},
    }

    guidance: int | None = option(None, "r_max: memory guidance rounds", "paper")
    degradation: int | None = option(None, "r_de: rounds in which φ is trained and mixed in", "paper")
    coefficient: float | None = option(None, "λ: how much of the old model an erasure keeps", "paper")
    lr: float | None = option(None, "η_model: learning rate of the guidance", "paper")
    degradation_lr: float | None = option(None, "η_deg: learning rate of φ", "paper")

    def __post_init__(self) -> None:
        if self.coefficient is not None and not 0 <= self.coefficient <= 1:
            raise UnfedError(f"MoDE's λ must lie between 0 and 1, not {self.coefficient}; 1 erases nothing.")
        for name in ("guidance", "degradation", "lr", "degradation_lr"):
            if getattr(self, name) is not None and not getattr(self, name) >= 0:
                raise UnfedError(f"MoDE's {name} must not be negative, but it is {getattr(self, name)}.")
        if self.guidance is not None and self.degradation is not None and self.degradation > self.guidance:
            raise UnfedError(
                f"MoDE's degradation happens inside its guidance rounds, but r_de = {self.degradation} is more than"
                f" r_max = {self.guidance}; lower methods.mode.degradation or raise methods.mode.guidance."
            )

    def begin(self, server: Server) -> State:
        return State(server.params, tensors={"phi": server.init("degraded model")}, model=self.guidance == 0)

    def round(self, server: Server, state: State) -> State:
        assert self.guidance is not None and self.degradation is not None and self.coefficient is not None
        r, params = state.round + 1, state.params
        if r > self.guidance:
            return server.recover(replace(state, tensors={}))
        phi = state.tensors["phi"]
        if r <= self.degradation:
            phi = self.degraded(server, phi, r)
            params = mixed(params, phi, self.coefficient)
        params = self._guided(server, params, phi, r)
        return replace(state, params=params, tensors={"phi": phi}, round=r, model=r == self.guidance)

    def degraded(self, server: Server, phi: Params, r: int) -> Params:
        """φ after one round of those who stay, on the data that stays."""
        phase = server.base.with_optimiser(lr=self.degradation_lr, momentum=0.0)
        return server.fedavg(phi, server.plan(r, phase), server.participants(r, server.retained))

    def _guided(self, server: Server, params: Params, phi: Params, r: int) -> Params:
        """One round of all clients: who holds a row of D_u gets φ with the model, the others just train."""
        plain = replace(server.base.with_optimiser(lr=self.lr, momentum=0.0), view="all")
        taught = replace(plain, objective=term("guided"))
        asked = server.participants(r, server.clients)
        owners = [client for client in asked if client in server.owners]
        others = [client for client in asked if client not in server.owners]
        updates = list(server.train(server.plan(r, plain), params, others)) if others else []
        if owners:
            # A client that leaves is waited for: without its answer there is no guidance.
            leaving = not set(owners) & set(server.retained)
            context, transfer = {"phi": phi}, Transfer(down=2)
            updates += server.train(server.plan(r, taught), params, owners, context, transfer=transfer, patient=leaving)
        return server.average(params, updates)

    def rounds(self, unlearning: int, training: int) -> int:
        return unlearning + (self.guidance or 0)


def mixed(params: Params, phi: Params, keep: float) -> Params:
    """λ·θ + (1−λ)·φ over parameters and buffers alike; counters stay."""
    return {n: keep * t + (1 - keep) * phi[n] if t.is_floating_point() else t for n, t in params.items()}
