"""A population is the runs it stands for, side by side; killed, it goes on; asked for more, it does what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import unfed
from populations import written
from test_run import kept_before_every_write
from unfed import storage
from unfed.cli.main import app
from unfed.config import revisions
from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.folder import locks as presence
from unfed.measures.population import store
from unfed.requests.entry import Job
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.studies import grid as runs_grid
from unfed.studies import population as runs_population
from unfed.studies.cohort import Cohort
from unfed.studies.population import RowGroups, populate
from worlds import Small, slow

DOUBLE = ("engine.precision=float64", "engine.name=batched", "checkpoint.rounds=1")
LEAVES = 'request={id="r1", clients=["0"]}'
TWO = (*DOUBLE, LEAVES, 'methods.run=["not", "retrain"]')


@pytest.mark.parametrize("methods", [("not",), *slow((("federaser", "fcu", "mode", "pgd", "fukd"),))])
def test_every_model_is_the_run_of_its_seed_alone(small: Small, tmp_path: Path, methods: tuple[str, ...]) -> None:
    config = small(*DOUBLE, LEAVES, f"methods.run={[*methods, 'retrain']}")
    population = populate(config, 2, tmp_path / "p")
    assert population.about.kinds == ("before", "retrain", *methods) and population.about.seeds == (0, 1)
    sets = ["seed=1", "seeds.partition=0", "seeds.evaluation=0", "evaluation.attack=false", "evaluation.every=9"]
    alone, world = Run.create(Config.parse(config.to_json(), sets), tmp_path / "run"), simulated(config, 0)
    alone.execute()
    for kind in population.about.kinds:
        job = Job(1, None, "train") if kind == "before" else Job(1, "r1", kind)
        expected = RowGroups.of(world, config.requests()[0]).logits(world, alone.folder.load_model(job))
        for group in ("forget", "retain", "test"):
            np.testing.assert_allclose(population.logits(kind, group)[1], expected[group], rtol=1e-6, atol=1e-6)


def test_side_by_side_gives_the_models_of_one_after_another(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(*TWO, "training.rounds=2", "unlearning.rounds=1", "unlearning.retrain_rounds=1")
    together = populate(config, 3, tmp_path / "together")
    monkeypatch.setattr(runs_population, "Cohort", partial(Cohort, together=False))
    alone = populate(config, 3, tmp_path / "alone")
    for kind in together.about.kinds:
        params = [storage.load(p.folder / "state" / "0" / "before.safetensors")[0] for p in (together, alone)]
        for name, tensor in params[0].items():
            torch.testing.assert_close(tensor, params[1][name], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(together.logits(kind, "test"), alone.logits(kind, "test"), atol=1e-6)


def test_training_seeds_vary_and_rows_do_not(small: Small, tmp_path: Path) -> None:
    population = populate(small(*TWO), 2, tmp_path / "p")
    for kind in population.about.kinds:
        first, second = population.logits(kind, "test")
        assert np.abs(first - second).max() > 1e-3
    forget, rows = population.labels("forget"), population.column("rows", "forget")
    assert len(forget) == len(rows) == population.about.groups["forget"]
    assert set(population.column("client", "forget")) == {0}
    assert not set(rows) & set(population.column("rows", "retain"))


def test_retrain_at_an_earlier_round_is_the_retrain_that_stops_there(small: Small, tmp_path: Path) -> None:
    quick = (*DOUBLE, LEAVES, 'methods.run=["retrain"]', "training.rounds=1")
    whole = populate(small(*quick, "unlearning.retrain_rounds=4"), 2, tmp_path / "p")
    short = populate(small(*quick, "unlearning.retrain_rounds=2"), 2, tmp_path / "q")
    assert whole.rounds() == (1, 2, 3) and whole.about.kinds == ("before", "retrain")
    for group in ("forget", "test"):
        np.testing.assert_allclose(whole.logits("retrain@2", group), short.logits("retrain", group), atol=1e-6)
        assert np.abs(whole.logits("retrain@2", group) - whole.logits("retrain", group)).max() > 1e-3
    store.logits_file(whole.folder, "retrain@3", 1).unlink()
    assert whole.rounds() == (1, 2), "a round counts where every model has it"
    assert store.load(written(tmp_path / "old").folder).rounds() == (), "an earlier version kept the last round only"


@pytest.mark.parametrize("numbers", [(3, 8), *slow((tuple(set(range(14)) - {3, 8}),))])
def test_killed_at_any_write_it_goes_on_to_the_same_bytes(
    small: Small, tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    little = ("training.batch=256", "data.test_size=60", "data.train_size=240")  # a crash does not ask how many rows
    config = small(*TWO, "training.rounds=2", "unlearning.rounds=2", *little)
    with kept_before_every_write(tmp_path / "whole", tmp_path / "killed") as kept:
        expected = _bytes(populate(config, 2, tmp_path / "whole").folder)
    assert len(kept) >= 14
    for folder in (kept[number] for number in numbers):
        assert _bytes(populate(config, 2, folder).folder) == expected, f"killed before write {folder.name}"


def _bytes(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*.safetensors") if path.parent.name != "0"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_more_models_and_methods_are_added_to_what_is_there(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(*TWO)
    first = populate(config, 2, tmp_path / "p")
    before = _bytes(first.folder)
    put: list[tuple[str, int]] = []
    keep = store.put

    def noted(population: store.Population, kind: str, seed: int, logits: Any) -> None:
        put.append((kind, seed))
        keep(population, kind, seed, logits)

    monkeypatch.setattr(store, "put", noted)
    more = populate(small(*TWO, 'methods.run=["ft"]'), 3, tmp_path / "p")
    assert more.about.seeds == (0, 1, 2) and more.about.kinds == ("before", "retrain", "not", "ft")
    retrained = [(f"retrain@{number}", 2) for number in first.rounds()] + [("retrain", 2)]
    assert put == [("ft", 0), ("ft", 1), ("before", 2), *retrained, ("ft", 2)]
    assert {name: data for name, data in _bytes(more.folder).items() if name in before} == before
    assert more.logits("ft", "test").shape[0] == 3
    with pytest.raises(UnfedError, match="2 of 3 models of 'not'"):
        more.logits("not", "test")
    put.clear()
    populate(config, 3, tmp_path / "p")
    assert put == [("not", 2)]


def test_a_cohort_that_another_process_is_at_is_left_to_it(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_population, "TOGETHER", {"cpu": 2})
    config = small(*DOUBLE, LEAVES, 'methods.run=["ft"]', "training.rounds=1", "unlearning.rounds=1")
    other = tmp_path / "p" / "state" / "0"
    other.mkdir(parents=True)
    with presence.held(other, "work"):
        found = populate(config, 3, tmp_path / "p")
        assert found.about.cohorts == ((0, 1), (2,)) and found.done("ft") == (2,)
    assert populate(config, 3, tmp_path / "p").done("ft") == (0, 1, 2)


def test_left_to_itself_it_takes_a_core_for_every_cohort_that_computes_on_one_thread(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_grid, "cores", lambda: 4)
    world = simulated(small(*TWO), 0)
    assert [runs_population.at_once(world, cells) for cells in (0, 1, 2, 8)] == [1, 1, 2, 4]
    assert runs_population.at_once(replace(world, threads=2), 64) == 1  # one process uses the cores already
    assert runs_population.at_once(replace(world, device=torch.device("cuda")), 64) == 1
    with unfed.allow_code():
        mine = small(*TWO, 'model.name="mine:Net"')
    assert runs_population.at_once(replace(world, config=mine), 64) == 1  # code is permitted in one process


def test_the_command_says_that_another_process_is_at_some_models(tmp_path: Path) -> None:
    file, out = tmp_path / "c.toml", tmp_path / "p"
    file.write_text(
        'name = "c"\n[partition]\nclients = 3\n[model]\nname = "cnn-tiny"\n[training]\nrounds = 1\nbatch = 256\n'
        '[unlearning]\nrounds = 1\n[request]\nclients = ["0"]\n[methods]\nrun = ["ft"]\n'
    )
    (out / "state" / "0").mkdir(parents=True)
    words = ["population", str(file), "--models", "2", "--out", str(out)]
    with presence.held(out / "state" / "0", "work"):
        said = CliRunner().invoke(app, words)
    assert said.exit_code == 0 and "Another process is at 6 of the models" in said.output.replace("\n", " ")
    assert "Another process" not in CliRunner().invoke(app, words).output


@pytest.mark.slow
def test_two_processes_make_the_bytes_of_one(small: Small, tmp_path: Path) -> None:
    config = small(*TWO, "training.rounds=1", "unlearning.rounds=1", "data.test_size=60", "data.train_size=240")
    one = populate(config, 10, tmp_path / "one")
    two = populate(config, 10, tmp_path / "two", jobs=2)
    assert len(two.about.cohorts) == 2 and _bytes(one.folder) == _bytes(two.folder)


@pytest.mark.slow
def test_a_history_that_is_gone_is_recorded_again(small: Small, tmp_path: Path) -> None:
    config = small(*DOUBLE, LEAVES, 'methods.run=["ft"]')
    populate(config, 2, tmp_path / "p")
    later = populate(small(*DOUBLE, LEAVES, 'methods.run=["federaser"]'), 2, tmp_path / "p")
    whole = populate(small(*DOUBLE, LEAVES, 'methods.run=["federaser"]'), 2, tmp_path / "whole")
    assert np.array_equal(later.logits("federaser", "test"), whole.logits("federaser", "test"))


@pytest.mark.parametrize(
    ("changes", "models", "sentence"),
    [
        ((LEAVES,), 1, "says nothing about spread"),
        (("request=[]",), 2, "of one request, the config has 0"),
        ((LEAVES, "seeds.training=3"), 2, "seeds.training is fixed"),
        ((LEAVES, "training.patience=3"), 2, "leave patience and keep_model out"),
        (('request={clients=["0"], deleted=true}',), 2, "have deleted them"),
        ((LEAVES, 'methods.run=["before"]', 'methods.before={use="ft"}'), 2, "cannot be labelled 'before'"),
    ],
)
def test_what_no_population_can_be_of(
    small: Small, tmp_path: Path, changes: tuple[str, ...], models: int, sentence: str
) -> None:
    with pytest.raises(UnfedError, match=sentence):
        populate(small(*changes), models, tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_a_folder_of_another_config_is_not_gone_on_with(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(*TWO, "training.rounds=1", "unlearning.rounds=1")
    populate(config, 2, tmp_path / "p")
    with pytest.raises(UnfedError, match="a population of another config"):
        populate(small(*TWO, "training.lr=0.5"), 2, tmp_path / "p")
    monkeypatch.setitem(revisions.METHODS, "not", 99)
    with pytest.raises(UnfedError, match="an earlier edition of not"):
        populate(config, 2, tmp_path / "p")


def test_a_key_that_was_added_since_does_not_make_it_another_config(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A population outlives a version: what it did not say then is what the default says now."""
    config, there = small(*TWO, "training.rounds=1", "unlearning.rounds=1"), tmp_path / "p" / "population.json"
    with monkeypatch.context() as then:
        then.setattr(runs_population, "digest_of", lambda config: "as it was computed then")
        populate(config, 2, tmp_path / "p")
    about = json.loads(there.read_text())
    del about["stated"]["training"]["robust"]
    there.write_text(json.dumps(about))
    assert populate(config, 3, tmp_path / "p").logits("not", "forget").shape[0] == 3
    elsewhere = small(*TWO, "training.rounds=1", "unlearning.rounds=1", 'data.root="elsewhere"', "methods.fcu={}")
    assert runs_population.of_another(store.load(tmp_path / "p").about, elsewhere) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.lr=0.5", r"training.lr 0.3 instead of 0.5"),
        ("seed=4", "seed 0 instead of 4"),
        ("methods.not={layers=[1]}", "methods.not"),
    ],
)
def test_what_makes_it_another_config_is_said(small: Small, tmp_path: Path, change: str, words: str) -> None:
    there = small("training.lr=0.3", *TWO)
    about = replace(written(tmp_path / "p").about, config=runs_population.digest_of(there), stated=there.to_json())
    other = runs_population.of_another(about, small("training.lr=0.3", *TWO, change))
    assert other is not None and words in other


def test_the_command_trains_says_what_it_has_and_goes_on(small: Small, tmp_path: Path) -> None:
    file, out = tmp_path / "c.toml", tmp_path / "p"
    file.write_text(
        'name = "c"\n[partition]\nclients = 3\n[model]\nname = "cnn-tiny"\n[training]\nrounds = 1\n'
        '[unlearning]\nrounds = 1\n[poison]\nclient = "0"\n[request]\nclients = ["0"]\n'
    )
    words = ["population", str(file), "--models", "2", "--out", str(out), "--methods"]
    said = CliRunner().invoke(app, [*words, "not"])
    assert said.exit_code == 0, said.output
    assert "2 models of each kind" in said.output and "backdoor" in said.output and "retrain" in said.output
    found = json.loads(CliRunner().invoke(app, [*words, "ft", "--json"]).stdout)
    assert [row["kind"] for row in found["accuracy"]] == ["before", "retrain", "not", "ft"]
    assert set(found["accuracy"][0]["mean"]) == {"forget", "retain", "test", "backdoor"}
