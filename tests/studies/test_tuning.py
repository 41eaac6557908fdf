"""Tuning sees validation rows and half of a population, has one budget for all, and says what it chose."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from test_judge import made_up
from unfed.cli.main import app
from unfed.errors import UnfedError
from unfed.folder.study_results import Judged, JudgedMethod, TunedBy
from unfed.measures.population import Resampling, store
from unfed.report.sections import about_tuning, tuned_words
from unfed.studies import tuning
from unfed.studies.grid import quiet
from unfed.studies.judging import judged
from unfed.studies.population import populate
from unfed.studies.tuning import Knob, TrialResult, TuningBudget, knobs, tune, with_values
from worlds import Small

TUNE = ("--tune", "all", "--trials", "2", "--trial-models", "1")
SETS = ('request={id="r1", clients=["0"]}', 'methods.run=["retrain"]', "partition.validation=0.2")


def test_knobs_stand_around_what_they_are() -> None:
    assert Knob.around("x", 0.3) == Knob("x", 0.3, 0.03, 1.0), "a share ends at 1"
    assert Knob.around("x", 3.0) == Knob("x", 3.0, 0.3, 30.0)
    assert Knob.around("x", 5) == Knob("x", 5, 2, 10)
    assert Knob.around("x", True) == Knob("x", True, 0, 1)
    assert Knob.around("x", ("a",)) is None and Knob.around("x", 0.0) is None


def test_of_a_method_that_needs_history_only_the_rate_is_tuned(small: Small) -> None:
    assert [knob.name for knob in knobs(small(*SETS), "federaser")] == ["unlearning.lr"]
    assert [knob.name for knob in knobs(small(*SETS), "ft")] == ["unlearning.lr"]
    assert "scale" in [knob.name for knob in knobs(small(*SETS), "not")]


def test_values_go_into_the_methods_own_table(small: Small) -> None:
    config = with_values(small(*SETS), "not", {"unlearning.lr": 0.25, "scale": 0.5})
    assert config.methods.recovery("not").lr == 0.25 and config.method("not").scale == 0.5  # type: ignore[attr-defined]
    assert small(*SETS).methods.recovery("not").lr is None


def test_a_trial_that_spoils_the_model_loses_against_every_other() -> None:
    assert TrialResult(9.0, 0.5).objective(0.5) == 9.0
    assert TrialResult(0.0, 0.6).objective(0.5) == 1000.6


def test_a_method_is_tuned_on_the_first_half_and_all_models_are_kept(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    population = populate(small(*SETS), 4, tmp_path / "p")
    asked: list[Any] = []
    plain = tuning.TrialModels.unlearned

    def seen(self: Any, values: Any, seeds: Any, said: Any) -> Any:
        asked.append((dict(values), tuple(seeds)))
        return plain(self, values, seeds, said)

    monkeypatch.setattr(tuning.TrialModels, "unlearned", seen)
    budget = TuningBudget(trials=3, models=2)
    (found,) = tune(small(*SETS), population, ["ft"], budget)
    assert [seeds for _, seeds in asked] == [(0, 1)] * 3 + [(0, 1, 2, 3)]
    assert asked[0][0] == {}, "the first trial is the method as it is"
    assert found["trials"] == 3 and found["models"] == 2
    assert found["best"]["distance"] <= found["as configured"]["distance"]
    after = store.load(population.folder)
    assert after.about.kinds == ("before", "retrain", "ft-tuned") and after.done("ft-tuned") == (0, 1, 2, 3)
    assert after.about.tuned["ft-tuned"]["chosen"] == found["chosen"] == asked[-1][0]
    asked.clear()
    assert tune(small(*SETS), after, ["ft"], budget) == [found] and asked == [], "it is not tuned again"
    # What may not be looked at is made nonsense, and the choice is the same: test rows, and the second half.
    for seed in after.about.seeds:
        kept = after.read("retrain", seed)
        spoiled = {group: 100.0 * torch.randn_like(t) for group, t in kept.items()}
        store.put(after, "retrain", seed, spoiled if seed > 1 else spoiled | {"forget": kept["forget"]})
    untuned = store.describe(after.folder, replace(after.about, tuned={}))
    assert tune(small(*SETS), untuned, ["ft"], budget) == [found] and len(asked) == 4
    tune(small(*SETS), store.load(after.folder), ["ft"], TuningBudget(trials=1, models=2))
    assert len(asked) == 6, "another budget is another tuning"


@pytest.mark.slow
def test_the_method_as_it_is_makes_the_models_of_the_population(small: Small, tmp_path: Path) -> None:
    """One trial chooses nothing, so the tuned models are those that the method makes untuned."""
    config = small(*SETS[:1], 'methods.run=["ft", "retrain"]', SETS[2])
    population = populate(config, 4, tmp_path / "p")
    assert tune(config, population, ["ft"], TuningBudget(trials=1, models=1))[0]["chosen"] == {}
    after = store.load(population.folder)
    np.testing.assert_allclose(after.logits("ft-tuned", "test"), after.logits("ft", "test"), atol=1e-5)


@pytest.mark.slow
def test_the_page_says_what_was_tuned_with_what(small: Small, tmp_path: Path) -> None:
    config = small(*SETS)
    population = populate(config, 6, tmp_path / "p")
    tune(config, population, ["ft"], TuningBudget(trials=2, models=1))
    whole = judged(store.load(tmp_path / "p"), Resampling(draws=10, permutations=10))
    assert whole["methods"]["ft-tuned"]["title"] == "FT (tuned)"
    assert whole["tuned"]["ft-tuned"]["on"] == "validation rows and 1 of the first 3 seeds of 6"


def test_bad_input_is_one_sentence(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    population = made_up(small(*SETS), tmp_path / "p")
    with pytest.raises(UnfedError, match="is a population of another config"):
        tune(small(*SETS, "training.lr=0.3"), population, ["ft"])
    with pytest.raises(UnfedError, match="Retrain is what every method is compared with"):
        tune(small(*SETS), population, ["retrain"])
    with pytest.raises(UnfedError, match="at least one trial"):
        tune(small(*SETS), population, ["ft"], TuningBudget(trials=0))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UnfedError, match=r"pip install '\.\[tune\]'"):
        tune(small(*SETS), population, ["ft"])


def test_the_command_says_what_was_chosen(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    population = made_up(small(*SETS), tmp_path / "p")
    asked: list[list[str]] = []

    def chosen(config: Any, found: Any, names: list[str], budget: Any, said: Any, jobs: Any) -> list[dict[str, Any]]:
        asked.append(names)
        said("ft: distance 0.100, drop 1.00 points", 1, 2)
        how = {"trials": 2, "models": 1, "on": "validation rows", "chosen": {"unlearning.lr": 0.0123456}}
        return [how for _ in names]

    monkeypatch.setattr("unfed.studies.tuning.tune", chosen)
    monkeypatch.setattr("unfed.studies.population.populate", lambda *args: population)
    monkeypatch.setattr("unfed.studies.population.missing", lambda *args: 0)
    command = ["population", "demo", "--tune", "all", "--trials", "2", "--out", str(population.folder)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "FT was tuned over 2 trials on validation rows: unlearning.lr = 0.0123." in done.output.replace("\n", " ")
    assert "FT, trial 1 of 2: distance 0.100, drop 1.00 points" in done.output.replace("\n", " ")
    assert asked == [["ft"]], "all that are there, Retrain aside"
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["tuned"][0]["trials"] == 2


@pytest.mark.slow
def test_from_a_population_to_a_page_that_says_what_was_tuned_with_what(small: Small, tmp_path: Path) -> None:
    """Three commands: train, tune all alike in two processes, judge. No method has a larger budget than another."""
    file, out = tmp_path / "c.toml", str(tmp_path / "p")
    file.write_text(
        'name = "c"\nseed = 0\n[partition]\nclients = 3\nvalidation = 0.2\n[model]\nname = "cnn-tiny"\n[training]\n'
        'rounds = 1\nbatch = 256\n[unlearning]\nrounds = 1\n[request]\nid = "r1"\nclients = ["0"]\n[methods]\n'
        'run = ["retrain", "ft", "not"]\n[data]\ntrain_size = 240\ntest_size = 60\n'
    )
    for command in (
        ["population", str(file), "--models", "6", "--out", out, "--quiet"],
        ["population", str(file), "--models", "6", "--out", out, "--quiet", *TUNE, "--jobs", "2"],
        ["judge", out, "--quick"],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    told = done.output.replace("\n", " ")
    assert store.load(out).about.kinds == ("before", "retrain", "ft", "not", "ft-tuned", "not-tuned")
    assert {how["trials"] for how in store.load(out).about.tuned.values()} == {2}
    page = (tmp_path / "p" / "report.html").read_text(encoding="utf-8")
    for title in ("FT (tuned)", "NoT (tuned)"):
        sentence = f"{title} was tuned over 2 trials on validation rows and 1 of the first 3 seeds of 6"
        assert sentence in told and sentence in page
    assert "different budgets" not in told and "Not tuned" not in told


def test_where_every_trial_spoils_the_model_the_page_says_so(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    population = made_up(small(*SETS), tmp_path / "p")
    monkeypatch.setattr(
        tuning, "TrialModels", lambda *args: SimpleNamespace(seeds=(0,), tried=lambda values: TrialResult(1.0, 30.0))
    )
    kept: list[dict[str, Any]] = []
    monkeypatch.setattr(tuning, "_kept", lambda *args: kept.append(args[-1]))
    tuning._tune(quiet, small(*SETS).to_json(), str(population.folder), "ft", TuningBudget(trials=2, models=1))
    (found,) = kept
    how = TunedBy.model_validate(found)
    assert how.spoiled and "cost more validation accuracy than allowed" in tuned_words("FT", how)
    assert "this one least (30.0 points)" in tuned_words("FT", how)
    assert "validation accuracy" not in tuned_words("FT", how.model_copy(update={"spoiled": False}))


def test_unequal_budgets_and_who_had_none_are_said() -> None:
    how = {"on": "validation rows", "chosen": {}}
    kinds = ("ft-tuned", "not-tuned", "not", "mode")
    methods = {kind: JudgedMethod.model_construct(title=kind.upper()) for kind in kinds}
    tuned = {"ft-tuned": how | {"trials": 3, "models": 2}, "not-tuned": how | {"trials": 20, "models": 2}}
    judged = Judged.model_construct(
        methods=methods, tuned={kind: TunedBy.model_validate(one) for kind, one in tuned.items()}
    )
    told = about_tuning(judged)
    assert "different budgets (FT-TUNED 3 trials of 2 models, NOT-TUNED 20 trials of 2 models)" in told[2]
    assert told[3] == "Not tuned, but as the config has it: MODE."
    assert about_tuning(judged.model_copy(update={"tuned": {}})) == []
