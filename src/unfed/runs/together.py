"""Requests that wait at the same time and share one recovery (`forget --together`).

    m_1, m_2, … ──► one request for all that they ask ──► one job, `together-N` ──► one model
                                                                                      │
                 m_1: scored, through the gate, in force or denied, on its own  ◄─────┤
                 m_2: the same                                                  ◄─────┘

N is the number of the first. What the job does is what one request naming all of it would have done. Who shares stands
in each request's file before work begins, so a crash does not change it; one that is withdrawn later leaves the others,
and their job begins again without it. All that come into force have one place in the order of service: one model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError, listed
from unfed.folder.folder import RunFolder
from unfed.folder.job_notes import JobNotes, began, model_notes, start_on
from unfed.folder.layout import Description
from unfed.folder.purge import RecordedRun
from unfed.measures import trajectory
from unfed.measures.evaluator import Scorer
from unfed.methods import Method, State
from unfed.model.params import Params
from unfed.requests.book import Book
from unfed.requests.entry import SHARED, Entry, Job, now
from unfed.requests.options import Until
from unfed.runs.progress import Watch
from unfed.runs.world import World


@dataclass(frozen=True)
class SharedRecovery:
    """The requests that one job works for: one, or several that share it."""

    entries: tuple[Entry, ...]

    @property
    def first(self) -> Entry:
        """Whose method, end and options are those of all."""
        return self.entries[0]

    @property
    def shared(self) -> str | None:
        """The name of the job that they share; None of one that was taken up alone."""
        return self.first.shared

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(entry.request.id for entry in self.entries)

    @property
    def waiting(self) -> tuple[Entry, ...]:
        """Those that are not settled yet: a process may have died while it settled them."""
        return tuple(entry for entry in self.entries if entry.waiting)

    @property
    def request(self) -> Request:
        """What the job takes out."""
        own = [entry.request for entry in self.entries]
        return own[0] if self.shared is None else united(self.shared, own)

    def besides(self, entry: Entry) -> list[Request]:
        """What the others of them ask for."""
        return [other.request for other in self.entries if other.number != entry.number]


def united(name: str, requests: Sequence[Request]) -> Request:
    """One request for all that some requests of a kind ask for."""
    return Request(
        name,
        tuple(dict.fromkeys(client for one in requests for client in one.clients)),
        tuple(dict.fromkeys(number for one in requests for number in one.classes)),
        tuple(dict.fromkeys(sample for one in requests for sample in one.samples)),
        rows=tuple(dict.fromkeys(row for one in requests for row in one.rows)),
        deleted=requests[0].deleted,
    )


def alike(one: Entry, other: Entry) -> bool:
    """Whether one job could serve both: the same method, to the same end, for requests of a kind."""
    return _asked(one) == _asked(other)


def _asked(entry: Entry) -> tuple[Any, ...]:
    how, request = entry.how, entry.request
    kind = request.kind, bool(request.rows)
    return entry.seed, entry.method, entry.until, dict(how.set), how.within, kind, request.deleted


def may_share(one: Entry, other: Entry) -> bool:
    """Whether a request that waits is to be served together with another.

    Neither may have been taken up before.
    """
    return one.state == "open" and one.how.together and other.how.together and alike(one, other)


def sharing(entry: Entry, entries: Sequence[Entry], world: World, out: Sequence[Request]) -> list[Entry]:
    """Those that are taken up with a request that is open, itself among them.

    They stand in the order in which they were asked. Each must have rows of its own beside the others and those that
    are out: one whose rows are all another's has its turn alone.
    """

    def apart(members: Sequence[Entry]) -> bool:
        asked = [one.request for one in members]
        return all(world.holds(one, [*out, *(rest for rest in asked if rest is not one)]) for one in asked)

    others = [one for one in entries if one.number != entry.number and may_share(one, entry)]
    found = [entry, *others]
    if not apart(found):  # rare: then each is tried beside those before it
        found = [entry]
        for other in others:
            found += [other] if apart([*found, other]) else []
    return sorted(found, key=lambda one: one.number)


def taken_up(entry: Entry, entries: Sequence[Entry], put_off: Collection[int], world: World) -> SharedRecovery:
    """A request that waits as it is begun or gone on with, and those that share its job."""
    if entry.state == "open":
        free = [one for one in entries if one.number not in put_off]
        out = [one for one in entries if one.accepted and not one.waiting and one.seed == entry.seed]
        gone = [one.request for one in out]
        members = sharing(entry, free, world, gone) if entry.how.together else [entry]
        numbers = tuple(one.number for one in members) if len(members) > 1 else ()
        earlier = tuple(one.request.id for one in out)
    else:  # a process may have died while it took them up, or while it settled them
        numbers, earlier = entry.together, entry.earlier
        there = [one for one in entries if one.number in (numbers or (entry.number,)) and alike(one, entry)]
        members = [one for one in there if one.state not in ("revoked", "expired")]
    at = now()
    begun: dict[str, Any] = {"earlier": earlier, "together": numbers}
    return SharedRecovery(
        tuple(
            one.stepped("in_progress", at, begun=one.begun or at, **begun) if one.state == "open" else one
            for one in members
        )
    )


def refuse_if_alone(config: Config, entry: Entry) -> None:
    """Refuse `--together` where a request cannot share its recovery."""
    if not entry.how.together:
        return
    if entry.request.fraction is not None:
        raise UnfedError("A share of samples is drawn for each request by itself; leave --together out.")
    if "forgotten" in Until.of(entry.until).goals:
        raise UnfedError("--until forgotten watches one request; leave --together out, or use --until recovered.")
    if kept := [label for label, method in config.recorded().items() if method.follows]:
        history = f"The history for {listed(kept, 'and')} follows one request at a time"
        raise UnfedError(f"{history}; leave --together out.")


def hand_over(
    folder: RunFolder, config: Config, batch: SharedRecovery, entry: Entry, turn: HandedOver, evaluator: Scorer
) -> None:
    """Give a request the model that was made for several: scored for it alone, under its own name.

    What was handed over already is not handed over again.
    """
    own, shared = Job(entry.seed, entry.request.id, entry.method), Job(entry.seed, batch.shared, entry.method)
    saved, whole = folder.saved(own), folder.saved(shared)
    assert whole is not None
    start = 1 if saved is None else start_on(turn.base, saved)
    if saved is None or not saved.finished or start != saved.start:
        if saved is not None:
            folder.drop_samples(own)
        notes, round = JobNotes.from_json(whole.diary.to_json()), whole.round
        seen, before = evaluator(turn.after), evaluator.validation(turn.before)
        at = trajectory.Point(own.seed, own.request, own.label, round)
        costs = notes.ledger.to_json()
        said: trajectory.Notes = {"earlier": seen.earlier, "own": seen.own, "rows": seen.rows, "start": start}
        said |= {"asked": turn.rounds.asked, "refused": turn.rounds.refused}
        line = trajectory.line(at, seen.numbers, before, costs, **said)
        folder.save_samples(own, round, seen.samples, turn.requests)
        left = JobNotes(notes.ledger, folder.append(line), beginning=notes.beginning)
        numbers = {"offset": left.offset, "diary": left.to_json()}
        numbers |= whole.to_json(include={"finished", "rounds", "versions"})
        folder.save_state(own, State(turn.after, round=round, done=True), numbers | began(turn.base, start))
        folder.save_model(own, turn.after, model_notes(turn.book, config, own, round, turn.after))
    elif not folder.model_file(own).exists():
        folder.save_model(own, turn.after, model_notes(turn.book, config, own, whole.round, turn.after))


@dataclass(frozen=True, eq=False)
class HandedOver:
    """The model that came out of a shared job, and how one of its requests looks at it."""

    before: Params
    after: Params
    requests: Sequence[Request]
    """Those that are out, the others that share, and last the one that is looked at."""
    base: Mapping[str, Any]
    rounds: JobRounds
    book: Book


@dataclass(frozen=True)
class JobRounds:
    """Who was asked, and whose updates were refused, in all rounds of a job's present start."""

    asked: dict[str, list[str]]
    refused: list[trajectory.RefusedUpdate]

    @classmethod
    def of(cls, folder: RunFolder, job: Job) -> JobRounds:
        found, saved = cls({}, []), folder.saved(job)
        for line in folder.lines():
            if trajectory.job_of(line) == job.key and saved is not None and line.get("start", 1) == saved.start:
                found.asked.update(line.get("asked") or {})
                found.refused.extend(line.get("refused") or [])
        return found


def shared_requests(entries: Sequence[Entry]) -> list[Request]:
    """What each shared job took out, as far as no one was withdrawn."""
    found: dict[str, list[Request]] = {}
    for entry in entries:
        if entry.shared is not None and entry.accepted:
            found.setdefault(entry.shared, []).append(entry.request)
    return [united(name, requests) for name, requests in found.items()]


def reserved(name: str) -> bool:
    """Whether a name is one that shared jobs have."""
    return name.startswith(SHARED) and name.removeprefix(SHARED).isdigit()


# --- a method's turn on a request -------------------------------------------------------------------------------------


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
    batch: SharedRecovery | None = None
    """The request in the queue, or those that share a job, where they are served; a comparison has none."""
    base: Mapping[str, Any] | None = None
    """What a saved state must have begun at."""

    @property
    def entry(self) -> Entry | None:
        """The request in the queue that says how it is served."""
        return None if self.batch is None else self.batch.first


# --- what the queue needs of the run that serves it -------------------------------------------------------------------


class Worker(RecordedRun, Protocol):
    """A run that serves what the queue gives out."""

    description: Description

    def world(self, seed: int) -> World: ...

    def trained(self, seed: int) -> bool: ...

    def current_job(self, seed: int, besides: Collection[str] = ()) -> Job: ...

    def current(self, seed: int, besides: Collection[str] = ()) -> Params: ...

    def score_before(
        self,
        seed: int,
        requests: Sequence[Request],
        params: Params,
        label: str = "before",
        base: Mapping[str, Any] | None = None,
        evaluator: Scorer | None = None,
    ) -> None: ...

    def unlearn(self, turn: MethodTurn, watch: Watch) -> State: ...
