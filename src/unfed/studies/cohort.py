"""A cohort: one kind of model for several seeds, round by round, side by side.

    θ*       seed 0: round 1 … T  │  seed 1: round 1 … T  │  …         every round of all seeds is one stack
    method   seed 0: begin, 1 … R │  seed 1: begin, 1 … R │  …

Seed s is the run that `--set seed=s --set seeds.partition=B --set seeds.evaluation=B` makes alone (B is the config's
own seed): data, partition and request are the same for all, initialisation and batches are each one's own. All states
are saved in one file, so a cohort that was killed goes on together. Histories are not saved: where a method needs one
and the process that recorded it is gone, θ* is trained again, to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from unfed import records, storage
from unfed.config.config import Config
from unfed.data import Request
from unfed.engines import Batched, Engine
from unfed.engines.side_by_side import SideBySide, Table
from unfed.errors import UnfedError
from unfed.federation import algorithm
from unfed.federation.history import History, Recorder
from unfed.federation.server import JobServer, Members
from unfed.federation.state import Settings, usable
from unfed.folder.layout import CohortState
from unfed.measures.population.store import BEFORE
from unfed.methods import Method, Retrain, State
from unfed.model.params import Params, cast, check_like
from unfed.runs.description import rounds_of
from unfed.runs.job import refuse_another, training_method
from unfed.runs.simulated import Network
from unfed.runs.world import World
from unfed.studies.grid import Said

Kept = Callable[[int, list[State]], bool | None]
"""(round, states of every seed): called after each round; True ends the work early."""


def of_seed(world: World, seed: int) -> World:
    """The world of another training seed on the same data."""
    if seed == world.seed:
        return world
    base, config = world.seed, world.config
    fixed = {name: base for name in ("partition", "evaluation") if getattr(config.seeds, name) is None}
    config = config.model_copy(update={"seed": seed, "seeds": config.seeds.model_copy(update=fixed)})
    other = replace(world, config=config, seed=seed)
    if config.model.initial is None or not config.model.fresh_head:
        return other
    network = Network(config, world.dataset.train.shape, world.classes, world.device)
    initial, checkpoint = network.initial(world.template, other.seeds.training)
    refuse_another(config, checkpoint, world.checkpoint)
    return replace(other, initial=initial)


@dataclass(frozen=True)
class ModelTask:
    """What makes one kind of model of one seed."""

    method: Method
    settings: Settings
    seed: int
    requests: tuple[Request, ...]


def task_of(world: World, kind: str, request: Request) -> ModelTask:
    """As a run of the config would do it: the training, or a method's turn."""
    if kind == BEFORE:
        return ModelTask(training_method(world), world.training_settings(), world.seeds.training, ())
    method = world.config.method(kind).for_requests((request,))
    settings = world.unlearning_settings(isinstance(method, Retrain), kind)
    if settings.tune:
        raise UnfedError("A population unlearns at one learning rate; set unlearning.lr instead of unlearning.tune.")
    rounds = rounds_of(world.config, kind, method)
    return ModelTask(method, replace(settings, rounds=rounds), world.seeds.request(request.id), (request,))


class Cohort:
    """Some seeds of one population; `together` is False for one after another, which gives the same."""

    def __init__(self, world: World, seeds: Sequence[int], folder: Path, together: bool = True) -> None:
        self.world, self.seeds, self._folder = world, tuple(seeds), folder
        self._worlds = [of_seed(world, seed) for seed in seeds]
        (self._request,) = world.config.requests()
        self._table = Table(world.device) if together and world.choice.name == "batched" else None
        self._engines: dict[tuple[Request, ...], Engine] = {}
        self._trained: list[Params] = []
        self._histories: list[Mapping[str, History]] = [{} for _ in seeds]
        self.servers: Sequence[JobServer] = ()
        """Those of the kind that was made last, or is being made: their ledgers say what it costs."""

    @property
    def config(self) -> Config:
        return self.world.config

    def trained(self, recorded: Mapping[str, Method], said: Said) -> list[Params]:
        """θ* of every seed, with what these methods recorded; what is there is not trained again."""
        if not self._trained or any(set(recorded) - set(own) for own in self._histories):
            worlds = self._worlds
            servers = [self._server(w, task_of(w, BEFORE, self._request), w.initial or w.template.like) for w in worlds]
            for server in servers:
                server.recorders = {label: Recorder(method) for label, method in recorded.items()}
            states = self._run(BEFORE, servers, said)
            self._trained = [state.params for state in states]
            self._histories = [{n: r.history for n, r in server.recorders.items()} for server in servers]
        return self._trained

    def unlearned(self, kind: str, said: Said, kept: Kept | None = None) -> list[Params]:
        """The model that a method makes of every seed's θ*."""
        servers = []
        for world, params, histories in zip(self._worlds, self._trained, self._histories, strict=True):
            history = histories.get(kind)
            servers.append(self._server(world, task_of(world, kind, self._request), params, history))
        return [state.params for state in self._run(kind, servers, said, kept)]

    def part(self, world: World, seeds: Sequence[int], folder: Path) -> Cohort:
        """Some of its seeds, at the θ* they were trained to, with other hyperparameters of methods."""
        chosen, places = Cohort(world, seeds, folder), [self.seeds.index(seed) for seed in seeds]
        chosen._table, chosen._engines = self._table, self._engines
        chosen._trained = [self._trained[i] for i in places]
        chosen._histories = [self._histories[i] for i in places]
        return chosen

    def forget_states(self, kind: str) -> None:
        """Take away what was saved on the way to a kind of model."""
        storage.remove(self._file(kind))

    # --- servers --------------------------------------------------------------------------------------------------

    def _server(self, world: World, task: ModelTask, params: Params, history: History | None = None) -> JobServer:
        clients = self.world.scoped(task.requests)
        setup = world.setup(self._as_it_was)
        public = world.public(clients) if "public" in task.method.needs else None
        members = Members(clients, self._engine(task.requests), public)
        server = JobServer(setup, members, params, task.settings, task.seed, history)
        server.scope = tuple(request.to_json() for request in task.requests)
        return server

    def _engine(self, requests: tuple[Request, ...]) -> Engine:
        """One engine for all seeds: their clients hold the same rows."""
        if requests not in self._engines:
            world, clients = self.world, self.world.scoped(requests)
            if self._table is None:
                self._engines[requests] = world.engine(clients)
            else:
                batched = Batched(world.template, clients, world.chunk, self.config.engine.compile)
                self._engines[requests] = SideBySide(batched, self._table)
        return self._engines[requests]

    def _as_it_was(self, scope: Sequence[Mapping[str, Any]]) -> Engine:
        return self._engine(tuple(Request.from_json(request) for request in scope))

    # --- rounds ---------------------------------------------------------------------------------------------------

    def _run(self, kind: str, servers: Sequence[JobServer], said: Said, kept: Kept | None = None) -> list[State]:
        task = task_of(self._worlds[0], kind, self._request)
        rounds, recording = task.settings.rounds, any(server.recorders for server in servers)
        self.servers = servers
        states = None if recording else self._saved(kind)
        methods = [task_of(world, kind, self._request).method for world in self._worlds]
        begun: Sequence[State | None] = states or [None] * len(servers)
        runs = [algorithm.unlearn(*each) for each in zip(servers, methods, begun, strict=True)]
        saved = time.monotonic(), min(state.round for state in states) if states else 0
        if states is None:
            states = self._next(runs)
        while open_ := [i for i, state in enumerate(states) if not _finished(state, rounds)]:
            for i, state in zip(open_, self._next([runs[i] for i in open_]), strict=True):
                states[i] = state
            done = min(state.round for state in states)
            said(kind, done, rounds)
            if kept is not None and kept(done, states):
                break
            if not recording and self._due(done, saved):
                self._save(kind, states)
                saved = time.monotonic(), done
        if kind == BEFORE:
            self._save(kind, states)
        return states

    def _next(self, runs: Sequence[Iterator[State]]) -> list[State]:
        """One round of every run."""
        if self._table is None:
            return [usable(next(run)) for run in runs]
        return self._table.run([partial(_after, run) for run in runs])

    def _due(self, round: int, saved: tuple[float, int]) -> bool:
        return self.config.checkpoint.due(round - saved[1], time.monotonic() - saved[0])

    # --- files ----------------------------------------------------------------------------------------------------

    def _file(self, kind: str) -> Path:
        return self._folder / "state" / str(self.seeds[0]) / f"{kind.replace(':', '.')}.safetensors"

    def _save(self, kind: str, states: Sequence[State]) -> None:
        tensors: Params = {}
        members = []
        for i, state in enumerate(states):
            groups = storage.join({"params": state.params, **state.tensors})
            tensors |= {f"{i}/{name}": t for name, t in groups.items()}
            whole = {"round": state.round, "done": state.done, "model": state.model}
            members.append({**whole, "numbers": dict(state.numbers), "groups": list(state.tensors)})
        storage.save(self._file(kind), tensors, {"seeds": list(self.seeds), "members": members})

    def _saved(self, kind: str) -> list[State] | None:
        if not self._file(kind).exists():
            return None
        tensors, numbers = storage.load(self._file(kind), "state of a population")
        where = f"The state of a population {self._file(kind)}"
        said = records.read(CohortState, numbers, where, "delete it, and it is begun again")
        if said.seeds != tuple(self.seeds):
            return None
        parts, states = storage.part(tensors), []
        for i, about in zip(range(len(self.seeds)), said.members, strict=False):
            groups = {group: self._placed(own) for group, own in storage.part(parts.get(str(i), {})).items()}
            check_like(groups.get("params", {}), self.world.template.like, where)
            kept = {group: groups.get(group, {}) for group in about.groups}
            whole = about.model_dump(include={"round", "numbers", "done", "model"})
            states.append(State(params=groups["params"], tensors=kept, **whole))
        return states

    def _placed(self, tensors: Params) -> Params:
        return cast(tensors, self.world.dtype, self.world.device)


def _after(run: Iterator[State]) -> State:
    return usable(next(run))


def _finished(state: State, rounds: int) -> bool:
    return state.done or (state.model and state.round >= rounds)
