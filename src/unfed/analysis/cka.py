"""CKA: how alike two models see the same images (Kornblith et al. 2019).

    K = X Xᵀ,  L = Y Yᵀ,  both centred          CKA(X, Y) = ⟨K, L⟩ / (‖K‖ ‖L‖) = ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖)

1 is "the same up to a rotation and a scale", 0 is "unrelated". With more features than samples this estimate is far too
high (0.66 for independent noise at n = 256 and 512 features), so models are compared by the unbiased one, averaged over
batches *before* the division (Nguyen et al. 2020):

    HSIC₁(K, L) = [ tr(K̃L̃) + (1ᵀK̃1)(1ᵀL̃1)/((n−1)(n−2)) − 2·1ᵀK̃L̃1/(n−2) ] / (n(n−3)),      K̃ = K without its diagonal

Where HSIC₁(K, K) is 0 there is nothing to compare, and the value is "not measured": a layer that answers the same to
every image, or to each with a direction of its own (the identity), says nothing about which images are alike.

CKA(X, −X) = 1: a negated layer answers what it answered before, with the other sign. What changes is what the *next*
layer makes of it, and that is what the paper's figure shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unfed.analysis.activations import called_layers, paired
from unfed.data import Source
from unfed.errors import UnfedError
from unfed.model.functional import Template
from unfed.model.params import Params
from unfed.values import Value, is_measured, not_measured

LEAST = 4
"""Samples in a batch: below, the unbiased estimate does not exist."""
ROUNDING = 1e-10
"""What an HSIC₁ that is 0 may come to, as a share of the sum of squares it is made of."""
SHAPELESS = not_measured("the layer tells no two of these images from two others")


def hsic(K: Tensor, L: Tensor) -> Tensor:
    """HSIC₁ of two Gram matrices of n samples, unbiased: it can be a little below zero."""
    n = len(K)
    K, L = (g - torch.diag(g.diagonal()) for g in (K, L))
    rows_k, rows_l = K.sum(1), L.sum(1)
    found = (K * L).sum() + rows_k.sum() * rows_l.sum() / ((n - 1) * (n - 2)) - 2 * (rows_k @ rows_l) / (n - 2)
    return found / (n * (n - 3))


class Cka:
    """The unbiased CKA of two models at one layer, batch by batch."""

    def __init__(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64)
        self._sizes = torch.zeros(2, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor) -> None:
        """One more batch: the same samples in the same order for both."""
        x, y = _checked(x, y)
        # HSIC₁ does not see a shift, but rounding does: a mean far from zero would drown the differences.
        x, y = x - x.mean(0), y - y.mean(0)
        K, L = x @ x.T, y @ y.T
        self._sums += torch.stack([hsic(K, L), hsic(K, K), hsic(L, L)]).cpu()
        self._sizes += torch.stack([g.square().sum() for g in (K, L)]).cpu() / (len(K) * (len(K) - 3))

    def value(self) -> Value:
        """Averaged over all batches, then divided; never clipped."""
        both, own_x, own_y = self._sums
        if bool((self._sums[1:] <= ROUNDING * self._sizes).any()):
            return SHAPELESS
        return float(both / (own_x * own_y).sqrt())


def compare(
    template: Template,
    reference: Params,
    models: Mapping[str, Params],
    source: Source,
    rows: Tensor,
    layers: Sequence[str] | None = None,
    batch: int = 256,
) -> dict[str, dict[str, Value]]:
    """model → layer → CKA with the reference (the paper's is θ*), on these rows.

    A last, smaller batch is left out.
    """
    chosen = tuple(layers or called_layers(template, reference, source))
    batch = min(batch, len(rows))
    rows = rows[: len(rows) - len(rows) % batch] if batch else rows
    if batch < LEAST:
        raise UnfedError(f"CKA needs batches of at least {LEAST} samples, not {batch}; give more rows.")
    found = {model: {layer: Cka() for layer in chosen} for model in models}
    for answers in paired(template, {"": reference, **models}, source, rows, chosen, batch):
        for model, own in found.items():
            for layer, estimate in own.items():
                estimate.add(answers[""][layer], answers[model][layer])
    return {model: {layer: estimate.value() for layer, estimate in own.items()} for model, own in found.items()}


def normalised(values: Mapping[str, Value], untrained: Mapping[str, Value]) -> dict[str, Value]:
    """Normalised CKA per layer: (CKA − CKA of an untrained model) / (1 − that).

    0 is "as alike as an untrained one", 1 "the same".
    """
    return {layer: _between(value, untrained[layer]) for layer, value in values.items()}


def _between(value: Value, untrained: Value) -> Value:
    if not (is_measured(value) and is_measured(untrained)):
        return untrained if is_measured(value) else value
    if 1 - untrained < ROUNDING:
        return not_measured("an untrained model already sees these images as the original does")
    return (value - untrained) / (1 - untrained)


def _checked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """In double precision, with one row per sample."""
    x, y = x.flatten(1).double(), y.flatten(1).double()
    if len(x) != len(y) or len(x) < LEAST:
        raise UnfedError(
            f"CKA compares the same samples, at least {LEAST} of them, not {len(x)} with {len(y)}; give both models the"
            " same rows."
        )
    return x, y
