"""A job: one method from its beginning to its end, evaluated, saved and resumable.

    saved?  ── no ──► begin, evaluate round 0, save
       │
       └── yes ─► go on:  round ─► evaluate if due ─► save if due ─► … ─► done or T rounds ─► save, write the model

The original training is the job of Retrain on an empty scope. A state is saved after `begin`, at the end, and in
between as the config says, or a watch wants; it holds the tensors, the ledger and the length of the trajectory, so a
job killed at any moment goes on from its last save and writes the same bytes again. A resumed NoT is therefore never
negated twice: `begin` is not called once a state is there. What a sealed method left after `begin` is overwritten after
its first round, whatever the config says.

A request that is asked again goes on from its state too, unless another model is in force by then or other rows are
out: then its state began at what counts no more, and the job begins again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from unfed.config.config import Config
from unfed.data import ClientData, Request
from unfed.engines.base import Engine, ObservedEngine, observed_clients
from unfed.errors import NotRecovered, Refused, Unanswered, UnfedError, UnfedWarning, option
from unfed.federation import algorithm
from unfed.federation.history import History, Recorder
from unfed.federation.protocol import Server
from unfed.federation.server import JobServer, Members
from unfed.federation.state import Settings, usable
from unfed.folder.folder import BEST, RunFolder
from unfed.folder.job_notes import JobNotes, began, model_notes, noted, start_on
from unfed.measures import trajectory
from unfed.measures.evaluator import Evaluation
from unfed.measures.forgotten import Evidence, Forgetting, did_it_forget, opposite_signs
from unfed.measures.metrics import recovered
from unfed.measures.trajectory import Line, job_of
from unfed.methods import Method, Retrain, State
from unfed.model import params as digest
from unfed.model.params import Params, cast, tensor_bytes
from unfed.requests.entry import Job
from unfed.requests.gate import Gate, NotForgotten, is_forgotten, told
from unfed.requests.options import Until
from unfed.requests.saved_state import SavedState
from unfed.runs.description import versions
from unfed.runs.progress import Watch
from unfed.runs.rollback import Rollback, Validation
from unfed.runs.world import World
from unfed.values import Value, is_measured


@dataclass(frozen=True)
class JobSpec:
    """What a job is to do: all that is known of it before it begins."""

    job: Job
    method: Method
    settings: Settings
    seed: int
    params: Params
    """The model that goes in."""
    requests: tuple[Request, ...] = ()
    """Those that are out already, then the one that is at work; none in training."""
    patience: int = 0
    """After how many rounds without a better validation accuracy it stops; 0 is never."""
    until: str | None = None
    """A number of rounds, `recovered`, `forgotten` or both; None is as the settings say."""
    within: float = 0.5
    """How near to the validation accuracy before counts as recovered, in points."""
    gate: Gate | None = None
    """What its model must show before it comes into force, where it is to come into force."""
    base: Mapping[str, Any] | None = None
    """What it begins at, as JSON; a saved state that began elsewhere is not gone on with."""
    history: History | None = None
    """What its method recorded on the way to `params`."""
    recorders: Mapping[str, Recorder] = field(default_factory=dict)
    """Who keeps history of its rounds, by label."""
    pending: Callable[[], Sequence[Request]] = tuple
    """Says which requests came in meanwhile."""

    @property
    def rounds(self) -> int:
        """How many rounds it may take."""
        return Until.of(self.until).rounds or self.settings.rounds


class JobRunner:
    """Runs one job in a folder."""

    def __init__(self, folder: RunFolder, world: World, spec: JobSpec, watch: Watch | None = None) -> None:
        self.folder, self.world, self.spec = folder, world, spec
        self.job, self.requests, self.rounds = spec.job, spec.requests, spec.rounds
        self.method = spec.method.for_requests(spec.requests)
        self.watch: Watch = watch or Watch()
        self._observer = self.watch.observer(spec.job)
        self.start = 1
        self.evaluator = world.evaluator(self.requests)
        history = None if spec.history is None else spec.history.to(world.device)
        setup = world.setup(self._as_it_was)
        # Anyone who left by an earlier request is gone: the method sees the rows of the last one only.
        members = self._members(_scoped(world, self.requests))
        settings = spec.settings
        if settings.schedule.kind == "one-cycle":  # it ends with the job, however many rounds a request asks for
            settings = replace(settings, rounds=spec.rounds)
        self.server = JobServer(setup, members, spec.params, settings, spec.seed, history)
        self.server.scope = tuple(request.to_json() for request in self.requests)
        self.server.recorders = dict(spec.recorders)
        self.before: Value = self.evaluator.validation(spec.params) if self.requests else 0.0
        self.left_out: tuple[Request, ...] = ()
        rows = sum(len(client.view("val")) for client in members.clients.values())
        validation = Validation(lambda params: self.evaluator.validation(params), world.classes, rows)
        self._rollback = Rollback(self.server, validation)
        # The paper's centralised models are those of their best epoch, judged by test data; Retrain and θ* only.
        self._keeps_best = isinstance(spec.method, Retrain) and world.config.training.keep_model == "best-test"
        self._best_params: Params | None = None
        self._saved_at, self._saved_round, self._saved_good = time.monotonic(), 0, True
        self._writer = LineWriter(folder)
        self.ending = Ending(Until.of(spec.until), spec.rounds, spec.patience, spec.within)
        self._known = self._evidence_before()
        if "recovered" in self.ending.until.goals and not is_measured(self.before):
            raise UnfedError(not_judged(self.before))
        if settings.tune and not is_measured(self.before):
            raise UnfedError(NO_TRIALS)

    def _evidence_before(self) -> Evidence | None:
        """What the model that goes in shows of the request, where the job is to stop when that is gone."""
        gate = self.spec.gate
        if gate is None or not gate.stops_at_forgotten:
            return None
        evidence = self.evaluator.evidence(self.spec.params)
        gate.measurable(evidence)
        return evidence

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> State:
        """The job's last state; what was already done is not done again."""
        with closing(self._writer):
            state, diary, line, ended = self._first()
            if ended:
                return self._write_model(state)
            self.watch.begins(self.job, state.round, self.rounds)
            outcome = self.ending.outcome(state, diary, line)
            while outcome is None:
                self._update_members()
                self.server.keeps = state.round < diary.careful
                state = self._round(state, diary)
                seen = self.evaluator.begun(state.params) if self._due(state) else None
                outcome = None if seen else self.ending.outcome(state, diary)
                save = not seen and (outcome is not None or self._save_due(state))
                value = seen.numbers["validation"] if seen else None
                if save or (self.server.keeps and not seen):
                    value = self.evaluator.validation(state.params)
                if (good := self._rollback.spoilt(state, diary, value)) is not None:
                    state, outcome = good, None
                    continue
                line = None
                if seen:
                    line = self._evaluate(state, diary, seen)
                    outcome = self.ending.outcome(state, diary, line)
                    save = outcome is None and self._save_due(state)
                self._writer.then(partial(self.watch.goes_on, self.job, state.round, self.rounds, line))
                if outcome is None and save:
                    self._save(state, diary, None)
            if self.requests and self.spec.gate is None and not self.folder.description().elsewhere:
                diary.forgetting = vars(self._forgetting(state, diary))
            self._save(state, diary, outcome)
            if outcome.startswith("not "):
                raise self.ending.missed(self.job.request, state, diary, outcome, self.before)
            self.watch.ends(self.job, outcome)
            return self._write_model(state)

    def _first(self) -> tuple[State, JobNotes, Line | None, bool]:
        """Where the job begins or goes on.

        It is a state, its notes, the line that was seen of it, and whether the job has ended.
        """
        saved = self.folder.load_state(self.job)
        if saved is not None:
            if saved[1].purged and self.spec.base is None:
                what = f"The state of {self.job.name} was purged for request {saved[1].purged!r}"
                raise UnfedError(f"{what}; run the config again in another folder.")
            self.start = start_on(self.spec.base, saved[1])
            if self.start != saved[1].start:
                saved = None
            elif why := self._poisoned(*saved):
                saved = self._last_good(why)
            if saved is None:
                self.folder.drop_samples(self.job)
        if saved is None:
            self._update_members()  # who asked to leave while this one waited is not asked to help it begin
            return *self._begin(), None, False
        state, diary = self._resumed(*saved)
        for label, history in self.folder.load_histories(self.job).items():
            if label in self.server.recorders:
                self.server.recorders[label].history = history.to(self.world.device)
        self._begin_records(state)
        self._rollback.keep(state, diary)
        line = self._seen_last(state, diary)
        return state, diary, line, self.ending.enough(state, saved[1].finished, diary)

    def _poisoned(self, state: State, saved: SavedState) -> str:
        """What is wrong with a saved state, in words; nothing if it is good, or the last one."""
        if saved.finished:
            return ""
        on_device = replace(state, params=self._on_device(state.params))
        diary = saved.diary.to_json()
        return self._rollback.why_poisoned(on_device, JobNotes.from_json(diary), "good" in diary)

    def _last_good(self, why: str) -> tuple[State, SavedState] | None:
        """The last good state of a training whose newest is spoilt.

        A request has none: its job begins again at the model that went in.
        """
        spoilt = f"The saved state of {self.job.name} is spoilt ({why})"
        if self.requests:
            warnings.warn(f"{spoilt}, so the request begins again.", UnfedWarning, stacklevel=2)
            self.start += 1
            return None
        while (saved := self.folder.step_back(self.job)) is not None:
            if not self._poisoned(*saved):
                said = f"{spoilt}, so it goes on from the good one of round {saved[0].round}."
                warnings.warn(said, UnfedWarning, stacklevel=2)
                return saved
        raise UnfedError(f"{spoilt}, and no good one was kept; run the config again in a new folder.")

    def _begin(self) -> tuple[State, JobNotes]:
        diary = JobNotes(offset=self.folder.length())
        self.server.ledger, self.server.usual = diary.ledger, diary.usual
        if self.spec.history is not None:
            self._account(diary, [Recorder(self.method, self.server.history)])
        started = time.monotonic()
        if self.server.settings.tune:
            diary.tuned = try_rates(self.server, self.method, self.evaluator.validation)
            self._use_rate(diary)
        state = usable(next(algorithm.unlearn(self.server, self.method)))
        diary.ledger.seconds += time.monotonic() - started
        self.watch.reached(self.job, state, self._asked())
        self._take_notes(diary)
        if self.requests:
            diary.beginning = digest.beginning(self.server.params, state.params)
        self._begin_records(state)
        line = self._evaluate(state, diary, self.evaluator.begun(state.params))
        self._rollback.keep(state, diary)
        outcome = self.ending.outcome(state, diary, line)
        if outcome is None:
            self._save(state, diary, None)
        return state, diary

    def _use_rate(self, diary: JobNotes) -> None:
        """Go on at the learning rate that trials chose, where they did."""
        if diary.tuned is not None:
            self.server.settings = self.server.settings.at(diary.tuned["lr"])

    def _begin_records(self, state: State) -> None:
        for recorder in self.server.recorders.values():
            recorder.begin(state.params)

    def _round(self, state: State, diary: JobNotes) -> State:
        """The state after `state`.

        A round that too few answered is noted, with what it cost, before the job gives up.

        Resumed, it is asked for again, under other draws of who does not answer.
        """
        histories = {label: recorder.history for label, recorder in self.server.recorders.items()}
        self.server.attempt, usual = diary.attempt, dict(diary.usual)
        started = time.monotonic()
        try:
            after = usable(next(algorithm.unlearn(self.server, self.method, state)))
        except Refused as error:
            absurd = {r.client: r.reason for r in self.server.refusals if r.absurd}
            for label, history in histories.items():
                self.server.recorders[label].history = history
            self.server.usual = diary.usual = usual
            if isinstance(error, Unanswered) and absurd and not absurd.keys() >= set(self.server.retained):
                self._noted(diary, time.monotonic() - started, attempt=diary.attempt)
                for client, reason in absurd.items():  # or it would end the run
                    self._rollback.leave_out(diary, state.round + 1, client, reason)
                return self._round(state, diary)
            self._noted(diary, time.monotonic() - started, attempt=diary.attempt + 1)
            self._save(state, diary, None)
            raise
        seconds, asked = time.monotonic() - started, self._asked()
        self._writer.settle()
        self._noted(diary, seconds, attempt=0)
        self.watch.reached(self.job, after, asked)
        return after

    def _noted(self, diary: JobNotes, seconds: float, attempt: int) -> None:
        diary.ledger.seconds += seconds
        diary.attempt = attempt
        self._take_notes(diary)

    def _resumed(self, state: State, saved: SavedState) -> tuple[State, JobNotes]:
        diary = JobNotes.from_json(saved.diary.to_json())
        self.server.ledger, self.server.usual = diary.ledger, diary.usual
        self._saved_round, self._saved_good = state.round, diary.fell is None
        self._use_rate(diary)
        tensors = {name: self._on_device(group) for name, group in state.tensors.items()}
        self._best_params = tensors.pop(BEST, None)
        self.server.leave_out(diary.aside)
        return replace(state, params=self._on_device(state.params), tensors=tensors), diary

    def _seen_last(self, state: State, diary: JobNotes) -> Line | None:
        """The line of the round at which a job left off, judged by the goals that it has now.

        They may be others than when it was written, and so may how near counts as recovered. None if there is no line.
        """
        diary.missing = None
        here = (self.job.seed, self.job.request, self.job.label, self.start, state.round)
        lines = [one for one in self.folder.lines() if (*job_of(one), one.get("start", 1), one["round"]) == here]
        if not self.ending.until.goals or not lines:
            return None
        line = lines[-1].copy()
        self._judge(state, line, diary)
        return line

    def _on_device(self, tensors: Params) -> Params:
        return cast(tensors, self.world.dtype, self.world.device)

    def _update_members(self) -> None:
        """Take note of who asked to leave, and of who joined, while this job was running.

        From the next round on the former take no part, and the latter do.
        """
        leaving = tuple(self.spec.pending())
        everything = [*self.requests[:-1], *leaving, *self.requests[-1:]]
        joined = self.world.admit(everything)
        if leaving == self.left_out and not joined:
            return
        self.left_out = leaving
        clients = _scoped(self.world, everything) if self.requests else self.world.scoped(leaving, gone=leaving)
        self.server.look_at(self._members(clients))
        self.server.scope = tuple(request.to_json() for request in everything)
        if joined:  # what is measured from now on counts their rows too, and so does what it is compared with
            self.evaluator = self.world.evaluator(self.requests)
            self.before = self.evaluator.validation(self.server.params) if self.requests else 0.0

    def _members(self, clients: dict[str, ClientData]) -> Members:
        """Who is there, and who reaches them; an observer hears what they are asked."""
        clients = clients if self._observer is None else observed_clients(clients, self._observer)
        engine = self.world.engine(clients)
        public = self.world.public(clients) if "public" in self.method.needs else None
        return Members(clients, engine if self._observer is None else ObservedEngine(engine, self._observer), public)

    def _as_it_was(self, scope: Sequence[Mapping[str, Any]]) -> Engine:
        return self._members(_scoped(self.world, [Request.from_json(r) for r in scope])).engine

    # --- when -----------------------------------------------------------------------------------------------------

    def _due(self, state: State) -> bool:
        last = state.done or state.round >= self.rounds
        return last or state.round % self.world.config.evaluation.every == 0

    def _save_due(self, state: State) -> bool:
        if self.method.seals and self._saved_round == 0:
            return True  # the perturbed model must not lie beside the old one any longer
        if self.job.request is None and (every := self.world.config.training.keep_every) and state.round % every == 0:
            return True
        rounds, seconds = state.round - self._saved_round, time.monotonic() - self._saved_at
        return self.world.config.checkpoint.due(rounds, seconds) or self.watch.wants_save(self.job)

    # --- what is written ------------------------------------------------------------------------------------------

    def _asked(self) -> list[str]:
        """Who was asked to train since notes were last taken."""
        return list(dict.fromkeys(name for clients in self.server.asked.values() for name in clients))

    def _take_notes(self, diary: JobNotes) -> None:
        for round, clients in self.server.asked.items():
            diary.asked.setdefault(round, []).extend(clients)
        diary.refused += [noted(r) for r in self.server.refusals]
        self.server.asked, self.server.refusals = {}, []

    def _account(self, diary: JobNotes, recorders: Iterable[Recorder]) -> None:
        """What is stored for these methods, and what their originals would store."""
        like = self.world.template.like
        model_bytes = tensor_bytes({name: like[name] for name in self.world.template.trainable})
        kept = [(r.history.stored_bytes, r.method.original_bytes(r.history, model_bytes)) for r in recorders]
        diary.ledger.stored_server_bytes = sum(own for own, _ in kept)
        diary.ledger.stored_original_bytes = sum(original for _, original in kept)

    def _evaluate(self, state: State, diary: JobNotes, seen: Evaluation) -> Line:
        if self.job.request is None:
            self._account(diary, self.server.recorders.values())
        line = trajectory.line(
            trajectory.Point(self.job.seed, self.job.request, self.job.label, state.round, state.done, state.model),
            seen.numbers,
            self.before if self.requests else seen.numbers["validation"],
            diary.ledger.to_json(),
            asked={str(round): clients for round, clients in diary.asked.items()},
            refused=diary.refused,
            earlier=seen.earlier,
            own=seen.own,
            rows=seen.rows,
            start=self.start,
        )
        if self._keeps_best:
            line["keep_model"] = self.world.config.training.keep_model
        self._judge(state, line, diary)
        only = self.world.config.evaluation.samples == "last"
        self.folder.save_samples(self.job, state.round, seen.samples, self.requests, only)
        self._writer.expect(line, diary, seen.attack)
        diary.asked, diary.refused = {}, []
        self._rollback.written()
        value = seen.numbers["validation"]
        if is_measured(value) and value > diary.best:
            diary.best, diary.best_round = value, state.round
        test = seen.numbers["test"]
        if self._keeps_best and state.round >= 1 and is_measured(test) and test > diary.best_test:
            diary.best_test, self._best_params = test, state.params
        return line

    def _judge(self, state: State, line: Line, diary: JobNotes) -> None:
        """Note which goals are still missing, by a line of this state."""
        if (watched := self._watched(state)) is not None:
            line["watched"], diary.watched = watched, watched["said"]
        diary.missing = self.ending.missing(state, line, self.before) if self.ending.until.goals else None

    def _watched(self, state: State) -> trajectory.Watched | None:
        """What the rule that stops sees of forgetting, where that is a goal."""
        gate = self.spec.gate
        if gate is None or self._known is None:
            return None
        found = gate.watched(self._known, self.evaluator.evidence(state.params))
        return {"verdict": is_forgotten(found), "said": told(found), "checks": {n: asdict(j) for n, j in found.items()}}

    def _forgetting(self, state: State, diary: JobNotes) -> Forgetting:
        """Whether the model that is left forgot what the one that went in knew."""
        before, after = self.spec.params, self._best_params or state.params
        changes = (diary.beginning or {}).get("changes") or {}
        negated = [name for name, how in changes.items() if how.startswith("negated")]
        seen = self.evaluator.evidence(before), self.evaluator.evidence(after)
        opposite = opposite_signs(before, after, negated)
        return did_it_forget(*seen, self.world.classes, bool(self.requests[-1].classes), opposite)

    def _save(self, state: State, diary: JobNotes, outcome: str | None) -> None:
        self._writer.settle()
        for recorder in self.server.recorders.values():
            recorder.check(state.params)
        finished = None if outcome is not None and outcome.startswith("not ") else outcome
        numbers = {"offset": diary.offset, "diary": diary.to_json(), "finished": finished, "rounds": self.rounds}
        numbers |= began(self.spec.base, self.start) | {"versions": dict(versions())}
        if self._best_params is not None:
            state = replace(state, tensors={**state.tensors, BEST: self._best_params})
        histories = {label: recorder.history for label, recorder in self.server.recorders.items()}
        every = self.world.config.training.keep_every
        self.folder.save_state(self.job, state, numbers, histories, self._saved_good, every)
        self._saved_at, self._saved_round, self._saved_good = time.monotonic(), state.round, diary.fell is None
        self.watch.saved(self.job, state, histories)

    def _write_model(self, state: State) -> State:
        state = state if self._best_params is None else replace(state, params=self._best_params)
        if not self.folder.model_file(self.job).exists() or self.spec.until is not None:
            numbers = model_notes(self.folder.book(), self.world.config, self.job, state.round, state.params)
            self.folder.save_model(self.job, state.params, numbers)
        return state


def _scoped(world: World, requests: Sequence[Request]) -> dict[str, ClientData]:
    """The clients as a method sees them that works on the last of these requests.

    Of the others no row is left.
    """
    return world.scoped(requests, gone=requests[:-1])


# --- a learning rate chosen by trials ---------------------------------------------------------------------------------


def not_judged(why: Value) -> str:
    """The sentence for `--until recovered` where validation accuracy is not measured."""
    return f"{option('until', 'recovered')} cannot be judged here ({why}); use {option('until', 'N')}."


NO_TRIALS = "unlearning.tune needs validation rows, and none are held out; set unlearning.lr, or partition.validation."


NEARLY = 5.0
"""Points of validation accuracy that two trials may differ by and count as equally good."""


def try_rates(server: JobServer, method: Method, score: Callable[[Params], Value]) -> dict[str, Any]:
    """Run a short trial of the method at each rate of `tune`, and choose one by validation accuracy.

    Every trial begins like the job and draws what its first rounds draw, at those who stay. Taken is the highest rate
    within `NEARLY` points of the best: the whole recovery is longer than a trial, and bears a higher rate. What trials
    cost is counted; nothing of them is recorded.

    Raises:
        Refused: No rate led to a model.
    """
    settings, recorders, usual = server.settings, server.recorders, server.usual
    trial, reached, rounds, failed = method.trial(settings.tune_rounds), dict[float, float](), 0, None
    enough = trial.rounds(settings.tune_rounds, settings.tune_rounds)
    server.recorders = {}
    for rate in settings.tune:
        server.settings, server.usual = replace(settings.at(rate), rounds=enough), dict(usual)
        try:
            for state in map(usable, algorithm.unlearn(server, trial)):
                rounds += state.round > 0
                if state.done or (state.model and state.round >= enough):
                    break
            if is_measured(value := score(state.params)):
                reached[rate] = value
        except Refused as error:
            failed = error
    server.settings, server.recorders, server.usual = settings, recorders, usual
    if not reached:
        raise failed or UnfedError(NO_TRIALS)
    best = max(reached.values())
    chosen = max(rate for rate, value in reached.items() if value >= best - NEARLY)
    return {"lr": chosen, "rounds": rounds, "validation": {str(rate): value for rate, value in reached.items()}}


# --- when a job ends --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """What a job works for, and how long it may."""

    until: Until
    rounds: int
    """How many rounds it may take."""
    patience: int = 0
    """After how many rounds without a better validation accuracy it stops; 0 is never."""
    within: float = 0.5
    """How near to the validation accuracy before counts as recovered, in points."""

    def outcome(self, state: State, notes: JobNotes, line: Line | None = None) -> str | None:
        """Why the job ends here, or None."""
        if state.done:
            return f"not {notes.missing[0]}" if self.until.goals and notes.missing else "done"
        if self.until.goals and line is not None and not notes.missing:
            return self.until.reached
        if not state.model:
            return None  # nothing usable yet, whatever the number of rounds: the unlearning itself must end first
        stalled = bool(self.patience) and state.round - notes.best_round >= self.patience
        if stalled or state.round >= self.rounds:
            missing = [g for g in self.until.goals if notes.missing is None or g in notes.missing]
            return f"not {missing[0]}" if missing else "early stop" if stalled else "all rounds"
        return None

    def missing(self, state: State, line: Line, before: Value) -> list[str]:
        """Which goals are not reached by what a line says.

        `before` is the validation accuracy to come back to.
        """
        if not (state.model and (state.round >= 1 or state.done)):
            return list(self.until.goals)
        value, met = line.get("validation"), []
        if is_measured(value) and is_measured(before) and recovered(value, before, self.within):
            met.append("recovered")
        if "watched" in line and line["watched"]["verdict"] == "passed":
            met.append("forgotten")
        return [goal for goal in self.until.goals if goal not in met]

    def missed(self, request: str | None, state: State, notes: JobNotes, outcome: str, before: Value) -> Refused:
        """The sentence for a job whose rounds did not suffice."""
        took = f"{state.round} round{'' if state.round == 1 else 's'}"
        more = f"more rounds are given by {option('until', Until(self.until.goals, 2 * self.rounds).text)}"
        if state.done:
            leaves = f"{option('until', 'N')} leaves the model to the gate"
            more = f"its method has ended and takes no more rounds; {leaves}"
        elif state.round < self.rounds:
            more = f"it stopped because nothing got better for {self.patience} rounds (unlearning.patience)"
        if outcome == "not forgotten":
            return NotForgotten(f"Request {request!r} is not forgotten after {took} ({notes.watched}); {more}.")
        assert not isinstance(before, str)
        return NotRecovered(
            f"Request {request!r} is not recovered after {took}: the best validation accuracy was"
            f" {notes.best:.2f} % (round {notes.best_round}), it takes {before - self.within:.2f} %; {more}."
        )

    def enough(self, state: State, finished: str | None, notes: JobNotes) -> bool:
        """Whether a job has ended by what it is asked for now; one that is asked for more goes on."""
        if self.until == Until() or finished in (None, "done", "early stop"):
            return bool(finished)
        return notes.missing == [] if self.until.goals else state.round >= self.rounds


# --- the line of an evaluated round, written beside the next round ----------------------------------------------------


class LineWriter:
    """At most one line that is on its way to the disk, and who is to hear of it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="unfed-attack")
        self._waiting: tuple[JobNotes, Future[int]] | None = None
        self._tell: Callable[[], None] | None = None

    def expect(self, line: Line, diary: JobNotes, attack: Callable[[], Value] | None) -> None:
        """Begin to compute what the line lacks, and to write it."""
        self.settle()
        self._waiting = diary, self._thread.submit(self._written, line, attack)

    def _written(self, line: Line, attack: Callable[[], Value] | None) -> int:
        if attack is not None:
            line["mia"] = attack()
        return self._folder.append(line)

    def then(self, tell: Callable[[], None]) -> None:
        """Call this once the line is written; at once where none is on its way."""
        self._tell = tell
        if self._waiting is None:
            self.settle()

    def settle(self) -> None:
        """Wait for the line, and tell of it."""
        if self._waiting is not None:
            diary, written = self._waiting
            self._waiting = None
            diary.offset = written.result()
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()

    def close(self) -> None:
        """Nothing is on its way any more, and no thread is left."""
        try:
            self.settle()
        finally:
            self._thread.shutdown()


# --- training as a method ---------------------------------------------------------------------------------------------


def training_method(world: World) -> Method:
    """What leads to θ* in a world."""
    return Retrain() if world.initial is None and world.config.model.initial is None else GoOn()


def start_of(folder: RunFolder, job: Job, world: World) -> Params:
    """The model that a training begins at; one that has begun already needs its file no more."""
    if folder.saved(job) is None:
        refuse_another(world.config, world.checkpoint, folder.description().initial)
    return world.initial or world.template.like


def refuse_another(config: Config, found: str | None, noted: str | None) -> None:
    """Refuse a checkpoint that is gone, or is not the one that was noted; runs from before noted none."""
    if found is None and config.model.initial is not None:
        raise UnfedError(f"There is no checkpoint model.initial at {config.model.initial}; restore it from a copy.")
    if noted is not None and found != noted:
        what = f"The checkpoint model.initial at {config.model.initial} is not the one that this was begun with"
        raise UnfedError(f"{what}; restore it from a copy.")


class GoOn(Retrain):
    """Training that starts from an existing checkpoint (`model.initial`)."""

    def begin(self, server: Server) -> State:
        return State(server.params)
