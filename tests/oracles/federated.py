"""The federated methods once more, each on its own screen, in plain PyTorch.

Each twin gives the model of round 0 (after the method's own phase), of round 1, and so on. It takes a `Federation`
whose clients carry the marks of the request, and what the rule needs beside it. Nothing here imports unfed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oracles.plain import (
    HIDDEN,
    PARAMETERS,
    WEIGHTS,
    Client,
    Federation,
    Model,
    Past,
    Step,
    ascent,
    asked,
    cross_entropy,
    descend,
    fedavg,
    kl,
    local,
    mean,
    model_of,
    net_of,
    recovery,
    sgd,
    square,
    steps,
)

# --- Retrain, FT, NoT -------------------------------------------------------------------------------------------------


def retrain(fed: Federation) -> Iterator[Model]:
    """A fresh initialisation, then the others."""
    yield from recovery(fed, fed.draws.fresh("init"))


def ft(fed: Federation, theta: Model) -> Iterator[Model]:
    """θ*, then the others."""
    yield from recovery(fed, theta)


def one_cycle(fed: Federation, theta: Model, rounds: int) -> Iterator[Model]:
    """θ*, then the others by a rate that goes up in a fifth of the rounds and down to 2 % of its peak."""
    up = math.ceil(rounds / 5)
    rates = [i / up for i in range(1, up + 1)]
    rates += [1 - 0.98 * i / (rounds - up) for i in range(1, rounds - up + 1)]
    yield theta
    for round, rate in enumerate(rates, 1):
        theta = fedavg(fed, theta, round, lr=rate * fed.lr)
        yield theta


def not_(fed: Federation, theta: Model, layers: Sequence[str] = ("conv.weight",)) -> Iterator[Model]:
    """θ* with the sign of some weights turned, then the others."""
    yield from recovery(fed, theta | {name: -theta[name] for name in layers})


def nr_freeze(fed: Federation, theta: Model, layers: Sequence[str]) -> Iterator[Model]:
    """−θ* in these layers for ever, a fresh start everywhere else."""
    model = fed.draws.fresh("nr-freeze") | {name: -theta[name] for name in layers}
    round = 0
    while True:
        yield model
        round, models = round + 1, {}
        for name in fed.holding("retain"):
            net = net_of(model)
            free = (p for n, p in net.named_parameters() if n not in layers)
            descend(net, sgd(fed, free), steps(fed, name, "retain", round))
            models[name] = model_of(net)
        model = mean(models, fed.rows("retain"))


# --- Led --------------------------------------------------------------------------------------------------------------


def bare_of(rows: Tensor, f: Tensor) -> Tensor:
    """Features without what lies along these rows, by Gram and Schmidt."""
    basis: list[Tensor] = []
    for row in rows:
        for earlier in basis:
            row = row - (earlier @ row) * earlier
        basis.append(row / row.norm())
    for one in basis:
        f = f - (f @ one)[:, None] * one
    return f


def led_round(fed: Federation, model: Model, teacher: Model, round: int, weight: float, away: Sequence[int]) -> Model:
    """One round of who stays: the label's loss, and how far features point away from the teacher's."""

    def loss(net: Any, step: Step) -> Tensor:
        guide = net_of(teacher).eval()
        with torch.no_grad():
            taught = bare_of(teacher["head.weight"][list(away)], guide.features(step.x))
        f = net.features(step.x)
        log_p = net.head(f).log_softmax(1)
        apart = [1 - (a @ b) / (a.norm() * b.norm()) for a, b in zip(f, taught, strict=True)]
        rows = [weight * apart[i] - log_p[i, label] for i, label in enumerate(step.y.tolist())]
        return torch.stack(rows).mean()

    return fedavg(fed, model, round, loss=loss)


def led(
    fed: Federation, teacher: Model, rounds: int, weight: float, first: int = 1, away: Sequence[int] = ()
) -> Iterator[Model]:
    """A fresh model, led for some rounds, then the others alone."""
    model = fed.draws.fresh("init")
    for round in range(first, first + rounds):
        yield model
        model = led_round(fed, model, teacher, round, weight, away)
    yield from recovery(fed, model, first + rounds)


# --- Sealed -----------------------------------------------------------------------------------------------------------


def words(draw: bytes, address: str, n: int) -> list[int]:
    """n signed 64-bit words of SHAKE-256, little-endian."""
    stream = hashlib.shake_256(draw + address.encode()).digest(8 * n)
    return [int.from_bytes(stream[8 * i : 8 * i + 8], "little", signed=True) for i in range(n)]


def gaussians(draw: bytes, address: str, n: int) -> Tensor:
    """Box and Muller: the first n words are radii, the other n angles, each by its upper 53 bits."""
    uniform = [((word % 2**64 >> 11) + 0.5) / 2**53 for word in words(draw, address, 2 * n)]
    radii, angles = uniform[:n], uniform[n:]
    values = [math.sqrt(-2 * math.log(r)) * math.cos(2 * math.pi * a) for r, a in zip(radii, angles, strict=True)]
    return torch.tensor(values, dtype=torch.float64)


def sealed(fed: Federation, theta: Model, draw: bytes, how: str, keep: float) -> Iterator[Model]:
    """Every hidden weight perturbed by the draw, running statistics as new, then the others."""
    model = dict(theta)
    for name in HIDDEN:
        w, address = theta[name], json.dumps([how, name, None])
        rows = w.flatten(1)
        n = len(rows)
        if how == "fade":
            noise = gaussians(draw, address, w.numel()).reshape(w.shape)
            model[name] = keep * w + math.sqrt(1 - keep**2) * w.square().mean().sqrt() * noise
        elif how == "signs":
            signs = [-1.0 if word < 0 else 1.0 for word in words(draw, address, n)]
            model[name] = torch.stack([s * row for s, row in zip(signs, w, strict=True)])
        elif how == "permute":
            drawn = words(draw, f"{address}/order", n)
            order = sorted(range(n), key=drawn.__getitem__)
            signs = [-1.0 if word < 0 else 1.0 for word in words(draw, f"{address}/signs", n)]
            model[name] = torch.stack([s * w[i] for s, i in zip(signs, order, strict=True)])
        else:  # orthogonal: Gram and Schmidt on the columns of a Gaussian matrix
            columns: list[Tensor] = []
            for column in gaussians(draw, address, n * n).reshape(n, n).T:
                for earlier in columns:
                    column = column - (earlier @ column) * earlier
                columns.append(column / column.norm())
            model[name] = (torch.stack(columns, dim=1) @ rows).reshape(w.shape)
    model["norm.running_mean"] = torch.zeros_like(model["norm.running_mean"])
    model["norm.running_var"] = torch.ones_like(model["norm.running_var"])
    yield from recovery(fed, model)


# --- FedEraser --------------------------------------------------------------------------------------------------------


def federaser(fed: Federation, past: Sequence[Past], every: int = 1) -> Iterator[Model]:
    """The training once more without the leavers, each update as long as it was then; `fed` draws as training did."""
    stay, weights = fed.holding("retain"), fed.rows("retain")
    model = mean({k: past[0].models[k] for k in stay}, weights)
    yield model
    for t in range(1 + every, len(past) + 1, every):
        then, calibrated = past[t - 1], {}
        for k in stay:
            trained = local(fed, model, k, t)
            new = {n: trained[n] - model[n] for n in PARAMETERS}
            old = {n: then.models[k][n] - then.before[n] for n in PARAMETERS}
            scale = {n: ratio(old[n], new[n]) for n in PARAMETERS}
            calibrated[k] = trained | {n: model[n] + scale[n] * new[n] for n in PARAMETERS}  # buffers as they come
        model = mean(calibrated, weights)
        yield model


def ratio(old: Tensor, new: Tensor) -> float:
    """‖U‖ / ‖Û‖, and 0 where there is nothing to make longer."""
    then, now = (math.sqrt(float(u.square().sum())) for u in (old, new))
    return then / now if now > 0 else 0.0


# --- FUKD -------------------------------------------------------------------------------------------------------------


def fukd(
    fed: Federation, theta: Model, past: Sequence[Past], leaving: Sequence[str], public: Tensor, method: Any
) -> Iterator[Model]:
    """θ* without all that the leavers ever sent, taught by θ* on the server's rows, then the others."""
    model, total = dict(theta), sum(fed.rows("all").values())
    for one in past:
        for k in leaving:
            share = fed.rows("all")[k] / total
            model |= {n: model[n] - share * (one.models[k][n] - one.before[n]) for n in PARAMETERS}
    server = Client(public, torch.zeros(len(public)), torch.zeros(len(public), dtype=torch.bool))
    home = Federation({"server": server}, fed.draws, method.lr, method.momentum, 0.0, method.epochs, fed.batch)
    soft, t = asked(theta, public), method.temperature
    taught = local(home, model, "server", 0, "all", lambda net, step: t**2 * kl(soft[step.rows] / t, net(step.x) / t))
    yield from recovery(fed, taught)


# --- PGD --------------------------------------------------------------------------------------------------------------


def pgd_reference(fed: Federation, theta: Model, last: Mapping[str, Model], leaving: Sequence[str]) -> Model:
    """The others' mean, from θ* and what the leavers sent; no variance below 1e-5."""
    total = sum(fed.rows("all").values())
    shares = {k: fed.rows("all")[k] / total for k in leaving}
    ref = {}
    for name, value in theta.items():
        for k in leaving:
            value = value - shares[k] * last[k][name]
        ref[name] = value / (1 - sum(shares.values()))
    ref["norm.running_var"] = ref["norm.running_var"].clamp(min=1e-5)
    return ref


def pgd(
    fed: Federation, theta: Model, last: Mapping[str, Model], leaving: Sequence[str], method: Any
) -> tuple[Iterator[Model], list[str]]:
    """Each leaver climbs from the others' mean inside a ball; also what happened on the way."""
    ref = pgd_reference(fed, theta, last, leaving)
    away = [square(ref, fed.draws.fresh("radius", i)) for i in range(10)]
    delta, seen, climbed = math.sqrt(sum(away) / 10 / 3), list[str](), {}
    for k in leaving:
        net = net_of(ref)

        def project_and_look(net: Any = net, k: str = k) -> bool:
            w = model_of(net)
            length = math.sqrt(square(w, ref))
            seen.append("step")
            if length > delta:
                net.load_state_dict({n: ref[n] + delta / length * (w[n] - ref[n]) for n in PARAMETERS}, strict=False)
                seen.append("projected")
            stop = bool(square(model_of(net), last[k]) > method.threshold)
            seen.extend(["stopped"] * stop)
            return stop

        batches = steps(fed, k, "forget", 0, epochs=method.iterations, cap=method.updates)
        rule = sgd(fed, net.parameters(), lr=method.lr, momentum=method.momentum, weight_decay=0.0)
        descend(net, rule, batches, ascent, clip=method.clip, after=project_and_look)
        climbed[k] = model_of(net)
    return recovery(fed, mean(climbed, fed.rows("forget"))), seen


# --- MoDE -------------------------------------------------------------------------------------------------------------


def mode(
    fed: Federation,
    theta: Model,
    method: Any,
) -> Iterator[tuple[Model, Model, bool]]:
    """Each round's θ and φ, and whether last round's φ would have said something else about D_u."""
    degrading, guiding = ({"lr": lr, "momentum": 0.0} for lr in (method.degradation_lr, method.lr))
    keep = method.coefficient
    phi = fed.draws.fresh("degraded model")
    yield theta, phi, False
    for r in range(1, method.guidance + 1):
        before = phi
        if r <= method.degradation:
            phi = fedavg(fed, phi, r, **degrading)
            theta = {n: keep * t + (1 - keep) * phi[n] for n, t in theta.items()}
        models, stale = {}, False
        for k, client in fed.clients.items():
            said, old = (asked(model, client.x).argmax(1) for model in (phi, before))
            stale |= not torch.equal(said[client.forget], old[client.forget])
            guided = Client(client.x, torch.where(client.forget, said, client.y), client.forget)

            def loss(net: Any, step: Step, guided: Client = guided) -> Tensor:
                return cross_entropy(net, Step(guided, step.epoch, step.rows))

            models[k] = local(fed, theta, k, r, "all", loss, **guiding)
        theta = mean(models, fed.rows("all"))
        yield theta, phi, stale
    for model in islice(recovery(fed, theta, method.guidance + 1), 1, None):
        yield model, phi, False


# --- FCU --------------------------------------------------------------------------------------------------------------


def fused(base: Tensor, donor: Tensor, rho: float) -> Tensor:
    """The base's phase and high band, the donor's amplitude in the centred low band; by NumPy, shifted and back."""
    if base.ndim == 4:  # (O, I, kh, kw) as the matrix (I·kh) x (kw·O)
        o, i, kh, kw = base.shape
        one, other = (w.permute(1, 2, 3, 0).reshape(i * kh, kw * o) for w in (base, donor))
        return fused(one, other, rho).reshape(i, kh, kw, o).permute(3, 0, 1, 2)
    own, given = (np.fft.fftshift(np.fft.fft2(m.numpy())) for m in (base, donor))
    amplitude = np.abs(own)
    box = tuple(slice(n // 2 - math.floor(n * rho / 2), n // 2 + math.floor(n * rho / 2)) for n in base.shape)
    amplitude[box] = np.abs(given)[box]
    return torch.from_numpy(np.fft.ifft2(np.fft.ifftshift(amplitude * np.exp(1j * np.angle(own)))).real)


def contrasted(fed: Federation, theta: Model, psi: Model, k: str, method: Any) -> tuple[Model, list[float]]:
    """A leaver's phase, and the learning rates of its stretches."""
    net, old, other = net_of(theta), net_of(theta).eval(), net_of(psi).eval()
    adam = torch.optim.Adam(net.parameters(), lr=method.lr, betas=(0.9, method.beta2), weight_decay=method.decay)
    slower = torch.optim.lr_scheduler.ReduceLROnPlateau(
        adam, factor=method.factor, patience=method.patience, min_lr=method.minimum_lr
    )
    losses: list[float] = []

    def contrast(net: Any, step: Step) -> Tensor:
        f = net.features(step.x)
        # e^{s/τ} of both, as the rule has them.
        pull, push = (
            torch.exp((f * g).sum(1) / f.norm(dim=1) / g.norm(dim=1) / method.temperature)
            for g in (other.features(step.x).detach(), old.features(step.x).detach())
        )
        loss = -(pull / (pull + push)).log().mean()
        losses.append(loss.item())
        return loss

    batches, rates = steps(fed, k, "forget", 0, epochs=method.iterations), []
    for _ in range(method.iterations // method.fuse_every):
        losses.clear()
        descend(net, adam, islice(batches, method.fuse_every), contrast)
        own = model_of(net)
        net.load_state_dict(own | {n: fused(own[n], theta[n], method.rho) for n in WEIGHTS}, strict=False)
        rates.append(adam.param_groups[0]["lr"])
        slower.step(sum(losses) / len(losses))
    return model_of(net), rates


def fcu(
    fed: Federation, theta: Model, leaving: Sequence[str], method: Any
) -> tuple[Iterator[Model], dict[str, list[float]]]:
    """Each leaver's phase against one fresh model, averaged, then the others; and each leaver's learning rates."""
    psi = fed.draws.fresh("downgraded model")
    found = {k: contrasted(fed, theta, psi, k, method) for k in leaving}
    model = mean({k: model for k, (model, _) in found.items()}, fed.rows("forget"))
    return recovery(fed, model), {k: rates for k, (_, rates) in found.items()}
