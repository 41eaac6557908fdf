"""The section "How sure are we?": verdicts, pictures and exposed rows, and what stands there without a population."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from pages import render
from test_population_measures import Made
from test_report import fake_run
from unfed.folder.study_results import Judged, TunedBy
from unfed.measures.population import ForgottenRows, Resampling, judge
from unfed.report import sections
from unfed.report.figures import population_pictures
from unfed.report.sections import COLUMNS, NO_POPULATION, grid, tuned_words


def found(measured: dict[str, Any]) -> dict[str, Any]:
    """As `unfed judge` writes it."""
    plain: dict[str, Any] = json.loads(json.dumps(measured))
    return {"request": "r1", **plain}


@pytest.fixture(scope="module")
def judged() -> dict[str, Any]:
    names = [f"client 0, row {i}" for i in range(60)]
    rows = ForgottenRows.by_label(np.zeros(60, int), names)
    return found(
        judge(Made(16, 60, shift=2.0), {"not": "NoT", "ft": "FT"}, rows, Resampling(draws=50, permutations=200))
    )


def test_a_run_without_a_population_says_which_command_would_measure() -> None:
    run, lines = fake_run()
    page = render(run, lines)
    assert "How sure are we?" in page
    assert NO_POPULATION.startswith("not measured: one run is one model of each kind")
    assert "one run is one model of each kind" in page and "<code>unfed population</code> trains more" in page


def test_the_page_has_verdicts_pictures_a_table_and_the_most_exposed_rows(judged: dict[str, Any]) -> None:
    run, lines = fake_run()
    page = render({**run, "population": {"r1": judged}}, lines)
    assert "FT remembers: beside held-out rows it is surer of the forgotten rows than Retrain (LiRA AUC" in page
    assert "Retrain against Retrain" in page and "NeurIPS 2023 score" in page
    assert "Margins on the forgotten rows" in page and "U-LiRA: true against false positives" in page
    first = judged["methods"]["ft"]["exposure"][0]["row"]
    assert f"<li>{first} " in page


def test_verdicts_come_first_in_a_few_words_and_commands_look_like_commands(judged: dict[str, Any]) -> None:
    run, lines = fake_run()
    page = render({**run, "population": {"r1": judged}}, lines)
    assert "<strong>Remembers:</strong> FT." in page and "<strong>Recovery not decided:</strong> NoT, FT." in page
    assert page.index("<strong>Remembers:") < page.index("FT remembers: beside held-out rows")
    assert "<code>unfed population … --models 34</code>" in page


def test_a_file_of_an_earlier_version_is_shown_with_its_one_answer_to_both_questions(judged: dict[str, Any]) -> None:
    one = {"kind": "told", "sentence": "FT can be told from Retrain, by U-LiRA.", "bound": 0.9}
    kept = {key: value for key, value in judged["methods"]["ft"].items() if key not in ("standing", "held_out")}
    old = {**judged, "methods": {"ft": {**kept, "verdict": one}}}
    told = Judged.model_validate(old)
    words = "Differs from Retrain, by memory or recovery (judge again to see which)"
    assert sections.summary(told) == [(words, "FT")] and sections.answer_sentences(told) == [one["sentence"]]
    assert grid(told)[0][0][1][0].startswith("not measured (")


def test_the_table_has_a_row_for_every_method_and_for_the_yardstick(judged: dict[str, Any]) -> None:
    body, notes = grid(Judged.model_validate(judged))
    assert [title for title, _ in body] == ["NoT", "FT", "Retrain against Retrain"]
    cells = dict(zip([column.title for column in COLUMNS], body[1][1], strict=True))
    auc = judged["methods"]["ft"]["attacks"]["u-lira"]["auc"]
    assert cells["U-LiRA AUC"] == f"{auc['value']:.3f} ({auc['low']:.3f} to {auc['high']:.3f})"
    assert cells["U-LiRA TPR at 0.1 % FPR"] == "not measured (1)" and "--models 34" in notes[0]
    assert "(Retrain " in cells["SVC efficacy"] and cells["U-LiRA AUC, worst slice"].endswith("(class 0)")


def test_pictures_say_in_words_what_they_show(judged: dict[str, Any]) -> None:
    margins, roc, rmia, iam = population_pictures(Judged.model_validate(judged), "sure-0")
    around = dict(re.findall(r"(\w+) lies around (-?[\d.]+)[;.]", margins.inline))
    assert {name: round(float(value.rstrip("."))) for name, value in around.items()} == {
        "Retrain": 1,
        "NoT": 1,
        "FT": 3,
        "before": 4,
    }
    assert "FT has AUC 0.9" in roc.inline
    for attack, drawn in (("rmia", rmia), ("iam", iam)):
        assert f"FT has AUC {judged['methods']['ft']['attacks'][attack]['auc']['value']:.3f}" in drawn.inline
    assert margins.inline == population_pictures(Judged.model_validate(judged), "sure-0")[0].inline, (
        "the same every time"
    )


def test_an_attack_that_could_not_be_tried_is_not_drawn() -> None:
    single = found(judge(Made(8, 1, 1.0), {"ft": "FT"}, effort=Resampling(draws=10, permutations=10)))
    assert [one.title.split(":")[0] for one in population_pictures(Judged.model_validate(single), "x")][1:] == [
        "U-LiRA",
        "RMIA",
    ]


def test_a_population_too_small_for_four_groups_has_no_attack_on_retrain_itself() -> None:
    small = found(judge(Made(6, 5, 1.0), {"ft": "FT"}, effort=Resampling(draws=10, permutations=10)))
    body, notes = grid(Judged.model_validate(small))
    assert body[1][1][0].startswith("not measured (") and any("8 models, and there are 6" in note for note in notes)
    assert Judged.model_validate(small).yardstick.exposure == ()


def test_what_was_tuned_is_said() -> None:
    how = TunedBy(trials=20, models=4, on="the first 16 of 32 seeds", chosen={"lr": 0.1})
    assert tuned_words("FT", how) == "FT was tuned over 20 trials on the first 16 of 32 seeds: lr = 0.1."


def test_names_of_rows_and_methods_cannot_break_the_page(judged: dict[str, Any]) -> None:
    bad: Any = {**judged, "methods": {"ft": {**judged["methods"]["ft"], "title": "<b>", "exposure": []}}}
    run, lines = fake_run()
    page = render({**run, "population": {"r1": bad}}, lines)
    assert "<b>" not in page and "&lt;b&gt;" in page
