"""Our costs in the paper's units: the numbers of its own columns come out, and nothing else is counted that way."""

from __future__ import annotations

import pytest

from unfed.federation.state import Ledger
from unfed.model.networks import build
from unfed.paper import verdict
from unfed.paper.items import items, published
from unfed.paper.verdict import Costs, paper_units
from unfed.paper.views import printed, results
from unfed.values import not_measured

VIT = 85_876_325  # ViT-B/16 with 101 classes, as tests of the networks hold it
RESNET_FORWARD = 2 * 1_818_600_000  # FLOPs of one image of 224 × 224


def spent(parameters: int, rounds: int, forward: int = 0, images: int = 4_000) -> Ledger:
    """Nine clients, each with one download, one upload and one epoch a round."""
    ledger = Ledger()
    for _ in range(rounds):
        ledger.sent(2 * 9, parameters, 0)
        ledger.worked(forward, 9 * images)
    return ledger


def test_a_round_of_nine_clients_with_resnet_18_is_805_078_224_bytes() -> None:
    module = build("resnet18", shape=(3, 32, 32), classes=10, seed=0)
    parameters = sum(p.numel() for p in module.parameters())
    assert spent(parameters, 1).comm_bytes == 805_078_224
    assert paper_units(805_078_224, 0).comm_bytes == pytest.approx(7.678e8, rel=1e-4)


def test_251_rounds_of_vit_are_what_the_paper_prints() -> None:
    there = paper_units(spent(VIT, 251).comm_bytes, 0, vit=True)
    assert there.comm_bytes == pytest.approx(1.480e12, rel=5e-4)
    assert verdict.text(there.comm_bytes) == "1.48e12"


def test_every_byte_count_of_the_papers_grids_is_a_round_of_the_grid() -> None:
    """Non-IID and class tables on ViT, methods without a phase before recovery; 0.9 of a round is lost in printing."""
    a_round = paper_units(spent(VIT, 1).comm_bytes, 0).comm_bytes
    for table in ("T2", "T3"):
        for row in published(table):
            if row["method"] not in ("MoDE", "FCU", "PGD"):
                rounds = float(row["comm_bytes"]) / float(a_round)
                assert min(abs(rounds - grid) for grid in (51, 101, 151, 201, 251, 300)) < 0.9, (table, row["method"])


def test_the_papers_flops_per_byte_of_resnet_18_come_out() -> None:
    own = spent(11_181_642, 1, RESNET_FORWARD)
    there = paper_units(own.comm_bytes, own.flops)
    printed = [
        float(row["flops"]) / float(row["comm_bytes"])
        for row in published("T1")
        if (row["dataset"], row["model"]) == ("CIFAR-10", "ResNet-18") and row["method"] != "FCU"
    ]
    assert isinstance(there.flops, float | int) and isinstance(there.comm_bytes, float)
    assert there.flops / there.comm_bytes == pytest.approx(4.600e6, rel=2e-3)
    assert printed == pytest.approx([4.600e6] * len(printed), rel=5e-3)


def test_vit_counts_a_thousandfold_and_the_bound_counts_clients_once() -> None:
    assert paper_units(1.048576, 1.0) == (1.0, 9.0)
    assert paper_units(1.048576, 1.0, vit=True) == (1.0, 9_000.0)
    assert paper_units(1.048576, 1.0, vit=True, again=1) == (1.0, 1_000.0)
    # The bound for FT on ResNet-18: 4.77 / 1e-3 steps of nine clients with 64 images, forward and backward.
    assert paper_units(0, 4_770 * 9 * 64 * 3 * RESNET_FORWARD, again=1).flops == pytest.approx(3.00e16, rel=2e-3)


def test_what_was_not_measured_stays_so() -> None:
    missing = not_measured("no formula for lstm")
    assert paper_units(missing, missing) == (missing, missing)
    assert verdict.text(missing) == missing


def test_ratios_between_methods_are_unaffected() -> None:
    ft, ours = paper_units(3e9, 8e12, vit=True), paper_units(1e9, 2e12, vit=True)
    assert float(ft.comm_bytes) / float(ours.comm_bytes) == pytest.approx(3)
    assert float(ft.flops) / float(ours.flops) == pytest.approx(4)


def test_flops_of_the_same_bound_stand_beside_the_papers_in_its_units() -> None:
    bound = printed.bounds(items()["table-7"], {("Caltech-101, ViT", "FT"): Costs("—", 1.74e16)})
    assert bound is not None and [row[-1] for row in bound.body if row[0] == "Caltech-101, ViT"] == ["1.74e19", "—"]


@pytest.mark.parametrize("name", [name for name, item in items().items() if item.view == "results" and item.published])
def test_a_table_of_results_says_what_the_papers_costs_are(name: str) -> None:
    item = items()[name]
    (sentence,) = results.table(item, {}).said
    assert sentence == verdict.note(item.published)
    assert ("7.13" in sentence) == (name in ("table-2", "table-3", "table-4"))
    assert ("all ten" in sentence) == (name in ("table-3", "table-4"))
    assert ("Compare ratios between methods only" in sentence) == (name == "table-6")
