"""Served, denied, withdrawn: every sentence of the page is true of the request it stands under."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pages import render, sentence, unfinished
from test_report import Page, fake_run
from unfed.config.config import Config
from unfed.report.rules import rows
from unfed.runs.run import Run

FULFILLED = {"method": "not", "state": "fulfilled", "standing": "fulfilled", "until": "20", "owed": False}
DENIED = {
    "method": "not", "state": "denied", "reason": "gate", "standing": "denied (gate)", "until": "20", "owed": True,
    "way_out": "`unfed withdraw RUN r1` lets it go",
}  # fmt: skip
WITHDRAWN = {"method": "not", "state": "revoked", "standing": "withdrawn", "until": "20", "owed": False}


def asked(standing: dict[str, Any], methods: tuple[str, ...] = ("not",)) -> tuple[dict[str, Any], list[Any]]:
    """A run whose one request was served, denied or withdrawn."""
    run, lines = fake_run(methods=methods)
    run["requests"][0] |= standing
    return run, lines


def page(standing: dict[str, Any], methods: tuple[str, ...] = ("not",)) -> str:
    return " ".join(Page(render(*asked(standing, methods))).text.split())


def test_a_request_that_retrain_served_was_taken_out_by_retrain() -> None:
    run, lines = asked({**FULFILLED, "method": "retrain"}, ("retrain",))
    said = sentence(run["requests"][0], rows(lines, "last"))
    assert said.startswith("Client 0 was taken out by Retrain in 20 rounds")
    assert "the new model was trained without it from the beginning" in said
    text = page({**FULFILLED, "method": "retrain"}, ("retrain",))
    assert "is to be taken out" not in text
    assert "After Retrain" in text and "not measured: not run" not in text


def test_the_sentence_speaks_of_the_method_that_served_not_of_one_that_was_tried_before() -> None:
    run, lines = asked({**FULFILLED, "method": "retrain"}, ("not", "retrain"))
    assert "by Retrain" in sentence(run["requests"][0], rows(lines, "last"))
    run, lines = asked({**FULFILLED, "method": "ft"}, ("not", "ft"))
    assert "after FT" in sentence(run["requests"][0], rows(lines, "last"))


def test_the_rounds_of_a_retrain_that_served_are_drawn() -> None:
    text = page({**FULFILLED, "method": "retrain"}, ("retrain",))
    assert "no round has been evaluated yet" not in text
    assert "Retrain ends at" in text


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("gate", "its model did not pass the checks of the gate"),
        ("not recovered", "its rounds did not suffice"),
        ("refused", "it could not be served"),
    ],
)
def test_why_a_request_was_denied_is_said_in_words(reason: str, words: str) -> None:
    run, lines = asked({**DENIED, "reason": reason})
    said = sentence(run["requests"][0], rows(lines, "last"))
    assert f"the request was denied, for {words}; it stays owed" in said


def test_a_model_that_was_denied_is_nowhere_shown_as_the_new_model() -> None:
    text = page(DENIED)
    assert "After NoT, not in force" in text and "Model tried, not in force" in text
    assert "Model after" not in text
    assert "Model after" in page(FULFILLED) and "not in force" not in page(FULFILLED)


def test_a_request_that_was_denied_waits_for_no_model() -> None:
    run, lines = asked({**DENIED, "reason": "not recovered"})
    run["jobs"][0] |= {"came_out": None, "finished": "not recovered"}
    lines[-1]["earlier"] = {"r0": 40.0}
    text = " ".join(Page(render(run, lines)).text.split())
    assert "Model tried, not in force none was kept" in text and "not there yet" not in text
    assert "There is no new model yet" not in text and "No new model was kept" in text
    assert "the model that was tried is right on 40.0 % of its data" in text


def test_what_was_served_stands_before_what_was_only_compared() -> None:
    info, lines = asked({"state": "fulfilled", "method": "retrain"}, ("retrain",))
    info["requests"] = [{"id": "tried", "clients": ["1"]}, *info["requests"]]
    text = Page(render(info, lines)).text
    assert text.index("What happened") < text.index("taken out by Retrain") < text.index("Only compared")


def test_one_round_is_one_round() -> None:
    run, lines = fake_run(methods=("not",), rounds=1)
    run["requests"][0] |= FULFILLED
    assert "Client 0 was not asked in the one round: nothing was trained on its data." in Page(render(run, lines)).text


def test_the_state_of_a_request_that_was_served_is_fulfilled() -> None:
    assert "State fulfilled (all rounds)" in page(FULFILLED)


def test_what_still_carries_a_withdrawn_request_is_not_said_to_be_nothing() -> None:
    run, lines = asked(WITHDRAWN)
    run["influence"] = []  # nobody looks for a request that was withdrawn
    text = " ".join(Page(render(run, lines)).text.split())
    assert "No file in the run folder was made with it" not in text
    assert "The request was withdrawn, so nothing was looked for: its data takes part in training again" in text


def test_purge_is_named_only_where_it_would_delete() -> None:
    assert "unfed purge deletes them" in page(FULFILLED)
    assert "unfed purge deletes them once the request is fulfilled" in page(DENIED)
    compared = " ".join(Page(render(*fake_run())).text.split())
    assert "methods were only compared: once a request for it is fulfilled, unfed purge deletes them" in compared


def test_a_run_whose_request_was_denied_is_finished() -> None:
    run, lines = asked({**DENIED, "reason": "not recovered", "until": "recovered"})
    run["jobs"][0]["finished"] = None
    assert unfinished(run, lines) == []


def test_nobody_is_missed_for_not_undoing_what_was_never_taken_out() -> None:
    text = page(DENIED)
    assert "Nothing to undo: the request was denied" in text
    assert "undoing was not tried" not in text.lower()
    served = page({**FULFILLED, "method": "retrain"}, ("retrain",))
    assert "Nothing to undo: the new model was trained without it from the beginning" in served
    assert "Not measured: undoing was not tried; unfed probe tries it" in page(FULFILLED)


def test_after_a_purge_nobody_is_sent_to_a_probe_that_is_refused() -> None:
    text = page({**FULFILLED, "purged": "2026-11-16T12:00:00Z"})
    assert "unfed probe" not in text.partition("Can it be undone?")[2].partition("How sure are we?")[0]
    assert "Not measured: its data was purged, and with it what was tried before, if anything" in text
    assert "Does it last? Its data was purged" in text and "was not tried" not in text


def test_the_checks_of_the_gate_are_explained_where_they_stand() -> None:
    check = {"name": "utility", "what": "the drop", "value": 1.0, "bound": 10.0, "verdict": "passed", "decides": True}
    text = page({**FULFILLED, "gate": {"checks": [check]}})
    assert "The gate is what a new model must pass before it comes into force. It looks at utility: how much" in text


def test_one_sample_is_one_sample() -> None:
    run, lines = asked(FULFILLED)
    run["requests"][0] |= {"kind": "instance", "clients": [], "samples": 1, "forgotten_rows": 1}
    text = " ".join(Page(render(run, lines)).text.split())
    assert "1 training samples" not in text and "covers 1 training sample." in text


def test_samples_that_were_asked_for_are_counted_with_those_that_no_training_used() -> None:
    run, lines = asked(FULFILLED)
    run["requests"][0] |= {"kind": "instance", "clients": [], "samples": 3, "forgotten_rows": 1}
    assert "Takes out 3 samples; 1 of them was trained on" in " ".join(Page(render(run, lines)).text.split())


@pytest.mark.parametrize(
    ("asked_for", "said"),
    [
        ({"kind": "instance", "fraction": 0.1, "clients": []}, "110 samples, 10 % of the data of every client Method"),
        ({"kind": "instance", "clients": []}, "110 samples Method"),
        ({"kind": "instance", "clients": [], "samples": 110}, "110 samples, all of them trained on Method"),
        ({"kind": "class", "clients": [], "classes": [3]}, "Class 3, 110 training samples Method"),
    ],
)
def test_what_a_request_takes_out_is_counted_once(asked_for: dict[str, Any], said: str) -> None:
    run, lines = asked(FULFILLED)
    run["requests"][0] |= {**asked_for, "forgotten_rows": 110}
    assert f"Takes out {said}" in " ".join(Page(render(run, lines)).text.split())


def test_what_chance_alone_moves_is_said_of_an_attack_on_what_left_earlier() -> None:
    """116 rows beside 360 test rows: 48.7 / √116 = 4.5 points; without both counts nothing is said."""
    run, lines = asked({**FULFILLED, "again": {"r0": {"forget": 88.0, "mia": 52.5, "rows": 116}}})
    lines[-1] |= {"earlier": {"r0": 88.0}, "rows": {"forget": 116, "test": 360}}
    said = "MIA 52.5 %, which chance alone moves by ± 4.5 points"
    assert said in " ".join(Page(render(run, lines)).text.split())
    lines[-1]["rows"] = {}
    assert "MIA 52.5 % " in " ".join(Page(render(run, lines)).text.split())


def test_commands_are_quoted_and_ask_for_leave_where_the_run_names_code(tmp_path: Path) -> None:
    folder = tmp_path / "my runs"
    plain = Run.create(Config.preset("demo"), folder)
    assert plain.command("forget", "--id", "a b") == f"unfed forget '{folder}' --id 'a b'"
    plain.config = plain.config.model_copy(update={"model": plain.config.model.model_copy(update={"name": "my:net"})})
    assert plain.command("forget").endswith("--allow-code") and "--allow-code" not in plain.command("export")


def many(count: int, compared: int = 0, **standing: Any) -> str:
    """A page of so many requests alike, and of some that were only compared."""
    run, lines = asked({**FULFILLED, **standing})
    names = [f"one-{n}" for n in range(count + compared)]
    first = run["requests"][0]
    run["requests"] = [first | {"id": name, "number": n + 1} for n, name in enumerate(names)]
    for one in run["requests"][count:]:
        one["state"] = None
    shares = dict.fromkeys(names, 50.0)
    copies = [
        line | {"request": name, "earlier": {one: share for one, share in shares.items() if one != name}}
        for name in names
        for line in lines
        if line["request"] == first["id"]
    ]
    return render(run, [*(line for line in lines if line["request"] is None), *copies])


def test_five_requests_are_told_one_by_one_and_six_are_rows_of_a_table_and_folded_away() -> None:
    few, more = many(5), many(6)
    assert few.count('<dl class="answers">') == 5 and "<summary>one-0:" not in few
    assert '<dl class="answers">' not in more and more.count("What happened</th>") == 1
    for n in range(6):
        assert f'<th scope="row">one-{n}</th>' in more
        assert more.count(f"<summary>one-{n}: ") == 2  # for the officer, for the researcher


def test_what_was_only_compared_says_so_in_the_table_too() -> None:
    assert many(5, 1).count("Only compared: ") == 1 and "Only compared" not in many(6)


def test_requests_that_one_job_served_are_not_called_earlier_than_each_other() -> None:
    apart, together = many(3), many(3, shared="together-1")
    assert apart.count("<dt>Earlier request one-") == 6 and "Taken out with it" not in apart
    assert "Earlier request" not in together
    assert together.count("<dt>Taken out with it</dt><dd>2 other requests</dd>") == 3


def test_of_many_earlier_requests_twenty_are_told() -> None:
    page = many(23)
    assert page.count("<dt>Earlier request one-") == 23 * 20
    assert page.count("<dt>2 more earlier requests</dt><dd><code>trajectory.jsonl</code> has them</dd>") == 23
