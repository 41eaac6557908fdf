"""Training as a method: it is Retrain on an empty scope, or goes on from a model that was handed in."""

from __future__ import annotations

from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.federation.protocol import Server
from unfed.folder.folder import RunFolder
from unfed.methods import Method, Retrain, State
from unfed.model.params import Params
from unfed.requests.entry import Job
from unfed.runs.world import World


def training_method(world: World) -> Method:
    """What leads to θ* in a world."""
    return Retrain() if world.initial is None and world.config.model.initial is None else GoOn()


def start_of(folder: RunFolder, job: Job, world: World) -> Params:
    """The model that a training begins at; one that has begun already needs its file no more."""
    if folder.numbers(job) is None:
        refuse_another(world.config, world.checkpoint, folder.description().get("initial"))
    return world.initial or world.template.like


def refuse_another(config: Config, found: str | None, noted: str | None) -> None:
    """Refuse a checkpoint that is gone, or is not the one that was noted; runs from before noted none."""
    if found is None and config.model.initial is not None:
        raise UnfedError(
            f"There is no checkpoint model.initial at {config.model.initial}, which a seed still begins at; restore it"
            " from a copy."
        )
    if noted is not None and found != noted:
        raise UnfedError(
            f"The checkpoint model.initial at {config.model.initial} is not the one that this was begun with (its"
            " SHA-256 differs), so the seeds would begin at different models; restore it from a copy."
        )


class GoOn(Retrain):
    """Training that starts from an existing checkpoint (`model.initial`)."""

    def begin(self, server: Server) -> State:
        return State(server.params)
