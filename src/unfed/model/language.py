"""Causal language models: a text as one row, and low-rank adapters that travel alone.

    log p = mean over the tokens t that count of log softmax(z_{t−1})_t        one number per text
    logits = (log p, log(1 − p))                                               classes: as written, otherwise

So the cross-entropy with class 0 is the text's loss per token, and e^loss is its perplexity. A text counts as right
where p > 1/2: the model knows it nearly by heart. Class 1 is the loss of unlikelihood training. All methods, engines,
measures and reports that know rows of logits then know texts.

    W x + (α / r) · B (A x)          an adapter beside a frozen matrix W; A is drawn, B begins at zero (Hu et al., LoRA)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn

from unfed.errors import UnfedError, nearest
from unfed.model.calling import logits_in

SKIPPED = -100
"""A label that marks a token which does not count, as in transformers."""
AS_WRITTEN = 0
"""The label of every text."""

# --- a text as one row ------------------------------------------------------------------------------------------------


class TextRows:
    """Mixed into a language model's own class by `text_rows`, so that its tensors keep their names."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        given = {} if attention_mask is None else {"attention_mask": attention_mask}
        logits = logits_in(super().forward(input_ids, **given))  # type: ignore[misc]
        if logits.ndim != 3:
            raise UnfedError(
                f"A language model gives logits [texts, tokens, words], but this one gives {list(logits.shape)}; give"
                " one label per row instead of one per token."
            )
        return as_written(token_losses(logits, input_ids, attention_mask, labels))


def text_rows(module: nn.Module) -> nn.Module:
    """A causal language model that gives one row of logits per text.

    It shares its tensors with the module.
    """
    if isinstance(module, TextRows):
        return module
    found = copy.copy(module)
    found.__dict__ = {**module.__dict__}
    kind = type(module)
    found.__class__ = type(kind.__name__, (TextRows, kind), {"__module__": kind.__module__})
    return found


def plain(module: nn.Module) -> nn.Module:
    """The language model as its owner knows it."""
    if not isinstance(module, TextRows):
        return module
    found = cast(nn.Module, copy.copy(module))
    found.__class__ = type(module).__mro__[2]
    return found


def token_losses(logits: Tensor, ids: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
    """−log softmax(z_{t−1})_t of each token but the first, [texts, tokens − 1].

    It is NaN where a token does not count.
    """
    wanted = (ids if labels is None else labels)[..., 1:].long()
    counts = wanted != SKIPPED
    if mask is not None:
        counts = counts & (mask[..., 1:] != 0)
    log_p = logits[..., :-1, :].log_softmax(-1)
    found = -log_p.gather(-1, wanted.clamp_min(0)[..., None])[..., 0]
    return torch.where(counts, found, torch.nan)


def as_written(losses: Tensor) -> Tensor:
    """(log p, log(1 − p)) of each text, p the geometric mean of its tokens' probabilities."""
    log_p = -losses.nansum(-1) / (~losses.isnan()).sum(-1).clamp_min(1)
    log_p = log_p.clamp_max(-1e-7)  # p = 1 would make the other class infinitely unlikely
    return torch.stack([log_p, torch.log(-torch.expm1(log_p))], -1)


# --- adapters ---------------------------------------------------------------------------------------------------------


class Adapter(nn.Module):
    """A frozen dense layer with a low-rank adapter beside it: W x + (α / r) · B (A x)."""

    def __init__(self, base: nn.Module, rank: int, alpha: float) -> None:
        super().__init__()
        weight = cast(Tensor, base.weight)
        wide, high = weight.shape if isinstance(base, nn.Linear) else weight.shape[::-1]  # GPT-2 keeps W transposed
        self.base, self.scale = base, alpha / rank
        self.lora_A = nn.Parameter(weight.new_empty(rank, high))
        self.lora_B = nn.Parameter(weight.new_empty(wide, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw A, and set B to zero: the layer begins as its base."""
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.base(x)) + self.scale * (x @ self.lora_A.T) @ self.lora_B.T


def with_adapters(module: nn.Module, layers: Sequence[str], rank: int = 8, alpha: float = 16.0) -> nn.Module:
    """Put adapters beside dense layers, and keep everything else out of the federation's model.

    The base's tensors become buffers that are not saved: they are neither trained, averaged, sent nor written to a run
    folder. So the model factory must give the same base every time, and the base must never have seen clients' data.

    Args:
        module: A trained model. It is changed in place.
        layers: Globs over names of dense layers, such as `*.attention` or `transformer.h.*.c_attn`.
        rank: r, the height of A and the width of B.
        alpha: The adapter's weight is alpha / rank.

    Returns:
        The same module.

    Raises:
        UnfedError: No dense layer has such a name.
    """
    named: dict[str, Any] = dict(module.named_modules())
    dense = [name for name, part in named.items() if getattr(getattr(part, "weight", None), "ndim", 0) == 2]
    dense = [name for name in dense if not isinstance(named[name], nn.Embedding)]
    for glob in layers:
        if not any(fnmatchcase(name, glob) for name in dense):
            raise UnfedError(f"No dense layer is called {glob!r}; name some of the model's.{nearest(glob, dense)}")
    chosen = [name for name in dense if any(fnmatchcase(name, glob) for glob in layers)]
    still: dict[int, Tensor] = {}  # a tied weight stays one tensor
    for part in list(module.modules()):
        for name, value in [*part._parameters.items()]:
            if value is not None:
                del part._parameters[name]
                part.register_buffer(name, still.setdefault(id(value), value.detach()), persistent=False)
        part._non_persistent_buffers_set.update(part._buffers)
    for name in chosen:
        parent, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(parent), leaf, Adapter(named[name], rank, alpha))
    return module
