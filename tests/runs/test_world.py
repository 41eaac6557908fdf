"""What a config makes: seeds, rows and numbers of rounds, before anything runs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from unfed.config.config import Seeds
from unfed.data import ClientData, Request, TensorSource, mark, public
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from worlds import Small


def test_every_request_and_every_repetition_has_draws_of_its_own(small: Small) -> None:
    seeds = [Seeds.of(small(), seed).request(request) for seed in (0, 1) for request in ("r1", "r2")]
    assert len(set(seeds)) == 4 and seeds[0] == Seeds.of(small(), 0).request("r1")
    parts = Seeds.of(small(), 0)
    assert len({parts.partition, parts.training, parts.unlearning, parts.evaluation}) == 4


def test_a_poisoned_clients_validation_rows_stay_clean(small: Small) -> None:
    clean, poisoned = simulated(small(), 0), simulated(small("poison.client=1", "poison.target_class=3"), 0)
    for k, (before, after) in enumerate(zip(clean.clients, poisoned.clients, strict=True)):
        changed = before.labels != after.labels
        assert not changed[after.val].any() and bool(changed[after.train].any()) == (k == 1)
        assert isinstance(after.source, TensorSource) and after.source.stamped is not None
        assert not after.source.stamped[after.rows[after.val]].any()


def test_who_left_by_an_earlier_request_holds_no_row_at_all(small: Small) -> None:
    world = simulated(small(), 0)
    first, second = Request("a", samples=(("1", int(world.clients[1].train[0])),)), Request("b", clients=("0",))
    now = world.scoped([first, second], gone=[first])["1"]
    assert len(now.view("all")) == len(world.clients[1].train) - 1 == len(now.view("retain"))
    assert len(world.scoped([first, second])["1"].view("all")) == len(world.clients[1].train)


def test_retrain_has_trainings_rounds_and_the_others_their_own(small: Small) -> None:
    world = simulated(small("training.rounds=5", "unlearning.rounds=2", "unlearning.lr=0.5"), 0)
    assert world.unlearning_settings(retrain=True).rounds == 5
    assert world.unlearning_settings(retrain=False, label="not").rounds == 2
    assert world.unlearning_settings(retrain=True).phase.optimiser.lr == pytest.approx(0.02)
    assert world.unlearning_settings(retrain=False, label="not").phase.optimiser.lr == pytest.approx(0.5)
    longer = simulated(small("training.rounds=5", "unlearning.retrain_rounds=9"), 0)
    assert longer.unlearning_settings(retrain=True).rounds == 9


def test_a_recipe_reaches_every_method_and_retrain_by_its_own_table_alone(small: Small) -> None:
    cycle = ("unlearning.lr=0.5", "unlearning.epochs=3", "unlearning.schedule.kind=one-cycle")
    world = simulated(small("training.rounds=5", "unlearning.rounds=10", *cycle), 0)
    ours = world.unlearning_settings(False, "not")
    assert (ours.phase.epochs, ours.phase.optimiser.lr, ours.schedule.kind) == (3, 0.5, "one-cycle")
    again = world.unlearning_settings(True, "retrain")
    assert again == world.training_settings(), "Retrain is training again"

    own = "methods.retrain.unlearning={rounds=7, lr=0.3, epochs=2, schedule={kind='one-cycle'}}"
    tuned = simulated(small("training.rounds=5", *cycle, own), 0).unlearning_settings(True, "retrain")
    assert (tuned.rounds, tuned.phase.epochs, tuned.phase.optimiser.lr) == (7, 2, 0.3)
    assert tuned.schedule.kind == "one-cycle"
    alone = simulated(small(*cycle, "methods.not.unlearning={epochs=4}"), 0).unlearning_settings(False, "not")
    assert (alone.phase.epochs, alone.phase.optimiser.lr, alone.schedule.kind) == (4, 0.5, "one-cycle")
    trained = simulated(small("training.schedule.kind=one-cycle", "training.rounds=5"), 0)
    assert trained.unlearning_settings(True, "retrain").schedule.kind == "one-cycle"
    assert trained.unlearning_settings(False, "not").schedule.kind == "constant"


def test_the_partitions_seed_moves_who_holds_what_and_no_other_seed_does(small: Small) -> None:
    def rows(*sets: Any) -> Any:
        return torch.cat([client.rows for client in simulated(small(*sets), 0).clients])

    assert torch.equal(rows(), rows("seeds.training=5", "seeds.unlearning=6", "seeds.evaluation=7"))
    assert not torch.equal(rows(), rows("seeds.partition=5"))


def test_the_servers_images_are_held_out_rows_of_those_who_stay_without_their_labels() -> None:
    """Client b has no training row left, though nobody asked for its held-out rows."""
    source = TensorSource(torch.arange(30.0)[:, None], torch.arange(30) % 3)
    places = torch.arange(10)
    clients = [ClientData(name, source, 10 * k + places, places[:7], places[7:]) for k, name in enumerate("abc")]
    rows = Request("r", samples=(*(("b", place) for place in range(7)), ("c", 9)))
    server = public({client.name: client for client in mark(clients, [rows], 0)})
    assert server is not None
    x, y = server.source.fetch(server.rows[server.view("all")])
    assert x.flatten().tolist() == [7, 8, 9, 27, 28]
    assert not y.any() and not server.labels.any()


def test_who_left_by_an_earlier_request_is_no_owner_of_the_next(small: Small, tmp_path: Path) -> None:
    """FCU asks the owners of what is to be forgotten: for the second request that is its own client alone."""
    config = small("training.rounds=1", "unlearning.rounds=1", "methods.run=['fcu']", "evaluation.attack=false")
    asked = [{"id": "a", "clients": ["0"]}, {"id": "b", "clients": ["2"]}]
    raw = {**config.to_json(), "request": asked, "methods": {"run": ["fcu"], "fcu": {"iterations": 1, "fuse_every": 1}}}
    run = Run.create(type(config).parse(raw), tmp_path / "run")
    run.execute()
    begun = {line["request"]: line["asked"] for line in run.lines() if line["method"] == "fcu" and line["round"] == 0}
    assert begun == {"a": {"0": ["0"]}, "b": {"0": ["2"]}}


def test_the_last_round_is_evaluated_whatever_the_grid(small: Small, tmp_path: Path) -> None:
    sets = ("training.rounds=1", "unlearning.rounds=3", "evaluation.every=2", "evaluation.attack=false")
    run = Run.create(small(*sets), tmp_path / "run")
    run.execute()
    assert [line["round"] for line in run.lines() if line["method"] == "not"] == [0, 2, 3]


def test_a_job_goes_on_until_there_is_a_model(small: Small, tmp_path: Path) -> None:
    """One round is asked for, but MoDE's guidance takes two before anything can be used."""
    sets = ("training.rounds=1", "evaluation.attack=false", "methods.run=[]")
    run = Run.create(small(*sets, "methods.mode.guidance=2", "methods.mode.degradation=1"), tmp_path / "run")
    run.execute()
    run.forget(Request("x", clients=("3",)), method="mode", until=1)
    lines = [(line["round"], line["model"]) for line in run.lines() if line["method"] == "mode"]
    assert lines == [(0, False), (1, False), (2, True)]


def test_nothing_has_recovered_before_there_is_a_model(small: Small, tmp_path: Path) -> None:
    """Every accuracy would do, and still two rounds of guidance must pass."""
    sets = ("training.rounds=1", "evaluation.attack=false", "methods.run=[]", "evaluation.recovered_within=100")
    run = Run.create(small(*sets, "methods.mode.guidance=2", "methods.mode.degradation=1"), tmp_path / "run")
    run.execute()
    run.forget(Request("x", clients=("3",)), method="mode", until="recovered")
    assert [line["round"] for line in run.lines() if line["method"] == "mode"] == [0, 1, 2]
