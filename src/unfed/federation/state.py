"""What a method hands from round to round.

It is params, tensors and numbers, nothing else, so it can be saved after any round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unfed.errors import Refused
from unfed.federation.aggregate import all_finite
from unfed.model.params import Params

OPTIMISER = "optimiser"
"""Where a state carries the optimiser of a centralised run."""
STAGE = "stage"
"""Where it says between which rounds the schedule goes, [after, up to], for a method of several stages."""


@dataclass(frozen=True)
class State:
    """Everything a job needs to go on: what is saved is exactly this."""

    params: Params
    round: int = 0
    tensors: Mapping[str, Params] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False
    model: bool = True
    """Whether params are a usable model yet."""


def usable(state: State) -> State:
    """The same state, if its params are numbers.

    One with a NaN in it is not gone on from, and never saved.
    """
    for name, tensor in () if all_finite(list(state.params.values())) else state.params.items():
        if not all_finite([tensor]):
            what = f"Round {state.round}" if state.round else "The method's beginning"
            raise Refused(
                f"{what} left NaN or infinite values in {name!r}, so it is not kept and the state before it stands;"
                " lower the learning rate (or the method's own strength), or set training.robust.rule, and start again."
            )
    return state
