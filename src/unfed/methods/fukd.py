"""FUKD: subtract everything the leaver ever contributed, then let the old model teach what broke.

    training:  S_k = Σ_t p_k^t U_k^t          for every client, since each of them may leave
    begin:     θ' = θ* − Σ_{k leaves} S_k      as if the leaver had sent zero updates
               distil: min τ² KL( softmax(z_θ*(x)/τ) ‖ softmax(z_θ'(x)/τ) )   on unlabelled data at the server
    round:     FedAvg over D_r

The server needs unlabelled data of its own; in a simulation these are the images of the remaining clients' validation
rows, labels discarded. S can be large, for a client drifts in a consistent direction: the subtracted model may be at
chance, and the distillation has to bring it back. Buffers are not part of S.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from unfed.client.plan import Phase, term
from unfed.errors import UnfedError
from unfed.federation.history import ClientRecord, FinishedRound, History
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import CLIENT, Lineage, Method, option, register
from unfed.model.params import Params


@register
@dataclass(frozen=True)
class FUKD(Method):
    """Subtraction of the leaver's updates, then knowledge distillation."""

    name: ClassVar[str] = "fukd"
    title: ClassVar[str] = "FUKD"
    cite: ClassVar[str] = "Wu, Zhu, Mitra, Federated Unlearning with Knowledge Distillation, 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "history", "public"})
    lineage: ClassVar[Lineage] = "carried"
    federation_only: ClassVar[bool] = True
    scopes: ClassVar[frozenset[str]] = frozenset({CLIENT})
    follows: ClassVar[Literal["", "sums", "rounds"]] = "sums"

    epochs: int = option(3, "epochs of distillation", "paper (CNN)")
    lr: float = option(1e-4, "learning rate of the distillation", "paper (CNN)")
    momentum: float = option(0.9, "momentum of the distillation", "paper (CNN)")
    temperature: float = option(3.0, "τ: how soft the teacher's answers are", "paper (CNN)")

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UnfedError(f"FUKD's temperature must be positive, not {self.temperature}; 3 is the paper's.")
        if self.epochs < 0:
            raise UnfedError(f"FUKD's epochs must not be negative, but they are {self.epochs}; 0 leaves them out.")

    def begin(self, server: Server) -> State:
        params = subtracted(server.params, self._sums(server))
        for name, value in params.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise UnfedError(
                    f"FUKD's subtraction leaves {name!r} with values that are not finite, so there is no model to"
                    " teach; use not, ft or retrain."
                )
        if self.epochs == 0:
            return State(params)
        plan = server.plan(0, self.distillation(server.base))
        return State(server.train_at_home(plan, params, {"teacher": server.params}))

    def distillation(self, base: Phase) -> Phase:
        """Soft answers of θ*, on the server's own data."""
        objective = term("distil", temperature=float(self.temperature))
        phase = replace(base, objective=objective, view="all", epochs=self.epochs)
        return phase.with_optimiser(rule="sgd", lr=self.lr, momentum=self.momentum, decay=0.0)

    def _sums(self, server: Server) -> list[Params]:
        history = server.history
        if history.rounds == 0:
            raise UnfedError(
                "FUKD has no record of the way to this model (nothing was recorded since it was rebuilt); use not, ft"
                " or retrain."
            )
        gone = [client for client in server.owners if client in history.purged]
        if gone:
            raise UnfedError(
                f"FUKD's record of client {gone[0]} was purged when an earlier request took it out; use not, ft or"
                " retrain."
            )
        # A leaver that never took part has no record: it contributed nothing.
        sums = [history.own[client].tensors for client in server.owners if client in history.own]
        for own in sums:
            for name, value in own.items():
                if name not in server.params or server.params[name].shape != value.shape:
                    raise UnfedError(f"FUKD's history has {name!r} of another model; it belongs to another run.")
        return sums

    def record(self, history: History, past: FinishedRound) -> History:
        own = dict(history.own)
        for client, samples, params in past.models():
            share, record = samples / past.samples, own.get(client, ClientRecord())
            sums, before = past.update(params), record.tensors
            torch._foreach_mul_(list(sums.values()), share)
            if before:  # all tensors of a client in one call
                torch._foreach_add_(list(sums.values()), [before[name] for name in sums])
            own[client] = ClientRecord(sums, {"rounds": int(record.numbers.get("rounds", 0)) + 1})
        return replace(history, rounds=history.rounds + 1, own=own)

    def original_bytes(self, history: History, model_bytes: int) -> int:
        """Every client's update of every round."""
        return model_bytes * sum(int(record.numbers["rounds"]) for record in history.own.values())


def subtracted(params: Params, sums: list[Params]) -> Params:
    """θ* − Σ S_k; what has no sum (buffers) stays."""
    result = dict(params)
    for own in sums:
        for name, value in own.items():
            result[name] = result[name] - value
    return result
