"""One step of every centralised method by hand, inside a federation: owners of 4 of 10, 12 of 30 and none of 15 rows.

The rules are those of one place that holds all data; with three clients the weights show as well. `hand.py` has both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor

from oracles import hand
from oracles.hand import SIZES, agree, clients, cross_entropy, differ, fedavg, fresh, mean, rows, serve, stepped
from unfed import rng
from unfed.client.batch import positions_of
from unfed.client.plan import Phase, term
from unfed.data.scope import ClientData
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.methods import BadTeacher, FineTune, GradientAscent, L1Sparse, NoT, RandL, SalUn, SelectiveSynapticDampening
from unfed.methods.base import Method
from unfed.model.flops import forward_flops
from unfed.model.params import Params, load_into

THETA = fresh(1)
MARKS = {"a": range(4), "b": range(12)}


def marked() -> dict[str, ClientData]:
    return clients(**MARKS)


def after(method: Method, server: Server, rounds: int) -> State:
    state = method.begin(server)
    while state.round < rounds and not state.done:
        state = method.round(server, state)
    return state


def minus(loss: hand.Loss) -> hand.Loss:
    return lambda net: -loss(net)


def gradient(params: Params, loss: Callable[..., Any]) -> Params:
    """∇ loss at params."""
    module = hand.module_of(params)
    loss(module).backward()
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


# --- what is asked of each --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 2])
def test_ga_climbs_where_the_forgotten_rows_are_then_descends_on_the_others(epochs: int) -> None:
    """Owners weigh by what they climb on: 4 and 12 rows."""
    who, method = marked(), GradientAscent(epochs=epochs)
    expected = THETA
    for _ in range(epochs):
        losses = {k: cross_entropy(*rows(who[k], "forget")) for k in "ab"}
        up = {k: stepped(expected, minus(loss)) for k, loss in losses.items()}
        expected = mean(up, {"a": 4, "b": 12})
    server = serve(who, THETA, lr=hand.LR)
    agree(after(method, server, epochs).params, expected)
    agree(after(method, server, epochs + 1).params, fedavg(expected, who))


def test_ga_in_one_place_descends_without_the_momentum_of_the_climb() -> None:
    who = {"a": marked()["a"]}
    up = cross_entropy(*rows(who["a"], "forget"))
    top = stepped(THETA, lambda net: -up(net))
    expected = stepped(top, cross_entropy(*rows(who["a"])))
    agree(after(GradientAscent(), serve(who, THETA, keep=True, wired=False), 2).params, expected)


def test_in_one_place_the_optimiser_goes_on_from_epoch_to_epoch() -> None:
    who = {"a": marked()["a"]}
    expected = stepped(THETA, cross_entropy(*rows(who["a"])), times=6)
    server = serve(who, THETA, keep=True, wired=False)
    agree(after(FineTune(), server, 3).params, expected)
    assert differ(expected, after(FineTune(), serve(who, THETA), 3).params)
    turned = THETA | {"body.weight": -THETA["body.weight"]}
    agree(after(NoT(), server, 2).params, stepped(turned, cross_entropy(*rows(who["a"])), times=4))


def test_l1_sparse_adds_a_penalty_that_falls_to_nothing() -> None:
    who, method = clients(a=range(10)), L1Sparse(alpha=0.08, epochs=2)
    expected = THETA
    for alpha in (0.08, 0.04, 0.0):
        models = {}
        for k in "bc":
            ce = cross_entropy(*rows(who[k]))

            def loss(net: Any, ce: Callable[..., Any] = ce, alpha: float = alpha) -> Tensor:
                return cast(Tensor, ce(net) + alpha * sum(p.abs().sum() for p in net.parameters()))

            models[k] = stepped(expected, loss)
        expected = mean(models, SIZES)
    agree(after(method, serve(who, THETA), 3).params, expected)


@pytest.mark.parametrize("reduction", ["batchmean", "mean"])
def test_badt_is_taught_by_the_bad_teacher_on_the_forgotten_rows_and_by_the_old_model_elsewhere(
    reduction: Literal["batchmean", "mean"],
) -> None:
    who, method = marked(), BadTeacher(temperature=2.0, reduction=reduction)
    server = serve(who, THETA)
    bad = method.begin(server).tensors["bad"]
    assert differ(bad, THETA)
    expected = THETA
    for _ in range(2):
        models = {}
        for k, client in who.items():
            x, _ = rows(client, "all")
            good, wrong = (hand.module_of(teacher)(x).detach() for teacher in (THETA, bad))
            taught = torch.where(client.forget[client.view("all")][:, None], wrong, good)
            share = 3 if reduction == "mean" else 1

            def loss(net: hand.Tiny, t: Tensor = taught, x: Tensor = x, s: int = share) -> Tensor:
                return hand.kl(t / 2.0, net(x) / 2.0) / s

            models[k] = stepped(expected, loss)
        expected = mean(models, SIZES)
    agree(after(method, server, 2).params, expected)


def test_badt_on_a_share_of_the_retained_rows_is_taught_the_same_ones_in_every_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every order drawn is made the first rows first, so that the hand knows them: of six retained rows two."""
    monkeypatch.setattr(rng, "order", lambda key, n: torch.arange(n))
    client, method = marked()["a"], BadTeacher(retain_frac=0.4)
    server = serve({"a": client}, THETA)
    x, _ = rows(client, "all")
    x = x[:6]  # four that are marked, and two of the other six
    bad = method.begin(server).tensors["bad"]
    good, wrong = (hand.module_of(teacher)(x).detach() for teacher in (THETA, bad))
    taught = torch.cat([wrong[:4], good[4:]])
    expected = THETA
    for _ in range(2):
        expected = stepped(expected, lambda net: hand.kl(taught, net(x)))
    done = after(method, server, 2)
    agree(done.params, expected)
    assert server.ledger.flops == forward_flops(hand.template()) * (3 + 2) * 2 * hand.EPOCHS * 6, (
        "and two teachers look on"
    )


def test_a_share_of_the_retained_rows_is_a_draw_of_the_seed_and_every_forgotten_row_stays() -> None:
    phase, client = Phase(view="all"), marked()["b"]
    drawn = [positions_of(replace(phase, thinned=term("drawn", share=0.5, seed=s)), client) for s in (1, 1, 2)]
    assert [len(found) for found in drawn] == [12 + 9] * 3
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert all(set(range(12)) <= set(found.tolist()) for found in drawn)


def test_badt_can_take_adam() -> None:
    who, method = {"a": marked()["a"]}, BadTeacher(optimiser="adam")
    server = serve(who, THETA, epochs=3, lr=0.01)
    x, _ = rows(who["a"], "all")
    bad = method.begin(server).tensors["bad"]
    good, wrong = (hand.module_of(teacher)(x).detach() for teacher in (THETA, bad))
    taught = torch.where(who["a"].forget[:, None], wrong, good)
    numbers: dict[str, Any] = {"lr": 0.01, "weight_decay": hand.DECAY, "betas": (0.9, 0.999)}
    expected = stepped(THETA, lambda net: hand.kl(taught, net(x)), times=3, make=torch.optim.Adam, **numbers)
    agree(after(method, server, 1).params, expected, 1e-9)


def test_randl_teaches_the_drawn_labels_and_then_the_true_ones_with_one_optimiser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every label drawn is made a 2, so that the hand knows it."""
    monkeypatch.setattr(rng, "below", lambda words, classes: torch.full_like(words, 2))
    who = marked()
    models = {}
    for k, client in who.items():
        x, _ = rows(client, "forget")
        wrong = [cross_entropy(x, torch.full((len(x),), 2))] if len(x) else []
        models[k] = stepped(THETA, *wrong, cross_entropy(*rows(client)))
    agree(after(RandL(), serve(who, THETA), 1).params, mean(models, SIZES))


def test_randl_that_excludes_the_true_label_counts_on_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw of 1 among the two wrong labels of three is the label two further on."""
    monkeypatch.setattr(rng, "below", lambda words, classes: torch.full_like(words, classes - 1))
    who = {"a": marked()["a"]}
    x, y = rows(who["a"], "forget")
    expected = stepped(THETA, cross_entropy(x, (y + 2) % 3), cross_entropy(*rows(who["a"])))
    agree(after(RandL(exclude_true=True), serve(who, THETA), 1).params, expected)


def importance(who: dict[str, ClientData], view: str) -> Params:
    """Σ over clients and batches of five rows of (∇ mean CE)², divided by the number of batches."""
    total, batches = {n: torch.zeros_like(t) for n, t in THETA.items()}, 0
    for client in who.values():
        x, y = rows(client, view)
        for begin in range(0, len(x), 5):
            squared = {
                n: g.square()
                for n, g in gradient(THETA, cross_entropy(x[begin : begin + 5], y[begin : begin + 5])).items()
            }
            total, batches = {n: total[n] + squared[n] for n in total}, batches + 1
    return {n: t / batches for n, t in total.items()}


def test_ssd_shrinks_what_matters_more_to_the_forgotten_rows_than_to_all() -> None:
    who = clients(a=range(5), b=range(10))  # whole batches of five everywhere
    forget, whole = importance(who, "forget"), importance(who, "all")
    expected, chosen = {}, 0
    for name, weight in THETA.items():
        more = forget[name] > 1.2 * whole[name]
        shrink = torch.minimum(0.7 * whole[name] / forget[name], torch.tensor(1.0).double())
        expected[name], chosen = torch.where(more, weight * shrink, weight), chosen + int(more.sum())
    assert 5 < chosen < 38
    state = SelectiveSynapticDampening(alpha=1.2, lam=0.7).begin(serve(who, THETA, batch=5))
    assert state.done
    agree(state.params, expected)


@pytest.mark.parametrize(("ratio", "meaning"), [(0.3, "updated"), (0.7, "frozen")])
def test_salun_lets_only_the_most_salient_weights_move(
    monkeypatch: pytest.MonkeyPatch, ratio: float, meaning: Literal["updated", "frozen"]
) -> None:
    """|Σ of the owners' gradients over the forgotten rows|, the largest three tenths of all 43 weights together."""
    monkeypatch.setattr(rng, "below", lambda words, classes: torch.full_like(words, 2))
    who, method = marked(), SalUn(ratio=ratio, mask_meaning=meaning)
    grads = [gradient(THETA, cross_entropy(*rows(who[k], "forget"))) for k in "ab"]
    sums = {n: (grads[0][n] + grads[1][n]).abs() for n in THETA}
    flat = torch.cat([t.flatten() for t in sums.values()])
    least = flat.sort(descending=True).values[int(0.3 * len(flat)) - 1]
    free = {n: t >= least for n, t in sums.items()}
    assert sum(int(t.sum()) for t in free.values()) == 12

    def home(module: Any, number: int) -> None:
        load_into(module, {n: torch.where(free[n], p.detach(), THETA[n]) for n, p in module.named_parameters()})

    models = {}
    for k, client in who.items():
        x, _ = rows(client, "forget")
        wrong = [cross_entropy(x, torch.full((len(x),), 2))] if len(x) else []
        models[k] = stepped(THETA, *wrong, cross_entropy(*rows(client)), after=home)
    agree(after(method, serve(who, THETA), 1).params, mean(models, SIZES))


@pytest.mark.parametrize(("method", "kept"), [(FineTune(), 2), (L1Sparse(), 2), (BadTeacher(), 0), (SalUn(), 0)])
def test_only_rounds_that_their_plan_can_repeat_are_recorded(method: Method, kept: int) -> None:
    """BadT's teachers and SalUn's mask came with the plan, and are gone with it."""
    server = serve(marked(), THETA)
    past: list[Any] = []
    server.recorders = cast(Any, {"it": past.append})
    after(method, server, 2)
    assert len(past) == kept


def test_once_drawn_labels_do_not_depend_on_the_round() -> None:
    """With `relabel = "once"` two rounds teach the same labels; drawn anew they differ."""
    who = {"b": replace(marked()["b"])}
    method = RandL(relabel="once")
    seen = []
    for one in (method, RandL()):
        server = serve(who, THETA)
        states = [one.round(server, State(THETA, round=r)).params for r in (0, 5)]
        seen.append(differ(*states))
    assert seen == [False, True]
