"""Federations side by side are the federations one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from unfed.client.plan import Plan
from unfed.data import ClientData
from unfed.engines import Batched, Engine
from unfed.engines.base import Block, Visit, filled
from unfed.engines.compiled import recorded
from unfed.engines.compiled.capture import as_traced
from unfed.engines.side_by_side import SideBySide, Table
from unfed.errors import UnfedError
from unfed.methods import METHODS, State
from unfed.model.params import Params
from unfed.runs.simulated import simulated
from unfed.runs.world import World
from worlds import LEAVES, Small, serve, slow, train, unlearn

SEEDS = (11, 12, 13)
DOUBLE = ("engine.precision=float64", "engine.name=batched")
Work = Callable[[World, int], Params]


def seated(world: World, table: Table, compile: bool = False) -> World:
    """The world whose engines are shared by everybody at a table: one for every scope."""
    known: dict[tuple[tuple[str, int], ...], Engine] = {}

    def engine(world: World, clients: Mapping[str, ClientData]) -> Engine:
        scope = tuple((name, len(c.view("retain"))) for name, c in clients.items())
        return known.setdefault(scope, SideBySide(Batched(world.template, clients, world.chunk, compile), table))

    return replace(world, engines=engine)


def together(world: World, work: Work, compile: bool = False) -> list[Params]:
    table = Table()
    there = seated(world, table, compile)
    return table.run([lambda seed=seed: work(there, seed) for seed in SEEDS])  # type: ignore[misc]


def assert_equal(alone: Sequence[Params], found: Sequence[Params]) -> None:
    for one, other in zip(alone, found, strict=True):
        for name in one:
            torch.testing.assert_close(other[name], one[name], rtol=1e-9, atol=1e-9)


FAST = ["fcu", "led", "pgd"]  # phases in turn and context · history, replay and a ball


@pytest.mark.parametrize("label", [*FAST, *slow(*(label for label in METHODS if label not in FAST))])
def test_every_method_side_by_side_is_the_method_alone(small: Small, label: str) -> None:
    world = simulated(small(*DOUBLE), 0)
    method = METHODS[label](**({"teacher_rounds": 1} if label == "led" else {})).on("cnn-tiny")
    if not method.serves("client") or method.seals:
        pytest.skip("it takes no such request, or draws what nobody keeps")

    def work(world: World, seed: int) -> Params:
        params, kept = train(world, 2, {label: method} if "history" in method.needs else {}, params=world.fresh(seed))
        server = serve(world, params=params, history=kept.get(label), seed=seed)
        return unlearn(method, server, 2).params

    assert_equal([work(world, seed) for seed in SEEDS], together(world, work))


@pytest.mark.parametrize(
    "changes",
    [
        ("training.participation=0.5",),
        ("partition.scheme=dirichlet", "partition.beta=0.3"),
        ("model.name=cnn-tiny-bn",),
        ("model.name=cnn-tiny-dropout", "training.drop_out=0.3", "training.quorum=0.1"),
    ],
)
def test_whoever_takes_part_federations_stay_apart(small: Small, changes: tuple[str, ...]) -> None:
    """Who is asked, who is silent, how many rows each holds, running statistics and masks are each federation's own."""
    world = simulated(small(*DOUBLE, *changes), 0)

    def work(world: World, seed: int) -> Params:
        return unlearn(METHODS["ft"](), serve(world, params=world.fresh(seed), seed=seed), 3).params

    assert_equal([work(world, seed) for seed in SEEDS], together(world, work))


def test_a_recorded_step_serves_several_federations(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a GPU, here without its compiler."""
    monkeypatch.setattr(recorded, "compiler", as_traced)
    world = simulated(small(*DOUBLE), 0)

    def work(world: World, seed: int) -> Params:
        return unlearn(METHODS["ft"](), serve(world, params=world.fresh(seed), seed=seed), 2).params

    assert_equal([work(world, seed) for seed in SEEDS], together(world, work, compile=True))


def noting(world: World, table: Table, asked: list[int]) -> World:
    """The world at a table whose engine writes down how many federations it answers together."""

    class Noting(Batched):
        def visit(self, visits: Sequence[Visit]) -> list[Block]:
            asked.append(len(visits))
            return super().visit(visits)

    engine = SideBySide(Noting(world.template, world.scoped([LEAVES])), table)
    return replace(world, engines=lambda world, clients: engine)


def test_federations_share_one_stack(small: Small) -> None:
    world, asked, table = simulated(small(*DOUBLE), 0), list[int](), Table()
    there = noting(world, table, asked)
    states = [State(world.fresh(seed)) for seed in SEEDS]
    table.run([lambda s=s: serve(there).recover(s) for s in states])  # type: ignore[misc]
    assert asked == [3]


def test_who_asks_for_another_thing_is_answered_first_and_is_in_step_then(small: Small) -> None:
    """One has a round of its own before; the others wait, and from then on all share a stack."""
    world, asked, table = simulated(small(*DOUBLE), 0), list[int](), Table()
    there = noting(world, table, asked)

    def work(seed: int, own: bool) -> Params:
        server, state = serve(there, seed=seed), State(world.fresh(seed))
        if own:
            plan = server.plan(1, server.base.with_optimiser(momentum=0.5))
            state = replace(state, params=server.fedavg(state.params, plan, server.retained))
        return server.recover(server.recover(state)).params

    works = [(seed, seed == SEEDS[1]) for seed in SEEDS]
    alone = [work(*one) for one in works]
    asked.clear()
    found = table.run([lambda one=one: work(*one) for one in works])  # type: ignore[misc]
    assert asked == [1, 3, 3]
    assert_equal(alone, found)


def test_what_fails_in_one_is_raised_and_leaves_no_thread(small: Small) -> None:
    world, before, table = simulated(small(*DOUBLE), 0), threading.active_count(), Table()
    there = seated(world, table)

    def fails() -> State:
        raise UnfedError("not this one")

    with pytest.raises(UnfedError, match="not this one"):
        table.run([lambda: serve(there).recover(State(world.fresh(1))), fails])
    assert threading.active_count() == before


@pytest.mark.parametrize(("asked", "used"), [("cuda", 1), ("cuda:2", 2)])
def test_a_seat_computes_on_the_device_of_whoever_set_the_table(
    monkeypatch: pytest.MonkeyPatch, asked: str, used: int
) -> None:
    """A device without a number is the current one; PyTorch refuses to make it a thread's."""
    chosen = list[int]()
    monkeypatch.setattr(torch._C, "_cuda_setDevice", chosen.append, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert Table(torch.device(asked)).run([lambda: "done"]) == ["done"]
    assert chosen == [used]


def test_an_interruption_while_a_stack_is_computed_leaves_no_thread(small: Small) -> None:
    world, before, table = simulated(small(*DOUBLE), 0), threading.active_count(), Table()

    class Interrupted(Batched):
        def visit(self, visits: Sequence[Visit]) -> list[Block]:
            raise KeyboardInterrupt

    engine = SideBySide(Interrupted(world.template, world.scoped([LEAVES])), table)
    there = replace(world, engines=lambda world, clients: engine)
    with pytest.raises(KeyboardInterrupt):
        table.run([lambda: serve(there).recover(State(world.fresh(1)))])
    assert threading.active_count() == before


def test_federations_that_ask_for_other_phases_are_not_mixed(small: Small) -> None:
    world = simulated(small(*DOUBLE), 0)
    engine = Batched(world.template, world.scoped([LEAVES]))
    phase = world.training_settings().phase
    plans = [Plan(1, 1, (phase,)), Plan(2, 1, (phase.with_optimiser(lr=0.5),)), Plan(3, 1, (phase,))]
    names, start = ("1", "2"), world.fresh(0)
    found = engine.train_together([Visit(plan, start, names, {}) for plan in plans])
    alone = [list(engine.train(plan, start, names, {})) for plan in plans]
    for (one,), (other,) in zip(alone, found, strict=True):
        assert (one.clients, one.samples, one.trained) == (other.clients, other.samples, other.trained)
        assert_equal([one.params], [other.params])


def test_stacks_are_of_equal_size_where_that_leaves_them_half_full() -> None:
    """Every other size would be another recorded step."""
    assert [len(stack) for stack in filled(range(32), [10] * 32, 105)] == [8] * 4
    assert [len(stack) for stack in filled(range(128), [10] * 128, 105)] == [8] * 16
    assert [len(stack) for stack in filled(range(7), [10] * 7, 30)] == [3, 3, 1]
    assert filled([1, 4], [0, 9, 0, 0, 99], 50) == [[1], [4]]  # nobody is cut: who needs more is alone
    assert filled([2], [0, 0, 3], 100) == [[2]]
