"""GELU with one exponential, and its gradient with the bias's: the same numbers, in the places where they belong."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from unfed.engines.compiled.transformer import gelu, launch

HALF = torch.bfloat16
make_fx(torch.neg, tracing_mode="fake")(torch.ones(1))  # what tracing imports, once for all children


@pytest.fixture
def interpreted() -> None:
    """Triton's interpreter runs kernels on the CPU (`conftest.py` switches it on)."""
    pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot be interpreted")


def values() -> tuple[Tensor, Tensor]:
    """A gradient and inputs from far below zero to far above, with a last row and column that fill no tile."""
    x = torch.linspace(-9, 9, 149 * 131).view(149, 131)
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(0)), x


def test_the_kernel_is_gelu(interpreted: None) -> None:
    _, x = values()
    torch.testing.assert_close(launch.gelu(x), F.gelu(x.double()).float(), rtol=1e-6, atol=1e-6)


def test_the_kernel_of_the_gradient_is_autograds_with_its_column_sums(interpreted: None) -> None:
    dy, x = values()
    leaf = x.double().requires_grad_()
    (expected,) = torch.autograd.grad((F.gelu(leaf) * dy.double()).sum(), leaf)
    dx, parts = launch.gelu_backward(dy, x)
    torch.testing.assert_close(dx, expected.float(), rtol=1e-5, atol=1e-6)
    assert parts.shape == (launch.gelu_parts(x), x.shape[1]) == (3, 131)
    torch.testing.assert_close(parts.sum(0), expected.sum(0).float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_what_is_not_finite_does_not_vanish(interpreted: None, value: float) -> None:
    x = torch.full((1, 16), value)
    assert not bool(launch.gelu(x).isfinite().any())


def backward(net: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(net(x).float().square().sum(), list(net.parameters())))


@pytest.mark.own_process
@pytest.mark.parametrize(
    ("dtype", "approximate", "replaced"),
    [(HALF, "none", 2), (torch.float16, "none", 2), (torch.float32, "none", 0), (HALF, "tanh", 0)],
    ids=["bf16", "fp16", "float32 is left alone", "the approximation by tanh is another function"],
)
def test_forward_and_gradient_are_found_in_a_traced_step(dtype: torch.dtype, approximate: str, replaced: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 24), nn.GELU(approximate), nn.Linear(24, 3)).to(dtype)
    x = torch.randn(5, 7, 8).to(dtype)
    module = make_fx(lambda x: backward(net, x), tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    assert gelu.rewrite(module) == replaced
    names = {str(n.target) for n in module.graph.nodes}
    assert ("unfed.gelu_backward.default" in names) == (replaced > 0) != ("aten.gelu_backward.default" in names)
    for one, other in zip(module(x), backward(net, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.own_process
@pytest.mark.parametrize("shape", [(5, -1), (-1, 4, 6)], ids=["flattened", "cut into heads"])
def test_a_bias_of_another_width_than_the_activation_adds_up_for_itself(shape: tuple[int, ...]) -> None:
    """Between the linear layer and its GELU stands a reshape, so the rows of one are not the rows of the other."""
    torch.manual_seed(0)
    linear, x = nn.Linear(8, 24).to(HALF), torch.randn(5, 7, 8).to(HALF)

    def gradients(x: Tensor) -> list[Tensor]:
        out = F.gelu(linear(x).reshape(shape)).float().square().sum()
        return list(torch.autograd.grad(out, list(linear.parameters())))

    module = make_fx(gradients, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    gelu.rewrite(module)
    for one, other in zip(module(x), gradients(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.own_process
def test_a_gradient_that_no_bias_adds_up_is_left_alone() -> None:
    net = nn.Sequential(nn.Linear(8, 24, bias=False), nn.GELU(), nn.Linear(24, 3)).to(HALF)
    x = torch.randn(5, 7, 8).to(HALF)
    module = make_fx(lambda x: backward(net, x), tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    assert gelu.rewrite(module) == 1
    assert "aten.gelu_backward.default" in {str(n.target) for n in module.graph.nodes}
