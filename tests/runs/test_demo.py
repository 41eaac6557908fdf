"""The demo's story, in bands: the backdoor is there before, NoT removes it, fine-tuning does not."""

from pathlib import Path
from typing import Any

import pytest

from unfed.api import results, write_report
from unfed.cli.display import can_be_undone, happened, next_steps
from unfed.config.config import Config
from unfed.data import Request
from unfed.measures.undo import flip, refits
from unfed.measures.undo.scene import Budget
from unfed.model.perturb import PERTURBATIONS
from unfed.report.sentences import verdicts
from unfed.requests.entry import Entry, now
from unfed.runs.probe import scene_of
from unfed.runs.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = Run.create(Config.preset("demo", ["evaluation.every=20"]), tmp_path_factory.mktemp("demo") / "run")
    made.execute()
    return made


@pytest.fixture(scope="module")
def lines(run: Run) -> Any:
    return run.lines()


def last(lines: Any, method: Any) -> Any:
    return [line for line in lines if line["method"] == method][-1]


def test_before_unlearning_the_backdoor_fires(lines: Any) -> None:
    assert last(lines, "before")["backdoor"] > 80


def test_fine_tuning_leaves_the_backdoor_in(lines: Any) -> None:
    assert last(lines, "ft")["backdoor"] > 50


def test_not_removes_the_backdoor_and_keeps_the_model_good(lines: Any) -> None:
    line = last(lines, "not")
    assert line["backdoor"] < 20 and line["round"] == 20
    assert line["test"] > 94


def test_not_is_closer_to_retrain_than_fine_tuning(lines: Any) -> None:
    retrain, fine, negated = (last(lines, method) for method in ("retrain", "ft", "not"))
    assert abs(negated["forget"] - retrain["forget"]) < abs(fine["forget"] - retrain["forget"]) - 20


def test_not_forgot_the_backdoor_and_fine_tuning_did_not(run: Run) -> None:
    """Retrain never saw it, so it has no verdict; without it nothing else changes."""
    assert verdicts(run.info(), run.config.request_ids()[0]) == [
        "FT: Not all was forgotten: the planted backdoor still works. Try --method retrain.",
        "NoT: Forgotten, as far as 330 rows show: the planted backdoor works no more often than by chance.",
    ]


def test_the_leaver_is_asked_by_nobody(lines: Any) -> None:
    for line in lines:
        if line["method"] in ("not", "ft", "retrain"):
            assert all("0" not in asked for asked in line["asked"].values())


def test_the_terminal_says_what_happened_as_the_report_does(run: Run) -> None:
    (said,) = happened(run, results(run, "last"))
    assert said.startswith("In a comparison, client 0 was") and "by NoT in 20 rounds" in said
    assert "the backdoor it planted fires on" in said
    page = " ".join(write_report(run).read_text(encoding="utf-8").replace("\u00a0", " ").split())
    assert said.partition(":")[0] in page, "bars show the numbers there"


def test_a_later_request_is_no_part_of_what_happened(run: Run, lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking out another client leaves the backdoor where it was, and says nothing against the method."""
    later = {**last(lines, "not"), "request": "client-3", "backdoor": 99.9}
    monkeypatch.setattr(run, "lines", lambda: [*lines, later])
    (said,) = happened(run, results(run, "last"))
    assert "99.9" not in said


def test_the_story_ends_with_how_it_is_undone_and_what_lasts(run: Run, attacked: Any) -> None:
    scene, models, knowledge = attacked
    turned = flip.flip(scene, models["not"], knowledge)
    first, last = can_be_undone(run)
    assert f"brings that to {turned['backdoor']:.1f} % (Retrain: " in first and "can be brought back" in first
    assert "Retrain lasts" in last and f"unfed probe {run.folder.path}" in last


def test_the_report_of_the_demo_shows_what_its_story_says_of_undoing(run: Run, attacked: Any) -> None:
    scene, models, knowledge = attacked
    can_be_undone(run)
    page = write_report(run).read_text(encoding="utf-8")
    turned = flip.flip(scene, models["not"], knowledge)
    assert f"brings that to {turned['backdoor']:.1f}" in page and "Undoing was not tried" not in page


def test_what_comes_next_names_a_client_that_is_there_and_has_not_been_asked_to_leave(tmp_path: Path) -> None:
    run = Run.create(Config.preset("demo", ["partition.clients=3"]), tmp_path / "my demo")
    (said,) = next_steps(run)
    assert f"take another client out with `unfed forget '{run.folder.path}' --client 1`; your own" in said
    run.folder.put_request(Entry(1, Request("r", clients=("1",)), "not", "1", now(), 0))
    assert "unfed forget" not in next_steps(run)[0]


@pytest.fixture(scope="module")
def attacked(run: Run) -> Any:
    """(scene, models by method, what an attacker knows of NoT)."""
    world, requests = run.world(0), run.config.requests()
    models = {method: run.model(0, requests[0].id, method) for method in ("not", "retrain")}
    return (
        scene_of(world, requests),
        models,
        flip.Knowledge("NoT", run.config.method("not").perturbed(world.template.module)),
    )


def test_one_minus_sign_brings_the_backdoor_back_after_not_and_not_after_retrain(attacked: Any) -> None:
    scene, models, knowledge = attacked
    assert flip.flip(scene, models["not"], knowledge)["backdoor"] >= 50
    assert flip.flip(scene, models["retrain"], knowledge)["backdoor"] < 10


def test_a_flip_that_does_nothing_would_be_noticed(attacked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, models, knowledge = attacked
    monkeypatch.setitem(PERTURBATIONS, "negate", lambda params, choices: params)
    assert flip.flip(scene, models["not"], knowledge)["backdoor"] < 50


@pytest.mark.slow
def test_a_handful_of_retained_images_makes_the_flipped_model_usable(attacked: Any) -> None:
    scene, models, knowledge = attacked
    grid = refits.Grid(rows=(100,), budget=Budget(stops=(50,)), restarts=1)
    found = {name: refits.realign(scene, model, knowledge, grid) for name, model in models.items()}
    assert found["not"]["backdoor"] >= 50 and found["retrain"]["backdoor"] < 10
    assert found["not"]["backdoor_at"]["start"] == "flip"
    assert found["not"]["backdoor_at"]["test"] >= scene.quick(models["not"])["test"] - 5
    broken = refits.Grid(rows=(100,), budget=Budget(stops=(1,)), restarts=1)  # one step fits nothing
    spoiled = refits.realign(scene, models["not"], knowledge, broken)
    assert not isinstance(spoiled["backdoor"], float) or spoiled["backdoor"] < 50
