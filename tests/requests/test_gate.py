"""The gate: a model that lost too much does not come into force, nor one that was to forget and did not."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SMALL
from unfed.api import write_report
from unfed.cli.main import main
from unfed.config.config import Config
from unfed.config.tables import GateConfig
from unfed.data import Request
from unfed.engines import Batched, Sequential
from unfed.errors import Refused, UnfedError
from unfed.measures.forgotten import Evidence, Judgement, Losses, Verdict, halves
from unfed.requests.entry import Job
from unfed.requests.gate import Decision, Gate, NotPassed, check_of, is_forgotten, passed, utility
from unfed.requests.options import RequestOptions, Until
from unfed.runs.run import Run
from unfed.values import not_measured
from worlds import ALL_DIGITS, noting, saved

ENOUGH = ("training.rounds=8", "training.lr=0.05", "request=[]", "gate.max_drop=10.0", "unlearning.rounds=12")
LEAVES = Request("leaves", clients=("1",))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gate") / "run"
    Run.create(Config.parse(SMALL, (*ENOUGH, *ALL_DIGITS)), folder).execute()
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    """A run whose θ* is of use, with nothing filed."""
    shutil.copytree(trained, tmp_path / "run")
    return Run.open(tmp_path / "run")


def entry_of(run: Run, name: str) -> Any:
    """The request as it stands; a test that finds none fails."""
    return run.queue.book.find(name)


def numbers_of(run: Run, job: Job) -> Any:
    """What a job's saved state says."""
    return saved(run.folder, job).to_json()


def lines_of(run: Run, request: str, method: str) -> list[Any]:
    return [line for line in run.lines() if (line["request"], line["method"]) == (request, method)]


def file_of(run: Run) -> dict[str, Any]:
    (path,) = (run.folder.path / "requests").glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_model_that_lost_too_much_stays_out_of_force_and_its_request_owed(run: Run) -> None:
    before = run.current_job(0)
    with pytest.raises(Refused, match="does not pass the gate .utility failed: the drop of validation accuracy"):
        run.forget(LEAVES, "not", until=1)
    entry = entry_of(run, "leaves")
    assert (entry.state, entry.reason, entry.owed) == ("denied", "gate", True)
    assert run.current_job(0) == before, "the old model is in force"
    assert [r.id for r in run.queue.book.besides(0)] == ["leaves"], "and the leaver stays out"
    check = entry.gate["checks"][0]
    assert (check["name"], check["verdict"], check["bound"]) == ("utility", "failed", 10.0)
    line = lines_of(run, "leaves", "not")[-1]
    assert check["value"] == pytest.approx(line["validation_before"] - line["validation"])


def test_whoever_accepts_it_all_the_same_is_on_record(run: Run) -> None:
    with pytest.raises(Refused):
        run.forget(LEAVES, "not", until=1)
    how = RequestOptions(accept={"by": "somebody", "at": "2026-01-01T00:00:00Z"})
    assert run.forget(LEAVES, "not", until=1, how=how).status == "done"
    raw = file_of(run)
    assert raw["state"] == "fulfilled" and raw["gate"]["accepted"] == {"by": "somebody", "at": "2026-01-01T00:00:00Z"}
    assert raw["gate"]["passed"] is False and raw["gate"]["checks"][0]["verdict"] == "failed"
    assert raw["attempts"][0]["reason"] == "gate" and raw["attempts"][0]["gate"]["accepted"] is None
    assert run.current_job(0).request == "leaves"


def test_what_passes_needs_no_acceptance_and_none_is_written(run: Run) -> None:
    run.forget(LEAVES, "ft", until=1, how=RequestOptions(accept={"by": "somebody", "at": "now"}))
    assert file_of(run)["gate"]["passed"] and file_of(run)["gate"]["accepted"] is None


def test_more_rounds_settle_what_the_gate_denied(run: Run) -> None:
    with pytest.raises(Refused):
        run.forget(LEAVES, "not", until=1)
    assert run.forget(LEAVES, "not", until=8).status == "done"
    assert [x["round"] for x in run.lines() if x["method"] == "not"] == list(range(9)), "it went on where it was"


def test_the_largest_drop_is_set_for_one_request_alone(run: Run) -> None:
    run.forget(LEAVES, "not", until=1, how=RequestOptions(max_drop=100.0))
    assert file_of(run)["how"] == {"max_drop": 100.0} and file_of(run)["gate"]["checks"][0]["bound"] == 100.0
    assert run.config.gate.max_drop == 10.0


def test_hyperparameters_and_within_hold_for_one_request_alone(run: Run) -> None:
    run.forget(LEAVES, "not", "recovered", how=RequestOptions({"layers": ["conv2"]}, within=60.0, max_drop=60.0))
    entry = entry_of(run, "leaves")
    numbers = numbers_of(run, run.current_job(0))
    changed = list(numbers["diary"]["beginning"]["changes"])
    assert changed and all("conv2" in name for name in changed), numbers["diary"]["beginning"]
    assert numbers["finished"] == "recovered" and entry.how.set == {"layers": ["conv2"]}


def test_a_recipe_holds_for_one_request_alone_and_a_cycle_ends_with_its_rounds(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Sequential, "train", noting(seen, Sequential.train, lambda _, plan, *__: plan))
    monkeypatch.setattr(Batched, "train", noting(seen, Batched.train, lambda _, plan, *__: plan))
    recipe = ["unlearning.lr=0.4", "unlearning.epochs=2", "unlearning.schedule.kind=one-cycle"]
    how = RequestOptions(RequestOptions.hyperparameters(recipe), max_drop=100.0)
    run.forget(LEAVES, "ft", until=5, how=how)
    assert [plan.phases[0].optimiser.lr for plan in seen] == pytest.approx([0.4, 0.302, 0.204, 0.106, 0.008])
    assert {plan.phases[0].epochs for plan in seen} == {2}
    kept = {"lr": 0.4, "epochs": 2, "schedule": {"kind": "one-cycle"}}
    assert file_of(run)["how"]["set"] == {"unlearning": kept} and run.config.unlearning.lr is None
    with pytest.raises(UnfedError, match="rounds are --until N"):
        RequestOptions({"unlearning": {"rounds": 3}})
    with pytest.raises(
        UnfedError, match=r"methods.ft.unlearning.rate: .*it takes rounds, lr, epochs, tune and schedule"
    ):
        run.forget(Request("more", clients=("3",)), "ft", until=1, how=RequestOptions({"unlearning": {"rate": 1}}))


def test_another_hyperparameter_begins_anew(run: Run) -> None:
    with pytest.raises(Refused):
        run.forget(LEAVES, "not", until=1)
    with pytest.raises(Refused):
        run.forget(LEAVES, "not", until=1, how=RequestOptions({"layers": ["conv2"]}))
    assert numbers_of(run, run.jobs()[-1][0])["start"] == 2


def test_until_forgotten_is_refused_where_nothing_can_tell(run: Run) -> None:
    with pytest.raises(UnfedError, match="--until forgotten cannot be judged .*not measured") as e:
        run.forget(LEAVES, "not", "forgotten")
    assert e.value.exit_code == 2 and run.folder.book().entries == (), "nothing was filed"


def test_until_recovered_is_refused_where_nothing_is_held_out(tmp_path: Path) -> None:
    """It had been filed, denied at its turn and owed: by default, in every centralised run."""
    run = Run.create(
        Config.parse(SMALL, ["partition.validation=0.0", "training.rounds=1", "request=[]"]), tmp_path / "run"
    )
    run.execute()
    with pytest.raises(UnfedError, match=r"\(no validation rows are held out\); use --until N") as error:
        run.forget(LEAVES, "ft")
    assert error.value.exit_code == 2 and run.folder.book().entries == (), "nothing was filed"
    assert run.forget(LEAVES, "ft", until=1).status == "done"


def test_a_class_is_worked_on_until_it_is_forgotten(run: Run) -> None:
    """The rows that decide are not those that stopped it."""
    seven = Request("seven", classes=(7,))
    assert run.forget(seven, "not", "recovered,forgotten", how=RequestOptions(within=5.0)).status == "done"
    gate = {check["name"]: check for check in entry_of(run, "seven").gate["checks"]}
    assert gate["forgotten"]["verdict"] == "passed" and gate["forgotten"]["decides"]
    assert gate["forgotten"]["value"] <= 10.0 < gate["forgotten"]["before"]
    assert numbers_of(run, run.current_job(0))["finished"] == "recovered and forgotten"
    last = lines_of(run, "seven", "not")[-1]
    watched = last["watched"]["checks"]["forgotten"]
    whole = entry_of(run, "seven").described["forgotten_rows"]
    assert watched["rows"] + gate["forgotten"]["rows"] == whole, "each row is in one half"


def test_rounds_that_do_not_suffice_to_forget_are_told_with_the_numbers(run: Run) -> None:
    """FT learns nothing against the class in three rounds at rate 0."""
    run.config.__dict__["unlearning"] = run.config.unlearning.model_copy(update={"lr": 0.0, "rounds": 3})
    with pytest.raises(Refused, match=r"not forgotten after 3 rounds .forgotten failed: .* at most 10") as error:
        run.forget(Request("seven", classes=(7,)), "ft", "forgotten")
    assert error.value.exit_code == 3
    assert str(error.value).split("; ")[1].startswith("more rounds are given by --until forgotten,6.")
    entry = entry_of(run, "seven")
    assert (entry.state, entry.reason) == ("denied", "gate")


def test_a_goal_may_take_so_many_rounds_whatever_the_config_grants(run: Run) -> None:
    """More than the config's, on from where it was; fewer; and what is not reached within them is not in force."""
    seven, how = Request("seven", classes=(7,)), RequestOptions(within=5.0)
    run.config.__dict__["unlearning"] = run.config.unlearning.model_copy(update={"rounds": 40})
    with pytest.raises(Refused, match=r"not (recovered|forgotten) after 1 round\b.*--until recovered,forgotten,2\."):
        run.forget(seven, "not", "recovered,forgotten,1", how=how)
    assert entry_of(run, "seven").until == "recovered,forgotten,1"
    run.config.__dict__["unlearning"] = run.config.unlearning.model_copy(update={"rounds": 2})
    assert run.forget(seven, "not", "forgotten, 30, recovered", how=how).status == "done"
    assert entry_of(run, "seven").until == "recovered,forgotten,30", "the same words in the same order"
    rounds = [line["round"] for line in lines_of(run, "seven", "not")]
    assert rounds == sorted(set(rounds)) and 2 < rounds[-1] < 30, "it went on where it was, and stopped at its goals"


def test_a_stop_for_want_of_progress_is_no_recovery(run: Run) -> None:
    """`unlearning.patience` saves rounds; a goal that is not reached by then is not reached."""
    run.config.__dict__["unlearning"] = run.config.unlearning.model_copy(update={"lr": 0.0, "patience": 2})
    with pytest.raises(Refused, match=r"not recovered after 2 rounds: .*it stopped.* 2 rounds .*unlearning.patience"):
        run.forget(LEAVES, "not", "recovered")
    assert entry_of(run, "leaves").state == "denied"


@pytest.mark.parametrize(
    ("text", "goals", "rounds"),
    [
        ("recovered", ("recovered",), None),
        ("forgotten,recovered", ("recovered", "forgotten"), None),
        ("12", (), 12),
        ("recovered,12", ("recovered",), 12),
        (" 12 , forgotten", ("forgotten",), 12),
        ("forgotten,recovered,1", ("recovered", "forgotten"), 1),
    ],
)
def test_until_is_goals_a_number_or_goals_within_a_number(
    text: str, goals: tuple[str, ...], rounds: int | None
) -> None:
    assert Until.of(text) == Until(goals, rounds) == Until.of(Until.of(text).text)


@pytest.mark.parametrize("text", ["", ",", "soon", "0", "recovered,0", "recovered,12,13", "12,13", "recovered,-1", "²"])
def test_until_that_says_nothing_that_can_be_done_is_one_sentence(text: str) -> None:
    with pytest.raises(UnfedError, match=r"^--until takes goals .*'recovered,forgotten,40'., not .*\.$"):
        Until.of(text)


@pytest.mark.usefixtures("no_report")
def test_the_command_line_says_what_failed_and_takes_an_acceptance(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*arguments: str) -> tuple[Any, str]:
        monkeypatch.setattr(sys, "argv", ["unfed", "forget", str(run.folder.path), *arguments, "--quiet"])
        try:
            main()
        except SystemExit as end:
            return end.code or 0, capsys.readouterr().err
        return 0, capsys.readouterr().err

    code, said = call("--client", "1", "--id", "leaves", "--method", "not", "--until", "1")
    assert code == 3 and "utility failed" in said and "--accept" in said
    code, _ = call("--id", "leaves", "--accept")
    assert code == 0
    accepted = file_of(run)["gate"]["accepted"]
    assert set(accepted) == {"by", "at"} and accepted["by"]
    code, said = call("--client", "2", "--until", "soon")
    assert code == 2 and "'recovered', 'forgotten'" in said
    code, said = call("--client", "2", "--set", "nothing")
    assert code == 2 and "KEY=VALUE" in said
    code, said = call("--client", "2", "--set", "nothing=1")
    assert code == 2 and "not known" in said
    code, said = call("--client", "2", "--within", "-1")
    assert code == 2 and "--within" in said


def test_status_and_report_show_every_check_and_who_accepted(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.forget(LEAVES, "not", until=1, how=RequestOptions(accept={"by": "somebody", "at": "2026-01-01T00:00:00Z"}))
    page = write_report(run).read_text()
    (entry,) = run.folder.book().entries
    monkeypatch.setattr(sys, "argv", ["unfed", "status", str(run.folder.path), "--request", entry.request.id])
    with pytest.raises(SystemExit):
        main()
    line = " ".join(capsys.readouterr().out.split())
    assert "gate: utility " in line and ", at most 10)" in line and "forgotten not measured" in line
    for text in ("the drop of validation accuracy in points is", "allowed: at most 10", "not measured: "):
        assert text in page, text
    assert "by somebody, 2026" in line and "by somebody, 2026" in page


def test_utility_by_hand() -> None:
    assert utility(95.0, 90.0, 5.0).verdict == "passed" and utility(95.0, 89.9, 5.0).verdict == "failed"
    assert utility(90.0, 97.0, 0.0) == Judgement(utility(1, 1, 1).what, -7.0, 0.0, "passed")
    why = not_measured("no validation rows are held out")
    assert utility(why, why, 5.0).value == why and utility(why, why, 5.0).verdict == "not measured"


def test_only_what_decides_can_stop_a_model() -> None:
    failed, unknown = Judgement("w", 3.0, 1.0, "failed"), Judgement("w", not_measured("why"), 1.0, "not measured")
    shown = Decision((check_of("forgotten", failed, False), check_of("utility", unknown, True)))
    assert shown.passed and passed(shown, "r") is shown
    with pytest.raises(NotPassed, match="The model of request 'r' .*forgotten failed: w is 3 .allowed: at most 1"):
        passed(Decision((check_of("forgotten", failed, True),)), "r")


def test_forgotten_is_passed_where_something_was_measured_and_nothing_failed() -> None:
    verdicts: tuple[Verdict, ...] = ("passed", "failed", "not measured")
    found = {verdict: Judgement("w", 1.0, 1.0, verdict) for verdict in verdicts}
    assert is_forgotten({"a": found["passed"], "b": found["not measured"]}) == "passed"
    assert is_forgotten({"a": found["passed"], "b": found["failed"]}) == "failed"
    assert is_forgotten({"a": found["not measured"]}) == "not measured"


def test_the_decision_never_sees_the_rows_on_which_it_was_stopped() -> None:
    """A model that knows exactly the rows that were not watched passes the rule that stops and fails the gate."""
    request, rows = Request("r", classes=(1,)), 200
    empty = Losses.of(np.zeros(0), np.zeros(0))
    gate = Gate(request, 10, key=3, rules=GateConfig(), stops_at_forgotten=True)
    known = Evidence(empty, empty, np.ones(rows, bool), "none")
    right = np.ones(rows, bool)
    right[halves(rows, 3)[0].numpy()] = False
    partly = Evidence(empty, empty, right, "none")
    assert is_forgotten(gate.watched(known, partly)) == "passed"
    assert is_forgotten(gate.judged(known, partly)) == "failed"


@pytest.mark.parametrize("text", ["", "0", "-1", "recovered,", "soon", "recovered;forgotten", "1.5"])
def test_what_until_does_not_take(text: str) -> None:
    with pytest.raises(UnfedError, match="--until takes"):
        Until.of(text)


def test_until_in_any_order() -> None:
    assert Until.of("forgotten, recovered") == Until.of("recovered,forgotten") == Until(("recovered", "forgotten"))
    assert Until.of("12") == Until(rounds=12) and Until.of(None) == Until()
