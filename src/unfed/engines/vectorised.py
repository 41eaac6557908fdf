"""The one step, mapped over a stack.

Both halves of `client.step` are here, for clients whose tensors lie stacked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from unfed.client.batch import Batch, Models
from unfed.client.plan import Phase
from unfed.client.step import Carry, Slope, advance, gradients, loss_of, step
from unfed.model.functional import Template
from unfed.model.params import Params

Step = Callable[[Carry, Mapping[str, Tensor], Mapping[str, Params], int], Carry]


def stacked_step(template: Template, phase: Phase, shared: Mapping[str, Params], lr: Tensor | None = None) -> Step:
    """`client.step` for a stack: (carry, batch, per-client context, number) -> carry."""

    def loss(weights: Params, state: Params, batch: dict[str, Tensor], own: dict[str, Params]) -> tuple[Tensor, Params]:
        models = Models(template, {**shared, **own})
        value, (after, _) = loss_of(phase, state, _rows(batch), batch["key"], models)(weights)
        return value, after

    plain = elementwise(phase)

    def after(carry: Carry, grads: Params, state: Params, value: Tensor, own: dict[str, Params], number: int) -> Carry:
        models = Models(template, {**shared, **own})
        return advance(phase, carry, Slope(grads, state, value), models, number, lr, mapped=not plain)

    def alone(carry: Carry, batch: dict[str, Tensor], own: Mapping[str, Params], number: int) -> Carry:
        """A stack of one without a map: matrix products, attention and norms stay the kernels they are."""
        with torch.enable_grad():
            return step(phase, carry, _rows(batch), batch["key"], Models(template, {**shared, **own}), number, lr)

    def stacked(carry: Carry, batch: Mapping[str, Tensor], own: Mapping[str, Params], number: int) -> Carry:
        if len(batch["y"]) == 1:
            one: Carry = expand(alone(_first(carry), _first(dict(batch)), _first(dict(own)), number), 1)
            return one
        leaves = {name: t.detach().requires_grad_() for name, t in carry["params"].items()}
        with torch.enable_grad(), mappable_attention(batch["y"]):
            values, state = vmap(loss)(leaves, carry["state"], dict(batch), dict(own))
            grads = gradients(values.sum(), leaves)
        values = values.detach()
        if plain:
            return after(carry, grads, state, values, dict(own), number)
        return _mapped(after, number)(carry, grads, state, values, dict(own))

    return stacked


def _rows(batch: Mapping[str, Tensor]) -> Batch:
    return Batch(batch["x"], batch["y"], batch["forget"], batch["draws"], batch.get("weight"))


@contextmanager
def mappable_attention(some: Tensor) -> Iterator[None]:
    """Attention that a map over clients can go around: on CUDA, products and a softmax, written out.

    PyTorch's fused kernels refuse their own sums when they are mapped ("LSE is not correctly aligned"), and its plain
    form the types of a gradient under autocast. The CPU's kernels can be mapped.
    """
    if not some.is_cuda:
        yield
        return
    with sdpa_kernel(SDPBackend.MATH), _WrittenOut():  # the first for calls that hide inside another function
        yield


class _WrittenOut(TorchFunctionMode):
    """Plain attention as softmax(q kᵀ / √d) v.

    A call with a mask, dropout or anything else is left as it is.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention and len(args) == 3 and not kwargs:
            query, key, value = args
            weights = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(-1)
            return weights.to(value.dtype) @ value
        return func(*args, **(kwargs or {}))


def _mapped(after: Callable[..., Carry], number: int) -> Callable[..., Carry]:
    def one(carry: Carry, grads: Params, state: Params, value: Tensor, own: dict[str, Params]) -> Carry:
        return after(carry, grads, state, value, own, number)

    mapped: Callable[..., Carry] = vmap(one)
    return mapped


def elementwise(phase: Phase) -> bool:
    """Whether the second half of the step treats every entry alike, so that a stack needs no map."""
    plain = phase.optimiser.rule == "sgd" and phase.optimiser.clip is None and phase.optimiser.plateau is None
    return plain and not phase.after and phase.stop is None


# --- nested dictionaries of stacked tensors ---------------------------------------------------------------------------


def expand(tree: Any, count: int) -> Any:
    return pytree.tree_map(lambda t: t.expand(count, *t.shape), tree)


def _first(tree: Any) -> Any:
    return pytree.tree_map(lambda t: t[0], tree)


def stack(trees: Sequence[Any]) -> Any:
    return pytree.tree_map(lambda *ts: torch.stack(ts), *trees)


def at(tree: Any, places: Tensor) -> Any:
    return pytree.tree_map(lambda t: t[places], tree)


def copied(tree: Any) -> Any:
    """The same tensors elsewhere; a launch for each type of number, not for each tensor of a large model."""
    leaves, spec = pytree.tree_flatten(tree)
    found = [torch.empty_like(t) for t in leaves]
    for dtype in {t.dtype for t in leaves}:
        places = [i for i, t in enumerate(leaves) if t.dtype == dtype]
        torch._foreach_copy_([found[i] for i in places], [leaves[i] for i in places])
    return pytree.tree_unflatten(found, spec)


def cut(tree: Any, begin: int, end: int) -> Any:
    return pytree.tree_map(lambda t: t[begin:end], tree)


def join(trees: Sequence[Any]) -> Any:
    return trees[0] if len(trees) == 1 else pytree.tree_map(lambda *ts: torch.cat(ts), *trees)
