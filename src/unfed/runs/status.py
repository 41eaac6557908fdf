"""Where a run stands: which model is in force, and what became of every job and request.

    requests served     the model of the request that was served last is in force
    none yet            θ*, with everybody in it
    a comparison        θ*: methods were compared, and no method's model was put in force

A request that is owed (denied, expired) is out of every training. The model in force still carries it, unless that
model was drawn again since. It also still carries what methods were only compared for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unfed.config.tables import KeptList, RequestConfig
from unfed.data import Request
from unfed.errors import UnfedError, listed
from unfed.folder import carriers, locks
from unfed.folder.info import InForce, RequestInfo, RunInfo
from unfed.measures import trajectory
from unfed.requests.book import in_force as in_order
from unfed.requests.entry import Job
from unfed.runs import description
from unfed.runs.run import Run
from unfed.values import Value


@dataclass(frozen=True)
class JobStatus:
    """Where a job stands, and its last numbers."""

    job: str
    round: int
    rounds: int
    test: Value | None
    forget: Value | None
    state: str

    @property
    def request(self) -> str | None:
        """The request that it serves; none of a training."""
        _, *request, _ = self.job.split("/")
        return request[0] if request else None


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands: running, finished or interrupted; waiting where only open requests are left."""

    state: str
    jobs: tuple[JobStatus, ...]
    requests: tuple[RequestInfo, ...]
    in_force: tuple[InForce, ...]
    seconds_left: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "jobs": [vars(job) for job in self.jobs],
            "requests": [request.to_json() for request in self.requests],
            "in_force": [model.to_json() for model in self.in_force],
            "seconds_left": self.seconds_left,
        }


def in_force(run: Run, seed: int) -> InForce:
    """The model in force of one repetition."""
    job = run.current_job(seed)
    book = run.folder.book()
    entries = book.accepted(seed)
    served = tuple(entry.request.id for entry in in_order(entries))
    gone = [entry.request for entry in entries if entry.state == "fulfilled"]
    unsettled = [entry for entry in entries if entry.state != "fulfilled"]
    folder = carriers.ReadOnce(run.folder, book)
    spared = [e for e in unsettled if job.path in carriers.without(folder, book, e)]
    owed = tuple(entry.request.id for entry in unsettled if entry not in spared)
    never_saw = tuple(entry.request.id for entry in spared)
    compared = tuple(run.config.methods.run) if run.config.request and not served else ()
    known = {entry.request.id for entry in entries}
    asked = zip(run.config.request_ids(), run.config.request, strict=True)
    only_compared = tuple(name for name, own in asked if name not in known and not is_out(own, gone))
    return InForce(job, served, owed, compared, only_compared, not run.config.methods.run, never_saw)


def info_of(run: Run) -> RunInfo:
    """What a run says of itself, and which model of each repetition is in force."""
    return run.info().model_copy(update={"in_force": all_in_force(run)})


def all_in_force(run: Run) -> tuple[InForce, ...]:
    """The model in force of each repetition that was trained."""
    return tuple(in_force(run, seed) for seed in run.config.seed_list if run.trained(seed))


def is_out(asked: RequestConfig, gone: Sequence[Request]) -> bool:
    """Whether served requests, under whatever ids, took out all that this one of the config names."""
    clients = {client for request in gone for client in request.clients}
    classes = {one for request in gone for one in request.classes}
    samples = {sample for request in gone for sample in (*request.samples, *request.rows)}
    if asked.clients or asked.classes:
        return clients.issuperset(asked.clients) and classes.issuperset(asked.classes)
    kept = asked.samples.list if isinstance(asked.samples, KeptList) else None
    if kept is None or kept.rows:
        return kept is not None and samples.issuperset(kept.rows)
    return all(sample in samples or sample[0] in clients for sample in kept.samples)


def to_hand_out(run: Run, seed: int | None) -> InForce:
    """The model in force, if there is one that needs no name."""
    found = in_force(run, run.one_seed(seed))
    if found.compared:
        requests = listed(run.config.request_ids(), "and")
        which = f"{listed(found.compared)}, or train for θ*, which still carries {requests}"
        raise UnfedError(f"This run only compares methods; say with --method which model: {which}.")
    return found


# --- where every job and request stands -------------------------------------------------------------------------------


def status(run: Run) -> RunStatus:
    """Where a run stands, every job, and every deletion request.

    A request that was denied, withdrawn or has expired leaves nothing to resume.
    """
    last = trajectory.last_of_each(run.lines())
    busy, heard, jobs = run.folder.busy(), locks.heard(run.folder.path) or {}, []
    entries = run.folder.book().entries
    over = {Job(e.seed, e.request.id, e.method): e.standing for e in entries if e.owed or not e.accepted}
    for job, rounds in run.jobs():
        line: Mapping[str, Any] = last.get(job.key, {})
        saved = run.folder.saved(job)
        finished = saved and saved.finished
        at = (heard.get("seed"), heard.get("request"), heard.get("method"))
        here = busy and at == job.key
        jobs.append(
            JobStatus(
                job=job.name,
                round=heard["round"] if here else max(saved.round if saved else 0, int(line.get("round", 0))),
                rounds=rounds if saved is None or saved.rounds is None else saved.rounds,
                test=line.get("test"),
                forget=trajectory.forget_of(line),
                state=over.get(job)
                or finished
                or ("running" if here else "waiting" if saved is None else "not finished"),
            )
        )
    open_ones = {Job(e.seed, e.request.id, e.method) for e in entries if e.state == "open"}
    unfinished = {job for job, _ in run.ahead() if not run.folder.finished(job)}
    begun = any(e.state == "in_progress" for e in entries) or not unfinished <= open_ones
    complete = not unfinished and not open_ones
    state = "running" if busy else "interrupted" if begun else "finished" if complete else "waiting"
    requests = tuple(
        description.request_info(e, run.way_out, {"id": e.request.id, "number": e.number, "subject": e.request.subject})
        for e in entries
    )
    left = heard.get("seconds_left") if busy else None
    return RunStatus(state, tuple(jobs), requests, all_in_force(run), left)
