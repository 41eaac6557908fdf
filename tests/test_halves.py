"""Weights are rounded once, at the start of a step, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from test_batched import federation, plan_of
from unfed.engines import Sequential, halves, recorded
from unfed.models import build
from unfed.params import params_of
from unfed.plan import Optimiser, Phase
from unfed.template import Template

HALF = torch.bfloat16


def names(module: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in module.graph.nodes if n.op == "call_function"]


def test_rounding_moves_to_the_start_and_only_inputs_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "MANY", 2)

    def step(a: Tensor, b: Tensor, counts: Tensor) -> Tensor:
        first = a[0].to(HALF) @ b.to(HALF)
        computed = (a[0] * 2).to(HALF)  # not an input
        return first + computed + counts.to(HALF)  # integers are not rounded

    given = torch.randn(1, 4, 4), torch.randn(4, 4), torch.arange(4)
    module = make_fx(step, tracing_mode="fake")(*given)
    assert halves.rewrite(module) == 2
    found = names(module)
    assert found.count("unfed.halves.default") == 1 and found.count("aten._to_copy.default") == 2
    assert set(found[: found.index("unfed.halves.default")]) == {"aten.select.int"}
    assert torch.equal(module(*given), step(*given))


def test_few_weights_and_those_of_convolutions_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_fx(lambda a, b: a.to(HALF) + b.to(HALF), tracing_mode="fake")(torch.randn(3), torch.randn(3))
    assert halves.rewrite(module) == 0
    monkeypatch.setattr(halves, "MANY", 1)
    kernel = make_fx(lambda a: a.to(HALF) + 1, tracing_mode="fake")(torch.randn(3, 3, 2, 2))
    assert halves.rewrite(kernel) == 0


def test_a_step_is_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rounded before the step's end is what is rounded at its start: nobody writes a weight in between."""
    monkeypatch.setattr(recorded, "compiler", recorded.as_traced)
    clients = federation((9, 17), augment=True, dtype=torch.float32)
    some = next(iter(clients.values())).source
    found: list[dict[str, Tensor]] = []
    calls: list[int] = []
    original = halves.rewrite
    monkeypatch.setattr(halves, "rewrite", lambda module: calls.append(original(module)))
    for enabled in (True, False):
        monkeypatch.setattr(halves, "enabled", enabled)
        module = build("vit-tiny", shape=some.shape, classes=some.classes, seed=0, patch=4, depth=3)
        template = Template(module, some.shape).to("cpu", torch.float32)
        template.autocast = HALF
        plan = plan_of(Phase(batch=8, epochs=2, optimiser=Optimiser(lr=0.05)))
        engine = Sequential(template, clients, compile=True)
        found.append(next(iter(engine.train(plan, params_of(module), ["0"], {}))).of(0))
    assert max(calls) >= halves.MANY and min(calls) == 0
    for n, value in found[0].items():
        assert torch.equal(value, found[1][n]), n
