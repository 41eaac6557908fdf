"""What a model's tensors are: their kinds, their order, and the names they answer to.

`table_of` asks a module. `table_from` has only names and shapes (a model file), and judges the kinds by them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import ParametrizationList

from unfed.errors import UnfedError
from unfed.model.networks import head_of

CONV, DENSE, EMBEDDING, NORM, BIAS, OTHER, REPARAMETRISED = (
    "convolution", "dense", "embedding", "normalisation", "bias", "other", "re-parametrised",
)  # fmt: skip
WEIGHTS = (CONV, DENSE, EMBEDDING)
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_TOKENS = re.compile(r"(^|[._])(pos(ition(al)?)?[._](emb|enc)|wpe\b|(cls|class|dist|mask|register)_(token|embedding))")
_ADAPTER = re.compile(r"(^|\.)lora_(?:embedding_)?(?P<half>[AB])(?=\.|$)")
_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class ListedTensor:
    """A tensor as it stands in the table."""

    name: str
    shape: tuple[int, ...]
    kind: str
    index: int | None
    transposed: bool = False
    frozen: bool = False


@dataclass(frozen=True)
class TensorTable:
    """What an address is looked up in.

    It has the tensors in parameter order, other names for them, and what is no parameter.
    """

    tensors: dict[str, ListedTensor]
    aliases: dict[str, str] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    judged: bool = False
    ordered: bool = True
    network: str | None = None
    """The module's class; unknown where there are only names."""
    head: frozenset[str] | None = None
    """What belongs to the head and to nothing else; unknown where there are only names, or no head."""


def table_of(module: nn.Module) -> TensorTable:
    """Parameters in the paper's order; a tied weight counts once and answers to all its names."""
    modules = dict(module.named_modules())
    training = any(p.requires_grad for p in module.parameters())
    tensors: dict[str, ListedTensor] = {}
    first_name: dict[int, str] = {}
    for index, (name, parameter) in enumerate(module.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        kind = _kind(modules[owner], leaf, parameter.ndim)
        transposed = isinstance(modules[owner], _ConvTransposeNd)
        still = training and not parameter.requires_grad
        tensors[name] = ListedTensor(name, tuple(parameter.shape), kind, index, transposed, still)
        first_name[id(parameter)] = name
    aliases = {name: first_name[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}
    buffers = frozenset(name for name, _ in module.named_buffers(remove_duplicate=False))
    head = _head_alone(module, aliases)
    return TensorTable(tensors, aliases, frozenset(modules) - {""}, buffers, network=type(module).__name__, head=head)


def _head_alone(module: nn.Module, aliases: Mapping[str, str]) -> frozenset[str] | None:
    """The tensors that only the head has.

    A weight that it shares with a layer before it is that layer's too.
    """
    try:
        inside = head_of(module) + "."
    except UnfedError:
        return None
    elsewhere = {first for name, first in aliases.items() if not name.startswith(inside)}
    return frozenset(aliases.values()) - elsewhere


def _kind(owner: nn.Module, leaf: str, ndim: int) -> str:
    """What a parameter is to its module; a layer of an unknown class is judged by its `weight`'s axes."""
    if isinstance(owner, ParametrizationList):
        return REPARAMETRISED
    if "bias" in leaf:
        return BIAS
    if ndim == 2 and _ADAPTER.search(leaf):
        return DENSE
    if isinstance(owner, _NORMS):
        return NORM
    if isinstance(owner, nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention):
        return DENSE if "weight" in leaf else OTHER
    if isinstance(owner, _ConvNd | nn.Linear | nn.Bilinear | nn.Embedding | nn.EmbeddingBag):
        if leaf != "weight":
            return REPARAMETRISED if leaf.startswith("weight_") else OTHER
        dense_or = EMBEDDING if isinstance(owner, nn.Embedding | nn.EmbeddingBag) else DENSE
        return CONV if isinstance(owner, _ConvNd) else dense_or
    if leaf == "weight" and ndim >= 2 and "norm" not in type(owner).__name__.lower():
        return DENSE if ndim == 2 else CONV
    return OTHER


def table_from(
    shapes: Mapping[str, tuple[int, ...]], order: Sequence[str] | None, tied: Mapping[str, str]
) -> TensorTable:
    """The same from names and shapes; without an order, no tensor has an index."""
    if order is not None and sorted(order) != sorted(shapes):
        raise UnfedError(
            "The file's `order` metadata does not list the tensors it holds, so it was changed after it was written;"
            " write the file again."
        )
    names = list(shapes if order is None else order)
    buffers = frozenset(name for name in names if name.rpartition(".")[2] in _BUFFERS)
    counted = [name for name in names if name not in buffers and name not in tied]
    tensors = {
        name: ListedTensor(
            name, tuple(shapes[name]), _judged_kind(name, len(shapes[name])), None if order is None else i
        )
        for i, name in enumerate(counted)
    }
    aliases = {name: name for name in counted} | dict(tied)
    parents = frozenset(".".join(parts[:i]) for parts in (n.split(".") for n in names) for i in range(1, len(parts)))
    return TensorTable(tensors, aliases, parents, buffers, judged=True, ordered=order is not None)


def adapter_of(name: str) -> tuple[str, str] | None:
    """Which low-rank adapter ΔW = B·A a tensor belongs to, and which half of it ("A", "B") it is."""
    match = _ADAPTER.search(name)
    return None if match is None else (name[: match.start()] + name[match.end() :], match["half"])


def _judged_kind(name: str, ndim: int) -> str:
    """The kind of a tensor by its name and shape, when there is no module to ask."""
    lower = name.lower()
    if "bias" in lower.rpartition(".")[2]:
        return BIAS
    if not lower.endswith("weight") or ndim < 2 or _TOKENS.search(lower):
        return NORM if lower.endswith("weight") and ndim == 1 else OTHER
    if ndim > 2:
        return CONV
    return EMBEDDING if re.search(r"embed|wte|\bemb\b", lower) else DENSE
