"""What a person reads who gets only the page: no sentence about what was not done, and nobody is out who is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pages import first_sentence, known, render, sentence
from test_report import Page, fake_line, fake_run
from unfed.config.tables import RequestConfig
from unfed.data import Request
from unfed.folder.info import InForce, RunInfo
from unfed.measures.forgotten import Forgetting
from unfed.paper import build
from unfed.paper.items import items
from unfed.paper.views.base import Section
from unfed.report import figures
from unfed.report.card import model_card
from unfed.report.rules import rows
from unfed.report.sentences import gate_words, method_row, verdicts
from unfed.report.tables import judged
from unfed.requests.entry import GateSaid, Job
from unfed.requests.gate import check_of, utility
from unfed.runs.status import is_out


def test_what_was_only_compared_is_said_to_be_in_the_model_in_force() -> None:
    trained = InForce(Job(0, None, "train"), (), (), ("not", "retrain"), ("r1",))
    assert trained.sentence == "the model as trained (θ*); methods were only compared for r1, which is still in it"
    later = InForce(Job(0, "r3", "not"), ("r3",), ("r4",), only_compared=("r1", "r2"))
    assert later.sentence == (
        "the model of request r3 by NoT; still in it: r4;"
        " methods were only compared for r1 and r2, which are still in it"
    )
    assert later.still_in_it == ("r4", "r1", "r2") and later.to_json()["only_compared"] == ["r1", "r2"]
    assert InForce(Job(0, None, "train"), (), ()).sentence == "the model as trained (θ*)"


@pytest.mark.parametrize(
    ("asked", "gone", "out"),
    [
        ({"clients": ("0",)}, [Request("later", clients=("0", "3"))], True),
        ({"clients": ("0", "1")}, [Request("later", clients=("0",))], False),
        ({"clients": ("0", "1")}, [Request("a", clients=("0",)), Request("b", clients=("1",))], True),
        ({"classes": (3,)}, [Request("later", clients=("3",))], False),
        ({"classes": (3,)}, [Request("later", classes=(3,))], True),
        ({"fraction": 0.1}, [Request("later", clients=("0",))], False),
    ],
)
def test_what_was_compared_is_out_once_served_requests_take_all_of_it(
    asked: dict[str, Any], gone: list[Request], out: bool
) -> None:
    assert is_out(RequestConfig(**asked), gone) is out and not is_out(RequestConfig(**asked), [])


def test_the_headline_of_a_comparison_does_not_say_that_anybody_is_out_of_the_model_in_force() -> None:
    run, lines = fake_run()
    trained = InForce(Job(0, None, "train"), (), (), ("not", "retrain"), (str(run["requests"][0]["id"]),))
    compared = {**run, "in_force": [trained]}
    assert "In a comparison, client 0 was taken out by NoT" in Page(render(compared, lines)).text
    assert "In a comparison" not in Page(render(run, lines)).text


def test_a_card_credits_a_client_with_no_backdoor_but_its_own_and_cannot_be_written_into() -> None:
    run, lines = fake_run()
    run["config"]["poison"] = {"client": "0", "target_class": 0}
    served = {"id": "r2", "kind": "client", "clients": ["3"], "method": "not", "state": "fulfilled"}
    run["requests"].append(served)
    more: list[Any] = [dict(line, request="r2") for line in lines if line["method"] in ("before", "not")]
    about = {"says": "a <b>model</b>", "still_in_it": ["r1"]}
    cards = [
        model_card(known(run), [*lines, *more], Job(0, request, "not"), about, {"evidence.json": "ab" * 32})
        for request in ("r1", "r2")
    ]
    assert "the backdoor it planted fires on" in cards[0] and "the backdoor it planted" not in cards[1]
    assert "There is no Retrain to compare with." in cards[1] and "There is no Retrain" not in cards[0]
    assert "&lt;b>model" in cards[0] and "still in it: r1." in cards[0]
    assert f"- `evidence.json`: SHA-256 `{'ab' * 32}`" in cards[0]
    assert "Does it last? Undoing was not tried; `unfed probe` tries it." in cards[0]


@pytest.mark.parametrize(
    ("method", "back", "theirs", "said"),
    [
        ("not", 84.5, 0.0, "was hidden, not taken out, by NoT in 20 rounds"),
        ("not", 84.5, 84.0, "was taken out by NoT in 20 rounds"),  # as much is in a model that never saw it
        ("ft", 84.5, 0.0, "was taken out by NoT in 20 rounds"),  # somebody else's model
    ],
)
def test_who_can_be_brought_back_is_not_called_taken_out(method: str, back: float, theirs: float, said: str) -> None:
    run, lines = fake_run()
    turned = {who: {"flip": {"backdoor": on}} for who, on in (("unlearned", back), ("retrain", theirs))}
    turned["unlearned"]["published"] = {"backdoor": 4.2}
    tried = {"request": run["requests"][0]["id"], "method": method, "title": method, "seed": 0, "measured": turned}
    undone = {**run, "undo": [tried], "jobs": [{"request": tried["request"], "method": "not", "seed": 0}]}
    assert first_sentence(undone, run["requests"][0], rows(lines, "last")).startswith(f"Client 0 {said}")
    undone["jobs"][0]["forgetting"] = vars(Forgetting("forgotten", "backdoor", 330))
    forgot = "NoT: Forgotten, as far as 330 rows show: the planted backdoor works no more often than by chance."
    but = " But what not forgot is still in its model: undone, the backdoor works on 84.5 % of stamped images again"
    [checked] = verdicts(known(undone), run["requests"][0]["id"])
    assert checked.startswith(forgot + but) if "hidden" in said else checked == forgot, "as the headline says"
    undone["jobs"][0]["forgetting"] = vars(Forgetting("remembers", "backdoor", 330))
    assert "But" not in verdicts(known(undone), run["requests"][0]["id"])[0]


def test_what_passed_its_check_and_came_back_is_hidden_as_well() -> None:
    """Without a comparison the headline rests on the check alone."""
    run, lines = fake_run(methods=("not",))
    checks = [{"name": "forgotten", "verdict": "passed", "what": "", "value": 0.0, "bound": 0.1}]
    request = {**run["requests"][0], "gate": {"checks": checks}}
    found = rows(lines, "last")
    assert "was forgotten, by the check for forgetting, after NoT" in sentence(request, found)
    assert "was hidden, not taken out, by NoT" in sentence(request, found, undone=True)


@pytest.mark.parametrize(("std", "said"), [(None, "taken out"), (60.0, "taken out"), (80.0, "not measured")])
def test_nobody_is_taken_out_where_seeds_differ_by_more_than_retrain_does(std: float | None, said: str) -> None:
    lines: list[Any] = [dict(line, backdoor="not measured: no backdoor in this run") for line in fake_run()[1]]
    before, ours, retrain = (method_row(rows(lines, "last"), name) for name in ("before", "not", "retrain"))
    assert before is not None and ours is not None and retrain is not None
    way = abs(float(before.forgetting.mean) - float(retrain.forgetting.mean))
    assert 60 < way < 80
    wide = replace(before, metrics={**before.metrics, "forget": replace(before.metrics["forget"], std=std)})
    assert judged(ours, wide, retrain) == said


def test_without_retrain_nothing_is_said_of_a_comparison_with_it() -> None:
    compared = ("compared with one that never saw the data", "In parentheses the distance to Retrain", "which a deploy")
    page = Page(render(*fake_run())).text
    assert all(words in page for words in compared)
    page = Page(render(*fake_run(methods=("not",)))).text
    assert not any(words in page for words in compared)
    assert "Without Retrain there are no distances to it" in page


def test_what_nobody_tried_is_said_once_however_many_requests() -> None:
    run, lines = fake_run()
    second = {**run["requests"][0], "id": "r2", "clients": ["3"]}
    lines += [fake_line(0, "r2", "not", t, t == 20) for t in range(21)]
    page = Page(render({**run, "requests": [*run["requests"], second]}, lines)).text
    for words in ("undoing was not tried; unfed probe tries it", "one run is one model of each kind"):
        assert page.count(words) == 1, words


def test_of_one_model_handed_over_in_python_the_page_says_that_it_still_carries_them() -> None:
    run, lines = fake_run()
    page = Page(render({**run, "call": {"method": "not"}, "influence": []}, lines)).text
    assert "The model that was handed over was trained with it and is as it was" in page
    assert "in the run folder was made with it" not in page


def test_the_gate_speaks_of_what_is_allowed() -> None:
    passed, failed = (check_of("utility", utility(95.0, after, 10.0), True) for after in (94.5, 60.0))
    for check, says in ((passed, "passed"), (failed, "failed")):
        told = dict(gate_words(GateSaid.model_validate({"checks": [check.to_json()]})))["Gate, utility"]
        assert told == f"{says}: the drop of validation accuracy in points is {check.value:.3g} (allowed: at most 10)"
    nothing = {**passed.to_json(), "value": 1.42e-14}
    assert (
        "in points is 0 (allowed" in dict(gate_words(GateSaid.model_validate({"checks": [nothing]})))["Gate, utility"]
    )


def test_a_page_of_some_of_the_papers_items_does_not_claim_all_and_says_how_it_was_made() -> None:
    some, every = (
        Page(build.render([Section(items()[name]) for name in names], "digits", ["seed=0"], RunInfo())).text
        for names in (["table-3"], list(items()))
    )
    assert (
        "Some tables and figures of the paper" in some and "unfed paper table-3 --scale digits --set 'seed=0'" in some
    )
    assert "Every table and figure of the paper" in every and "unfed paper --scale digits --set 'seed=0'" in every


def test_no_axis_of_a_share_goes_below_nothing() -> None:
    _, lines = fake_run(methods=("not",))
    flat: Any = [{**line, "forget": 1.5 if line["round"] == 0 else 0.0} for line in lines if line["method"] == "not"]
    drawn = figures.curves({"not": {0: flat}}, "forget", name="c")
    assert drawn is not None
    low, high = drawn.figure.axes[0].get_ylim()
    assert -0.5 < low <= 0.0 and high - low >= 5.0, "no mark reads -1 %"
