"""Which rows does each number speak of? A model whose loss on a row is that row's own number tells.

The network has two logits, (0, x): on a row with label 0 and value x the loss is log(1 + eˣ), and the row is right
where x < 0. Each set holds numbers of its own, so that mixing up any two changes what is measured.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from unfed.config.config import Config, Seeds
from unfed.data import ClientData, Request, TensorSource
from unfed.measures.attacks import membership_inference
from unfed.measures.evaluator import Evaluator, Yardstick
from unfed.model.functional import Template
from unfed.runs.world import Residents

CONFIG = Config.parse({"name": "sets", "partition": {"clients": 3}, "evaluation": {"batch": 7}})
REQUEST = Request("r", clients=("0",))


class Says(nn.Module):
    """(0, w·x) with w = 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(x), self.weight * x], dim=1)


def between(low: float, high: float, n: int) -> list[float]:
    return [float(x) for x in np.linspace(low, high, n)]


# (training values, validation values) of each client. Client 0 leaves: its validation rows leave with it.
HELD = {
    "0": (between(-3.0, 1.0, 24), between(70.0, 80.0, 4)),
    "1": (between(4.0, 5.0, 12), between(20.0, 21.0, 2)),
    "2": (between(-40.0, 6.0, 36), between(-22.0, 23.0, 10)),
}
TEST = between(-1.6, 3.0, 40)


def loss(values: list[float]) -> torch.Tensor:
    return torch.nn.functional.softplus(torch.tensor(values, dtype=torch.float64))


def right(values: list[float]) -> float:
    return 100 * sum(value < 0 for value in values) / len(values)


@pytest.fixture
def world() -> Any:
    values = [value for train, val in HELD.values() for value in (*train, *val)]
    source = TensorSource(
        torch.tensor(values, dtype=torch.float64)[:, None],
        torch.zeros(len(values)).long(),
        classes=2,
        dtype=torch.float64,
    )
    clients, begin = [], 0
    for name, (train, val) in HELD.items():
        n = len(train) + len(val)
        places = torch.arange(n)
        clients.append(ClientData(name, source, begin + places, places[: len(train)], places[len(train) :]))
        begin += n
    test = TensorSource(
        torch.tensor(TEST, dtype=torch.float64)[:, None], torch.zeros(len(TEST)).long(), classes=2, dtype=torch.float64
    )
    yardstick = Yardstick(Template(Says(), (1,)), test, seed=Seeds.of(CONFIG, 0).evaluation)
    holders = Residents(tuple(clients), 0)
    return SimpleNamespace(
        seeds=Seeds.of(CONFIG, 0), evaluator=lambda requests: Evaluator(yardstick, holders, requests)
    )


PARAMS = {"weight": torch.ones(1, dtype=torch.float64)}


@pytest.fixture
def seen(world: Any) -> Any:
    return world.evaluator([REQUEST])(PARAMS)


def test_every_accuracy_and_loss_speaks_of_its_own_rows(seen: Any) -> None:
    forget, retain = HELD["0"][0], HELD["1"][0] + HELD["2"][0]
    for name, values in (("retain", retain), ("forget", forget), ("test", TEST)):
        assert seen.numbers[name] == pytest.approx(right(values)), name
        assert seen.numbers[f"{name}_loss"] == pytest.approx(float(loss(values).mean())), name
    gap = abs(float(loss(retain).mean()) - float(loss(forget).mean()))
    assert seen.numbers["loss_gap"] == pytest.approx(gap)
    numbers = [seen.numbers[name] for name in ("retain", "forget", "test", "validation")]
    assert len(set(numbers)) == 4


def test_validation_is_the_mean_over_clients_not_over_rows(world: Any, seen: Any) -> None:
    """0 % of client 1's two rows and half of client 2's ten: 25 %, although 5 of 12 rows are right."""
    assert right(HELD["1"][1]) == 0 and right(HELD["2"][1]) == 50
    assert seen.numbers["validation"] == pytest.approx(25.0)
    assert world.evaluator([REQUEST]).validation(PARAMS) == pytest.approx(25.0)


def test_who_has_no_retained_row_left_does_not_validate(world: Any) -> None:
    """Every training row of client 2 by name: its validation rows are no forgotten rows, but it has left."""
    samples = Request("s", samples=tuple(("2", place) for place in range(len(HELD["2"][0]))))
    numbers = world.evaluator([samples])(PARAMS).numbers
    assert numbers["validation"] == pytest.approx((right(HELD["0"][1]) + right(HELD["1"][1])) / 2) == 0


def test_a_gap_is_a_distance_whichever_loss_is_larger(world: Any) -> None:
    for name, sign in (("0", 1), ("1", -1)):
        request = Request("r", clients=(name,))
        numbers = world.evaluator([request])(PARAMS).numbers
        difference = float(numbers["retain_loss"]) - float(numbers["forget_loss"])
        assert sign * difference > 0 and numbers["loss_gap"] == pytest.approx(abs(difference))


def test_the_attack_tells_the_forgotten_rows_from_the_test_rows_under_the_evaluations_seed(
    world: Any, seen: Any
) -> None:
    """Not the retained ones, not the validation rows; and under one seed, so that rounds can be compared."""
    sets = {
        "forget": HELD["0"][0],
        "test": TEST,
        "retain": HELD["1"][0] + HELD["2"][0],
        "val": HELD["1"][1] + HELD["2"][1],
    }
    seed = world.seeds.evaluation

    def attack(a: str, b: str, seed: int = seed) -> float:
        return membership_inference(loss(sets[a]), loss(sets[b]), seed=seed)

    assert seen.numbers["mia"] == attack("forget", "test")
    evaluator = world.evaluator([REQUEST])
    for weight in (0.9, 0.8, 0.7, 0.6, 0.5):  # five other models, the same seed
        found = evaluator({"weight": weight * PARAMS["weight"]}).numbers["mia"]
        scaled = [loss([weight * value for value in sets[name]]) for name in ("forget", "test")]
        assert found == membership_inference(*scaled, seed=seed)
    for a, b in (("retain", "test"), ("forget", "val"), ("forget", "retain"), ("retain", "val")):
        assert attack(a, b) != attack("forget", "test"), (a, b)
    assert len({attack("forget", "test", other) for other in range(20)}) > 3  # a seed is heard


def test_two_evaluations_of_one_model_are_equal(world: Any) -> None:
    evaluator = world.evaluator([REQUEST])
    assert evaluator(PARAMS).numbers == evaluator(PARAMS).numbers
    again = world.evaluator([REQUEST])
    assert again(PARAMS).numbers == evaluator(PARAMS).numbers


def test_the_columns_behind_the_numbers_are_those_of_the_same_rows(seen: Any) -> None:
    for name, values in (("forget", HELD["0"][0]), ("test", TEST)):
        assert torch.allclose(seen.samples[f"{name}/loss"].double(), loss(values), atol=1e-6)
        assert seen.samples[f"{name}/correct"].tolist() == [value < 0 for value in values]


def test_what_its_owners_deleted_is_scored_by_nobody(world: Any) -> None:
    deleted = Request("gone", clients=("2",), deleted=True)
    both = [deleted, REQUEST]
    numbers = world.evaluator(both)(PARAMS).numbers
    assert numbers["forget_loss"] == pytest.approx(float(loss(HELD["0"][0]).mean()))
    assert numbers["retain_loss"] == pytest.approx(float(loss(HELD["1"][0]).mean()))
    alone = world.evaluator([deleted])(PARAMS).numbers
    assert alone["forget"] == alone["mia"] == "not measured: its owners have deleted it"
