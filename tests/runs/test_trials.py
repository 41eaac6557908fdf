"""A learning rate chosen on validation rows in short trials: the best, counted, resumed, shown, and refused blind."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from conftest import SMALL
from unfed.cli.main import app
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import Refused, UnfedError
from unfed.federation.history import Recorder
from unfed.methods import PGD, FineTune, Led, NoT, Retrain, State
from unfed.requests.entry import Job
from unfed.requests.options import RequestOptions
from unfed.runs.job import try_rates
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.studies.cohort import task_of
from worlds import Small, serve, unlearn

RATES = [0.001, 0.03, 0.3]
SETS = (
    "request=[]",
    "methods.run=[]",
    "engine.precision=float64",
    "unlearning.tune_rounds=2",
    "gate.max_drop=100",
    "checkpoint.rounds=1",
)
TUNED = RequestOptions({"unlearning": {"tune": RATES}})
BYE = Request("bye", clients=("0",))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Run.create(Config.parse(SMALL, SETS), tmp_path_factory.mktemp("trained") / "run")
    made.execute()
    return made.folder.path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(scope="module")
def whole(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same after a request whose rate was tuned; nothing may change it."""
    run = Run.open(shutil.copytree(trained, tmp_path_factory.mktemp("whole") / "run"))
    run.forget(BYE, "not", until=3, how=TUNED)
    return run


def tuned_by(run: Run, method: str = "not") -> Any:
    saved = run.folder.saved(Job(0, "bye", method))
    assert saved is not None
    return saved.diary.tuned


def truth(run: Run, rate: float) -> float:
    """Validation accuracy after two rounds of NoT at a rate, by a server of its own."""
    world = run.world(0)
    settings = replace(world.unlearning_settings(False, "not"), rounds=2)
    server = serve(world, (BYE,), run.model(method="train"), None, world.seeds.request("bye"), settings.at(rate))
    value = world.evaluator([BYE]).validation(unlearn(NoT(), server, 2).params)
    assert not isinstance(value, str)
    return value


def test_the_rate_of_the_best_trial_is_taken_and_the_job_is_that_of_this_rate(run: Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.folder.path, tmp_path / "copy"))
    run.forget(BYE, "not", until=2, how=TUNED)
    found, meant = tuned_by(run), {str(rate): truth(run, rate) for rate in RATES}
    assert found["validation"] == pytest.approx(meant) and len({*meant.values()}) == 3
    good = [rate for rate in RATES if meant[str(rate)] >= max(meant.values()) - 5]
    assert found["lr"] == max(good) and found["rounds"] == 6
    plain = Run.open(copy)
    plain.forget(BYE, "not", until=2, how=RequestOptions({"unlearning": {"lr": found["lr"]}}))
    assert all(torch.equal(tensor, plain.current(0)[name]) for name, tensor in run.current(0).items())
    for column in ("comm_bytes", "wire_bytes", "flops"):  # three trials as long as the job itself
        cost: Any = [one.lines()[-1] for one in (run, plain)]
        assert cost[0][column] == 4 * cost[1][column] > 0


@pytest.mark.parametrize("at", [0, 1])
def test_a_killed_job_goes_on_at_the_same_rate(run: Run, whole: Run, at: int) -> None:
    class Killed(Watch):
        def saved(self, job: Job, state: State, histories: Any) -> None:
            if state.round == at:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.forget(BYE, "not", until=3, how=TUNED, watch=Killed())
    again = Run.open(run.folder.path)
    again.execute()
    assert tuned_by(again) == tuned_by(whole)
    assert all(torch.equal(tensor, again.current(0)[name]) for name, tensor in whole.current(0).items())
    assert again.lines()[-1]["flops"] == whole.lines()[-1]["flops"]


def test_a_rate_that_spoils_the_model_is_out_and_where_all_do_it_is_refused(run: Run) -> None:
    run.forget(BYE, "not", until=1, how=RequestOptions({"unlearning": {"tune": [1e6, 0.03]}}))
    assert tuned_by(run)["lr"] == 0.03 and [*tuned_by(run)["validation"]] == ["0.03"]
    with pytest.raises(Refused, match="Round 1 "):
        run.forget(Request("b", clients=("1",)), "ft", until=1, how=RequestOptions({"unlearning": {"tune": [1e6]}}))


def test_of_rates_that_are_nearly_as_good_the_highest_is_taken(small: Small) -> None:
    world, values = simulated(small(*SETS), 0), iter([80.0, 75.0, 74.9])
    server = serve(world, (BYE,), tune=(0.01, 0.02, 0.03), tune_rounds=1)
    assert try_rates(server, FineTune(), lambda params: next(values))["lr"] == 0.02


def test_nothing_of_a_trial_is_recorded_or_changes_what_comes_after(small: Small) -> None:
    world = simulated(small(*SETS), 0)
    server = serve(world, (BYE,), tune=(0.01, 0.1), tune_rounds=2)
    server.recorders = {"pgd": Recorder(PGD())}
    settings, recorders = server.settings, server.recorders
    try_rates(server, FineTune(), world.evaluator([BYE]).validation)
    assert server.settings is settings and server.recorders is recorders and server.usual == {}
    assert recorders["pgd"].history.rounds == 0


def test_a_trial_of_led_cleans_its_teacher_for_as_few_rounds(small: Small) -> None:
    world = simulated(small(*SETS), 0)
    server = serve(world, (BYE,), tune=(0.01, 0.1), tune_rounds=2)
    found = try_rates(server, Led(), world.evaluator([BYE]).validation)
    assert found["rounds"] == 2 * (2 + 2)
    assert Led(teacher_rounds=1).trial(2).teacher_rounds == 1


def test_each_method_may_have_its_own_rates_and_retrain_has_only_those(small: Small) -> None:
    base = (*SETS, "unlearning.tune=[0.1, 0.2]")

    def tune(*sets: str, label: str = "not") -> tuple[float, ...]:
        world = simulated(small(*base, *sets), 0)
        return world.unlearning_settings(label == "retrain", label).tune

    assert tune() == (0.1, 0.2) and tune(label="retrain") == ()
    assert tune("methods.not.unlearning.tune=[0.5]") == (0.5,)
    assert tune("methods.not.unlearning.tune=[]") == tune("methods.not.unlearning.lr=0.3") == ()
    assert tune("methods.retrain.unlearning.tune=[0.5]", label="retrain") == (0.5,)
    for table in ("unlearning", "methods.not.unlearning"):
        with pytest.raises(UnfedError, match="give unlearning.lr, or the rates to try in unlearning.tune, not both"):
            small(f"{table}.lr=0.1", f"{table}.tune=[0.2]").methods.recovery("not")
    config: Config = small(*base, "request=[{id='r', clients=['0']}]")
    with pytest.raises(UnfedError, match="A population unlearns at one learning rate; set unlearning.lr"):
        task_of(simulated(config, 0), "not", BYE)


def test_without_validation_rows_it_is_refused_before_any_work(small: Small, tmp_path: Path) -> None:
    run = Run.create(small(*SETS, "partition.validation=0"), tmp_path / "run")
    run.execute()
    with pytest.raises(UnfedError, match="unlearning.tune needs validation rows, and none are held out; set"):
        run.ask(BYE, "not", until="2", how=TUNED)
    compared = small(*SETS[2:], "partition.validation=0", "unlearning.tune=[0.1]", "methods.run=['not']")
    with pytest.raises(UnfedError, match="unlearning.tune needs validation rows"):
        Run.create(compared, tmp_path / "other").execute()


def test_a_plan_counts_the_trials_and_the_command_says_what_was_chosen(run: Run) -> None:
    offers = {one.method: one.rounds for one in run.plan(BYE, how=TUNED)}
    plain = {one.method: one.rounds for one in run.plan(BYE)}
    assert offers["not"] == plain["not"] + 6 and offers["led"] == plain["led"] + 12
    assert offers["retrain"] == plain["retrain"] + 6
    words = ["forget", str(run.folder.path), "--client", "0", "--until", "1", "--set", "unlearning.tune=[0.01, 0.1]"]
    shown = CliRunner().invoke(app, [*words, "--id", "bye", "--method", "ft"])
    assert shown.exit_code == 0, shown.output
    tuned, said = tuned_by(run, "ft"), " ".join(shown.output.split())
    assert f"Learning rate {tuned['lr']}: the highest that came near the best in 4 rounds of trials (0.01: " in said
    assert run.info().jobs[-1].tuned == tuned


def test_retrain_can_be_tuned_too(run: Run) -> None:
    run.forget(BYE, "retrain", until=2, how=TUNED)
    world, tuned = run.world(0), tuned_by(run, "retrain")
    settings = replace(world.unlearning_settings(True, "retrain"), rounds=2).at(tuned["lr"])
    server = serve(world, (BYE,), seed=world.seeds.request("bye"), settings=settings)
    found = unlearn(Retrain(), server, 2).params
    assert all(torch.equal(tensor, run.current(0)[name]) for name, tensor in found.items())


def test_without_a_method_a_request_is_served_by_a_tuned_retrain(run: Run) -> None:
    entry = run.forget(BYE).entry
    rate = run.config.training.lr
    assert entry.method == "retrain" and entry.until == str(min(run.config.training.rounds, 6))
    assert entry.how.set["unlearning"] == {
        "tune": pytest.approx([rate, 5 * rate, 25 * rate]),
        "epochs": 3,
        "schedule": {"kind": "one-cycle"},
    }
    assert tuned_by(run, "retrain")["lr"] in entry.how.set["unlearning"]["tune"]


@pytest.mark.parametrize(
    ("sets", "given", "recipe", "rounds"),
    [
        (("training.rounds=200",), {}, True, 20),
        (("training.rounds=4",), {}, True, 4),
        (("training.rounds=40", "partition.validation=0"), {}, False, 40),
        (("training.rounds=40", "methods.retrain={unlearning={lr=0.2, rounds=9}}"), {}, False, 9),
        (("training.rounds=40", "methods.retrain={unlearning={rounds=9}}"), {}, True, 9),
        (("training.rounds=90",), {"unlearning": {"lr": 0.3}}, False, 9),
    ],
    ids=["a-tenth", "no-more-than-training", "no-validation-rows", "its-own-table", "its-own-rounds", "as-asked"],
)
def test_the_default_recipe_steps_back_where_another_is_given(
    small: Small, sets: tuple[str, ...], given: dict[str, Any], recipe: bool, rounds: int
) -> None:
    asked = RequestOptions(given)
    how, found = asked.tuned_retrain(small(*SETS, *sets))
    assert found == rounds and ("tune" in how.set.get("unlearning", {})) is recipe
    assert recipe or how == asked
