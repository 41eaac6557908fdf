"""Algorithm 1 as it stands in `federation/algorithm.py`, and that a job goes through it, watched or not."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import world
from unfed.client.plan import Measure
from unfed.config.config import Config
from unfed.engines.base import Block, Context, Observer
from unfed.federation import algorithm
from unfed.federation.history import History
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods import NoT
from unfed.model.params import Params
from unfed.requests.entry import Job
from unfed.runs.progress import Watch
from unfed.runs.run import Run


def test_the_model_is_changed_once_and_then_averaged_in_rounds_over_those_who_stay() -> None:
    who = world.gone("b")
    theta = world.fresh(3)
    server, method = world.serve(who, theta), NoT(layers=("body",))
    begun, first, second = islice(algorithm.unlearn(server, method), 3)
    negated = {name: -t if name == "body.weight" else t for name, t in theta.items()}
    assert same(begun.params, negated) and begun.round == 0
    again = world.serve(who, theta)
    assert same(first.params, again.fedavg(negated, again.plan(1), again.retained))
    assert same(second.params, again.fedavg(first.params, again.plan(2), again.retained))


def test_from_a_state_that_was_kept_it_goes_on_and_begins_nothing() -> None:
    class Once(NoT):
        def begin(self, server: Server) -> State:
            raise AssertionError("begun twice")

    who = world.gone("b")
    server = world.serve(who, world.fresh(3))
    (next_one,) = islice(algorithm.unlearn(server, Once(), State(server.params, round=4)), 1)
    assert next_one.round == 5
    assert list(islice(algorithm.unlearn(server, Once(), State(server.params, done=True)), 1)) == []


def same(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


# --- a job ------------------------------------------------------------------------------------------------------------


def small(folder: Path) -> Run:
    raw: dict[str, Any] = {
        "name": "small",
        "partition": {"clients": 3},
        "model": {"name": "cnn-tiny"},
        "training": {"rounds": 2, "batch": 256},
        "unlearning": {"rounds": 2},
        "request": {"id": "r1", "clients": ["0"]},
        "methods": {"run": ["not"]},
        "evaluation": {"attack": False, "samples": False},
        "checkpoint": {"rounds": 1},
        "engine": {"precision": "float64"},
        "device": "cpu",
    }
    return Run.create(Config.parse(raw), folder)


def test_a_job_takes_its_states_from_algorithm_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, real = [], algorithm.unlearn

    def unlearn(server: Server, method: Any, state: State | None = None) -> Any:
        for found in real(server, method, state):
            drawn.append((method.name, found.round))
            yield found

    monkeypatch.setattr(algorithm, "unlearn", unlearn)
    small(tmp_path / "run").execute()
    assert drawn == [("retrain", 0), ("retrain", 1), ("retrain", 2), ("not", 0), ("not", 1), ("not", 2)]


class Onlooker(Watch):
    """Keeps what it is told of a method's job."""

    def __init__(self) -> None:
        self.saves: list[tuple[str, int]] = []
        self.rows: set[int] = set()
        self.blocks = 0

    def observer(self, job: Job) -> Observer | None:
        return None if job.request is None else self

    def saved(self, job: Job, state: State, histories: Mapping[str, History]) -> None:
        self.saves.append((job.label, state.round))

    def read(self, rows: Tensor) -> None:
        self.rows.update(rows.flatten().tolist())

    def trained(self, params: Params, context: Context, block: Block) -> None:
        self.blocks += len(block.clients)

    def measured(self, what: Measure, params: Params, sums: Mapping[str, Tensor]) -> None:
        raise AssertionError("NoT measures nothing at clients")


def test_who_looks_on_is_told_of_saves_and_hears_what_clients_are_asked_and_changes_nothing(tmp_path: Path) -> None:
    seen = Onlooker()
    watched, alone = small(tmp_path / "watched"), small(tmp_path / "alone")
    watched.execute(seen)
    alone.execute()
    assert seen.saves == [("train", 0), ("train", 1), ("train", 2), ("not", 0), ("not", 1), ("not", 2)]
    assert seen.blocks == 4  # two rounds of the two who stay
    clients = watched.world(0).scoped(watched.config.requests())
    assert seen.rows == {row for c in clients.values() for row in c.rows[c.view("retain")].tolist()}
    job = Job(0, "r1", "not")
    assert same(watched.folder.load_model(job), alone.folder.load_model(job))
