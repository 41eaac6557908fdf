"""Trained federations in a few lines, for tests of methods: a world, a server on it, a training that records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from unfed.config.config import Config
from unfed.data import ClientData, Request
from unfed.federation.history import History, Recorder
from unfed.federation.protocol import Server
from unfed.federation.server import JobServer, Members, Setup
from unfed.federation.state import Settings
from unfed.folder.folder import RunFolder
from unfed.measures.undo import refits
from unfed.measures.undo.measure import Effort
from unfed.measures.undo.refits import Grid
from unfed.measures.undo.scene import Budget
from unfed.methods import Method, State
from unfed.model.params import Params
from unfed.requests.entry import Job
from unfed.requests.saved_state import SavedState
from unfed.runs.job import JobRunner
from unfed.runs.world import Residents, World

Small = Callable[..., Config]
"""Makes a small config with `key.path=value` changes: the fixture `small`."""
Toy = Callable[..., dict[str, ClientData]]
"""Makes clients of these sizes: the fixture `toy`."""
Trained = tuple[Params, dict[str, History]]
"""θ* and what methods recorded on the way to it: what `train` gives."""


def slow(*cases: object) -> list[object]:
    """These cases of a parametrised test, for `make test-slow`; the others are enough to hold its claim every time."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


LITTLE = Effort(
    rounds=1, batch=256, grid=Grid(rows=(20,), rates=(0.02,), budget=Budget(stops=(2,)), singles=1, restarts=1)
)
"""A probe that measures everything, hardly."""


@pytest.fixture(scope="module", autouse=True)
def few_triggers() -> Iterator[None]:
    """In a module that imports this, probes teach one foreign trigger for one step."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(refits, "STOPS", (1,))
        patched.setattr(refits, "CORNERS", refits.CORNERS[:1])
        yield


LEAVES = Request("r1", clients=("0",))
ALL_DIGITS = ("data.train_size=1437", "data.test_size=360")
"""A small config learns from a third of the data set, unless a model that has learned something is in question."""


def experiment(clients: int) -> dict[str, Any]:
    """A small experiment whose clients may be elsewhere: in float64, so that equality can be claimed."""
    return {
        "name": "small",
        "data.train_size": 300,
        "data.test_size": 100,
        "partition.clients": clients,
        "model.name": "cnn-tiny",
        "training.rounds": 2,
        "training.batch": 64,
        "training.lr": 0.02,
        "unlearning.rounds": 2,
        "gate.max_drop": 100.0,
        "evaluation.attack": False,
        "engine.precision": "float64",
        "engine.name": "sequential",
    }


def run_config(experiment: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """An experiment as the run config of a server whose clients are elsewhere, with keys of its own."""
    keys = {key.replace("_", "-"): value for key, value in own.items()}
    return {**{f"experiment.{key}": value for key, value in experiment.items()}, **keys}


def as_sets(experiment: Mapping[str, Any]) -> list[str]:
    """An experiment as changes of a config."""
    return [f"{key}={str(value).lower()}" for key, value in experiment.items()]


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """The same params by the same names, up to the last rounding of float64."""
    assert list(one) == list(other)
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=1e-12, msg=name)


def sized(world: World, *sizes: int) -> World:
    """The same world, but its clients hold this many training rows: a mean over rows is then no mean over clients."""
    clients = tuple(replace(c, train=c.train[:n]) for c, n in zip(world.clients, sizes, strict=True))
    return replace(world, holders=Residents(clients, world.seeds.partition))


def serve(
    world: World,
    requests: Sequence[Request] = (LEAVES,),
    params: Params | None = None,
    history: History | None = None,
    seed: int = 7,
    settings: Settings | None = None,
    **changes: Any,
) -> JobServer:
    """The server a method would meet on the last of these requests."""
    clients = world.scoped(requests, gone=requests[:-1])
    setup = Setup(
        world.template,
        world.fresh,
        world.forward_flops,
        as_it_was=lambda scope: world.engine(
            world.scoped(them := [Request.from_json(r) for r in scope], gone=them[:-1])
        ),
    )
    server = JobServer(
        setup,
        Members(clients, world.engine(clients), world.public(clients)),
        world.fresh(1) if params is None else params,
        replace(settings or world.training_settings(), **changes),
        seed,
        history,
    )
    server.scope = tuple(request.to_json() for request in requests)
    return server


def train(
    world: World, rounds: int, methods: Mapping[str, Method] | None = None, **changes: Any
) -> tuple[Params, dict[str, History]]:
    """θ* after some rounds of everybody, and what these methods recorded."""
    server = serve(world, (), seed=world.seeds.training, **changes)
    server.recorders = {label: Recorder(method) for label, method in (methods or {}).items()}
    state = State(server.params)
    for _ in range(rounds):
        state = server.recover(state)
    return state.params, {label: recorder.history for label, recorder in server.recorders.items()}


def unlearn(method: Method, server: Server, rounds: int = 0) -> State:
    """The state after `rounds` rounds, or after all of a method that says when it is done."""
    state = method.begin(server)
    while not state.done and (state.round < rounds or not state.model):
        state = method.round(server, state)
    return state


def noting(
    seen: list[Any], function: Callable[..., Any], note: Callable[..., Any] = lambda first, *_: first
) -> Callable[..., Any]:
    """`function`, which notes in `seen` what it is called with: its first argument, or what `note` makes of them."""

    def noted(*args: Any, **named: Any) -> Any:
        seen.append(note(*args, **named))
        return function(*args, **named)

    return noted


def rounds_take(minutes: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a budget is concerned, every round takes so long and all else takes no time."""
    passed, plain = [0.0], JobRunner._round

    def slowly(self: JobRunner, *asked: Any) -> State:
        passed[0] += 60 * minutes
        return plain(self, *asked)

    monkeypatch.setattr(JobRunner, "_round", slowly)
    monkeypatch.setattr("unfed.cli.options.time", SimpleNamespace(monotonic=lambda: passed[0]))


def saved(folder: RunFolder, job: Job) -> SavedState:
    """What the saved state of a job says; there must be one."""
    found = folder.saved(job)
    assert found is not None, job
    return found
