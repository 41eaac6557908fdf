"""What a model does on rows, in eval mode: one score per row, or sums that clients can answer with.

score      loss_i = −log softmax(z_i)_{y_i}    correct_i    confidence_i = max softmax    entropy_i = −Σ p log p
measure    Σ correct, Σ loss, Σ g (SalUn's saliency) or Σ g² (SSD's importance), g a batch's mean gradient
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unfed.client.batch import bounds
from unfed.client.plan import Measure
from unfed.client.step import gradients
from unfed.data import ClientData, Source
from unfed.data.source import ahead
from unfed.model.functional import Net, Template
from unfed.model.params import Params

Way = Callable[[Net, Tensor], Tensor]
"""How a network's logits are computed, in the type of its params (`engines/choice.py` knows a faster way)."""


def called(net: Net, x: Tensor) -> Tensor:
    """The way of `score` unless another is given: the network as it is."""
    return net(x)


@dataclass(frozen=True)
class Scores:
    """One entry per row."""

    loss: Tensor
    correct: Tensor
    confidence: Tensor
    entropy: Tensor
    predicted: Tensor

    def __len__(self) -> int:
        return len(self.loss)

    def __getitem__(self, index: Tensor | slice) -> Scores:
        return Scores(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100.0 * float(self.correct.double().mean())

    @property
    def mean_loss(self) -> float:
        return float(self.loss.double().mean())


def batches(
    template: Template, source: Source, groups: Iterable[Tensor]
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """(x, y) of each group of rows as evaluation sees them.

    They are read ahead where a data set on the host feeds a device.
    """
    fetched = (source.fetch(rows, None) for rows in groups)
    return fetched if source.resident or template.device.type == "cpu" else ahead(fetched)


@torch.no_grad()
def score(
    template: Template, params: Params, source: Source, rows: Tensor, batch: int = 1024, way: Way = called
) -> Scores:
    """Score rows of a source, without augmentation, in large batches; the result lies on the CPU."""
    net, parts = template.bind(params), []
    if source.resident:  # at once, not batch by batch: a copy from the host waits for the device
        rows = rows.to(source.labels.device)
    with closing(batches(template, source, torch.split(rows, batch) if len(rows) else ())) as pairs:
        for x, y in pairs:
            parts.append(columns(way(net, x), y))
    if not parts:
        empty = torch.empty(0)
        return Scores(empty, empty.bool(), empty, empty, empty.long())
    return moved(parts)


def columns(logits: Tensor, y: Tensor) -> Scores:
    """The scores of a batch, where it lies."""
    log_p = logits.log_softmax(-1)
    top, predicted = log_p.max(-1)
    loss, entropy = F.nll_loss(log_p, y, reduction="none"), -(log_p.exp() * log_p).sum(-1)
    return Scores(loss, predicted == y, top.exp(), entropy, predicted)


def moved(parts: Sequence[Scores]) -> Scores:
    """The scores of all batches on the CPU, by one move: every move waits for the device.

    On the way all columns are numbers of one type, wide enough that none of them changes: a class number below 2²⁴, yes
    and no, and whatever a model computes in.
    """
    own = {name: getattr(parts[0], name).dtype for name in Scores.__dataclass_fields__}
    wide = torch.promote_types(own["loss"], torch.float32)
    table = torch.cat([torch.stack([getattr(part, name).to(wide) for name in own]) for part in parts], dim=1).cpu()
    return Scores(**{name: column.to(kind) for (name, kind), column in zip(own.items(), table, strict=True)})


def mean_gradient(template: Template, params: Params, source: Source, rows: Tensor, batch: int) -> Params:
    """∇ of the mean cross-entropy over all these rows, however many go through the model at once."""
    sums = {name: torch.zeros_like(params[name]) for name in template.trainable}
    for some in torch.split(rows, batch):
        x, y = source.fetch(some, None)
        leaves = {name: params[name].detach().requires_grad_() for name in template.trainable}
        loss = F.cross_entropy(template.bind(params | leaves)(x), y, reduction="sum") / len(rows)
        for name, grad in gradients(loss, leaves).items():
            sums[name] += grad
    return sums


def measure(template: Template, what: Measure, client: ClientData, params: Params) -> Mapping[str, Tensor]:
    """One client's answer to a measuring plan.

    It holds sums over its view, and how many rows and batches they are over.
    """
    positions = client.view(what.view)
    count = {"count": torch.tensor(float(len(positions)), dtype=torch.float64)}
    if what.what == "correct":
        scores = score(template, params, client.source, client.rows[positions], what.batch)
        return count | {"correct": scores.correct.double().sum(), "loss": scores.loss.double().sum()}
    sums = {name: torch.zeros_like(params[name]) for name in template.trainable}
    steps = bounds(len(positions), what.batch)
    for begin, end in steps:
        x, y = client.source.fetch(client.rows[positions[begin:end]], None)
        leaves = {name: params[name].detach().requires_grad_() for name in template.trainable}
        loss = F.cross_entropy(template.bind(params | leaves)(x), y)
        for name, grad in gradients(loss, leaves).items():
            sums[name] += grad.square() if what.what == "squared_gradient" else grad
    return count | {"batches": torch.tensor(float(len(steps)), dtype=torch.float64)} | sums
