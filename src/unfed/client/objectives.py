"""What a client minimises: named pure functions that give one loss per *sample*.

    objective(net, batch, models, **numbers) -> losses [B]

`net` is the network in training, `batch` marks its D_u rows (`batch.forget`), `models` are the frozen context models,
in eval mode. Because the losses are per sample and the rows are marked, one line serves client, class and instance
scope alike. The step takes their mean over the rows that count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unfed import rng
from unfed.client.batch import Batch, Models
from unfed.errors import UnfedError, listed, nearest
from unfed.model.functional import Net

Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Objective:
    """A loss, and the extra forward passes of context models that the ledger must count."""

    name: str
    loss: Loss
    forwards: int = 0
    """Context models run on every row."""
    forget_forwards: int = 0
    """Context models run on D_u rows only."""
    draws: bool = True
    """Whether it reads `batch.draws`; for one that does not, none are drawn."""


OBJECTIVES: dict[str, Objective] = {}


def objective(name: str, *, forwards: int = 0, forget_forwards: int = 0, draws: bool = True) -> Callable[[Loss], Loss]:
    """Register a loss under the name that plans use."""

    def register(loss: Loss) -> Loss:
        OBJECTIVES[name] = Objective(name, loss, forwards, forget_forwards, draws)
        return loss

    return register


def find(name: str) -> Objective:
    if name not in OBJECTIVES:
        raise UnfedError(
            f"The objective {name!r} is not known; use {listed(sorted(OBJECTIVES))}.{nearest(name, OBJECTIVES)}"
        )
    return OBJECTIVES[name]


def nll(logits: Tensor, y: Tensor) -> Tensor:
    """−log softmax(z)_y.

    On a CPU not PyTorch's own: its first call in a map imports sympy, which takes half a second.
    """
    if logits.device.type != "cpu":
        return F.cross_entropy(logits, y, reduction="none")
    return -logits.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


@objective("ce", draws=False)
def cross_entropy(net: Net, batch: Batch, models: Models) -> Tensor:
    """Cross-entropy with the true label: −log softmax(z)_y."""
    return nll(net(batch.x), batch.y)


@objective("ascend", draws=False)
def ascent(net: Net, batch: Batch, models: Models) -> Tensor:
    """+log softmax(z)_y: descending on it climbs the cross-entropy."""
    return -cross_entropy(net, batch, models)


@objective("random_label")
def random_label(net: Net, batch: Batch, models: Models, exclude_true: bool = False) -> Tensor:
    """−log softmax(z)_u, u uniform over all classes, or over the wrong ones.

    The true label decides nothing else.
    """
    logits = net(batch.x)
    classes = logits.shape[-1]
    if exclude_true:
        drawn = (batch.y + 1 + rng.below(batch.draws, classes - 1)) % classes
    else:
        drawn = rng.below(batch.draws, classes)
    return nll(logits, drawn)


@objective("bad_teacher", forwards=2, draws=False)
def bad_teacher(net: Net, batch: Batch, models: Models, temperature: float = 1.0) -> Tensor:
    """KL(q ‖ softmax(z/τ)), where q is a teacher's answer (BadT).

    It is the incompetent teacher's on D_u rows and the competent one's elsewhere.
    """
    with torch.no_grad():
        taught = torch.where(batch.forget[:, None], models["bad"](batch.x), models["good"](batch.x))
        q = (taught / temperature).softmax(-1)
        log_q = (taught / temperature).log_softmax(-1)
    return _terms(q, log_q, (net(batch.x) / temperature).log_softmax(-1)).sum(-1)


@objective("guided", forget_forwards=1, draws=False)
def guided(net: Net, batch: Batch, models: Models) -> Tensor:
    """Cross-entropy with the degraded model's label on D_u rows, the true one elsewhere (MoDE).

    This is −log softmax(z)_u on D_u rows, where u = argmax φ(x), and −log softmax(z)_y elsewhere.
    """
    with torch.no_grad():
        taught = models["phi"](batch.x).argmax(-1)
    return nll(net(batch.x), torch.where(batch.forget, taught, batch.y))


@objective("contrast", forwards=2, draws=False)
def contrast(net: Net, batch: Batch, models: Models, temperature: float = 0.5) -> Tensor:
    """−log( e^{s_d/τ} / (e^{s_d/τ} + e^{s_p/τ}) ), s_d = cos(f, f_ψ), s_p = cos(f, f_θ*).

    It pulls towards ψ and pushes away from θ*.

    FCU's: `start` is θ*, `downgraded` is ψ, f are the features that enter the head. No label is read.
    """
    with torch.no_grad():
        away, towards = models["start"].features(batch.x), models["downgraded"].features(batch.x)
    f = net.features(batch.x).flatten(1)
    push = F.cosine_similarity(f, away.flatten(1), dim=1)
    pull = F.cosine_similarity(f, towards.flatten(1), dim=1)
    return F.softplus((push - pull) / temperature)


@objective("distil", forwards=1, draws=False)
def distil(net: Net, batch: Batch, models: Models, temperature: float = 3.0) -> Tensor:
    """τ² · KL( softmax(z_T/τ) ‖ softmax(z/τ) ), the teacher T frozen in eval mode (FUKD).

    No label is read.
    """
    with torch.no_grad():
        taught = (models["teacher"](batch.x) / temperature).log_softmax(-1)
    own = (net(batch.x) / temperature).log_softmax(-1)
    return temperature**2 * _terms(taught.exp(), taught, own).sum(-1)


@objective("led", forwards=1, draws=False)
def led(net: Net, batch: Batch, models: Models, weight: float = 10.0, away: str = "") -> Tensor:
    """−log softmax(z)_y + w · (1 − cos(f, f_T)), the teacher T frozen in eval mode (Led).

    Where classes leave, `away` names the teacher's matrix V of orthonormal rows: f_T ← f_T − Vᵀ V f_T.
    """
    with torch.no_grad():
        taught = models["teacher"].features(batch.x).flatten(1)
        if away:
            rows = models.tensors("teacher")[away]
            taught = taught - taught @ rows.T @ rows
    logits, own = net.with_features(batch.x)
    return nll(logits, batch.y) + weight * (1 - _cosine(own.flatten(1), taught))


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of each row of a with that of b; 0 where one of them is zero.

    Written out, because `F.cosine_similarity` cannot be compiled inside a step. The squares are bounded before the
    root, so that a row of zeros has no gradient in place of NaN.
    """
    return (a * b).sum(1) / ((a * a).sum(1).clamp_min(1e-24) * (b * b).sum(1).clamp_min(1e-24)).sqrt()


def _terms(q: Tensor, log_q: Tensor, log_p: Tensor) -> Tensor:
    """q · (log q − log p), and 0 where q is 0: the summands of KL(q ‖ p).

    Written out, because `F.kl_div` cannot be mapped over a stack of clients without a slow inner loop.
    """
    return torch.where(q > 0, q * (log_q - log_p), 0.0)
