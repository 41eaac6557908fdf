"""What a causal language model still knows of some texts.

    loss, perplexity   ℓ = mean of the tokens' −log p over all texts,  e^ℓ
    extraction         the model continues the first tokens of a text greedily: tokens right before the first wrong one
    membership         P(a forgotten text scores lower than a held-out one) + ½ P(equal), by a text's loss, or by
                       min-k %: the mean loss of its k % least likely tokens (Shi et al., ICLR 2024); 0.5: no trace
    relearning         steps of AdamW on the forgotten texts until their loss is what it was before they left

Every number says something only beside Retrain's, measured by the same call.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unfed.errors import UnfedError
from unfed.measures.forgotten import Losses, advantage
from unfed.model.calling import logits_in
from unfed.model.language import plain, token_losses
from unfed.values import Value, not_measured


@dataclass(frozen=True)
class TextScores:
    """What a model knows of some texts."""

    loss: float
    """Mean loss per token, in nats."""
    perplexity: float
    longest: int
    """Tokens of the longest exact continuation."""
    verbatim: float
    """Percent of the texts that are continued exactly to their end."""


@dataclass(frozen=True)
class TextMembership:
    """How well an attacker tells forgotten from held-out texts; 0.5 is guessing."""

    loss: float
    min_k: float


def _checked(texts: Tensor, what: str, at_least: int = 2) -> Tensor:
    if not isinstance(texts, Tensor) or texts.is_floating_point() or texts.ndim != 2 or len(texts) == 0:
        got = f"{list(texts.shape)} {texts.dtype}" if isinstance(texts, Tensor) else f"a {type(texts).__name__}"
        raise UnfedError(f"{what} must be token ids [texts, tokens], not {got}; tokenise texts to one length.")
    if texts.shape[1] < at_least:
        raise UnfedError(f"{what} have {texts.shape[1]} tokens each; give texts of at least {at_least}.")
    return texts


def _logits(model: nn.Module, texts: Tensor) -> Tensor:
    logits = logits_in(plain(model)(texts))
    if logits.ndim != 3:
        raise UnfedError(
            f"The model gives {list(logits.shape)} for a batch of texts, not logits [texts, tokens, words]; give a"
            " causal language model."
        )
    return logits


@torch.no_grad()
def losses(model: nn.Module, texts: Tensor, batch: int = 64) -> Tensor:
    """The loss of every token but the first, [texts, tokens − 1]."""
    model.eval()
    parts = _checked(texts, "Texts").split(batch)
    return torch.cat([token_losses(_logits(model, some), some).cpu() for some in parts])


def min_k(token_losses: Tensor, share: float = 0.2) -> Tensor:
    """The mean loss of each text's least likely tokens."""
    return token_losses.topk(max(1, round(share * token_losses.shape[1])), 1).values.mean(1)


@torch.no_grad()
def continued(model: nn.Module, texts: Tensor, prompt: int, batch: int = 64) -> Tensor:
    """How many tokens after the first `prompt` the model writes as they stand before its first mistake.

    Up to its first mistake a greedy model reads the text itself, so one pass over the whole text is enough.
    """
    model.eval()
    found = []
    for some in _checked(texts, "Texts", prompt + 1).split(batch):
        right = _logits(model, some)[:, prompt - 1 : -1].argmax(-1) == some[:, prompt:]
        found.append(right.long().cumprod(1).sum(1).cpu())
    return torch.cat(found)


def score_texts(model: nn.Module, texts: Tensor, prompt: int) -> TextScores:
    """Measure loss, perplexity and verbatim extraction after `prompt` tokens."""
    mean, written = float(losses(model, texts).double().mean()), continued(model, texts, prompt)
    whole = 100 * float((written == texts.shape[1] - prompt).double().mean())
    return TextScores(mean, math.exp(mean), int(written.max()), whole)


def text_membership(model: nn.Module, forgotten: Tensor, held_out: Tensor, share: float = 0.2) -> TextMembership:
    """Tell forgotten from held-out texts by loss and by min-k %."""
    here, there = losses(model, forgotten), losses(model, held_out)

    def area(mine: Tensor, theirs: Tensor) -> float:
        one, other = (Losses.of(scores, torch.zeros(len(scores), dtype=torch.int64)) for scores in (mine, theirs))
        return (advantage(one, other, 1.0).value + 1) / 2

    return TextMembership(area(here.mean(1), there.mean(1)), area(min_k(here, share), min_k(there, share)))


def relearning_steps(model: nn.Module, texts: Tensor, until: float, lr: float = 1e-3, limit: int = 200) -> Value:
    """How many steps on these texts bring their loss to `until`.

    Only what trains in the model is trained.
    """
    again = copy.deepcopy(plain(model)).train()
    rule = torch.optim.AdamW([p for p in again.parameters() if p.requires_grad], lr, weight_decay=0.0)
    parts = _checked(texts, "Texts").split(32)
    for step in range(limit + 1):
        if float(losses(again, texts).double().mean()) <= until:
            return step
        rule.zero_grad()
        token_losses(_logits(again.train(), parts[step % len(parts)]), parts[step % len(parts)]).mean().backward()
        rule.step()
    return not_measured(f"more than {limit} steps")
