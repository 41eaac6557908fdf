"""What a run says of itself: `run.json`, and what came of it since.

    run.info()                  RunInfo: requests, jobs, probes, populations, which model is in force
      .requests                 RequestInfo: what was asked, where it stands, what its gate found
      .jobs                     JobInfo: checksums of what went in and came out
      .undo                     Undoing: what attacks brought back
      .population               Judged: what many models say

Pages, the terminal and the evidence read these values, not the files. What a folder of an earlier version lacks has a
default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationError

from unfed.errors import UnfedError, listed
from unfed.folder.carriers import Carrier
from unfed.folder.layout import AskedRequest, Description, Texts, Undoing
from unfed.folder.study_results import Judged
from unfed.measures.forgotten import Forgetting
from unfed.methods import METHODS
from unfed.records import Count, JsonRecord, Plain
from unfed.requests.entry import Check, GateSaid, Job
from unfed.requests.saved_state import Beginning
from unfed.values import Value


class RequestInfo(AskedRequest):
    """A deletion request; its `state` is None where methods were only compared."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str
    number: int | None = None
    subject: str | None = None
    kind: str = ""
    clients: Texts = ()
    classes: Texts = ()
    samples: int | None = None
    fraction: float | None = None
    forgotten_rows: int | None = None
    most_rows: int | None = None
    """The most rows, where each seed deals the data otherwise; then `forgotten_rows` is the fewest."""
    planted: bool = True
    """Whether a measured backdoor says how well the request was served: only if its planter leaves."""
    created: str | None = None
    method: str | None = None
    until: str | None = None
    state: str | None = None
    reason: str | None = None
    why: str | None = None
    changed: str | None = None
    served: Count | None = None
    expires: str | None = None
    gate: GateSaid | None = None
    purged: str | None = None
    attempts: tuple[Plain, ...] = ()
    again: Mapping[str, Mapping[str, int | Value]] = {}
    left_by: Texts = ()
    superseded: str | None = None
    shared: str | None = None
    """The job that served it and others together."""
    standing: str | None = None
    owed: bool = False
    way_out: str | None = None
    expected_by: str | None = None

    @property
    def checks(self) -> tuple[Check, ...]:
        return self.gate.checks if self.gate else ()


class PurgedModel(JsonRecord):
    """Why a job's model is gone."""

    request: str
    date: str
    model: str | None = None


class JobInfo(JsonRecord):
    """One job: a method under a request, or the training."""

    seed: int
    request: str | None = None
    method: str
    rounds: int = 0
    finished: str | None = None
    needs: Texts | None = None
    beginning: Beginning | None = None
    forgetting: Plain | None = None
    tuned: Plain | None = None
    """Which learning rate was chosen, and how."""
    file: str = ""
    came_out: Mapping[str, str] | None = None
    purged: PurgedModel | None = None


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
    only_compared: tuple[str, ...] = ()
    """The requests of the config that no served request took out."""
    nothing_ran: bool = False
    """Whether the config names no method that should try them."""
    never_saw: tuple[str, ...] = ()
    """The requests that are not settled, though the model, or one that it grew out of, was drawn again without them."""

    @property
    def still_in_it(self) -> tuple[str, ...]:
        """Every request that is known and not out of this model."""
        return self.owed + self.only_compared

    @property
    def sentence(self) -> str:
        """The model in words, without a full stop."""
        known = METHODS.get(self.job.label)
        by = known.title if known else self.job.label
        said = [f"the model of request {self.served[-1]} by {by}" if self.served else "the model as trained (θ*)"]
        if self.owed:
            said.append(f"still in it: {listed(self.owed, 'and')}")
        if self.never_saw:
            many = len(self.never_saw) > 1
            said.append(f"without {listed(self.never_saw, 'and')} too, which {'are' if many else 'is'} not settled yet")
        if self.only_compared:
            which = f"which {'is' if len(self.only_compared) == 1 else 'are'} still in it"
            done = "no method has run for" if self.nothing_ran else "methods were only compared for"
            said.append(f"{done} {listed(self.only_compared, 'and')}, {which}")
        return "; ".join(said)

    def to_json(self) -> dict[str, Any]:
        return {
            "job": self.job.name,
            "seed": self.job.seed,
            "request": self.job.request,
            "method": self.job.label,
            "served": list(self.served),
            "owed": list(self.owed),
            "never_saw": list(self.never_saw),
            "only_compared": list(self.only_compared),
            "sentence": self.sentence,
        }


class RunInfo(Description):
    """Everything that is known of a run besides its trajectory."""

    name: str = "run"
    created: str = ""
    config: Plain = Field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    clients: Texts = ()
    versions: Mapping[str, str] = {}
    hardware: str = ""
    device: str = ""
    engine: str = ""
    parameters: Count = 0
    requests: tuple[RequestInfo, ...] = ()
    jobs: tuple[JobInfo, ...] = ()
    influence: tuple[Carrier, ...] | None = None
    undo: tuple[Undoing, ...] = ()
    probes_purged: Texts = ()
    population: Mapping[str, Judged] = {}
    in_force: tuple[InForce, ...] = ()

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """The value from what files say."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UnfedError(f"This run cannot be shown: {where} is damaged ({first['msg']}).") from error

    @cached_property
    def carriers(self) -> Mapping[str, Sequence[Carrier]]:
        """What still carries each request."""
        found: dict[str, list[Carrier]] = {}
        for one in self.influence or ():
            found.setdefault(one.request, []).append(one)
        return found

    @property
    def data(self) -> str:
        """The name of the data set."""
        return self._named("data")

    @property
    def model(self) -> str:
        """The name of the model."""
        return self._named("model")

    def _named(self, table: str) -> str:
        found = self.config.get(table)
        return str(found.get("name", "")) if isinstance(found, Mapping) else str(found or "")

    def forgetting(self, request: str) -> dict[str, dict[int, Forgetting]]:
        """Whether each method's model forgot a request, by method and seed; beside Retrain where it ran."""
        own = next((one for one in self.requests if one.id == request), RequestInfo(id=request))
        found: dict[str, dict[int, Forgetting]] = {}
        for job in self.jobs:
            served = own.gate.forgetting if own.gate and job.method == own.method else None
            if job.request == request and (seen := Forgetting.of(served or job.forgetting)) is not None:
                found.setdefault(job.method, {})[job.seed] = seen
        retrain = found.pop("retrain", {})
        return {
            method: {seed: one.beside(retrain.get(seed)) for seed, one in by.items()} for method, by in found.items()
        }
