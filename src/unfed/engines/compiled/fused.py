"""A whole block of a stack of clients, forward and backward.

A block is convolution, group norm, ReLU and 2×2 max-pool.

    y = conv(x, w) + b        μ, σ over one image        x̂ = (y − μ)/σ        z = γ x̂ + β        p = max(0, max₂ₓ₂ z)

    dz = dp at the winner of its window where z > 0, else 0                      dγ = Σ dz x̂,  dβ = Σ dz
    dy = (γ dz − mean(γ dz) − x̂ mean(γ dz x̂)) / σ                               db = Σ dy,    dw = Σ windows(x) ⊗ dy

Layer by layer, a step moves the largest activation through memory some twenty times. Computed together, the block keeps
y and the winners only: statistics come out of the convolution, z and the winners are recomputed where they are needed,
and in a first layer (no gradient for x) dy exists only inside the kernel that sums it up.

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

    Images have even sides.
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
    even = all(side > 0 and side % 2 == 0 for side in sides)
    return plain and square and whole and halves and even and not pool.ceil_mode and not pool.return_indices


def fused_block(x: Tensor, conv: nn.Module, norm: nn.Module, relu: nn.Module, pool: nn.Module) -> Tensor | None:
    """`pool(relu(norm(conv(x))))` of one client [B, I, H, W], mapped over clients or alone.

    It gives None if the block does not fit.
    """
    if not handwritten.chosen.blocks or not fits(x, conv, norm, relu, pool):
        return None
    assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.GroupNorm) and conv.bias is not None
    w, padding = conv.weight, int(conv.padding[0])
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, w = x.to(dtype), w.to(dtype)
    # Contiguous already here, where the compiler does it in the kernel that makes the images.
    images, weights, (kh, kw) = x.permute(0, 2, 3, 1).contiguous(), w.permute(2, 3, 1, 0), conv.kernel_size
    columns = kw if kw * x.shape[1] <= 32 and not _wants_gradient(x) else 1
    if columns > 1:
        weights, kw = weights.flatten(1, 2)[:, None], 1
    weights = F.pad(weights, (0, 0, 0, -weights.shape[2] % 8)).flatten(0, 2)
    arguments = (conv.bias, norm.weight, norm.bias, kh, kw, columns, padding, norm.eps)
    if torch._C._functorch.is_batchedtensor(images) or torch._C._functorch.is_batchedtensor(weights):
        out: Tensor = one_block(images, weights, *arguments)
    else:
        alone = (t[None] if isinstance(t, Tensor) else t for t in arguments)
        out = stacked_block(images[None], weights[None], *alone)[0][0]
    return out.permute(0, 3, 1, 2)


def _wants_gradient(x: Tensor) -> bool:
    """Whether the tensor, or the one under a map, asks for a gradient."""
    while torch._C._functorch.is_batchedtensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x.requires_grad


# --- the operators ----------------------------------------------------------------------------------------------------


@torch.library.custom_op("unfed::block", mutates_args=())
def one_block(
    x: Tensor, w: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, kh: int, kw: int, columns: int, padding: int,
    eps: float,
) -> Tensor:  # fmt: skip
    """The block of one client: x [B, H, W, I], w [KH·KW·I, O]. It is there to be mapped."""
    each = (t[None] for t in (x, w, bias, gamma, beta))
    out: Tensor = stacked_block(*each, kh, kw, columns, padding, eps)[0][0].clone()
    return out


@one_block.register_fake
def _(
    x: Tensor, w: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, kh: int, kw: int, columns: int, padding: int,
    eps: float,
) -> Tensor:  # fmt: skip
    height, width = x.shape[1] + 2 * padding - kh + 1, x.shape[2] + 2 * padding - kw - columns + 2
    return x.new_empty((x.shape[0], height // 2, width // 2, w.shape[1]))


@one_block.register_vmap
def _(info: Any, in_dims: Any, *args: Any) -> tuple[Tensor, int]:
    stacked = [
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(args[:5], in_dims[:5], strict=True)
    ]
    return stacked_block(*stacked, *args[5:])[0], 0


@torch.library.custom_op("unfed::stacked_block", mutates_args=())
def stacked_block(
    x: Tensor, w: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, kh: int, kw: int, columns: int, padding: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The block of a stack: x [C, B, H, W, I], w [C, KH·KW·J, O].

    Gives p, winners, y, (μ, 1/σ) [2, C, B], and x as `laid_out` for w.
    """
    x, w = x.contiguous(), w.contiguous()
    fast = kernels.usable(x)
    wide = (kernels.laid_out if fast else laid_out)(x, columns, padding, w.shape[1] // (kh * kw))
    return *(kernels.forward if fast else forward)(wide, w, bias, gamma, beta, kh, kw, eps), wide


@stacked_block.register_fake
def _(
    x: Tensor, w: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, kh: int, kw: int, columns: int, padding: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    clients, images, height, width, _ = x.shape
    height, width = height + 2 * padding, width + 2 * padding - columns + 1
    oh, ow, leaving = height - kh + 1, width - kw + 1, w.shape[2]
    p = x.new_empty((clients, images, oh // 2, ow // 2, leaving))
    y = x.new_empty((clients, images, oh, ow, leaving))
    moments = x.new_empty((2, clients, images), dtype=sums_in(x))
    return p, torch.empty_like(p), y, moments, x.new_empty((clients, images, height, width, w.shape[1] // (kh * kw)))


@torch.library.custom_op("unfed::stacked_block_backward", mutates_args=())
def stacked_block_backward(
    dp: Tensor, x: Tensor, turned: Tensor, gamma: Tensor, beta: Tensor, winners: Tensor, y: Tensor, moments: Tensor,
    kh: int, kw: int, padding: int, wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of a stack's block: dx (or nothing), dw, dγ and dβ.

    dw has db as its last row, in partial sums [parts, C, KH·KW·J + 1, O]; (dγ, dβ) come per image [2, C, B, O] and are
    added up in the kernel that uses them.

    `x` is the input as it was laid out, `turned` [C, KH·KW·O, J] the kernel turned around (square, where dx is wanted),
    `padding` what dx leaves out.
    """
    run = kernels.backward if kernels.usable(x) else backward
    return run(dp.contiguous(), x, turned, gamma, beta, winners, y, moments, kh, kw, padding, wants_x)


@stacked_block_backward.register_fake
def _(
    dp: Tensor, x: Tensor, turned: Tensor, gamma: Tensor, beta: Tensor, winners: Tensor, y: Tensor, moments: Tensor,
    kh: int, kw: int, padding: int, wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    clients, images, height, width, entering = x.shape
    shape = (clients, images, height - 2 * padding, width - 2 * padding, entering) if wants_x else (0,)
    parts = 1
    if kernels.usable(x):
        parts = kernels.parts(x, y.shape[4], kh * kw, y.shape[2] * y.shape[3], wants_x)
    dw = x.new_empty((parts, clients, kh * kw * entering + 1, y.shape[4]), dtype=sums_in(x))
    return x.new_empty(shape), dw, x.new_empty((2, clients, images, y.shape[4]), dtype=sums_in(x))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, w, _, gamma, beta, ctx.kh, ctx.kw, _, ctx.padding, _ = inputs
    _, winners, y, moments, wide = output
    ctx.save_for_backward(wide, w, gamma, beta, winners, y, moments)
    ctx.channels = x.shape[4]


def _differentiate(ctx: Any, dp: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    wide, w, gamma, beta, winners, y, moments = ctx.saved_tensors
    turned = w.unflatten(1, (ctx.kh, ctx.kw, -1)).flip(1, 2).permute(0, 1, 2, 4, 3).flatten(1, 3)
    wants_x = ctx.needs_input_grad[0]
    # Contiguous already here, where the compiler does it in the kernel that makes dp.
    dx, parts, per_image = stacked_block_backward(
        dp.contiguous(), wide, turned, gamma, beta, winners, y, moments, ctx.kh, ctx.kw, ctx.padding, wants_x
    )
    sums = parts.sum(0)
    dw, db = sums[:, :-1].to(w.dtype), sums[:, -1].to(gamma.dtype)
    dgamma, dbeta = per_image.sum(2).to(gamma.dtype).unbind(0)
    return dx[..., : ctx.channels] if wants_x else None, dw, db, dgamma, dbeta, *[None] * 5


stacked_block.register_autograd(_differentiate, setup_context=_keep)


# --- the same, readable -----------------------------------------------------------------------------------------------


def laid_out(x: Tensor, columns: int, padding: int, channels: int) -> Tensor:
    """[C, B, H, W, I] with zeros around each image, and zeros behind each pixel up to `channels`.

    An input with few channels comes with `columns` neighbouring pixels side by side in each: windows are then read in
    long pieces. (Such an input gets no gradient; with one column it may.)"""
    wide = padded(x, padding)
    if columns > 1:
        wide = wide.unfold(3, columns, 1).transpose(4, 5).flatten(4)
    return F.pad(wide, (0, channels - wide.shape[4])).contiguous()


def padded(x: Tensor, padding: int) -> Tensor:
    """[C, B, H, W, I] with `padding` zeros around each image."""
    return F.pad(x, (0, 0, padding, padding, padding, padding))


def forward(
    x: Tensor, w: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, kh: int, kw: int, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The pooled output, the winners' y, y, and (μ, 1/σ) of every image; `x` is padded already."""
    clients, images, height, width, _ = x.shape
    exact = sums_in(x)
    product = torch.bmm(windows(x, kh, kw).to(exact), w.to(exact)) + bias.to(exact)[:, None]
    y = product.view(clients, images, height - kh + 1, width - kw + 1, w.shape[2]).to(x.dtype)
    flat = y.to(exact).flatten(2)
    mean, inverse = flat.mean(2), (flat.var(2, correction=0) + eps).rsqrt()
    moments = torch.stack([mean, inverse])
    winners = _quarters(y).gather(4, _winner(y, gamma)).squeeze(4)
    z = _standard(winners, moments) * _channels(gamma.to(exact)) + _channels(beta.to(exact))
    return z.clamp(min=0).to(x.dtype), winners.contiguous(), y, moments


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
) -> tuple[Tensor, Tensor, Tensor]:
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
    sums = torch.cat([dw, flat.sum(1, keepdim=True)], dim=1)
    dx = x.new_empty(0)
    if wants_x:
        around = padded(dy, kh - 1 - padding).to(exact)
        shape = (*x.shape[:2], x.shape[2] - 2 * padding, x.shape[3] - 2 * padding, x.shape[4])
        dx = torch.bmm(windows(around, kh, kw), turned.to(exact)).view(shape).to(x.dtype)
    return dx, sums[None], per_image


def _quarters(y: Tensor) -> Tensor:
    """The four pixels of every pooling window: [C, B, H, W, O] to [C, B, H/2, W/2, 4, O].

    They stand in the order in which PyTorch's max-pool looks at them.
    """
    clients, images, height, width, channels = y.shape
    cells = y.view(clients, images, height // 2, 2, width // 2, 2, channels)
    return cells.permute(0, 1, 2, 4, 3, 5, 6).flatten(4, 5)


def _winner(y: Tensor, gamma: Tensor) -> Tensor:
    """Which of the four has the largest z.

    That is the largest y where γ > 0, the smallest where γ < 0, and else the first.
    """
    signs = gamma.sign().to(y.dtype)[:, None, None, None, None]
    return (_quarters(y) * signs).argmax(4, keepdim=True)


def _standard(y: Tensor, moments: Tensor) -> Tensor:
    """The normalised values x̂ = (y − μ)/σ."""
    mean, inverse = moments[..., None, None, None].unbind(0)
    return (y.to(moments.dtype) - mean) * inverse


def _channels(t: Tensor) -> Tensor:
    return t[:, None, None, None]
