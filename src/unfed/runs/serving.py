"""The queue of a run: deletion requests are filed, withdrawn, and served one after another.

    file ──► requests/NUMBER-ID.json ──► serve: what was begun, else what was asked first, at the model in force
                                            ├── served      ─► fulfilled, with its place in the order of service
                                            ├── it fails    ─► denied: the old model stays in force, the next is served
                                            ├── no answers  ─► put off: open again, the next is served
                                            └── withdrawn   ─► let go; its rows take part again

A request that is refused, raises or does not recover stands in nobody's way; nor does one that is put off, which
`unfed resume` tries again, from its last save if nothing was served since. Only what stops the machine itself (a full
disk, a lost connection) stops the queue, and decides nothing: the request is still in progress when work goes on.

What a request begins at is the model in force when it is taken up, whatever its number: one that is asked again after
later ones were served follows them. What it began without is written into its file, so a crash cannot change it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from unfed import rng
from unfed.data import Request
from unfed.errors import Halted, NotRecovered, Refused, Unanswered, UnfedError, listed
from unfed.methods import Method
from unfed.model.params import Params
from unfed.runs import deny, lineage
from unfed.runs.config import Config
from unfed.runs.description import describe_request, method_facts
from unfed.runs.folder import Job
from unfed.runs.gate import Decision, Gate, NotForgotten, NotPassed, passed
from unfed.runs.method_turn import MethodTurn
from unfed.runs.names import check_id, check_label
from unfed.runs.progress import Watch
from unfed.runs.request_options import RequestOptions, Until
from unfed.runs.requests import Entry, Reason, date_of, in_force, next_number, next_place, now, turn
from unfed.runs.worker import Worker
from unfed.runs.world import World

# What befalls the machine, not a request: a device that is gone does not come back for the next request either.
STOPS: tuple[type[BaseException], ...] = (Halted, OSError, getattr(torch, "AcceleratorError", Halted))


class Withdrawn(Exception):
    """The request at work was withdrawn."""


class Queue:
    """The deletion requests of a run."""

    def __init__(self, run: Worker) -> None:
        self._run, self._folder = run, run.folder
        self.errors: dict[str, Exception] = {}
        """What went wrong with the requests that failed here, by id."""
        self.put_off: set[int] = set()
        """Requests, by number, whose clients did not answer; they are tried again when work is next begun."""

    # --- reading --------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Entry | None:
        return next((e for e in self._folder.requests() if e.request.id == name), None)

    def accepted(self, seed: int) -> list[Entry]:
        """Everything that must stay out of this repetition's training, in the order in which it was asked."""
        return [e for e in self._folder.requests() if e.accepted and e.seed == seed]

    def besides(self, seed: int, known: Sequence[str] = ()) -> list[Request]:
        """What must stay out of training though a job with these requests does not know of it."""
        return [e.request for e in self.accepted(seed) if e.request.id not in known]

    def job_in_force(self, seed: int) -> Job | None:
        """The job whose model is in force, if any request was served: the last in the order of service."""
        served = in_force(self.accepted(seed))
        return Job(seed, served[-1].request.id, served[-1].method) if served else None

    def still_owed(self, entry: Entry) -> str:
        """What became of a request that was not fulfilled, and what can be done."""
        why = entry.why or f"Request {entry.request.id!r} has expired: it was not begun by {entry.expires}."
        if entry.waiting:
            return f"{why} It is still open, and is tried again when the run is resumed."
        return f"{why} It stays owed, and its rows stay out of training: {self._run.way_out(entry)}."

    def waits(self) -> bool:
        """Whether there is a request that could be served now."""
        return turn(self._folder.requests(), self._ready(), self.put_off) is not None

    def _ready(self) -> list[int]:
        return [seed for seed in self._run.config.seed_list if self._run.trained(seed)]

    # --- filing ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _desk(self) -> Iterator[list[Entry]]:
        """Every request, while nobody else files, withdraws or takes one up."""
        with self._folder.lock("requests", wait=True):
            yield self._folder.requests()

    def file(
        self,
        request: Request,
        method: str,
        until: str,
        seed: int,
        expires: str | None = None,
        how: RequestOptions = RequestOptions(),  # noqa: B008
    ) -> tuple[Entry, bool]:
        """The request as it now stands in the queue, and whether it was fulfilled already."""
        run = self._run
        check_id(request.id, "request id")
        check_label(method)
        Until.of(until)  # what it does not take is refused here
        config = how.on(run.config, method)
        expires = None if expires is None else date_of(expires)
        if expires is not None and expires < now():
            raise UnfedError(f"The request would have expired at {expires}, before it is filed; give a later date.")
        world = run.world(seed)
        chosen = lineage.welcome(config, method, request, ())
        chosen.check(world.template.module)
        served_by = {"served_by": method_facts(config, method, chosen)}
        if not run.trained(seed) and not self._folder.busy():
            raise UnfedError(f"The training of this run is not finished; first `unfed resume {self._folder.path}`.")
        if request.id in run.config.request_ids():
            raise UnfedError(f"The id {request.id!r} belongs to this run's comparison; choose another with --id.")
        with self._desk() as entries:
            for entry in entries:
                if entry.request.id == request.id:
                    asked = replace(entry, request=request, method=method, until=until, seed=seed, expires=expires)
                    asked = replace(asked, how=how)
                    asked = replace(
                        asked, described=None if entry.described is None else {**entry.described, **served_by}
                    )
                    return self._asked_again(entry, asked, entries)
            accepted = [e for e in entries if e.accepted and e.seed == seed]
            self._refuse_if_gone(request, seed, accepted)
            self._refuse_if_unable(config, method, request, accepted)
            if run.trained(seed) and not any(e.waiting for e in accepted):  # what waits may begin another history
                current = run.current_job(seed) if chosen.follows else Job(seed, None, "train")
                lineage.not_purged(self._folder, method, chosen, current)
            lineage.warn_of_return(chosen, self._makers(accepted))
            described = describe_request(world, [*(e.request for e in accepted), request]) | served_by
            at, number = now(), next_number(entries)
            entry = Entry(number, request, method, until, at, seed, described, changed=at, expires=expires, how=how)
            self._refuse_if_blind(entry, accepted)
            entry = replace(entry, rows=deny.rows_of(request, world, self._folder))
            self._folder.put_request(entry)
            return entry, False

    def _asked_again(self, entry: Entry, asked: Entry, entries: Sequence[Entry]) -> tuple[Entry, bool]:
        """The same id once more: nothing where it was served, another try where it was denied or has expired.

        `asked` is the entry with what is asked for now in the place of what was asked then.
        """
        request, other_method = asked.request, entry.method != asked.method
        if (entry.request, entry.seed) != (request, asked.seed) or (entry.state == "fulfilled" and other_method):
            raise UnfedError(
                f"The id {request.id!r} was already used for another request ({entry.method}, seed {entry.seed},"
                f" {json.dumps(entry.request.to_json())}); choose another with --id."
            )
        if entry.state == "fulfilled":
            return entry, True
        if entry.state == "revoked":
            raise UnfedError(f"Request {request.id!r} was withdrawn; ask anew under another --id.")
        if entry.state == "in_progress" and (other_method or entry.how.set != asked.how.set):
            raise UnfedError(
                f"Request {request.id!r} is being served by {entry.method} already; let it end (`unfed resume"
                f" {self._folder.path}`), or withdraw it and ask anew under another --id."
            )
        others = [e for e in entries if e.accepted and e.seed == entry.seed and e.number != entry.number]
        if entry.owed or other_method:
            ahead = [e for e in others if not e.waiting or e.state == "in_progress" or e.number < entry.number]
            self._refuse_if_gone(request, entry.seed, in_force(others))
            self._refuse_if_unable(asked.how.on(self._run.config, asked.method), asked.method, request, ahead)
            self._refuse_if_blind(asked, ahead)
        changed = (
            entry.asked_again(asked, now()) if entry.owed else replace(asked, expires=asked.expires or entry.expires)
        )
        if changed != entry:
            self._folder.put_request(changed)
        return changed, False

    def _refuse_if_blind(self, entry: Entry, accepted: Sequence[Entry]) -> None:
        """Refuse `--until forgotten` where nothing could tell. What is not trained yet is judged at its turn."""
        run = self._run
        if "forgotten" not in Until.of(entry.until).goals or not run.trained(entry.seed):
            return
        world, config = run.world(entry.seed), entry.how.on(run.config, entry.method)
        evaluator = world.evaluator([*(e.request for e in accepted), entry.request])
        gate_of(world, config, entry).measurable(evaluator.evidence(run.current(entry.seed)))

    def _refuse_if_unable(self, config: Config, method: str, request: Request, ahead: Sequence[Entry]) -> None:
        """Refuse a method that could not serve the request after those that come before it."""
        lineage.welcome(config, method, request, [e.request for e in ahead])
        lineage.unbroken(self._run.config, method, _line(ahead))
        if ahead:
            module = self._run.world(ahead[0].seed).template.module
            lineage.lasting(config.method(method), self._makers(ahead), module)

    def _makers(self, ahead: Sequence[Entry]) -> list[tuple[str, Method]]:
        """Which request was served by which method, as it was asked for, on the way to the model in force."""
        config = self._run.config
        return [(e.request.id, e.how.on(config, e.method).method(e.method)) for e in _line(ahead)]

    def _refuse_if_gone(self, request: Request, seed: int, others: Sequence[Entry]) -> None:
        """Refuse a request for rows that have all left, with the requests by which they left."""
        by = left_by(self._run.world(seed), request, [e.request for e in others])
        if not by:
            return
        names, said = {one.id for one in by}, ""
        for entry in others:
            if entry.request.id in names and entry.owed:
                said += f" Request {entry.request.id!r} is {entry.standing} and stays owed: {self._run.way_out(entry)}."
            elif entry.request.id in names and entry.waiting:
                said += f" Request {entry.request.id!r} is {entry.standing} and has its turn."
        raise UnfedError(gone_already(request, by) + (said or " Nothing is left to do."))

    # --- withdrawing ----------------------------------------------------------------------------------------------

    def withdraw(self, name: str) -> Entry:
        """Let a request go: its rows take part again. Withdrawn twice is withdrawn once."""
        with self._desk() as entries:
            entry = next((e for e in entries if e.request.id == name), None)
            if entry is None:
                if name in self._run.config.request_ids():
                    raise UnfedError(f"Request {name!r} belongs to this run's comparison, where nothing is served.")
                known = listed(e.request.id for e in entries) or "none at all"
                raise UnfedError(f"This run has no request {name!r}; it has {known}.")
            if entry.state == "fulfilled":
                raise UnfedError(
                    f"Request {name!r} is fulfilled: the model in force was made without its rows, and withdrawing does"
                    " not bring them back; to have them in a model, train anew."
                )
            if entry.state != "revoked":
                entry = entry.stepped("revoked", now())
                self._folder.put_request(entry)
            return entry

    # --- serving --------------------------------------------------------------------------------------------------

    def serve(self, watch: Watch) -> list[Entry]:
        """Serve the queue in its order, including what comes in meanwhile; the requests that failed here."""
        failed: list[Entry] = []
        for entry in in_force(self._folder.requests()):
            self._purge(entry)  # a process may have died before it did; purging twice is purging once
        while waiting := turn(self._folder.requests(), self._ready(), self.put_off):
            taken = self._take(waiting)
            if taken is None:
                continue
            entry = taken
            # What cannot be read here stands in everybody's way and is nobody's fault, so it is not in the guard below.
            previous, params = self._run.current_job(entry.seed), self._run.current(entry.seed)
            try:
                after = self._work(entry, params, previous, watch)
                decision = self._judge(entry, params, after)
            except Withdrawn:
                self._folder.cut_back()
            except STOPS:
                raise
            except Exception as error:
                self._folder.cut_back()
                if (settled := self._failed(entry, error)) is not None:
                    failed.append(settled)
                    self.errors[entry.request.id] = error
            else:
                self._fulfil(entry, decision)
        return failed

    def _take(self, entry: Entry) -> Entry | None:
        """The request, begun; None if somebody else has changed it meanwhile."""
        with self._desk() as entries:
            found = next(e for e in entries if e.number == entry.number)
            if found.state == "expired" and entry.state == "open":
                self._folder.put_request(found)
            if found.state != "open":
                return found if found.state == "in_progress" else None
            out = [e for e in entries if e.accepted and not e.waiting and e.seed == found.seed]
            at, earlier = now(), tuple(e.request.id for e in out)
            taken = found.stepped("in_progress", at, earlier=earlier, begun=found.begun or at)
            self._folder.put_request(taken)
            return taken

    def _work(self, entry: Entry, params: Params, previous: Job, watch: Watch) -> Params:
        run, out, config = self._run, self._before(entry), entry.how.on(self._run.config, entry.method)
        # Those before it may have ended otherwise than was expected when it was filed.
        self._refuse_if_gone(entry.request, entry.seed, out)
        self._refuse_if_unable(config, entry.method, entry.request, out)
        requests = [*(e.request for e in out), entry.request]
        base = {"model": "/".join(previous.path.parts), "without": list(entry.earlier)}
        began_with = base | ({"set": dict(entry.how.set)} if entry.how.set else {})
        run.score_before(entry.seed, requests, params, base=base)
        method = config.method(entry.method)
        turn = MethodTurn(entry.seed, requests, entry.method, method, params, previous, entry, began_with)
        return run.unlearn(turn, watch).params

    def _before(self, entry: Entry) -> list[Entry]:
        """The requests whose rows were out when this one was taken up."""
        by_id = {e.request.id: e for e in self._folder.requests()}
        return [by_id[name] for name in entry.earlier]

    def _judge(self, entry: Entry, before: Params, after: Params) -> Decision:
        """What the gate says of the model that came out.

        Where it says no, and nobody accepts that, it is raised.
        """
        run, config = self._run, entry.how.on(self._run.config, entry.method)
        world = run.world(entry.seed)
        evaluator = world.evaluator([*(e.request for e in self._before(entry)), entry.request])
        decision = gate_of(world, config, entry).decide(evaluator, before, after)
        return passed(decision, entry.request.id, entry.how.accept)

    def aside(self, entry: Entry) -> list[Request]:
        """What came in since a request was taken up: from the next round on it takes no part either."""
        found = self.find(entry.request.id)
        if found is None or not found.accepted:
            raise Withdrawn
        return self.besides(entry.seed, (*entry.earlier, entry.request.id))

    def _fulfil(self, entry: Entry, decision: Decision) -> None:
        with self._desk() as entries:
            found = next(e for e in entries if e.number == entry.number)
            if found.state != "in_progress":  # withdrawn after its last round: what it left does not come into force
                return
            done = found.stepped("fulfilled", now(), served=next_place(entries), gate=decision.to_json())
            self._folder.put_request(done)
        self._purge(done)

    def _purge(self, entry: Entry) -> None:
        self._folder.purge(entry.seed, entry.request.clients, self._run.config.recorded())

    def _failed(self, entry: Entry, error: Exception) -> Entry | None:
        """Denied, or put off where its clients did not answer; None if it was withdrawn meanwhile."""
        with self._desk() as entries:
            found = next(e for e in entries if e.number == entry.number)
            if found.state != "in_progress":
                return None
            why = self._why(entry, error)
            if isinstance(error, Unanswered):
                self.put_off.add(entry.number)
                settled = found.stepped("open", now(), why=why)
            else:
                gate = error.decision.to_json() if isinstance(error, NotPassed) else None
                settled = found.stepped("denied", now(), reason=reason_of(error), why=why, gate=gate)
            self._folder.put_request(settled)
            return settled

    def _why(self, entry: Entry, error: Exception) -> str:
        if isinstance(error, (NotRecovered, NotForgotten, NotPassed)):
            return str(error)
        title = self._run.about(entry.method, entry)["title"]
        said = str(error) if isinstance(error, UnfedError) else f"{type(error).__name__}: {error}"
        return f"Request {entry.request.id!r} could not be served by {title}: {said.removesuffix('.')}."


def gate_of(world: World, config: Config, entry: Entry) -> Gate:
    """The gate for the model that a request leaves, by a config that holds for it."""
    key = rng.key(world.seeds.evaluation, "forgotten", entry.request.id)
    return Gate(entry.request, world.classes, key, config.gate, "forgotten" in Until.of(entry.until).goals)


def _line(ahead: Sequence[Entry]) -> list[Entry]:
    """The requests, of these, that made the model in force, or will have made it.

    They stand in the order of service.
    """
    return [*in_force(ahead), *(e for e in ahead if e.waiting)]


def reason_of(error: Exception) -> Reason:
    """The reason why a request was denied.

    Its rounds did not suffice, a gate said no to what came out, or it could not be served at all.
    """
    if isinstance(error, NotRecovered):
        return "not recovered"
    return "gate" if isinstance(error, Refused) else "refused"


def left_by(world: World, request: Request, others: Sequence[Request]) -> list[Request]:
    """The requests by which every row that a request asks for has left; none if some row is still in."""
    if not others or world.holds(request, others):
        return []
    needed = list(others)
    for other in reversed(others):  # as few as tell the whole of it, the oldest ones first
        rest = [one for one in needed if one is not other]
        if rest and not world.holds(request, rest):
            needed = rest
    return needed


def gone_already(request: Request, by: Sequence[Request]) -> str:
    """The sentence for a request that has nothing to take out."""
    names = listed(repr(one.id) for one in by).replace(" or ", " and ")
    what = f"request{'s' if len(by) > 1 else ''} {names}"
    return f"Every training row that request {request.id!r} asks for is out already, by {what}."
