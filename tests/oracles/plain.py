"""The plain side: a network, clients with rows, and loops around PyTorch's own optimisers. Nothing here imports unfed.

A model is a dictionary of its floating-point tensors, BatchNorm's running statistics among them. Counters are left out:
no rule computes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = dict[str, Tensor]


class Net(nn.Module):
    """A convolution, BatchNorm, two dense layers, and a layer that no output asks for, which has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4)
        self.body, self.head = nn.Linear(16, 5), nn.Linear(5, 3)
        self.unused = nn.Linear(2, 1)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(self.norm(torch.tanh(self.conv(x))).flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head.forward(self.features(x))


WEIGHTS = ("conv.weight", "body.weight", "head.weight", "unused.weight")
HIDDEN = ("conv.weight", "body.weight", "unused.weight")
PARAMETERS = tuple(name for name, _ in Net().named_parameters())


def net_of(model: Model) -> Net:
    """The network with these tensors, in double precision and in training mode."""
    net = Net().double()
    net.load_state_dict(model, strict=False)
    return net


def asked(model: Model, x: Tensor) -> Tensor:
    """Logits in eval mode."""
    with torch.no_grad():
        answer: Tensor = net_of(model).eval()(x)
    return answer


def model_of(net: nn.Module) -> Model:
    return {name: t.detach().clone() for name, t in net.state_dict().items() if t.is_floating_point()}


# --- who holds what ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Client:
    """Rows, and which of them are to be forgotten."""

    x: Tensor
    y: Tensor
    forget: Tensor

    def view(self, name: str) -> Tensor:
        """The positions of all rows, of those that stay, or of those that leave."""
        marks = {"all": torch.ones_like(self.forget), "retain": ~self.forget, "forget": self.forget}
        return torch.arange(len(self.y))[marks[name]]


class Draws(Protocol):
    """What is drawn at random; unfed draws the same, because every draw has an address."""

    def order(self, round: int, client: str, view: str, epoch: int, n: int) -> Tensor:
        """The order in which a pass takes n rows."""

    def labels(self, round: int, client: str, epoch: int, rows: Tensor, classes: int) -> Tensor:
        """A number below `classes` for each of these forgotten rows, drawn in this pass."""

    def fresh(self, *purpose: str | int) -> Model:
        """A fresh initialisation."""


@dataclass(frozen=True)
class Federation:
    """Clients, the numbers of their local training, and the draws."""

    clients: Mapping[str, Client]
    draws: Draws
    lr: float
    momentum: float
    decay: float
    epochs: int
    batch: int

    def holding(self, view: str) -> list[str]:
        """Who holds a row of a view."""
        return [name for name, client in self.clients.items() if len(client.view(view))]

    def rows(self, view: str) -> dict[str, int]:
        return {name: len(client.view(view)) for name, client in self.clients.items()}


# --- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One mini-batch: whose, in which pass, which rows."""

    client: Client
    epoch: int
    rows: Tensor

    @property
    def x(self) -> Tensor:
        return self.client.x[self.rows]

    @property
    def y(self) -> Tensor:
        return self.client.y[self.rows]

    @property
    def forget(self) -> Tensor:
        return self.client.forget[self.rows]


Loss = Callable[[Net, Step], Tensor]


def cut(rows: Tensor, size: int) -> list[Tensor]:
    """Batches of rows; a last batch of one row joins the one before it."""
    parts = list(rows.split(size)) if len(rows) else []
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def steps(
    fed: Federation,
    name: str,
    view: str,
    round: int,
    *,
    epochs: int | None = None,
    cap: int | None = None,
    rows: Tensor | None = None,
) -> Iterator[Step]:
    """The mini-batches of some passes over a view, at most `cap` of each pass."""
    client = fed.clients[name]
    rows = client.view(view) if rows is None else rows
    for epoch in range(fed.epochs if epochs is None else epochs):
        order = rows[fed.draws.order(round, name, view, epoch, len(rows))]
        for batch in cut(order, fed.batch)[:cap]:
            yield Step(client, epoch, batch)


def right(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """−mean log softmax(z)_y"""
    log_p: Tensor = net(x).log_softmax(1)
    return -torch.stack([log_p[i, label] for i, label in enumerate(y.tolist())]).mean()


def cross_entropy(net: Net, step: Step) -> Tensor:
    """Of the rows with their own labels."""
    return right(net, step.x, step.y)


def ascent(net: Net, step: Step) -> Tensor:
    return -cross_entropy(net, step)


def kl(target: Tensor, z: Tensor) -> Tensor:
    """mean over rows of KL(softmax(target) ‖ softmax(z))"""
    return F.kl_div(z.log_softmax(1), target.softmax(1), reduction="batchmean")


def sgd(fed: Federation, parameters: Iterator[nn.Parameter], **numbers: Any) -> torch.optim.SGD:
    return torch.optim.SGD(
        parameters, **({"lr": fed.lr, "momentum": fed.momentum, "weight_decay": fed.decay} | numbers)
    )


def descend(
    net: Net,
    optimiser: torch.optim.Optimizer,
    batches: Iterator[Step],
    loss: Loss = cross_entropy,
    *,
    clip: float | None = None,
    after: Callable[[], bool | None] | None = None,
) -> None:
    """One step per mini-batch; `after` a step may change the network, or end it all by saying True."""
    net.train()
    for step in batches:
        optimiser.zero_grad()
        loss(net, step).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimiser.step()
        if after is not None and after():
            return


def local(
    fed: Federation,
    model: Model,
    name: str,
    round: int,
    view: str = "retain",
    loss: Loss = cross_entropy,
    **numbers: Any,
) -> Model:
    """A client's model after its local epochs, begun with momentum at zero."""
    net = net_of(model)
    descend(net, sgd(fed, net.parameters(), **numbers), steps(fed, name, view, round), loss)
    return model_of(net)


def mean(models: Mapping[str, Model], weights: Mapping[str, int]) -> Model:
    """Σ n_k θ_k / Σ n_k, running statistics included."""
    total = sum(weights[name] for name in models)
    names = next(iter(models.values()))
    return {n: torch.stack([weights[k] / total * m[n] for k, m in models.items()]).sum(0) for n in names}


def fedavg(fed: Federation, model: Model, round: int, **numbers: Any) -> Model:
    """One round of those who hold a row that stays, weighed by these rows."""
    models = {name: local(fed, model, name, round, **numbers) for name in fed.holding("retain")}
    return mean(models, fed.rows("retain"))


def recovery(fed: Federation, model: Model, first: int = 1) -> Iterator[Model]:
    """A model, and what each further round over the retained rows makes of it."""
    for round in count(first):
        yield model
        model = fedavg(fed, model, round)


@dataclass(frozen=True)
class Past:
    """A round of the training: the model before it, and what each client made of it."""

    before: Model
    models: dict[str, Model]


def trained(fed: Federation, model: Model, rounds: int) -> tuple[Model, list[Past]]:
    """θ* after some rounds of everybody, and the rounds."""
    past = []
    for round in range(1, rounds + 1):
        models = {name: local(fed, model, name, round) for name in fed.clients}
        past.append(Past(model, models))
        model = mean(models, fed.rows("all"))
    return model, past


def square(a: Model, b: Model, names: Sequence[str] = PARAMETERS) -> float:
    """‖a − b‖² over the parameters."""
    return sum(float((a[n] - b[n]).square().sum()) for n in names)
