"""The queue of a run: deletion requests are filed, withdrawn, and served, one by one or together.

    file ──► requests/NUMBER-ID.json ──► serve: what was begun, else what was asked first, at the model in force
                                            ├── gate passes ─► fulfilled: its model is in force, at its place
                                            ├── nothing left ► fulfilled too: its rows had left before, no model is made
                                            ├── gate refuses, or it fails ► denied: the old model stays in force
                                            ├── no answers  ─► put off: open again, the next is served
                                            └── withdrawn   ─► let go; its rows take part again

A request that is refused, raises or does not recover blocks no other; nor does one that is put off, which
`unfed resume` tries again, from its last save if nothing was served since. Only what stops the machine itself (a full
disk, a lost connection) stops the queue, and decides nothing: the request is still in progress when work goes on.

Those that say so (`--together`) share one recovery where they wait at the same time (`together.py`); each is judged
and settled on its own.

What a request begins at is the model in force when it is taken up, whatever its number: one that is asked again after
later ones were served follows them. What it began without is written into its file, so a crash cannot change it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from unfed.config.reading import check_id, check_label
from unfed.data import Request
from unfed.data.scope import drawn_order
from unfed.errors import Halted, NotRecovered, Unanswered, UnfedError, listed, option, typed
from unfed.folder import deny
from unfed.measures.evaluator import Again, Scorer
from unfed.model.params import Params
from unfed.requests.book import Book, in_force
from unfed.requests.entry import Entry, Job, date_of, now
from unfed.requests.gate import Decision, NotForgotten, NotPassed, gate_of, passed
from unfed.requests.options import RequestOptions, Until
from unfed.requests.reversible import negated_by
from unfed.runs import admission, record
from unfed.runs.admission import Admission, reason_of
from unfed.runs.description import describe_request, method_facts
from unfed.runs.progress import Watch
from unfed.runs.together import (
    HandedOver,
    JobRounds,
    MethodTurn,
    SharedRecovery,
    Worker,
    hand_over,
    may_share,
    refuse_if_alone,
    reserved,
    taken_up,
)

# What befalls the machine, not a request: a device that is gone does not come back for the next request either.
STOPS: tuple[type[BaseException], ...] = (Halted, OSError, getattr(torch, "AcceleratorError", Halted))


class Withdrawn(Exception):
    """The request at work was withdrawn."""


@dataclass(frozen=True)
class Left:
    """Nothing of a request was left to unlearn.

    It says by which requests all of it had left, and what the model in force shows of those before it.
    """

    by: tuple[str, ...]
    again: Mapping[str, Again]


def _asked(entry: Entry) -> str:
    return f"{json.dumps(entry.request.to_json())} by {entry.method}, seed {entry.seed}"


class Queue:
    """The deletion requests of a run."""

    def __init__(self, run: Worker) -> None:
        self._run, self._folder, self._admission = run, run.folder, Admission(run)
        self.errors: dict[str, Exception] = {}
        """What went wrong with the requests that failed here, by id."""
        self.put_off: set[int] = set()
        """Requests, by number, whose clients did not answer; they are tried again when work is next begun."""

    # --- reading --------------------------------------------------------------------------------------------------

    @property
    def book(self) -> Book:
        """Every request as it stands now."""
        return self._folder.book()

    def still_owed(self, entry: Entry) -> str:
        """What became of a request that was not fulfilled, and what can be done."""
        why = entry.why or f"Request {entry.request.id!r} has expired: it was not begun by {entry.expires}."
        if entry.waiting:
            return f"{why} It is still open, and is tried again when the run is resumed."
        return f"{why} It stays owed, and its rows stay out of training: {self._run.way_out(entry)}."

    def waits(self) -> bool:
        """Whether there is a request that could be served now."""
        return self.book.turn(self._ready(), self.put_off) is not None

    def _ready(self) -> list[int]:
        return [seed for seed in self._run.config.seed_list if self._run.trained(seed)]

    # --- filing ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[Book]:
        """Every request, while no one else files, withdraws or takes one up."""
        with self._folder.lock("requests", wait=True):
            yield self._folder.book()

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
        if reserved(request.id):
            raise UnfedError(f"The id {request.id!r} is kept for shared jobs; choose another with {option('id')}.")
        check_label(method)
        until = Until.of(until).text  # what it does not take is refused here
        config = how.on(run.config, method)
        expires = None if expires is None else date_of(expires)
        if expires is not None and expires < now():
            raise UnfedError(f"The request would have expired at {expires}, before it is filed; give a later date.")
        world = run.world(seed)
        chosen = admission.welcome(config, method, request, ())
        chosen.check(world.template.module)
        served_by = {"served_by": method_facts(config, method, chosen).to_json()}
        if not run.trained(seed) and not self._folder.busy():
            raise UnfedError(f"The training of this run is not finished; first go on with {run.going_on}.")
        if request.id in run.config.request_ids():
            raise UnfedError(f"The id {request.id!r} is of a compared request; choose another with {option('id')}.")
        with self._locked() as book:
            older = self._older(request, book)
            if entry := book.find(request.id):
                known = None if entry.described is None else {**entry.described, **served_by}
                asked = replace(entry, request=request, method=method, until=until, seed=seed, described=known)
                filed = self._asked_again(entry, replace(asked, expires=expires, how=how), book)
                self._supersede(older, request)
                return filed
            if request.samples and world.central:
                raise drawn_order(f"request {request.id!r}")
            accepted = [e for e in book.accepted(seed) if e not in older]
            at, number = now(), book.next_number
            entry = Entry(number, request, method, until, at, seed, changed=at, expires=expires, how=how)
            refuse_if_alone(config, entry)
            before = [e for e in accepted if not may_share(e, entry)]
            if not self._admission.gone_by(request, seed, accepted, chosen):
                behind = self._admission.refuse_if_unable(config, method, request, before, seed)
                served_by = {"served_by": method_facts(config, method, chosen, behind).to_json()}
                if run.trained(seed) and not any(e.waiting for e in accepted):  # what waits may begin another history
                    current = run.current_job(seed) if chosen.follows else Job(seed, None, "train")
                    admission.not_purged(self._folder, method, chosen, current)
                admission.warn_of_return(chosen, self._admission.makers(before), world.template.module)
                self._admission.refuse_if_blind(entry, accepted)
            described = describe_request(world, [*(e.request for e in accepted), request]) | served_by
            entry = replace(entry, described=described, rows=deny.rows_of(request, world.scoped, self._folder))
            self._folder.put_request(entry)
            self._supersede(older, request)
            return entry, False

    def _older(self, request: Request, book: Book) -> list[Entry]:
        """Older signed requests of the same client for the same data that are owed."""
        folder, owed = self._folder.path, [e for e in book.entries if e.owed and e.request.id != request.id]
        same = [e for e in owed if replace(e.request, id=request.id) == request]
        signer = record.signing_client(folder, request.id) if same else None
        return [e for e in same if signer and record.signing_client(folder, e.request.id) == signer]

    def _supersede(self, older: list[Entry], request: Request) -> None:
        """Once the newer one is filed, so that the data is never asked for by neither."""
        for entry in older:
            self._folder.put_request(entry.stepped("revoked", now(), superseded=request.id))

    def _asked_again(self, entry: Entry, asked: Entry, book: Book) -> tuple[Entry, bool]:
        """The same id once more: nothing where it was served, another try where it was denied or has expired.

        `asked` is the entry with what is asked for now in the place of what was asked then.
        """
        request, other_method = asked.request, entry.method != asked.method
        again = f"ask again under another {option('id')}"
        if (entry.request, entry.seed) != (request, asked.seed) or (entry.state == "fulfilled" and other_method):
            raise UnfedError(f"The id {request.id!r} is that of another request, {_asked(entry)}; {again}.")
        if entry.state == "fulfilled":
            return entry, True
        if entry.state == "revoked":
            raise UnfedError(f"Request {request.id!r} was {entry.standing}; {again}.")
        if entry.state == "in_progress" and (other_method or entry.how.set != asked.how.set):
            now_by = f"Request {request.id!r} is being served by {entry.method}"
            raise UnfedError(f"{now_by}; go on with {self._run.going_on}, or withdraw it and {again}.")
        others = [e for e in book.accepted(entry.seed) if e.number != entry.number]
        refuse_if_alone(self._run.config, asked)
        if entry.owed or other_method:
            ahead = [e for e in others if not e.waiting or e.state == "in_progress" or e.number < entry.number]
            ahead = [e for e in ahead if not may_share(e, asked)]
            config = asked.how.on(self._run.config, asked.method)
            if not self._admission.gone_by(request, entry.seed, in_force(others), config.method(asked.method)):
                self._admission.refuse_if_unable(config, asked.method, request, ahead, entry.seed)
                self._admission.refuse_if_blind(asked, ahead)
        changed = (
            entry.asked_again(asked, now()) if entry.owed else replace(asked, expires=asked.expires or entry.expires)
        )
        if changed != entry:
            self._folder.put_request(changed)
        return changed, False

    # --- withdrawing ----------------------------------------------------------------------------------------------

    def withdraw(self, name: str, by: str | None = None) -> Entry:
        """Let a request go: its rows take part again. Withdrawn twice is withdrawn once.

        `by` is the client whose signed revocation was believed. What a client signed is not let go without it.
        """
        with self._locked() as book:
            entry = book.named(name)
            client = record.signing_client(self._folder.path, name)
            if client not in (None, by):
                refuse = typed("request", "refuse", self._folder.path, name, "--reason", "TEXT")
                what = f"Client {client!r} signed request {name!r}, so only its --revocation FILE withdraws it"
                raise UnfedError(f"{what}; `{refuse}` refuses it.")
            if entry.state == "fulfilled":
                raise UnfedError(f"Request {name!r} is fulfilled; to have its rows in a model, train again.")
            if entry.state != "revoked":
                entry = entry.stepped("revoked", now())
                self._folder.put_request(entry)
            return entry

    def refuse(self, name: str, reason: str) -> Entry:
        """Write down that the operator refuses a request, and why: it stays owed, and its rows stay out."""
        with self._locked() as book:
            entry = book.named(name)
            if entry.state in ("in_progress", "fulfilled", "revoked"):
                raise UnfedError(f"Request {name!r} is {entry.standing}, so it cannot be refused.")
            entry = entry.stepped("denied", now(), reason="by the operator", why=f"The operator refused it: {reason}")
            self._folder.put_request(entry)
            return entry

    # --- serving --------------------------------------------------------------------------------------------------

    def serve(self, watch: Watch) -> list[Entry]:
        """Serve the queue in its order, including what comes in meanwhile; the requests that failed here.

        Each is taken up, unlearned, judged by its gate, then fulfilled (its model is in force) or denied.
        """
        failed: list[Entry] = []
        for entry in (one for one in self.book.entries if one.state == "fulfilled"):
            self._purge(entry)  # a process may have died before it did; purging twice is purging once
        while waiting := self.book.turn(self._ready(), self.put_off):
            batch = self._take(waiting)
            if batch is None:
                continue
            # What cannot be read here blocks all and is no client's fault, so it is not in the guard below.
            seed = batch.first.seed
            previous, params = self._run.current_job(seed, batch.ids), self._run.current(seed, batch.ids)
            refused: list[tuple[Entry, Exception]] = []
            try:
                found = self._work(batch, params, previous, watch)
            except Withdrawn:
                self._folder.cut_back()
            except STOPS:
                raise
            except Exception as error:
                self._folder.cut_back()
                refused = [(entry, error) for entry in batch.waiting]
            else:
                refused = [(entry, one) for entry, one in found if isinstance(one, NotPassed)]
                self._fulfil(batch, [(entry, one) for entry, one in found if not isinstance(one, NotPassed)])
            for entry, why in refused:
                if (settled := self._failed(batch, entry, why)) is not None:
                    failed.append(settled)
                    self.errors[entry.request.id] = why
        return failed

    def _take(self, entry: Entry) -> SharedRecovery | None:
        """The request, begun, with those that share its job; None if someone else has changed it meanwhile."""
        with self._locked() as book:
            found = next(e for e in book.entries if e.number == entry.number)
            if found.state == "expired" and entry.state == "open":
                self._folder.put_request(found)
            if not found.waiting:
                return None
            batch = taken_up(found, book.entries, self.put_off, self._run.world(found.seed))
            for one in batch.waiting:
                if one not in book.entries:
                    self._folder.put_request(one)
            return batch

    def _work(
        self, batch: SharedRecovery, params: Params, previous: Job, watch: Watch
    ) -> list[tuple[Entry, Decision | NotPassed | Left]]:
        """What came out for each: a model that the gate takes or refuses, or that there was no work."""
        entry = batch.first
        run, config = self._run, entry.how.on(self._run.config, entry.method)
        by_id = {e.request.id: e for e in self.book.entries}
        out = [by_id[name] for name in entry.earlier]  # whose rows were out when it was taken up
        method = config.method(entry.method)
        # Those before it may have ended otherwise than was expected when it was filed.
        gone = [self._admission.gone_by(one.request, one.seed, out, method) for one in batch.waiting]
        requests = [*(e.request for e in out), batch.request]
        base: dict[str, Any] = {"model": "/".join(previous.path.parts), "without": list(entry.earlier)}
        base |= {} if batch.shared is None else {"together": list(batch.ids)}
        began_with = base | ({"set": dict(entry.how.set)} if entry.how.set else {})
        if batch.shared is None and gone[0]:
            run.score_before(entry.seed, requests, params, base=base)
            return [(entry, Left(gone[0], run.world(entry.seed).evaluator(requests).again(params)))]
        self._admission.refuse_if_unable(config, entry.method, batch.request, out, entry.seed)
        run.score_before(entry.seed, requests, params, base=base)
        turn = MethodTurn(entry.seed, requests, entry.method, method, params, previous, batch, began_with)
        after = run.unlearn(turn, watch).params
        found: list[tuple[Entry, Decision | NotPassed | Left]] = []
        book = self.book
        if batch.shared is not None:
            rounds = JobRounds.of(self._folder, Job(entry.seed, batch.shared, entry.method))
        for one in batch.waiting:
            own = [*(e.request for e in out), *batch.besides(one), one.request]
            evaluator = run.world(one.seed).evaluator(own)
            if batch.shared is not None:
                run.score_before(one.seed, own, params, base=base, evaluator=evaluator)
                turned = HandedOver(params, after, own, began_with, rounds, book)
                hand_over(self._folder, run.config, batch, one, turned, evaluator)
            beside = {other.id for other in batch.besides(one)}
            found.append((one, self._judge(evaluator, one, params, after, negated_by(book, one.job), beside)))
        return found

    def _judge(
        self, evaluator: Scorer, entry: Entry, before: Params, after: Params, negated: Collection[str], beside: set[str]
    ) -> Decision | NotPassed:
        """What the gate says of the model that came out.

        Where it says no, and no one accepts that, it is the refusal.
        """
        run, config = self._run, entry.how.on(self._run.config, entry.method)
        world = run.world(entry.seed)
        decision = gate_of(world.seeds.evaluation, world.classes, config, entry).decide(
            evaluator, before, after, negated, beside
        )
        try:
            return passed(decision, entry.request.id, entry.how.accept)
        except NotPassed as refusal:
            return refusal

    def aside(self, batch: SharedRecovery) -> list[Request]:
        """Requests that were filed while a job is at work: from its next round on their rows stay out too."""
        seed, ids, book = batch.first.seed, batch.ids, self.book
        if not set(ids) <= {entry.request.id for entry in book.accepted(seed)}:
            raise Withdrawn
        return book.besides(seed, (*batch.first.earlier, *ids))

    def _fulfil(self, batch: SharedRecovery, decided: Sequence[tuple[Entry, Decision | Left]]) -> None:
        done: list[Entry] = []
        with self._locked() as book:
            by_number = {e.number: e for e in book.entries}
            shared = [e.served for e in book.entries if e.request.id in batch.ids and e.served is not None]
            place = shared[0] if shared else book.next_place  # one model, one place
            for entry, how in decided:
                found = by_number[entry.number]
                if found.state != "in_progress":  # withdrawn after its last round: its model does not come into force
                    continue
                by_model = {"served": place, "gate": None if isinstance(how, Left) else how.to_json()}
                settled: dict[str, Any] = {"left_by": how.by} if isinstance(how, Left) else by_model
                done.append(found.stepped("fulfilled", now(), again=how.again, **settled))
                self._folder.put_request(done[-1])
        for entry in done:
            self._purge(entry)

    def _purge(self, entry: Entry) -> None:
        purges = {label: method.purge for label, method in self._run.config.recorded().items()}
        if purges:  # else nothing was recorded
            self._folder.purge(entry.seed, entry.request.clients, purges)

    def _failed(self, batch: SharedRecovery, entry: Entry, error: Exception) -> Entry | None:
        """Denied, or put off where its clients did not answer; None if it was withdrawn meanwhile."""
        with self._locked() as book:
            found = next(e for e in book.entries if e.number == entry.number)
            if found.state != "in_progress":
                return None
            why = self._why(entry, error)
            if batch.shared is not None and not isinstance(error, NotPassed):
                names = listed((repr(name) for name in batch.ids), last="and")
                why = f"Requests {names} shared one job, {batch.shared!r}. {why}"
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
        title = self._run.about(entry.method, entry).title
        said = str(error) if isinstance(error, UnfedError) else f"{type(error).__name__}: {error}"
        return f"Request {entry.request.id!r} could not be served by {title}: {said.removesuffix('.')}."
