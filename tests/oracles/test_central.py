"""Every centralised method against its plain twin: owners of 4 of 10, 12 of 30 and none of 15 rows, several batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from oracles import central as twins
from oracles.plain import Model, descend, model_of, net_of, steps
from oracles.world import (
    DECAY,
    LR,
    after,
    agree,
    clients,
    differ,
    floats,
    fresh,
    plainly,
    same_way,
    serve,
)
from unfed.data.scope import ClientData
from unfed.federation.state import Schedule
from unfed.methods import BadTeacher, FineTune, GradientAscent, L1Sparse, NoT, RandL, SalUn, SelectiveSynapticDampening
from unfed.methods.base import Method

THETA = fresh(1)
PLAIN = floats(THETA)
MARKS = {"a": range(4), "b": range(12)}


def marked() -> dict[str, ClientData]:
    return clients(**MARKS)


# --- one place --------------------------------------------------------------------------------------------------------


def test_in_one_place_the_optimiser_goes_on_from_epoch_to_epoch() -> None:
    who = {"b": marked()["b"]}
    server = serve(who, THETA, keep=True, wired=False)
    seen = same_way(FineTune(), server, twins.one_place(plainly(who), PLAIN), 3)
    assert differ(seen[-1], after(FineTune(), serve(who, THETA), 3).params)
    turned = PLAIN | {"conv.weight": -PLAIN["conv.weight"]}
    same_way(NoT(), serve(who, THETA, keep=True, wired=False), twins.one_place(plainly(who), turned), 2)


def test_ga_in_one_place_descends_without_the_momentum_of_the_climb() -> None:
    who = {"b": marked()["b"]}
    server = serve(who, THETA, keep=True, wired=False)
    same_way(GradientAscent(), server, twins.one_place(plainly(who), PLAIN, climbing=1), 3)


def scheduled(kind: str, rounds: int) -> Iterator[float]:
    """The rates of some rounds, by PyTorch's own schedulers."""
    rule = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    schedulers: Any = torch.optim.lr_scheduler
    schedule: Any = {
        "cosine": lambda: schedulers.CosineAnnealingLR(rule, rounds, eta_min=0.01),
        "step": lambda: schedulers.StepLR(rule, 2, gamma=0.3),
        "warm": lambda: schedulers.SequentialLR(
            rule,
            [schedulers.LinearLR(rule, 1 / 2, 1.0, 1), schedulers.CosineAnnealingLR(rule, rounds - 2, eta_min=0.01)],
            milestones=[2],
        ),
    }[kind]()
    for _ in range(rounds):
        yield rule.param_groups[0]["lr"]
        rule.step()
        schedule.step()


SCHEDULES = {
    "cosine": Schedule("cosine", minimum=0.01),
    "step": Schedule("step", every=2, factor=0.3),
    "warm": Schedule("cosine", minimum=0.01, warmup=2),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_the_rate_of_a_round_is_that_of_pytorchs_scheduler(kind: str) -> None:
    who, rates = {"b": marked()["b"]}, list(scheduled(kind, 5))
    assert [SCHEDULES[kind].rate(LR, r, 5) for r in range(1, 6)] == pytest.approx(rates)
    server = serve(who, THETA, keep=True, wired=False, rounds=5, schedule=SCHEDULES[kind])
    same_way(FineTune(), server, twins.one_place(plainly(who), PLAIN, lambda r: rates[r - 1]), 4)


# --- what is asked of each --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 2])
def test_ga_climbs_where_the_forgotten_rows_are_then_descends_on_the_others(epochs: int) -> None:
    """Owners weigh by what they climb on: 4 and 12 rows."""
    server = serve(marked(), THETA)
    same_way(GradientAscent(epochs=epochs), server, twins.ga(plainly(marked()), PLAIN, epochs), epochs + 1)


def test_l1_sparse_adds_a_penalty_that_falls_to_nothing() -> None:
    who = clients(a=range(10))
    method = L1Sparse(alpha=0.08, epochs=2)
    same_way(method, serve(who, THETA), twins.l1_sparse(plainly(who), PLAIN, 0.08, 2), 3)


def test_badt_is_taught_by_the_bad_teacher_on_the_forgotten_rows_and_by_the_old_model_elsewhere() -> None:
    same_way(BadTeacher(temperature=2.0), serve(marked(), THETA), twins.badt(plainly(marked()), PLAIN, 2.0), 2)


def test_randl_teaches_the_drawn_labels_and_then_the_true_ones_with_one_optimiser() -> None:
    same_way(RandL(), serve(marked(), THETA), twins.randl(plainly(marked()), PLAIN), 2)


def test_randl_that_excludes_the_true_label_counts_on_from_it() -> None:
    method = RandL(exclude_true=True)
    same_way(method, serve(marked(), THETA), twins.randl(plainly(marked()), PLAIN, exclude_true=True), 2)


def test_ssd_shrinks_what_matters_more_to_the_forgotten_rows_than_to_all() -> None:
    """Two leavers; a weight that matters to no row, as of a layer that no output asks for, stays as it is."""
    who = clients(a=range(10), b=range(12), c=range(15))
    expected, chosen = twins.ssd(plainly(who), PLAIN, 1.1, 0.7)
    assert 5 < chosen < 100
    state = SelectiveSynapticDampening(alpha=1.1, lam=0.7).begin(serve(who, THETA))
    assert state.done
    agree(state.params, expected)
    agree(
        {n: t for n, t in state.params.items() if "unused" in n}, {n: t for n, t in PLAIN.items() if "unused" in n}, 0
    )


def test_salun_lets_only_the_most_salient_weights_move() -> None:
    """|Σ of gradients over the forgotten rows|, the largest three tenths of all weights together."""
    free = twins.salient(plainly(marked()), PLAIN, 0.3)
    assert sum(int(t.sum()) for t in free.values()) == int(0.3 * sum(t.numel() for t in free.values()))
    same_way(SalUn(ratio=0.3), serve(marked(), THETA), twins.salun(plainly(marked()), PLAIN, 0.3), 2)


@pytest.mark.parametrize(("method", "kept"), [(FineTune(), 2), (L1Sparse(), 2), (BadTeacher(), 0), (SalUn(), 0)])
def test_only_rounds_that_their_plan_can_repeat_are_recorded(method: Method, kept: int) -> None:
    """BadT's teachers and SalUn's mask came with the plan, and are gone with it."""
    server = serve(marked(), THETA)
    past: list[Any] = []
    server.recorders = cast(Any, {"it": past.append})
    after(method, server, 2)
    assert len(past) == kept


# --- the optimisers ---------------------------------------------------------------------------------------------------


def trained_by(make: Any, **numbers: Any) -> Model:
    """Client b's model after its local epochs with another of PyTorch's optimisers."""
    fed = plainly({"b": clients()["b"]})
    net = net_of(PLAIN)
    descend(net, make(net.parameters(), **numbers), steps(fed, "b", "retain", 1))
    return model_of(net)


@pytest.mark.parametrize(("rule", "make"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_adds_the_decay_to_the_gradient_and_adamw_takes_it_off_the_weight(
    rule: str, make: type[torch.optim.Optimizer]
) -> None:
    server = serve({"b": clients()["b"]}, THETA, rule=rule, lr=0.05)
    expected = trained_by(make, lr=0.05, weight_decay=DECAY)
    agree(after(FineTune(), server, 1).params, expected)
    assert differ(expected, trained_by(make, lr=0.05, weight_decay=0.0))
