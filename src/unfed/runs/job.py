"""A job: one method from its beginning to its end, evaluated, saved and resumable.

    saved?  ── no ──► begin, evaluate round 0, save
       │
       └── yes ─► go on:  round ─► evaluate if due ─► save if due ─► … ─► done or T rounds ─► save, write the model

The original training is the job of Retrain on an empty scope. A state is saved after `begin`, at the end, and in
between as the config says; it holds the tensors, the ledger and the length of the trajectory, so a job killed at any
moment goes on from its last save and writes the same bytes again. A resumed NoT is therefore never negated twice:
`begin` is not called once a state is there.

A request that is asked again goes on from its state too, unless another model is in force by then or other rows are
out: then its state began at what counts no more, and the job begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from unfed.data import ClientData, Request
from unfed.engines.base import Refusal
from unfed.errors import NotRecovered, Refused, UnfedError
from unfed.federation.history import History, Recorder
from unfed.federation.ledger import Ledger
from unfed.federation.server import Server, Settings
from unfed.measures.metrics import recovered
from unfed.methods import Method, Retrain, State
from unfed.model import digest
from unfed.model.params import Params, cast, tensor_bytes
from unfed.runs.folder import Job, RunFolder
from unfed.runs.progress import Silence, Watch
from unfed.runs.world import World
from unfed.values import Value, is_measured

# Where a saved state keeps the params of the best epoch, where that is the model that counts.
BEST = "best"


@runtime_checkable
class Open(Protocol):
    """A world whose clients come and go."""

    def admit(self, requests: Sequence[Request]) -> bool:
        """Take in who joined since the last time, but nobody whom these requests name; whether there was anybody."""
        ...


@dataclass
class Diary:
    """What a job remembers between saves besides its state."""

    ledger: Ledger = field(default_factory=Ledger)
    offset: int = 0
    best: float = -1.0
    best_round: int = 0
    best_test: float = -1.0
    asked: dict[int, list[str]] = field(default_factory=dict)
    refused: list[dict[str, Any]] = field(default_factory=list)
    beginning: dict[str, Any] | None = None
    """SHA-256 of the model that went in, and what `begin` changed in it."""
    attempt: int = 0
    """How often the next round has failed for want of answers."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "ledger": self.ledger.to_json(), "asked": {str(r): c for r, c in self.asked.items()}}

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Diary:
        return Diary(
            Ledger.from_json(raw["ledger"]),
            raw["offset"],
            raw["best"],
            raw["best_round"],
            raw["best_test"],
            {int(r): c for r, c in raw["asked"].items()},
            raw["refused"],
            raw.get("beginning"),
            raw.get("attempt", 0),
        )


class JobRunner:
    """Runs one job in a folder."""

    def __init__(
        self,
        folder: RunFolder,
        world: World,
        job: Job,
        method: Method,
        settings: Settings,
        seed: int,
        requests: Sequence[Request],
        params: Params,
        patience: int = 0,
        until: str | None = None,
        pending: Callable[[], Sequence[Request]] | None = None,
        watch: Watch | None = None,
        history: History | None = None,
        recorders: Mapping[str, Recorder] | None = None,
        base: Mapping[str, Any] | None = None,
    ) -> None:
        """`base` says as JSON what the job begins at; a saved state that began elsewhere is not gone on with."""
        self.folder, self.world, self.job, self.method = folder, world, job, method
        self.requests, self.patience, self.until, self.pending = tuple(requests), patience, until, pending
        self.watch: Watch = watch or Silence()
        self.base, self.start = base, 1
        self.evaluator = world.evaluator(self.requests)
        # Whoever left by an earlier request is gone: the method sees the rows of the last one only.
        clients = _scoped(world, self.requests)
        self.server = Server(
            world.template,
            world.engine(clients),
            clients,
            params,
            settings,
            seed,
            world.fresh,
            world.forward_flops,
            wired=not world.central,
            history=None if history is None else history.to(world.device),
            public=world.public(clients) if "public" in method.needs else None,
            as_it_was=lambda scope: world.engine(_scoped(world, [Request.from_json(r) for r in scope])),
        )
        self.server.scope = tuple(request.to_json() for request in self.requests)
        self.server.recorders = dict(recorders or {})
        self.rounds = int(until) if until is not None and until != "recovered" else settings.rounds
        self.before: Value = self.evaluator.validation(params) if requests else 0.0
        self.left_out: tuple[Request, ...] = ()
        # The paper's centralised models are those of their best epoch, judged by test data; Retrain and θ* only.
        self._keeps_best = isinstance(method, Retrain) and world.config.training.keep_model == "best-test"
        self._best_params: Params | None = None
        self._saved_at, self._saved_round = time.monotonic(), 0
        if until == "recovered" and not is_measured(self.before):
            raise UnfedError(f"--until recovered cannot be judged here ({self.before}); use --until N.")

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> State:
        """The job's last state; what was already done is not done again."""
        saved = self.folder.load_state(self.job)
        if saved is not None:
            self.start = start_on(self.base, saved[1])
            if self.start != saved[1].get("start", 1):
                self.folder.drop_samples(self.job)
                saved = None
        if saved is None:
            self._look_around()  # who asked to leave while this one waited is not asked to help it begin
            state, diary = self._begin()
        else:
            state, diary = self._resumed(*saved)
            for label, history in self.folder.load_histories(self.job).items():
                if label in self.server.recorders:
                    self.server.recorders[label].history = history.to(self.world.device)
            if saved[1]["finished"] and state.round >= self._enough(saved[1]):
                return self._write_model(state)
        self.watch.begins(self.job, state.round, self.rounds)
        outcome = self._outcome(state, diary)
        while outcome is None:
            self._look_around()
            state = self._round(state, diary)
            line = self._evaluate(state, diary) if self._due(state) else None
            outcome = self._outcome(state, diary, line)
            self.watch.goes_on(self.job, state.round, self.rounds, line)
            if outcome is None and self._save_due(state):
                self._save(state, diary, None)
        self._save(state, diary, outcome)
        if outcome == "not recovered":
            raise NotRecovered(
                f"Request {self.job.request!r} is not recovered after {state.round} rounds: the best validation"
                f" accuracy was {diary.best:.2f} % (round {diary.best_round}), it takes {self._target():.2f} %;"
                f" more rounds are given by --until {2 * self.rounds}."
            )
        self.watch.ends(self.job, outcome)
        return self._write_model(state)

    def _begin(self) -> tuple[State, Diary]:
        diary = Diary(offset=self.folder.length())
        self.server.ledger = diary.ledger
        if "history" in self.method.needs:
            self._account(diary, [Recorder(self.method, self.server.history)])
        started = time.monotonic()
        state = self.method.begin(self.server)
        diary.ledger.seconds += time.monotonic() - started
        self._take_notes(diary)
        if self.requests:
            diary.beginning = digest.beginning(self.server.params, state.params)
        line = self._evaluate(state, diary)
        outcome = self._outcome(state, diary, line)
        if outcome is None:
            self._save(state, diary, None)
        return state, diary

    def _round(self, state: State, diary: Diary) -> State:
        """One round further. A round that too few answered is noted, with what it cost, before the job gives up.

        Resumed, it is asked for again, under other draws of who does not answer.
        """
        histories = {label: recorder.history for label, recorder in self.server.recorders.items()}
        self.server.attempt = diary.attempt
        started = time.monotonic()
        try:
            after = self.method.round(self.server, state)
        except Refused:
            for label, history in histories.items():
                self.server.recorders[label].history = history
            self._noted(diary, started, attempt=diary.attempt + 1)
            self._save(state, diary, None)
            raise
        self._noted(diary, started, attempt=0)
        return after

    def _noted(self, diary: Diary, started: float, attempt: int) -> None:
        diary.ledger.seconds += time.monotonic() - started
        diary.attempt = attempt
        self._take_notes(diary)

    def _resumed(self, state: State, numbers: dict[str, Any]) -> tuple[State, Diary]:
        diary = Diary.from_json(numbers["diary"])
        self.server.ledger = diary.ledger
        self._saved_round = state.round
        tensors = {name: self._on_device(group) for name, group in state.tensors.items()}
        self._best_params = tensors.pop(BEST, None)
        return replace(state, params=self._on_device(state.params), tensors=tensors), diary

    def _on_device(self, tensors: Params) -> Params:
        return cast(tensors, self.world.dtype, self.world.device)

    def _enough(self, numbers: dict[str, Any]) -> int:
        """A job that ended by its number of rounds goes on when it is asked for more."""
        return self.rounds if numbers["finished"] == "all rounds" and self.until is not None else 0

    def _look_around(self) -> None:
        """From the next round on, who asked to leave while this job was running takes no part, and who joined does."""
        leaving = tuple(self.pending()) if self.pending else ()
        everything = [*self.requests[:-1], *leaving, *self.requests[-1:]]
        joined = isinstance(self.world, Open) and self.world.admit(everything)
        if leaving == self.left_out and not joined:
            return
        self.left_out = leaving
        clients = _scoped(self.world, everything) if self.requests else self.world.scoped(leaving, gone=leaving)
        public = self.world.public(clients) if "public" in self.method.needs else None
        self.server.look_at(clients, self.world.engine(clients), public)
        self.server.scope = tuple(request.to_json() for request in everything)
        if joined:  # what is measured from now on counts their rows too, and so does what it is compared with
            self.evaluator = self.world.evaluator(self.requests)
            self.before = self.evaluator.validation(self.server.params) if self.requests else 0.0

    # --- when -----------------------------------------------------------------------------------------------------

    def _due(self, state: State) -> bool:
        last = state.done or state.round >= self.rounds
        return last or state.round % self.world.config.evaluation.every == 0

    def _save_due(self, state: State) -> bool:
        when = self.world.config.checkpoint
        by_rounds = when.rounds is not None and state.round - self._saved_round >= when.rounds
        return by_rounds or (when.seconds is not None and time.monotonic() - self._saved_at >= when.seconds)

    def _outcome(self, state: State, diary: Diary, line: dict[str, Any] | None = None) -> str | None:
        """Why the job ends here, or None."""
        if state.done:
            return "done"
        if self.until == "recovered" and line is not None and self._is_recovered(state, line):
            return "recovered"
        if not state.model:
            return None  # nothing usable yet, whatever the number of rounds: the unlearning itself must end first
        if self.patience and state.round - diary.best_round >= self.patience:
            return "early stop"
        if state.round >= self.rounds:
            return "not recovered" if self.until == "recovered" else "all rounds"
        return None

    def _is_recovered(self, state: State, line: dict[str, Any]) -> bool:
        value, within = line["validation"], self.world.config.evaluation.recovered_within
        if not (state.round >= 1 and state.model and is_measured(value) and is_measured(self.before)):
            return False
        return recovered(value, self.before, within)

    def _target(self) -> float:
        assert not isinstance(self.before, str)
        return self.before - self.world.config.evaluation.recovered_within

    # --- what is written ------------------------------------------------------------------------------------------

    def _take_notes(self, diary: Diary) -> None:
        for round, clients in self.server.asked.items():
            diary.asked.setdefault(round, []).extend(clients)
        diary.refused += [_refusal(r) for r in self.server.refusals]
        self.server.asked, self.server.refusals = {}, []

    def _account(self, diary: Diary, recorders: Iterable[Recorder]) -> None:
        """What is stored for these methods, and what their originals would store."""
        like = self.world.template.like
        model_bytes = tensor_bytes({name: like[name] for name in self.world.template.trainable})
        kept = [(r.history.stored_bytes, r.method.original_bytes(r.history, model_bytes)) for r in recorders]
        diary.ledger.stored_server_bytes = sum(own for own, _ in kept)
        diary.ledger.stored_original_bytes = sum(original for _, original in kept)

    def _evaluate(self, state: State, diary: Diary) -> dict[str, Any]:
        if self.job.request is None:
            self._account(diary, self.server.recorders.values())
        seen = self.evaluator(state.params)
        line: dict[str, Any] = {
            "seed": self.job.seed,
            "request": self.job.request,
            "method": self.job.label,
            "round": state.round,
            "done": state.done,
            "model": state.model,
            **seen.numbers,
            "validation_before": self.before if self.requests else seen.numbers["validation"],
            **diary.ledger.to_json(),
            "asked": {str(round): clients for round, clients in diary.asked.items()},
            "refused": diary.refused,
        }
        if seen.earlier:
            line["earlier"] = seen.earlier
        if self.start > 1:
            line["start"] = self.start
        if self._keeps_best:
            line["keep_model"] = self.world.config.training.keep_model
        self.folder.save_samples(self.job, state.round, seen.samples)
        diary.offset = self.folder.append(line)
        diary.asked, diary.refused = {}, []
        value = seen.numbers["validation"]
        if is_measured(value) and value > diary.best:
            diary.best, diary.best_round = value, state.round
        test = seen.numbers["test"]
        if self._keeps_best and state.round >= 1 and is_measured(test) and test > diary.best_test:
            diary.best_test, self._best_params = test, state.params
        return line

    def _save(self, state: State, diary: Diary, outcome: str | None) -> None:
        finished = None if outcome == "not recovered" else outcome
        numbers = {"offset": diary.offset, "diary": diary.to_json(), "finished": finished, "rounds": self.rounds}
        numbers |= began(self.base, self.start)
        if self._best_params is not None:
            state = replace(state, tensors={**state.tensors, BEST: self._best_params})
        histories = {label: recorder.history for label, recorder in self.server.recorders.items()}
        self.folder.save_state(self.job, state, numbers, histories)
        self._saved_at, self._saved_round = time.monotonic(), state.round

    def _write_model(self, state: State) -> State:
        state = state if self._best_params is None else replace(state, params=self._best_params)
        if not self.folder.model_file(self.job).exists() or self.until is not None:
            model = self.world.config.model
            numbers = {**asdict(self.job), "round": state.round, "architecture": model.name, "options": model.options}
            numbers["sha256"] = digest.digests(state.params)
            self.folder.save_model(self.job, state.params, numbers)
        return state


def _scoped(world: World, requests: Sequence[Request]) -> dict[str, ClientData]:
    """The clients as a method sees them that works on the last of these requests: of the others no row is left."""
    return world.scoped(requests, gone=requests[:-1])


def start_on(base: Mapping[str, Any] | None, saved: Mapping[str, Any]) -> int:
    """Which start of a job this is: the saved one, or the next if that was at another model or without other rows."""
    start, its = int(saved.get("start", 1)), saved.get("base")
    return start if base is None or its is None or dict(its) == dict(base) else start + 1


def began(base: Mapping[str, Any] | None, start: int) -> dict[str, Any]:
    """What a saved state says of its beginning."""
    return ({} if base is None else {"base": dict(base)}) | ({} if start == 1 else {"start": start})


def last_starts(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of a trajectory without those of jobs that were begun anew since."""
    starts: dict[tuple[Any, ...], int] = {}
    for line in lines:
        job = (line["seed"], line["request"], line["method"])
        starts[job] = max(starts.get(job, 1), line.get("start", 1))
    return [x for x in lines if x.get("start", 1) == starts[x["seed"], x["request"], x["method"]]]


def _refusal(refusal: Refusal) -> dict[str, Any]:
    return {"round": refusal.round, "client": refusal.client, "reason": refusal.reason}
