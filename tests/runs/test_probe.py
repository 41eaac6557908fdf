"""Probing a run: which models, what is kept, and one sentence for whatever is missing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from command_line import called as command
from conftest import SMALL
from pages import probes, undone
from unfed.api import write_report
from unfed.cli.main import main
from unfed.client.scores import called
from unfed.config.config import Config
from unfed.data import Request
from unfed.engines.choice import as_trained
from unfed.errors import UnfedError
from unfed.folder.layout import Undoing
from unfed.folder.study_results import Target, file_of
from unfed.folder.study_results import measured as measured_in
from unfed.folder.study_results import targets as targets_in
from unfed.measures.undo.measure import NOT_TRIED, Effort, turned_back
from unfed.measures.undo.refits import Grid
from unfed.methods import FineTune
from unfed.report.figures import undo_pictures
from unfed.report.undo import NOT_PROBED, UndoSection, comes_back, grid, sentence
from unfed.runs import probe as probing
from unfed.runs.probe import Step, effort_of, probe, scene_of
from unfed.runs.run import Run
from unfed.values import is_measured
from worlds import LITTLE, few_triggers  # noqa: F401 (pytest finds the fixture here)


@dataclass(frozen=True)
class Mine(FineTune):
    """A method of somebody's own that says nothing of layers."""

    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small comparison with a backdoor, and a request that was served after it."""
    sets = ("poison.client=0", "methods.run=['not','retrain']", "training.rounds=2", "unlearning.rounds=1")
    few = ("data.train_size=300", "data.test_size=80")
    run = Run.create(Config.parse(SMALL, (*sets, *few)), tmp_path_factory.mktemp("probed") / "run")
    run.execute()
    run.forget(Request("later", clients=("1",)), "not", 1)
    return run.folder.path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture(scope="module")
def probed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with its comparison probed."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("undone") / "run")
    quick(Run.open(folder), request="r1")
    return folder


@pytest.fixture(scope="module")
def later(made: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Undoing]:
    """Probes of two requests that were served one after the other, and have no Retrain."""
    run = Run.open(shutil.copytree(made, tmp_path_factory.mktemp("later") / "run"))
    run.forget(Request("last", clients=("2",)), "ft", 1)
    return [found for name in ("later", "last") for found in quick(run, request=name)]


@pytest.fixture
def known(probed: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(probed, tmp_path / "known"))


def targets(run: Run) -> list[Target]:
    return targets_in(run.folder, run.config)


def measured(run: Run) -> list[Undoing]:
    return measured_in(run.folder, run.config)


def quick(run: Run, **which: Any) -> list[Undoing]:
    return probe(run, effort=LITTLE, **which)


def test_a_quick_probe_takes_less_of_everything_at_the_same_rates(run: Run) -> None:
    whole, little = effort_of(run), effort_of(run, quick=True)
    assert (whole.lr, whole.relearn_lr) == (little.lr, little.relearn_lr) == (0.02, 0.002)
    assert max(little.grid.budget.stops) < max(whole.grid.budget.stops) and little.rounds < whole.rounds


def test_every_model_that_a_method_left_is_a_target_and_begins_where_it_began(run: Run) -> None:
    found = {"/".join(t.job.path.parts): "/".join(t.previous.path.parts) for t in targets(run)}
    assert found == {"0/r1/not": "0/train", "0/r1/retrain": "0/train", "0/later/not": "0/train"}
    assert [r.id for r in targets(run)[-1].requests] == ["later"]


def test_a_probe_is_kept_in_the_folder_and_not_made_twice(known: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run, kept = known, json.loads(file_of(known.folder, targets(known)[0].job).read_text())
    found = Undoing.model_validate(kept)
    assert found.to_json() == kept and (found.layout, found.method, found.title) == (1, "not", "NoT")
    assert found.perturbed == {"how": "negate", "layers": ["conv1.weight"]}
    for who in ("unlearned", "retrain", "before"):
        for measurement, name in (("flip", "forget"), ("realign", "tried"), ("relearn", "area"), ("published", "mia")):
            assert is_measured(found.measured[who][measurement][name]), (who, measurement)
    assert measured(run) == [found]
    monkeypatch.setattr(probing, "undo", lambda *args: pytest.fail("measured again"))
    assert quick(run, request="r1") == [found]


def test_a_probe_that_was_interrupted_shows_what_it_has_and_goes_on(
    run: Run, known: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(run.folder, targets(run)[0].job)
    whole = file_of(known.folder, targets(known)[0].job).read_bytes()

    def interrupted(step: Step) -> None:
        if (step.who, step.measurement) == ("retrain", "resurface"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(run, request="r1", said=interrupted)
    (some,) = measured(run)
    assert is_measured(some.measured["retrain"]["realign"]["tried"])
    assert some.measured["retrain"]["resurface"] == {"reason": NOT_TRIED}
    assert "not tried yet, <code>unfed probe</code> does it" in write_report(run).read_text()
    steps: list[Step] = []
    (found,) = quick(run, request="r1", said=steps.append)
    assert steps[:2] == [Step("0/r1/not"), Step("0/r1/not", "retrain", "resurface", 11, 24)] and len(steps) == 15
    assert path.read_bytes() == whole and found.to_json() == json.loads(whole)
    less = json.loads(whole)
    del less["measured"]["before"]["path"]
    path.write_text(json.dumps(less))
    assert quick(run, request="r1") == [found], "a piece that is not there is measured"
    monkeypatch.setattr(probing, "undo", lambda *args: pytest.fail("measured again"))
    assert quick(run, request="r1") == [found]


def test_a_probe_computes_logits_as_the_run_evaluated_them(run: Run) -> None:
    world = run.world(0)
    assert scene_of(world, targets(run)[0].requests).way is as_trained
    config = Config.parse(SMALL, ("poison.client=0", "evaluation.precision=params"))
    assert scene_of(replace(world, config=config), targets(run)[0].requests).way is called


def test_a_first_look_is_kept_and_shown_as_what_it_is_until_a_probe_measures_the_rest(run: Run) -> None:
    found = probing.first_look(run, "not")
    assert found is not None and measured(run) == [found]
    flip, rest = found.measured["unlearned"]["flip"], found.measured["retrain"]["realign"]
    assert is_measured(flip["backdoor"]) and rest == {"reason": NOT_TRIED}
    page = write_report(run).read_text()
    assert "The model turned back is right on" in page, "a first look says what it tried"
    assert "Undoing was not tried; <code>" in page, "of the other request"
    (whole,) = quick(run, request="r1", method="not")
    assert whole.measured["unlearned"]["flip"] == flip and is_measured(whole.measured["unlearned"]["realign"]["tried"])
    assert probing.first_look(run, "not") == whole, "what is known is not thrown away for less"
    assert "The model turned back is right on" not in write_report(run).read_text()
    assert probing.first_look(run, "sealed") is None


def test_the_top_of_the_page_says_what_comes_back_and_nothing_where_no_more_does_than_in_retrain() -> None:
    said = comes_back(probes(told(4.0, 70.0, 2.0)))
    assert said is not None and said.startswith("undone, the backdoor works on")
    assert said.endswith("again (Retrain, treated alike: 2.0 %)")
    assert comes_back(probes(told(60.0, 62.0, 2.0))) is None, "what was never forgotten does not come back"
    assert comes_back(probes(told(4.0, 70.0, "not measured: no"))) is None, "without Retrain nothing is beside it"


def test_what_was_measured_of_another_model_is_not_shown(known: Run) -> None:
    (found,) = measured(known)
    path = file_of(known.folder, targets(known)[0].job)
    models = {**found.models, "unlearned": "of an earlier attempt"}
    path.write_text(json.dumps({**found.to_json(), "models": models}))
    assert measured(known) == []


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("[]", "is damaged (it should be an object)"),
        ('{"schema": 1}', "has no seed"),
        ({"measured": {"unlearned": {"flip": 3}}}, "has '3' as its measured.unlearned.flip (it should be an object)"),
        ({"models": []}, "has '[]' as its models (it should be an object)"),
        ({"over": 7}, "has '7' as its over (it should be a valid array)"),
    ],
)
def test_a_damaged_probe_is_one_sentence(run: Run, damage: str | dict[str, Any], says: str) -> None:
    probing.first_look(run, "not")
    path = file_of(run.folder, targets(run)[0].job)
    path.write_text(damage if isinstance(damage, str) else json.dumps(json.loads(path.read_text()) | damage))
    for reader in (quick, measured, write_report):
        with pytest.raises(UnfedError) as error:
            reader(run)
        assert str(path) in str(error.value) and says in str(error.value)
        assert str(error.value).endswith("restore it from a copy.")


def test_without_retrain_its_column_says_so(later: list[Undoing]) -> None:
    found = later[0]
    reason = "not measured: this run has no Retrain of request later"
    assert {m["reason"] for m in found.measured["retrain"].values()} == {reason}
    assert is_measured(found.measured["unlearned"]["flip"]["forget"])
    assert f"(1) {reason.removeprefix('not measured: ')}" in grid([found])[1]
    assert "(Retrain: not measured)" in sentence([found])


def test_a_probe_of_a_later_request_says_over_whom_its_forget_is(later: list[Undoing]) -> None:
    """Whoever left first may come back too, so all are looked at; the request's own number is another."""
    one, both = later
    assert not one.over and "Forget is over" not in sentence([one])
    assert both.over == ("later", "last")
    assert sentence([both]).endswith("Forget is over all that had left by then: later and last.")


def test_without_the_model_before_the_rest_is_measured(run: Run) -> None:
    run.folder.model_file(targets(run)[0].previous).unlink()
    found = probing.first_look(run, "not")
    assert found is not None
    assert found.measured["before"]["flip"]["reason"] == "not measured: the model 0/train is no longer there"
    assert is_measured(found.measured["unlearned"]["flip"]["forget"])


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ({"request": "nobody"}, "This run has no request 'nobody' that a method has served; it has r1 or later."),
        ({"request": "later", "method": "ft"}, "No model of this run was left by 'ft' there; it has those of not."),
        ({"seed": 7}, "This run has no seed 7; use 0."),
    ],
)
def test_what_is_not_there_is_one_sentence(run: Run, which: dict[str, Any], says: str) -> None:
    with pytest.raises(UnfedError) as error:
        quick(run, **which)
    assert str(error.value) == says


def test_a_model_that_is_not_there_cannot_be_probed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.folder.model_file(targets(run)[0].job).unlink()
    with pytest.raises(UnfedError, match="no model 0/r1/not yet; go on with `unfed resume"):
        quick(run, request="r1", method="not")
    monkeypatch.setattr(
        probing, "undo", lambda scene, models, knowledge, *effort: turned_back(scene, models, knowledge)
    )
    assert [found.request for found in quick(run, method="not")] == ["later"], "the other one is there"


def test_a_run_of_flower_or_of_a_call_keeps_its_data_elsewhere(run: Run) -> None:
    run.description = run.description.model_copy(update={"engine": "flower"})
    with pytest.raises(UnfedError, match="Flower nodes, which keep their data"):
        quick(run)
    run.description = run.description.model_copy(update={"engine": "batched", "call": {"method": "not"}})
    with pytest.raises(UnfedError, match="unfed.unlearn, whose data is the caller's"):
        quick(run)


def test_a_method_without_layers_is_probed_and_its_flip_says_why_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(run.config), "method", lambda self, label: Mine())
    (found,) = quick(run, request="r1")
    says = "not measured: not names no layers that it perturbs, so there is nothing to invert"
    assert found.measured["unlearned"]["flip"] == {"layers": [], "reason": says}
    assert found.perturbed is None and is_measured(found.measured["unlearned"]["realign"]["tried"])


def test_the_config_can_ask_for_it(small: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "effort_of", lambda run: LITTLE)
    sets = ("evaluation.undo=true", "training.rounds=1", "unlearning.rounds=1")
    run = Run.create(small(*sets), tmp_path / "run")
    run.execute()
    assert [found.method for found in measured(run)] == ["not"]
    assert "this run has no Retrain of request r1" in write_report(run).read_text()


# --- the command and the page -----------------------------------------------------------------------------------------


def test_the_command_shows_a_table_and_writes_the_report(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = str(run.folder.path)
    monkeypatch.setattr("unfed.runs.probe.effort_of", lambda run, quick, *fits: LITTLE)
    monkeypatch.setattr(sys, "argv", ["unfed", "probe", where, "--request", "r1", "--quick"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("signal.signal", lambda *args: None)
        _call()
        told = capsys.readouterr().out
        assert "Largest backdoor after" in told and "Retrain" in told and "Report:" in told
        assert "NoT: as published the backdoor works on" in told, "what the table comes to stands below it, in words"
        page = (run.folder.path / "report.html").read_text()
        patched.setattr("unfed.api.write_report", lambda run: run.folder.path)
        monkeypatch.setattr(sys, "argv", ["unfed", "probe", where, "--request", "r1", "--quick", "--json"])
        _call()
    assert json.loads(capsys.readouterr().out)[0]["method"] == "not"
    assert "Can it be undone?" in page and "All numbers of undoing NoT" in page
    assert "undoing was not tried; <code>unfed probe</code> tries it" in page  # the other request was not probed
    assert "Undoing was not tried; <code>unfed probe</code> tries it." in page, "at the top, too"


def _call() -> None:
    try:
        main()
    except SystemExit as end:
        assert not end.code


def told(published: float, back: float, retrain: float | str) -> dict[str, Any]:
    """A probe of one model with these backdoor numbers."""

    def one(published: float, back: float) -> dict[str, Any]:
        return {
            "published": {"forget": 30.0, "backdoor": published, "test": 97.0},
            "flip": {"forget": 80.0, "backdoor": 85.0, "test": 50.0, "mia": 60.0},
            "realign": {"forget": 40.0, "backdoor": back},
        }

    theirs = {p: {"reason": retrain} for p in ("published", "flip", "realign")}
    if not isinstance(retrain, str):
        theirs = one(0.0, retrain)
    both = {"unlearned": one(published, back), "retrain": theirs, "before": one(95.0, 95.0)}
    return {"request": "r1", "method": "not", "title": "NoT", "seed": 0, "measured": both}


def test_fits_that_left_nothing_usable_are_not_taken_for_a_good_sign() -> None:
    """19 attacked models of which the only usable one was not fitted, as a first look at a ViT gave."""
    found = told(7.4, 7.5, 4.3)
    for who in ("unlearned", "retrain"):
        found["measured"][who]["realign"] |= {"fits": 16, "usable_fits": 0}
    assert undone(found).endswith("or lower `--rates`.") and "no more than" not in undone(found)
    assert (
        UndoSection.of(probes(found), NOT_PROBED).weak
        and not UndoSection.of(probes(told(7.4, 7.5, 4.3)), NOT_PROBED).weak
    )
    found["measured"]["unlearned"]["realign"] |= {"backdoor": 70.0}
    assert undone(found).endswith("What was forgotten can be brought back."), "what comes back, comes back"
    found["measured"]["unlearned"]["realign"] |= {"backdoor": 7.5, "usable_fits": 1}
    assert undone(found).endswith("These attacks bring back no more than they find in Retrain.")


def test_how_hard_layers_are_fitted_can_be_said(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    efforts: list[Effort] = []

    def measure(*given: Any) -> list[Any]:
        efforts.append(given[4])
        return []

    monkeypatch.setattr("unfed.runs.probe.probe", measure)
    monkeypatch.setattr("unfed.api.write_report", lambda run: run.folder.path)
    for how in ("--quick --rows 40,7 --steps 3 --rates 5e-4", "--rates 0.002", "--quick"):
        code, _, err = command(["probe", str(run.folder.path), "--quiet", *how.split()], monkeypatch, capsys)
        assert code == 0, err
    told, slow, quick = (effort.grid for effort in efforts)
    assert (told.rows, told.budget.stops, told.rates, told.singles) == ((7, 40), (3,), (0.0005,), quick.singles)
    assert slow == replace(Grid(), rates=(0.002,)) and quick == probing.QUICK, "the rest is the grid's own"


def test_the_words_follow_the_numbers() -> None:
    assert undone(told(4.0, 70.0, 2.0)).endswith("What was forgotten can be brought back.")
    assert undone(told(4.0, 5.0, 2.0)).endswith("These attacks bring back no more than they find in Retrain.")
    assert undone(told(60.0, 70.0, 2.0)).endswith("It was not forgotten to begin with.")
    assert undone(told(4.0, 70.0, "not measured: no")).endswith("up to 70.0 % (Retrain: not measured).")
    shown = undone(told(4.0, 70.0, 2.0))
    assert "4.0 % of stamped images" in shown and "up to 70.0 %" in shown and "brings that to 85.0 %" in shown


def test_where_only_the_inverse_was_tried_the_words_and_the_picture_say_no_more() -> None:
    some = told(4.0, 70.0, 2.0)
    for one in some["measured"].values():
        one["realign"] = {"reason": NOT_TRIED}
    some["measured"]["retrain"]["flip"]["backdoor"] = 0.0
    shown, drawn = undone(some), undo_pictures(probes(some), "undo-0")[0].inline
    assert "usable" not in shown and "up to" not in shown and not UndoSection.of(probes(some), NOT_PROBED).fitted
    assert "brings that to 85.0 % (Retrain: 0.0 %). The model turned back is right on 50.0 % of the test data" in shown
    assert shown.endswith("What was forgotten can be brought back.") and "Only" not in shown
    some["measured"]["unlearned"]["flip"]["backdoor"] = 3.0
    assert undone(some).endswith("Only the public inverse was tried.")
    assert "NoT 4.0 as published, 85.0 after the inverse alone" in drawn
    assert "after undoing;" not in drawn and UndoSection.of(probes(told(4.0, 70.0, 2.0)), NOT_PROBED).fitted


def test_the_table_says_each_reason_once_and_takes_the_mean_over_seeds() -> None:
    body, notes = grid(probes(told(4.0, 70.0, "not measured: no Retrain"), told(6.0, 80.0, "not measured: no Retrain")))
    rows = dict(body)
    assert rows["Backdoor, as published"][0].startswith("5.0") and "±" in rows["Backdoor, as published"][0]
    assert rows["Largest backdoor after realign, usable"][1] == "not measured (1)"
    assert notes == ["(1) no Retrain", "(2) not in this file"]


def test_what_chance_alone_moves_is_said_below_the_table_where_the_file_says_its_rows() -> None:
    """MIA 60 with 40 rows a side ± 7.4, Forget 30 of 40 rows ± 7.2; with two seeds the ± in a cell is theirs."""
    found = told(4.0, 70.0, 0.0)
    assert grid(probes(found))[1] == ["(1) not in this file"]
    for who in ("unlearned", "retrain", "before"):
        for part in ("published", "flip"):
            found["measured"][who][part]["rows"] = {"forget": 40, "test": 360}
    said = "chance alone moves MIA by up to ± 7.4 and Forget by up to ± 7.0 points (one standard error)."
    assert grid(probes(found))[1][0] == f"With 40 forgotten rows, {said}"
    assert grid(probes(found, found))[1][0] == f"With 40 forgotten rows in each seed, {said}"


def test_the_picture_is_drawn_only_of_what_was_measured() -> None:
    shown = undo_pictures(probes(told(4.0, 70.0, 2.0)), "undo-0")
    assert [one.title for one in shown] == ["Backdoor success (%)", "Accuracy on the forgotten data (%)"]
    assert "NoT 4.0 as published, 70.0 after undoing" in shown[0].inline
    without = undo_pictures(probes(told(4.0, 70.0, "not measured: no")), "undo-0")[0].inline
    assert "Retrain" not in without
    assert UndoSection.of(probes(), NOT_PROBED).reason == NOT_PROBED
