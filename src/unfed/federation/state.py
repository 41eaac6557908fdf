"""A method's state between rounds, the ledger of what unlearning cost, and how rounds are run.

A state is params, tensors and numbers, nothing else, so it can be saved after any round. The ledger's columns are
cumulative:

    comm_bytes  = Σ over model transfers of 4·P         the paper's rule: one download and one upload per participant
    wire_bytes  = Σ over everything that crossed        buffers and context models too, in their own types
    flops       = Σ over samples of 3·F, or F           forward and backward, or forward only
    stored_*    = history kept since training           at the server; and what the method as first published would
                                                        have kept for the same rounds

F is the count of one forward pass, without fused kernels; P counts trainable parameters. Evaluation and averaging are
not counted. Framing (headers, serialisation) is not in `wire_bytes`; over Flower, `serialised_bytes` counts whole
messages.

A one-cycle is the recipe that makes recovery and Retrain cheap. Over T rounds with peak η, U = ⌈T/5⌉:

    η_r = η · r / U                                   r ≤ U        it rises for a fifth of the rounds
    η_r = η · (1 − 0.98 · (r − U) / (T − U))          r > U        it falls to 2 % of the peak in round T, and stays

The rate is a function of the round alone, so a run that is resumed inside a cycle goes on with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from unfed.client.plan import Phase
from unfed.errors import Refused, UnfedError
from unfed.federation.aggregate import all_finite
from unfed.federation.robust import Robust
from unfed.model.functional import Flops
from unfed.model.params import Params

# --- what a method hands from round to round --------------------------------------------------------------------------


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
                f"{what} left NaN or infinite values in {name!r}, so it is not kept; lower the learning rate, or set"
                " training.robust.rule, and start again."
            )
    return state


# --- what unlearning cost, cumulated from its start to the round at hand ----------------------------------------------


@dataclass(frozen=True)
class Transfer:
    """How a visit is counted. The paper's rule counts models, the wire counts tensors.

    `comm_bytes` takes `down` + `up` models per participant; `wire_bytes` takes what crosses: the model, its context and
    the update, less what can travel as a seed because the client can draw it for itself.
    """

    down: int = 1
    up: int = 1
    seeded: tuple[str, ...] = ()


@dataclass
class Ledger:
    """The columns; every field is cumulative and survives a resume."""

    comm_bytes: int = 0
    wire_bytes: int = 0
    serialised_bytes: int = 0
    flops: Flops = 0
    stored_server_bytes: int = 0
    stored_original_bytes: int = 0
    seconds: float = 0.0

    def sent(self, models: int, parameters: int, wire_bytes: int) -> None:
        """Communication: models that crossed, in either direction."""
        self.comm_bytes += 4 * parameters * models
        self.wire_bytes += wire_bytes

    def worked(self, forward_flops: Flops, trained: int, forwarded: int = 0) -> None:
        """Computation: samples that were trained on, and samples that only went through a context model."""
        if isinstance(forward_flops, str) and trained + forwarded:
            self.flops = forward_flops
        elif not isinstance(forward_flops, str) and not isinstance(self.flops, str):
            self.flops += forward_flops * (3 * trained + forwarded)

    def to_json(self) -> dict[str, float | int | str]:
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, float | int | str]) -> Ledger:
        known = {f.name for f in fields(Ledger)}
        return Ledger(**{k: v for k, v in values.items() if k in known})  # type: ignore[arg-type]


# --- how rounds are run: how many, who is asked, at which learning rate -----------------------------------------------


CYCLE_END = 0.02
"""The part of its peak at which a one-cycle ends."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate of round r of T, written into the round's plan by the server."""

    kind: str = "constant"
    minimum: float = 0.0
    every: int = 1
    factor: float = 0.1
    warmup: int = 0
    over: int | None = None
    """After how many rounds a cosine or a cycle is at its end, if not after the last; it stays there."""

    def rate(self, base: float, round: int, rounds: int) -> float:
        """The learning rate of round r: constant, cosine, step or one-cycle.

        Constant is η, cosine goes from η down to the minimum, where round T + 1 would be, and step is
        η·factor^⌊(r−1)/every⌋.

        The cosine is PyTorch's `CosineAnnealingLR(T)`: with a minimum in round T that round would do nothing.
        """
        round = max(round, 1)  # what a method does before its first round runs at the first round's rate
        if round <= self.warmup:
            return base * round / self.warmup
        if self.kind == "constant":
            return base
        if self.kind == "step":
            return max(self.minimum, base * self.factor ** ((round - 1 - self.warmup) // self.every))
        if self.kind == "cosine":
            span = max(1, (self.over or rounds) - self.warmup)
            progress = min(1.0, (round - 1 - self.warmup) / span)
            return self.minimum + (base - self.minimum) * (1 + math.cos(math.pi * progress)) / 2
        if self.kind == "one-cycle":
            length = self.over or rounds
            up = -(-length // 5)
            if round <= up:
                return base * round / up
            return base * (1 - (1 - CYCLE_END) * min(1.0, (round - up) / max(1, length - up)))
        raise UnfedError(f"The schedule {self.kind!r} is not known; use constant, cosine, step or one-cycle.")


@dataclass(frozen=True)
class Settings:
    """How a federation runs its rounds."""

    phase: Phase = field(default_factory=Phase)
    rounds: int = 60
    schedule: Schedule = field(default_factory=Schedule)
    participation: float = 1.0
    """The share of the clients that is asked in a round, at least one."""
    drop_out: float = 0.0
    """The probability that a client that was asked does not answer."""
    quorum: float = 0.5
    """The share of those asked whose updates must be accepted, at least one."""
    robust: Robust = field(default_factory=Robust)
    """How updates are put together."""
    tune: tuple[float, ...] = ()
    """The learning rates of which trials choose one; none where the phase's own holds."""
    tune_rounds: int = 3
    """The rounds of a trial."""
    keep: bool = False
    """Whether the optimiser goes on from round to round, as it does where one place holds all data."""

    def at(self, lr: float) -> Settings:
        """The same at another learning rate."""
        return replace(self, phase=self.phase.with_optimiser(lr=lr))
