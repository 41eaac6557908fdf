"""Layers that draw, or that look at the whole batch, as functions of a key and of weights per row.

Two kinds of layer would break "a client alone equals the client in a stack". They are swapped for twins with the same
parameter names that read what they need from non-persistent buffers, which `functional_call` sets for every step
and `vmap` stacks like any tensor:

* dropout, stochastic depth and the dropout inside attention draw their masks from a key: an integer hash of (key,
  layer, position in the batch);
* BatchNorm takes a weight per row, so that padded rows count for nothing:
  μ = Σ w x / Σ w,  σ² = Σ w (x − μ)² / Σ w.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from unfed import rng
from unfed.errors import UnfedError
from unfed.model.networks import StochasticDepth


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of (key, layer, position): equal alone, stacked and compiled."""

    key: Tensor

    def __init__(self, p: float, layer: int, axes: int | None) -> None:
        super().__init__()
        self.p, self.layer, self.axes = p, layer, axes
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return keyed_dropout(x, self.p, rng.fold(self.key, self.layer), self.axes)


def keyed_dropout(x: Tensor, p: float, key: Tensor, axes: int | None = None) -> Tensor:
    """x · keep / (1 − p), where keep is drawn per element, or per index of the first `axes` axes.

    Those axes may be rows, or rows and channels.
    """
    if p == 0.0:
        return x
    shape = x.shape if axes is None else x.shape[:axes] + (1,) * (x.dim() - axes)
    count = 1
    for size in shape:
        count *= size
    keep = ~rng.chance(rng.words(key, torch.arange(count, device=x.device)), p)
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return x * (keep.view(shape).to(x.dtype) * scale)


def keyed_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, key: Tensor, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention whose dropout is keyed, written out, and its weights; a mask is added to the scores."""
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    weights = keyed_dropout((scores if mask is None else scores + mask).softmax(-1), p, key)
    return weights @ v, weights


_FUSED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
"""The arguments of `F.scaled_dot_product_attention`, in their order."""


def keyed_fused(own: Tensor, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
    """`F.scaled_dot_product_attention` with a dropout that is keyed by `own`."""
    mask: Tensor | None = named.get("attn_mask")
    if named.get("enable_gqa"):
        shared = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(shared, -3), value.repeat_interleave(shared, -3)
    if named.get("is_causal"):
        mask = query.new_ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = query.new_zeros(()).masked_fill(~mask, -math.inf)
    return keyed_attention(query, key, value, mask, named.get("dropout_p", 0.0), own, named.get("scale"))[0]


class KeyedAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` in training, its dropout keyed."""

    key: Tensor
    layer: int

    @staticmethod
    def of(like: nn.MultiheadAttention, layer: int) -> KeyedAttention:
        """The same module, which draws by a key from now on."""
        like.__class__ = KeyedAttention
        assert isinstance(like, KeyedAttention)
        like.layer = layer
        like.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)
        return like

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As PyTorch's; `is_causal` only says what the mask, which must come with it, is like."""
        alone, rows = query.dim() == 2, 0 if self.batch_first else 1
        inputs = [t.unsqueeze(rows) if alone else t for t in (query, key, value)]
        inputs = inputs if self.batch_first else [t.transpose(0, 1) for t in inputs]
        q, k, v = (self._split(t, *own) for t, own in zip(inputs, self._projections(), strict=True))
        mask = _added(attn_mask, q)
        if mask is not None and mask.dim() == 3:
            mask = mask.view(q.shape[0], self.num_heads, *mask.shape[1:])
        if (padding := _added(key_padding_mask, q)) is not None:
            padding = padding.view(-1, 1, 1, k.shape[-2])
            mask = padding if mask is None else mask + padding
        out, weights = keyed_attention(q, k, v, mask, float(self.dropout), rng.fold(self.key, self.layer))
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        out = out if self.batch_first else out.transpose(0, 1)
        seen = (weights.mean(1) if more.get("average_attn_weights", True) else weights) if need_weights else None
        return (out.squeeze(rows), None if seen is None else seen.squeeze(0)) if alone else (out, seen)

    def _projections(self) -> list[tuple[Tensor, Tensor | None]]:
        if self.in_proj_weight is None:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        else:
            weights = list(self.in_proj_weight.chunk(3))
        biases = [None] * 3 if self.in_proj_bias is None else list(self.in_proj_bias.chunk(3))
        return list(zip(weights, biases, strict=True))

    def _split(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[rows, positions, width] projected, with the heads on an axis of their own."""
        found: Tensor = F.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return found


def _added(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask of `nn.MultiheadAttention` as what is added: where it is True, nothing is looked at."""
    if mask is None:
        return None
    return like.new_zeros(()).masked_fill(mask, -math.inf) if mask.dtype == torch.bool else mask.to(like.dtype)


class WeightedBatchNorm(_BatchNorm):
    """BatchNorm with one weight per row; without weights it is PyTorch's own."""

    rows: Tensor

    def __init__(self, like: _BatchNorm) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats)
        self.register_buffer("rows", torch.empty(0), persistent=False)
        self.load_state_dict(like.state_dict())

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of trailing axes: the layer this one stands for has checked its own."""

    def forward(self, input: Tensor) -> Tensor:
        per_channel = input.numel() // input.shape[1]
        # PyTorch's own reads its count of batches as a number where momentum is None, which no stack can.
        if not self.training or (self.rows.numel() == 0 and per_channel > 1 and self.momentum is not None):
            return super().forward(input)
        rows = self.rows if self.rows.numel() else input.new_ones(input.shape[0])
        axes = [axis for axis in range(input.dim()) if axis != 1]
        weight = rows.view(-1, *[1] * (input.dim() - 1)).to(input.dtype)
        n = weight.sum() * (per_channel // input.shape[0])
        mean = (input * weight).sum(axes) / n
        centred = input - _per_channel(mean, input)
        variance = (centred.square() * weight).sum(axes) / n
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            self._remember(mean.detach(), (variance * n / (n - 1).clamp(min=1)).detach())
        out = centred * _per_channel((variance + self.eps).rsqrt(), input)
        if self.affine:
            out = out * _per_channel(self.weight, input) + _per_channel(self.bias, input)
        return out

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        # momentum=None means the average over all batches so far; as a tensor it also works under vmap.
        share = 1.0 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        self.running_mean.copy_(self.running_mean * (1 - share) + mean * share)
        self.running_var.copy_(self.running_var * (1 - share) + variance * share)


def _per_channel(value: Tensor, like: Tensor) -> Tensor:
    return value.view(1, -1, *[1] * (like.dim() - 2))


FUNCTIONAL_KEY = "functional dropout.key"


class FunctionalDropout(TorchFunctionMode):
    """Catches `F.dropout` inside a user's forward and draws its mask from the key; counts the calls."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key, self.calls = key, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is F.scaled_dot_product_attention and float(_argument(args, options, 4, "dropout_p", 0.0)) > 0:
            self.calls += 1
            named = dict(zip(_FUSED, args, strict=False)) | options
            return keyed_fused(rng.fold(self.key, 1_000_000 + self.calls), **named)
        if func in (F.dropout, F.dropout2d) and _argument(args, options, 2, "training", True):
            p = float(_argument(args, options, 1, "p", 0.5))
            if p > 0.0:
                self.calls += 1
                # Layers of their own are numbered from 0; calls by hand come far behind them.
                axes = 2 if func is F.dropout2d else None
                return keyed_dropout(args[0], p, rng.fold(self.key, 1_000_000 + self.calls), axes)
        return func(*args, **options)


def _argument(args: tuple[Any, ...], options: Mapping[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else options.get(name, default)


_CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def swap(module: nn.Module) -> nn.Module:
    """Replace the layers that draw, and BatchNorm, by their keyed and weighted twins.

    They are replaced in place, wherever they sit.
    """
    twins: dict[int, nn.Module] = {}
    layer = 0
    for name, child in list(module.named_modules()):
        _refuse_unkeyable(name, child)
        if isinstance(child, (nn.Dropout, *_CHANNEL_DROPOUT)):
            twins[id(child)] = KeyedDropout(child.p, layer, 2 if isinstance(child, _CHANNEL_DROPOUT) else None)
            layer += 1
        elif (p := _drops_rows(child)) is not None:
            twins[id(child)] = KeyedDropout(p, layer, 1)
            layer += 1
        elif isinstance(child, nn.MultiheadAttention) and float(child.dropout) > 0:
            KeyedAttention.of(child, layer)
            layer += 1
        elif type(child) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            assert isinstance(child, _BatchNorm)
            twin = WeightedBatchNorm(child)
            weight = next(child.parameters(), child.running_mean)
            twins[id(child)] = twin if weight is None else twin.to(weight.device, weight.dtype)
    if id(module) in twins:
        return twins[id(module)]
    for parent in list(module.modules()):
        for key, child in list(parent.named_children()):
            if id(child) in twins:
                setattr(parent, key, twins[id(child)])
    return module


def _drops_rows(module: nn.Module) -> float | None:
    """With which probability a layer drops whole rows, if that is what it does.

    timm, transformers and torchvision each have a class for it, known here by its name.
    """
    if isinstance(module, StochasticDepth):
        return module.p
    name, p = type(module).__name__, getattr(module, "drop_prob", getattr(module, "p", None))
    if name.endswith("DropPath") and getattr(module, "scale_by_keep", True):
        return float(p or 0.0)
    return float(p or 0.0) if name == "StochasticDepth" and getattr(module, "mode", "") == "row" else None


def _refuse_unkeyable(name: str, module: nn.Module) -> None:
    inside = isinstance(module, nn.RNNBase) and float(module.dropout) > 0
    inside |= isinstance(module, nn.MultiheadAttention) and float(module.dropout) > 0 and _widened(module)
    alpha = isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout) and module.p > 0
    if inside or alpha:
        raise UnfedError(
            f"The dropout inside {name or type(module).__name__!r} ({type(module).__name__}) cannot be keyed;"
            " set it to 0, or use nn.Dropout beside it."
        )


def _widened(module: nn.MultiheadAttention) -> bool:
    """Whether keys and values are added to those that come in."""
    return module.bias_k is not None or bool(module.add_zero_attn)
