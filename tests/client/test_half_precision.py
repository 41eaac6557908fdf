"""Weights are rounded once, at the start of a step, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from unfed.client.batch import Models
from unfed.engines.compiled import half_precision
from unfed.model.functional import Template
from unfed.model.params import params_of

HALF = torch.bfloat16
make_fx(torch.neg, tracing_mode="fake")(torch.ones(1))  # what tracing imports, once for all children
pytestmark = pytest.mark.own_process


def names(module: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in module.graph.nodes if n.op == "call_function"]


def test_rounding_moves_to_the_start_and_only_inputs_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_precision, "MANY", 2)

    def step(a: Tensor, b: Tensor, counts: Tensor) -> Tensor:
        first = a[0].to(HALF) @ b.to(HALF)
        computed = (a[0] * 2).to(HALF)  # not an input
        return first + computed + counts.to(HALF)  # integers are not rounded

    given = torch.randn(1, 4, 4), torch.randn(4, 4), torch.arange(4)
    module = make_fx(step, tracing_mode="fake")(*given)
    assert half_precision.rewrite(module) == 2
    found = names(module)
    assert found.count("unfed.halves.default") == 1 and found.count("aten._to_copy.default") == 2
    assert set(found[: found.index("unfed.halves.default")]) == {"aten.select.int"}
    assert torch.equal(module(*given), step(*given))


def test_few_weights_and_those_of_convolutions_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_fx(lambda a, b: a.to(HALF) + b.to(HALF), tracing_mode="fake")(torch.randn(3), torch.randn(3))
    assert half_precision.rewrite(module) == 0
    monkeypatch.setattr(half_precision, "MANY", 1)
    kernel = make_fx(lambda a: a.to(HALF) + 1, tracing_mode="fake")(torch.randn(3, 3, 2, 2))
    assert half_precision.rewrite(kernel) == 0


def test_models_beside_a_step_compute_in_its_precision_and_evaluation_in_the_params() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    template, x = Template(module, (4,)), torch.randn(5, 4)
    template.autocast = HALF
    teacher, plain = Models(template, {"teacher": params_of(module)})["teacher"], template.bind(params_of(module))
    with torch.autocast("cpu", HALF):
        logits, features = module(x), module[:2](x)
    assert torch.equal(teacher(x), logits.float()) and torch.equal(teacher.features(x), features.float())
    assert torch.equal(plain(x), module(x)) and not torch.equal(plain(x), teacher(x))
    assert not plain.training and not teacher.training, "neither draws dropout"
