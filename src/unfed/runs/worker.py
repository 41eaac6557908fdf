"""What the queue of deletion requests needs of the run that serves them, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from unfed.config.config import Config
from unfed.data import Request
from unfed.folder.folder import RunFolder
from unfed.methods import State
from unfed.model.params import Params
from unfed.requests.entry import Entry, Job
from unfed.runs.method_turn import MethodTurn
from unfed.runs.progress import Watch
from unfed.runs.together import Batch, Handed
from unfed.runs.world import World


class Worker(Protocol):
    """Who serves what the queue gives out: a run."""

    folder: RunFolder
    config: Config

    def world(self, seed: int) -> World: ...

    def trained(self, seed: int) -> bool: ...

    def current_job(self, seed: int, besides: Collection[str] = ()) -> Job: ...

    def current(self, seed: int, besides: Collection[str] = ()) -> Params: ...

    def about(self, label: str, entry: Entry | None = None) -> dict[str, Any]: ...

    def way_out(self, entry: Entry) -> str: ...

    @property
    def going_on(self) -> str: ...

    def command(self, name: str, *arguments: object) -> str: ...

    def score_before(
        self,
        seed: int,
        requests: Sequence[Request],
        params: Params,
        label: str = "before",
        base: Mapping[str, Any] | None = None,
    ) -> None: ...

    def unlearn(self, turn: MethodTurn, watch: Watch) -> State: ...

    def hand_over(self, batch: Batch, entry: Entry, turn: Handed) -> None: ...
