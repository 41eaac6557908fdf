"""The demo's story, in bands: the backdoor is there before, NoT removes it, fine-tuning does not."""

from typing import Any

import pytest

from unfed.cli.display import story
from unfed.runs.config import Config
from unfed.runs.run import Run


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = Run.create(Config.preset("demo", ["evaluation.every=20"]), tmp_path_factory.mktemp("demo") / "run")
    run.execute()
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


def test_the_leaver_is_asked_by_nobody(lines: Any) -> None:
    for line in lines:
        if line["method"] in ("not", "ft", "retrain"):
            assert all("0" not in asked for asked in line["asked"].values())


def test_the_story_is_told_in_sentences(lines: Any) -> None:
    told = " ".join(story(lines))
    assert "Client 0 planted a backdoor" in told and "NoT:" in told and "not a guarantee" in told
