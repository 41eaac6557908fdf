"""Harder forget sets: what each of them does to the data, how harm is counted, and who fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from populations import written
from unfed.cli.main import app
from unfed.cli.options import read_with_methods
from unfed.cli.studies import population as command
from unfed.config.config import Config
from unfed.config.tables import PoisonConfig
from unfed.data import TensorSource, backdoor, camouflage, confuse
from unfed.errors import UnfedError
from unfed.folder import locks as presence
from unfed.measures.population import store
from unfed.measures.population.store import memorisation, most_memorised
from unfed.runs.simulated import simulated
from unfed.studies import grid
from unfed.studies.stress import BOUND, CASES, changed, confusions, stress
from worlds import Small, slow


def grey(labels: torch.Tensor) -> TensorSource:
    return TensorSource(torch.full((len(labels), 1, 8, 8), 100, dtype=torch.uint8), labels, classes=4)


# --- the data ---------------------------------------------------------------------------------------------------------


def test_confusion_swaps_a_share_of_either_class_and_nothing_else() -> None:
    labels = torch.arange(40) % 4  # ten rows of every class
    rows = torch.arange(20)  # five of every class are this client's
    found = confuse(grey(labels), rows, (1, 3), seed=0, share=0.8)
    moved = (found.labels != labels).nonzero().flatten().tolist()
    assert len(moved) == 8 and set(moved) <= set(rows.tolist())
    assert [int((labels[moved] == c).sum()) for c in (1, 3)] == [4, 4]
    assert all({int(labels[i]), int(found.labels[i])} == {1, 3} for i in moved)
    assert found.stamped is None


def test_camouflage_stamps_rows_under_their_right_labels() -> None:
    labels = torch.arange(40) % 4
    planted = backdoor(grey(labels), torch.arange(20), 0, seed=0)
    hidden = camouflage(planted, torch.arange(20, 40), 0, seed=0)
    assert hidden.stamped is not None and planted.stamped is not None
    assert torch.equal(hidden.labels, planted.labels)
    extra = hidden.stamped & ~planted.stamped
    assert int(extra.sum()) == 12 and not extra[:20].any() and not (labels[extra] == 0).any()


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('{kind="camouflage"}', "exactly where poison.kind is 'camouflage'"),
        ('{hidden_by="1"}', "exactly where poison.kind is 'camouflage'"),
        ('{colluders=["0"]}', "names a client twice"),
        ('{kind="confusion", classes=[2, 2]}', "two different classes"),
        ('{kind="confusion", classes=[2, 99]}', "two different classes of 0..9"),
        ('{colluders=["77"]}', "'77' is not one of the clients 0 to 3"),
        ('{kind="confusion", share=0.01}', "confuses none"),
    ],
)
def test_a_poisoning_that_cannot_be_is_one_sentence(small: Small, table: str, sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        simulated(small(f"poison={table}"), 0)


def test_colluders_poison_in_turn_and_the_first_one_s_rows_stay_as_they_were(small: Small) -> None:
    alone, both = (
        simulated(small(f"poison={table}"), 0) for table in ('{client="0"}', '{client="0", colluders=["2"]}')
    )
    one, two = alone.clients[0].source, both.clients[0].source
    assert isinstance(one, TensorSource) and isinstance(two, TensorSource)
    assert one.stamped is not None and two.stamped is not None
    mine = alone.clients[0].rows
    assert torch.equal(one.stamped[mine], two.stamped[mine]) and torch.equal(one.labels[mine], two.labels[mine])
    assert two.stamped[both.clients[2].rows].any() and not one.stamped[alone.clients[2].rows].any()


def test_half_of_the_poisoned_rows_are_named(small: Small) -> None:
    config = changed(small(), CASES["confusion-half"].change(small()))
    (request,) = config.requests()
    world = simulated(config, 0)
    touched = world.clients[0].source.labels != world.dataset.train.labels
    poisoned = {("0", int(p)) for p in world.clients[0].train if touched[world.clients[0].rows[p]]}
    assert len(request.samples) == len(poisoned) // 2 and set(request.samples) < poisoned
    assert request.kind == "instance"


# --- what is counted --------------------------------------------------------------------------------------------------


def test_confusion_is_the_share_of_two_classes_that_are_read_as_each_other(tmp_path: Path) -> None:
    population = written(tmp_path / "p", models=2)  # nine test rows: labels 0 1 2 3 0 1 2 3 0
    read = torch.tensor([1, 0, 2, 3, 0, 1, 0, 1, 2])  # a 0 read as 1, a 1 read as 0; other mistakes do not count
    said = {group: torch.zeros(rows, 4) for group, rows in population.about.groups.items()}
    for seed in population.about.seeds:
        store.put(population, "not", seed, said | {"test": torch.nn.functional.one_hot(read, 4).float()})
    found = confusions(population, "not", PoisonConfig(kind="confusion", classes=(0, 1)))
    assert found.tolist() == pytest.approx([40.0, 40.0])  # 2 of the 5 rows of classes 0 and 1


def test_the_most_memorised_row_is_the_one_whose_loss_rises_most_without_it(tmp_path: Path) -> None:
    population = written(tmp_path / "p", models=2)
    labels = torch.arange(6) % 4
    for kind, sure in (("before", [5.0, 5, 5, 5, 5, 5]), ("retrain", [5.0, 0, 5, 2, 5, 5])):
        logits = torch.nn.functional.one_hot(labels, 4) * torch.tensor(sure)[:, None]
        for seed in population.about.seeds:
            store.put(population, kind, seed, population.read(kind, seed) | {"forget": logits})
    score = memorisation(population)
    assert np.argsort(-score)[:2].tolist() == [1, 3]
    assert score[1] == pytest.approx(np.log(4) - np.log1p(3 * np.exp(-5.0)))
    tensors = {f"labels/{g}": torch.from_numpy(population.labels(g)) for g in population.about.groups}
    owners = {"client/forget": torch.tensor([7] * 6), "position/forget": torch.arange(6) * 10}
    store.create(population.folder, population.about, tensors | owners)
    assert most_memorised(population, 0.4) == [("7", 10), ("7", 30)]
    request = {"select": "memorised", "population": str(population.folder), "fraction": 0.4}
    config = Config.parse({"partition": {"clients": 9}, "request": request})
    assert config.requests()[0].samples == (("7", 10), ("7", 30))
    assert Config.kept(config.to_json()) == config  # the list is kept, whatever becomes of the population
    with pytest.raises(UnfedError, match="less than one row"):
        Config.parse({"request": request | {"fraction": 0.01}})
    with pytest.raises(UnfedError, match="takes population = .*, and fraction"):
        Config.parse({"request": {"select": "memorised"}})


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cases", [("confusion-half", "memorised"), *slow((tuple(CASES),))])
def test_every_case_gives_a_cell_for_retrain_and_the_methods_that_serve_it(
    small: Small, tmp_path: Path, cases: tuple[str, ...]
) -> None:
    rounds = ("training.rounds=1", "unlearning.rounds=1", "unlearning.retrain_rounds=1")
    config = small(*rounds, 'methods.run=["ft", "federaser"]', "poison={share=0.9}", "training.batch=256")
    cells = stress(config, 2, tmp_path / "s", list(cases), bound=10.0)
    for case in cases:  # FedEraser serves clients, not single rows
        served = ["ft"] if case in ("backdoor-half", "confusion-half", "memorised") else ["ft", "federaser"]
        assert [cell.kind for cell in cells if cell.case == case] == ["before", "retrain", *served]
    assert all(cell.fails == (cell.mean > 10.0) for cell in cells)
    assert all(0.0 < cell.test < 100.0 for cell in cells)
    with pytest.raises(UnfedError, match="no case 'backdor'"):
        stress(config, 2, tmp_path / "s", ["backdor"])
    with pytest.raises(UnfedError, match="at least three clients"):
        stress(small("partition.clients=2"), 2, tmp_path / "s", ["backdoor"])
    with pytest.raises(UnfedError, match="No case was named; use backdoor"):
        stress(small(), 2, tmp_path / "s", [])
    with pytest.raises(UnfedError, match="--bound is the percentage of harm above which a method fails, not nan"):
        stress(small(), 2, tmp_path / "s", ["backdoor"], float("nan"))


def test_the_cohorts_of_all_cases_are_one_grid_and_the_memorised_rows_come_after(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids: list[tuple[list[str], int]] = []
    run = grid.run

    def noted(cells: Sequence[grid.GridCell], jobs: int, folder: Path, said: grid.Said = grid.quiet) -> None:
        grids.append(([cell.name for cell in cells], jobs))
        run(cells, 1, folder, said)

    monkeypatch.setattr(grid, "run", noted)
    rounds = ("training.rounds=1", "unlearning.rounds=1", "unlearning.retrain_rounds=1", "training.batch=256")
    heard: set[str] = set()
    config = small(*rounds, 'methods.run=["ft"]')
    cases = ["backdoor", "confusion", "memorised"]
    stress(config, 2, tmp_path / "s", cases, said=lambda kind, *_: heard.add(kind), jobs=2)
    first = ["backdoor, seed 0", "confusion, seed 0", "memorised-known, seed 0"]
    assert grids == [(first, 2), (["memorised, seed 0"], 1)]
    assert {"backdoor, before", "confusion, ft", "memorised-known, retrain", "memorised, retrain"} <= heard


def test_the_command_says_who_fails(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        'name = "c"\n[partition]\nclients = 3\n[model]\nname = "cnn-tiny"\n[training]\nrounds = 1\n'
        '[unlearning]\nrounds = 1\n[methods]\nrun = ["ft"]\n'
    )
    words = ["population", str(file), "--models", "2", "--cases", "backdoor", "--out", str(tmp_path / "s")]
    said = CliRunner().invoke(app, [*words, "--bound", "-1"])
    assert said.exit_code == 0, said.output
    assert "fail: retrain, ft." in said.output
    assert "backdoor (a client plants a backdoor and leaves): nothing is shown" in CliRunner().invoke(
        app, [*words, "--bound", "101"]
    ).output.replace("\n", " ")
    again = json.loads(CliRunner().invoke(app, [*words, "--bound", "101", "--json"]).stdout)
    assert [cell["fails"] for cell in again["cells"]] == [False] * 3
    assert json.loads((tmp_path / "s" / "stress.json").read_text()) == again
    both = CliRunner().invoke(app, [*words, "--tune", "ft"])
    assert isinstance(both.exception, UnfedError) and "give one of them" in str(both.exception)


def test_the_commands_bound_is_that_of_the_study() -> None:
    """The command states it itself, so that its help need not import the study."""
    assert signature(command).parameters["bound"].default == BOUND


def test_all_methods_are_those_that_run_in_the_setting() -> None:
    """Six of those that are known are made for one place that holds all data, unless they are switched on."""
    found = read_with_methods("demo", [], "all").methods.run
    assert {"retrain", "not", "fcu", "federaser"} <= set(found) and "badt" not in found
    assert "badt" in read_with_methods("demo", ["methods.badt.federated=true"], "all").methods.run
    rows = ['request={id="r", fraction=0.1}']
    assert "federaser" not in read_with_methods("demo", rows, "all", serving=True).methods.run


def test_a_case_that_another_process_is_at_is_said_to_be(small: Small, tmp_path: Path) -> None:
    config = small("training.rounds=1", "unlearning.rounds=1", 'methods.run=["ft"]', "training.batch=256")
    other = tmp_path / "s" / "confusion" / "state" / "0"
    other.mkdir(parents=True)
    with (
        presence.held(other, "work"),
        pytest.raises(UnfedError, match=r"Another process is at .*confusion; give the same"),
    ):
        stress(config, 2, tmp_path / "s", ["confusion"])
