"""A run as a page reads it: frozen values, made and checked once.

    RunInfo.of(run.info())      run.json, requests, jobs, probes, populations, which model is in force
      .requests                 RequestInfo: what was asked, where it stands, what its gate found
      .jobs                     JobInfo: checksums of what went in and came out
      .undo                     ProbeResult: what attacks brought back
      .population               JudgedPopulation: what many models tell

This is the only place that knows the keys of those files. What a folder of an earlier version lacks has a default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unfed.errors import UnfedError
from unfed.measures.forgotten import Forgetting
from unfed.measures.trajectory import Line
from unfed.report.rules import trajectories
from unfed.report.wording import CENTRAL, FEDERATED, FLOWER, Wording
from unfed.values import Value


class ReportValue(BaseModel):
    """A value that a page shows; what it does not show is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    @classmethod
    def of(cls, raw: object) -> Self:
        """The value from what a file or a run says."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UnfedError(f"This run cannot be shown: {where} is damaged ({first['msg']}).") from error


class GateCheck(ReportValue):
    """One check of the gate."""

    name: str
    what: str = ""
    value: Value | None = None
    bound: float = 0.0
    verdict: str = ""
    decides: bool = False


class GateFinding(ReportValue):
    """What the gate found of a request's model."""

    checks: tuple[GateCheck, ...] = ()
    accepted: Mapping[str, Any] | None = None
    forgetting: Mapping[str, Any] | None = None


class EarlierRequest(ReportValue):
    """What a new model shows of a request that left earlier."""

    forget: Value
    chance: Value | None = None
    expected: Value | None = None
    mia: Value | None = None
    backdoor: Value | None = None
    rows: int | str | None = None


class RequestInfo(ReportValue):
    """A deletion request; its `state` is None where methods were only compared."""

    id: str
    kind: str = ""
    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    samples: int | None = None
    fraction: float | None = None
    forgotten_rows: int | None = None
    most_rows: int | None = None
    """The most rows, where each seed deals the data otherwise; then `forgotten_rows` is the fewest."""
    planted: bool = True
    """Whether a measured backdoor says how well the request was served: only if its planter leaves."""
    method: str | None = None
    until: str | None = None
    state: str | None = None
    standing: str | None = None
    reason: str | None = None
    why: str | None = None
    owed: bool = False
    way_out: str | None = None
    superseded: str | None = None
    left_by: tuple[str, ...] = ()
    created: str | None = None
    changed: str | None = None
    expires: str | None = None
    expected_by: str | None = None
    purged: str | None = None
    subject: str | None = None
    gate: GateFinding | None = None
    again: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    attempts: tuple[Mapping[str, Any], ...] = ()

    @property
    def checks(self) -> tuple[GateCheck, ...]:
        return self.gate.checks if self.gate else ()


class MethodStart(ReportValue):
    """The checksums at a method's start, and what it changed there itself."""

    shapes: Mapping[str, tuple[int, ...]] = Field(default_factory=dict)
    went_in: Mapping[str, str] = Field(default_factory=dict)
    begun: Mapping[str, str] = Field(default_factory=dict)
    changes: Mapping[str, str] = Field(default_factory=dict)

    def same(self, came_out: Mapping[str, str]) -> list[str]:
        """The tensors that are bit for bit as they were."""
        return [name for name, digest in self.went_in.items() if came_out.get(name) == digest]


class PurgedModel(ReportValue):
    """Why a job's model is gone."""

    request: str
    date: str
    model: str | None = None


class JobInfo(ReportValue):
    """One job: a method under a request, or the training."""

    seed: int
    request: str | None = None
    method: str
    rounds: int = 0
    finished: str | None = None
    needs: tuple[str, ...] | None = None
    file: str = ""
    beginning: MethodStart | None = None
    came_out: Mapping[str, str] | None = None
    purged: PurgedModel | None = None
    forgetting: Mapping[str, Any] | None = None


class CarryingFile(ReportValue):
    """A file that still carries what a request takes out."""

    request: str
    file: str
    what: str


class ProbeResult(ReportValue):
    """One file of a run's `undo/`; `measured` is by model, attack and number."""

    request: str
    method: str
    title: str
    seed: int
    measured: Mapping[str, Any]
    over: tuple[str, ...] = ()


class JudgedModels(ReportValue):
    """What attacks and distances say of one method's models, or of Retrain's."""

    title: str = ""
    verdict: Mapping[str, Any] = Field(default_factory=dict)
    standing: Mapping[str, Any] = Field(default_factory=dict)
    held_out: Mapping[str, Any] = Field(default_factory=dict)
    attacks: Mapping[str, Any] = Field(default_factory=dict)
    distances: Mapping[str, Any] = Field(default_factory=dict)
    singles: Mapping[str, Any] = Field(default_factory=dict)
    accuracy: Mapping[str, Any] = Field(default_factory=dict)
    exposure: tuple[Mapping[str, Any], ...] = ()
    quarter: int = 0


class JudgedPopulation(ReportValue):
    """One file of a run's `population/`."""

    name: str = ""
    request: str = ""
    hardware: str = ""
    models: int
    half: int
    rows: Mapping[str, int]
    methods: Mapping[str, JudgedModels]
    yardstick: JudgedModels
    distributions: Mapping[str, Any]
    unfinished: Mapping[str, int] = Field(default_factory=dict)
    tuned: Mapping[str, Any] | None = None


class CurrentModel(ReportValue):
    """Which model of a repetition is in force."""

    seed: int
    sentence: str
    only_compared: tuple[str, ...] = ()


class RunInfo(ReportValue):
    """Everything that a page shows of a run besides its trajectory."""

    name: str = "run"
    created: str = ""
    layout: int | None = Field(default=None, validation_alias="schema")
    config: Mapping[str, Any] | None = None
    seeds: tuple[int, ...] = ()
    clients: tuple[str, ...] = ()
    versions: Mapping[str, str] = Field(default_factory=dict)
    hardware: str = ""
    device: str = ""
    engine: str = ""
    parameters: int | None = None
    forward_flops: Value | None = None
    rounds: Mapping[str, int | None] = Field(default_factory=dict)
    recovered_within: float = 0.5
    call: Mapping[str, Any] | None = None
    app: Mapping[str, Any] | None = None
    requests: tuple[RequestInfo, ...] = ()
    jobs: tuple[JobInfo, ...] = ()
    influence: tuple[CarryingFile, ...] | None = None
    undo: tuple[ProbeResult, ...] = ()
    probes_purged: tuple[str, ...] = ()
    population: Mapping[str, JudgedPopulation] = Field(default_factory=dict)
    in_force: tuple[CurrentModel, ...] = ()

    @property
    def words(self) -> Wording:
        """The words of the run's setting."""
        if self.call or (self.config or {}).get("setting") == "central":
            return CENTRAL
        return FLOWER if self.engine in ("flower", "remote") else FEDERATED

    @property
    def data(self) -> str:
        """The name of the data set."""
        return self._named("data")

    @property
    def model(self) -> str:
        """The name of the model."""
        return self._named("model")

    def _named(self, table: str) -> str:
        found = (self.config or {}).get(table)
        return str(found.get("name", "")) if isinstance(found, Mapping) else str(found or "")

    def asked(self, lines: Sequence[Line]) -> dict[str, RequestInfo]:
        """The requests by id, with those that only the trajectory names."""
        grouped = trajectories(lines)
        known = {one.id: one for one in self.requests}
        known |= {name: RequestInfo(id=name) for name in grouped if name not in known}
        poison = (self.config or {}).get("poison")
        for name, one in known.items():
            changes: dict[str, Any] = {}
            first = [
                line.get("rows", {}) for by_seed in grouped.get(name, {}).values() for line, *_ in by_seed.values()
            ]
            dealt = {count for rows in first if (count := rows.get("own") or rows.get("forget"))}
            if len(dealt) > 1:
                changes = {"forgotten_rows": min(dealt), "most_rows": max(dealt)}
            if isinstance(poison, Mapping) and "client" in poison:
                changes["planted"] = str(poison["client"]) in one.clients
            known[name] = one.model_copy(update=changes)
        return known

    def forgetting(self, request: str) -> dict[str, dict[int, Forgetting]]:
        """Whether each method's model forgot a request, by method and seed; beside Retrain where it ran."""
        own = next((one for one in self.requests if one.id == request), RequestInfo(id=request))
        found: dict[str, dict[int, Forgetting]] = {}
        for job in self.jobs:
            served = own.gate.forgetting if own.gate and job.method == own.method else None
            if job.request == request and (told := Forgetting.of(served or job.forgetting)) is not None:
                found.setdefault(job.method, {})[job.seed] = told
        retrain = found.pop("retrain", {})
        return {
            method: {seed: one.beside(retrain.get(seed)) for seed, one in by.items()} for method, by in found.items()
        }
