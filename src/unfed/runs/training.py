"""Training as a method: it is Retrain on an empty scope, or goes on from a model that was handed in."""

from __future__ import annotations

from unfed.federation.protocol import Server
from unfed.methods import Method, Retrain, State
from unfed.runs.world import World


def training_method(world: World) -> Method:
    """What leads to θ* in a world."""
    return Retrain() if world.initial is None else GoOn()


class GoOn(Retrain):
    """Training that starts from an existing checkpoint (`model.initial`)."""

    def begin(self, server: Server) -> State:
        return State(server.params)
