"""A block computed at once equals its four layers, and the kernels equal the readable operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from test_batched import federation, plan_of
from unfed.client.plan import Optimiser, Phase
from unfed.engines import Batched, Sequential
from unfed.engines.compiled import capture, convolution, fused, kernels, recorded
from unfed.engines.compiled.kernels import Tiles, affordable
from unfed.model.calling import block, computed_by
from unfed.model.functional import Template
from unfed.model.networks import build
from unfed.model.params import cast, params_of
from worlds import noting

Layers = tuple[nn.Module, nn.Module, nn.Module, nn.Module]


class Net(nn.Module):
    """Four layers that call `block`."""

    def __init__(self, entering: int, leaving: int, kernel: int, padding: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(entering, leaving, kernel, padding=padding)
        self.norm = nn.GroupNorm(1, leaving)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2)

    @property
    def layers(self) -> Layers:
        return self.conv, self.norm, self.relu, self.pool

    def forward(self, x: Tensor) -> Tensor:
        return block(x, *self.layers)


def stacked(net: nn.Module, clients: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return {n: torch.randn(clients, *p.shape, generator=draw, dtype=torch.float64) for n, p in net.named_parameters()}


def outcome(net: nn.Module, params: dict[str, Tensor], x: Tensor, wants_x: bool) -> list[Tensor]:
    """The outputs of a stack, and the gradients of a weighted sum of them, x included where it wants one."""
    leaves = {n: t.clone().requires_grad_() for n, t in params.items()}
    x = x.clone().requires_grad_(wants_x)
    out = vmap(lambda p, x: functional_call(net, p, (x,)))(leaves, x)
    draw = torch.Generator().manual_seed(2)
    total = (out * torch.randn(out.shape, generator=draw, dtype=out.dtype)).sum()
    return [out, *torch.autograd.grad(total, [*leaves.values(), *[x] * wants_x])]


@pytest.mark.parametrize(
    ("entering", "leaving", "kernel", "padding", "wants_x"),
    [(3, 16, 5, 2, False), (16, 32, 5, 2, True), (8, 16, 3, 1, False), (3, 16, 3, 0, True), (1, 16, 3, 1, False)],
)
def test_a_block_at_once_is_its_four_layers(
    entering: int, leaving: int, kernel: int, padding: int, wants_x: bool
) -> None:
    net = Net(entering, leaving, kernel, padding).double()
    params = stacked(net, 3)
    params["norm.weight"][0, :2] = torch.tensor([0.0, -2.0])
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, entering, 10, 10, generator=draw, dtype=torch.float64)
    layer_by_layer = outcome(net, params, x, wants_x)
    with computed_by(block=fused.fused_block):
        at_once = outcome(net, params, x, wants_x)
    for one, other in zip(layer_by_layer, at_once, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-11, atol=1e-11)


def test_a_client_alone_needs_no_map() -> None:
    net = Net(3, 16, 5, 2).double()
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = fused.fused_block(x, *net.layers)
    assert found is not None
    torch.testing.assert_close(found, net(x), rtol=1e-11, atol=1e-11)


def test_of_equal_values_the_first_wins_as_in_a_max_pool() -> None:
    """A constant image has windows of four equal values everywhere but at the border."""
    net = Net(1, 16, 3, 0).double()
    params, x = stacked(net, 2), torch.ones(2, 2, 1, 8, 8, dtype=torch.float64)
    params["conv.weight"][:] = params["conv.weight"][:, :, :, :1, :1]
    x[:, :, :, :, 4:] = 2.0
    layer_by_layer = outcome(net, params, x, True)
    with computed_by(block=fused.fused_block):
        at_once = outcome(net, params, x, True)
    for one, other in zip(layer_by_layer, at_once, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)


def test_a_nan_is_not_hidden_by_the_relu() -> None:
    net = Net(3, 16, 3, 1)
    x = torch.zeros(1, 3, 8, 8)
    x[0, 0, 0, 0] = torch.nan
    found = fused.fused_block(x, *net.layers)
    assert found is not None and bool(found.isnan().all())


MISFITS = {
    "an odd side": (nn.Conv2d(3, 16, 4), None, None, None),
    "a stride": (nn.Conv2d(3, 16, 3, stride=2, padding=1), None, None, None),
    "groups": (nn.Conv2d(3, 48, 3, padding=1, groups=3), nn.GroupNorm(1, 48), None, None),
    "no bias": (nn.Conv2d(3, 16, 3, padding=1, bias=False), None, None, None),
    "reflected borders": (nn.Conv2d(3, 16, 3, padding=1, padding_mode="reflect"), None, None, None),
    "few channels": (nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(1, 8), None, None),
    "two groups to norm": (None, nn.GroupNorm(2, 16), None, None),
    "batch norm": (None, nn.BatchNorm2d(16), None, None),
    "another activation": (None, None, nn.GELU(), None),
    "a pool of three": (None, None, None, nn.MaxPool2d(3)),
    "an average": (None, None, None, nn.AvgPool2d(2)),
}


@pytest.mark.parametrize("what", MISFITS)
def test_other_layers_are_left_to_themselves(what: str) -> None:
    usual: Layers = (nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(1, 16), nn.ReLU(), nn.MaxPool2d(2))
    layers = [theirs or ours for theirs, ours in zip(MISFITS[what], usual, strict=True)]
    x = torch.zeros(2, 3, 8, 8)
    assert fused.fused_block(x, *usual) is not None
    assert fused.fused_block(x, *layers) is None
    with computed_by(block=fused.fused_block):
        assert torch.equal(block(x, *layers), layers[3](layers[2](layers[1](layers[0](x)))))


def test_an_even_kernel_is_left_to_itself() -> None:
    """The gradient for its input would have an odd number of columns, which make no pairs."""
    layers = (nn.Conv2d(3, 16, 2), nn.GroupNorm(1, 16), nn.ReLU(), nn.MaxPool2d(2))
    assert layers[0](torch.zeros(2, 3, 7, 7)).shape[3] == 6
    assert fused.fused_block(torch.zeros(2, 3, 7, 7), *layers) is None


@pytest.mark.parametrize("alone", [False, True], ids=["stack", "alone"])
def test_a_recorded_step_computes_its_blocks_at_once_and_changes_nothing(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "compiler", capture.as_traced)
    clients = federation((9, 17, 24), augment=True)
    some = next(iter(clients.values())).source
    template = Template(build("cnn-small", shape=some.shape, classes=some.classes, seed=0), some.shape)
    template.to("cpu", torch.float64)
    params = cast(params_of(template.module), torch.float64, torch.device("cpu"))
    plan = plan_of(Phase(batch=8, epochs=2, optimiser=Optimiser(lr=0.1)))
    calls: list[int] = []
    forward = fused.forward
    monkeypatch.setattr(fused, "forward", noting(calls, forward, lambda *args: len(args[0])))
    engine: Any = Sequential(template, clients, compile=True) if alone else Batched(template, clients, compile=True)
    at_once = list(engine.train(plan, params, list(clients), {}))
    assert calls, "the blocks were not computed at once"
    assert (set(calls) == {1}) if alone else (max(calls) == 3)
    reference = Sequential(template, clients, compile=False).train(plan, params, list(clients), {})
    found = {name: found.of(i) for found in at_once for i, name in enumerate(found.clients)}
    for one in reference:
        for name, value in one.of(0).items():
            torch.testing.assert_close(found[one.clients[0]][name], value, rtol=1e-9, atol=1e-9)


# --- the kernels, without a GPU ---------------------------------------------------------------------------------------


@pytest.fixture
def interpreted() -> None:
    """Triton's interpreter runs kernels on the CPU, as slowly as it sounds (`conftest.py` switches it on)."""
    pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot be interpreted")


def case(entering: int, leaving: int, kernel: int, side: int) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    x, w = normal(2, 3, side, side, entering), normal(2, kernel, kernel, entering, leaving) * 0.2
    gamma = normal(2, leaving)
    gamma[0, 0] = 0.0
    return x, w, normal(2, leaving), gamma, normal(2, leaving)


SMALL = Tiles(rows=32, entries=32, channels=32, warps=4, stages=2)


@pytest.mark.parametrize(
    ("entering", "leaving", "kernel", "side", "padding", "wants_x", "pool"),
    [
        (16, 32, 5, 12, 2, True, kernels.long_tuning.conv_pool),
        (4, 16, 5, 12, 0, False, kernels.long_tuning.conv_pool),
        (32, 48, 3, 8, 1, True, kernels.long_tuning.conv_pool),
        (8, 16, 3, 12, 0, False, kernels.long_tuning.conv_pool),
        (16, 48, 3, 14, 1, True, SMALL),
    ],
    ids=["wide", "first layer", "odd channels", "no gradient", "several tiles"],
)
def test_kernels_equal_the_readable_operators(
    interpreted: None,
    entering: int,
    leaving: int,
    kernel: int,
    side: int,
    padding: int,
    wants_x: bool,
    pool: Tiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "long_tuning", replace(kernels.long_tuning, conv_pool=pool))
    x, w, bias, gamma, beta = case(entering, leaving, kernel, side)
    pairs = fused.in_pairs(w)
    winners, y, whole = fused.forward(x, pairs, bias, gamma, kernel, kernel)
    fast = kernels.forward(x, pairs, bias, gamma, kernel, kernel)
    assert fast[2].shape[2] == kernels.tiles_of_image(x, pairs, kernel, y[0, 0, ..., 0].numel())
    assert fast[2].shape[2] > 1 or pool is not SMALL
    moments = fused.moments_of(whole, 1e-5)
    for name, one, other in zip(("winners", "y"), (winners, y), fast, strict=False):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=3e-5, msg=name)
    torch.testing.assert_close(fused.moments_of(fast[2], 1e-5), moments, rtol=1e-4, atol=3e-5)
    dp = torch.randn(winners.shape, generator=torch.Generator().manual_seed(1))
    turned = fused.in_pairs(w.flip(1, 2).transpose(3, 4))
    given = (dp, x, turned, gamma, beta, winners, y, moments, kernel, kernel, padding, wants_x)
    assert fused.backward(*given)[1].shape[0] == 1
    parts = kernels.backward(*given)
    for name, one, other in zip(("dx", "dw", "per image", "db"), fused.backward(*given), parts, strict=True):
        summed = (one.sum(0), other.sum(0)) if name in ("dw", "db") else (one, other)
        torch.testing.assert_close(summed[1], summed[0], rtol=1e-4, atol=1e-4, msg=name)


def test_statistics_of_parts_are_those_of_the_whole() -> None:
    values = torch.tensor([1.0, 2.0, 6.0, 3.0, 8.0], dtype=torch.float64)
    parts = [[len(own), own.mean(), (own - own.mean()).square().sum()] for own in (values[:2], values[2:])]
    mean, inverse = fused.moments_of(torch.tensor(parts, dtype=torch.float64)[None, None], 0.5).flatten().tolist()
    assert (mean, inverse) == pytest.approx((4.0, (6.8 + 0.5) ** -0.5))


def test_partial_sums_keep_every_multiprocessor_busy() -> None:
    """The fitted CNN, 64 images a client: 960 entries make 8 tiles of 128, and 264 programs fit at a time."""
    for clients, of_weight in ((10, 2 * 3), (20, 2 * 1), (80, 2 * 1)):
        second = torch.empty(clients, 64, 20, 20, 32, dtype=torch.bfloat16, device="meta")
        assert kernels.block_parts(second, 64, 5, 5, 16, 16, True) == (of_weight, 64 * 4)
    first = torch.empty(10, 64, 36, 36, 4, dtype=torch.bfloat16, device="meta")
    assert kernels.block_parts(first, 32, 5, 5, 32, 32, False) == (64, 64)


def test_tiles_shrink_until_they_fit_a_smaller_device() -> None:
    wanted = Tiles(rows=256, entries=32, channels=64, warps=8, stages=4)
    row, rest = 32 * 4, 32 * 64 * 4  # float32: 40 KiB a stage
    assert affordable(wanted, row, rest, 227 * 1024) == wanted
    assert affordable(wanted, row, rest, 99 * 1024) == replace(wanted, stages=2)
    assert affordable(wanted, row, rest, 32 * 1024) == replace(wanted, stages=1, rows=128)
    smallest = affordable(wanted, row, rest, 1)
    assert (smallest.stages, smallest.rows) == (1, 16)


@pytest.mark.parametrize(
    ("entering", "leaving", "kernel", "side", "margin"),
    [(16, 32, 3, 8, 0), (16, 32, 3, 18, 1), (3, 20, 5, 11, 2), (20, 70, 1, 5, 0), (3, 16, 1, 5, 0)],
    ids=["images share a tile", "an image is a tile", "odd channels", "one pixel", "fewer entries than a tile"],
)
def test_convolution_kernels_equal_unfolding(
    interpreted: None, entering: int, leaving: int, kernel: int, side: int, margin: int
) -> None:
    x, w, *_ = case(entering, leaving, kernel, side)
    y = convolution.stacked_conv(x, w.flatten(1, 3), kernel, kernel)
    found = torch.full_like(y, torch.nan)
    kernels.convolve(x, w.flatten(1, 3), found, kernel, kernel)
    torch.testing.assert_close(found, y, rtol=1e-4, atol=3e-5)
    dy = fused.padded(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)), margin)
    expected = convolution.stacked_conv_weight(x, dy, kernel, kernel, margin)
    parts = kernels.weight(x, dy, kernel, kernel, margin, *y.shape[2:4])
    torch.testing.assert_close(parts.sum(0), expected[0], rtol=1e-4, atol=1e-4)
