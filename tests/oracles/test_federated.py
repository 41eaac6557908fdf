"""Every federated method against its plain twin: BatchNorm, 10, 30 and 15 rows, several batches, two leavers.

Where a rule has regimes (a clip that acts, a projection, a stop), the test checks that it is in the one it speaks of.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch

from oracles import federated as twins
from oracles.plain import HIDDEN, Past, fedavg, local, mean, trained
from oracles.world import (
    PUBLIC,
    SIZES,
    TRAINING,
    after,
    agree,
    clients,
    differ,
    engine_of,
    floats,
    fresh,
    gone,
    plainly,
    recorded,
    same_way,
    serve,
    server_rows,
    states,
    template,
)
from unfed import rng
from unfed.client.plan import term
from unfed.data import Request
from unfed.engines import Batched
from unfed.engines.sequential import Sequential
from unfed.federation.state import Schedule
from unfed.methods import FCU, FUKD, PGD, FedEraser, FineTune, Led, MoDE, NoT, Retrain, Sealed
from unfed.methods.nr_freeze import NRFreeze
from unfed.model.params import Params

THETA, START = fresh(1), fresh(2)
LEAVING = ("a", "c")


def history(rounds: int) -> tuple[Params, list[Past]]:
    """The training by hand: θ* and its rounds."""
    return trained(plainly(clients(), TRAINING), floats(START), rounds)


# --- FedAvg, FT, NoT, Retrain -----------------------------------------------------------------------------------------


def test_a_round_of_ft_weighs_the_clients_that_stay_by_their_rows() -> None:
    who, fed = gone("a"), plainly(gone("a"))
    same_way(FineTune(), serve(who, THETA), twins.ft(fed, floats(THETA)), 2)
    equal = mean({k: local(fed, floats(THETA), k, 1) for k in "bc"}, dict.fromkeys(SIZES, 1))
    assert differ(fedavg(fed, floats(THETA), 1), equal)


def test_a_round_weighs_by_the_rows_that_are_left_not_by_those_that_were() -> None:
    who = clients(b=range(25), c=[0, 1])  # 10, 5 and 13 rows stay
    fed = plainly(who)
    same_way(FineTune(), serve(who, THETA), twins.ft(fed, floats(THETA)), 1)
    before = mean({k: local(fed, floats(THETA), k, 1) for k in SIZES}, SIZES)
    assert differ(fedavg(fed, floats(THETA), 1), before)


def test_a_last_row_that_would_stand_alone_joins_the_batch_before_it() -> None:
    """Of c's fifteen rows, in batches of seven, the last eight are one batch; a batch of its own has no statistics."""
    fed = plainly(gone("a", "b"))
    same_way(FineTune(), serve(gone("a", "b"), THETA), twins.ft(fed, floats(THETA)), 1)


def test_not_turns_the_sign_of_the_first_weight_and_then_is_fedavg() -> None:
    who = gone(*LEAVING)
    seen = same_way(NoT(), serve(who, THETA), twins.not_(plainly(who), floats(THETA)), 2)
    assert [n for n, t in seen[0].items() if not torch.equal(t, THETA[n])] == ["conv.weight"]


def test_a_one_cycle_moves_the_rate_of_every_round() -> None:
    who, rounds = gone(*LEAVING), 6
    server = serve(who, THETA, schedule=Schedule("one-cycle"), rounds=rounds)
    same_way(FineTune(), server, twins.one_cycle(plainly(who), floats(THETA), rounds), rounds)


def test_retrain_starts_elsewhere_for_every_seed_and_never_at_the_old_model() -> None:
    starts = [Retrain().begin(serve(gone("a"), THETA, seed=seed)).params for seed in (1, 2, 3)]
    for i, one in enumerate(starts):
        assert differ(one, THETA)
        assert all(differ(one, other) for other in starts[:i])


def test_retrain_never_sees_who_left() -> None:
    who = gone(*LEAVING)
    same_way(Retrain(), serve(who, THETA), twins.retrain(plainly(who)), 2)


@pytest.mark.parametrize("layers", [("conv.weight",), ("conv.weight", "head.weight")])
def test_nr_freeze_holds_every_chosen_layer_negated_and_starts_all_else_afresh(layers: tuple[str, ...]) -> None:
    who = gone("a")
    twin = twins.nr_freeze(plainly(who), floats(THETA), layers)
    same_way(NRFreeze(layers=layers), serve(who, THETA), twin, 2)
    found = floats(after(NRFreeze(layers=layers), serve(who, THETA), 2).params)
    assert [n for n, t in found.items() if torch.equal(t, -THETA[n])] == list(layers)


# --- Led --------------------------------------------------------------------------------------------------------------


def test_a_fresh_model_is_led_by_the_old_ones_features_and_then_left_alone() -> None:
    who = gone(*LEAVING)
    twin = twins.led(plainly(who), floats(THETA), 2, 3.0)
    same_way(Led("model", weight=3.0, led=2), serve(who, THETA), twin, 3)


@pytest.mark.parametrize("away", [(1,), (0, 2)])
def test_classes_that_leave_are_taken_out_of_the_teachers_features(away: tuple[int, ...]) -> None:
    who = clients(a=[0, 3], b=range(9))
    method = Led("model").for_requests([Request("r", classes=away)])
    seen = same_way(method, serve(who, THETA), twins.led(plainly(who), floats(THETA), 2, 10.0, away=away), 2)
    assert differ(seen[1], next(islice(twins.led(plainly(who), floats(THETA), 2, 10.0), 1, None)))


def test_nots_model_is_the_teacher_of_the_second_step() -> None:
    who, fed = gone(*LEAVING), plainly(gone(*LEAVING))
    server, method = serve(who, THETA, schedule=Schedule("one-cycle"), rounds=5), Led(teacher_rounds=2, led=2)
    found = list(islice(states(method, server), 6))
    cleaned = floats(THETA) | {"conv.weight": -THETA["conv.weight"]}
    for round, rate in ((1, 1.0), (2, 0.02)):  # a cycle of two rounds
        cleaned = fedavg(fed, cleaned, round, lr=rate * fed.lr)
        agree(found[round].params, fed.draws.fresh("init"))
        agree(found[round].tensors["teacher"], cleaned)
        assert not found[round].model
    expected = fed.draws.fresh("init")
    for round, rate in ((3, 1.0), (4, 1 - 0.98 / 2), (5, 0.02)):  # and one of three
        slower = replace(fed, lr=rate * fed.lr)
        led = twins.led_round(slower, expected, cleaned, round, 10.0, ())
        expected = led if round < 5 else fedavg(slower, expected, round)
        agree(found[round].params, expected, 1e-8)
        assert found[round].model and ("teacher" in found[round].tensors) == (round < 5)


def test_led_by_nothing_is_retrain_and_a_teacher_of_zeros_does_no_harm() -> None:
    who = gone(*LEAVING)
    agree(
        after(Led("model", weight=0.0), serve(who, THETA), 2).params,
        floats(after(Retrain(), serve(who, THETA), 2).params),
    )
    nothing = {n: torch.zeros_like(t) if n.startswith("body.") else t for n, t in THETA.items()}
    found = after(Led("model"), serve(who, nothing), 2).params
    agree(found, floats(after(Retrain(), serve(who, nothing), 2).params))


# --- Sealed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fade", "signs", "permute", "orthogonal"])
def test_sealed_perturbs_every_hidden_weight_by_its_draw_and_forgets_the_statistics(how: str) -> None:
    """The draw of tests: 32 bytes read from the job's seed (conftest.py)."""
    who, server = gone(*LEAVING), serve(gone(*LEAVING), THETA)
    draw = rng.key(server.seed, "sealed").to_bytes(32, "big")
    twin = twins.sealed(plainly(who), floats(THETA), draw, how, 0.3)
    same_way(Sealed(perturbation=how), server, twin, 2)


def test_sealed_can_draw_the_models_own_initialisation() -> None:
    """The draw's first word, without its last bit and its sign, is the seed of the initialisation."""
    server = serve(gone("a"), THETA)
    (word,) = twins.words(rng.key(server.seed, "sealed").to_bytes(32, "big"), "reinit", 1)
    new = floats(fresh(word // 2 % 2**63))
    found = floats(Sealed(perturbation="reinit").begin(server).params)
    kept = {n: t for n, t in floats(THETA).items() if "running" not in n}
    expected = kept | {n: new[n] for n in HIDDEN}
    agree({n: found[n] for n in kept}, expected, 0)


# --- FedEraser --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 2])
def test_federaser_brings_every_new_update_to_the_length_it_had_then(every: int) -> None:
    """Two of three clients leave, so that one alone says how long its updates were; then one leaves."""
    method = FedEraser(every=every)
    theta, kept = recorded(clients(), START, 4, method)
    expected, past = history(4)
    agree(theta, expected)
    for leaving in ("a", "ac"):
        fed = plainly(gone(*leaving), TRAINING)
        found = list(states(method, serve(gone(*leaving), theta, history=kept)))
        replayed = list(twins.federaser(fed, past, every))
        assert len(found) == len(replayed) == {1: 4, 2: 2}[every] and found[-1].done
        for state, model in zip(found, replayed, strict=True):
            agree(state.params, model)
        plain = list(islice(twins.ft(fed, replayed[0]), len(replayed)))[-1]
        assert differ(replayed[-1], plain)


# --- FUKD -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaving", ["a", "ac"])
def test_fukd_subtracts_every_leavers_weighted_updates_and_lets_the_old_model_teach(leaving: str) -> None:
    method = FUKD(epochs=3, lr=0.05, momentum=0.8, temperature=2.5)
    theta, kept = recorded(clients(), START, 2, method)
    expected, past = history(2)
    server = serve(gone(*leaving), theta, history=kept, public=server_rows())
    for one in (replace(method, epochs=0), method):
        twin = twins.fukd(plainly(gone(*leaving)), expected, past, leaving, PUBLIC, one)
        same_way(one, server, twin, 1)


# --- PGD --------------------------------------------------------------------------------------------------------------


CLIMB = PGD(lr=0.02, iterations=3, updates=2, threshold=math.inf, clip=0.3, momentum=0.7)
REGIMES = {
    "clipped": (CLIMB, {"step": 6}),
    "free": (replace(CLIMB, clip=100.0), {"step": 6}),
    "projected": (replace(CLIMB, lr=2.0, clip=100.0), {"projected": 3}),
    "stopped": (replace(CLIMB, clip=100.0, lr=0.05, iterations=9, threshold=3.0), {"stopped": 1}),
}


@pytest.mark.parametrize("regime", REGIMES)
def test_pgd_climbs_from_the_others_mean_clipped_projected_and_stopped(regime: str) -> None:
    method, happens = REGIMES[regime]
    theta, kept = recorded(clients(), START, 2, method)
    expected, past = history(2)
    engine = engine_of(clients())
    server = serve(gone("a"), theta, history=kept, as_it_was=lambda scope: engine)
    fed = plainly(gone("a"))
    twin, seen = twins.pgd(fed, expected, past[-1].models, "a", method)
    others = mean({k: past[-1].models[k] for k in "bc"}, SIZES)
    agree(twins.pgd_reference(fed, expected, past[-1].models, "a"), others)
    for what, least in happens.items():
        assert seen.count(what) >= least, seen
    same_way(method, server, twin, 1, 1e-9)
    if regime == "stopped":  # the threshold is a squared distance: its root would stop elsewhere
        assert method.threshold is not None
        root = replace(method, threshold=method.threshold**2)
        _, elsewhere = twins.pgd(fed, expected, past[-1].models, "a", root)
        assert elsewhere.count("step") != seen.count("step")


def test_several_leavers_climb_from_one_reference_and_are_averaged_by_their_rows() -> None:
    method = replace(CLIMB, clip=100.0)
    theta, kept = recorded(clients(), START, 1, method)
    expected, past = history(1)
    engine = engine_of(clients())
    server = serve(gone(*LEAVING), theta, history=kept, as_it_was=lambda scope: engine)
    twin, seen = twins.pgd(plainly(gone(*LEAVING)), expected, past[-1].models, LEAVING, method)
    assert seen.count("step") == 2 * 6
    same_way(method, server, twin, 1, 1e-9)


def test_a_leavers_last_round_is_replayed_on_the_rows_it_held_then() -> None:
    """Rows 0 to 3 of a were forgotten by an earlier request: a's last model was trained without them."""
    earlier = Request("early", samples=tuple(("a", i) for i in range(4)))
    then = clients(a=range(4))
    theta, kept = recorded(then, THETA, 1, CLIMB, scope=(earlier.to_json(),))
    engines = []

    def as_it_was(scope: list[dict[str, list[Any] | str]]) -> Sequential:
        engines.append([Request.from_json(r) for r in scope])
        return engine_of(clients(a=[position for request in engines[-1] for _, position in request.samples]))

    server = serve(gone("a"), theta, history=kept, as_it_was=as_it_was)
    last = CLIMB.last_models(server)["a"]
    assert engines == [[earlier]]
    agree(last, local(plainly(then, TRAINING), floats(THETA), "a", 1))
    assert differ(last, local(plainly(clients(), TRAINING), floats(THETA), "a", 1))


# --- MoDE -------------------------------------------------------------------------------------------------------------


PLAIN = MoDE(guidance=3, degradation=2, coefficient=0.3, lr=0.1, degradation_lr=0.6)


@pytest.mark.parametrize("forgotten", [{"a": range(10), "c": range(15)}, {"a": range(4), "b": range(12)}])
def test_mode_dissolves_the_model_in_this_rounds_degraded_one_which_then_says_what_the_forgotten_rows_are(
    forgotten: dict[str, range],
) -> None:
    who = clients(**forgotten)
    twin = twins.mode(plainly(who), floats(THETA), PLAIN)
    for state, (theta, phi, stale) in zip(states(PLAIN, serve(who, THETA)), twin, strict=False):
        agree(state.params, theta)
        assert stale == (1 <= state.round <= 2)  # last round's φ would say something else
        if 0 < state.round <= 3:
            agree(state.tensors["phi"], phi)
        if state.round == 4:
            break


def test_a_stack_of_ragged_clients_asks_the_degraded_model_about_forgotten_rows_only() -> None:
    """10, 30 and 15 rows in one stack: the padding of a and c, which leave, is nobody's row and costs nothing."""
    who, phi = gone("a", "c"), fresh(3)
    server = serve(who, THETA)
    plan = server.plan(1, replace(server.base, objective=term("guided"), view="all"))
    engines = (engine_of(who), Batched(template(), who, 3))
    found = []
    for engine in engines:
        blocks = list(engine.train(plan, THETA, tuple(who), {"phi": phi}))
        models = {name: block.of(i) for block in blocks for i, name in enumerate(block.clients)}
        found.append((models, [n for block in blocks for n in block.forwarded]))
    assert found[0][1] == found[1][1] == [2 * 10, 0, 2 * 15]  # two epochs
    for name, model in found[0][0].items():
        agree(found[1][0][name], floats(model))


# --- FCU --------------------------------------------------------------------------------------------------------------


CONTRAST = FCU(
    iterations=20, fuse_every=3, rho=0.9, lr=2.0, beta2=0.8, decay=0.03, temperature=0.4, patience=0, factor=0.5
)


def test_fcu_contrasts_features_with_adam_fuses_and_slows_down() -> None:
    """Two leavers of 10 and 15 rows; the head has no gradient, so Adam leaves it alone, decay and all."""
    who = gone(*LEAVING)
    twin, rates = twins.fcu(plainly(who), floats(THETA), LEAVING, CONTRAST)
    assert all(len(own) == 6 and 0 < own[-1] < own[0] for own in rates.values())  # each slowed down
    (found,) = same_way(CONTRAST, serve(who, THETA), twin, 0, 1e-8)  # Adam magnifies rounding
    agree({n: t for n, t in found.items() if "head" in n}, {n: t for n, t in THETA.items() if "head" in n}, 1e-9)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_fcu_as_it_is_published_is_adam_on_the_leavers_rows(rho: float) -> None:
    method, who = FCU(iterations=20, fuse_every=10, rho=rho), gone("a")
    twin, _ = twins.fcu(plainly(who), floats(THETA), "a", method)
    same_way(method, serve(who, THETA), twin, 1, 1e-9)
    assert after(method, serve(who, THETA), 0).round == 0
