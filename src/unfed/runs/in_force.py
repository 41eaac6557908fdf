"""Which model of a run is in force: the one to hand out, by name.

    requests served     that of the request that was served last
    none yet            θ*, with everybody in it
    a comparison        θ*: methods were compared, and no method's model was put in force

A request that is owed (denied, expired) is out of every training, but the model in force still carries it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unfed.errors import UnfedError, listed
from unfed.runs.folder import Job
from unfed.runs.requests import in_force as in_order
from unfed.runs.run import Run


@dataclass(frozen=True)
class InForce:
    """A repetition's model in force, and what is still in it."""

    job: Job
    served: tuple[str, ...]
    """The requests that are out of it, in the order of service."""
    owed: tuple[str, ...]
    """The requests that were accepted and are still in it."""
    compared: tuple[str, ...] = ()
    """The methods of a comparison, of which none was put in force."""

    @property
    def sentence(self) -> str:
        """The model in words, without a full stop."""
        if self.served:
            told = f"the model of request {self.served[-1]} by {self.job.label}"
        elif self.compared:
            told = "θ*, as trained; a comparison puts no method's model in force"
        else:
            told = "θ*, as trained"
        still = f"; still in it: {listed(self.owed)}" if self.owed else ""
        return told + still

    def to_json(self) -> dict[str, Any]:
        return {
            "job": "/".join(self.job.path.parts),
            "seed": self.job.seed,
            "request": self.job.request,
            "method": self.job.label,
            "served": list(self.served),
            "owed": list(self.owed),
            "sentence": self.sentence,
        }


def in_force(run: Run, seed: int) -> InForce:
    """The model in force of one repetition."""
    job = run.current_job(seed)
    entries = [entry for entry in run.folder.requests() if entry.seed == seed and entry.accepted]
    served = tuple(entry.request.id for entry in in_order(entries))
    open_ones = tuple(entry.request.id for entry in entries if entry.state != "fulfilled")
    compared = tuple(run.config.methods.run) if run.config.request and not served else ()
    return InForce(job, served, open_ones, compared)


def to_hand_out(run: Run, seed: int | None) -> InForce:
    """The model in force, if there is one that somebody could mean without naming it."""
    found = in_force(run, run.one_seed(seed))
    if found.compared:
        requests = listed(run.config.request_ids())
        raise UnfedError(
            f"This run compares methods and has put none of their models in force; say which one with --method,"
            f" {listed(found.compared)}, or train for θ*, which still carries {requests}."
        )
    return found
