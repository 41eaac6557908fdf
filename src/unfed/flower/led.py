"""Led in a Flower app you already have: the loss is the app's own, so the app adds the hint to it.

    Unlearn(led_by(FedAvg, teacher, rounds=20), lambda arrays: Net().state_dict(), …)      server: a fresh model, led

    guide = teacher_in(message, Net())                    client: a frozen net, or None once the led rounds are over
    logits, extra = hinted(net, guide, x)                 one pass of the app's own net
    loss = cross_entropy(logits, y) + extra               extra: w · mean of 1 − cos(f(x), f_T(x))

f is what enters the head. The teacher travels with every led round, as a second record beside the model. Take one that
has forgotten: what an `Unlearn` with `negate` left. Where classes leave, their rows of the teacher's head are taken out
of f_T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn
from torch.nn import functional

from unfed.errors import UnfedError
from unfed.methods.led import head_weight, headless
from unfed.model.networks import head_of
from unfed.model.params import params_of
from unfed.remote.rows import ASKED

TEACHER = "unfed.teacher"
"""The record of a train message that holds the teacher."""


@dataclass(frozen=True)
class Teacher:
    """A frozen net, and the classes that are taken out of its features."""

    net: nn.Module
    away: tuple[int, ...] = ()


def led_by(factory: Callable[[], Strategy], teacher: ArrayRecord, rounds: int | None = None) -> Callable[[], Strategy]:
    """Make a strategy whose train messages carry a teacher, in the first `rounds` rounds or in all.

    Args:
        factory: Makes your strategy, a new one on every call.
        teacher: The arrays of the model that leads.
        rounds: How many rounds are led; after them clients train as always.
    """

    def make() -> Strategy:
        strategy = factory()
        configure = strategy.configure_train

        def with_teacher(server_round: int, *args: Any, **named: Any) -> Iterable[Message]:
            messages = list(configure(server_round, *args, **named))
            for message in messages if rounds is None or server_round <= rounds else ():
                message.content[TEACHER] = teacher
            return messages

        strategy.configure_train = with_teacher  # type: ignore[method-assign]
        return strategy

    return make


def teacher_in(message: Message, net: nn.Module) -> Teacher | None:
    """The teacher that a train message carries, in a new `net` of the app's.

    It is None where the round is not led.
    """
    if TEACHER not in message.content.array_records:
        return None
    net.load_state_dict(message.content.array_records[TEACHER].to_torch_state_dict())
    configs: Any = message.content.config_records.values()
    away = next((config[ASKED] for config in configs if ASKED in config), ())
    return Teacher(net.eval().requires_grad_(False), tuple(int(number) for number in away))


def hinted(net: nn.Module, teacher: Teacher | None, x: Any, weight: float = 10.0) -> tuple[Tensor, Tensor]:
    """Run a net once: its logits, and what is to be added to their loss.

    Args:
        net: The model in training, which ends in its head.
        teacher: What `teacher_in` found; with None nothing is added.
        x: A batch as the net takes it.
        weight: w, how strongly features are led.
    """
    logits, own = _passed(net, x)
    if teacher is None:
        return logits, logits.new_zeros(())
    with torch.no_grad():
        _, taught = _passed(teacher.net, x)
        if teacher.away:
            rows = headless(teacher.net, params_of(teacher.net), teacher.away)[head_weight(teacher.net)]
            taught = taught - taught @ rows.T @ rows
    return logits, weight * (1 - functional.cosine_similarity(own, taught)).mean()


def _passed(net: nn.Module, x: Any) -> tuple[Tensor, Tensor]:
    """A net's logits, and what entered its head on the way."""
    seen = list[Tensor]()
    hook = net.get_submodule(head_of(net)).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        logits: Tensor = net(x)
    finally:
        hook.remove()
    if len(seen) != 1:
        raise UnfedError(f"The head {head_of(net)!r} ran {len(seen)} times in one pass; set head_name on the model.")
    return logits, seen[0].flatten(1)
