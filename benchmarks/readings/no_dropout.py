"""MoDE whose degraded model φ is trained without dropout: a reading, measured beside the others (`mode.toml`)."""

import copy
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from unfed.methods.mode import MoDE, stepping
from unfed.model.functional import Template


@dataclass(frozen=True)
class NoDropoutMoDE(MoDE):
    """Momentum degradation by a model that drops nothing out."""

    name: ClassVar[str] = "mode-no-dropout"
    title: ClassVar[str] = "MoDE, φ without dropout"

    def degraded(self, server, phi, r):
        phase = stepping(server.base, self.degradation_lr, self.degradation_momentum, self.degradation_decay)
        clients = server.participants(r, server.retained)
        updates = server.train(server.plan(r, phase), phi, clients, engine=_without_dropout(server))
        return server.average(phi, updates)


_made: dict[int, Template] = {}


def _without_dropout(server):
    """The server's engine over the same clients, for the same network with every dropout at 0."""
    if id(server.template) not in _made:
        module = copy.deepcopy(server.template.module)
        for part in module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in server.template.trainable)
        some = next(t for t in server.template.like.values() if t.is_floating_point())
        template = Template(module, server.template.shape).to(some.device, some.dtype)
        template.autocast = server.template.autocast
        _made[id(server.template)] = template
    engine = server.engine
    return type(engine)(_made[id(server.template)], engine._clients, compile=engine._compile)
