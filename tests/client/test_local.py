"""The one step against PyTorch's own optimisers, and the rules of a visit."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unfed import rng
from unfed.client import step
from unfed.client.batch import Draws, Models, bounds, covered, epoch_key, passes
from unfed.client.optimiser import norm, plateau
from unfed.client.plan import VIEW_NUMBERS, Optimiser, Phase, Plan, term
from unfed.client.step import Visited, autograd, visit
from unfed.data.scope import VIEWS, ClientData, View
from unfed.errors import UnfedError
from unfed.model.functional import Template
from unfed.model.networks import build
from unfed.model.params import Params, params_of
from worlds import Toy, noting


@pytest.fixture
def module() -> Any:
    return build("cnn-tiny", shape=(1, 8, 8), classes=3, seed=3).double()


def run(
    module: Any,
    clients: dict[str, ClientData],
    *phases: Any,
    context: dict[str, Params] | None = None,
    optimiser: None = None,
    keep: bool = False,
    seed: int = 1,
    round: int = 1,
    name: str = "0",
) -> Visited:
    template = Template(module, (1, 8, 8)).to("cpu", torch.float64)
    plan = Plan(seed, round, phases, keep)
    return visit(template, plan, clients[name], params_of(module), context or {}, optimiser)


def plain_loop(
    module: Any,
    client: ClientData,
    plan: Plan,
    make: Callable[..., Any],
    epochs: int = 1,
    batch: int = 4,
    after_backward: Callable[..., Any] | None = None,
) -> Params:
    """A plain PyTorch loop over the same batches."""
    module = copy.deepcopy(module).train()
    optimiser = make(module.parameters())
    for epoch in range(epochs):
        key = epoch_key(plan, client.name, "retain", epoch)
        positions = client.view("retain")
        order = positions[rng.order(rng.fold(key, rng.ORDER), len(positions))]
        for begin, end in bounds(len(order), batch):
            x, y = client.source.fetch(client.rows[order[begin:end]], None)
            optimiser.zero_grad()
            F.cross_entropy(module(x), y).backward()
            if after_backward:
                after_backward(module)
            optimiser.step()
    return params_of(module)


def close(a: Params, b: Params, tolerance: float = 1e-12) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.allclose(a[name], b[name], atol=tolerance, rtol=0), name


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_last_batch_of_one_row_joins_the_one_before() -> None:
    assert bounds(9, 4) == [(0, 4), (4, 9)]
    assert bounds(10, 4) == [(0, 4), (4, 8), (8, 10)]
    assert bounds(1, 4) == [(0, 1)]
    assert bounds(0, 4) == []
    assert bounds(5, 1) == [(0, 1), (1, 2), (2, 3), (3, 5)]


@given(st.integers(0, 300), st.integers(1, 70))
def test_batches_cover_every_row_once(n: int, batch: int) -> None:
    rows = [row for begin, end in bounds(n, batch) for row in range(begin, end)]
    assert rows == list(range(n))


def test_steps_are_exact_even_where_epochs_do_not_divide() -> None:
    turns = list(passes(Phase(steps=7, batch=4), 12, done=0))
    assert [t.epoch for t in turns] == [0, 1, 2]
    assert sum(len(t.steps) for t in turns) == 7


def test_a_cap_limits_the_batches_of_every_epoch() -> None:
    assert [len(t.steps) for t in passes(Phase(epochs=3, cap=2, batch=2), 12, done=5)] == [2, 2, 2]
    assert [t.epoch for t in passes(Phase(epochs=3, cap=2, batch=2), 12, done=5)] == [5, 6, 7]


# --- the optimisers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 5e-4), (0.0, 0.0), (0.9, 0.0)])
def test_a_visit_equals_a_plain_loop_with_pytorchs_sgd(module: Any, toy: Toy, momentum: float, decay: float) -> None:
    clients = toy(13)
    phase = Phase(epochs=2, batch=4, optimiser=Optimiser(lr=0.1, momentum=momentum, decay=decay))
    ours = run(module, clients, phase).params
    truth = plain_loop(
        module,
        clients["0"],
        Plan(1, 1, (phase,)),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=momentum, weight_decay=decay),
        epochs=2,
    )
    close(ours, truth)


def test_a_visit_equals_a_plain_loop_with_pytorchs_adam(module: Any, toy: Toy) -> None:
    clients = toy(13)
    rule = Optimiser("adam", lr=0.01, decay=5e-4, beta2=0.99)
    ours = run(module, clients, Phase(epochs=2, batch=4, optimiser=rule)).params
    truth = plain_loop(
        module,
        clients["0"],
        Plan(1, 1, ()),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=5e-4, betas=(0.9, 0.99)),
        epochs=2,
    )
    close(ours, truth, 1e-9)


def test_the_clip_is_pytorchs_clip(module: Any, toy: Toy) -> None:
    clients = toy(13)
    ours = run(module, clients, Phase(batch=4, optimiser=Optimiser(lr=0.1, decay=0.0, clip=0.05))).params
    truth = plain_loop(
        module,
        clients["0"],
        Plan(1, 1, ()),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        after_backward=lambda m: torch.nn.utils.clip_grad_norm_(m.parameters(), 0.05),
    )
    close(ours, truth)


def test_the_plateau_is_pytorchs_plateau() -> None:
    losses = [3.0, 2.0, 2.5, 2.4, 2.6, 1.0, 1.5, 1.5, 1.5, 1.5]
    weight = torch.nn.Parameter(torch.zeros(()))
    optimiser = torch.optim.SGD([weight], lr=0.01)
    truth = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, factor=0.1, patience=2, min_lr=1e-7)
    rule = term("plateau", every=1, factor=0.1, patience=2, minimum=1e-7)
    zero = torch.zeros((), dtype=torch.float64)
    carry = {"plateau/best": zero + torch.inf, "plateau/bad": zero, "plateau/scale": zero + 1, "plateau/sum": zero}
    for number, loss in enumerate(losses, 1):
        truth.step(loss)
        carry |= plateau(rule, 0.01, carry, zero + loss, number)
        assert float(0.01 * carry["plateau/scale"]) == pytest.approx(optimiser.param_groups[0]["lr"])


def test_a_plateau_looks_at_the_mean_of_every_n_steps() -> None:
    rule = term("plateau", every=2, factor=0.5, patience=0, minimum=0.0)
    zero = torch.zeros((), dtype=torch.float64)
    carry = {"plateau/best": zero + 2, "plateau/bad": zero, "plateau/scale": zero + 1, "plateau/sum": zero}
    carry |= plateau(rule, 1.0, carry, zero + 1, 1)
    assert float(carry["plateau/scale"]) == 1.0
    carry |= plateau(rule, 1.0, carry, zero + 4, 2)  # mean 2.5, worse than 2
    assert float(carry["plateau/scale"]) == 0.5
    assert float(carry["plateau/sum"]) == 0.0


def test_a_rate_that_falls_on_a_plateau_stops_at_its_minimum() -> None:
    rule = term("plateau", every=1, factor=0.1, patience=0, minimum=0.004)
    zero = torch.zeros((), dtype=torch.float64)
    carry = {"plateau/best": zero + 1, "plateau/bad": zero, "plateau/scale": zero + 1, "plateau/sum": zero}
    for number in (1, 2, 3):
        carry |= plateau(rule, 0.01, carry, zero + 2, number)
        assert float(0.01 * carry["plateau/scale"]) == pytest.approx(0.004)


def test_kept_moments_go_on_where_they_were(module: Any, toy: Toy) -> None:
    clients, rule = toy(12), Optimiser(lr=0.1)
    phase = Phase(batch=4, optimiser=rule)
    whole = run(module, clients, Phase(epochs=2, batch=4, optimiser=rule)).params
    first = run(module, clients, phase)
    template = Template(module, (1, 8, 8)).to("cpu", torch.float64)
    # The second epoch draws under its own number, so replay it as epoch 1 of the same plan.
    second = visit(template, Plan(1, 1, (phase,)), clients["0"], first.params, {}, first.optimiser)
    restarted = visit(template, Plan(1, 1, (phase,)), clients["0"], first.params, {}, None)
    assert not torch.equal(second.params["conv1.weight"], restarted.params["conv1.weight"])
    assert set(first.optimiser) == {f"momentum/{n}" for n in template.trainable}
    assert whole.keys() == second.params.keys()


# --- the rules --------------------------------------------------------------------------------------------------------


def test_the_l1_penalty_adds_alpha_times_the_sign(module: Any, toy: Toy) -> None:
    clients, quiet = toy(4), Optimiser(lr=1.0, momentum=0.0, decay=0.0)
    plain = run(module, clients, Phase(batch=4, optimiser=quiet)).params
    sparse = run(module, clients, Phase(batch=4, optimiser=quiet, penalties=(term("l1", alpha=0.01),))).params
    start = params_of(module)
    for name in plain:
        assert torch.allclose(plain[name] - sparse[name], 0.01 * start[name].sign(), atol=1e-12), name


def test_a_penalty_of_zero_changes_no_bit(module: Any, toy: Toy) -> None:
    plain = run(module, toy(9), Phase(batch=4)).params
    zero = run(module, toy(9), Phase(batch=4, penalties=(term("l1", alpha=0.0),))).params
    for name in plain:
        assert torch.equal(plain[name], zero[name])


def test_a_ball_is_never_left(module: Any, toy: Toy) -> None:
    phase = Phase(batch=4, optimiser=Optimiser(lr=50.0), after=(term("ball", around="start", radius=0.5),))
    done = run(module, toy(20), phase).params
    start = params_of(module)
    assert float(norm({n: done[n] - start[n] for n in start})) == pytest.approx(0.5, rel=1e-9)


def test_a_held_tensor_stays_exactly_where_it_was(module: Any, toy: Toy) -> None:
    home = {n: -t for n, t in params_of(module).items()}
    phase = Phase(batch=4, optimiser=Optimiser(lr=0.1), after=(term("hold", of="home", names="conv1.weight"),))
    done = run(module, toy(20), phase, context={"home": home}).params
    assert torch.equal(done["conv1.weight"], home["conv1.weight"])
    assert not torch.equal(done["conv2.weight"], params_of(module)["conv2.weight"])


def test_a_map_acts_every_nth_step_only(module: Any, toy: Toy) -> None:
    after = (term("hold", of="start", names="conv1.weight", every=2),)
    odd = run(module, toy(12), Phase(batch=4, optimiser=Optimiser(lr=0.1), after=after)).params  # 3 steps
    even = run(module, toy(16), Phase(batch=4, optimiser=Optimiser(lr=0.1), after=after)).params  # 4 steps
    start = params_of(module)["conv1.weight"]
    assert not torch.equal(odd["conv1.weight"], start)
    assert torch.equal(even["conv1.weight"], start)


def test_beyond_keeps_the_step_that_crossed_and_stops_there(module: Any, toy: Toy) -> None:
    phase = Phase(batch=4, optimiser=Optimiser(lr=0.1), stop=term("beyond", of="start", squared=0.0))
    stopped = run(module, toy(20), phase)
    one = run(module, toy(20), Phase(batch=4, steps=1, optimiser=Optimiser(lr=0.1)))
    assert stopped.trained == 4
    close(stopped.params, one.params)
    far = Phase(batch=4, optimiser=Optimiser(lr=0.1), stop=term("beyond", of="start", squared=1e9))
    assert run(module, toy(20), far).trained == 20


def test_a_loss_above_the_limit_throws_its_step_away(module: Any, toy: Toy) -> None:
    phase = Phase(batch=4, optimiser=Optimiser(lr=0.1), stop=term("loss_above", limit=0.0))
    stopped = run(module, toy(20), phase)
    close(stopped.params, params_of(module), 0.0)
    assert stopped.trained == 4


def test_a_non_finite_step_ends_at_the_last_finite_params(module: Any, toy: Toy) -> None:
    phase = Phase(
        batch=4, epochs=9, optimiser=Optimiser(lr=1e150), stop=term("beyond", of="start", squared=float("inf"))
    )
    done = run(module, toy(20), phase)
    assert all(bool(torch.isfinite(t).all()) for t in done.params.values())


def test_the_step_is_pure(module: Any, toy: Toy) -> None:
    client = toy(8)["0"]
    template = Template(build("cnn-tiny-bn", shape=(1, 8, 8), classes=3, seed=0), (1, 8, 8)).to("cpu", torch.float64)
    params = {n: t.clone() for n, t in template.like.items()}
    before = {n: t.clone() for n, t in params.items()}
    visit(template, Plan(1, 1, (Phase(batch=4),)), client, params, {})
    for name in params:
        assert torch.equal(params[name], before[name])


def test_running_statistics_follow_pytorchs(toy: Toy) -> None:
    module = build("cnn-tiny-bn", shape=(1, 8, 8), classes=3, seed=0).double()
    clients = toy(12)
    done = run(module, clients, Phase(batch=4, optimiser=Optimiser(lr=0.1, decay=0.0))).params
    truth = plain_loop(module, clients["0"], Plan(1, 1, ()), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    close(done, truth, 1e-12)
    assert int(done["norm1.num_batches_tracked"]) == 3


def test_an_unknown_rule_is_named(module: Any, toy: Toy) -> None:
    with pytest.raises(UnfedError, match="after-step map 'bal' is not known.*Did you mean 'ball'"):
        run(module, toy(4), Phase(after=(term("bal"),)))
    with pytest.raises(UnfedError, match="objective 'cee' is not known"):
        run(module, toy(4), Phase(objective=term("cee")))
    with pytest.raises(UnfedError, match="penalty 'l2' is not known"):
        run(module, toy(4), Phase(penalties=(term("l2"),)))
    with pytest.raises(UnfedError, match="stop rule 'never' is not known"):
        run(module, toy(4), Phase(stop=term("never")))
    with pytest.raises(UnfedError, match="needs the context 'home', but only start came with it"):
        run(module, toy(4), Phase(after=(term("hold", of="home", names="conv1.weight"),)))


# --- what a client touches --------------------------------------------------------------------------------------------


def test_a_retain_phase_never_fetches_a_forgotten_row(module: Any, toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = toy(12, forget={0: [0, 3, 7]})
    source = clients["0"].source
    seen: list[Tensor] = []
    original = type(source).fetch
    monkeypatch.setattr(type(source), "fetch", noting(seen, original, lambda self, rows, draws=None: rows))
    run(module, clients, Phase(batch=4, epochs=2))
    touched = set(torch.cat(seen).tolist())
    assert touched == set(range(12)) - {0, 3, 7}


def test_batches_mark_their_forgotten_rows(module: Any, toy: Toy) -> None:
    client = toy(12, forget={0: [0, 3, 7]})["0"]
    order = torch.tensor([3, 1, 7, 2])
    draws = Draws.of(rng.as_key(1), order, 1)
    assert step.fetch(client, order, draws, 0, 4).forget.tolist() == [True, False, True, False]


def test_the_weight_of_an_update_is_the_rows_the_plan_covers(toy: Toy) -> None:
    client = toy(12, forget={0: [0, 3, 7]})["0"]
    for views, count in [
        (("retain",), 9),
        (("forget",), 3),
        (("all",), 12),
        (("forget", "retain"), 12),
        (("all", "retain"), 12),
    ]:
        assert covered(Plan(1, 1, tuple(Phase(view=cast(View, v)) for v in views)), client) == count


def test_a_pass_over_retained_data_draws_the_same_whatever_came_before(module: Any, toy: Toy) -> None:
    """RandL on an empty forget set must equal FT, although its retain pass is the second phase."""
    clients = toy(12)
    alone = run(module, clients, Phase(batch=4))
    after_nothing = run(module, clients, Phase(view="forget", batch=4), Phase(batch=4))
    close(alone.params, after_nothing.params, 0.0)


def test_the_numbers_that_stand_for_views_in_addresses_never_change() -> None:
    """Whoever puts them in another order draws other batches in every run that is resumed."""
    assert VIEW_NUMBERS == {"retain": 0, "forget": 1, "all": 2, "val": 3}
    assert set(VIEW_NUMBERS) == set(VIEWS)
    assert [epoch_key(Plan(5, 2, ()), "a", view, 1) for view in VIEWS] == [
        rng.fold(rng.fold(rng.key(5, "train", 2, "a"), number), 1) for number in range(4)
    ]


def test_two_views_do_not_share_their_draws(toy: Toy) -> None:
    plan = Plan(1, 1, (Phase(),))
    keys = {int(epoch_key(plan, "0", view, 0)) for view in ("retain", "forget", "all", "val")}
    assert len(keys) == 4


def test_a_second_pass_over_the_same_view_draws_anew(module: Any, toy: Toy) -> None:
    clients = toy(12)
    quiet = Optimiser(lr=0.1, momentum=0.0)
    phase = Phase(batch=4, optimiser=quiet)
    two_phases = run(module, clients, phase, phase).params
    two_epochs = run(module, clients, Phase(batch=4, epochs=2, optimiser=quiet)).params
    close(two_phases, two_epochs, 0.0)


def test_no_two_passes_share_their_order() -> None:
    plan = Plan(1, 1, ())
    keys = [epoch_key(plan, client, view, epoch) for client in "ab" for view in VIEWS for epoch in range(3)]
    orders = {tuple(rng.order(rng.fold(key, rng.ORDER), 12).tolist()) for key in keys}
    assert len(orders) == len(keys)


def test_draws_depend_on_seed_round_and_client_only(module: Any, toy: Toy) -> None:
    clients = toy(12, 12)
    first = run(module, clients, Phase(batch=4)).params["conv1.weight"]
    assert torch.equal(first, run(module, clients, Phase(batch=4)).params["conv1.weight"])
    assert not torch.equal(first, run(module, clients, Phase(batch=4), seed=2).params["conv1.weight"])
    assert not torch.equal(first, run(module, clients, Phase(batch=4), round=2).params["conv1.weight"])


def test_a_view_without_rows_leaves_the_params_alone(module: Any, toy: Toy) -> None:
    done = run(module, toy(6), Phase(view="forget"))
    close(done.params, params_of(module), 0.0)
    assert done.trained == 0 and done.samples == 0


def test_what_the_loss_does_not_read_has_no_gradient_rather_than_one_of_zero() -> None:
    found, rest = autograd(lambda p: ((p["a"] * 0).sum(), None), {"a": torch.ones(2), "b": torch.ones(3)})
    assert found.keys() == {"a"} and found["a"].tolist() == [0, 0] and rest is None


def test_a_loss_that_reads_nothing_trainable_is_refused_in_one_sentence() -> None:
    with pytest.raises(UnfedError, match="depends on no parameter that may be trained"):
        autograd(lambda p: (torch.ones(()), None), {"a": torch.ones(2)})


RULES = [
    (Optimiser(lr=0.1, decay=0.01), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
    (Optimiser(lr=0.1, decay=0.01, clip=0.05), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
    (Optimiser("adam", lr=0.01, decay=0.01), lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01)),
]


@pytest.mark.parametrize(("rule", "make"), RULES, ids=["sgd", "clipped", "adam"])
def test_a_parameter_without_a_gradient_is_carried_as_pytorch_does(rule: Optimiser, make: Callable[..., Any]) -> None:
    """`b` comes into the loss at the third step only; before that neither decay nor Adam may move it."""
    theirs = {n: torch.nn.Parameter(torch.linspace(1, 2, 4, dtype=torch.float64)) for n in "ab"}
    truth, phase = make(theirs.values()), Phase(optimiser=rule)
    models: Any = None  # no rule here asks for one
    carry: dict[str, Any] = {"params": {n: t.detach().clone() for n, t in theirs.items()}, "state": {}}
    carry |= {"optimiser": fresh_moments(carry["params"], rule), "alive": torch.tensor(True), "loss": torch.zeros(())}

    def loss(p: Mapping[str, Tensor], number: int) -> Tensor:
        return (p["a"] ** 3).sum() + ((p["b"] ** 2).sum() if number > 2 else 0)

    for number in range(1, 6):
        truth.zero_grad()
        loss(theirs, number).backward()
        if rule.clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs.values(), rule.clip)
        truth.step()
        grads, value = autograd(partial(lambda number, p: (loss(p, number), torch.zeros(())), number), carry["params"])
        before, carry = carry, step.advance(phase, carry, step.Slope(grads, {}, value), models, number)
        close(carry["params"], {n: t.detach() for n, t in theirs.items()})
        if number <= 2:
            assert carry["params"]["b"] is before["params"]["b"]
            assert not any(t.any() for n, t in carry["optimiser"].items() if n.endswith("/b"))


def fresh_moments(params: Params, rule: Optimiser) -> Params:
    """An optimiser's state before the first step."""
    kinds = ("momentum",) if rule.rule == "sgd" else ("mean", "square", "count")
    return {
        f"{kind}/{n}": torch.zeros_like(t) if kind != "count" else t.new_zeros(())
        for kind in kinds
        for n, t in params.items()
    }


def test_context_models_are_in_eval_mode(toy: Toy) -> None:
    template = Template(build("cnn-tiny-dropout", shape=(1, 8, 8), classes=3, seed=0), (1, 8, 8))
    models = Models(template, {"phi": template.like})
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(models["phi"](x), models["phi"](x))
