"""A run: train θ*, then let methods forget, one after another; or serve deletion requests as they come.

    run = Run.create(Config.preset("demo"), "runs/demo")
    run.execute()                                          # again after a crash: it goes on where it was
    run.forget(Request("r1", clients=("3",)))              # the operator's way: one request, one method, a new model

`execute` compares: every method starts from θ* and takes the config's requests one after another; nothing is purged.
`forget` serves: each request starts from what the one before it left. A request that arrives while another is at work
is left out of every round from the next on, and its turn comes after. Once a request is served, the leaver's records
are taken out of every history in the folder; what still carries its influence is listed in `info`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unfed import describe, lineage, plugins
from unfed.config import Config
from unfed.data import Request
from unfed.describe import describe_request, hardware, now, versions
from unfed.errors import UnfedError, listed
from unfed.folder import Entry, Job, RunFolder, check_id
from unfed.history import Recorder
from unfed.jobs import JobRunner
from unfed.methods import Method, Retrain, State
from unfed.params import Params, cast, check_like
from unfed.watching import Heart, Silence, Watch
from unfed.world import World, process_as_before


@dataclass(frozen=True)
class Outcome:
    """What `forget` did with a request."""

    entry: Entry
    status: str
    """`done`, `queued` (another process is at work and will take it up), or `already done`."""


class Run:
    """A run folder with the work that belongs to it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.description = folder.description()
        self.config = Config.kept(self.description["config"])  # reading a run builds nothing that it names
        self._worlds: dict[int, World] = {}
        self._at_work = False

    # --- beginning ------------------------------------------------------------------------------------------------

    @staticmethod
    @process_as_before()
    def create(config: Config, folder: str | Path, world: World | None = None) -> Run:
        """A new run folder, once everything that can be known beforehand was found right."""
        where = RunFolder(folder)
        plugins.permit(config.code())
        world = world or World(config, config.seed_list[0])
        requests = config.requests()
        lineage.recordable(config)
        methods = {label: config.method(label) for label in config.methods.build()} if requests else {}
        for label, method in methods.items():
            check_id(label.replace(":", "."), "method name")
            method.check(world.template.module)
            for i, request in enumerate(requests):
                lineage.welcome(config, label, request, requests[:i])
                lineage.unbroken_by_itself(config, label, requests[:i])
        described = [describe_request(world, requests[: i + 1]) for i in range(len(requests))]
        where.create(
            {
                "name": config.name,
                "created": now(),
                "config": config.to_json(),
                "seeds": list(config.seed_list),
                "clients": [c.name for c in world.clients],
                "topped_up_clients": [str(k) for k in world.repaired],
                "versions": versions(),
                "hardware": hardware(world.device),
                "device": str(world.device),
                "engine": world.engine({}).name,
                "chunk": world.chunk,
                "parameters": world.parameters,
                "forward_flops": world.forward_flops,
                "requests": described,
                "methods": {label: describe.method_facts(config, label, method) for label, method in methods.items()},
                "hyperparameters": {label: asdict(method) for label, method in methods.items()},
                "rounds": {"training": config.training.rounds, "unlearning": config.unlearning.rounds},
                "backdoor": None if config.poison is None else {"target_class": config.poison.target_class},
                "recovered_within": config.evaluation.recovered_within,
            }
        )
        run = Run(where)
        run._worlds[world.seed] = world
        return run

    @staticmethod
    def open(folder: str | Path) -> Run:
        return Run(RunFolder(folder))

    def world(self, seed: int) -> World:
        if seed not in self._worlds:
            plugins.permit(self.config.code(), self.folder.path / "run.json")
            self._worlds.clear()  # one at a time: a world holds the whole data set
            with process_as_before():
                self._worlds[seed] = self._build(seed)
        if self._at_work:
            self._worlds[seed].settle()
        return self._worlds[seed]

    @contextmanager
    def _working(self) -> Iterator[None]:
        """While work goes on the process is set as the world at hand needs it, and afterwards as it was."""
        with process_as_before():
            self._at_work = True
            try:
                yield
            finally:
                self._at_work = False

    def _build(self, seed: int) -> World:
        if self.description["engine"] == "flower":
            raise UnfedError(
                "The clients of this run are Flower nodes, so it cannot go on here; go on with `flwr run DIR"
                f" --run-config 'resume-from=\"{self.folder.path.resolve()}\"'`."
            )
        return World(self.config, seed, self.description)

    # --- comparing ------------------------------------------------------------------------------------------------

    def execute(self, watch: Watch | None = None) -> None:
        """Do whatever is not done yet: train, compare, serve."""
        with self._working(), self.folder.lock() as free:
            if not free:
                where = self.folder.path
                raise UnfedError(f"Another process is at work in {where}; see `unfed status {where}`.")
            self.folder.cut_back()
            heart = Heart(self.folder, self.jobs(), watch or Silence())
            for seed in self.config.seed_list:
                trained = self._train(seed, heart)
                self._compare(seed, trained, heart)
            self._serve(heart)

    def jobs(self) -> list[tuple[Job, int]]:
        """Every job of this run in its order, with its number of rounds."""
        found: list[tuple[Job, int]] = []
        for seed in self.config.seed_list:
            found.append((self._training_job(seed), self._training_rounds()))
            for label in self.config.methods.run:
                for request in self.config.requests():
                    found.append((Job(seed, request.id, label), self.about(label)["rounds"]))
        for entry in self.folder.requests():
            rounds = self.about(entry.method, entry)["rounds"] if entry.until == "recovered" else int(entry.until)
            found.append((Job(entry.seed, entry.request.id, entry.method), rounds))
        return found

    def about(self, label: str, entry: Entry | None = None) -> dict[str, Any]:
        """Title, needs and rounds of a method as they were written down when it was chosen; nothing is built for it."""
        known = ((entry and entry.described) or {}).get("served_by") or self.description.get("methods", {}).get(label)
        return known or describe.plain_facts(self.config, label)

    def _training_rounds(self) -> int:
        return self.config.training.rounds

    def _training_job(self, seed: int) -> Job:
        return Job(seed, None, "train")

    def _train(self, seed: int, watch: Watch) -> Params:
        """θ*: Retrain on an empty scope, under the training seed."""
        job = self._training_job(seed)
        if self.folder.finished(job) and self.folder.model_file(job).exists():
            return self._model(job)
        world = self.world(seed)
        method: Method = Retrain() if world.initial is None else _Continue()
        runner = JobRunner(
            self.folder,
            world,
            job,
            method,
            world.training_settings(),
            world.seeds.training,
            (),
            world.initial or world.template.like,
            patience=self.config.training.patience,
            pending=lambda: [e.request for e in self.folder.requests() if e.seed == seed],
            watch=watch,
            recorders={label: Recorder(recorded) for label, recorded in self.config.recorded().items()},
        )
        return runner.run().params

    def _compare(self, seed: int, trained: Params, watch: Watch) -> None:
        requests = self.config.requests()
        for i in range(len(requests)):
            self._score_before(seed, requests[: i + 1], trained)
        for label in self.config.methods.run if requests else ():
            params, method, previous = trained, self.config.method(label), self._training_job(seed)
            for i in range(len(requests)):
                params = self._unlearn(seed, requests[: i + 1], label, method, params, watch, previous=previous).params
                previous = Job(seed, requests[i].id, label)

    def _unlearn(
        self,
        seed: int,
        requests: Sequence[Request],
        label: str,
        method: Method,
        params: Params,
        watch: Watch,
        entry: Entry | None = None,
        previous: Job | None = None,
    ) -> State:
        """One method on the last of these requests, the ones before it being out already.

        `previous` is the job that made `params`, if not the training.
        """
        previous = previous or self._training_job(seed)
        world, retrain = self.world(seed), isinstance(method, Retrain)
        rounds = describe.rounds_of(self.config, label, method)
        settings = replace(world.unlearning_settings(retrain, label), rounds=rounds)
        history = lineage.history_of(self.folder, label, method, self._training_job(seed), previous)
        going_on = lineage.recorders(self.folder, self.config, method, previous, world, requests[-1])
        if entry is None:  # a comparison records for its own next request only; what is served, for whoever comes next
            more = len(requests) < len(self.config.requests())
            going_on = {own: recorder for own, recorder in going_on.items() if own == label and more}
        runner = JobRunner(
            self.folder,
            world,
            Job(seed, requests[-1].id, label),
            method,
            settings,
            world.seeds.request(requests[-1].id),
            requests,
            params,
            patience=self.config.unlearning.patience,
            until=None if entry is None else entry.until,
            pending=None if entry is None else lambda: self._behind(entry),
            watch=watch,
            history=history,
            recorders=going_on,
        )
        return runner.run()

    def _score_before(self, seed: int, requests: Sequence[Request], params: Params, label: str = "before") -> None:
        """One line for θ as it was, under the scope of the request."""
        job = Job(seed, requests[-1].id, label)
        if self.folder.finished(job):
            return
        world = self.world(seed)
        seen = world.evaluator(requests)(params)
        line = {"seed": seed, "request": job.request, "method": job.label, "round": 0, "done": True, "model": True}
        self.folder.save_samples(job, 0, seen.samples)
        offset = self.folder.append({**line, **seen.numbers, "validation_before": seen.numbers["validation"]})
        self.folder.save_state(job, State({}, done=True), {"offset": offset, "finished": "done"})

    # --- serving --------------------------------------------------------------------------------------------------

    def forget(
        self,
        request: Request,
        method: str = "not",
        until: str | int = "recovered",
        seed: int | None = None,
        watch: Watch | None = None,
    ) -> Outcome:
        """Take a client, a class or samples out. The same request twice does nothing."""
        entry, finished = self._enqueue(request, method, str(until), self.one_seed(seed))
        if finished:
            return Outcome(entry, "already done")
        with self._working(), self.folder.lock() as free:
            if not free:
                return Outcome(entry, "queued")
            self.folder.cut_back()
            self._serve(Heart(self.folder, self.jobs(), watch or Silence()))
        return Outcome(entry, "done")

    def one_seed(self, seed: int | None) -> int:
        """The repetition that is meant; a run with several must be told."""
        seeds = self.config.seed_list
        if seed is None and len(seeds) > 1:
            raise UnfedError(f"This run has {len(seeds)} repetitions; say which one with --seed, {listed(seeds)}.")
        if seed is not None and seed not in seeds:
            raise UnfedError(f"This run has no seed {seed}; use {listed(seeds)}.")
        return seeds[0] if seed is None else seed

    def _enqueue(self, request: Request, method: str, until: str, seed: int) -> tuple[Entry, bool]:
        check_id(request.id, "request id")
        if until != "recovered" and not (until.isdigit() and int(until) >= 1):
            raise UnfedError(f"--until takes 'recovered' or a number of rounds, not {until!r}.")
        world = self.world(seed)
        chosen = lineage.welcome(self.config, method, request, ())
        chosen.check(world.template.module)
        if not self.folder.finished(self._training_job(seed)) and not self.folder.busy():
            raise UnfedError(f"The training of this run is not finished; first `unfed resume {self.folder.path}`.")
        if request.id in {r.id for r in self.config.requests()}:
            raise UnfedError(f"The id {request.id!r} belongs to this run's comparison; choose another with --id.")
        with self.folder.lock("requests") as free:
            if not free:
                raise UnfedError("Another request is being filed at this very moment; ask again.")
            known = self.folder.requests()
            for entry in known:
                if entry.request.id == request.id:
                    return self._asked_again(entry, request, method, until)
            queue = [e for e in known if e.seed == seed]
            lineage.welcome(self.config, method, request, [e.request for e in queue])
            lineage.unbroken(self.config, method, queue)
            described = describe_request(world, [*(e.request for e in queue), request])
            described |= {"served_by": describe.method_facts(self.config, method, chosen)}
            number = 1 + max((e.number for e in known), default=0)
            entry = Entry(number, request, method, until, now(), seed, described)
            self.folder.put_request(entry)
            return entry, False

    def _asked_again(self, entry: Entry, request: Request, method: str, until: str) -> tuple[Entry, bool]:
        if entry.request != request or entry.method != method:
            raise UnfedError(
                f"The id {request.id!r} was already used for another request ({entry.method},"
                f" {json.dumps(entry.request.to_json())}); choose another with --id."
            )
        job = Job(entry.seed, request.id, method)
        if self.folder.finished(job) and self.folder.model_file(job).exists():
            return entry, True
        changed = replace(entry, until=until)
        if changed != entry:
            self.folder.put_request(changed)
        return changed, False

    def _behind(self, entry: Entry) -> list[Request]:
        """The requests that came after this one, for the same model."""
        return [e.request for e in self.folder.requests() if e.number > entry.number and e.seed == entry.seed]

    def _serve(self, watch: Watch) -> None:
        """Serve the queue in its order, including what comes in meanwhile."""
        served: set[int] = set()
        while waiting := [e for e in self.folder.requests() if e.number not in served]:
            entry = waiting[0]
            earlier = [e for e in self.folder.requests() if e.number < entry.number and e.seed == entry.seed]
            requests = [*(e.request for e in earlier), entry.request]
            job = Job(entry.seed, entry.request.id, entry.method)
            if not (self.folder.finished(job) and self.folder.model_file(job).exists()):
                params = self.current(entry.seed, before=entry.number)
                self._score_before(entry.seed, requests, params)
                previous = self.current_job(entry.seed, before=entry.number)
                method = self.config.method(entry.method)
                self._unlearn(entry.seed, requests, entry.method, method, params, watch, entry, previous)
            # Also where a process died between the last save and here: purging twice is purging once.
            self.folder.purge(entry.seed, entry.request.clients, self.config.recorded())
            served.add(entry.number)

    # --- reading --------------------------------------------------------------------------------------------------

    def current_job(self, seed: int, before: int | None = None) -> Job:
        """The job whose model is in force: the last request that was served, else the training."""
        job = self._training_job(seed)
        for entry in self.folder.requests():
            own = Job(seed, entry.request.id, entry.method)
            if entry.seed == seed and (before is None or entry.number < before) and self.folder.finished(own):
                job = own
        return job

    def current(self, seed: int, before: int | None = None) -> Params:
        """The model in force."""
        return self._model(self.current_job(seed, before))

    def _model(self, job: Job) -> Params:
        world, params = self.world(job.seed), self._saved(job)
        check_like(params, world.template.like, f"The model {self.folder.model_file(job)}")
        return cast(params, world.dtype, world.device)

    def _saved(self, job: Job) -> Params:
        if not self.folder.model_file(job).exists():
            raise UnfedError(f"This run has no model {job.path} yet; `unfed resume {self.folder.path}` makes it.")
        return self.folder.load_model(job)

    def model(self, seed: int | None = None, request: str | None = None, method: str | None = None) -> Params:
        """The model that a method left, or the one in force, ready to be used in this run's world."""
        return self._model(self._job(seed, request, method))

    def saved(self, seed: int | None = None, request: str | None = None, method: str | None = None) -> Params:
        """The same as it lies in its file: neither the data nor the network is built for it."""
        return self._saved(self._job(seed, request, method))

    def _job(self, seed: int | None, request: str | None, method: str | None) -> Job:
        seed = self.one_seed(seed)
        if method is None and request is None:
            return self.current_job(seed)
        if method == "train":
            return self._training_job(seed)
        ids = [r.id for r in self.config.requests()] + [e.request.id for e in self.folder.requests()]
        if request is None and len(ids) != 1:
            raise UnfedError(f"This run has {len(ids)} requests; say which one with --request, {listed(ids)}.")
        return Job(seed, request or ids[0], method or "not")

    def scope(self, seed: int) -> tuple[Request, ...]:
        """What is out of the model in force: the requests that were served; in a mere comparison, the compared ones."""
        served = tuple(e.request for e in self.folder.requests() if e.seed == seed)
        return served or self.config.requests()

    def lines(self) -> list[dict[str, Any]]:
        """The trajectory; the last line of a job that has ended says `done`, whatever made it end."""
        lines = self.folder.lines()
        last = {(line["seed"], line["request"], line["method"]): line for line in lines}
        for job, _ in self.jobs():
            if self.folder.finished(job) and (job.seed, job.request, job.label) in last:
                last[job.seed, job.request, job.label]["done"] = True
        return lines

    def info(self) -> dict[str, Any]:
        """`run.json` with the requests that came later."""
        entries = self.folder.requests()
        extra = []
        for entry in entries:
            active = [e.request for e in entries if e.number <= entry.number and e.seed == entry.seed]
            about = {"created": entry.created, "method": entry.method, "until": entry.until}
            described = entry.described or describe_request(self.world(entry.seed), active)
            extra.append({**described, **about})
        return {
            **self.description,
            "requests": [*self.description["requests"], *extra],
            "methods": self.description.get("methods", {}) | {e.method: self.about(e.method, e) for e in entries},
            "influence": lineage.influence(self.folder, self.config),
            "jobs": describe.jobs(self),
        }


class _Continue(Retrain):
    """Training that starts from an existing checkpoint (`model.initial`)."""

    def begin(self, server: Any) -> State:
        return State(server.params)
