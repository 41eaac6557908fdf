"""One step of every federated method, computed by hand with clients of 10, 30 and 15 rows.

`hand.py` has the federation and the hand. Each test says a method's rule in plain PyTorch and compares tensors; where a
rule has regimes (a clip that acts, a projection, a stop), the test checks that it is in the one it speaks of.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import hand
from oracles.hand import (
    SIZES,
    agree,
    clients,
    cross_entropy,
    differ,
    engine_of,
    fedavg,
    fresh,
    gone,
    locals_of,
    mean,
    recorded,
    rows,
    serve,
    square,
    stepped,
)
from unfed.client.plan import term
from unfed.data import Request
from unfed.engines import Batched
from unfed.engines.sequential import Sequential
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods import FCU, FUKD, PGD, FedEraser, FineTune, MoDE, NoT, Retrain
from unfed.methods.base import Method
from unfed.model.params import Params, load_into, params_of

THETA = fresh(1)


def after(method: Method, server: Server, rounds: int) -> State:
    state = method.begin(server)
    while state.round < rounds and not state.done:
        state = method.round(server, state)
    return state


# --- FedAvg, FT, NoT, Retrain -----------------------------------------------------------------------------------------


def test_a_round_of_ft_weighs_the_clients_that_stay_by_their_rows() -> None:
    who = gone("a")
    expected = fedavg(fedavg(THETA, who), who)
    agree(after(FineTune(), serve(who, THETA), 2).params, expected)
    equal = mean(locals_of(THETA, who), dict.fromkeys(SIZES, 1))
    assert differ(fedavg(THETA, who), equal)


def test_a_round_weighs_by_the_rows_that_are_left_not_by_those_that_were() -> None:
    who = clients(b=range(25), c=[0, 1])  # 10, 5 and 13 rows stay
    agree(after(FineTune(), serve(who, THETA), 1).params, fedavg(THETA, who))
    before = mean(locals_of(THETA, who), SIZES)
    assert differ(fedavg(THETA, who), before)


def test_not_turns_the_sign_of_the_first_weight_and_then_is_fedavg() -> None:
    who = gone("b")
    turned = THETA | {"body.weight": -THETA["body.weight"]}
    agree(after(NoT(), serve(who, THETA), 0).params, turned, 0)
    agree(after(NoT(), serve(who, THETA), 1).params, fedavg(turned, who))


def test_retrain_starts_elsewhere_for_every_seed_and_never_at_the_old_model() -> None:
    starts = [Retrain().begin(serve(gone("a"), THETA, seed=seed)).params for seed in (1, 2, 3)]
    for i, one in enumerate(starts):
        assert differ(one, THETA)
        assert all(differ(one, other) for other in starts[:i])


def test_retrain_never_sees_who_left() -> None:
    who = gone("a")
    server = serve(who, THETA)
    start = Retrain().begin(server).params
    agree(after(Retrain(), server, 1).params, fedavg(start, who))


# --- FedEraser --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["tensor", "global"])
def test_federaser_brings_every_new_update_to_the_length_it_had_then(granularity: Literal["tensor", "global"]) -> None:
    method, start = FedEraser(granularity=granularity), fresh(2)
    _, history = recorded(clients(), start, 3, method)
    # The training by hand: θ^t, and ‖U_k^t‖ of every client, tensor by tensor.
    theta, lengths = start, []
    for _ in range(3):
        models = locals_of(theta, clients())
        lengths.append({k: {n: (m[n] - theta[n]).norm() for n in m} for k, m in models.items()})
        theta = mean(models, SIZES)
    # The replay by hand, without a.
    first = fedavg(start, gone("a"))
    expected = first
    for then in lengths[1:]:
        calibrated = {}
        for k, model in locals_of(expected, gone("a")).items():
            new = {n: model[n] - expected[n] for n in model}
            scale = {n: then[k][n] / new[n].norm() for n in new}
            if granularity == "global":
                whole = [torch.stack(list(d.values())).norm() for d in (then[k], {n: u.norm() for n, u in new.items()})]
                scale = dict.fromkeys(new, whole[0] / whole[1])
            calibrated[k] = {n: expected[n] + scale[n] * new[n] for n in new}
        expected = mean(calibrated, SIZES)
    state = after(method, serve(gone("a"), theta, history=history), 9)
    assert state.done and state.round == 2
    agree(state.params, expected)
    assert differ(state.params, fedavg(fedavg(first, gone("a")), gone("a")))


# --- FUKD -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaving", ["a", "ac"])
def test_fukd_subtracts_every_leavers_weighted_updates_and_lets_the_old_model_teach(leaving: str) -> None:
    method = FUKD(epochs=3, lr=0.05, momentum=0.8, temperature=2.5)
    start, total = fresh(2), sum(SIZES.values())
    _, history = recorded(clients(), start, 2, method)
    theta, sums = start, {n: torch.zeros_like(t) for n, t in start.items()}
    for _ in range(2):
        models = locals_of(theta, clients())
        for k in leaving:
            sums = {n: s + SIZES[k] / total * (models[k][n] - theta[n]) for n, s in sums.items()}
        theta = mean(models, SIZES)
    lazy = {n: theta[n] - s for n, s in sums.items()}
    server = serve(gone(*leaving), theta, history=history, public=hand.server_rows())
    agree(replace(method, epochs=0).begin(server).params, lazy)
    x, _ = rows(hand.server_rows(), "all")
    taught = hand.module_of(theta)(x).detach()
    taught_by = stepped(
        lazy,
        lambda net: 2.5**2 * hand.kl(taught / 2.5, net(x) / 2.5),
        times=3,
        lr=0.05,
        momentum=0.8,
        weight_decay=0.0,
    )
    agree(method.begin(server).params, taught_by)
    agree(after(method, server, 1).params, fedavg(taught_by, gone(*leaving)))


# --- PGD --------------------------------------------------------------------------------------------------------------


class Drawn:
    """Hands out initialisations and remembers them."""

    def __init__(self) -> None:
        self.models: list[Params] = []

    def __call__(self, seed: int) -> Params:
        self.models.append(fresh(seed))
        return self.models[-1]


def climb(ref: Params, last: Params, x: Tensor, y: Tensor, method: Any, delta: float) -> tuple[Params, list[str]]:
    """The ascent by hand, and what happened on the way."""
    seen: list[str] = []

    def project_and_look(module: Any, number: int) -> bool:
        w = params_of(module)
        seen.append("step")
        if math.sqrt(square(w, ref)) > delta:
            shrink = delta / math.sqrt(square(w, ref))
            load_into(module, {n: ref[n] + shrink * (w[n] - ref[n]) for n in w})
            seen.append("projected")
        stop = bool(square(params_of(module), last) > method.threshold)
        seen.extend(["stopped"] * stop)
        return stop

    loss = cross_entropy(x, y)
    w = stepped(
        ref,
        lambda net: -loss(net),
        times=method.iterations,
        lr=method.lr,
        momentum=method.momentum,
        weight_decay=0.0,
        clip=method.clip,
        after=project_and_look,
    )
    return w, seen


CLIMB = PGD(lr=0.05, iterations=4, updates=5, threshold=math.inf, clip=0.3, momentum=0.7)
REGIMES = {
    "clipped": (CLIMB, {"step": 4}),
    "free": (replace(CLIMB, clip=100.0), {"step": 4}),
    "projected": (replace(CLIMB, lr=2.0, clip=100.0, iterations=6), {"projected": 3}),
    "stopped": (replace(CLIMB, clip=100.0, lr=0.1, iterations=9, threshold=0.6), {"stopped": 1}),
}


@pytest.mark.parametrize("regime", REGIMES)
def test_pgd_climbs_from_the_others_mean_clipped_projected_and_stopped(regime: str) -> None:
    method, happens = REGIMES[regime]
    start = fresh(2)
    _, history = recorded(clients(), start, 2, method)
    before = fedavg(start, clients())
    models = locals_of(before, clients())
    theta, ref = mean(models, SIZES), mean({k: models[k] for k in "bc"}, SIZES)
    drawn = Drawn()
    who = gone("a")
    engine = engine_of(clients())
    server = serve(who, theta, history=history, fresh=drawn, as_it_was=lambda scope: engine)
    found = method.begin(server).params
    assert len(drawn.models) == 10
    delta = math.sqrt(sum(square(ref, other) for other in drawn.models) / 10 / 3)
    expected, seen = climb(ref, models["a"], *rows(who["a"], "forget"), method, delta)
    for what, least in happens.items():
        assert seen.count(what) >= least, seen
    agree(found, expected, 1e-9)
    if regime == "stopped":  # the threshold is a squared distance: its root would stop elsewhere
        assert method.threshold is not None
        _, elsewhere = climb(
            ref, models["a"], *rows(who["a"], "forget"), replace(method, threshold=method.threshold**2), delta
        )
        assert elsewhere.count("step") != seen.count("step")


def test_several_leavers_climb_from_one_reference_and_are_averaged_by_their_rows() -> None:
    method, start = replace(CLIMB, clip=100.0), fresh(2)
    _, history = recorded(clients(), start, 1, method)
    models = locals_of(start, clients())
    theta, ref = mean(models, SIZES), models["b"]
    who, drawn = gone("a", "c"), Drawn()
    engine = engine_of(clients())
    server = serve(who, theta, history=history, fresh=drawn, as_it_was=lambda scope: engine)
    found = method.begin(server).params
    delta = math.sqrt(sum(square(ref, other) for other in drawn.models) / 30)
    climbed = {k: climb(ref, models[k], *rows(who[k], "forget"), method, delta)[0] for k in "ac"}
    agree(found, mean(climbed, SIZES), 1e-9)


def test_a_leavers_last_round_is_replayed_on_the_rows_it_held_then() -> None:
    """Rows 0 to 3 of a were forgotten by an earlier request: a's last model was trained without them."""
    earlier = Request("early", samples=tuple(("a", i) for i in range(4)))
    then = clients(a=range(4))
    theta, history = recorded(then, THETA, 1, CLIMB, scope=(earlier.to_json(),))
    engines = []

    def as_it_was(scope: list[dict[str, list[Any] | str]]) -> Sequential:
        engines.append([Request.from_json(r) for r in scope])
        return engine_of(clients(a=[position for request in engines[-1] for _, position in request.samples]))

    server = serve(gone("a"), theta, history=history, as_it_was=as_it_was)
    last = CLIMB.last_models(server)["a"]
    assert engines == [[earlier]]
    agree(last, locals_of(THETA, then)["a"])
    assert differ(last, locals_of(THETA, clients())["a"])


# --- MoDE -------------------------------------------------------------------------------------------------------------


def answers(params: Params, x: Tensor) -> Tensor:
    """argmax of the logits, row by row."""
    return hand.module_of(params).forward(x).argmax(1)


PLAIN = MoDE(guidance=3, degradation=2, coefficient=0.3, lr=0.1, degradation_lr=0.6)
# (a reading, what its steps are made of by hand: of φ, of the guidance, of the owners' guidance; what stays of θ)
READINGS: dict[str, tuple[MoDE, dict[str, Any], dict[str, Any], dict[str, Any], float]] = {
    "plain": (PLAIN, {"lr": 0.6, "momentum": 0.0}, {"lr": 0.1, "momentum": 0.0}, {"lr": 0.1, "momentum": 0.0}, 0.3),
    "other": (
        replace(
            PLAIN,
            degradation_lr=0.3,
            degradation_momentum=0.5,
            degradation_decay=0.01,
            guidance_momentum=None,
            keeps="new",
            owner_lr="degradation",
        ),
        {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.01},
        {"lr": 0.1},
        {"lr": 0.3},
        0.7,
    ),
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("forgotten", [{"a": range(10)}, {"a": range(4), "b": range(12)}])
def test_mode_dissolves_the_model_in_this_rounds_degraded_one_which_then_says_what_the_forgotten_rows_are(
    reading: str, forgotten: dict[str, range]
) -> None:
    method, degrading, guiding, owning, keep = READINGS[reading]
    who, drawn = clients(**forgotten), Drawn()
    server = serve(who, THETA, fresh=drawn)
    state = method.begin(server)
    phi, theta = drawn.models[0], THETA
    agree(state.params, THETA, 0)
    for r in (1, 2, 3):
        before = phi
        if r <= 2:
            phi = fedavg(phi, who, **degrading)
            theta = {n: keep * t + (1 - keep) * phi[n] for n, t in theta.items()}
        models, stale = {}, []
        for k, client in who.items():
            x, y = rows(client, "all")
            steps = guiding
            if client.forget.any():
                y, old = (torch.where(client.forget, answers(p, x), y) for p in (phi, before))
                stale.append(not torch.equal(y, old))
                steps = owning
            models[k] = stepped(theta, cross_entropy(x, y), **steps)
        assert any(stale) == (r <= 2)  # last round's φ would say something else
        theta = mean(models, SIZES)
        state = method.round(server, state)
        agree(state.params, theta)
        agree(state.tensors["phi"], phi)
    agree(method.round(server, state).params, fedavg(theta, who))


def test_a_stack_of_ragged_clients_asks_the_degraded_model_about_forgotten_rows_only() -> None:
    """10, 30 and 15 rows in one stack: the padding of a and c, which leave, is nobody's row and costs nothing."""
    who, phi = gone("a", "c"), fresh(3)
    server = serve(who, THETA)
    plan = server.plan(1, replace(server.base, objective=term("guided"), view="all"))
    engines = (engine_of(who), Batched(hand.template(), who, 3))
    found = []
    for engine in engines:
        blocks = list(engine.train(plan, THETA, tuple(who), {"phi": phi}))
        models = {name: block.of(i) for block in blocks for i, name in enumerate(block.clients)}
        found.append((models, [n for block in blocks for n in block.forwarded]))
    assert found[0][1] == found[1][1] == [2 * 10, 0, 2 * 15]  # two epochs
    for name, model in found[0][0].items():
        agree(found[1][0][name], model)


# --- FCU --------------------------------------------------------------------------------------------------------------


def fused(base: Tensor, donor: Tensor, rho: float) -> Tensor:
    """The base's phase and high band, the donor's amplitude in the centred low band; by NumPy, shifted and back."""
    own, given = (np.fft.fftshift(np.fft.fft2(m.numpy())) for m in (base, donor))
    amplitude = np.abs(own)
    box = tuple(slice(n // 2 - math.floor(n * rho / 2), n // 2 + math.floor(n * rho / 2)) for n in base.shape)
    amplitude[box] = np.abs(given)[box]
    return torch.from_numpy(np.fft.ifft2(np.fft.ifftshift(amplitude * np.exp(1j * np.angle(own)))).real)


def contrasted(theta: Params, psi: Params, x: Tensor, method: Any, swap: bool = False) -> tuple[Params, list[float]]:
    """A leaver's phase by hand, and the learning rates of its stretches."""
    module, old, other = hand.module_of(theta), hand.module_of(theta), hand.module_of(psi)
    adam = torch.optim.Adam(
        module.parameters(), lr=method.lr, betas=(0.9, method.beta2), weight_decay=method.decay, eps=1e-8
    )
    slower = torch.optim.lr_scheduler.ReduceLROnPlateau(
        adam, factor=method.factor, patience=method.patience, min_lr=method.minimum_lr
    )
    away, towards = old.features(x).detach(), other.features(x).detach()
    rates = []
    for _ in range(method.iterations // method.fuse_every):
        losses: list[Any] = []
        for _ in range(method.fuse_every):
            adam.zero_grad()
            f = module.features(x)
            # e^{s/τ} of both, as the rule has them.
            pull, push = (
                torch.exp((f * g).sum(1) / f.norm(dim=1) / g.norm(dim=1) / method.temperature) for g in (towards, away)
            )
            loss = -(pull / (pull + push)).log().mean()
            loss.backward()
            adam.step()
            losses.append(loss.item())
        with torch.no_grad():
            for name, p in module.named_parameters():
                base, donor = (theta[name], p.clone()) if swap else (p.clone(), theta[name])
                p.copy_(fused(base, donor, method.rho) if p.ndim == 2 else base)
        rates.append(adam.param_groups[0]["lr"])
        slower.step(sum(losses) / len(losses))
    return params_of(module), rates


CONTRAST = FCU(
    iterations=20, fuse_every=3, rho=0.9, lr=2.0, beta2=0.8, decay=0.03, temperature=0.4, patience=0, factor=0.5
)


@pytest.mark.parametrize("order", ["own_phase", "repo_call"])
def test_fcu_contrasts_features_with_adam_fuses_and_slows_down(order: Literal["own_phase", "repo_call"]) -> None:
    """Two leavers of 10 and 15 rows; the head has no gradient, so Adam leaves it alone, decay and all."""
    method = replace(CONTRAST, fusion_order=order)
    who, drawn = gone("a", "c"), Drawn()
    server = serve(who, THETA, fresh=drawn)
    found = method.begin(server).params
    alone = {
        k: contrasted(THETA, drawn.models[0], rows(who[k], "forget")[0], method, order == "repo_call") for k in "ac"
    }
    assert all(len(rates) == 6 and 0 < rates[-1] < 2.0 for _, rates in alone.values())  # each slowed down
    agree(found, mean({k: model for k, (model, _) in alone.items()}, SIZES), 1e-9)
    agree({n: t for n, t in found.items() if "head" in n}, {n: t for n, t in THETA.items() if "head" in n}, 1e-9)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_fcu_as_it_is_published_is_adam_on_the_leavers_rows(rho: float) -> None:
    method, who, drawn = FCU(iterations=20, fuse_every=10, rho=rho), gone("a"), Drawn()
    server = serve(who, THETA, fresh=drawn)
    found = method.begin(server).params
    expected, _ = contrasted(THETA, drawn.models[0], rows(who["a"], "forget")[0], method)
    agree(found, expected, 1e-9)
    agree(method.round(server, method.begin(server)).params, fedavg(expected, who), 1e-9)
