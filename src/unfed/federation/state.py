"""What a method hands from round to round: params, tensors and numbers, nothing else, so it can be saved after any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unfed.model.params import Params


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
