"""Attention of short sequences equals PyTorch's, and its kernels equal the readable lines."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from test_recorded import transformer
from unfed.engines.compiled import capture, half_precision, handwritten, recorded
from unfed.engines.compiled.transformer import attention, gelu, launch
from unfed.model.calling import attend, computed_by
from worlds import noting

HALF = torch.bfloat16


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_forward_and_gradient_are_those_of_pytorch() -> None:
    leaf = draw(3, 11, 3, 2, 16).requires_grad_()
    weights = draw(3, 11, 32, seed=1)
    expected = attend(leaf.flatten(2), 2)
    found, _ = attention.attention(leaf)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    (want,) = torch.autograd.grad((expected * weights).sum(), leaf)
    (got,) = torch.autograd.grad((found * weights).sum(), leaf)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("length", "heads", "width"), [(37, 2, 16), (65, 1, 32), (16, 3, 64)])
def test_kernels_equal_the_readable_lines(length: int, heads: int, width: int) -> None:
    pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot be interpreted")
    x = draw(2, length, 3, heads, width, dtype=torch.float32)
    dout = draw(2, length, heads * width, seed=1, dtype=torch.float32)
    out, level = attention.forward(x)
    for name, slow, fast in zip(("o", "level"), (out, level), launch.attend(x), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5, msg=name)
    (dx, total), (fast_dx, parts) = (run(dout, x, out, level) for run in (attention.backward, launch.attend_backward))
    torch.testing.assert_close(fast_dx, dx, rtol=1e-4, atol=1e-5)
    assert parts.shape == (2, 3 * heads * width)
    torch.testing.assert_close(parts.sum(0), total[0], rtol=1e-4, atol=1e-4)


def test_an_overflow_is_not_hidden() -> None:
    pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot be interpreted")
    x = draw(1, 16, 3, 1, 16, dtype=torch.float32)
    x[0, 3, 1] = torch.nan
    assert bool(launch.attend(x)[0].isnan().all())


MISFITS = {
    "float32": (torch.float32, 17, 2, 32),
    "a long sequence": (HALF, 257, 2, 32),
    "wide heads": (HALF, 17, 1, 128),
    "odd heads": (HALF, 17, 2, 24),
}


@pytest.mark.own_process
@pytest.mark.parametrize("what", MISFITS)
def test_other_attention_is_left_to_pytorch(what: str) -> None:
    dtype, length, heads, width = MISFITS[what]
    assert attention.short_attention(draw(2, 17, 3 * 64).to(HALF), 2) is not None
    projected = draw(2, length, 3 * heads * width).to(dtype)
    assert attention.short_attention(projected, heads) is None
    expected = attend(projected, heads)
    with computed_by(attend=attention.short_attention):
        assert torch.equal(attend(projected, heads), expected)


@pytest.mark.own_process
def test_a_stack_of_clients_is_left_to_pytorch() -> None:
    x = draw(3, 2, 17, 96).to(HALF)
    expected = vmap(lambda x: attend(x, 2))(x)
    with computed_by(attend=attention.short_attention):
        torch.testing.assert_close(vmap(lambda x: attend(x, 2))(x), expected)


class Attention(nn.Module):
    """A projection with a bias, attention, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        return attend(self.project(x), 2).float().square().sum()


@pytest.mark.own_process
def test_the_bias_takes_its_gradient_from_the_kernels_sums() -> None:
    torch.manual_seed(0)
    net, x = Attention().to(HALF), draw(3, 9, 32).to(HALF)

    def gradients(x: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(net(x), list(net.parameters())))

    with computed_by(attend=attention.short_attention):
        module = make_fx(gradients, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    before = sum(n.target is torch.ops.aten.sum.dim_IntList for n in module.graph.nodes)
    assert attention.rewrite(module) == before == 1
    module.graph.eliminate_dead_code()
    module.recompile()
    adds = [n for n in module.graph.nodes if n.target is torch.ops.aten.sum.dim_IntList]
    assert [n.args[0].meta["val"].shape[0] for n in adds] == [1], "the sum is that of the kernel's parts"
    for one, other in zip(module(x), gradients(x), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.slow
@pytest.mark.own_process
def test_a_transformer_trains_alike_without_each_hand_written_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rounded at a step's start is what is rounded before its end, to the bit: no weight is written between."""
    monkeypatch.setattr(recorded, "compiler", capture.as_traced)
    monkeypatch.setattr(half_precision, "MANY", 4)
    attended, gelus, halves = list[Tensor](), list[int](), list[int]()
    monkeypatch.setattr(attention, "forward", noting(attended, attention.forward))
    for part, calls in ((gelu, gelus), (half_precision, halves)):
        monkeypatch.setattr(part, "rewrite", lambda m, calls=calls, own=part.rewrite: calls.append(own(m)))
    ours = transformer(width=32, heads=2, depth=1)
    assert attended and max(gelus) > 0 and max(halves) >= 4
    for name, rtol, atol in (("gelu", 1e-4, 1e-5), ("attention", 1e-2, 5e-4), ("halves", 0, 0)):
        monkeypatch.setattr(handwritten, "chosen", handwritten.Handwritten(**{name: False}))
        for tensor, value in transformer(width=32, heads=2, depth=1).items():
            torch.testing.assert_close(ours[tensor], value, rtol=rtol, atol=atol, msg=f"{name}: {tensor}")
