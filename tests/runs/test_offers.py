"""`unfed forget --plan`: what each method would cost, and that it refuses what `forget` refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unfed.cli.main import app
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.runs.admission import DEFAULT, Offer
from unfed.runs.run import Run
from worlds import Small

LEAVES = Request("leaves", clients=("2",))


@pytest.fixture
def run(small: Small, tmp_path: Path) -> Run:
    sets = ("training.rounds=4", "unlearning.rounds=3", "methods.run=[]", "request=[]", 'training.record=["fukd"]')
    made = Run.create(small(*sets), tmp_path / "run")
    made.execute()
    return made


def by_method(run: Run, request: Request = LEAVES) -> dict[str, Offer]:
    return {one.method: one for one in run.plan(request)}


def test_costs_are_those_of_the_training_for_as_many_rounds(run: Run) -> None:
    offers, trained = by_method(run), run.lines()[-1]
    sent, stay = float(trained["comm_bytes"]), len(run.description.clients) - 1
    assert (offers["retrain"].rounds, offers["not"].rounds, offers["led"].rounds) == (4, 3, 3 + 20)
    assert offers["retrain"].bytes == sent * stay / (stay + 1) and offers["retrain"].seconds == trained["seconds"]
    assert offers["not"].bytes == pytest.approx(sent * stay / (stay + 1) * 3 / 4)


def test_the_default_comes_first_with_its_trials_and_local_epochs_counted(run: Run) -> None:
    first, trained = run.plan(LEAVES)[0], run.lines()[-1]
    assert first.method == DEFAULT and first.lasts == "exact" and first.rounds == 4 + 3 * 3
    assert first.seconds == pytest.approx(float(trained["seconds"]) * first.rounds / 4 * 3)
    done = run.forget(LEAVES)
    assert (done.entry.method, done.entry.until) == ("retrain", "4")
    assert run.lines()[-1]["comm_bytes"] == pytest.approx(first.bytes)


def test_the_accuracy_is_that_of_the_last_model_of_the_method_here(run: Run) -> None:
    assert {one.accuracy for one in run.plan(LEAVES)} == {None}
    run.forget(Request("first", clients=("1",)), "ft", until=2)
    offers = by_method(run)
    assert offers["ft"].accuracy == run.lines()[-1]["test"] and offers["not"].accuracy is None


def test_what_lasts_is_said_as_far_as_it_is_known(run: Run) -> None:
    offers = by_method(run)
    assert offers["not"].lasts == "no: one minus sign" and offers["ft"].lasts == "not shown"
    assert offers["retrain"].lasts == "exact" and offers["led"].lasts == "nothing to turn back"


@pytest.mark.parametrize(
    "request_", [LEAVES, Request("class", classes=(3,)), Request("gone", clients=("2",), deleted=True)]
)
def test_a_plan_refuses_what_forget_refuses_and_in_the_same_words(run: Run, request_: Request, tmp_path: Path) -> None:
    run.forget(Request("first", clients=("1",)), "not", until=1)  # a second negation would turn the first one back
    offers, said = by_method(run, request_), dict[str, str]()
    offers.pop(DEFAULT)
    for method in offers:
        copy = Path(shutil.copytree(run.folder.path, tmp_path / method.replace(":", ".")))
        try:
            Run.open(copy).ask(request_, method)
        except UnfedError as error:
            said[method] = str(error).replace(str(copy), str(run.folder.path))
    assert {name: one.refused for name, one in offers.items() if one.refused} == said and "not" in said


def test_a_plan_writes_nothing_and_a_stranger_is_refused(run: Run) -> None:
    before = {path: path.read_bytes() for path in run.folder.path.rglob("*") if path.is_file()}
    shown = CliRunner().invoke(app, ["forget", str(run.folder.path), "--client", "2", "--plan"])
    assert (
        shown.exit_code == 0 and "no: one minus sign" in shown.output and "federaser: FedEraser needs" in shown.output
    )
    told = CliRunner().invoke(app, ["forget", str(run.folder.path), "--client", "2", "--plan", "--json"])
    assert [one["method"] for one in json.loads(told.output)] == [one.method for one in run.plan(LEAVES)]
    stranger = CliRunner().invoke(app, ["forget", str(run.folder.path), "--client", "9", "--plan"])
    assert "This run has no client '9'" in str(stranger.exception)
    assert before == {path: path.read_bytes() for path in run.folder.path.rglob("*") if path.is_file()}
