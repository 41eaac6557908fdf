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
from unfed.folder import carriers
from unfed.measures import trajectory
from unfed.methods import METHODS
from unfed.requests.book import in_force as in_order
from unfed.requests.entry import Job
from unfed.runs import description
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
    only_compared: tuple[str, ...] = ()
    """The requests of the config that no served request took out."""
    nothing_ran: bool = False
    """Whether the config names no method that should try them."""
    never_saw: tuple[str, ...] = ()
    """The requests that are not settled, though it was drawn anew without them, or grew out of one that was."""

    @property
    def still_in_it(self) -> tuple[str, ...]:
        """Every request that is known and not out of this model."""
        return self.owed + self.only_compared

    @property
    def sentence(self) -> str:
        """The model in words, without a full stop."""
        known = METHODS.get(self.job.label)
        by = known.title if known else self.job.label
        told = [f"the model of request {self.served[-1]} by {by}" if self.served else "the model as trained (θ*)"]
        if self.owed:
            told.append(f"still in it: {listed(self.owed, 'and')}")
        if self.never_saw:
            many = len(self.never_saw) > 1
            told.append(f"without {listed(self.never_saw, 'and')} too, which {'are' if many else 'is'} not settled yet")
        if self.only_compared:
            which = f"which {'is' if len(self.only_compared) == 1 else 'are'} still in it"
            done = "no method has run for" if self.nothing_ran else "methods were only compared for"
            told.append(f"{done} {listed(self.only_compared, 'and')}, {which}")
        return "; ".join(told)

    def to_json(self) -> dict[str, Any]:
        return {
            "job": "/".join(self.job.path.parts),
            "seed": self.job.seed,
            "request": self.job.request,
            "method": self.job.label,
            "served": list(self.served),
            "owed": list(self.owed),
            "never_saw": list(self.never_saw),
            "only_compared": list(self.only_compared),
            "sentence": self.sentence,
        }


def in_force(run: Run, seed: int) -> InForce:
    """The model in force of one repetition."""
    job = run.current_job(seed)
    book = run.folder.book()
    entries = [entry for entry in book.accepted(seed)]
    served = tuple(entry.request.id for entry in in_order(entries))
    gone = [entry.request for entry in entries if entry.state == "fulfilled"]
    unsettled = [entry for entry in entries if entry.state != "fulfilled"]
    spared = [e for e in unsettled if job.path in carriers.without(run.folder, book, e)]
    owed = tuple(entry.request.id for entry in unsettled if entry not in spared)
    never_saw = tuple(entry.request.id for entry in spared)
    compared = tuple(run.config.methods.run) if run.config.request and not served else ()
    known = {entry.request.id for entry in entries}
    asked = zip(run.config.request_ids(), run.config.request, strict=True)
    only_compared = tuple(name for name, own in asked if name not in known and not is_out(own, gone))
    return InForce(job, served, owed, compared, only_compared, not run.config.methods.run, never_saw)


def info_of(run: Run) -> dict[str, Any]:
    """What a run says of itself, and which model of each repetition is in force."""
    current = [in_force(run, seed).to_json() for seed in run.config.seed_list if run.trained(seed)]
    return {**run.info(), "in_force": current}


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
        raise UnfedError(
            f"This run compares methods and has put none of their models in force; say which one with --method,"
            f" {listed(found.compared)}, or train for θ*, which still carries {requests}."
        )
    return found


# --- where every job and request stands -------------------------------------------------------------------------------


def status(run: Run) -> dict[str, Any]:
    """Where a run stands, every job, and every deletion request.

    It is `running`, `finished`, `interrupted`, or, where all but requests that nobody took up is done, `waiting`.
    A request that was denied, withdrawn or has expired leaves nothing to resume.
    """
    last = trajectory.last_of_each(run.lines())
    busy, heard, jobs = run.folder.busy(), run.folder.heard() or {}, []
    entries = run.folder.book().entries
    over = {Job(e.seed, e.request.id, e.method): e.standing for e in entries if e.owed or not e.accepted}
    for job, rounds in run.jobs():
        line: Mapping[str, Any] = last.get(job.key, {})
        saved = run.folder.saved(job)
        finished = saved and saved.finished
        at = (heard.get("seed"), heard.get("request"), heard.get("method"))
        here = busy and at == job.key
        jobs.append(
            {
                "job": "/".join(job.path.parts),
                "round": heard["round"] if here else max(saved.round if saved else 0, int(line.get("round", 0))),
                "rounds": rounds if saved is None or saved.rounds is None else saved.rounds,
                "test": line.get("test"),
                "forget": trajectory.forget_of(line),
                "state": over.get(job)
                or finished
                or ("running" if here else "waiting" if saved is None else "not finished"),
            }
        )
    open_ones = {Job(e.seed, e.request.id, e.method) for e in entries if e.state == "open"}
    unfinished = {job for job, _ in run.ahead() if not run.folder.finished(job)}
    begun = any(e.state == "in_progress" for e in entries) or not unfinished <= open_ones
    complete = not unfinished and not open_ones
    state = "running" if busy else "interrupted" if begun else "finished" if complete else "waiting"
    requests = [
        {"id": e.request.id, "number": e.number, "subject": e.request.subject, **description.entry(e, run.way_out)}
        for e in entries
    ]
    return {
        "state": state,
        "jobs": jobs,
        "requests": requests,
        "in_force": [in_force(run, seed).to_json() for seed in run.config.seed_list if run.trained(seed)],
        "seconds_left": heard.get("seconds_left") if busy else None,
    }
