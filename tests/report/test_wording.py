"""A run is told in the words of those who ran it: rounds and clients, epochs in one place, nodes and a server."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pages import compared, known, render, subject, unfinished
from test_report import Page, fake_run
from unfed.measures.undo.scene import NO_BACKDOOR
from unfed.report import compare, html, tables, undo, wording
from unfed.report.rules import rows

FIFTH: dict[str, Any] = {"id": "r1", "kind": "instance", "clients": [], "fraction": 0.2, "forgotten_rows": 60}


def central(**more: Any) -> tuple[dict[str, Any], list[Any]]:
    """One place that holds all data: nothing is sent, and a random fifth leaves."""
    run, lines = fake_run(**more)
    run |= {"config": {**run["config"], "setting": "central"}, "clients": ["0"], "requests": [FIFTH]}
    nothing = {"comm_bytes": 0, "wire_bytes": 0, "asked": {}, "backdoor": "not measured: nothing was planted"}
    return run, [{**line, **nothing} for line in lines]


def flower() -> tuple[dict[str, Any], list[Any]]:
    run, lines = fake_run()
    return {**run, "engine": "flower"}, [{**line, "serialised_bytes": 9 * line["wire_bytes"]} for line in lines]


def read(page: str) -> str:
    """What a reader sees, without the configuration and without the sentences on checksums."""
    page = re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)
    return re.sub(r"tensor's bytes", "", Page(page).text)


@pytest.mark.parametrize("rule", ["last", "recovered", "best-gap"])
def test_a_page_of_one_place_speaks_of_no_round_no_client_and_no_byte(rule: str) -> None:
    run, lines = central(methods=("not", "ft", "retrain", "ga", "randl"))
    lines = [line for line in lines if line["method"] != "randl" or line["round"] < 9]  # one that is not finished
    found = read(render(run, lines, rule=rule))
    assert "finished (all epochs)" in found and "60 samples, 20 % of the data, were taken out" in found
    assert not re.findall(r"(?i)\b(?:rounds?|clients?|bytes?|nodes?|server)\b", found)


def test_the_table_of_undoing_has_one_wording_that_is_true_in_every_setting() -> None:
    told = " ".join([*(row.title for row in undo.ROWS), NO_BACKDOOR])
    assert not re.findall(r"(?i)\b(?:rounds?|epochs?|clients?|bytes?|nodes?|server)\b", told)


def test_comparing_runs_of_one_place_is_told_in_epochs_too() -> None:
    runs = [compared(name, *central()) for name in ("a", "b")]
    found = read(compare.render(runs))
    assert "Epoch by epoch" in found and "Retrain, last epoch" in found
    assert not re.findall(r"(?i)\b(?:rounds?|clients?|bytes?)\b", found)
    assert "| FLOPs | Epochs |" in compare.markdown(runs) and "Bytes" not in compare.latex(runs)


def test_different_settings_side_by_side_have_every_column() -> None:
    runs = [compared("a", *central()), compared("b", *fake_run())]
    assert "| Bytes | FLOPs | Rounds |" in compare.markdown(runs)


def test_a_page_of_flower_speaks_of_nodes_and_of_the_server() -> None:
    found = read(render(*flower()))
    for words in (
        "Which nodes were asked",
        "The node of client 0 was asked in none of the 20 rounds",
        "9 other nodes took part",
        "No node's update was refused",
        "in the run folder on the server",
        "Hardware of the server",
        "Messages as packed",
        "Time, by the server's clock",
    ):
        assert words in found
    here = read(render(*fake_run()))
    assert not re.findall(r"(?i)\bnodes?\b", here) and "Messages as packed" not in here


def test_a_verdict_and_a_note_are_said_in_the_settings_unit() -> None:
    run, lines = central()
    cut = [line for line in lines if line["method"] != "not" or line["round"] < 4]
    table = tables.markdown(rows(cut, "recovered"), words=wording.words_of(known(run)))
    assert "not recovered yet after 3 epochs" in table and "up to epoch 3" in table and "round" not in table
    run["jobs"][0]["finished"] = None
    assert unfinished(run, cut) == ["NoT, request r1, seed 0: at epoch 3 of 20."]


def test_a_share_of_all_data_is_everybodys_only_where_there_are_several() -> None:
    assert subject(FIFTH) == "60 samples, 20 % of the data of every client,"
    assert subject(FIFTH, wording.CENTRAL) == "60 samples, 20 % of the data,"


def test_only_the_word_itself_is_replaced() -> None:
    said = wording.CENTRAL.said("round 3 of 4 rounds; round1.weight, background and rounding stay")
    assert said == "epoch 3 of 4 epochs; round1.weight, background and rounding stay"


def test_commands_stand_as_commands_and_markup_stays_text() -> None:
    run, lines = fake_run()
    page = render({**run, "undo": []}, lines)
    assert "<code>unfed probe</code>" in page and "<code>unfed purge</code>" in page and "`unfed" not in page
    assert html._environment().filters["code"]("`a` <b>") == "<code>a</code> &lt;b&gt;"


def test_many_rounds_are_written_out() -> None:
    assert [wording.FEDERATED.several(n) for n in (1, 2.5, 20, 2000)] == [
        "1 round",
        "2.5 rounds",
        "20 rounds",
        "2,000 rounds",
    ]
