"""Pairs of tensors that turn each other back: where both are negated, the function is as it was.

    γ · norm(C(x))          (−γ) · norm(−C(x))        a layer, and the scale of the normalisation right after it
    N(tanh(C(x)))           (−N)(tanh(−C(x)))         two layers with an odd activation between them
    B · A · x               (−B) · (−A) · x           the two halves of a low-rank adapter
    softmax(Q · Kᵀ) · V     (−Q) · (−K)ᵀ              queries and keys, values and what follows them

Biases that are not negated with them make this nearly so instead of exactly. "After" and "between" are judged by the
order of definition; attention is PyTorch's own (`nn.MultiheadAttention`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from unfed.model.params import Params
from unfed.model.tensor_table import adapter_of, table_of


@dataclass(frozen=True)
class PartnerPart:
    """One tensor, or rows [a, b) of one tensor."""

    name: str
    rows: tuple[int, int] | None = None


def partners(module: nn.Module) -> Iterator[tuple[PartnerPart, PartnerPart]]:
    """Every such pair of a module."""
    known = table_of(module).aliases

    def part(layer: str, leaf: str, rows: tuple[int, int] | None = None) -> PartnerPart:
        return PartnerPart(known[f"{layer}.{leaf}".lstrip(".")], rows)

    for layer, _, norm, _ in normalised(module):
        yield part(layer, "weight"), part(norm, "weight")
    yield from ((part(one, "weight"), part(other, "weight")) for one, other in _with_odd_between(module))
    halves: dict[str, dict[str, str]] = {}
    for name in known.values():
        if (found := adapter_of(name)) is not None:
            halves.setdefault(found[0], {})[found[1]] = name
    yield from ((PartnerPart(both["A"]), PartnerPart(both["B"])) for both in halves.values() if len(both) == 2)
    for name, layer in module.named_modules():
        if isinstance(layer, nn.MultiheadAttention):
            width = layer.embed_dim
            if layer.in_proj_weight is not None:
                query, key, value = (part(name, "in_proj_weight", (i * width, (i + 1) * width)) for i in range(3))
            else:
                query, key, value = (part(name, f"{which}_proj_weight") for which in "qkv")
            yield query, key
            yield value, part(name, "out_proj.weight")


def comes_back(was: Tensor, first: Tensor, before: Tensor, after: Tensor) -> bool:
    """Whether some rows that the first request moved are what they were, by what was done last."""
    was, first, before, after = (t.reshape(t.shape[0] if t.dim() else 1, -1) for t in (was, first, before, after))
    back = (first != was).any(1) & (before != after).any(1) & (after == was).all(1)
    return bool(back.any())


def turned_by_partners(module: nn.Module, was: Params, before: Params, after: Params) -> set[str]:
    """The negated tensors whose partners were negated last."""

    def negated(params: Params, part: PartnerPart) -> bool:
        old, new = (t[part.name][slice(*part.rows or (None,))] for t in (was, params))
        return bool((new == -old).reshape(old.shape[0], -1).all(1).any())

    found = set[str]()
    for one, other in partners(module):
        for ours, theirs in ((one, other), (other, one)):
            stays = negated(before, ours) and negated(after, ours)
            if stays and negated(after, theirs) and not negated(before, theirs):
                found.add(ours.name)
    return found


def normalised(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Module]]:
    """Every layer that is followed by a normalisation with a scale: name and module of both."""
    leaves = [(name, part) for name, part in module.named_modules() if next(part.children(), None) is None]
    for (layer, affine), (norm, scale) in pairwise(leaves):
        if _normalises(scale, affine):
            yield layer, affine, norm, scale


def _with_odd_between(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Every two layers with an odd activation between them, and nothing that is not odd.

    An activation that only `forward` calls is not seen, so one must be there: else a ReLU may be where nothing is.
    """
    before, odd = "", False
    for name, part in module.named_modules():
        if isinstance(part, _ConvNd | nn.Linear):
            if before and odd:
                yield before, name
            before, odd = name, False
        elif isinstance(part, _ODD):
            odd = True
        elif next(part.children(), None) is None and not isinstance(part, _PASSING):
            before, odd = "", False


_ODD = (nn.Tanh, nn.Hardtanh, nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink)
# What hands a sign on: nothing, linear maps, and normalisations up to their bias.
_LINEAR = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_PASSING = (*_LINEAR, _NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def _normalises(norm: nn.Module, layer: nn.Module) -> bool:
    """Whether `norm` has a scale and as many channels as `layer` puts out."""
    if getattr(norm, "weight", None) is None:
        return False
    if isinstance(layer, _ConvNd):
        width, axis = layer.out_channels, 0
    elif isinstance(layer, nn.Linear):
        width, axis = layer.out_features, -1
    else:
        return False
    if isinstance(norm, _NormBase):
        return norm.num_features == width
    if isinstance(norm, nn.GroupNorm):
        return norm.num_channels == width
    return isinstance(norm, nn.LayerNorm | nn.RMSNorm) and norm.normalized_shape[axis] == width
