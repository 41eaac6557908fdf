"""PGD: the leaver climbs its own loss, inside a ball around what the others' last models average to.

    w_ref = (θ* − Σ_{t leaves} p_t θ_t^T) / (1 − Σ p_t)           the others' mean, as the last round averaged them
    δ²    = mean over 10 fresh initialisations of ‖w_ref − w_rand‖² / 3
    begin: w ← w_ref;   w ← Π_δ( w + η_u · clip_c(∇ CE(w; D_u)) )    with momentum, at most iters · upd mini-batches
           stop after the step with ‖w − θ_t^T‖² > d_thr             (the square is the published code's)
    round: FedAvg over D_r

θ_t^T is the leaver's last local model. Clients here keep nothing, so it is replayed from θ^{T−1}, bit for bit, because
randomness is a function of the round; the server keeps that one model (under partial participation one per round in
which a client was last seen). p_t is the leaver's share of the samples averaged in the last round of all: a leaver that
was not there has none, and where no leaver was, θ* is the others' mean already. Each of several leavers climbs from the
same w_ref, and the results are averaged. A loss that is not finite ends the climb at the last finite, projected w.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from unfed import rng
from unfed.client.plan import Phase, Plan, term
from unfed.engines.base import PerClient
from unfed.errors import Refused, UnfedError
from unfed.federation.history import ClientRecord, FinishedRound, History
from unfed.federation.protocol import Server
from unfed.federation.robust import shortened
from unfed.federation.state import State
from unfed.methods.base import CLIENT, Lineage, Method, option, register
from unfed.model.params import Params, check_like


@register
@dataclass(frozen=True)
class PGD(Method):
    """Projected gradient ascent by the leaver, then recovery."""

    name: ClassVar[str] = "pgd"
    title: ClassVar[str] = "PGD"
    cite: ClassVar[str] = "Halimi et al., Federated Unlearning: How to Efficiently Erase a Client in FL?, 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "forget", "init", "history"})
    lineage: ClassVar[Lineage] = "moved"
    federation_only: ClassVar[bool] = True
    scopes: ClassVar[frozenset[str]] = frozenset({CLIENT})
    follows: ClassVar[Literal["", "sums", "rounds"]] = "rounds"
    paper: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cnn": {"lr": 0.1, "iterations": 10, "updates": 5, "threshold": 3.0, "clip": 2.0},
        "resnet18": {"lr": 1e-3, "iterations": 2, "updates": 7, "threshold": 2.2, "clip": 1.0},
        "vit-b-16": {"lr": 1e-3, "iterations": 10, "updates": 5, "threshold": 1.0, "clip": 4.0},
    }

    lr: float | None = option(None, "η_u: step size of the ascent", "paper")
    iterations: int | None = option(None, "iters: outer iterations, each over a new order of D_u", "paper")
    updates: int | None = option(None, "upd: mini-batches per iteration, at most", "paper")
    threshold: float | None = option(None, "d_thr: squared distance from the leaver's model that ends it", "paper")
    clip: float | None = option(None, "c: largest gradient norm", "paper")
    momentum: float = option(0.9, "momentum of the ascent", "paper")
    any_scope: bool = option(False, "also for classes and samples; unpublished", "ours")

    def __post_init__(self) -> None:
        for name in ("lr", "iterations", "updates", "threshold"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UnfedError(f"PGD's {name} must not be negative, but it is {value}.")

    def serves(self, scope: str) -> bool:
        return self.any_scope or scope in self.scopes

    # --- the rule ---

    def begin(self, server: Server) -> State:
        if not server.owners:
            raise UnfedError("No client holds these rows any more, so none can climb; use not or ft.")
        last = self.last_models(server)
        ref = self.reference(server, last)
        climbed = server.train(
            server.plan(0, self.ascent(server.base, radius(server, ref))),
            ref,
            server.owners,
            {"last": PerClient(last)},
            patient=True,
        )
        return State(server.average(ref, climbed))

    def ascent(self, base: Phase, within: float) -> Phase:
        """−CE on D_u, clipped, projected, stopped by distance."""
        assert self.iterations is not None and self.threshold is not None
        phase = replace(
            base,
            objective=term("ascend"),
            view="forget",
            epochs=self.iterations,
            cap=self.updates,
            after=(term("ball", around="start", radius=within),),
            stop=term("beyond", of="last", squared=float(self.threshold)),
        )
        return phase.with_optimiser(rule="sgd", lr=self.lr, momentum=self.momentum, decay=0.0, clip=self.clip)

    def reference(self, server: Server, last: Mapping[str, Params]) -> Params:
        """w_ref. Who stays (a class or samples are forgotten) is not taken out of the mean."""
        history = server.history
        latest = str(history.numbers["latest"])
        there = {c: int(r.numbers["samples"]) for c, r in history.own.items() if r.numbers["last"] == latest}
        leaving = [c for c in server.owners if c in there and c not in server.retained]
        total = int(history.numbers[latest]["samples"]) if leaving else 1
        shares = {c: there[c] / total for c in leaving}
        rest = (total - sum(there[c] for c in leaving)) / total
        if rest <= 0:
            raise UnfedError(
                "Only leavers took part in the last round, so PGD has no mean of others; use not, ft or retrain."
            )
        ref = {}
        for name, value in server.params.items():
            if not value.is_floating_point() or not leaving:
                ref[name] = value
                continue
            theirs = torch.stack([shares[c] * entered(history, c, last[c], name) for c in leaving]).sum(0)
            ref[name] = (value - theirs) / rest
            if name.endswith("running_var"):
                ref[name] = ref[name].clamp(min=1e-5)
        return ref

    def last_models(self, server: Server) -> dict[str, Params]:
        """θ_t^T of every leaver, replayed."""
        history = server.history
        unseen = [client for client in server.owners if client not in history.own]
        if unseen:
            raise UnfedError(
                f"PGD has no record of client {unseen[0]} on the way to this model; use not, ft or retrain."
            )
        found: dict[str, Params] = {}
        for key, before in history.shared.items():
            clients = [client for client in server.owners if history.own[client].numbers["last"] == key]
            if clients:
                check_like(before, server.template.like, "PGD's history")
                facts = history.numbers[key]
                blocks = server.replay(Plan.from_json(facts["plan"]), before, clients, facts["scope"])
                found |= {client: block.of(i) for block in blocks for i, client in enumerate(block.clients)}
        missing = [client for client in server.owners if client not in found]
        if missing:
            raise Refused(
                f"Client {missing[0]} did not repeat its last round, so PGD has no reference; bring it back and resume,"
                " or use not, ft or retrain."
            )
        return found

    # --- the history ---

    def record(self, history: History, past: FinishedRound) -> History:
        key = f"{past.plan.seed}-{past.plan.round}"
        own = dict(history.own)
        for block in past.blocks:
            for client, samples in zip(block.clients, block.samples, strict=True):
                short = {"factor": past.factors[client]} if client in past.factors else {}
                own[client] = ClientRecord(numbers={"last": key, "samples": samples} | short)
        scope = [dict(request) for request in past.scope]
        facts = {"plan": past.plan.to_json(), "scope": scope, "samples": past.samples}
        shared, numbers = {**history.shared, key: past.params}, {**history.numbers, key: facts, "latest": key}
        return _referenced(replace(history, rounds=history.rounds + 1, shared=shared, own=own, numbers=numbers))

    def purge(self, history: History, clients: Collection[str]) -> History:
        return _referenced(history.without(clients))

    def original_bytes(self, history: History, model_bytes: int) -> int:
        """Every client's own last model, kept by the client."""
        return model_bytes * len(history.own)


def entered(history: History, client: str, last: Params, name: str) -> Tensor:
    """θ_t^T as it entered the last round's mean: `training.robust` may have shortened its update."""
    numbers = history.own[client].numbers
    if "factor" not in numbers:
        return last[name]
    return shortened(history.shared[numbers["last"]][name], last[name], numbers["factor"])


def _referenced(history: History) -> History:
    """The history with only the models before a round in which a client was last seen."""
    keys = {record.numbers["last"] for record in history.own.values()}
    shared = {key: params for key, params in history.shared.items() if key in keys}
    numbers = {key: facts for key, facts in history.numbers.items() if key in keys or key == "latest"}
    return replace(history, shared=shared, numbers=numbers)


def radius(server: Server, ref: Params, draws: int = 10) -> float:
    """δ: a third of the mean squared distance to models that know nothing, as a length."""
    total = 0.0
    for i in range(draws):
        fresh = server.fresh(rng.key(server.seed, "radius", i))
        total += sum(float((ref[n] - fresh[n]).double().square().sum()) for n in server.template.trainable)
    return math.sqrt(total / draws / 3)
