"""Algorithm 1 of the paper: a method changes the model once, then the remaining clients train it.

A job (`runs/job.py`) draws states out of `unlearn` one by one; it evaluates and saves between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from unfed.federation.protocol import Server
from unfed.federation.state import State


class Unlearns(Protocol):
    """The two functions that a method is."""

    def begin(self, server: Server) -> State: ...

    def round(self, server: Server, state: State) -> State: ...


def unlearn(server: Server, method: Unlearns, state: State | None = None) -> Iterator[State]:
    """Algorithm 1: every state from the request's arrival on.

    After a state that was kept, it is every further one.
    """
    if state is None:
        state = method.begin(server)  # lines 8 and 9: NoT negates the chosen layers, Retrain draws them all afresh
        yield state
    while not state.done:  # line 10
        state = method.round(server, state)  # lines 11 to 14: `Server.recover`, unless it has its own
        yield state
