"""The six centralised methods, each against properties that follow from its rule.

One client holds 60 digits in float64; the slow truth beside each method is a loop written out by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unfed import rng
from unfed.client.batch import Batch, Draws, Models, bounds, epoch_key
from unfed.client.objectives import OBJECTIVES
from unfed.client.plan import Measure, Optimiser, Phase, term
from unfed.data import ClientData, load
from unfed.engines import Sequential
from unfed.errors import UnfedError
from unfed.federation.server import JobServer, Members, Setup
from unfed.federation.state import OPTIMISER, Schedule, Settings
from unfed.methods import (
    BadTeacher,
    FineTune,
    GradientAscent,
    L1Sparse,
    Method,
    NoT,
    RandL,
    Retrain,
    SalUn,
    SelectiveSynapticDampening,
    State,
    admit,
)
from unfed.methods.salun import most
from unfed.methods.ssd import dampen
from unfed.model.functional import Template, forward_flops
from unfed.model.networks import build
from unfed.model.params import Params, cast, params_of

DIGITS: Any = load("digits", seed=1, dtype=torch.float64).train
SHAPE, ROWS, BATCH = (1, 8, 8), 60, 16
MODEL = "cnn-tiny-bn"


def fresh(seed: int, model: str = MODEL) -> Params:
    return cast(params_of(build(model, shape=SHAPE, classes=10, seed=seed)), torch.float64, "cpu")


def one_client(forget: int = 12, source: Any = DIGITS) -> ClientData:
    """60 rows of which the first `forget` are D_u."""
    everything = torch.arange(ROWS)
    return ClientData("all", source, everything, everything, everything[:0], everything < forget)


def server_of(
    forget: int = 12,
    *,
    keep: bool = True,
    lr: float = 0.05,
    momentum: float = 0.9,
    decay: float = 5e-4,
    batch: int = BATCH,
    schedule: Schedule | None = None,
    params: Params | None = None,
    model: str = MODEL,
    clients: Mapping[str, ClientData] | None = None,
    source: Any = DIGITS,
) -> JobServer:
    clients = clients or {"all": one_client(forget, source)}
    module = build(model, shape=SHAPE, classes=10, seed=0)
    template = Template(module, SHAPE).to("cpu", torch.float64)
    phase = Phase(batch=batch, optimiser=Optimiser(lr=lr, momentum=momentum, decay=decay))
    settings = Settings(phase=phase, rounds=4, schedule=schedule or Schedule("cosine", minimum=0.001), keep=keep)
    engine = Sequential(template, clients)
    start = params or trained(model)
    setup = Setup(template, lambda seed: fresh(seed, model), forward_flops(template), wired=len(clients) > 1)
    return JobServer(setup, Members(clients, engine), start, settings, 7)


_trained: dict[str, Params] = {}


def trained(model: str = MODEL) -> Params:
    """θ*: two epochs on all rows, so that gradients and accuracies mean something."""
    if model not in _trained:
        _trained[model] = run(Retrain(), server_of(0, params=fresh(3, model), model=model), 4).params
    return _trained[model]


def run(method: Method, server: JobServer, rounds: int) -> State:
    state = method.begin(server)
    while state.round < rounds and not state.done:
        state = method.round(server, state)
    return state


def same(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def loss_on(server: JobServer, params: Params, rows: Tensor) -> float:
    x, y = DIGITS.fetch(rows)
    return float(F.cross_entropy(server.template.bind(params)(x), y))


# --- the optimiser is kept --------------------------------------------------------------------------------------------


def test_a_central_run_is_the_plain_loop_with_one_optimiser_for_all_epochs() -> None:
    """Three epochs of FT against torch.optim.SGD, which nobody restarts, on the same batches."""
    server = server_of()
    client = one_client()
    module = build(MODEL, shape=SHAPE, classes=10, seed=0).double()
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for name, value in server.params.items():
            own[name].copy_(value)
    optimiser = torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-4)
    positions = client.view("retain")
    for r in (1, 2, 3):
        optimiser.param_groups[0]["lr"] = server.scheduled(server.base, r).optimiser.lr
        key = epoch_key(server.plan(r), "all", "retain", 0)
        order = positions[rng.order(rng.fold(key, rng.ORDER), len(positions))]
        for begin, end in bounds(len(order), BATCH):
            x, y = DIGITS.fetch(client.rows[order[begin:end]])
            optimiser.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimiser.step()
    state = run(FineTune(), server, 3)
    for name, value in params_of(module).items():
        torch.testing.assert_close(state.params[name], value, rtol=1e-9, atol=1e-12)
    assert not same(state.params, run(FineTune(), server_of(keep=False), 3).params)


def test_the_optimiser_travels_in_the_state() -> None:
    state = run(FineTune(), server_of(), 1)
    assert set(state.tensors) == {OPTIMISER}
    assert any(bool(t.any()) for t in state.tensors[OPTIMISER].values())


def test_a_central_run_counts_no_bytes_and_three_forwards_per_trained_row() -> None:
    server = server_of(12)
    run(RandL(), server, 2)
    assert server.ledger.comm_bytes == server.ledger.wire_bytes == 0
    assert server.ledger.flops == 2 * ROWS * 3 * forward_flops(server.template)


def test_a_cosine_over_ten_epochs_stays_at_its_minimum_afterwards() -> None:
    schedule = Schedule("cosine", minimum=NoT.recipe.minimum, over=NoT.recipe.over)
    rates = [schedule.rate(NoT.recipe.lr, r, 50) for r in range(1, 51)]
    assert rates[0] == pytest.approx(0.1) and rates[9] > 1e-3 and rates[10:] == [pytest.approx(1e-5)] * 40
    assert rates[:10] == sorted(rates[:10], reverse=True)


def test_a_loss_that_is_not_finite_is_one_sentence() -> None:
    with pytest.raises(UnfedError, match=r"After epoch \d the model has NaN or infinite values.*lower the learning"):
        run(FineTune(), server_of(lr=1e200), 3)


# --- RandL ------------------------------------------------------------------------------------------------------------


def test_randl_without_forgotten_rows_is_ft() -> None:
    assert same(run(RandL(), server_of(0), 3).params, run(FineTune(), server_of(0), 3).params)


def test_randl_does_not_read_the_labels_of_the_forgotten_rows() -> None:
    labels = DIGITS.labels.clone()
    labels[:12] = (labels[:12] + 3) % 10
    other = DIGITS.relabelled(labels, None, None)
    params = trained()
    a = run(RandL(), server_of(12, params=params), 3).params
    assert same(a, run(RandL(), server_of(12, params=params, source=other), 3).params)
    b = run(RandL(exclude_true=True), server_of(12, params=params), 3).params
    assert not same(b, run(RandL(exclude_true=True), server_of(12, params=params, source=other), 3).params)


def _drawn(exclude_true: bool) -> tuple[Tensor, Tensor]:
    """What the objective teaches: a network whose logits are so one-sided that the loss gives the drawn label away."""
    n = 20_000
    y = torch.arange(n) % 10
    words = rng.words(rng.as_key(rng.key("labels")), torch.arange(n))
    batch = Batch(torch.zeros(n, 1), y, torch.ones(n, dtype=torch.bool), words)
    logits = -torch.arange(10.0).expand(n, 10)
    losses = OBJECTIVES["random_label"].loss(lambda x: logits, batch, None, exclude_true=exclude_true)
    return (losses - torch.logsumexp(-torch.arange(10.0), 0)).round().long(), y


def test_random_labels_are_uniform_over_all_classes() -> None:
    drawn, y = _drawn(False)
    assert torch.bincount(drawn, minlength=10).float().div(2000).sub(1).abs().max() < 0.1
    assert 0.05 < float((drawn == y).float().mean()) < 0.15


def test_random_labels_can_leave_the_true_one_out() -> None:
    drawn, y = _drawn(True)
    assert not bool((drawn == y).any())
    assert torch.bincount(drawn, minlength=10).float().div(2000).sub(1).abs().max() < 0.1


def test_random_labels_are_drawn_anew_in_every_pass_and_again_under_the_same_seed() -> None:
    assert same(run(RandL(), server_of(), 2).params, run(RandL(), server_of(), 2).params)
    keys = [epoch_key(server_of().plan(r), "all", "forget", 0) for r in (1, 2)]
    words = [Draws.of(key, torch.arange(12), 1).labels for key in keys]
    assert not torch.equal(rng.below(words[0], 10), rng.below(words[1], 10))


# --- GA ---------------------------------------------------------------------------------------------------------------


def test_one_full_batch_of_ascent_is_minus_one_step_of_descent() -> None:
    server = server_of(12, momentum=0.0, decay=0.0, batch=ROWS, model="cnn-tiny")
    up = run(GradientAscent(), server, 1).params
    down = server.advance(State(server.params), ("all",), replace(server.base, view="forget")).params
    for name in server.template.trainable:
        here = server.params[name]
        torch.testing.assert_close(up[name] - here, here - down[name], rtol=1e-9, atol=1e-14)


def test_ascent_raises_the_loss_on_the_forgotten_rows() -> None:
    server = server_of(12, lr=0.005, model="cnn-tiny")
    forgotten = torch.arange(12)
    assert loss_on(server, run(GradientAscent(), server, 1).params, forgotten) > loss_on(
        server, server.params, forgotten
    )


def test_no_ascent_is_ft() -> None:
    assert same(run(GradientAscent(epochs=0), server_of(), 3).params, run(FineTune(), server_of(), 3).params)


def test_after_the_ascent_momentum_is_fresh() -> None:
    server = server_of()
    state = run(GradientAscent(), server, 1)
    assert OPTIMISER not in state.tensors
    assert same(GradientAscent().round(server, state).params, server.recover(State(state.params, round=1)).params)


def test_ascent_stops_before_the_loss_exceeds_its_limit() -> None:
    server = server_of(40, lr=0.5, momentum=0.0)
    stopped = run(GradientAscent(limit=3.0), server, 1).params
    free = run(GradientAscent(), server_of(40, lr=0.5, momentum=0.0), 1).params
    assert not same(stopped, free)
    assert all(bool(torch.isfinite(t).all()) for t in stopped.values())


# --- BadT -------------------------------------------------------------------------------------------------------------


def _taught(server: JobServer, params: Params, bad: Params, forget: Tensor, rows: Tensor) -> tuple[Tensor, Params]:
    """The mean loss of BadT in eval mode and its gradient."""
    x, y = DIGITS.fetch(rows)
    models = Models(server.template, {"good": server.params, "bad": bad})
    batch = Batch(x, y, forget, torch.zeros(len(rows), dtype=torch.int64))
    leaves = {n: params[n].clone().requires_grad_() for n in server.template.trainable}
    loss = OBJECTIVES["bad_teacher"].loss(server.template.bind(params | leaves), batch, models).mean()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return loss.detach(), dict(zip(leaves, grads, strict=True))


def test_the_old_model_has_nothing_to_learn_from_itself() -> None:
    server = server_of()
    rows = torch.arange(20)
    loss, grads = _taught(server, server.params, fresh(9), torch.zeros(20, dtype=torch.bool), rows)
    assert abs(float(loss)) < 1e-12
    assert max(float(g.abs().max()) for g in grads.values()) < 1e-12


def test_badt_reads_no_label_and_leaves_its_teachers_alone() -> None:
    other = DIGITS.relabelled((DIGITS.labels + 1) % 10, None, None)
    server = server_of()
    state = BadTeacher().begin(server)
    before = {n: t.clone() for n, t in server.params.items()}, {n: t.clone() for n, t in state.tensors["bad"].items()}
    after = run(BadTeacher(), server, 2)
    assert same(server.params, before[0]) and same(after.tensors["bad"], before[1])
    assert same(after.params, run(BadTeacher(), server_of(source=other), 2).params)


def test_with_only_forgotten_rows_the_student_approaches_the_bad_teacher() -> None:
    server = server_of(ROWS - 2, lr=0.05)
    rows = torch.arange(ROWS - 2)
    marks = torch.ones(ROWS - 2, dtype=torch.bool)
    bad = BadTeacher().begin(server).tensors["bad"]
    before, _ = _taught(server, server.params, bad, marks, rows)
    after, _ = _taught(server, run(BadTeacher(), server, 4).params, bad, marks, rows)
    assert after < before


def test_badt_counts_both_teachers() -> None:
    server = server_of()
    run(BadTeacher(), server, 1)
    assert server.ledger.flops == ROWS * (3 + 2) * forward_flops(server.template)


# --- l1-sparse --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [L1Sparse(alpha=0.0), L1Sparse(epochs=0)])
def test_without_a_penalty_l1_sparse_is_ft(method: L1Sparse) -> None:
    assert same(run(method, server_of(), 3).params, run(FineTune(), server_of(), 3).params)


def test_one_step_of_l1_differs_by_alpha_times_the_signs() -> None:
    settings: dict[str, Any] = {"momentum": 0.0, "batch": ROWS, "lr": 0.05}
    alpha = 0.01
    sparse = run(L1Sparse(alpha=alpha), server_of(**settings), 1).params
    server = server_of(**settings)
    plain = run(FineTune(), server, 1).params
    for name in server.template.trainable:
        expected = -0.05 * alpha * server.params[name].sign()
        torch.testing.assert_close(sparse[name] - plain[name], expected, rtol=1e-6, atol=1e-12)


def test_l1_makes_the_weights_smaller_and_then_is_pure_ft() -> None:
    server = server_of()
    sparse, plain = run(L1Sparse(alpha=0.01), server, 2), run(FineTune(), server_of(), 2)

    def size(params: Params) -> float:
        return sum(float(params[n].abs().sum()) for n in server.template.trainable)

    assert size(sparse.params) < size(plain.params)
    assert same(L1Sparse(alpha=0.01).round(server, sparse).params, server.recover(sparse).params)


def test_the_penalty_falls_linearly_from_alpha(monkeypatch: pytest.MonkeyPatch) -> None:
    server, seen = server_of(), []
    advance = JobServer.advance

    def look(self: JobServer, state: State, clients: Any, *phases: Phase, **rest: Any) -> State:
        seen.append([p["alpha"] for phase in phases for p in phase.penalties])
        return advance(self, state, clients, *phases, **rest)

    monkeypatch.setattr(JobServer, "advance", look)
    run(L1Sparse(), server, 3)
    assert seen == [[0.002], [0.001], []]


# --- SSD --------------------------------------------------------------------------------------------------------------


def _importances() -> tuple[JobServer, Params, Params]:
    server = server_of()
    found = []
    for view in ("forget", "all"):
        sums = server.measure(Measure("squared_gradient", view, BATCH), server.params, ("all",))
        found.append({n: sums[n] / sums["batches"] for n in server.template.trainable})
    return server, found[0], found[1]


def test_importances_are_the_mean_square_of_batch_gradients() -> None:
    server, forget, _ = _importances()
    total = {n: torch.zeros_like(t) for n, t in forget.items()}
    for begin, end in bounds(12, BATCH):
        x, y = DIGITS.fetch(torch.arange(begin, end))
        leaves = {n: server.params[n].clone().requires_grad_() for n in total}
        loss = F.cross_entropy(server.template.bind(server.params | leaves)(x), y)
        for name, grad in zip(total, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            total[name] += grad.square()
    for name in total:
        torch.testing.assert_close(forget[name], total[name])


def test_an_infinite_alpha_chooses_nothing() -> None:
    server = server_of()
    assert same(run(SelectiveSynapticDampening(alpha=math.inf), server, 1).params, server.params)


def test_a_large_lambda_changes_nothing() -> None:
    server, forget, whole = _importances()
    most_needed = max(float((forget[n] / whole[n].clamp(min=1e-300)).max()) for n in forget)
    assert same(dampen(server.params, forget, whole, 0.0, 1.01 * most_needed), server.params)


def test_alpha_and_lambda_of_zero_remove_all_that_matters_to_the_forgotten_rows() -> None:
    server, forget, _ = _importances()
    after = run(SelectiveSynapticDampening(alpha=0.0, lam=0.0), server, 1).params
    for name, own in forget.items():
        assert bool((after[name][own > 0] == 0).all())
        assert torch.equal(after[name][own == 0], server.params[name][own == 0])


def test_nothing_grows_and_no_sign_changes() -> None:
    server = server_of()
    state = SelectiveSynapticDampening().begin(server)
    assert state.done and not same(state.params, server.params)
    for name, before in server.params.items():
        after = state.params[name]
        assert bool((after.abs() <= before.abs()).all()) and bool((after * before >= 0).all())
    for name in server.template.state:
        assert torch.equal(state.params[name], server.params[name])


def test_ssd_costs_one_pass_over_the_forgotten_and_one_over_all_rows() -> None:
    server = server_of(12)
    SelectiveSynapticDampening().begin(server)
    assert server.ledger.flops == (12 + ROWS) * 3 * forward_flops(server.template)
    assert server.ledger.comm_bytes == 0


# --- SalUn ------------------------------------------------------------------------------------------------------------


def test_masked_out_weights_are_those_of_the_old_model_at_any_time() -> None:
    server = server_of()
    state = SalUn().begin(server)
    mask = state.tensors["mask"]
    for _ in range(3):
        state = SalUn().round(server, state)
        for name, free in mask.items():
            assert torch.equal(state.params[name][~free], server.params[name][~free])
            assert not torch.equal(state.params[name][free], server.params[name][free]) or not bool(free.any())


@pytest.mark.parametrize("ratio", [0.2, 0.5])
def test_the_mask_lets_the_asked_share_move(ratio: float) -> None:
    server = server_of()
    mask = SalUn(ratio=ratio).begin(server).tensors["mask"]
    parameters = sum(t.numel() for t in mask.values())
    assert sum(int(t.sum()) for t in mask.values()) == int(ratio * parameters)


def test_the_mask_takes_the_largest_gradients_over_all_tensors_at_once() -> None:
    chosen = most({"a": torch.tensor([1.0, -9.0, 0.0]), "b": torch.tensor([[5.0], [-2.0]])}, 0.4)
    assert chosen["a"].tolist() == [False, True, False] and chosen["b"].tolist() == [[True], [False]]


def test_all_weights_is_randl_and_no_weight_is_the_old_model() -> None:
    assert same(run(SalUn(ratio=1.0), server_of(), 3).params, run(RandL(), server_of(), 3).params)
    server = server_of()
    nothing = run(SalUn(ratio=0.0), server, 2).params
    assert all(torch.equal(nothing[n], server.params[n]) for n in server.template.trainable)


def test_salun_counts_its_mask() -> None:
    server = server_of(12)
    run(SalUn(), server, 1)
    assert server.ledger.flops == (12 + ROWS) * 3 * forward_flops(server.template)


# --- NoT and Retrain --------------------------------------------------------------------------------------------------


def test_not_without_layers_is_ft_also_in_one_place() -> None:
    assert same(run(NoT(layers=()), server_of(), 2).params, run(FineTune(), server_of(), 2).params)


def test_retrain_with_nothing_forgotten_repeats_the_training_bit_for_bit() -> None:
    a = run(Retrain(), server_of(0), 2).params
    assert same(a, run(Retrain(), server_of(0, params=fresh(99)), 2).params)


# --- inside a federation ----------------------------------------------------------------------------------------------


def two_clients() -> dict[str, ClientData]:
    """The rows dealt to two clients; client a owns all of D_u."""
    halves = (torch.arange(0, 30), torch.arange(30, ROWS))
    own = torch.arange(30)
    return {
        name: ClientData(name, DIGITS, rows, own, own[:0], rows < 12) for name, rows in zip("ab", halves, strict=True)
    }


@pytest.mark.parametrize("method", [RandL(), GradientAscent(), BadTeacher(), L1Sparse(), SalUn()])
def test_every_method_also_runs_in_a_federation_and_counts_its_bytes(method: Method) -> None:
    server = server_of(keep=False, clients=two_clients())
    state = run(method, server, 2)
    assert state.round == 2 and OPTIMISER not in state.tensors
    assert all(bool(torch.isfinite(t).all()) for t in state.params.values())
    assert server.ledger.comm_bytes > 0


def test_only_owners_climb() -> None:
    server = server_of(keep=False, clients=two_clients())
    GradientAscent().round(server, State(server.params))
    assert server.asked == {1: ["a"]}


def test_federated_ssd_sums_importances() -> None:
    """With client borders on batch borders, the sums over clients are the sums over the whole."""
    batch = 6  # 12 forgotten rows and halves of 30 are whole batches
    clients = two_clients()
    together = server_of(12, batch=batch)
    apart = server_of(keep=False, clients=clients, batch=batch)
    a, b = (SelectiveSynapticDampening().begin(s).params for s in (together, apart))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-12)


def test_masked_out_weights_survive_averaging() -> None:
    server = server_of(keep=False, clients=two_clients())
    state = run(SalUn(), server, 2)
    for name, free in state.tensors["mask"].items():
        assert torch.equal(state.params[name][~free], server.params[name][~free])


CENTRAL = frozenset({"retain", "forget", "init", "central"})


def test_inside_a_federation_they_are_off_until_switched_on() -> None:
    with pytest.raises(UnfedError, match=r"randl is a centralised method; .*methods\.randl\.federated = true"):
        admit("randl", RandL(), "class", CENTRAL - {"central"})
    admit("randl", RandL(federated=True), "client", CENTRAL - {"central"})
    admit("randl", RandL(), "class", CENTRAL)


def test_no_client_can_leave_a_centralised_run() -> None:
    for method in (FineTune(), RandL()):
        with pytest.raises(UnfedError, match="no client can leave it; ask for classes, samples or a fraction"):
            admit(method.name, method, "client", CENTRAL)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SalUn(ratio=1.2), "SalUn's ratio is a share of the weights between 0 and 1, not 1.2"),
        (lambda: SalUn(ratio=math.nan), "SalUn's ratio"),
        (lambda: SelectiveSynapticDampening(alpha=-1.0), "SSD takes an alpha and a lam of at least 0"),
        (lambda: SelectiveSynapticDampening(lam=math.nan), "SSD takes"),
        (lambda: GradientAscent(epochs=-1), "GA takes epochs of at least 0"),
        (lambda: BadTeacher(temperature=0.0), "BadT's temperature must be positive"),
        (lambda: L1Sparse(alpha=-0.1), "ℓ1-sparse takes an alpha and epochs of at least 0"),
    ],
)
def test_numbers_outside_their_range_are_refused_in_one_sentence(make: Any, says: str) -> None:
    with pytest.raises(UnfedError, match=says) as caught:
        make()
    assert str(caught.value).count("\n") == 0


def test_every_default_says_where_it_comes_from() -> None:
    for method in (RandL, GradientAscent, BadTeacher, L1Sparse, SelectiveSynapticDampening, SalUn):
        for name, _, says, source in method.options():
            assert says and source in {"paper", "original", "ours"}, f"{method.name}.{name}"


def test_a_phase_of_its_own_gets_the_rounds_rate() -> None:
    server = server_of(lr=0.1, schedule=Schedule("step", every=1, factor=0.5))
    assert server.scheduled(replace(server.base, objective=term("ascend")), 3).optimiser.lr == pytest.approx(0.025)
