"""The sequential engine: a recorded stack of one equals the reference, and batches made ahead are the same batches."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from test_batched import BASE, CONTEXTS, SHAPE, another, answers, federation, model, plan_of
from unfed.client import step
from unfed.client.plan import Phase, Plan, term
from unfed.data import ClientData, DatasetSource
from unfed.data.source import ahead
from unfed.engines import Sequential
from unfed.engines.base import Context, PerClient
from unfed.engines.compiled import capture, recorded
from unfed.errors import UnfedError, UnfedWarning
from unfed.model.functional import Template
from unfed.model.networks import build
from unfed.model.params import Params, cast, params_of
from worlds import slow


@pytest.fixture(autouse=True)
def traced_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No step is compiled; none holds a sum with a factor.

    PyTorch 2.13's compiler turns add(mm, b, alpha=f) into a product that adds b itself: decay 5e-4 becomes 1.
    """
    sums, ready = list[dict[str, Any]](), capture.ready

    def look(module: Any, *arguments: Any) -> Any:
        kinds = (torch.ops.aten.add.Tensor, torch.ops.aten.sub.Tensor)
        sums.extend(dict(node.kwargs) for node in module.graph.nodes if node.target in kinds)
        return ready(module, *arguments)

    monkeypatch.setattr(recorded, "compiler", capture.as_traced)
    monkeypatch.setattr(recorded, "ready", look)
    yield
    assert not any("alpha" in options for options in sums)


def assert_replayed(
    plan: Plan, clients: dict[str, ClientData], made: tuple[Template, Params], context: Context | None = None
) -> None:
    """The recorded path against `step.visit`, which must not be called by it, and no map over its one client.

    Grouped convolutions, batched products and unfused attention would come of such a map.
    """
    template, params = made
    reference = answers(Sequential(template, clients), plan, params, clients, context or {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unfed.engines.sequential.visit", _never)
        patch.setattr("unfed.engines.stack.vmap", _never)
        replayed = answers(Sequential(template, clients, compile=True), plan, params, clients, context or {})
    assert [b.clients for b in replayed] == [b.clients for b in reference]
    for one, other in zip(reference, replayed, strict=True):
        assert (one.samples, one.trained, one.forwarded) == (other.samples, other.trained, other.forwarded)
        for kind in ("params", "optimiser") if plan.keep else ("params",):
            for name, value in getattr(one, kind).items():
                torch.testing.assert_close(getattr(other, kind)[name], value, rtol=1e-9, atol=1e-9, msg=name)


def _never(*args: object) -> None:
    raise AssertionError("the reference was called")


# Marks and a model, draws, two models; two models' features, logits and features by one pass. "ce" is in all others.
@pytest.mark.parametrize("objective", ["guided", "random_label", "bad_teacher", *slow("contrast", "led")])
def test_every_kind_of_objective_is_the_same_replayed(objective: str) -> None:
    network = "cnn-tiny-dropout" if objective == "guided" else "mlp"
    context = {name: another(20 + i, name=network) for i, name in enumerate(CONTEXTS.get(objective, ()))}
    phase = replace(BASE, objective=term(objective), view="all")
    assert_replayed(plan_of(phase), federation((13,)), model(network), context)  # a full batch and a smaller one


@pytest.mark.slow
def test_ragged_clients_with_augmentation_are_the_same_replayed_and_share_their_recordings() -> None:
    # A smaller batch; a row that joins the batch before it; a full batch; three of them; one row.
    clients, made = federation((8, 9, 13, 24, 1), augment=True), model("cnn-tiny-bn")
    assert_replayed(plan_of(replace(BASE, epochs=2)), clients, made)
    shapes = {shape for deck in recorded._decks[made[0]].values() for shape in deck._steps}
    # Full batches without weights, smaller ones padded to a full one, and a batch that one more row has joined.
    assert shapes == {(1, 1, False), (1, 8, False), (1, 8, True), (1, 9, False)}


@pytest.mark.slow
def test_a_transformer_is_the_same_replayed() -> None:
    assert_replayed(plan_of(BASE), federation((13,), augment=True), model("vit-tiny"))


def test_several_phases_share_their_moments_replayed() -> None:
    first = replace(BASE, objective=term("random_label"), view="forget", epochs=2)
    second = replace(BASE, penalties=(term("l1", alpha=1e-3),)).with_optimiser(lr=0.02)
    assert_replayed(plan_of(first, second, keep=True), federation((12,)), model("cnn-tiny-bn"))


@pytest.mark.parametrize(
    "phase",
    [
        replace(BASE, steps=7),
        replace(BASE, epochs=3, cap=2),
        BASE.with_optimiser(clip=0.1),
        BASE.with_optimiser(rule="adam", lr=0.01),
        replace(BASE, after=(term("ball", around="last", radius=0.05),)),
    ],
    ids=["steps", "cap", "clip", "adam", "ball around a model of one's own"],
)
def test_every_rule_that_can_be_recorded_is_the_same_replayed(phase: Phase) -> None:
    clients, made = federation((10, 13)), model("mlp")
    context = {"last": PerClient({name: another(5 + i, name="mlp") for i, name in enumerate(clients)})}
    assert_replayed(plan_of(phase), clients, made, context)
    (deck,) = recorded._decks[made[0]].values()
    assert set(deck._steps) == {(1, 8, True)}, "without batch statistics one recording serves smaller batches too"


def test_what_cannot_be_recorded_goes_through_the_reference() -> None:
    clients, (template, params) = federation((10, 9)), model()
    plan = plan_of(BASE, replace(BASE, stop=term("loss_above", limit=1e4)))
    alone = answers(Sequential(template, clients), plan, params, clients, {})
    asked = answers(Sequential(template, clients, compile=True), plan, params, clients, {})
    for one, other in zip(alone, asked, strict=True):
        assert all(torch.equal(one.params[n], other.params[n]) for n in one.params)
    assert template not in recorded._decks


class Branching(torch.nn.Module):
    """What no tracer can follow: the way through depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(64, 6), torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x.flatten(1))
        return self.head(x if float(x.detach().sum()) > 0 else -x)  # type: ignore[no-any-return]


def test_a_model_that_cannot_be_traced_is_trained_all_the_same() -> None:
    clients, module = federation((9, 13)), Branching().double()
    template, params = Template(module, SHAPE).to("cpu", torch.float64), params_of(module)
    engine = Sequential(template, clients, compile=True)
    with pytest.warns(UnfedWarning, match="cannot be compiled .* operation by operation"):
        asked = answers(engine, plan_of(BASE), params, clients, {})
    alone = answers(Sequential(template, clients), plan_of(BASE), params, clients, {})
    for one, other in zip(alone, asked, strict=True):
        assert all(torch.equal(one.params[n], other.params[n]) for n in one.params)


def test_a_failure_after_a_visit_that_worked_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, (template, params) = federation((8, 8)), model()
    engine = Sequential(template, clients, compile=True)
    visits = engine.train(plan_of(BASE), params, ["0", "1"], {})
    next(visits)
    monkeypatch.setattr(recorded.Replay, "__call__", _never)
    with pytest.raises(AssertionError):
        next(visits)


def test_a_wrong_plan_is_named_and_not_taken_for_a_model_that_cannot_be_traced() -> None:
    clients, (template, params) = federation((8,)), model()
    phase = replace(BASE, objective=term("distil"))
    with pytest.raises(UnfedError, match="needs the context 'teacher'"):
        list(Sequential(template, clients, compile=True).train(plan_of(phase), params, ["0"], {}))


# --- data that is not on the device -----------------------------------------------------------------------------------


class Pictures:
    """A user's data set that draws at random, notes who asked, and breaks at one row if told to."""

    def __init__(self, n: int = 22, broken: int | None = None) -> None:
        generator = torch.Generator().manual_seed(3)
        self.images, self.targets = torch.rand((n, *SHAPE), generator=generator), [k % 4 for k in range(n)]
        self.broken, self.seen = broken, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.seen.append((index, threading.current_thread().name.startswith("unfed-data")))
        if index == self.broken and len(self.seen) > 1:
            raise OSError(f"row {index} cannot be read")
        return self.images[index] + random.random(), self.targets[index]


def visited(pictures: Pictures, piped: bool, monkeypatch: pytest.MonkeyPatch, *phases: Phase) -> Params:
    module = build("cnn-tiny", shape=SHAPE, classes=4, seed=3)
    template = Template(module, SHAPE).to("cpu", torch.float64)
    source = DatasetSource(pictures, classes=4, dtype=torch.float64, warn=False)
    rows = torch.arange(len(pictures))
    client = ClientData("0", source, rows, rows, rows[:0])
    if piped:
        monkeypatch.setattr(step, "pipelined", lambda template, phase, client: not client.source.resident)
    random.seed(9)
    pictures.seen.clear()
    params = cast(params_of(module), torch.float64, "cpu")
    (block,) = Sequential(template, {"0": client}).train(plan_of(*(phases or (BASE,))), params, ["0"], {})
    return block.params


def at_work() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("unfed-data")]


def test_batches_made_ahead_are_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    phases = (replace(BASE, epochs=2), replace(BASE, objective=term("ascend")))
    plain, piped = Pictures(), Pictures()
    want = visited(plain, False, monkeypatch, *phases)
    got = visited(piped, True, monkeypatch, *phases)
    assert all(torch.equal(want[name], got[name]) for name in want)
    assert [row for row, _ in plain.seen] == [row for row, _ in piped.seen]
    assert not any(aside for _, aside in plain.seen) and all(aside for _, aside in piped.seen)
    assert not at_work()


def test_an_error_in_the_data_set_surfaces_and_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="row 13 cannot be read"):
        visited(Pictures(broken=13), True, monkeypatch)
    assert not at_work()


def test_an_error_in_the_step_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "advance", _never)
    with pytest.raises(AssertionError, match="reference") as caught:
        visited(Pictures(), True, monkeypatch)
    assert caught.tb is not None and not at_work()


def test_on_a_cpu_and_where_a_rule_may_stop_nothing_is_made_ahead() -> None:
    module = build("cnn-tiny", shape=SHAPE, classes=4, seed=3)
    template = Template(module, SHAPE).to("cpu", torch.float64)
    rows = torch.arange(22)
    client = ClientData("0", DatasetSource(Pictures(), classes=4, warn=False), rows, rows, rows[:0])
    assert not step.pipelined(template, BASE, client)
    template.like = {name: t.to("meta") for name, t in template.like.items()}
    assert step.pipelined(template, BASE, client)
    assert not step.pipelined(template, replace(BASE, stop=term("loss_above", limit=1.0)), client)
    assert not step.pipelined(template, BASE, federation((4,))["0"])


def test_ahead_is_one_item_ahead_and_no_further() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for k in range(1, 6):
            made.append(k)
            yield k

    stream = ahead(items())
    assert next(stream) == 1
    stream.close()
    assert made in ([1], [1, 2]) and not at_work()
    assert list(ahead(items())) == [1, 2, 3, 4, 5]
