"""What a saved state says besides the state.

It says what was spent and seen so far, and at what the job began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from unfed import storage
from unfed.config.config import Config
from unfed.engines.base import Refusal
from unfed.federation.robust import Usual
from unfed.federation.state import Ledger
from unfed.measures.trajectory import Line, RefusedUpdate, job_of
from unfed.model import params as digest
from unfed.model.params import Params
from unfed.requests.book import Book
from unfed.requests.entry import Job
from unfed.requests.reversible import ways_back
from unfed.requests.saved_state import SavedState


@dataclass
class JobNotes:
    """What a job remembers between saves besides its state."""

    ledger: Ledger = field(default_factory=Ledger)
    offset: int = 0
    best: float = -1.0
    best_round: int = 0
    best_test: float = -1.0
    asked: dict[int, list[str]] = field(default_factory=dict)
    refused: list[RefusedUpdate] = field(default_factory=list)
    beginning: dict[str, Any] | None = None
    """SHA-256 of the model that went in, and what `begin` changed in it."""
    attempt: int = 0
    """How often the next round has failed for want of answers."""
    missing: list[str] | None = None
    """Which of the goals that it works for were not reached when it was last evaluated."""
    watched: str = ""
    """What was seen of forgetting then, in words, where that is a goal."""
    forgetting: dict[str, Any] | None = None
    """Whether the last model of a comparison, or of a call of `unlearn`, forgot."""
    usual: Usual = field(default_factory=dict)
    """How long updates were in the last rounds."""
    good: float | None = None
    """The validation accuracy of the last good state, once a round was scored."""
    aside: list[str] = field(default_factory=list)
    """Clients that spoiled a round, and are left out since."""
    careful: int = 0
    """Up to which round every round is scored, since one before it spoiled the model."""

    fell: float | None = None
    """The validation accuracy before a round that spoiled the model and stands, until it is reached again."""
    tuned: dict[str, Any] | None = None
    """The learning rate that trials chose, what each rate reached, and how many rounds they took."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "ledger": self.ledger.to_json(), "asked": {str(r): c for r, c in self.asked.items()}}

    @staticmethod
    def from_json(raw: dict[str, Any]) -> JobNotes:
        known = {one.name: raw[one.name] for one in fields(JobNotes) if one.name in raw}
        asked = {int(r): c for r, c in raw["asked"].items()}
        return JobNotes(**{**known, "ledger": Ledger.from_json(raw["ledger"]), "asked": asked})


def start_on(base: Mapping[str, Any] | None, saved: SavedState) -> int:
    """Which start of a job this is.

    It is the saved one, or the next if that was at another model or without other rows.
    """
    if saved.purged:  # of its state only numbers are left
        return saved.start + 1
    same = base is None or "base" not in saved.model_fields_set or saved.base.to_json() == dict(base)
    return saved.start if same else saved.start + 1


def began(base: Mapping[str, Any] | None, start: int) -> dict[str, Any]:
    """What a saved state says of its beginning."""
    return ({} if base is None else {"base": dict(base)}) | ({} if start == 1 else {"start": start})


def model_notes(book: Book, config: Config, job: Job, round: int, params: Params) -> dict[str, Any]:
    """What a model's file says of itself."""
    about = {**asdict(job), "round": round, "architecture": config.model.name, "options": config.model.options}
    about |= {storage.WAY_BACK: back} if (back := ways_back(book, job)) else {}
    return {**about, "sha256": digest.digests(params)}


def last_starts(lines: Sequence[Line]) -> list[Line]:
    """The lines of a trajectory without those of jobs that were begun again since."""
    starts: dict[tuple[Any, ...], int] = {}
    for line in lines:
        starts[job_of(line)] = max(starts.get(job_of(line), 1), line.get("start", 1))
    return [line for line in lines if line.get("start", 1) == starts[job_of(line)]]


def noted(refusal: Refusal) -> RefusedUpdate:
    """An update that was refused, as a line holds it."""
    return {"round": refusal.round, "client": refusal.client, "reason": refusal.reason}
