"""GELU and turned weights in half precision, and the precision of models beside a step."""

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


def test_gelu_is_at_most_3e_5_off_and_its_derivative_1e_4() -> None:
    x = torch.linspace(-40, 40, 400_001, dtype=torch.float64, requires_grad=True)
    below, density = half_precision._normal(x.detach())
    exact = nn.functional.gelu(x)
    (slope,) = torch.autograd.grad(exact.sum(), x)
    assert (x * below - exact).abs().max() < 3e-5
    assert (below + x.detach() * density - slope).abs().max() < 1e-4


def test_a_traced_gelu_in_half_precision_is_replaced_and_no_other() -> None:
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            y = nn.functional.gelu(leaf)
        return y.detach(), torch.autograd.grad(y, leaf, torch.ones_like(y))[0]

    def replaced(function: object, x: Tensor) -> tuple[torch.fx.GraphModule, bool]:
        module = make_fx(function, tracing_mode="fake")(x)  # type: ignore[arg-type]
        changed = half_precision.rewrite(module)
        gone = not any("gelu" in name for name in names(module))
        assert gone == (changed > 0)
        return module, gone

    x = torch.linspace(-9, 9, 2001).to(HALF)
    module, gone = replaced(step, x)
    assert gone
    for ours, exact in zip(module(x), step(x), strict=True):
        assert ours.dtype == HALF
        # Half of what bf16 distinguishes next to the exact value, and the approximation itself.
        assert bool(((ours.double() - exact.double()).abs() <= exact.double().abs() * 2**-7 + 1e-4).all())
    assert not replaced(step, x.float())[1], "float32 keeps the exact function"
    assert not replaced(lambda x: nn.functional.gelu(x, approximate="tanh"), x)[1], "another function by name"


def test_what_is_turned_and_rounded_is_rounded_first() -> None:
    module = make_fx(lambda w: w.transpose(1, 2).to(HALF) + 1, tracing_mode="fake")(torch.randn(2, 3, 5))
    half_precision.rewrite(module)
    assert names(module)[:2] == ["aten._to_copy.default", "aten.transpose.int"]
    w = torch.randn(2, 3, 5)
    assert torch.equal(module(w), w.transpose(1, 2).to(HALF) + 1)


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
