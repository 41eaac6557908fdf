"""What the header of a saved state says: how far a job is, and what the state vouches for.

`folder/folder.py` writes and reads the files; the book of requests asks them at which model a job began and what it did
to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from unfed.records import Count, FileName, JsonRecord, Plain

Texts = tuple[str, ...]


class HistoryNote(JsonRecord):
    """What a saved state says of one method's history."""

    clients: Texts
    groups: Texts = ()
    rounds: Count = 0
    numbers: Plain = Field(default_factory=dict)
    purged: Texts = ()


class LogNote(JsonRecord):
    """The file of the histories, and how much of it belongs to the state."""

    file: FileName
    length: Count
    sha256: str


class Beginning(JsonRecord):
    """What a method did to the model before its first round, by tensor."""

    went_in: Mapping[str, str]
    begun: Mapping[str, str]
    changes: Mapping[str, str]
    shapes: Mapping[str, tuple[Count, ...]]

    def same(self, came_out: Mapping[str, str]) -> list[str]:
        """The tensors that are bit for bit as they were."""
        return [name for name, digest in self.went_in.items() if came_out.get(name) == digest]


class Diary(JsonRecord):
    """Notes of a job on its way."""

    beginning: Beginning | None = None
    forgetting: Plain | None = None
    best_round: Count | None = None
    tuned: Plain | None = None


class Base(JsonRecord):
    """The model that a job began at."""

    model: str | None = None


class Vouched(JsonRecord):
    """What a saved state vouches for: its job, run.json, the trajectory, the model, the log."""

    job: str | None = None
    run: str | None = None
    trajectory: str | None = None
    model: str | None = None
    log: str | None = None


class SavedState(JsonRecord):
    """What the header of a saved state says."""

    round: Count
    done: bool
    model: bool
    numbers: Plain
    offset: Count
    finished: str | None = None
    rounds: Count | None = None
    versions: Mapping[str, str] = {}
    diary: Diary = Diary()
    histories: Mapping[str, HistoryNote] = {}
    log: LogNote | None = None
    base: Base = Base()
    start: Annotated[int, Field(ge=1, lt=1 << 64)] = 1
    bound: Vouched = Vouched()
    purged: str | None = None
    pruned: str | None = None
    app: Plain = Field(default_factory=dict)
    """Of a Flower app: what was turned in its model, and by whom."""
