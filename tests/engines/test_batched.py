"""A stack of clients equals the clients alone: same draws, same batches, same result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unfed import rng
from unfed.client.batch import covered, passes
from unfed.client.objectives import OBJECTIVES
from unfed.client.plan import Measure, Optimiser, Phase, Plan, term
from unfed.data import ClientData, DatasetSource, TensorSource, Transform, dirichlet, iid, split
from unfed.engines import Batched, PerClient, Sequential
from unfed.engines.base import Block, Context, Engine
from unfed.engines.choice import EngineChoice, choose_engine
from unfed.engines.compiled import capture, recorded
from unfed.engines.stack import PhaseSteps, _WrittenOut
from unfed.errors import UnfedError
from unfed.model.functional import Template
from unfed.model.networks import build
from unfed.model.params import Params, cast, params_of

DOUBLE = 1e-9
SHAPE = (1, 8, 8)


def source(n: int = 160, dtype: torch.dtype = torch.float64, transform: Transform | None = None) -> TensorSource:
    generator = rng.generator(5)
    images = torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 4, (n,), generator=generator)
    return TensorSource(images, labels, classes=4, transform=transform, dtype=dtype)


def federation(
    sizes: tuple[int, ...] = (), *, scheme: str = "iid", dtype: torch.dtype = torch.float64, augment: bool = False
) -> dict[str, ClientData]:
    """Clients of given sizes, or four dealt by a scheme; every third row of clients 0 and 2 is to be forgotten."""
    data = source(dtype=dtype, transform=Transform(flip=0.5, pad_crop=1) if augment else None)
    if sizes:
        parts = list(torch.arange(sum(sizes)).split(list(sizes)))
    elif scheme == "iid":
        parts = list(iid(data.labels, 4, 1).rows)
    else:
        parts = list(dirichlet(data.labels, 4, 0.3, 1, 2).rows)
    clients = {}
    for k, rows in enumerate(parts):
        train, val = split(len(rows), rng.key(1, k), 0.2) if not sizes else (torch.arange(len(rows)), torch.arange(0))
        forget = (torch.arange(len(rows)) % 3 == 0) & torch.tensor(k in (0, 2))
        clients[str(k)] = ClientData(str(k), data, rows, train, val, forget)
    return clients


def model(name: str = "cnn-tiny", dtype: torch.dtype = torch.float64) -> tuple[Template, Params]:
    module = build(name, shape=SHAPE, classes=4, seed=3)
    return Template(module, SHAPE).to("cpu", dtype), cast(params_of(module), dtype, "cpu")


def another(seed: int, dtype: torch.dtype = torch.float64, name: str = "cnn-tiny") -> Params:
    return cast(params_of(build(name, shape=SHAPE, classes=4, seed=seed)), dtype, "cpu")


def answers(
    engine: Engine, plan: Plan, params: Params, clients: dict[str, ClientData], context: Context
) -> list[Block]:
    names = [n for n, c in clients.items() if covered(plan, c)]
    found: list[Block] = []
    for block in engine.train(plan, params, names, context):
        assert isinstance(block, Block), block
        found += [block.pick([i]) for i in range(len(block.clients))]
    return found


def assert_equal(
    plan: Plan,
    clients: dict[str, ClientData],
    made: tuple[Template, Params],
    context: Context | None = None,
    chunk: int | None = None,
    within: float = DOUBLE,
) -> None:
    template, params = made
    alone = {b.clients[0]: b for b in answers(Sequential(template, clients), plan, params, clients, context or {})}
    stacked = {
        b.clients[0]: b for b in answers(Batched(template, clients, chunk), plan, params, clients, context or {})
    }
    assert alone.keys() == stacked.keys()
    for name, one in alone.items():
        other = stacked[name]
        assert (one.samples, one.trained, one.forwarded) == (other.samples, other.trained, other.forwarded)
        for tensor, value in one.params.items():
            torch.testing.assert_close(other.params[tensor], value, rtol=within, atol=within, msg=f"{name} {tensor}")
        if plan.keep:
            assert one.optimiser is not None and other.optimiser is not None
            for tensor, value in one.optimiser.items():
                torch.testing.assert_close(other.optimiser[tensor], value, rtol=within, atol=within)


def plan_of(*phases: Phase, keep: bool = False) -> Plan:
    return Plan(seed=11, round=3, phases=phases, keep=keep)


BASE = Phase(batch=8, optimiser=Optimiser(lr=0.05))

CONTEXTS = {
    "bad_teacher": ("good", "bad"),
    "guided": ("phi",),
    "contrast": ("downgraded",),
    "distil": ("teacher",),
    "led": ("teacher",),
}


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_every_objective_is_the_same_stacked(objective: str, scheme: str) -> None:
    context: dict[str, Params] = {name: another(20 + i) for i, name in enumerate(CONTEXTS.get(objective, ()))}
    phase = replace(BASE, objective=term(objective), view="all")
    assert_equal(plan_of(phase), federation(scheme=scheme), model("cnn-tiny-dropout"), context)


@pytest.mark.parametrize("name", ["cnn-tiny", "cnn-tiny-bn", "cnn-tiny-dropout"])
@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_every_norm_with_augmentation_is_the_same_stacked(name: str, scheme: str) -> None:
    assert_equal(plan_of(replace(BASE, epochs=2)), federation(scheme=scheme, augment=True), model(name))


@pytest.mark.parametrize("name", ["cnn-tiny-bn", "cnn-tiny-dropout"])
def test_single_precision_is_the_same_to_its_own_rounding(name: str) -> None:
    clients = federation(scheme="dirichlet", dtype=torch.float32, augment=True)
    assert_equal(plan_of(BASE), clients, model(name, torch.float32), within=1e-5)


@pytest.mark.parametrize("name", ["cnn-tiny", "cnn-tiny-bn"])
def test_tiny_clients_and_ragged_last_batches(name: str) -> None:
    # One row; one full batch; a last batch of one row that joins the one before; two rows; three batches.
    assert_equal(plan_of(replace(BASE, epochs=2)), federation((1, 8, 9, 2, 17, 24)), model(name))


@pytest.mark.parametrize("chunk", [1, 3, 6])
def test_how_many_clients_share_a_stack_does_not_matter(chunk: int) -> None:
    assert_equal(plan_of(BASE), federation((5, 30, 9, 2, 17, 24)), model("cnn-tiny-bn"), chunk=chunk)


@pytest.mark.parametrize(
    "phase",
    [
        replace(BASE, steps=7),
        replace(BASE, epochs=3, cap=2),
        replace(BASE, penalties=(term("l1", alpha=1e-3),)),
        BASE.with_optimiser(clip=0.1),
        BASE.with_optimiser(momentum=0.0, decay=0.0),
        replace(BASE, after=(term("ball", around="start", radius=0.05),)),
        replace(BASE, after=(term("hold", of="start", names="conv1.weight,head.linear.bias"),)),
        replace(BASE, after=(term("hold", of="home", mask="mask"),)),
        replace(BASE, steps=6, after=(term("fuse", donor="start", rho=0.7, every=2, names="conv2.weight"),)),
        replace(BASE, epochs=4, stop=term("beyond", of="start", squared=0.02)),
        replace(BASE, epochs=4, stop=term("beyond", of="home", squared=0.5)),
        replace(BASE, epochs=4, objective=term("ascend"), stop=term("loss_above", limit=1.5)),
        replace(
            BASE,
            steps=12,
            optimiser=Optimiser("adam", lr=0.05, plateau=term("x", every=2, patience=0, factor=0.5, minimum=1e-4)),
        ),
    ],
    ids=[
        "steps",
        "cap",
        "l1",
        "clip",
        "plain",
        "ball",
        "names",
        "mask",
        "fuse",
        "beyond",
        "far",
        "loss",
        "adam",
    ],
)
def test_every_rule_is_the_same_stacked(phase: Phase) -> None:
    mask = {
        name: (rng.words(rng.as_key(7), torch.arange(t.numel())) % 2).view(t.shape) for name, t in another(1).items()
    }
    context: Context = {"home": PerClient({str(k): another(30 + k) for k in range(6)}), "mask": mask}
    assert_equal(plan_of(phase, keep=True), federation((5, 30, 9, 2, 17, 24)), model(), context)


SGD, ADAM = Optimiser(lr=0.05, decay=0.1), Optimiser("adam", lr=0.05, decay=0.1)


@pytest.mark.parametrize(
    ("rule", "compile"),
    [
        pytest.param(SGD, False, id="sgd-mapped"),
        pytest.param(ADAM, False, id="adam-mapped"),
        pytest.param(SGD, True, id="sgd-recorded", marks=pytest.mark.slow),
        pytest.param(ADAM, True, id="adam-recorded"),
    ],
)
def test_a_head_without_a_gradient_rests_in_every_engine(
    rule: Optimiser, compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "compiler", capture.as_traced)
    network = "mlp" if compile else "cnn-tiny"  # which is recorded in half the time
    clients, (template, params) = federation((12, 12) if compile else (12, 9, 21)), model(network)
    features, whole = (
        Phase(objective=term("contrast"), batch=8, epochs=2, optimiser=rule),
        Phase(batch=8, optimiser=rule),
    )
    plans = plan_of(features), plan_of(features, whole, features, keep=True)
    # To record a phase takes seconds: each rule records one of the two.
    for plan in plans[rule == ADAM :][:1] if compile else plans:
        engines = Sequential(template, clients), Batched(template, clients, compile=compile)
        alone, stacked = (
            {b.clients[0]: b for b in answers(e, plan, params, clients, {"downgraded": another(2, name=network)})}
            for e in engines
        )
        for name, one in alone.items():
            other = stacked[name]
            for tensor, value in (one.params | (one.optimiser or {})).items():
                seen = (other.params | (other.optimiser or {}))[tensor]
                torch.testing.assert_close(seen, value, rtol=DOUBLE, atol=DOUBLE, msg=f"{name} {tensor}")
            for tensor in (name for name in params if name.startswith("head.")):
                assert torch.equal(other.of(0)[tensor], params[tensor]) != plan.keep


def test_phases_follow_each_other_with_one_optimiser() -> None:
    first = replace(BASE, view="forget", objective=term("ascend"), stop=term("loss_above", limit=1.6), epochs=3)
    plan = plan_of(first, replace(BASE, view="all"), replace(BASE, view="forget"), BASE, keep=True)
    assert_equal(plan, federation((5, 30, 9, 2, 17, 24)), model("cnn-tiny-dropout"))


def test_moments_that_came_back_are_taken_up_again() -> None:
    clients, (template, params) = federation((12, 20)), model()
    plan = plan_of(BASE, keep=True)
    (first,) = Batched(template, clients).train(plan, params, ["0", "1"], {})
    assert first.optimiser is not None
    kept = {"1": {n: t[1] for n, t in first.optimiser.items()}}
    (stacked,) = Batched(template, clients).train(plan, params, ["0", "1"], {}, kept)
    alone = list(Sequential(template, clients).train(plan, params, ["0", "1"], {}, kept))
    for i, block in enumerate(alone):
        for name, value in block.params.items():
            torch.testing.assert_close(stacked.params[name][i], value[0], rtol=DOUBLE, atol=DOUBLE)


def test_contexts_may_differ_per_client() -> None:
    context = {"teacher": PerClient({str(k): another(40 + k) for k in range(4)})}
    assert_equal(plan_of(replace(BASE, objective=term("distil"))), federation(scheme="dirichlet"), model(), context)


@pytest.mark.parametrize("what", ["correct", "gradient", "squared_gradient"])
@pytest.mark.parametrize("name", ["cnn-tiny", "cnn-tiny-bn"])
def test_measures_are_the_same_stacked(what: str, name: str) -> None:
    clients, (template, params) = federation(scheme="dirichlet"), model(name)
    ask = Measure(what, view="all", batch=7)  # type: ignore[arg-type]
    alone = dict(Sequential(template, clients).measure(ask, params, list(clients)))
    stacked = dict(Batched(template, clients).measure(ask, params, list(clients)))
    assert alone.keys() == stacked.keys()
    for client, sums in alone.items():
        assert sums.keys() == stacked[client].keys()
        for key, value in sums.items():
            torch.testing.assert_close(stacked[client][key], value, rtol=DOUBLE, atol=DOUBLE)


@given(
    n=st.integers(0, 40),
    batch=st.integers(1, 9),
    epochs=st.integers(0, 3),
    steps=st.none() | st.integers(0, 11),
    cap=st.none() | st.integers(0, 3),
)
def test_a_course_is_the_closed_form_of_the_passes(
    n: int, batch: int, epochs: int, steps: int | None, cap: int | None
) -> None:
    phase = Phase(batch=batch, epochs=epochs, steps=steps, cap=cap)
    listed = [(p.epoch, span) for p in passes(phase, n, 0) for span in p.steps]
    course = PhaseSteps.of(phase, (n,))
    assert course.total.tolist() == [len(listed)]
    for t, (epoch, (begin, end)) in enumerate(listed):
        begins, sizes = course.spans(t, 1)
        assert (t // course.per_pass[0], begins[0], begins[0] + sizes[0]) == (epoch, begin, end)
    assert course.samples([len(listed)]) == [sum(end - begin for _, (begin, end) in listed)]
    assert course.passes([len(listed)]) == [len({epoch for epoch, _ in listed})]


def _mapped_attention(dtype: torch.dtype, written_out: bool) -> list[torch.Tensor]:
    """Attention of three clients by one map, and the gradients of its inputs."""
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(3, 2, 4, 5, 8, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]
    mapped = torch.func.vmap(lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    if written_out:
        with _WrittenOut():
            out = mapped(*inputs)
    else:
        out = mapped(*inputs)
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


def test_attention_written_out_for_a_map_is_the_same_attention() -> None:
    for ours, theirs in zip(*(_mapped_attention(torch.float64, way) for way in (True, False)), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


def test_attention_with_a_mask_is_left_as_it_is() -> None:
    q, mask = torch.randn(2, 3, 4), torch.ones(3, 3, dtype=torch.bool).tril()
    plain = torch.nn.functional.scaled_dot_product_attention(q, q, q, mask)
    with _WrittenOut():
        assert torch.equal(torch.nn.functional.scaled_dot_product_attention(q, q, q, mask), plain)


def test_data_that_is_not_on_the_device_is_refused() -> None:
    template, params = model()
    own = DatasetSource([(torch.zeros(SHAPE), 0), (torch.zeros(SHAPE), 1)], dtype=torch.float64, warn=False)
    client = ClientData("0", own, torch.arange(2), torch.arange(2), torch.arange(0))
    with pytest.raises(UnfedError, match="sequential"):
        list(Batched(template, {"0": client}).train(plan_of(BASE), params, ["0"], {}))


def test_a_stack_has_as_many_clients_as_memory_allows() -> None:
    template, _ = model()
    engine = Batched(template, {})
    assert engine.chunk(8) > engine.chunk(64) >= 1
    assert Batched(template, {}, chunk=3).chunk(8) == 3
    with pytest.raises(UnfedError, match=r"engine\.chunk"):
        Batched(template, {}, chunk=0)


def test_auto_picks_by_what_was_measured_and_says_why() -> None:
    def choice(wanted: str, name: str, side: int, batch: int = 64, resident: bool = True) -> EngineChoice:
        shape = (1, side, side)
        template = Template(build(name, shape=shape, classes=4, seed=0), shape)
        own = DatasetSource([(torch.zeros(shape), 0)], warn=False)
        return choose_engine(wanted, template, source() if resident else own, batch, 10)

    assert choice("auto", "cnn-tiny", 8).name == "batched"
    assert choice("auto", "cnn", 32).name == "sequential"
    assert "MB" in choice("auto", "cnn", 32).why
    assert choice("auto", "cnn-tiny", 8, resident=False) == EngineChoice(
        "sequential", "the data is not held on the device"
    )
    assert choice("batched", "cnn", 32).name == "batched"
    with pytest.raises(UnfedError, match="auto"):
        choice("batched", "cnn-tiny", 8, resident=False)
