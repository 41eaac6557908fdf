"""Models on a method's way, made again from where it started.

A run keeps where its jobs begin and end, not the way. Every draw has an address, so the rounds of FT and NoT are
repeated as they were, without being evaluated.
"""

from __future__ import annotations

from unfed.federation.server import JobServer, Members
from unfed.federation.state import State
from unfed.model.params import Params
from unfed.paper.views.base import first_seed
from unfed.runs.run import Run

PLACES = (1, 3, 10, 30, 100)
"""Rounds after which a model is looked at: a slope changes most where recovery begins."""


def retraced(run: Run, label: str, start: Params, places: tuple[int, ...] = PLACES) -> dict[int, Params]:
    """The models of a method after some of its rounds, as far as it has them.

    Its rounds are plain FedAvg, as FT's and NoT's are.
    """
    world, requests = run.world(first_seed(run)), run.config.requests()
    settings = world.unlearning_settings(retrain=False, label=label)
    wanted = [place for place in places if place < settings.rounds]
    clients = world.scoped(requests, gone=requests[:-1])
    members, seed = Members(clients, world.engine(clients)), world.seeds.request(requests[-1].id)
    server = JobServer(world.setup(), members, start, settings, seed)
    state, found = State(start), dict[int, Params]()
    for round in range(1, max(wanted, default=0) + 1):
        state = server.recover(state)
        if round in wanted:
            found[round] = state.params
    return found
