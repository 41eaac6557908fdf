"""What a method may ask a server for, and nothing else.

`federation/server.py` is the server of a job; a method's own test may bring a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from unfed.client.plan import Measure, Phase, Plan
from unfed.engines.base import Block, Context
from unfed.federation.history import History
from unfed.federation.state import State, Transfer
from unfed.model.functional import Template
from unfed.model.params import Params


class Server(Protocol):
    """The server as a method sees it. It never sees data: it asks the clients."""

    template: Template
    params: Params
    """The model as it was when the request arrived."""
    seed: int
    """What every draw of this job is a function of."""
    clients: Sequence[str]
    """Everybody with training rows, in the federation's order."""
    retained: Sequence[str]
    """Those of them with rows that stay."""
    owners: Sequence[str]
    """Those of them with rows that are to be forgotten."""
    fresh: Callable[[int], Params]
    """A new initialisation by the model's own rules, a function of the seed that is given."""

    # --- what a plan is made of ---

    @property
    def base(self) -> Phase:
        """The configured phase: cross-entropy on retained data, one local epoch."""

    @property
    def history(self) -> History:
        """What this job's method recorded on the way to `params`."""

    def plan(self, round: int, *phases: Phase, keep: bool = False) -> Plan:
        """The plan of round r; without phases the base phase at the round's learning rate."""

    def scheduled(self, phase: Phase, round: int, stage: Sequence[int | None] = (0, None)) -> Phase:
        """The phase at the learning rate of round r, where the schedule goes over these rounds."""

    def init(self, purpose: str = "init") -> Params:
        """A fresh random initialisation, a function of this job's seed."""

    # --- asking ---

    def participants(self, round: int, among: Sequence[str]) -> tuple[str, ...]:
        """Who is asked in round r: a seeded share of the clients, in the federation's order."""

    def train(
        self,
        plan: Plan,
        params: Params,
        clients: Sequence[str],
        context: Context | None = None,
        *,
        transfer: Transfer = Transfer(),  # noqa: B008  (frozen)
        patient: bool = False,
    ) -> Iterator[Block]:
        """Ask clients to run a plan; a `patient` server waits for every answer."""

    def replay(
        self, plan: Plan, params: Params, clients: Sequence[str], scope: Sequence[Mapping[str, Any]]
    ) -> Iterator[Block]:
        """Have clients repeat a recorded round, on the rows they held in it."""

    def train_at_home(self, plan: Plan, params: Params, context: Mapping[str, Params]) -> Params:
        """Run a plan on the server's own unlabelled data."""

    def measure(self, what: Measure, params: Params, clients: Sequence[str]) -> dict[str, Tensor]:
        """Sums over the clients' views."""

    # --- going on ---

    def average(self, params: Params, updates: Iterable[Block]) -> Params:
        """θ + Σ p_k (θ_k − θ), in the federation's order whatever order the answers came in."""

    def fedavg(self, params: Params, plan: Plan, clients: Sequence[str], context: Context | None = None) -> Params:
        """One round: train, then average."""

    def advance(
        self,
        state: State,
        clients: Sequence[str],
        *phases: Phase,
        context: Context | None = None,
        transfer: Transfer = Transfer(),  # noqa: B008  (frozen)
    ) -> State:
        """One round further.

        These clients run these phases (without any, the base phase) at the round's rate.
        """

    def recover(self, state: State) -> State:
        """The default round: FedAvg over the retained data."""
