"""The ledger of an app that is not unfed's own: a run folder that `Unlearn` writes and reads.

    run.json                   `app`: the strategy. Of data and model nothing is known
    clients.json               every name that each client goes by
    requests/0001-ID.json      one for each leaver or class. A client in one stays out of every later start
    models/0/train             the model that the first request began at
    state, models /0/ID/NAME   the last good round, from which the same start goes on; and the model that came out
    trajectory.jsonl           of each round who was asked, and what the app's own evaluation says (`app`)
    undo/0/ID/NAME.json        what the probes brought back

`unfed status`, `report`, `lineage`, `check`, `export` and `purge` read it as they read any run folder. A perturbation
that would turn back what an earlier request of the ledger did is refused before any client is asked.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unfed import storage
from unfed.config.config import Config
from unfed.data import Request
from unfed.engines.base import Refusal
from unfed.errors import UnfedError, listed
from unfed.folder import study_results
from unfed.folder.folder import RunFolder
from unfed.folder.job_notes import JobNotes, began, last_starts, model_notes, noted, start_on
from unfed.folder.layout import NODES, ClientList, Description, client_list, names_of
from unfed.measures import trajectory
from unfed.measures.metrics import recovered
from unfed.measures.trajectory import OfApp
from unfed.methods import METHODS, State
from unfed.model.params import Params, beginning, digests, fingerprint, tensor_bytes
from unfed.remote.directory import note_clients
from unfed.remote.transport import Speech
from unfed.requests.book import Book
from unfed.requests.entry import Entry, Job, now
from unfed.requests.saved_state import SavedState
from unfed.runs.description import hardware, plain_request, request_id, versions
from unfed.values import not_measured

SEED = 0
TRAINED = Job(SEED, None, "train")
UNMEASURED = {
    **dict.fromkeys(("retain", "forget", "test", "validation"), not_measured("the app has metrics of its own")),
    "mia": not_measured("an app of others gives no losses of single rows"),
}


@dataclass(frozen=True)
class Goals:
    """What the rounds go on for, by names of the app's own metrics; each is better when higher."""

    recover: str | None = None
    """It must come back to what it was, but for `within`."""
    within: float = 0.0
    forgotten: str | None = None
    """A leaver must score no higher on its rows than those who stay on theirs."""

    def check(self, before: OfApp, leavers: bool) -> None:
        """Refuse, before anything is changed, to wait for a metric that the app does not report."""
        known = sorted({*before.get("evaluate", {}), *before.get("server", {})})
        if self.recover is not None and self.recover not in known:
            raise UnfedError(
                f"The app reports no metric {self.recover!r} of the model before (it reports"
                f" {', '.join(known) or 'none'}), so recovery cannot be judged; name another, or leave recover out."
            )
        if self.forgotten is None:
            return
        if self.forgotten not in before.get("evaluate", {}):
            raise UnfedError(f"Those who stay report no metric {self.forgotten!r}; name another, or none.")
        if not leavers:
            raise UnfedError("No client left: only the app itself can score rows of a class; leave forgotten out.")
        if not (told := before.get("leaver", {})) or any(self.forgotten not in one for one in told.values()):
            raise UnfedError(
                f'No leaver gave leave (allow="forget" in its node config) and reports {self.forgotten!r}, so its'
                " forgetting cannot be judged; leave forgotten out."
            )

    def reached(self, before: OfApp, last: OfApp | None) -> dict[str, bool]:
        """The goals that were named, and whether the last round has come there."""
        holds = {"recovered": (self.recover, self._is_back), "forgotten": (self.forgotten, self._is_forgotten)}
        return {
            word: last is not None and judge(before, last)
            for word, (metric, judge) in holds.items()
            if metric is not None
        }

    def _is_back(self, before: OfApp, last: OfApp) -> bool:
        name = self.recover or ""
        for old, new in ((before.get("evaluate"), last.get("evaluate")), (before.get("server"), last.get("server"))):
            was, is_now = (old or {}).get(name), (new or {}).get(name)
            if isinstance(was, int | float) and isinstance(is_now, int | float):
                return recovered(float(is_now), float(was), self.within)
        return False

    def _is_forgotten(self, before: OfApp, last: OfApp) -> bool:
        bound = last.get("evaluate", {}).get(self.forgotten or "")
        told = [one.get(self.forgotten or "") for one in last.get("leaver", {}).values() if isinstance(one, Mapping)]
        numbers = [value for value in (bound, *told) if isinstance(value, int | float)]
        return bool(told) and len(numbers) == 1 + len(last.get("leaver", {})) and max(numbers) <= numbers[0]


@dataclass(frozen=True)
class Before:
    """Whom and what the earlier requests of a ledger took out."""

    clients: frozenset[str] = frozenset()
    classes: tuple[int, ...] = ()


@dataclass
class Turn:
    """One request at work: what it began at, and what is to be written down."""

    entries: tuple[Entry, ...]
    """Clients and classes that leave at once are two requests with one model, the first one's."""
    job: Job
    base: Mapping[str, Any]
    start: int
    about: dict[str, Any]
    notes: JobNotes
    before: OfApp = field(default_factory=lambda: OfApp())
    last: OfApp | None = None
    """What is known of the last round."""
    line: OfApp | None = None
    """The same, as long as it is not written: that is done when the next round begins."""
    round: int = 0
    finished: str | None = None
    clock: float = field(default_factory=time.monotonic)

    @property
    def settled(self) -> bool:
        """Whether an earlier start fulfilled it."""
        return all(entry.state == "fulfilled" for entry in self.entries)


class AppLedger:
    """A run folder as an app that is not unfed's own uses it."""

    metrics: dict[str, dict[int, Any]]
    """What the app said in the rounds of this start, as its framework has it."""

    def __init__(self, path: str | Path, speech: Speech) -> None:
        self.folder, self._engine, self._log = RunFolder(path), speech.engine, speech.log
        self._turn: Turn | None = None
        if self.there and not self.folder.description().app:
            raise UnfedError(f"{self.path} is a run of unfed's own, and no app's ledger; give ledger another folder.")
        if self.there and self.folder.description().engine != self._engine:
            raise UnfedError(
                f"{self.path} is a ledger of {NODES.get(self.folder.description().engine, 'others')}, and not of"
                f" {NODES[self._engine]}; give ledger another folder."
            )
        if not self.there and not self.folder.vacant():
            raise UnfedError(f"{self.path} is there already, and no ledger; give ledger another folder.")

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def there(self) -> bool:
        return (self.path / "run.json").exists()

    @property
    def _book(self) -> Book:
        return self.folder.book()

    @property
    def _config(self) -> Config:
        return self._book.config

    def _put(self, entry: Entry) -> None:
        with self.folder.lock("requests", wait=True):
            self.folder.put_request(entry)

    def begun(self, request: str, label: str) -> bool:
        """Whether an earlier start of this request kept a round, or ended it."""
        return self.folder.saved(Job(SEED, request, label)) is not None

    @property
    def turn(self) -> Turn:
        assert self._turn is not None, "begin comes first"
        return self._turn

    @contextmanager
    def opened(self, strategy: str, before: Params, deny: Before) -> Iterator[None]:
        """The folder, made where it is not there, as long as no other process works in it.

        `deny`: what must stay out though no request of this ledger names it.
        """
        if not self.there:
            self.folder.create(self._description(strategy, before, deny))
        own = self._config.deny
        if not (deny.clients <= {*own.clients} and {*deny.classes} <= {*own.classes}):
            raise UnfedError(f"{self.path} began with another deny list; begin a new ledger, or leave denied(…) out.")
        with self.folder.lock() as free:
            if not free:
                raise UnfedError(f"Another server is at work in {self.path}; stop it, or wait for it.")
            self.folder.cut_back()
            if not self.folder.finished(TRAINED):
                self.folder.save_model(TRAINED, before, {**asdict(TRAINED), "round": 0, "sha256": digests(before)})
                numbers = {"offset": 0, "finished": "handed in by the app", "rounds": 0}
                self.folder.save_state(TRAINED, State(before, done=True), numbers, pruned=True)
            del before  # a whole model, which is not needed while the rounds go on
            yield

    # --- what earlier requests say ----------------------------------------------------------------------------------

    def left(self, besides: Collection[str] = ()) -> Before:
        """Who left by requests of this ledger, under every name; `besides` are names of those who leave now."""
        if not self.there:
            return Before()
        deny = self._config.deny
        asked = [entry.request for entry in self._book.accepted(SEED)]
        clients = {name for request in asked for name in request.clients}
        known = client_list(self.path)
        goes_by = known.names if known else {}
        classes = {*deny.classes, *(number for request in asked for number in request.classes)}
        names = {*deny.clients, *names_of(clients, goes_by)} - {*names_of([*besides], goes_by)}
        return Before(frozenset(names), tuple(sorted(classes)))

    def turned(self, arrays: Params, now: Collection[str]) -> None:
        """Refuse to change arrays once more in a way that turns back what an earlier request did to them.

        Arrays that no request of this ledger left may be of a later training, or of a model that was trained again: the
        log says what follows in the first case.
        """
        if not self.there or not now:
            return
        begun = self._job_of(fingerprint(digests(arrays)))
        if begun == TRAINED:
            return
        line = self._line(begun) if begun else [entry.job for entry in self._book.in_force(SEED)]
        turned = [saved.app.get("turns", ()) for job in line if (saved := self.folder.saved(job)) is not None]
        again = sorted({*now} & {name for names in turned for name in names})
        if not again:
            return
        who = listed(sorted(_subject(entry) for entry in self._book.entries if entry.job in line), "and")
        names = listed([repr(name) for name in again[:3]] + ([f"{len(again) - 3} more"] if again[3:] else []), "and")
        back = f"changing {names} in the same way once more turns that back, and brings {who or 'its leaver'} back"
        if begun is None:
            self._log.warning("unfed: if these arrays come from the unlearning in %s, %s", self.path, back)
            return
        raise UnfedError(
            f"These arrays were unlearned before, says {self.path}: {back}; perturb other layers"
            " (negate(Net(), layers=[…])), or begin with the arrays from before that."
        )

    def _job_of(self, model: str) -> Job | None:
        """The job that left a model, by its fingerprint; None where no job of this ledger did."""
        jobs = [TRAINED, *(entry.job for entry in self._book.entries)]
        return next((job for job in jobs if self.folder.came_out(job) == model), None)

    def _line(self, job: Job | None) -> list[Job]:
        """The jobs by which a model came about, the last first."""
        found: list[Job] = []
        known = {"/".join(entry.job.path.parts): entry.job for entry in self._book.entries}
        while job is not None and job not in (TRAINED, *found):
            found.append(job)
            saved = self.folder.saved(job)
            job = known.get(str(saved and saved.base.model))
        return found

    # --- beginning --------------------------------------------------------------------------------------------------

    def begin(
        self,
        asked: Sequence[Request],
        label: str,
        arrays: Sequence[Params],
        turns: Collection[str],
        names: Mapping[str, Collection[str]],
        rounds: int,
    ) -> tuple[Params, int] | None:
        """File what leaves; the arrays and the round from which it goes on, where an earlier start began it.

        `arrays`: before, and perturbed · `turns`: those that the same perturbation once more would turn back ·
        `names`: what each client goes by.
        """
        before, perturbed = arrays
        known_as = {name: tuple(own) for name, own in names.items()}
        note_clients(self.path, ClientList(order=tuple(names), held={}, names=known_as))
        model = fingerprint(digests(before))
        job = Job(SEED, asked[0].id, label)
        saved = self.folder.load_state(job)
        known = {entry.request.id: entry for entry in self._book.entries}
        self._refuse_other(known.get(job.request or ""), asked, job, model, saved and saved[1])
        others = tuple(name for name, e in known.items() if e.accepted and name not in {r.id for r in asked})
        previous = self._job_of(model)
        base = {"model": None if previous is None else "/".join(previous.path.parts), "without": list(others)}
        start = 1 if saved is None else start_on(base, saved[1])
        if saved is not None and start != saved[1].start:
            self._log.warning("unfed: others left since request %s was begun, so it begins again", job.request)
            saved = None
        entries = tuple(self._filed(request, label, rounds, others, known) for request in asked)
        about = {"turns": sorted(turns), "seen": []}
        self.metrics = {"train": {}, "evaluate": {}, "server": {}}
        notes = JobNotes(offset=self.folder.length(), beginning=beginning(before, perturbed))
        self._turn = Turn(entries, job, base, start, about, notes)
        if saved is None:
            return None
        self.turn.notes, self.turn.about = JobNotes.from_json(saved[1].diary.to_json()), dict(saved[1].app)
        self.turn.round, self.turn.finished = saved[0].round, saved[1].finished
        lines = [line for line in last_starts(self.folder.lines()) if line["request"] == job.request]
        self.turn.before = next((line["app"] for line in lines if line["method"] == "before"), OfApp())
        here = [line for line in lines if (line["method"], line["round"]) == (label, self.turn.round)]
        self.turn.last = here[-1]["app"] if here else None
        self._log.info("unfed: going on after round %d, kept in %s", self.turn.round, self.path)
        return saved[0].params, self.turn.round

    def _description(self, strategy: str, before: Params, deny: Before) -> Description:
        """What `run.json` says: of data and model there is nothing to say."""
        name = re.sub(r"[^\w .,;=+@()\[\]-]", "-", self.path.resolve().name)[:80].lstrip(" .,;=+@()[]-") or "ledger"
        own = {"name": "the app's own"}
        deny_list = {"clients": sorted(deny.clients), "classes": list(deny.classes)}
        config = Config.parse({"name": name, "data": own, "model": own, "methods": {"run": []}, "deny": deny_list})
        return Description(
            name=name,
            created=now(),
            config=config.to_json(),
            app={"strategy": strategy},
            seeds=(SEED,),
            clients=(),
            versions=dict(versions()),
            hardware=hardware(torch.device("cpu")),
            device="cpu",
            engine=self._engine,
            parameters=sum(tensor.numel() for tensor in before.values()),
            requests=(),
        )

    def _refuse_other(
        self, entry: Entry | None, asked: Sequence[Request], job: Job, model: str, saved: SavedState | None
    ) -> None:
        """A request goes on as it began: of the same model, by the same method."""
        for other in (e for e in self._book.entries if e.request.id in {r.id for r in asked} and not e.accepted):
            raise UnfedError(f"Request {other.request.id!r} in {self.path} was withdrawn; give ledger another folder.")
        if entry is not None and entry.method != job.label:
            raise UnfedError(
                f"Request {job.request!r} in {self.path} was begun by {entry.method}, not {job.label}; go on with that,"
                " or give ledger another folder."
            )
        begun = saved and saved.diary.beginning
        if begun and begun.went_in and fingerprint(begun.went_in) != model:
            raise UnfedError(
                f"Request {job.request!r} in {self.path} began at another model; start with the arrays that it began"
                " with, or give ledger another folder."
            )

    def _filed(
        self, request: Request, label: str, rounds: int, others: tuple[str, ...], known: Mapping[str, Entry]
    ) -> Entry:
        """The request as it stands: new, begun, or asked again."""
        entry, at = known.get(request.id), now()
        served_by = {"title": METHODS[label].title if label in METHODS else label, "needs": [], "rounds": rounds}
        if entry is None:
            described = {**plain_request(request), "served_by": served_by}
            entry = Entry(self._book.next_number, request, label, str(rounds), at, SEED, described, changed=at)
        elif entry.state == "fulfilled":
            return entry
        else:
            asked = replace(entry, until=str(rounds), described={**(entry.described or {}), "served_by": served_by})
            entry = entry.asked_again(asked, at) if entry.owed else asked
        if entry.state == "open":
            entry = entry.stepped("in_progress", at, begun=entry.begun or at, earlier=others)
        self._put(entry)
        return entry

    def was(self, of_app: OfApp) -> None:
        """Write down what the model before is worth, as the app evaluates it."""
        turn, at = self.turn, trajectory.Point(SEED, self.turn.job.request, "before", 0)
        turn.before = of_app
        job = Job(SEED, turn.job.request, "before")
        line = trajectory.line(at, UNMEASURED, UNMEASURED["validation"], {}, start=turn.start, app=of_app)
        numbers = {"offset": self.folder.append(line), "finished": "done"} | began(turn.base, turn.start)
        self.folder.save_state(job, State({}, done=True), numbers)
        turn.notes.offset = self.folder.length()

    # --- rounds -----------------------------------------------------------------------------------------------------

    def asked(self, round: int, clients: Iterable[str]) -> None:
        """A round begins: what is known of the one before is written, and who is asked is noted."""
        self.settle()
        self.turn.round, self.turn.last = round, OfApp()
        self.turn.line = self.turn.last
        self.turn.notes.asked = {round: sorted({*clients})}

    def good(self, params: Params, round: int, replies: int, seen: Collection[int]) -> None:
        """Keep a round's arrays: from here the same start goes on."""
        turn = self.turn
        asked = sum(map(len, turn.notes.asked.values()))
        sent = asked + replies
        turn.notes.ledger.sent(sent, sum(t.numel() for t in params.values()), tensor_bytes(params) * sent)
        turn.notes.ledger.seconds += time.monotonic() - turn.clock
        turn.clock, turn.about = time.monotonic(), {**turn.about, "seen": sorted(seen)}
        turn.round = round
        self._save(params)

    def trained(self, refused: Iterable[Refusal], **more: Any) -> None:
        """Note what came of a round's training."""
        self.turn.notes.refused += [noted(one) for one in refused]
        self.told(**more)

    def told(self, **more: Any) -> None:
        """Note what the app says of a round's model."""
        assert self.turn.line is not None
        for key in self.metrics.keys() & more.keys():
            if more[key] is not None:
                self.metrics[key][self.turn.round] = more[key]
        found = {key: plain(value) if value and key in self.metrics else value for key, value in more.items()}
        if self.turn.line is None:  # of a round whose line was written by an earlier start
            self.turn.line = self.turn.last = OfApp(**(self.turn.last or {}))
        self.turn.line.update({key: value for key, value in found.items() if value})  # type: ignore[typeddict-item]

    def unheard(self, round: int) -> list[str]:
        """Who spoke of the model before and not of this round's, because a start ended in the middle of it."""
        if self.turn.finished or not round or self.turn.last is not None:
            return []
        self.turn.line = self.turn.last = OfApp()
        return [who for who in ("evaluate", "server") if who in self.turn.before]

    def settle(self, done: bool = False) -> None:
        """Write the line of the round at hand, if it is not written yet."""
        turn = self.turn
        if turn.line is None or not turn.round:
            return
        at = trajectory.Point(SEED, turn.job.request, turn.job.label, turn.round, done)
        costs = {**turn.notes.ledger.to_json(), "flops": not_measured("an app's own training is not counted")}
        asked = {str(round): names for round, names in turn.notes.asked.items()}
        notes: trajectory.Notes = {"asked": asked, "refused": turn.notes.refused, "start": turn.start, "app": turn.line}
        line = trajectory.line(at, UNMEASURED, UNMEASURED["validation"], costs, **notes)
        turn.notes.offset = self.folder.append(line)
        turn.notes.asked, turn.notes.refused, turn.line = {}, [], None

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(self, params: Params, reached: Mapping[str, bool]) -> None:
        """All rounds are done: the model is written, and the request settled."""
        turn, at = self.turn, now()
        missed = listed([word for word, holds in reached.items() if not holds], "and")
        self.settle(done=True)
        turn.finished = f"all rounds, not {missed}" if missed else ", ".join(reached) or "all rounds"
        notes = model_notes(self.folder.book(), self._config, turn.job, turn.round, params)
        self.folder.save_model(turn.job, params, notes)
        self._save(params, pruned=True)
        for place, entry in enumerate(turn.entries):
            if entry.state == "fulfilled":
                continue
            if missed:
                why = f"After {turn.round} rounds it is not {missed}; the same start with more rounds goes on."
                reason: Any = "not recovered" if not reached.get("recovered", True) else "gate"
                self._put(entry.stepped("denied", at, reason, why))
                self._log.warning("unfed: request %s is not settled: %s", entry.request.id, why)
            elif place:
                by = (turn.entries[0].request.id,)
                self._put(entry.stepped("fulfilled", at, left_by=by))
            else:
                self._put(entry.stepped("fulfilled", at, served=self._book.next_place))

    def refuse(self, why: str) -> None:
        """Write down why what was asked cannot be: it is owed, until it is asked again or withdrawn."""
        for entry in self.turn.entries:
            if entry.state == "in_progress":
                self._put(entry.stepped("denied", now(), "refused", why))

    def probed(self, found: Mapping[str, Any], before: Params, after: Params) -> None:
        """Write down what the probes brought back."""
        job, models = self.turn.job, {"unlearned": after, "before": before}
        about = {
            "schema": study_results.SCHEMA,
            **{"seed": SEED, "request": job.request, "method": job.label},
            "title": METHODS[job.label].title if job.label in METHODS else job.label,
            "models": {name: fingerprint(digests(one)) for name, one in models.items()},
        }
        storage.write_json(study_results.file_of(self.folder, job), {**about, **found})

    def _save(self, params: Params, pruned: bool = False) -> None:
        turn = self.turn
        state = State(params, turn.round, done=turn.finished is not None)
        numbers = {"offset": turn.notes.offset, "diary": turn.notes.to_json(), "finished": turn.finished}
        numbers |= {"rounds": int(turn.entries[0].until), "versions": dict(versions()), "app": turn.about}
        self.folder.save_state(turn.job, state, numbers | began(turn.base, turn.start), pruned=pruned)


def requests_of(clients: Sequence[str], classes: Sequence[int], gone: bool) -> list[Request]:
    """What leaves, as requests: clients, classes, or one of each."""
    asked: list[dict[str, Any]] = [{"clients": tuple(clients)}, {"classes": tuple(classes)}]
    return [
        Request(re.sub(r"[^A-Za-z0-9._-]", "-", request_id(one)), **one, deleted=gone)
        for one in asked
        if any(one.values())
    ]


def plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as JSON has them: what is not finite stands as a word."""
    return {name: _finite(value) for name, value in metrics.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return value if math.isfinite(value) else str(value)


def _subject(entry: Entry) -> str:
    return ", ".join(entry.request.clients) or entry.request.subject
