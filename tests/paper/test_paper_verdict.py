"""Ours beside the paper's: what counts as the same, what as the same direction, by numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from unfed.measures.metrics import Spread
from unfed.paper import verdict
from unfed.paper.items import items
from unfed.paper.views import printed
from unfed.report.rules import Row, rows


def test_the_papers_spread_becomes_a_samples() -> None:
    found = verdict.printed({"retain": "92.48", "retain_std": "0.20"}, "retain")
    assert found.mean == 92.48 and found.std == pytest.approx(0.20 * math.sqrt(1.5)) and found.n == 3
    assert verdict.printed({"mia": ""}, "mia").mean == "not measured: the paper does not print it"


@pytest.mark.parametrize(
    ("paper", "ours", "word"),
    [
        # s = √(0.3² + 0.4²) = 0.5, and two of them are 1
        (Spread(90.0, 0.3, 3), Spread(91.0, 0.4, 3), "within"),
        (Spread(90.0, 0.3, 3), Spread(91.01, 0.4, 3), "disagrees"),
        # one seed of ours: the paper's spread stands in for it, s = 0.3 √2 = 0.424
        (Spread(90.0, 0.3, 3), Spread(90.84, None, 1), "within"),
        (Spread(90.0, 0.3, 3), Spread(90.86, None, 1), "disagrees"),
        (Spread(90.0, 0.3, 3), Spread("not measured: no test data"), "not compared"),
    ],
)
def test_a_cell_is_within_two_spreads_of_the_papers(paper: Spread, ours: Spread, word: str) -> None:
    assert verdict.cell(paper, ours).word == word


@pytest.mark.parametrize(
    ("ours", "retrain", "word"),
    [
        (Spread(88.0, 0.1, 3), Spread(85.0, 0.1, 3), "direction"),  # above Retrain, as the paper's
        (Spread(88.0, 0.1, 3), Spread(89.0, 0.1, 3), "disagrees"),  # below it
        (Spread(88.0, 0.1, 3), Spread(88.1, 0.1, 3), "disagrees"),  # beside it, where the paper's is above
    ],
)
def test_further_away_it_may_still_lie_on_the_same_side_of_retrain(ours: Spread, retrain: Spread, word: str) -> None:
    found = verdict.cell(Spread(85.56, 0.4, 3), ours, Spread(83.05, 0.28, 3), retrain)
    assert found.word == word
    assert found.difference == pytest.approx(88.0 - 85.56)


def test_beside_retrain_in_both_is_the_same_side_too() -> None:
    """The paper's NoT is 0.03 from Retrain, ours 0.10: two points apart, and in the same place."""
    found = verdict.cell(Spread(91.69, 0.02, 3), Spread(93.7, 0.28, 3), Spread(91.66, 0.15, 3), Spread(93.8, 0.15, 3))
    assert found.word == "direction" and "beside it in both" in verdict.MEANING[found.word]
    broken = verdict.cell(Spread(99.07, 0.12, 3), Spread(8.49), Spread(99.73, 0.05, 3), Spread(48.56))
    assert broken.word == "direction" and "however far" in verdict.MEANING[broken.word], (
        "below Retrain in both, no more"
    )


def line(method: str, seed: int, **values: Any) -> Any:
    costs = {"comm_bytes": 100.0, "flops": 100.0} | values
    return {"seed": seed, "request": "r", "method": method, "round": 5, "done": True, **costs}


def ours() -> list[Row]:
    lines = []
    for seed, shift in enumerate((-0.1, 0.0, 0.1)):
        lines.append(line("retrain", seed, retain=91.66 + shift, forget=83.05 + shift, test=82.32 + shift, mia=50.23))
        given = {"retain": 95.0 + shift, "forget": 85.56 + shift, "test": 82.36 + shift, "mia": 40.0}
        lines.append(line("ft", seed, comm_bytes=25.0, flops=50.0, **given))
    return [replace(row, request="CIFAR-10, CNN") for row in rows(lines)]


def test_one_table_holds_the_paper_ours_the_difference_and_a_verdict_per_cell() -> None:
    found = printed.merged(items()["table-1"], ours())
    assert found is not None
    grid, data = found
    assert [row[:2] for row in grid.body] == [("CIFAR-10, CNN", "Retrain"), ("CIFAR-10, CNN", "FT")]
    ft = dict(zip(grid.header, grid.body[1], strict=True))
    assert ft["Retain"] == "92.48 ± 0.24 | 95.00 ± 0.10 (+2.52) ~", "above Retrain in both, but further than the spread"
    assert ft["Forget"].endswith("(+0.00) =") and ft["MIA"].endswith("(-10.90) ≠")
    assert ft["Bytes / Retrain's"] == "0.70 | 0.25" and ft["FLOPs / Retrain's"] == "0.70 | 0.50"
    words = {metric: cell["verdict"] for metric, cell in data["CIFAR-10, CNN, FT"].items()}
    assert words == {"retain": "direction", "forget": "within", "test": "within", "mia": "disagrees"}
    counts = "of 8 cells 6 are within the seeds' spread, 1 agree in direction only, 1 disagree."
    assert printed.summary(data).startswith(f"CIFAR-10, CNN: {counts}")
    both = printed.merged(items()["table-1"], [*ours(), *(replace(row, request="CIFAR-100, CNN") for row in ours())])
    assert both is not None
    said = printed.summary(both[1])
    assert said.startswith(f"CIFAR-10, CNN: {counts} CIFAR-100, CNN: of 8 cells 1 "), "each run is counted by itself"


def test_where_nothing_of_the_papers_was_run_its_table_stands_alone() -> None:
    assert printed.merged(items()["table-1"], [replace(row, request="digits, CNN") for row in ours()]) is None
    alone = printed.alone(items()["table-1"], [])
    assert alone is not None and alone.header[-1] == "FLOPs" and ("CIFAR-10, CNN", "FT") in {r[:2] for r in alone.body}


def test_a_row_that_stands_beside_ours_is_not_printed_twice() -> None:
    alone = printed.alone(items()["table-1"], ours())
    assert alone is not None
    there = {row[:2] for row in alone.body}
    assert ("CIFAR-10, CNN", "NoT") in there and ("CIFAR-100, CNN", "FT") in there
    assert not there & {("CIFAR-10, CNN", "Retrain"), ("CIFAR-10, CNN", "FT")}


def test_of_the_centralised_table_the_unit_of_costs_is_not_known() -> None:
    found = printed.merged(items()["table-6"], [replace(row, request="CIFAR-10, ResNet-18") for row in ours()])
    assert found is not None and found[0].header[-1] == "FLOPs / Retrain's"
