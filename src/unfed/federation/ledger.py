"""What unlearning cost, cumulated from its start to the round at hand.

    comm_bytes  = Σ over model transfers of 4·P         the paper's rule: one download and one upload per participant
    wire_bytes  = Σ over everything that crossed        buffers and context models too, in their own types
    flops       = Σ over samples of 3·F, or F           forward and backward, or forward only

    stored_*    = history kept since training           at the server; and what the method as first published would
                                                        have kept for the same rounds

F is `flop_counter`'s count of one forward pass, without fused kernels; P counts trainable parameters. Evaluation and
averaging are not counted. Framing (headers, serialisation) is not in `wire_bytes`: in a simulation there is none. Where
messages are real (Flower), `serialised_bytes` counts them whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from unfed.model.flops import Flops


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
