"""A run: train θ*, compare methods that forget, and serve deletion requests as they come.

    run = Run.create(Config.preset("demo"), "runs/demo")
    run.execute()                                          # again after a crash: it goes on where it was
    run.forget(Request("r1", clients=("3",)))              # the operator's way: one request, one method, a new model

`execute` compares: every method starts from θ* and takes the config's requests one after another; nothing is purged.
`forget` serves: each request starts from what the one before it left. A request that arrives while another is at work
is left out of every round from the next on, and its turn comes after; one that fails is denied and stays owed, and the
next has its turn (`serving.py`). Once a request is served, the leaver's records are taken out of every history in the
folder; what still carries its influence is listed in `info`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unfed import plugins
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import AtWork, Refused, UnfedError, UnfedWarning, expect, listed, members, option
from unfed.federation.history import Recorder
from unfed.folder import deny, purge
from unfed.folder.folder import RunFolder
from unfed.folder.job_notes import began, start_on
from unfed.measures import trajectory
from unfed.measures.evaluator import Scorer
from unfed.measures.forgotten import Forgetting, remedy
from unfed.methods import Retrain, State
from unfed.model.params import Params, cast, check_like
from unfed.requests.book import method_of_request
from unfed.requests.entry import Entry, Job
from unfed.requests.gate import gate_of
from unfed.requests.options import RequestOptions
from unfed.runs import admission, description, probe, record
from unfed.runs.admission import Offer, gone_already, left_by
from unfed.runs.job import JobRunner, JobSpec, start_of, training_method
from unfed.runs.progress import Heartbeat, Watch
from unfed.runs.record import RunRecord, clients_of
from unfed.runs.serving import STOPS, Queue
from unfed.runs.simulated import as_it_began, simulated
from unfed.runs.together import MethodTurn
from unfed.runs.world import World, process_as_before


@dataclass(frozen=True)
class Outcome:
    """What `forget` did with a request."""

    entry: Entry
    status: str
    """`done`, `already done`, `withdrawn`, or `queued`: another process is at work and will take it up."""

    @property
    def verdict(self) -> str:
        """Whether the new model forgot, in one or two sentences; empty where there is none."""
        found = Forgetting.of((self.entry.gate or {}).get("forgetting"))
        return "" if found is None or self.entry.method == Retrain.name else found.sentence(remedy(self.entry.method))


Builder = Callable[[RunFolder, Config, int], World]
"""(folder, its config, seed) -> the world of a run that goes on."""


class Run(RunRecord):
    """A run folder and the work in it: train, compare methods, serve deletion requests.

    Make one with `create`, or `open` one that is there. `build` makes its worlds, in whatever setting.

    Examples:
        >>> run = unfed.Run.create(unfed.Config.preset("demo"), "runs/new")
        >>> run.execute()
        >>> run.forget(unfed.Request("bye", clients=("3",))).status
        'done'
    """

    def __init__(self, folder: RunFolder, build: Builder = as_it_began) -> None:
        super().__init__(folder)
        self._build = build
        self.queue = Queue(self)
        self._worlds: dict[int, World] = {}
        self._at_work = False

    # --- beginning ------------------------------------------------------------------------------------------------

    @staticmethod
    @process_as_before()
    def create(config: Config, folder: str | Path, world: World | None = None, build: Builder = as_it_began) -> Run:
        """Make a new run folder, after all checks that need no training.

        Args:
            config: The experiment.
            folder: A path where nothing lies yet.
            world: A world of this config; default: a simulated one.
            build: Makes the worlds of further repetitions.

        Returns:
            The run; `execute` starts the work.

        Raises:
            UnfedError: The config cannot be served, or the folder is taken.
        """
        expect(config, Config, "A config, such as unfed.Config.preset('demo'),")
        expect(folder, (str, Path), "The path of a new folder")
        where, config = RunFolder(folder), deny.imported(config)
        if world is not None and world.config.deny != config.deny:
            raise UnfedError("This world was built without the deny list of deny.run; build it from the same config.")
        plugins.permit(config.code())
        world = world or simulated(config, config.seed_list[0])
        requests = config.requests()
        admission.recordable(config)
        methods = {label: config.method(label) for label in config.methods.build()} if requests else {}
        for label, method in methods.items():
            method.for_requests(requests).check(world.template.module)
            for i, request in enumerate(requests):
                admission.welcome(config, label, request, requests[:i])
                admission.unbroken_by_itself(config, label, requests[:i])
        for i, request in enumerate(requests):
            if by := left_by(world, request, requests[:i]):
                raise UnfedError(f"{gone_already(request, by)} Leave it out of the config.")
        scopes = [requests[: i + 1] for i in range(len(requests))]
        where.create(description.description(world, scopes, methods), deny.key_of(config))
        run = Run(where, build)
        run.use(world)
        return run

    @staticmethod
    def open(folder: str | Path, only: Collection[str] | None = None) -> Run:
        """Open a run folder.

        Args:
            folder: Its path.
            only: Read only these methods of its comparison; default: all.

        Returns:
            The run.

        Raises:
            UnfedError: There is no run in this folder.
        """
        expect(folder, (str, Path), "An unfed.Run, or the path of its folder,")
        run = Run(RunFolder(folder))
        run.only = None if only is None else frozenset(only)
        return run

    def world(self, seed: int) -> World:
        if seed not in self._worlds:
            self.permit()
            self._worlds.clear()  # one at a time: a world holds the whole data set
            with process_as_before():
                self._worlds[seed] = self._build(self.folder, self.config, seed)
        if self._at_work:
            self._worlds[seed].settle()
        return self._worlds[seed]

    def use(self, world: World) -> None:
        """Go on with a world that is built already."""
        self._worlds = {world.seed: world}

    @contextmanager
    def _working(self) -> Iterator[None]:
        """While work goes on the process is set as the world at hand needs it, and afterwards as it was."""
        with process_as_before():
            self._at_work = True
            try:
                yield
            finally:
                self._at_work = False

    # --- comparing ------------------------------------------------------------------------------------------------

    def execute(self, watch: Watch | None = None) -> None:
        """Do what is not done yet: train, compare methods, serve requests.

        Args:
            watch: Hears of every round.

        Raises:
            UnfedError: Another process works in this folder.
            Refused: A request was denied; the others were served.
        """
        failed = self._first_then_serve(watch, self._train_and_compare)
        if failed is None:
            raise AtWork(f"Another process is at work in {self.folder.path}; see `{self.command('status')}`.")
        self._undo()
        for entry in failed[1:]:
            warnings.warn(self.queue.still_owed(entry), UnfedWarning, stacklevel=2)
        if failed:
            raise Refused(self.queue.still_owed(failed[0])) from self.queue.errors[failed[0].request.id]

    def go_back(self) -> int:
        """Go back to the last good state of a training that hostile clients spoiled.

        Returns:
            The round from which it goes on when it is resumed.

        Raises:
            UnfedError: Another process is at work, or no good state is kept.
        """
        with self.folder.work():
            for job in map(self.training_job, self.config.seed_list):
                if (found := self.folder.step_back(job)) is not None:
                    return found[0].round
        raise UnfedError(f"{self.folder.path} keeps no earlier good state: its training has ended, or just begun.")

    def _undo(self) -> None:
        """Where the config asks for it: how far each model that was left can be undone."""
        if not self.config.evaluation.undo:
            return
        if why := probe.elsewhere(self):
            warnings.warn(f"evaluation.undo: {why}", UnfedWarning, stacklevel=3)
        elif any(self.folder.model_file(one.job).exists() for one in probe.left(self)):
            probe.probe(self)

    def _train_and_compare(self, watch: Watch) -> None:
        for seed in self.config.seed_list:
            if self.folder.buried(self.training_job(seed)):
                continue  # nothing is purged before the comparison has ended
            trained = self._train(seed, watch)
            self._compare(seed, trained, watch)

    def _first_then_serve(
        self, watch: Watch | None, first: Callable[[Watch], None] | None = None
    ) -> list[Entry] | None:
        """Do something first, then serve the queue; the requests that failed, or None if another is at work.

        A request that is filed while this works is queued, so this goes on until the queue is empty: what came in
        between the last look and letting go of the lock is seen here.
        """
        self.permit()
        if changed := description.changed_since(self.description, self.folder.path):
            warnings.warn(changed, UnfedWarning, stacklevel=3)
        self.queue.put_off.clear()
        failed: list[Entry] | None = None
        with record.logged(self, watch) as watch:
            while failed is None or self.queue.waits():
                with self._working(), self.folder.lock() as free:
                    if not free:
                        break
                    self.folder.cut_back()
                    purge.finish(self.folder)  # one that was killed
                    heartbeat = Heartbeat(self.folder, self.ahead(), watch)
                    try:
                        if first is not None:
                            first(heartbeat)
                    except STOPS:
                        raise
                    except Exception:  # requests do not wait until a comparison is mended
                        self.folder.cut_back()
                        for entry in self.queue.serve(heartbeat):
                            warnings.warn(self.queue.still_owed(entry), UnfedWarning, stacklevel=3)
                        raise
                    failed, first = [*(failed or []), *self.queue.serve(heartbeat)], None
        return failed

    def _train(self, seed: int, watch: Watch) -> Params:
        """θ*: Retrain on an empty scope, under the training seed."""
        job = self.training_job(seed)
        if self.trained(seed):
            return self._model(job)
        world = self.world(seed)
        spec = JobSpec(
            job,
            training_method(world),
            world.training_settings(),
            world.seeds.training,
            start_of(self.folder, job, world),
            patience=self.config.training.patience,
            recorders={label: Recorder(recorded) for label, recorded in self.config.recorded().items()},
            pending=lambda: self.queue.book.besides(seed),
        )
        return JobRunner(self.folder, world, spec, watch).run().params

    def _compare(self, seed: int, trained: Params, watch: Watch) -> None:
        requests = self.config.requests()
        for i in range(len(requests)):
            self.score_before(seed, requests[: i + 1], trained)
        for label in self.labels if requests else ():
            params, method, previous = trained, self.config.method(label), self.training_job(seed)
            for i in range(len(requests)):
                turn = MethodTurn(seed, requests[: i + 1], label, method, params, previous)
                params = self.unlearn(turn, watch).params
                previous = Job(seed, requests[i].id, label)

    def unlearn(self, turn: MethodTurn, watch: Watch) -> State:
        """Run a method's job to its end, or go on with it; the gate comes afterwards, in the queue."""
        world, method, request, entry = self.world(turn.seed), turn.method, turn.requests[-1], turn.entry
        config = self.config if entry is None else entry.how.on(self.config, turn.label)
        training = self.training_job(turn.seed)
        previous = turn.previous or training
        rounds = description.rounds_of(config, turn.label, method)
        settings = world.unlearning_settings(isinstance(method, Retrain), turn.label, config)
        history = admission.history_of(self.folder, turn.label, method, training, previous)
        if admission.rewinds(method):
            history = admission.rewound(self.folder, world, turn.requests)
            rounds = max(1, rounds - history.rounds)
        recorders = admission.recorders(self.folder, self.config, method, previous, world, request)
        if entry is None:  # a comparison records for its own next request only; what is served, for the next one
            more = len(turn.requests) < len(self.config.requests())
            recorders = {own: recorder for own, recorder in recorders.items() if own == turn.label and more}
        spec = JobSpec(
            Job(turn.seed, request.id, turn.label),
            method,
            replace(settings, rounds=rounds),
            world.seeds.request(request.id),
            turn.params,
            tuple(turn.requests),
            patience=self.config.unlearning.patience,
            until=None if entry is None else entry.until,
            within=config.evaluation.recovered_within,
            gate=None if entry is None else gate_of(world.seeds.evaluation, world.classes, config, entry),
            base=turn.base,
            history=history,
            recorders=recorders,
            pending=lambda: self.queue.book.besides(turn.seed) if turn.batch is None else self.queue.aside(turn.batch),
        )
        return JobRunner(self.folder, world, spec, watch).run()

    def score_before(
        self,
        seed: int,
        requests: Sequence[Request],
        params: Params,
        label: str = "before",
        base: Mapping[str, Any] | None = None,
        evaluator: Scorer | None = None,
    ) -> None:
        """One line for θ as it was, under the scope of the request, by its evaluator if there is one already."""
        job, start = Job(seed, requests[-1].id, label), 1
        if (saved := self.folder.saved(job)) is not None:
            start = start_on(base, saved)
            if saved.finished and start == saved.start:
                return
        seen = (evaluator or self.world(seed).evaluator(requests))(params)
        at = trajectory.Point(seed, job.request, job.label, round=0)
        notes: trajectory.Notes = {"earlier": seen.earlier, "own": seen.own, "rows": seen.rows, "start": start}
        line = trajectory.line(at, seen.numbers, seen.numbers["validation"], {}, **notes)
        self.folder.save_samples(job, 0, seen.samples, requests)
        numbers = {"offset": self.folder.append(line), "finished": "done"} | began(base, start)
        self.folder.save_state(job, State({}, done=True), numbers)

    # --- serving --------------------------------------------------------------------------------------------------

    def forget(
        self,
        request: Request,
        method: str | None = None,
        until: str | int | None = None,
        seed: int | None = None,
        watch: Watch | None = None,
        expires: str | None = None,
        how: RequestOptions | None = None,
    ) -> Outcome:
        """Take a client, a class or samples out, and serve every other request that waits.

        The same request is served once; a denied one is tried again.

        Args:
            request: What to forget.
            method: A method's label. Default: as last time, else a tuned Retrain (`RequestOptions.tuned_retrain`).
            until: A goal or a number of rounds. Default: as last time, else `recovered`; for a tuned Retrain a
                tenth of the training's rounds.
            seed: The repetition, where the run has several.
            watch: Hears of every round.
            expires: A date by which the request must be begun.
            how: Hyperparameters, and what the gate allows.

        Returns:
            The request as it stands, and a `status`: done, already done, withdrawn or queued.

        Raises:
            UnfedError: The request cannot be served.
            Refused: It was denied, by the gate or because its rounds did not suffice.
        """
        expect(request, Request, "A request, such as unfed.Request('bye', clients=('3',)),")
        entry, finished = self.ask(request, method, until, seed, expires, how)
        if finished:
            return Outcome(entry, "already done")
        failed = self._first_then_serve(watch)
        if failed is None:
            return Outcome(entry, "queued")
        self._undo()
        for other in failed:
            if other.request.id != request.id:
                warnings.warn(self.queue.still_owed(other), UnfedWarning, stacklevel=2)
        found = self.queue.book.find(request.id)
        assert found is not None
        if found.owed or found.number in self.queue.put_off:
            raise Refused(self.queue.still_owed(found)) from self.queue.errors.get(request.id)
        return Outcome(found, "queued" if found.waiting else "done" if found.accepted else "withdrawn")

    def ask(
        self,
        request: Request,
        method: str | None = None,
        until: str | int | None = None,
        seed: int | None = None,
        expires: str | None = None,
        how: RequestOptions | None = None,
    ) -> tuple[Entry, bool]:
        """File a request and serve nothing: how it stands, and whether it was served before."""
        if not self.trains:
            instead = "call unfed.unlearn on the model before it, with all rows that must be out"
            raise UnfedError(f"{self.folder.path} is of a call of unfed.unlearn and serves no requests; {instead}.")
        self.permit()
        self._refuse_stranger(request)
        known = self.queue.book.find(request.id)
        how = how or (known.how if known is not None else RequestOptions())
        if method is None and known is not None:
            method = known.method
        elif method is None:
            method = Retrain.name
            if not self.description.elsewhere:  # what clients elsewhere hold out is not known here
                how, rounds = how.tuned_retrain(self.config)
                until = until or rounds
        until = until or (known.until if known is not None else "recovered")
        plugins.permit(self.config.methods.code([method], option("method")))
        seed = known.seed if known is not None and seed is None else self.one_seed(seed)
        return self.queue.file(request, method, str(until), seed, expires, how)

    def _refuse_stranger(self, request: Request) -> None:
        there = clients_of(self)
        here = self.config.setting != "central" and not self.description.elsewhere  # clients elsewhere may join
        if here and (odd := next((one for one in request.clients if one not in there), "")):
            raise UnfedError(f"This run has no client {odd!r}; it has {members(there)}.")

    def plan(self, request: Request, seed: int | None = None, how: RequestOptions | None = None) -> list[Offer]:
        """Say what each method would cost for a request and whether it lasts. Nothing is run or written.

        Args:
            request: What to forget.
            seed: The repetition, where the run has several.
            how: Hyperparameters, and what the gate allows.

        Returns:
            One offer per method, with the reason if it cannot serve the request.

        Raises:
            UnfedError: The run has no such client.
        """
        self.permit()
        self._refuse_stranger(request)
        return admission.Admission(self).plan(request, self.one_seed(seed), how or RequestOptions())

    def withdraw(self, request: str) -> Entry:
        """Withdraw a request that is not fulfilled. Its rows train again from the next round on.

        Args:
            request: Its id.

        Returns:
            The request as it stands.

        Raises:
            UnfedError: There is no such request, it is fulfilled, or only the client that signed it can revoke it.
        """
        return self.queue.withdraw(request)

    # --- reading --------------------------------------------------------------------------------------------------

    def current_job(self, seed: int, besides: Collection[str] = ()) -> Job:
        """The job whose model is in force: that of the request that was served last, else the training.

        `besides` are requests that do not count.
        """
        line = self.queue.book.in_force(seed, besides)
        return line[-1].job if line else self.training_job(seed)

    def current(self, seed: int, besides: Collection[str] = ()) -> Params:
        """The model in force.

        Args:
            seed: The repetition.
            besides: Ids of requests that do not count.

        Returns:
            Its tensors by name.
        """
        return self._model(self.current_job(seed, besides))

    def _model(self, job: Job) -> Params:
        world, params = self.world(job.seed), self._saved(job)
        check_like(params, world.template.like, f"The model {self.folder.model_file(job)}")
        return cast(params, world.dtype, world.device)

    def _saved(self, job: Job) -> Params:
        if not self.folder.model_file(job).exists():
            if grave := self.folder.buried(job):
                other = f"{self.current_job(job.seed).name} (`{self.command('export', '-o', 'model.safetensors')}`)"
                raise UnfedError(f"The model {grave.sentence(self.folder.path)}; the one in force is {other}.")
            if job not in (known := [one for one, _ in self.jobs()]):
                there = listed(one.name for one in known if one.seed == job.seed)
                raise UnfedError(f"This run makes no model {job.name}; say with --method which: {there}.")
            raise UnfedError(self.no_model(job))
        return self.folder.load_model(job)

    def model(self, seed: int | None = None, request: str | None = None, method: str | None = None) -> Params:
        """A model of the run, ready to be used in its world; by default the one in force.

        Args:
            seed: The repetition, where the run has several.
            request: The request that it was made for.
            method: The method that made it; `train` is the model before.

        Returns:
            Its tensors by name.

        Raises:
            UnfedError: There is no such model.
        """
        return self._model(self.job_of(seed, request, method))

    def saved(self, seed: int | None = None, request: str | None = None, method: str | None = None) -> Params:
        """The same as it lies in its file: neither the data nor the network is built for it."""
        return self._saved(self.job_of(seed, request, method))

    def job_of(self, seed: int | None, request: str | None, method: str | None) -> Job:
        """The job that is meant; without a method or a request, the one whose model is in force."""
        seed = self.one_seed(seed)
        if method is None and request is None:
            return self.current_job(seed)
        if method == "train":
            return self.training_job(seed)
        ids = [one.id for one in self.description.requests] + [e.request.id for e in self.folder.book().entries]
        if request is None and len(ids) != 1:
            if not ids:
                raise UnfedError("No method has left a model here; leave --method out for the trained one.")
            raise UnfedError(f"This run has {len(ids)} requests; say which one with --request, {listed(ids)}.")
        name = request or ids[0]
        return Job(seed, name, method or method_of_request(self.folder.book().entries, self.config, seed, name))

    def scope(self, seed: int) -> tuple[Request, ...]:
        """What was asked to leave, but for what was withdrawn; in a mere comparison, the compared requests."""
        return tuple(self.queue.book.besides(seed)) or self.config.requests()
