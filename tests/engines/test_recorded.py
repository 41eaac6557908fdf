"""A recorded step equals the step: traced, its convolutions rewritten, its place read from a counter."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from test_batched import BASE, another, answers, federation, model, plan_of
from unfed.client import objectives
from unfed.client.plan import Optimiser, Phase, Plan, term
from unfed.data import ClientData, backdoor
from unfed.engines import Batched, Sequential
from unfed.engines.base import Context
from unfed.engines.compiled import capture, convolution, half_precision, kernels, recorded
from unfed.errors import UnfedWarning
from unfed.model.functional import Template
from unfed.model.networks import build
from unfed.model.params import Params, params_of

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler takes a minute on two cores; what it is given is what is tested here."""
    monkeypatch.setattr(recorded, "compiler", capture.as_traced)
    monkeypatch.setattr(recorded, "BUSY_ROWS", 16)


def assert_recorded(
    plan: Plan, clients: dict[str, ClientData], made: tuple[Template, Params], context: Context | None = None
) -> None:
    template, params = made
    alone = answers(Sequential(template, clients), plan, params, clients, context or {})
    replayed = {
        b.clients[0]: b for b in answers(Batched(template, clients, compile=True), plan, params, clients, context or {})
    }
    for one in alone:
        other = replayed[one.clients[0]]
        assert (one.trained, one.forwarded) == (other.trained, other.forwarded)
        for name, value in one.params.items():
            torch.testing.assert_close(other.params[name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.slow
def test_ragged_clients_with_augmentation_are_the_same_replayed() -> None:
    assert_recorded(plan_of(replace(BASE, epochs=2)), federation((2, 9, 17), augment=True), model("cnn-tiny-bn"))


@pytest.mark.slow
def test_marked_rows_are_counted_where_they_cost_and_dropout_is_drawn() -> None:
    phase = replace(BASE, objective=term("guided"), view="all", penalties=(term("l1", alpha=1e-3),))
    assert_recorded(plan_of(phase), federation((13, 9)), model("cnn-tiny-dropout"), {"phi": another(3)})


def test_phases_that_differ_in_their_view_alone_are_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def look(module: Any, inputs: Any) -> Any:
        compiled.append(module)
        return module

    monkeypatch.setattr(recorded, "compiler", look)
    clients, made = federation((9, 17)), model("mlp")
    seen = []
    for view in ("retain", "all", "retain"):
        assert_recorded(plan_of(replace(BASE, view=view)), clients, made)
        seen.append(len(compiled))
    assert 0 < seen[0] == seen[2], "another view is another table of rows, not another step"


def poisoned(clients: dict[str, ClientData]) -> dict[str, ClientData]:
    """The same clients, the first of which has stamped a trigger on its images."""
    first = clients["0"]
    source = backdoor(first.source, first.rows[first.train], target_class=0, seed=3)
    return {name: replace(client, source=source) for name, client in clients.items()}


def test_a_poisoned_client_is_the_same_replayed_by_a_step_without_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant on the host ends the compiler on CUDA, and no graph could read it there."""
    seen, ready = list[Any](), capture.ready

    def look(module: Any, *arguments: Any) -> Any:
        seen.append(module)
        return ready(module, *arguments)

    monkeypatch.setattr(recorded, "ready", look)
    assert_recorded(plan_of(replace(BASE, epochs=2)), poisoned(federation((9, 17), augment=True)), model())
    assert seen and all(operations(module) == {"placeholder", "call_function", "output"} for module in seen)
    assert not any(dict(module.named_buffers()) for module in seen)
    lifted = [node.target for module in seen for node in module.graph.nodes if "lift" in str(node.target)]
    assert not lifted, "a number came from the host"


def operations(module: Any) -> set[str]:
    return {node.op for node in module.graph.nodes}


def test_a_source_or_an_objective_may_hold_constants_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that a user writes into the step become inputs, and outlive the trace."""

    def loss(net: Any, batch: Any, models: Any) -> Tensor:
        weights = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)
        return nn.functional.cross_entropy(net(batch.x), batch.y, reduction="none") * weights[batch.y]

    monkeypatch.setitem(objectives.OBJECTIVES, "own", objectives.Objective("own", loss))
    monkeypatch.setattr(recorded, "compiler", lambda module, inputs: Bare(module))
    assert_recorded(plan_of(replace(BASE, objective=term("own"))), federation((9, 17)), model("mlp"))


class Bare:
    """A compiler that takes flat lists of operations and nothing else."""

    def __init__(self, module: Any) -> None:
        assert operations(module) == {"placeholder", "call_function", "output"}
        self.run = module

    def __call__(self, *inputs: Tensor) -> Any:
        return self.run(*inputs)


def refusing(module: Any, inputs: Any) -> Any:
    """A compiler that finds out when it is first called, as PyTorch's does."""

    def run(*inputs: Tensor) -> None:
        inputs[0].zero_()
        raise RuntimeError("Attempt to trace generator\nand a long explanation")

    return run


def test_a_step_that_cannot_be_compiled_runs_uncompiled_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "compiler", refusing)
    clients, made = federation((9, 17), augment=True), model("mlp")
    plan = plan_of(replace(BASE, epochs=2))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert_recorded(plan, clients, made)
        assert_recorded(replace(plan, round=2), clients, made)
    (one,) = {str(w.message) for w in said if issubclass(w.category, UnfedWarning)}
    assert len([w for w in said if issubclass(w.category, UnfedWarning)]) == 1
    assert one == (
        "a training step cannot be compiled (Attempt to trace generator), so it runs uncompiled and slower;"
        " the results are the same"
    )


def test_a_stack_that_cannot_be_traced_is_mapped_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def untraceable(*args: object, **kwargs: object) -> None:
        raise RuntimeError("an operation without a fake")

    monkeypatch.setattr(recorded, "make_fx", untraceable)
    clients, made = federation((9, 17)), model("mlp")
    with pytest.warns(UnfedWarning, match="cannot be compiled .an operation without a fake.*operation by operation"):
        assert_recorded(plan_of(BASE), clients, made)


def test_a_schedule_does_not_record_anew() -> None:
    clients, (template, params) = federation((12, 12)), model("mlp")
    engine = Batched(template, clients, compile=True)
    for lr, alpha in ((0.1, 1e-3), (0.05, 5e-4), (0.0, 0.0)):
        phase = replace(BASE.with_optimiser(lr=lr), penalties=(term("l1", alpha=alpha),))
        (stacked,) = engine.train(plan_of(phase), params, ["1"], {})
        (alone,) = Sequential(template, clients).train(plan_of(phase), params, ["1"], {})
        for name, value in alone.params.items():
            torch.testing.assert_close(stacked.params[name], value, rtol=1e-9, atol=1e-9)
    assert len(recorded._decks[template]) == 1


def test_what_changes_from_step_to_step_is_not_recorded() -> None:
    assert recorded.recordable(BASE)
    assert recorded.recordable(replace(BASE, after=(term("ball", around="start", radius=1.0),)))
    assert not recorded.recordable(replace(BASE, after=(term("fuse", donor="start", rho=0.7, every=3),)))
    assert not recorded.recordable(replace(BASE, stop=term("loss_above", limit=1.0)))
    plateau = term("plateau", every=2, patience=1, factor=0.1, minimum=0.0)
    assert not recorded.recordable(Phase(optimiser=Optimiser("adam", plateau=plateau)))


SHAPES = [(2, 3, 3, 8, 8, 5, 2), (3, 2, 4, 6, 6, 3, 1), (2, 2, 5, 7, 7, 3, 0)]


@pytest.mark.parametrize(("stack", "images", "entering", "leaving", "side", "kernel", "padding"), SHAPES)
def test_a_stacked_convolution_is_a_grouped_one(
    stack: int, images: int, entering: int, leaving: int, side: int, kernel: int, padding: int
) -> None:
    x = torch.randn(images, stack * entering, side, side, dtype=torch.float64)
    w = torch.randn(stack * leaving, entering, kernel, kernel, dtype=torch.float64)
    y = torch.conv2d(x, w, None, 1, padding, 1, stack)
    torch.testing.assert_close(convolution.convolve(x, w, padding, stack), y)
    dy, both = torch.randn_like(y), [padding, padding]
    dx, dw, _ = aten.convolution_backward(
        dy, x, w, None, [1, 1], both, [1, 1], False, [0, 0], stack, [True, True, False]
    )
    found = convolution.convolve_backward(dy, x, w, padding, stack, [True, True])
    torch.testing.assert_close(found[0], dx)
    torch.testing.assert_close(found[1], dw)


def test_only_convolutions_that_fit_are_rewritten() -> None:
    def convolve(stride: int, groups: int) -> int:
        x, w = torch.randn(2, 6, 8, 8), torch.randn(6, 6 // groups, 3, 3)
        module = make_fx(lambda x, w: torch.conv2d(x, w, None, stride, 1, 1, groups), tracing_mode="fake")(x, w)
        changed = convolution.rewrite(module, 3)
        torch.testing.assert_close(module(x, w), torch.conv2d(x, w, None, stride, 1, 1, groups))
        return changed

    assert convolve(stride=1, groups=3) == 1
    assert convolve(stride=2, groups=3) == 0
    assert convolve(stride=1, groups=1) == 0


@pytest.mark.slow
@pytest.mark.own_process
def test_a_transformer_in_half_precision_is_the_reference_but_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    changed, own = list[int](), half_precision.rewrite
    monkeypatch.setattr(half_precision, "rewrite", lambda module: changed.append(own(module)))
    clients = federation((9, 17), augment=True, dtype=torch.float32)
    some = next(iter(clients.values())).source
    module = build("vit-tiny", shape=some.shape, classes=some.classes, seed=0, patch=4, width=32, heads=2, depth=1)
    template = Template(module, some.shape).to("cpu", torch.float32)
    template.autocast = torch.bfloat16
    plan, params = plan_of(Phase(batch=8, epochs=2, optimiser=Optimiser(lr=0.05))), params_of(module)
    ours, reference = (
        next(iter(Sequential(template, clients, compile=compile).train(plan, params, ["0"], {}))).of(0)
        for compile in (True, False)
    )
    moved, apart = (
        torch.cat([(a[n] - b[n]).flatten() for n in params]).norm() for a, b in ((reference, params), (ours, reference))
    )
    assert max(changed) == 2, "GELU and its gradient"
    assert apart < 0.02 * moved


def test_kernels_serve_cuda_tensors_only() -> None:
    assert not kernels.usable(torch.zeros(1))


@pytest.mark.parametrize(("layer", "told"), [(nn.LayerNorm(4), True), (nn.Linear(4, 4), False)], ids=["norm", "linear"])
def test_the_compiler_is_told_about_layer_norms_and_only_what_it_knows(
    layer: nn.Module, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(recorded.OPTIONS, "of.another.version", True)
    parameters = list(layer.parameters())
    module = make_fx(lambda x: torch.autograd.grad(layer(x).sum(), parameters))(torch.ones(2, 4))
    options = recorded.options_for(module)
    assert options["triton.cudagraphs"] is False and "of.another.version" not in options
    assert ("triton.mix_order_reduction" in options) == told


def test_an_option_that_was_asked_for_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recorded.OPTIONS, "triton.mix_order_reduction", True)
    norm = nn.LayerNorm(4)
    module = make_fx(lambda x: torch.autograd.grad(norm(x).sum(), list(norm.parameters())))(torch.ones(2, 4))
    assert recorded.options_for(module)["triton.mix_order_reduction"] is True


def test_the_compilers_workers_are_not_put_to_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch asks of its pool; to begin one takes half a minute."""
    from torch._inductor import async_compile, config

    asked: dict[str, Any] = {}

    class Pool:
        def __init__(self, workers: int, **options: Any) -> None:
            asked.update(options)

        def shutdown(self) -> None:
            """There is nothing to end."""

    monkeypatch.setattr(config, "quiesce_async_compile_pool", True)
    recorded.inductor(make_fx(lambda x: x + 1)(torch.ones(2)), [])
    monkeypatch.setattr(config, "compile_threads", 2)
    monkeypatch.setattr(async_compile, "SubprocPool", Pool)
    monkeypatch.setattr(async_compile, "_pool_set", set())
    make: Any = async_compile.AsyncCompile.process_pool
    make.__wrapped__()
    assert asked == {"quiesce": False}
