"""FedEraser: replay the training without the leaver, each update brought to the length it had then.

    training:  at rounds t_1 = 1, t_2, … (every Δt-th) keep ‖U_k^{t_j}‖, U_k^t = θ_k^t − θ^{t−1}; of round 1 keep θ_k^1
    begin:     θ̃_1 = θ^0 + Σ_{k∈R} p_k U_k^{t_1}                            θ^0 never saw the leaver
    round j:   k ∈ R trains from θ̃_{j−1} for ⌈r·E⌉ epochs  →  Û_k = θ̂_k − θ̃_{j−1}
               Ũ_k = ‖U_k^{t_j}‖ · Û_k / ‖Û_k‖                               the calibrated update
               θ̃_j = θ̃_{j−1} + Σ_{k∈R} p_k Ũ_k
    done:      after the last kept round; no further recovery

A kept round in which none of the remaining clients took part is skipped; if that is round 1, the replay starts at θ^0.

The rule asks stored updates only for their norms, except in round 1, so the norms are all that is stored: a few floats
per client and round in the place of whole updates. Norms are taken per client and per tensor;
buffers are averaged as they come, for a norm ratio means nothing there. A calibration round repeats the draws of the
round it replays, so without a leaver the original training comes out again.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from unfed.client.plan import Plan
from unfed.data import Request
from unfed.engines.base import Block
from unfed.errors import UnfedError
from unfed.federation.history import ClientRecord, FinishedRound, History
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods.base import CLIENT, Lineage, Method, option, register
from unfed.model.params import Params, check_like


def norms(update: Params) -> Tensor:
    """‖U‖ of every tensor."""
    return torch.stack([torch.linalg.vector_norm(u) for u in update.values()])


@register
@dataclass(frozen=True)
class FedEraser(Method):
    """Calibrated replay of the recorded training."""

    name: ClassVar[str] = "federaser"
    title: ClassVar[str] = "FedEraser"
    cite: ClassVar[str] = "Liu et al., FedEraser, IWQoS 2021"
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "history"})
    federation_only: ClassVar[bool] = True
    scopes: ClassVar[frozenset[str]] = frozenset({CLIENT})
    lineage: ClassVar[Lineage] = "ends"

    every: int = option(1, "Δt: every how many rounds one is kept (original: 2)", "paper (its cost column)")
    calibration: float = option(1.0, "r: a calibration's epochs, as a share of training's (original: 0.5)", "paper")

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UnfedError(f"FedEraser keeps every Δt-th round, so `every` must be at least 1, not {self.every}.")
        if not 0 < self.calibration <= 1:
            raise UnfedError(
                f"FedEraser's calibration is a share of the local epochs between 0 and 1, not {self.calibration};"
                " 1 repeats them all."
            )

    # --- the rule ---

    def begin(self, server: Server) -> State:
        history = self._checked(server)
        start = _on(history.shared["initial"], server.params)
        present = [client for client in server.retained if "samples" in _numbers(history, client)]
        if present:
            start = server.average(start, [_alone(client, history.own[client], server.params) for client in present])
        elif _next(server, after=1) is None:
            raise UnfedError("No remaining client took part in a round that FedEraser kept; use retrain.")
        return self._then(server, State(start), replayed=1)

    def round(self, server: Server, state: State) -> State:
        # Who was to calibrate next may have asked to leave since the last round.
        at = _next(server, after=int(state.numbers["replayed"]))
        if at is None:
            return replace(state, round=state.round + 1, numbers={}, done=True, model=True)
        history, start = server.history, state.params
        asked = [client for client in server.retained if _took_part(history, client, at)]
        blocks = []
        # No one else can calibrate in the place of who was there, so they are waited for.
        for block in server.train(self._plan(history, at), start, asked, patient=True):
            blocks += [self._calibrated(block, i, start, history, at) for i in range(len(block.clients))]
        return self._then(server, replace(state, params=server.average(start, blocks), round=state.round + 1), at)

    def _calibrated(self, block: Block, i: int, start: Params, history: History, at: int) -> Block:
        """The update of the client at place i, as a block of its own."""
        # By views: an index from the host would be waited for.
        names, own = history.numbers["tensors"], block.of(i)
        deltas = torch._foreach_sub([own[name] for name in names], [start[name] for name in names])
        new = dict(zip(names, deltas, strict=True))
        now, then = norms(new), _norms(history, block.clients[i], at).to(new[names[0]].device)
        # θ̂ + (Ũ − Û), not θ̃ + Ũ: where the norms agree the client's own model is kept bit for bit.
        more = dict(zip(names, torch.where(now > 0, then / now, 0.0) - 1, strict=True))
        params = {n: (t + more[n] * new[n] if n in more else t)[None] for n, t in own.items()}
        return Block((block.clients[i],), params, (block.samples[i],), (block.trained[i],), (block.forwarded[i],))

    def _then(self, server: Server, state: State, replayed: int) -> State:
        """Where the replay stands; it is done when no kept round of a remaining client is left."""
        over = _next(server, after=replayed) is None
        return replace(state, numbers={} if over else {"replayed": replayed}, done=over, model=over)

    def _plan(self, history: History, at: int) -> Plan:
        plan = Plan.from_json(history.numbers["plan"])
        epochs = [max(1, math.ceil(self.calibration * phase.epochs)) for phase in plan.phases]
        rate = history.numbers["rates"][str(at)]
        phases = [replace(p, epochs=e).with_optimiser(lr=rate) for p, e in zip(plan.phases, epochs, strict=True)]
        return replace(plan, round=at, phases=tuple(phases))

    def rounds(self, unlearning: int, training: int) -> int:
        """The kept rounds, but for the first, which costs nothing."""
        return max(1, math.ceil(training / self.every) - 1)

    def _checked(self, server: Server) -> History:
        history = server.history
        if history.rounds == 0:
            raise UnfedError("FedEraser's history is empty; train again with it, or use not, ft or retrain.")
        check_like(history.shared["initial"], server.template.like, "FedEraser's history")
        return history

    def after(self, earlier: Sequence[Request]) -> None:
        for request in earlier:
            if request.kind != CLIENT:
                raise UnfedError(
                    f"FedEraser would replay updates in which the rows of request {request.id!r} took part; it can only"
                    " leave out whole clients. Use not, ft or retrain."
                )

    # --- the history ---

    def record(self, history: History, past: FinishedRound) -> History:
        at, numbers, shared = past.plan.round, dict(history.numbers), dict(history.shared)
        if history.rounds == 0:
            numbers = {"plan": past.plan.to_json(), "tensors": list(past.trainable), "rates": {}}
            shared = {"initial": {name: t.cpu() for name, t in past.params.items()}}
        own = dict(history.own)
        if (at - 1) % self.every == 0:
            numbers["rates"] = {**numbers["rates"], str(at): past.plan.phases[0].optimiser.lr}
            if at == 1:
                for client, samples, params in past.models():
                    own[client] = ClientRecord({f"1/{n}": t.cpu() for n, t in params.items()}, {"samples": samples})
            else:
                clients = [client for client, _, _ in past.models()]
                # One answer for all clients: each would be waited for.
                rows = torch.stack([norms(past.update(params)) for _, _, params in past.models()]).cpu()
                for client, row in zip(clients, rows[:, None], strict=True):
                    before = own.get(client, ClientRecord())
                    tensors, numbered = dict(before.tensors), dict(before.numbers)
                    # A resumed run has its history on the device.
                    tensors["norms"] = torch.cat([tensors["norms"].cpu(), row]) if "norms" in tensors else row
                    own[client] = ClientRecord(tensors, {**numbered, "rounds": [*numbered.get("rounds", ()), at]})
        return replace(history, rounds=history.rounds + 1, shared=shared, own=own, numbers=numbers)

    def original_bytes(self, history: History, model_bytes: int) -> int:
        """θ^0, and the update of every client in every kept round."""
        kept = [len(_rounds(history, c)) + ("samples" in _numbers(history, c)) for c in history.own]
        return model_bytes * (1 + sum(kept))


def _norms(history: History, client: str, at: int) -> Tensor:
    """‖U_k^t‖ of every tensor, as a client sent it in a kept round."""
    return history.own[client].tensors["norms"][bisect_left(_rounds(history, client), at)]


def _numbers(history: History, client: str) -> dict[str, object]:
    record = history.own.get(client)
    return dict(record.numbers) if record else {}


def _rounds(history: History, client: str) -> Sequence[int]:
    """The kept rounds after the first in which a client took part, in their order."""
    record = history.own.get(client)
    rounds: Sequence[int] = record.numbers.get("rounds", ()) if record else ()
    return rounds


def _next(server: Server, after: int) -> int | None:
    """The next kept round in which a remaining client took part; None if none is left."""
    kept = [_rounds(server.history, client) for client in server.retained]
    places = [bisect_right(rounds, after) for rounds in kept]
    return min((rounds[i] for rounds, i in zip(kept, places, strict=True) if i < len(rounds)), default=None)


def _took_part(history: History, client: str, at: int) -> bool:
    """Whether a client was in a kept round after the first."""
    rounds = _rounds(history, client)
    place = bisect_left(rounds, at)
    return place < len(rounds) and rounds[place] == at


def _on(params: Params, like: Params) -> Params:
    return {name: t.to(like[name].device) for name, t in params.items()}


def _alone(client: str, record: ClientRecord, like: Params) -> Block:
    """A client's model of round 1 as the update it was."""
    params = {name: record.tensors[f"1/{name}"].to(t.device)[None] for name, t in like.items()}
    return Block((client,), params, (int(record.numbers["samples"]),), (0,), (0,))
