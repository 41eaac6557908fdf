"""A server with a model factory and some rows tries to bring a leaver back, in somebody else's Flower app."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from flower_grid import foreign_grid
from unfed.cli.main import app as cli
from unfed.errors import UnfedError
from unfed.flower import Probes, Unlearn, negate, node_with
from unfed.measures.undo.measure import Effort
from unfed.measures.undo.refits import Grid
from unfed.measures.undo.scene import Budget

QUICK = Effort(rounds=1, batch=8, grid=Grid(rows=(16,), budget=Budget(stops=(2,)), rates=(0.1,)))


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


def trained() -> dict[str, Tensor]:
    module, (x, y) = net(), rows(64, 0)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    return {name: value.detach() for name, value in module.state_dict().items()}


def test_a_negated_model_that_is_turned_back_is_the_model_before() -> None:
    before = trained()
    probes = Probes(net, rows(64, 0), rows(40, 1), rows(20, 2), effort=QUICK)
    found = probes.found(before, negate(net())(before))["measured"]
    was, back = found["before"]["published"], found["unlearned"]["flip"]
    assert was["test"] > 80 > found["unlearned"]["published"]["test"]
    assert {name: back[name] for name in ("retain", "forget", "test")} == {
        name: was[name] for name in ("retain", "forget", "test")
    }
    assert found["unlearned"]["path"]["perturbed"]["relative_l2"] == 0.0


def test_the_bias_of_a_class_that_left_is_lifted_at_the_server_too() -> None:
    """Class 1 hidden behind its bias alone: read as nothing, and back by the lift; nothing tells of a backdoor."""
    before, gone = trained(), rows(60, 2)
    ones, zeros = ((gone[0][gone[1] == c], gone[1][gone[1] == c]) for c in (1, 0))
    hidden = {**before, "2.bias": before["2.bias"] + torch.tensor([0.0, -50.0])}
    found = Probes(net, zeros, zeros, ones, classes=[1], effort=QUICK).found(before, hidden)["measured"]
    assert found["unlearned"]["published"]["forget"] == 0.0 and found["unlearned"]["lift"]["back_1"] > 80
    assert "no backdoor is known" in found["unlearned"]["triggers"]["reason"]
    without = Probes(net, zeros, zeros, ones, effort=QUICK).found(before, hidden)["measured"]
    assert "no class was asked to leave" in without["unlearned"]["lift"]["reason"]


def test_arrays_that_an_app_numbers_are_the_modules_in_order() -> None:
    before = trained()
    numbered = {str(place): value for place, value in enumerate(before.values())}
    probes = Probes(net, rows(64, 0), rows(40, 1), effort=QUICK)
    own, other = (probes.found(one, negate(net())(one))["measured"] for one in (before, numbered))
    assert own == other
    assert "not measured: no forgotten row" in own["unlearned"]["flip"]["forget"]
    with pytest.raises(UnfedError, match="have no '0.weight'"):
        probes.found({"x": torch.ones(1)}, before)


def test_no_rows_at_all_and_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnfedError, match="at least one row"):
        Probes(net, rows(0, 0))
    with pytest.raises(UnfedError, match="The probes' model cannot read the probes' rows"):
        Probes(net, rows(64, 0), (torch.ones(2, 5), torch.zeros(2, dtype=torch.int64)))


def test_a_factory_of_another_model_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    wider = {name: torch.cat([value, value]) for name, value in trained().items()}
    others = {
        "The app's '0.weight' has the shape .16, 4., in the probes' model": wider,
        "have no '0.weight'": {"w": torch.ones(2)},
    }
    for sentence, arrays in others.items():
        grid, own = foreign_grid(3), Probes(net, rows(64, 0), effort=QUICK)
        with pytest.raises(UnfedError, match=sentence):
            Unlearn(FedAvg, None, node_with(partition_id=0), tmp_path / "e", undo=own).start(
                grid, ArrayRecord(arrays), num_rounds=1
            )
        assert grid.sent == [] and not (tmp_path / "e").exists()


def test_what_came_back_stands_in_the_ledger_and_on_the_page(tmp_path: Path) -> None:
    grid = foreign_grid(3)
    probes = Probes(net, rows(64, 0), rows(40, 1), effort=QUICK)
    strategy = Unlearn(FedAvg, negate(net()), node_with(partition_id=0), ledger=tmp_path / "e", undo=probes)
    strategy.start(grid, ArrayRecord(trained()), num_rounds=1)
    kept = json.loads((tmp_path / "e" / "undo" / "0" / "client-0" / "not.json").read_text())
    assert kept["measured"]["unlearned"]["flip"]["test"] > 80, "nobody trained: one sign brings it all back"
    done = CliRunner().invoke(cli, ["report", str(tmp_path / "e")])
    page = (tmp_path / "e" / "report.html").read_text()
    assert done.exit_code == 0 and "Can it be undone?" in page and "Test after flip" in page
    assert "no forgotten row is there to be scored" in page
