"""`unfed judge`: a population is measured once, a run of the same config shows it, another is told so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from unfed.cli.main import app
from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.folder.study_results import FILE, Judged, of_run
from unfed.measures.population import Resampling, store
from unfed.measures.population.store import About, Population
from unfed.report.sections import grid
from unfed.runs.run import Run
from unfed.studies import grid as grids
from unfed.studies.judging import judged, put_into
from unfed.studies.population import digest_of, populate
from worlds import Small

SETS = ('request={id="r1", clients=["0"]}', 'methods.run=["ft", "retrain"]')
QUICK = Resampling(draws=20, permutations=20)


def made_up(config: Config, folder: Path, kinds: tuple[str, ...] = ("before", "retrain", "ft")) -> Population:
    """Six models of each kind that nobody trained: FT gives the forgotten rows a little more than Retrain."""
    groups = {"forget": 20, "retain": 30, "test": 30}
    about = About("small", digest_of(config), "r1", tuple(range(6)), kinds, groups, 3, {}, {}, "a machine")
    rows = {f"labels/{group}": [i % 3 for i in range(n)] for group, n in groups.items()}
    owners = {"client/forget": [0] * 20, "position/forget": list(range(20))}
    made = store.create(folder, about, rows | owners)
    for place, kind in enumerate(kinds):
        for seed in about.seeds:
            draw = torch.Generator().manual_seed(100 * place + seed)
            own = {group: 2.0 * torch.eye(3)[torch.arange(n) % 3] for group, n in groups.items()}
            own["forget"] = own["forget"] * {"before": 2.0, "retrain": 1.0}.get(kind, 1.5)
            store.put(made, kind, seed, {g: x + torch.randn(x.shape, generator=draw) for g, x in own.items()})
    return made


@pytest.fixture
def population(small: Small, tmp_path: Path) -> Population:
    return made_up(small(*SETS), tmp_path / "p")


def test_a_population_is_judged_and_the_same_bytes_come_out(population: Population) -> None:
    found = judged(population, QUICK)
    assert set(found["methods"]) == {"ft"} and found["methods"]["ft"]["title"] == "FT"
    assert {answer["kind"] for answer in found["methods"]["ft"]["verdict"].values()} == {"undecided"}, "they are six"
    assert found["methods"]["ft"]["stopped"]["round"] is None
    assert found["methods"]["ft"]["exposure"][0]["row"].startswith("client 0, row ")
    first = (population.folder / FILE).read_bytes()
    judged(population, QUICK)
    assert (population.folder / FILE).read_bytes() == first


def test_methods_that_are_whole_are_judged_and_others_named(small: Small, tmp_path: Path) -> None:
    population = made_up(small(*SETS), tmp_path / "p", ("before", "retrain", "ft", "not"))
    store.logits_file(population.folder, "not", 3).unlink()
    found = judged(population, QUICK)
    assert set(found["methods"]) == {"ft"} and found["unfinished"] == {"NoT": 5}
    assert any("NoT is not judged: 5 of 6 models are there" in note for note in grid(Judged.model_validate(found))[1])
    store.logits_file(population.folder, "ft", 3).unlink()
    with pytest.raises(UnfedError, match="has 5 of 6 models of 'ft'; go on with"):
        judged(population, QUICK)


def test_a_run_of_the_same_config_shows_it_and_one_of_another_does_not(
    small: Small, tmp_path: Path, population: Population
) -> None:
    same, other = (
        Run.create(small(*SETS, *more), tmp_path / name) for name, more in (("a", ()), ("b", ("training.lr=0.3",)))
    )
    found = judged(population, QUICK)
    put_into(same, population, found)
    assert of_run(same.folder)["r1"].models == 6 and same.info().population["r1"].request == "r1"
    with pytest.raises(UnfedError, match="is a population of another config than"):
        put_into(other, population, found)
    assert of_run(other.folder) == {}


def test_the_command_writes_pages_and_says_a_verdict(small: Small, tmp_path: Path, population: Population) -> None:
    Run.create(small(*SETS), tmp_path / "run")
    done = CliRunner().invoke(app, ["judge", str(population.folder), "--run", str(tmp_path / "run"), "--quick"])
    assert done.exit_code == 0, done.output
    assert "FT" in done.output and "Retrain against Retrain" in done.output
    assert "How sure are we?" in (population.folder / "report.html").read_text(encoding="utf-8")
    assert "models of each kind, each from its own training seed" in (tmp_path / "run/report.html").read_text(
        encoding="utf-8"
    )
    told = CliRunner().invoke(app, ["judge", str(population.folder), "--quick", "--json"])
    assert json.loads(told.stdout)["models"] == 6


@pytest.mark.slow
def test_two_processes_judge_to_the_bytes_of_one(small: Small, tmp_path: Path) -> None:
    population = made_up(small(*SETS), tmp_path / "p", ("before", "retrain", "ft", "not"))
    found = judged(population, QUICK)
    first = (population.folder / FILE).read_bytes()
    assert judged(population, QUICK, jobs=2) == found and (population.folder / FILE).read_bytes() == first
    lines = [json.loads(line)["cell"] for line in (population.folder / grids.LINES).read_text().splitlines()]
    assert sorted(lines) == ["judge ft", "judge ft", "judge not", "judge not"]


@pytest.mark.slow
def test_a_population_that_was_trained_is_judged_and_names_its_rows(small: Small, tmp_path: Path) -> None:
    found = judged(populate(small(*SETS), 6, tmp_path / "p"), QUICK)
    assert found["methods"]["ft"]["exposure"][0]["row"].startswith("client 0, row ")


def test_a_population_of_retrains_alone_is_one_sentence(tmp_path: Path, population: Population) -> None:
    alone = replace(population, about=replace(population.about, kinds=("before", "retrain")))
    with pytest.raises(UnfedError, match="no method's models to compare"):
        judged(alone)
    with pytest.raises(UnfedError, match="not a population"):
        store.load(tmp_path / "nothing")
