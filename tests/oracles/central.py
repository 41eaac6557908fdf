"""The centralised methods once more, in plain PyTorch, over the clients of a federation.

The rules are those of one place that holds all data; with three clients the weights show as well. Where `one_place` is
asked for, the federation has one client and the optimiser goes on from round to round. Nothing here imports unfed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice

import torch
from torch import Tensor

from oracles.plain import (
    PARAMETERS,
    Federation,
    Model,
    Net,
    Step,
    ascent,
    asked,
    cross_entropy,
    cut,
    descend,
    kl,
    local,
    mean,
    model_of,
    net_of,
    recovery,
    right,
    sgd,
    steps,
)


def one_place(
    fed: Federation,
    theta: Model,
    rates: Callable[[int], float] | None = None,
    climbing: int = 0,
) -> Iterator[Model]:
    """One client, one optimiser from round to round; the first rounds may climb, and then momentum starts again."""
    ((name, _),) = fed.clients.items()
    net = net_of(theta)
    rule = sgd(fed, net.parameters())
    yield theta
    for round in count(1):
        if rates is not None:
            rule.param_groups[0]["lr"] = rates(round)
        up = round <= climbing
        descend(net, rule, steps(fed, name, "forget" if up else "retain", round), ascent if up else cross_entropy)
        if round == climbing:
            rule = sgd(fed, net.parameters())
        yield model_of(net)


def ga(fed: Federation, theta: Model, epochs: int) -> Iterator[Model]:
    """Who holds forgotten rows climbs on them, weighed by them; then all descend on what stays."""
    for round in range(1, epochs + 1):
        yield theta
        climbed = {k: local(fed, theta, k, round, "forget", ascent) for k in fed.holding("forget")}
        theta = mean(climbed, fed.rows("forget"))
    yield from recovery(fed, theta, epochs + 1)


def l1_sparse(fed: Federation, theta: Model, alpha: float, epochs: int) -> Iterator[Model]:
    """CE + α_t ‖θ‖₁ on what stays, over all parameters; α_t falls to nothing."""
    for t in count():
        yield theta
        now = alpha * max(0.0, 1 - t / epochs)

        def loss(net: Net, step: Step, now: float = now) -> Tensor:
            return cross_entropy(net, step) + now * torch.stack([p.abs().sum() for p in net.parameters()]).sum()

        models = {k: local(fed, theta, k, t + 1, loss=loss if now else cross_entropy) for k in fed.holding("retain")}
        theta = mean(models, fed.rows("retain"))


def badt(fed: Federation, theta: Model, temperature: float = 1.0) -> Iterator[Model]:
    """Taught by a fresh model on D_u and by θ* on D_r."""
    good, bad, student = theta, fed.draws.fresh("bad teacher"), theta
    for round in count(1):
        yield student
        models = {}
        for k, client in fed.clients.items():
            taught = torch.where(client.forget[:, None], asked(bad, client.x), asked(good, client.x))
            net = net_of(student)

            def loss(net: Net, step: Step, taught: Tensor = taught) -> Tensor:
                return kl(taught[step.rows] / temperature, net(step.x) / temperature)

            descend(net, sgd(fed, net.parameters()), steps(fed, k, "all", round), loss)
            models[k] = model_of(net)
        student = mean(models, fed.rows("all"))


def randl(
    fed: Federation,
    theta: Model,
    *,
    exclude_true: bool = False,
    free: dict[str, Tensor] | None = None,
) -> Iterator[Model]:
    """Drawn labels on D_u, then true ones on D_r, with one optimiser; SalUn: of the weights only the `free` move."""
    model = theta
    for round in count(1):
        yield model
        models = {}
        for k in fed.clients:
            net = net_of(model)
            rule = sgd(fed, net.parameters())

            def drawn(net: Net, step: Step, k: str = k, round: int = round) -> Tensor:
                high = 2 if exclude_true else 3
                labels = fed.draws.labels(round, k, step.epoch, step.rows, high)
                if exclude_true:  # counted on from the true one
                    labels = (step.y + 1 + labels) % 3
                return right(net, step.x, labels)

            def home(net: Net = net) -> None:
                if free is not None:
                    for name, p in net.named_parameters():
                        p.data = torch.where(free[name], p.data, theta[name])

            descend(net, rule, steps(fed, k, "forget", round), drawn, after=home)
            descend(net, rule, steps(fed, k, "retain", round), after=home)
            models[k] = model_of(net)
        model = mean(models, fed.rows("all"))


def gradients(fed: Federation, theta: Model, view: str) -> Iterator[Model]:
    """∇ mean CE of every batch of a view, in eval mode and in the clients' own order; nothing asked for is zero."""
    for client in fed.clients.values():
        for rows in cut(client.view(view), fed.batch):
            net = net_of(theta).eval()
            cross_entropy(net, Step(client, 0, rows)).backward()
            yield {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in net.named_parameters()}


def ssd(fed: Federation, theta: Model, alpha: float, lam: float) -> tuple[Model, int]:
    """θ with what matters more to D_u than to all rows made smaller; and how many weights that were."""

    def importance(view: str) -> Model:
        squares = [{n: g.square() for n, g in one.items()} for one in gradients(fed, theta, view)]
        return {n: torch.stack([one[n] for one in squares]).mean(0) for n in PARAMETERS}

    forget, whole, found, chosen = importance("forget"), importance("all"), dict(theta), 0
    for name in PARAMETERS:
        flat = found[name].flatten().clone()
        for i, (f, d) in enumerate(zip(forget[name].flatten().tolist(), whole[name].flatten().tolist(), strict=True)):
            if f > alpha * d:
                flat[i] *= min(lam * d / f, 1.0)
                chosen += 1
        found[name] = flat.reshape(theta[name].shape)
    return found, chosen


def salient(fed: Federation, theta: Model, share: float) -> dict[str, Tensor]:
    """True for the share of all weights with the largest |Σ of gradients over D_u|."""
    found = list(gradients(fed, theta, "forget"))
    sums = {n: torch.stack([one[n] for one in found]).sum(0).abs() for n in PARAMETERS}
    ranked = sorted((t for n in PARAMETERS for t in sums[n].flatten().tolist()), reverse=True)
    least = ranked[int(share * len(ranked)) - 1]
    return {n: t >= least for n, t in sums.items()}


def salun(fed: Federation, theta: Model, share: float) -> Iterator[Model]:
    """RandL for the most salient weights alone."""
    yield from randl(fed, theta, free=salient(fed, theta, share))


def after_rounds(twin: Iterator[Model], rounds: int) -> Model:
    """What a twin has after some rounds."""
    return next(islice(twin, rounds, None))
