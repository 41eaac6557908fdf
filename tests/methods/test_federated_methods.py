"""FedEraser, FUKD, PGD, MoDE and FCU: the properties their rules promise, on real digits in float64."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import SMALL
from test_perturb import fused_by_numpy
from unfed import rng
from unfed.client import objectives, step
from unfed.client.batch import Batch, Models, bounds, epoch_key, passes
from unfed.client.optimiser import norm
from unfed.client.plan import Phase, Plan, term
from unfed.client.scores import score
from unfed.config.config import Config
from unfed.data import ClientData, Request, TensorSource
from unfed.engines import Sequential
from unfed.engines.base import Block
from unfed.errors import UnfedError
from unfed.federation.history import ClientRecord, FinishedRound, History
from unfed.federation.server import Members
from unfed.federation.state import Ledger, Transfer
from unfed.methods import FCU, FUKD, METHODS, PGD, FedEraser, FineTune, MoDE, Retrain, State
from unfed.methods.mode import mixed
from unfed.methods.pgd import radius
from unfed.model.functional import Template
from unfed.model.networks import build
from unfed.model.params import Params, load_into, params_of, tensor_bytes
from unfed.runs.simulated import simulated
from unfed.runs.world import Residents, World
from worlds import LEAVES, Trained, serve, sized, train, unlearn

EXACT = ("engine.precision=float64", "engine.name=sequential")
CLASS, SAMPLES = Request("c", classes=(3,)), Request("s", fraction=0.1)


def make(*sets: Any) -> World:
    return simulated(Config.parse(SMALL, ("data.train_size=960", *EXACT, *sets)), 0)


@pytest.fixture(scope="module")
def world() -> World:
    return make()


@pytest.fixture(scope="module")
def trained(world: World) -> Trained:
    """θ* after three rounds, with everybody's history."""
    return train(world, 3, {"federaser": FedEraser(), "fukd": FUKD(), "pgd": PGD()})


def equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def close(a: Params, b: Params, atol: float) -> bool:
    """Whether two models are near each other; counters are copied from somebody, not computed."""
    return all(torch.allclose(a[n].double(), b[n].double(), rtol=0, atol=atol) for n in a if a[n].is_floating_point())


def models(world: World, rounds: int = 1, **changes: Any) -> tuple[Params, dict[str, Params], dict[str, int]]:
    """Every client's model of the last of some rounds, the model before it and the weights."""
    server = serve(world, (), seed=world.seeds.training, **changes)
    state = State(server.params)
    for _ in range(rounds - 1):
        state = server.recover(state)
    blocks = list(server.train(server.plan(rounds), state.params, server.participants(rounds, server.retained)))
    return state.params, {b.clients[0]: b.of(0) for b in blocks}, {b.clients[0]: b.samples[0] for b in blocks}


def mean(models: dict[str, Params], samples: dict[str, int]) -> Params:
    total = sum(samples[c] for c in models)
    names = next(iter(models.values()))
    return {n: torch.stack([samples[c] / total * models[c][n] for c in models]).sum(0) for n in names}


def shuffled(world: World, rows: Tensor, seed: int = 0) -> World:
    """The same world, but the labels of these rows permuted, and different from what they were."""
    labels = world.clients[0].source.labels.clone()
    labels[rows] = (labels[rows] + 1 + torch.arange(len(rows)) % 3) % 10
    source = cast(TensorSource, world.clients[0].source).relabelled(labels, None, None)
    clients = tuple(replace(c, source=source) for c in world.clients)
    return replace(world, holders=Residents(clients, world.seeds.partition))


def rows_of(world: World, request: Request) -> Tensor:
    return torch.cat([c.rows[c.view("forget")] for c in world.scoped([request]).values()])


# --- FedEraser --------------------------------------------------------------------------------------------------------


def test_federaser_with_one_kept_round_is_the_others_first_step(world: World) -> None:
    _, histories = train(world, 1, {"fe": FedEraser()})
    state = FedEraser().begin(serve(world, history=histories["fe"]))
    _, client, samples = models(world)
    client.pop("0")
    assert state.done and state.model
    assert close(state.params, mean(client, samples), 1e-12)


@pytest.mark.parametrize("model", ["cnn-tiny", "cnn-tiny-bn", "cnn-tiny-dropout"])
def test_federaser_with_nobody_removed_repeats_the_training_exactly(model: str) -> None:
    world = make(f"model.name={model}", "training.schedule.kind=cosine", "training.epochs=2")
    theta, histories = train(world, 3, {"fe": FedEraser()})
    state = unlearn(FedEraser(), serve(world, (), history=histories["fe"]))
    assert state.round == 2 and equal(state.params, theta)


def test_federaser_never_reads_what_the_leaver_left(world: World, trained: Trained) -> None:
    history = trained[1]["federaser"]
    spoilt = {n: t * math.nan for n, t in history.own["0"].tensors.items()}
    other = replace(history, own={**history.own, "0": ClientRecord(spoilt, history.own["0"].numbers)})
    a, b = (unlearn(FedEraser(), serve(world, history=h)) for h in (history, other))
    assert equal(a.params, b.params)


def test_federaser_keeps_and_replays_every_second_round_only(world: World) -> None:
    method = FedEraser(every=2)
    _, histories = train(world, 5, {"fe": method})
    server = serve(world, history=histories["fe"])
    state = unlearn(method, server)
    assert histories["fe"].own["1"].numbers["rounds"] == [3, 5] and state.round == 2 == method.rounds(20, 5)
    assert server.ledger.comm_bytes == 2 * 2 * 3 * 4 * world.parameters


def test_a_calibration_takes_its_share_of_the_local_epochs_rounded_up() -> None:
    world = make("training.epochs=3")
    method = FedEraser(calibration=0.5)
    _, histories = train(world, 2, {"fe": method})
    server = serve(world, history=histories["fe"])
    unlearn(method, server)
    rows = sum(len(c.view("retain")) for c in world.scoped([LEAVES]).values())
    assert server.ledger.flops == 2 * rows * 3 * world.forward_flops


def test_federaser_leaves_out_who_was_absent_and_skips_a_round_of_leavers_only() -> None:
    world = make("training.participation=0.25")  # one client a round
    method = FedEraser()
    _, histories = train(world, 12, {"fe": method})
    seen = {t: c for c, record in histories["fe"].own.items() for t in record.numbers.get("rounds", [])}
    first = next(c for c, record in histories["fe"].own.items() if "samples" in record.numbers)
    leaver = next(c for c in sorted(set(seen.values())) if c != first)
    server = serve(world, (Request("x", clients=(leaver,)),), history=histories["fe"])
    state = unlearn(method, server)
    assert state.round == sum(c != leaver for c in seen.values()) < len(seen)
    assert {c for asked in server.asked.values() for c in asked} == {*seen.values()} - {leaver}


class KeepsUpdates(FedEraser):
    """FedEraser with a memory of whole updates, so that a test can do its sums by hand."""

    def record(self, history: History, past: FinishedRound) -> History:
        kept, at = super().record(history, past), past.plan.round
        updates = {c: {f"{at}/{n}": u for n, u in past.update(params).items()} for c, _, params in past.models()}
        own = {c: replace(r, tensors={**r.tensors, **updates.get(c, {})}) for c, r in kept.own.items()}
        return kept if at == 1 else replace(kept, own=own)


def calibrated_by_hand(
    world: World, history: History, start: Params, leaving: set[str], skip: Any = ()
) -> tuple[Params, list[int]]:
    """FedEraser's rule written out: who stays trains from θ̃, each tensor of its update gets the length it had."""
    staying = [c.name for c in world.clients if c.name not in leaving and c.name in history.own]
    kept = {t: [c for c in staying if t in history.own[c].numbers.get("rounds", ())] for t in range(2, 99)}
    plan = Plan.from_json(history.numbers["plan"])
    params = start
    replayed: list[int] = []
    for t, clients in kept.items():
        if not clients or t in skip:
            continue
        engine = world.engine(world.scoped([]))
        told = [engine.train(replace(plan, round=t), params, [c], {}) for c in clients]
        answers = [block for blocks in told for block in blocks if isinstance(block, Block)]
        total, after = sum(b.samples[0] for b in answers), {n: w.clone() for n, w in params.items()}
        for block in answers:
            for name in params:
                if not params[name].is_floating_point():
                    after[name] = block.params[name][0]
                    continue
                update = block.params[name][0] - params[name]
                if name in world.template.trainable:
                    update = update * (history.own[block.clients[0]].tensors[f"{t}/{name}"].norm() / update.norm())
                after[name] += block.samples[0] / total * update
        params, replayed = after, [*replayed, t]
    return params, replayed


SIZES = (10, 30, 50, 70)


def first_in(history: History) -> Any:
    """Who was in round 1, and who in a later kept round."""
    own = history.own.items()
    return [c for c, r in own if "samples" in r.numbers], {c: r.numbers.get("rounds", []) for c, r in own}


@pytest.mark.parametrize("model", ["cnn-tiny", "cnn-tiny-bn"])
def test_federaser_gives_each_update_the_length_it_had_and_each_client_its_weight(model: str) -> None:
    world = sized(make(f"model.name={model}", "training.participation=0.5"), *SIZES)
    method, full = FedEraser(), KeepsUpdates()
    _, histories = train(world, 5, {"fe": method, "full": full})
    first, later = first_in(histories["fe"])
    leaver = next(c for c in later if c not in first)
    begun = method.begin(serve(world, (Request("x", clients=(leaver,)),), history=histories["fe"]))
    truth, replayed = calibrated_by_hand(world, histories["full"], begun.params, {leaver})
    state = unlearn(method, serve(world, (Request("x", clients=(leaver,)),), history=histories["fe"]))
    assert close(state.params, truth, 1e-12) and state.round == len(replayed) == 4
    floats = {n: t for n, t in truth.items() if t.is_floating_point()}
    assert any((begun.params[n] - floats[n]).abs().max() > 1e-3 for n in floats)


def test_federaser_starts_at_the_initial_model_where_nobody_who_stays_was_in_round_one() -> None:
    world = sized(make("training.participation=0.5"), *SIZES)
    method = FedEraser()
    _, histories = train(world, 5, {"fe": method, "full": KeepsUpdates()})
    first, later = first_in(histories["fe"])
    assert len(first) == 2 and any(later[c] for c in later if c not in first)
    server = serve(world, (Request("x", clients=tuple(first)),), history=histories["fe"])
    begun = method.begin(server)
    assert equal(begun.params, world.fresh(1)) and not begun.done and not begun.model
    truth, replayed = calibrated_by_hand(world, histories["full"], world.fresh(1), set(first))
    state = unlearn(method, server)
    assert close(state.params, truth, 1e-12) and state.round == len(replayed) > 1
    assert not set(first) & {c for asked in server.asked.values() for c in asked}


def test_federaser_that_never_kept_a_round_of_those_who_stay_says_so() -> None:
    world = make("training.participation=0.25")
    _, histories = train(world, 1, {"fe": FedEraser()})
    (first,), _ = first_in(histories["fe"])
    with pytest.raises(UnfedError, match="No remaining client took part in a round that FedEraser kept; use retrain"):
        FedEraser().begin(serve(world, (Request("x", clients=(first,)),), history=histories["fe"]))


def test_federaser_goes_on_without_the_calibrator_that_asks_to_leave_meanwhile() -> None:
    world = sized(make("training.participation=0.25"), *SIZES)  # one client a round
    method = FedEraser()
    _, histories = train(world, 8, {"fe": method, "full": KeepsUpdates()})
    _, later = first_in(histories["fe"])
    order = [next(c for c in later if t in later[c]) for t in range(2, 9)]
    leaver, other = order[0], next(c for c in order[2:] if c != order[0])
    at = 2 + next(i for i, c in enumerate(order) if c == other)
    server = serve(world, (Request("x", clients=(leaver,)),), history=histories["fe"])
    state = method.begin(server)
    while min(t for c in later if c != leaver for t in later[c] if t > state.numbers["replayed"]) < at:
        state = method.round(server, state)
    # The only one who could calibrate the next kept round asks to leave now.
    everything = [Request("x", clients=(leaver,)), Request("y", clients=(other,))]
    clients = world.scoped(everything, gone=everything[1:])
    server.look_at(Members(clients, world.engine(clients)))
    truth, _ = calibrated_by_hand(world, histories["full"], state.params, {leaver, other}, skip=range(at))
    while not state.done:
        before, state = state, method.round(server, state)
        assert state.round == before.round + 1
    assert state.model and close(state.params, truth, 1e-12)


def test_federaser_is_done_where_the_last_calibrator_leaves() -> None:
    world = sized(make("training.participation=0.25"), *SIZES)
    method = FedEraser()
    _, histories = train(world, 3, {"fe": method})
    _, later = first_in(histories["fe"])
    gone, *_ = (c.name for c in world.clients if c.name not in later)  # somebody leaves who never took part
    server = serve(world, (Request("x", clients=(gone,)),), history=histories["fe"])
    state = method.begin(server)
    assert not state.done
    everything = [Request("x", clients=(gone,)), Request("y", clients=tuple(later))]
    clients = world.scoped(everything, gone=everything[1:])
    server.look_at(Members(clients, world.engine(clients)))
    ended = method.round(server, state)
    assert ended.done and ended.model and equal(ended.params, state.params) and not server.asked


# --- FUKD -------------------------------------------------------------------------------------------------------------


def test_fukd_with_nothing_to_subtract_starts_at_the_old_model_and_has_nothing_to_learn(
    world: World, trained: Trained
) -> None:
    theta, histories = trained
    empty = replace(histories["fukd"], own={c: r for c, r in histories["fukd"].own.items() if c != "0"})
    assert equal(FUKD(epochs=0).begin(serve(world, params=theta, history=empty)).params, theta)
    net = world.template.bind(theta)
    x, y = world.dataset.test.fetch(torch.arange(32))
    batch = Batch(x, y, torch.zeros(32, dtype=torch.bool), torch.zeros(32, dtype=torch.int64))
    loss = objectives.distil(net, batch, Models(world.template, {"teacher": theta}))
    assert loss.abs().max() < 1e-12


def test_fukd_after_one_round_is_the_round_without_the_leavers_updates(world: World) -> None:
    theta, histories = train(world, 1, {"fukd": FUKD()})
    start, client, samples = models(world)
    state = FUKD(epochs=0).begin(serve(world, params=theta, history=histories["fukd"]))
    total = sum(samples.values())
    lazy = {n: t + sum(samples[c] / total * (client[c][n] - t) for c in "123") for n, t in start.items()}
    assert close(state.params, lazy, 1e-12)


def test_fukd_sums_are_the_weighted_updates_of_all_rounds(world: World, trained: Trained) -> None:
    theta, histories = trained
    total = torch.stack([r.tensors["conv1.weight"] for r in histories["fukd"].own.values()]).sum(0)
    assert torch.allclose(total, theta["conv1.weight"] - world.fresh(1)["conv1.weight"])


def test_distillation_teaches_the_student_and_leaves_the_teacher_alone(world: World, trained: Trained) -> None:
    theta, histories = trained
    kept = {n: t.clone() for n, t in theta.items()}
    server = serve(world, params=theta, history=histories["fukd"])
    seen = []
    for epochs in (0, 3):
        params = FUKD(epochs=epochs, lr=0.01).begin(server).params
        x, y = world.dataset.test.fetch(torch.arange(100))
        batch = Batch(x, y, y == -1, y)
        models = Models(world.template, {"teacher": theta})
        seen.append(float(objectives.distil(world.template.bind(params), batch, models).mean()))
    assert seen[1] < 0.8 * seen[0] and equal(theta, kept)


def test_distillation_reads_no_label_sends_nothing_and_costs_four_forward_passes_a_sample(
    world: World, trained: Trained
) -> None:
    theta, histories = trained
    held = torch.cat([c.rows[c.val] for c in world.clients[1:]])
    a, b = (serve(w, params=theta, history=histories["fukd"]) for w in (world, shuffled(world, held)))
    assert equal(FUKD().begin(a).params, FUKD().begin(b).params)
    assert a.ledger.flops == 3 * len(held) * 4 * world.forward_flops
    assert a.ledger.comm_bytes == a.ledger.wire_bytes == 0 and not a.asked


def test_fukd_that_subtracts_too_much_says_so_and_clips_nothing(world: World, trained: Trained) -> None:
    theta, histories = trained
    huge = {n: t * math.inf for n, t in histories["fukd"].own["0"].tensors.items()}
    spoilt = replace(histories["fukd"], own={**histories["fukd"].own, "0": ClientRecord(huge, {"rounds": 3})})
    with pytest.raises(UnfedError, match="not finite"):
        FUKD().begin(serve(world, params=theta, history=spoilt))


# --- PGD --------------------------------------------------------------------------------------------------------------

CLIMB = PGD(lr=0.05, iterations=3, updates=3, threshold=math.inf, clip=2.0)


def test_the_leavers_last_model_is_replayed_bit_for_bit(world: World, trained: Trained) -> None:
    theta, histories = trained
    _, client, _ = models(world, 3)
    last = CLIMB.last_models(serve(world, params=theta, history=histories["pgd"]))
    assert equal(last["0"], client["0"])
    assert len(histories["pgd"].shared) == 1  # one model, whoever leaves


def reference(world: World, trained: Trained, *leaving: Any) -> Params:
    theta, histories = trained
    server = serve(world, (Request("x", clients=leaving),), params=theta, history=histories["pgd"])
    return CLIMB.reference(server, CLIMB.last_models(server))


@pytest.mark.parametrize("leaving", [("0",), ("3",), ("0", "2", "3")])
def test_the_reference_is_the_mean_of_the_others_last_models(world: World, trained: Trained, leaving: Any) -> None:
    _, client, samples = models(world, 3)
    others = mean({c: m for c, m in client.items() if c not in leaving}, samples)
    assert close(reference(world, trained, *leaving), others, 1e-12)


@pytest.mark.parametrize(
    ("model", "who"),
    [
        ("cnn-tiny", {}),
        ("cnn-tiny", {"participation": 0.5}),
        ("cnn-tiny", {"drop_out": 0.4, "quorum": 0.0}),
        ("cnn-tiny-bn", {"participation": 0.75, "drop_out": 0.3}),
    ],
)
def test_the_reference_is_the_others_mean_as_the_last_round_averaged_them(model: str, who: Any) -> None:
    world = sized(make(f"model.name={model}"), *SIZES)
    for rounds in (3, 4):
        trained = train(world, rounds, {"pgd": PGD()}, **{"quorum": 0.0, **who})
        _, client, samples = models(world, rounds, **{"quorum": 0.0, **who})
        seen = list(trained[1]["pgd"].own)
        for leaving in [*((c,) for c in seen), *((a, b) for a in seen for b in seen if a < b)]:
            others = {c: m for c, m in client.items() if c not in leaving}
            if not others:
                with pytest.raises(UnfedError, match="Only leavers took part in the last round"):
                    reference(world, trained, *leaving)
                continue
            found = reference(world, trained, *leaving)
            assert close(found, mean(others, samples), 1e-9), (rounds, leaving, list(client))
            if others == client:  # no leaver was there, so the model is the others' mean as it stands
                assert equal(found, trained[0])


def test_who_is_purged_from_the_records_stays_in_the_mean_it_was_averaged_into() -> None:
    world = sized(make(), *SIZES)
    theta, histories = train(world, 2, {"pgd": PGD()})
    _, client, samples = models(world, 2)
    purged = {"pgd": PGD().purge(histories["pgd"], ["1"])}
    assert "1" not in purged["pgd"].own
    others = mean({c: m for c, m in client.items() if c != "0"}, samples)
    assert close(reference(world, (theta, purged), "0"), others, 1e-12)


def test_the_references_variances_stay_positive() -> None:
    world = make("model.name=cnn-tiny-bn")
    theta, histories = train(world, 2, {"pgd": PGD()})
    server = serve(world, params=theta, history=histories["pgd"])
    last = CLIMB.last_models(server)
    last["0"]["norm1.running_var"] += 1e6
    ref = CLIMB.reference(server, last)
    assert (ref["norm1.running_var"] >= 1e-5).all() and (ref["norm1.running_mean"] != theta["norm1.running_mean"]).any()


def climbed(
    world: World, trained: Trained, method: PGD, requests: tuple[Request, ...] = (LEAVES,)
) -> tuple[Params, float, Params, Ledger]:
    """(w_ref, δ, w, ledger) of the ascent."""
    theta, histories = trained
    server = serve(world, requests, params=theta, history=histories["pgd"])
    ref = method.reference(server, method.last_models(server))
    server = serve(world, requests, params=theta, history=histories["pgd"])
    return ref, radius(server, ref), method.begin(server).params, server.ledger


def distance(world: World, a: Params, b: Params) -> float:
    return float(norm({n: a[n] - b[n] for n in world.template.trainable}))


@pytest.mark.parametrize("lr", [1e-3, 1.0, 50.0, 1e12])
def test_the_ascent_never_leaves_the_ball_and_never_ends_in_nan(world: World, trained: Trained, lr: float) -> None:
    ref, within, w, _ = climbed(world, trained, replace(CLIMB, lr=lr))
    assert distance(world, w, ref) <= within * (1 + 1e-6)
    assert all(torch.isfinite(t).all() for t in w.values())


def test_a_ball_of_radius_zero_gives_the_reference(
    world: World, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unfed.methods.pgd.radius", lambda server, ref: 0.0)
    ref, _, w, _ = climbed(world, trained, CLIMB)
    assert equal({n: w[n] for n in world.template.trainable}, {n: ref[n] for n in world.template.trainable})


def test_climbing_makes_the_leavers_loss_larger(world: World, trained: Trained) -> None:
    ref, _, w, _ = climbed(world, trained, replace(CLIMB, lr=1e-3))
    rows = rows_of(world, LEAVES)
    before, after = (score(world.template, p, world.clients[0].source, rows).mean_loss for p in (ref, w))
    assert after > before


def test_a_threshold_of_zero_stops_after_exactly_one_step_and_none_never(world: World, trained: Trained) -> None:
    replayed = len(world.clients[0].train)
    for threshold, steps in ((0.0, 1), (math.inf, 9)):
        method = replace(CLIMB, threshold=threshold, updates=3)
        *_, ledger = climbed(world, trained, method)
        assert ledger.flops == (replayed + steps * 64) * 3 * world.forward_flops


def test_pgd_counts_two_transfers_and_sends_the_reference_the_last_model_and_the_replay(
    world: World, trained: Trained
) -> None:
    *_, ledger = climbed(world, trained, CLIMB)
    assert ledger.comm_bytes == 2 * 4 * world.parameters
    assert ledger.wire_bytes == 5 * tensor_bytes(world.template.like)  # θ^{T−1} and θ_0^T; w_ref, θ_0^T and w


def test_pgd_keeps_one_model_per_round_in_which_somebody_was_last_seen() -> None:
    world = make("training.participation=0.5")
    theta, histories = train(world, 6, {"pgd": PGD()})
    history = histories["pgd"]
    assert set(history.shared) == {r.numbers["last"] for r in history.own.values()} and len(history.shared) > 1
    for client in history.own:
        key = history.own[client].numbers["last"]
        plan = Plan.from_json(history.numbers[key]["plan"])
        _, found, _ = models(world, plan.round)
        server = serve(world, (Request("x", clients=(client,)),), params=theta, history=history)
        assert equal(CLIMB.last_models(server)[client], found[client])
    gone = PGD().purge(history, ["0"])
    assert "0" not in gone.own and set(gone.shared) == {r.numbers["last"] for r in gone.own.values()}


def test_pgd_refuses_a_client_it_never_saw(world: World, trained: Trained) -> None:
    theta, histories = trained
    with pytest.raises(UnfedError, match="no record of client 0"):
        CLIMB.begin(serve(world, params=theta, history=histories["pgd"].without(["0"])))


@pytest.mark.parametrize("request_", [CLASS, SAMPLES])
def test_pgd_and_fcu_serve_other_scopes_only_if_told_to(world: World, trained: Trained, request_: Request) -> None:
    assert not CLIMB.serves(request_.kind) and not FCU().serves(request_.kind)
    method = replace(CLIMB, any_scope=True)
    assert method.serves(request_.kind)
    ref, within, w, _ = climbed(world, trained, method, (request_,))
    assert equal(ref, trained[0]) and 0 < distance(world, w, ref) <= within


# --- MoDE -------------------------------------------------------------------------------------------------------------

GUIDE = MoDE(guidance=2, degradation=1, coefficient=0.4, lr=0.01, degradation_lr=0.05)


def test_mode_that_erases_nothing_and_learns_nothing_is_the_old_model(world: World, trained: Trained) -> None:
    theta = trained[0]
    still = MoDE(guidance=2, degradation=2, coefficient=1.0, lr=0.0, degradation_lr=0.05)
    assert equal(unlearn(still, serve(world, params=theta), 2).params, theta)


def test_mode_that_keeps_nothing_becomes_the_degraded_model(world: World, trained: Trained) -> None:
    still = MoDE(guidance=1, degradation=1, coefficient=0.0, lr=0.0, degradation_lr=0.05)
    state = unlearn(still, serve(world, params=trained[0]), 1)
    assert equal(state.params, state.tensors["phi"])


@given(st.floats(0, 1), st.integers(0, 1000))
def test_an_erasure_is_the_convex_combination_of_every_tensor(keep: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = ({"w": torch.randn(5, generator=generator), "n": torch.tensor(3 + i)} for i in range(2))
    found = mixed(a, b, keep)
    assert torch.allclose(found["w"], keep * a["w"] + (1 - keep) * b["w"]) and int(found["n"]) == 3


def test_the_degraded_model_is_the_retrained_one_and_rests_after_its_rounds(world: World, trained: Trained) -> None:
    server = serve(world, params=trained[0])
    state = GUIDE.round(server, GUIDE.begin(server))
    own = serve(world)
    plainly = own.base.with_optimiser(lr=0.05, momentum=0.0)
    phi = own.fedavg(own.init("degraded model"), own.plan(1, plainly), own.retained)
    assert equal(state.tensors["phi"], phi)
    assert equal(GUIDE.round(server, state).tensors["phi"], phi)
    assert not GUIDE.round(server, GUIDE.round(server, state)).tensors  # recovery needs no φ


def test_the_guidance_is_one_plain_step_of_everybody_from_the_mixed_model(world: World, trained: Trained) -> None:
    server = serve(world, params=trained[0])
    state = GUIDE.round(server, GUIDE.begin(server))
    phi = state.tensors["phi"]
    start = mixed(trained[0], phi, 0.4)
    rule = replace(server.base, view="all").with_optimiser(lr=0.01, momentum=0.0)
    updates = list(server.train(server.plan(1, rule), start, [c for c in server.clients if c != "0"]))
    taught = server.plan(1, replace(rule, objective=term("guided")))
    updates += server.train(taught, start, ["0"], {"phi": phi})
    assert equal(state.params, server.average(start, updates))


@dataclass(frozen=True, eq=False)
class Marked(Residents):
    """Clients of which a request concerns the rows that it concerns in another world."""

    like: World = field(kw_only=True)

    def scoped(self, requests: Sequence[Request], gone: Sequence[Request] = ()) -> dict[str, ClientData]:
        source = self.clients[0].source
        return {c.name: replace(c, source=source) for c in self.like.scoped(requests, gone).values()}


@pytest.mark.parametrize("request_", [LEAVES, CLASS, SAMPLES])
def test_mode_reads_no_label_of_the_forgotten_data(world: World, trained: Trained, request_: Request) -> None:
    other = shuffled(world, rows_of(world, request_))
    if request_ is CLASS:  # the permuted labels would be another class: keep the marks
        other = replace(other, holders=Marked(other.clients, other.seeds.partition, like=world))
    a, b = (unlearn(GUIDE, serve(w, (request_,), params=trained[0]), 3) for w in (world, other))
    assert equal(a.params, b.params)


@pytest.mark.parametrize(("request_", "owners"), [(LEAVES, 1), (CLASS, 4), (SAMPLES, 4)])
def test_mode_sends_the_degraded_model_to_its_owners_only(
    world: World, trained: Trained, request_: Request, owners: int
) -> None:
    server = serve(world, (request_,), params=trained[0])
    unlearn(GUIDE, server, 2)
    staying = len(server.retained)
    transfers = 1 * 2 * staying + 2 * (2 * 4 + owners)  # r_de·2|R| + r_max·(2N + |owners|)
    assert server.ledger.comm_bytes == transfers * 4 * world.parameters
    assert server.ledger.wire_bytes == transfers * tensor_bytes(world.template.like)
    clients = world.scoped([request_]).values()
    retain, forget, everything = (sum(len(c.view(v)) for c in clients) for v in ("retain", "forget", "all"))
    trained_rows = retain + 2 * everything
    assert server.ledger.flops == (3 * trained_rows + 2 * forget) * world.forward_flops


def test_mode_has_no_model_before_its_guidance_is_over(world: World, trained: Trained) -> None:
    server = serve(world, params=trained[0])
    state = GUIDE.begin(server)
    flags = []
    for _ in range(3):
        flags.append(state.model)
        state = GUIDE.round(server, state)
    assert flags == [False, False, True] and GUIDE.rounds(20, 60) == 22


# --- FCU --------------------------------------------------------------------------------------------------------------

CONTRAST = FCU(iterations=7, fuse_every=3, rho=0.9)


def features(world: World, params: Params, other: Params) -> Tensor:
    x, y = world.dataset.test.fetch(torch.arange(16))
    batch = Batch(x, y, y == -1, y)
    models = Models(world.template, {"start": params, "downgraded": other})
    return objectives.contrast(world.template.bind(params), batch, models)


def test_the_contrast_is_log_two_where_both_models_say_the_same(world: World, trained: Trained) -> None:
    loss = features(world, trained[0], trained[0])
    assert torch.allclose(loss, torch.full_like(loss, math.log(2)))


def test_the_contrast_falls_over_ten_steps_on_one_batch() -> None:
    world = make("training.batch=512")  # one batch is all of D_u
    theta, _ = train(world, 2)
    method = FCU(iterations=10, fuse_every=10, rho=0.0)
    phase = method.contrast(world.training_settings().phase, ())
    losses: list[Any] = []
    for steps in (1, 10):
        server = serve(world, params=theta)
        client = world.scoped([LEAVES])["0"]
        context = {"downgraded": server.init("downgraded model")}
        plan = server.plan(0, replace(phase, steps=steps))
        losses.append(step.visit(world.template, plan, client, theta, context).loss)
    assert losses[1] < losses[0] - 0.05


def published_phase(world: World, method: Any, theta: Params, psi: Params) -> tuple[Params, list[float]]:
    """FCU's phase at the leaver by `torch.optim`, `ReduceLROnPlateau` and a fusion written out, on the same batches."""
    net, home, other = (cast(Any, build("cnn-tiny", shape=(1, 8, 8), classes=10, seed=0).double()) for _ in range(3))
    for module, params in ((net, theta), (home, theta), (other, psi)):
        load_into(module, params)
    net.train(), home.eval(), other.eval()
    optimiser = torch.optim.Adam(net.parameters(), method.lr, betas=(0.9, method.beta2), weight_decay=method.decay)
    slower = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, factor=method.factor, patience=method.patience, min_lr=method.minimum_lr
    )
    client, plan = world.scoped([LEAVES])["0"], Plan(7, 0, ())
    steps = method.iterations // method.fuse_every * method.fuse_every
    taken = 0
    losses: list[float] = []
    rates: list[float] = []
    for turn in passes(Phase(view="forget", steps=steps, batch=64), len(client.view("forget")), 0):
        key = epoch_key(plan, "0", "forget", turn.epoch)
        order = client.view("forget")[rng.order(rng.fold(key, rng.ORDER), len(client.view("forget")))]
        for begin, end in turn.steps:
            x, _ = client.source.fetch(client.rows[order[begin:end]], None)
            optimiser.zero_grad()
            f = net.features(x)
            with torch.no_grad():
                away, towards = home.features(x), other.features(x)
            s_p, s_d = torch.cosine_similarity(f, away), torch.cosine_similarity(f, towards)
            loss = -torch.log(torch.exp(2 * s_d) / (torch.exp(2 * s_d) + torch.exp(2 * s_p))).mean()
            loss.backward()
            optimiser.step()
            taken, losses = taken + 1, [*losses, loss.item()]
            if taken % method.fuse_every == 0:
                for name, w in net.named_parameters():
                    if name in ("conv1.weight", "conv2.weight", "head.linear.weight"):
                        mixed = fused_by_numpy(w.detach().numpy(), theta[name].numpy(), method.rho)
                        w.data.copy_(torch.from_numpy(mixed.copy()))
                slower.step(sum(losses) / len(losses))
                losses = []
                rates.append(optimiser.param_groups[0]["lr"])
    return params_of(net), rates


def test_fcus_phase_is_adam_a_plateau_and_the_fusion_for_every_tensor(world: World, trained: Trained) -> None:
    theta, method = trained[0], FCU(iterations=40, fuse_every=2, rho=0.9, lr=0.05, patience=0)
    server = serve(world, params=theta)
    truth, rates = published_phase(world, method, theta, server.init("downgraded model"))
    assert len(set(rates)) > 1, "the plateau was met"
    found = method.begin(server).params
    assert close(found, truth, 1e-9)
    for name in ("head.linear.weight", "head.linear.bias"):  # the contrast acts on features: the head has no gradient
        assert torch.allclose(found[name], theta[name], rtol=0, atol=1e-12)
    assert distance(world, found, theta) > 1


def test_fcus_head_stays_where_it_was_bit_for_bit_without_a_fusion(world: World, trained: Trained) -> None:
    found = FCU(iterations=4, fuse_every=1, rho=0.0, decay=0.1).begin(serve(world, params=trained[0])).params
    moved = {name for name, t in found.items() if not torch.equal(t, trained[0][name])}
    assert moved == {name for name in found if not name.startswith("head.")}


class Words(nn.Module):
    """Two matrices that are no weights: an embedding of places and a class token; and dropout called by hand."""

    head_name = "out"

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(4, 6))
        self.places = nn.Embedding(4, 6)
        self.mix = nn.Linear(16, 6)
        self.norm = nn.LayerNorm([4, 6])
        self.out = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(x.flatten(1).view(len(x), 4, 16)) + self.places(torch.arange(4)) + self.token
        return self.out.forward(F.dropout(self.norm(x).flatten(1), 0.5, self.training))


def words() -> Words:
    return Words()


@pytest.fixture
def by_hand(allow_code: None) -> World:
    return make("model.name=test_federated_methods:words")


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_fcu_unlearns_on_a_model_that_drops_out_by_hand(engine: str, by_hand: World) -> None:
    theta, _ = train(by_hand, 1)
    world = make("model.name=test_federated_methods:words", f"engine.name={engine}")
    found = CONTRAST.begin(serve(world, params=theta)).params
    truth = CONTRAST.begin(serve(by_hand, params=theta)).params
    assert close(found, truth, 1e-9) and not equal(found, theta)


def test_fcu_fuses_weights_and_neither_embeddings_nor_tokens_nor_norms(by_hand: World) -> None:
    theta, _ = train(by_hand, 1)
    steps = [FCU(iterations=1, fuse_every=1, rho=rho).begin(serve(by_hand, params=theta)).params for rho in (0.0, 0.9)]
    assert {name for name in theta if not torch.equal(steps[0][name], steps[1][name])} == {"mix.weight", "out.weight"}


def test_fcu_is_refused_before_any_work_where_only_the_head_trains() -> None:
    module = build("cnn-tiny", shape=(1, 8, 8), classes=10, seed=0).requires_grad_(False)
    module.head.requires_grad_(True)
    with pytest.raises(UnfedError, match="nothing before it can be trained"):
        FCU().check(Template(module, (1, 8, 8)).module)
    module.norm2.requires_grad_(True)
    FCU().check(Template(module, (1, 8, 8)).module)


def test_fcu_reads_no_label(world: World, trained: Trained) -> None:
    other = shuffled(world, rows_of(world, LEAVES))
    a, b = (CONTRAST.begin(serve(w, params=trained[0])).params for w in (world, other))
    assert equal(a, b) and not equal(a, trained[0])


def test_fcu_drops_leftover_steps_and_its_random_model_travels_as_a_seed(world: World, trained: Trained) -> None:
    server = serve(world, params=trained[0])
    CONTRAST.begin(server)
    rows, left = len(world.clients[0].train), 6
    steps = [b - a for a, b in bounds(rows, 64)] * 3
    assert server.ledger.flops == sum(steps[:left]) * 5 * world.forward_flops  # 6M + 2·2M = 10M
    assert server.ledger.comm_bytes == 2 * 4 * world.parameters
    assert server.ledger.wire_bytes == 2 * tensor_bytes(world.template.like)


# --- all of them ------------------------------------------------------------------------------------------------------

READY = {
    "retrain": Retrain(),
    "ft": FineTune(),
    "not": METHODS["not"](),
    "federaser": FedEraser(),
    "fukd": FUKD(),
    "pgd": CLIMB,
    "mode": GUIDE,
    "fcu": CONTRAST,
}


@pytest.mark.parametrize("name", READY)
@pytest.mark.parametrize("leaving", [("0", "1"), ("0", "1", "3")])
def test_several_clients_can_leave_at_once(world: World, trained: Trained, name: str, leaving: Any) -> None:
    theta, histories = trained
    request = Request("many", clients=leaving)
    server = serve(world, (request,), params=theta, history=histories.get(name))
    state = unlearn(READY[name], server, 1)
    assert all(torch.isfinite(t).all() for t in state.params.values())
    if name in ("pgd", "fcu"):
        assert set(server.asked[0]) == set(leaving)
    if name == "pgd":
        assert server.ledger.comm_bytes == (2 * len(leaving) + 2 * (4 - len(leaving))) * 4 * world.parameters


@pytest.mark.parametrize("name", READY)
def test_partial_participation_works(name: str) -> None:
    world = make("training.participation=0.5", "training.drop_out=0.2", "training.quorum=0.1")
    methods = {n: m for n, m in READY.items() if "history" in m.needs}
    theta, histories = train(world, 5, methods, quorum=0.0)
    leaver = sorted(histories["pgd"].own)[0]
    server = serve(world, (Request("x", clients=(leaver,)),), params=theta, history=histories.get(name), quorum=0.0)
    state = unlearn(READY[name], server, 1)
    assert all(torch.isfinite(t).all() for t in state.params.values())


@pytest.mark.parametrize("name", READY)
def test_who_left_by_an_earlier_request_is_never_asked_again(world: World, trained: Trained, name: str) -> None:
    theta, histories = trained
    requests = (LEAVES, Request("r2", clients=("2",)))
    server = serve(world, requests, params=theta, history=histories.get(name))
    assert server.owners == ("2",) and "0" not in server.clients
    unlearn(READY[name], server, 1)
    assert "0" not in {c for asked in server.asked.values() for c in asked}


BAD = [
    (FedEraser, {"every": 0}, "at least 1"),
    (FedEraser, {"calibration": 0.0}, "between 0 and 1"),
    (FUKD, {"temperature": 0.0}, "positive"),
    (FUKD, {"epochs": -1}, "negative"),
    (PGD, {"lr": -1.0}, "negative"),
    (MoDE, {"coefficient": 1.5}, "between 0 and 1"),
    (MoDE, {"guidance": 2, "degradation": 3}, "r_de = 3 is more than r_max = 2"),
    (MoDE, {"guidance": -1}, "negative"),
    (FCU, {"rho": 1.1}, "between 0 and 1"),
    (FCU, {"rho": -0.1}, "between 0 and 1"),
    (FCU, {"fuse_every": 0}, "at least 1"),
    (FCU, {"temperature": 0.0}, "positive"),
]


@pytest.mark.parametrize(("kind", "values", "says"), BAD)
def test_a_number_that_cannot_be_is_refused_in_one_sentence(kind: Any, values: Any, says: str) -> None:
    with pytest.raises(UnfedError, match=says):
        kind(**values)
    label = kind.name
    with pytest.raises(UnfedError, match=says):
        Config.parse({**SMALL, "methods": {"run": [label], label: values}})


def test_an_empty_or_foreign_history_is_refused(world: World, trained: Trained) -> None:
    theta, histories = trained
    with pytest.raises(UnfedError, match=r"training\.record"):
        FedEraser().begin(serve(world, params=theta))
    for name in ("federaser", "fukd", "pgd"):
        with pytest.raises(UnfedError, match=r"empty|no record"):
            READY[name].begin(serve(world, params=theta, history=History()))
    other = make("model.name=cnn-small")
    for name in ("federaser", "fukd", "pgd"):
        with pytest.raises(UnfedError, match=r"has '[a-z0-9.]+' (with shape|of another model)"):
            READY[name].begin(serve(other, history=histories[name]))


# --- hyperparameters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["cnn", "cnn-wide", "resnet18", "vit-b-16"])
@pytest.mark.parametrize("kind", [PGD, MoDE, FCU])
def test_the_papers_values_fill_what_was_not_set(kind: type[FCU] | type[MoDE] | type[PGD], model: str) -> None:
    table = kind.paper["cnn" if model == "cnn-wide" else model]
    used = kind().on(model)
    assert {name: getattr(used, name) for name in table} == dict(table)


def test_what_is_set_wins() -> None:
    used = PGD(lr=0.5).on("resnet18")
    assert (used.lr, used.iterations) == (0.5, 2)


def test_an_architecture_the_paper_does_not_have_must_be_told() -> None:
    with pytest.raises(UnfedError, match=r"set methods\.pgd\.lr .*0\.1 \(cnn\)"):
        PGD().on("my.module:factory")
    whole = PGD(lr=0.1, iterations=1, updates=1, threshold=1.0, clip=1.0)
    assert whole.on("my.module:factory") is whole


def test_defaults_per_architecture_are_shown_with_their_source() -> None:
    shown = {name: (str(default), source) for name, default, _, source in MoDE.options()}
    assert shown["coefficient"] == ("0.4 (cnn), 0.95 (resnet18), 0.9 (vit-b-16)", "paper")


# --- the engine is not in the picture ---------------------------------------------------------------------------------


def test_freight_counts_models_and_wire_apart(world: World) -> None:
    server = serve(world)
    assert isinstance(server.engine, Sequential)
    extra = {"phi": server.params}
    list(server.train(server.plan(1), server.params, ["1"], extra, transfer=Transfer(down=0, up=0, seeded=("phi",))))
    assert (server.ledger.comm_bytes, server.ledger.wire_bytes) == (0, 2 * tensor_bytes(world.template.like))


SERVED = [(name, request) for request in (LEAVES, CLASS) for name, m in READY.items() if m.serves(request.kind)]


@pytest.mark.parametrize(("name", "request_"), SERVED)
def test_the_batched_engine_gives_the_same_model(world: World, trained: Trained, name: str, request_: Request) -> None:
    method = READY[name]
    theta, histories = trained
    stacked = make("engine.name=batched")
    assert stacked.engine({}).name == "batched"
    a, b = (unlearn(method, serve(w, (request_,), theta, histories.get(name)), 1).params for w in (world, stacked))
    assert close(a, b, 1e-9)
