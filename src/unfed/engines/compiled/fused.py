"""A whole block of a stack of clients, forward and backward.

A block is convolution, group norm, ReLU and 2×2 max-pool.

    y = conv(x, w) + b        μ, σ over one image        x̂ = (y − μ)/σ        z = γ x̂ + β        p = max(0, max₂ₓ₂ z)

    dz = dp at the winner of its window where z > 0, else 0                      dγ = Σ dz x̂,  dβ = Σ dz
    dy = (γ dz − mean(γ dz) − x̂ mean(γ dz x̂)) / σ                               db = Σ dy,    dw = Σ windows(x) ⊗ dy

Layer by layer, a step moves the largest activation through memory some twenty times. Computed together, the block keeps
y and the winners only: they and the statistics come out of the convolution, z is recomputed where it is needed, and in
a first layer (no gradient for x) dy exists only inside the kernel that sums it up. A window of the convolution serves
two neighbouring outputs: with a kernel of five pixels, 60 % of the numbers are read for 1.2 times the multiplications.

Images lie channels-last, [C clients, B images, H, W, channels]. On CUDA the two operators are the Triton kernels of
`triton_kernels.py`; elsewhere, and in float64, they are the lines below, which are also what tests hold the kernels to.
`fused_block` is what a network's `block` calls while a step is recorded.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unfed.engines.compiled import handwritten, kernels
from unfed.engines.compiled.convolution import windows
from unfed.engines.compiled.kernels import sums_in

aten: Any = torch.ops.aten


def fits(x: Tensor, conv: nn.Module, norm: nn.Module, relu: nn.Module, pool: nn.Module) -> bool:
    """Whether the four layers are the ones above, in sizes that the kernels can take.

    Images have even sides, before the convolution and after it.
    """
    if not (isinstance(conv, nn.Conv2d) and isinstance(norm, nn.GroupNorm) and isinstance(pool, nn.MaxPool2d)):
        return False
    kernel, padding = conv.kernel_size[0], conv.padding[0]
    if not isinstance(padding, int) or not isinstance(relu, nn.ReLU) or x.dim() != 4:
        return False
    plain = conv.stride == (1, 1) and conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    square = conv.kernel_size == (kernel, kernel) and conv.padding == (padding, padding) and padding < kernel
    whole = norm.num_groups == 1 and norm.affine and conv.bias is not None and conv.out_channels % 16 == 0
    halves = pool.kernel_size == 2 and pool.stride == 2 and pool.padding == 0 and pool.dilation == 1
    sides = [side + 2 * padding - kernel + 1 for side in x.shape[2:]]
    even = all(side > 0 and side % 2 == 0 for side in (*x.shape[2:], *sides))
    return plain and square and whole and halves and even and not pool.ceil_mode and not pool.return_indices


def fused_block(x: Tensor, conv: nn.Module, norm: nn.Module, relu: nn.Module, pool: nn.Module) -> Tensor | None:
    """`pool(relu(norm(conv(x))))` of one client [B, I, H, W], mapped over clients or alone.

    It gives None if the block does not fit.
    """
    if not handwritten.chosen.blocks or not fits(x, conv, norm, relu, pool):
        return None
    assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.GroupNorm) and conv.bias is not None
    w = conv.weight
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, w = x.to(dtype), w.to(dtype)
    each = (x.permute(0, 2, 3, 1), w.permute(2, 3, 1, 0), conv.bias, norm.weight, norm.bias)
    stacked = (t[None] for t in each)
    out: Tensor = stack_of_blocks(*stacked, int(conv.padding[0]), norm.eps)[0]
    return out.squeeze(0).permute(0, 3, 1, 2)  # the gradient of `out[0]` would be a copy


class StackOfBlocks(torch.autograd.Function):
    """The block of a stack: x [C, B, H, W, I], w [C, KH, KW, I, O].

    The products are operators of their own; what is before and between them the compiler fuses with its surroundings.
    """

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, padding: int, eps: float
    ) -> tuple[Tensor, ...]:
        more = -x.shape[4] % 4  # a line is then read in pieces of eight numbers
        wide, w = padded(x, padding, more).contiguous(), F.pad(w, (0, 0, 0, more))
        winners, y, statistics = stacked_winners(wide, in_pairs(w), bias, gamma, *w.shape[1:3])
        moments = moments_of(statistics, eps)
        z = _standard(winners, moments) * _channels(gamma.to(moments.dtype)) + _channels(beta.to(moments.dtype))
        return z.clamp(min=0).to(x.dtype), wide, w, winners, y, moments

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, _, _, gamma, beta, ctx.padding, _ = inputs
        ctx.channels = x.shape[4]
        ctx.save_for_backward(gamma, beta, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, dp: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gamma, beta, wide, w, winners, y, moments = ctx.saved_tensors
        (kh, kw), wants_x = w.shape[1:3], ctx.needs_input_grad[0]
        turned = in_pairs(w.flip(1, 2).transpose(3, 4)) if wants_x else w.new_empty(0)
        # Contiguous already here, where the compiler does it in the kernel that makes dp.
        dx, dw, per_image, db = stacked_block_backward(
            dp.contiguous(), wide, turned, gamma, beta, winners, y, moments, kh, kw, ctx.padding, wants_x
        )
        dw = dw.sum(0).reshape(w.shape)[..., : ctx.channels, :].to(w.dtype)
        dgamma, dbeta = per_image.sum(2).to(gamma.dtype).unbind(0)
        return dx[..., : ctx.channels] if wants_x else None, dw, db.sum(0).to(gamma.dtype), dgamma, dbeta, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """A map over clients, each a stack of one."""
        stacked = [
            t.expand(info.batch_size, *t.shape[1:]) if dim is None else t.movedim(dim, 0).squeeze(1)
            for t, dim in zip(args[:5], in_dims[:5], strict=True)
        ]
        return (stack_of_blocks(*stacked, *args[5:])[0][:, None],), (0,)


stack_of_blocks: Any = StackOfBlocks.apply


def in_pairs(w: Tensor) -> Tensor:
    """Weights [C, KH, KW, I, O] for windows of two outputs, in turns: [C, KH·(KW + 1)·I, 2·O].

    Such a window is one pixel wider, and the right-hand output's kernel lies one pixel further to the right.
    """
    both = torch.stack([F.pad(w, (0, 0, 0, 0, place, 1 - place)) for place in range(2)], 5)
    return both.flatten(4).flatten(1, 3)


def moments_of(statistics: Tensor, eps: float) -> Tensor:
    """(μ, 1/σ) [2, C, B] from count, mean and spread Σ (y − mean)² of each tile [C, B, tiles, 3]."""
    count, mean, spread = statistics.unbind(3)
    whole = count.sum(2)
    centre = (count * mean).sum(2) / whole
    variance = (spread + count * (mean - centre[..., None]).square()).sum(2) / whole
    return torch.stack([centre, (variance + eps).rsqrt()])


# --- the operators ----------------------------------------------------------------------------------------------------


@torch.library.custom_op("unfed::stacked_winners", mutates_args=())
def stacked_winners(
    x: Tensor, w: Tensor, bias: Tensor, gamma: Tensor, kh: int, kw: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The winners, y = conv(x, w) + b of padded images, and the statistics of its tiles; w is `in_pairs`."""
    run = kernels.forward if kernels.usable(x) else forward
    return run(x.contiguous(), w.contiguous(), bias, gamma, kh, kw)


@stacked_winners.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor, gamma: Tensor, kh: int, kw: int) -> tuple[Tensor, Tensor, Tensor]:
    clients, images, height, width, _ = x.shape
    oh, ow, leaving = height - kh + 1, width - kw + 1, w.shape[2] // 2
    tiles = kernels.tiles_of_image(x, w, kh, oh * ow) if kernels.usable(x) else 1
    winners = x.new_empty((clients, images, oh // 2, ow // 2, leaving))
    y = x.new_empty((clients, images, oh, ow, leaving))
    return winners, y, x.new_empty((clients, images, tiles, 3), dtype=sums_in(x))


@torch.library.custom_op("unfed::stacked_block_backward", mutates_args=())
def stacked_block_backward(
    dp: Tensor, x: Tensor, turned: Tensor, gamma: Tensor, beta: Tensor, winners: Tensor, y: Tensor, moments: Tensor,
    kh: int, kw: int, padding: int, wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of a stack's block: dx (or nothing), dw, dγ and dβ, db.

    dw comes in partial sums [parts, C, KH·KW·I, O], (dγ, dβ) per image [2, C, B, O], and db in partial sums [parts, C,
    O]; they are added up in the kernels that use them.

    `x` is padded; `turned` is the kernel turned around, `in_pairs` (or nothing); dx leaves the padding out.
    """
    run = kernels.backward if kernels.usable(x) else backward
    return run(dp.contiguous(), x, turned, gamma, beta, winners, y, moments, kh, kw, padding, wants_x)


@stacked_block_backward.register_fake
def _(
    dp: Tensor, x: Tensor, turned: Tensor, gamma: Tensor, beta: Tensor, winners: Tensor, y: Tensor, moments: Tensor,
    kh: int, kw: int, padding: int, wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    clients, images, height, width, entering = x.shape
    oh, ow, leaving = y.shape[2:]
    shape = (clients, images, height - 2 * padding, width - 2 * padding, entering) if wants_x else (0,)
    parts, of_bias = kernels.block_parts(x, leaving, kh, kw, oh, ow, wants_x) if kernels.usable(x) else (1, 1)
    dw = x.new_empty((parts, clients, kh * kw * entering, leaving), dtype=sums_in(x))
    per_image = x.new_empty((2, clients, images, leaving), dtype=sums_in(x))
    return x.new_empty(shape), dw, per_image, x.new_empty((of_bias, clients, leaving), dtype=sums_in(x))


# --- the same, readable -----------------------------------------------------------------------------------------------


def padded(x: Tensor, padding: int, more: int = 0) -> Tensor:
    """[C, B, H, W, I] with `padding` zeros around each image, and some more channels of zeros."""
    return F.pad(x, (0, more, padding, padding, padding, padding))


def forward(x: Tensor, w: Tensor, bias: Tensor, gamma: Tensor, kh: int, kw: int) -> tuple[Tensor, Tensor, Tensor]:
    """The winners, y, and the statistics of each image, as one tile."""
    exact = sums_in(x)
    product = torch.bmm(windows(x, kh, kw + 1, 2).to(exact), w.to(exact))
    sides = (*x.shape[:2], x.shape[2] - kh + 1, (x.shape[3] - kw + 1) // 2)
    pairs = product.view(*sides, w.shape[2] // 2, 2).transpose(4, 5).flatten(3, 4)
    y = (pairs + _channels(bias.to(exact))).to(x.dtype)
    winners = _quarters(y).gather(4, _winner(y, gamma)).squeeze(4)
    flat = y.to(exact).flatten(2)
    mean = flat.mean(2, keepdim=True)
    spread = (flat - mean).square().sum(2, keepdim=True)
    return winners.contiguous(), y, torch.stack([torch.full_like(mean, flat.shape[2]), mean, spread], 3)


def backward(
    dp: Tensor,
    x: Tensor,
    turned: Tensor,
    gamma: Tensor,
    beta: Tensor,
    winners: Tensor,
    y: Tensor,
    moments: Tensor,
    kh: int,
    kw: int,
    padding: int,
    wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients, from top to bottom."""
    exact = sums_in(x)
    scale, shift = (_channels(t.to(exact)) for t in (gamma, beta))
    best = _standard(winners, moments)
    dz = torch.where(best * scale + shift > 0, dp.to(exact), 0.0)
    per_image = torch.stack([(dz * best).sum((2, 3)), dz.sum((2, 3))])  # [2, C, B, O]
    entries = y[0, 0].numel()
    against, level = ((per_image * gamma.to(exact)[:, None]).sum(3) / entries)[..., None, None, None]
    placed = torch.zeros_like(_quarters(y), dtype=exact).scatter(4, _winner(y, gamma), (dz * scale).unsqueeze(4))
    dxhat = placed.view(*placed.shape[:4], 2, 2, -1).permute(0, 1, 2, 4, 3, 5, 6).reshape(y.shape)
    inverse = moments[1][..., None, None, None]
    dy = ((dxhat - level - _standard(y, moments) * against) * inverse).to(x.dtype)
    flat = dy.flatten(1, 3).to(exact)
    dw = torch.bmm(windows(x, kh, kw).to(exact).transpose(1, 2), flat)
    dx = x.new_empty(0)
    if wants_x:
        around = padded(dy, kh - 1 - padding).to(exact)
        shape = (*x.shape[:2], x.shape[2] - 2 * padding, x.shape[3] - 2 * padding, x.shape[4])
        pairs = torch.bmm(windows(around, kh, kw + 1, 2), turned.to(exact)).unflatten(2, (-1, 2)).transpose(2, 3)
        dx = pairs.reshape(shape).to(x.dtype)
    return dx, dw[None], per_image, flat.sum(1)[None]


def _quarters(y: Tensor) -> Tensor:
    """The four pixels of every pooling window: [C, B, H, W, O] to [C, B, H/2, W/2, 4, O].

    They stand in the order in which PyTorch's max-pool looks at them.
    """
    clients, images, height, width, channels = y.shape
    cells = y.view(clients, images, height // 2, 2, width // 2, 2, channels)
    return cells.permute(0, 1, 2, 4, 3, 5, 6).flatten(4, 5)


def _winner(y: Tensor, gamma: Tensor) -> Tensor:
    """Which of the four has the largest z: the largest y if γ > 0, the smallest if γ < 0, else the first."""
    signs = gamma.sign().to(y.dtype)[:, None, None, None, None]
    return (_quarters(y) * signs).argmax(4, keepdim=True)


def _standard(y: Tensor, moments: Tensor) -> Tensor:
    """The normalised values x̂ = (y − μ)/σ."""
    mean, inverse = moments[..., None, None, None].unbind(0)
    return (y.to(moments.dtype) - mean) * inverse


def _channels(t: Tensor) -> Tensor:
    return t[:, None, None, None]
