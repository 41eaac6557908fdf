"""A method's turn on a request.

It is handed from whoever decides that it is due to whoever does the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unfed.data import Request
from unfed.methods import Method
from unfed.model.params import Params
from unfed.requests.entry import Entry, Job
from unfed.runs.together import Batch


@dataclass(frozen=True, eq=False)
class MethodTurn:
    """One method's turn on the last of some requests, the ones before it being out already."""

    seed: int
    requests: Sequence[Request]
    label: str
    method: Method
    params: Params
    """The model it begins at."""
    previous: Job | None = None
    """The job that made it, if not the training."""
    batch: Batch | None = None
    """The request in the queue, or those that share a job, where they are served; a comparison has none."""
    base: Mapping[str, Any] | None = None
    """What a saved state must have begun at."""

    @property
    def entry(self) -> Entry | None:
        """The request in the queue that says how it is served."""
        return None if self.batch is None else self.batch.first
