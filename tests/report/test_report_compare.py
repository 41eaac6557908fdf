"""Several runs on one page: each number says its run, differences are named, and what cannot be compared is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pages import compared
from test_report import Page, fake_run
from unfed.api import compare
from unfed.cli.main import app
from unfed.errors import UnfedError
from unfed.report.compare import Compared, compared_rows, differences, latex, markdown, names_of, render, warnings
from unfed.runs.run import Run


def fake(name: str = "a", data: str = "digits", **more: Any) -> Compared:
    run, lines = fake_run(**more)
    run["config"]["data"]["name"] = data
    return compared(name, run, lines)


def test_every_row_says_its_run_and_gaps_stay_inside_it() -> None:
    alone = fake("b", methods=("not",))
    found = compared_rows([fake("a"), alone], "last")
    assert [(row.request, row.method) for row in found] == [
        ("a", "before"), ("a", "retrain"), ("a", "not"), ("a", "ft"), ("b", "before"), ("b", "not"),
    ]  # fmt: skip
    assert isinstance(found[2].average_gap.mean, float)
    assert found[5].average_gap.mean == "not measured: no Retrain of this request"


def test_a_run_with_several_requests_names_them() -> None:
    one = fake("a")
    again: list[Any] = [{**line, "request": "r2"} for line in one.lines]
    two = Compared("a", one.info, [*one.lines, *again])
    assert {row.request for row in compared_rows([two, fake("b")])} == {"a: r1", "a: r2", "b"}


def test_differences_are_the_keys_that_differ() -> None:
    run, lines = fake_run(methods=("not",))
    run["config"] |= {"name": "other", "request": [{"id": "r1", "classes": [3]}]}
    run["versions"]["torch"] = "2.14.0"
    one, two = fake("a"), compared("b", run, lines)
    assert dict(differences([one, two])) == {
        "methods": ["not, ft, retrain", "not"],
        "request.id": ["—", "r1"],
        "request.classes": ["—", "3"],
        "versions.torch": ["2.13.0", "2.14.0"],
    }
    assert differences([one, fake("c")]) == []


def test_different_data_is_said_before_anything_else() -> None:
    assert warnings([fake("a"), fake("b")]) == []
    said = warnings([fake("a"), fake("b", data="cifar10", methods=("not",))])
    assert said == [
        "These runs use different data sets (a: digits, b: cifar10); compare gaps to Retrain, not accuracies.",
        "No Retrain, hence no gap, in b.",
    ]
    run, lines = fake_run()
    run["requests"][0] |= {"kind": "class", "clients": [], "classes": [3]}
    assert (
        warnings([fake("a"), compared("b", run, lines)])[0]
        == "They were not asked to forget the same (a: Client 0; b: Class 3)."
    )


def test_the_page_holds_all_runs_and_is_well_formed() -> None:
    runs = [fake("a"), fake("b", data="cifar10"), fake("c", methods=("not",), seeds=(0, 1))]
    page = Page(render(runs, rule="last"))
    assert page.text.count("Client 0 was taken out by NoT") == 2, "the third has no Retrain, so nothing says so"
    assert page.text.count("Client 0: after NoT in 20 rounds") == 1 and "Before you compare" in page.text
    identifiers = [value for _, name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert page.tags.count("table") == page.tags.count("caption")
    groups = [value for tag, name, value in page.attributes if (tag, name) == ("th", "rowspan")]
    assert groups == ["4", "4", "2"] * 3
    assert "://" not in render(runs)


def test_strings_of_runs_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    text = render([fake(evil), fake("b", data=evil)])
    assert "<script" not in text and evil in Page(text).text


def test_unfinished_and_empty_runs_show_what_there_is() -> None:
    run, lines = fake_run()
    for job in run["jobs"]:
        job["finished"] = None
    begun = compared("b", run, [line for line in lines if line["round"] < 3])
    text = Page(render([begun, compared("c", {}, [])])).text
    assert "Not finished: b." in text and "This run has no unlearning request yet." in text


def test_tables_name_the_run() -> None:
    runs = [fake("a"), fake("b", methods=("not", "retrain"))]
    text = markdown(runs, "last")
    assert "| Run | Method |" in text and "| b | NoT |" in text and "| Differs in | a | b |" in text
    assert r"Run & Method" in latex(runs, "last") and latex(runs).count(r"\midrule") == 2


def test_names_are_the_shortest_that_differ(tmp_path: Path) -> None:
    assert names_of([tmp_path / "one", tmp_path / "two"]) == ["one", "two"]
    assert names_of([tmp_path / "x/run", tmp_path / "y/run"]) == ["x/run", "y/run"]
    with pytest.raises(UnfedError, match="is named twice"):
        names_of([tmp_path / "one", tmp_path / "x/../one"])


def test_fewer_than_two_runs_and_foreign_folders_are_refused(tmp_path: Path, small: Any) -> None:
    Run.create(small(), tmp_path / "run")
    out = tmp_path / "compare.html"
    with pytest.raises(UnfedError, match="at least two runs, not 0"):
        compare([], out)
    with pytest.raises(UnfedError, match="at least two runs, not 1"):
        compare([tmp_path / "run"], out)
    (tmp_path / "foreign").mkdir()
    with pytest.raises(UnfedError, match="is not a run folder"):
        compare([tmp_path / "run", tmp_path / "foreign"], out)
    assert not out.exists()


def test_the_command_writes_a_page_or_a_table(tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Run.create(small(), "one").execute()
    Run.create(small("training.rounds=2"), "two")  # not begun: it is shown all the same
    cli = CliRunner()
    made = cli.invoke(app, ["compare", "one", "two"])
    assert made.exit_code == 0 and "compare.html" in made.output
    text = Page((tmp_path / "compare.html").read_text()).text
    assert "Not finished: two." in text and "In a comparison, " in text, "nobody is out of a model in force"
    table = cli.invoke(app, ["compare", "one", "two", "--format", "md"])
    assert "| one | NoT |" in table.output and "| training.rounds | 3 | 2 |" in table.output
    cli.invoke(app, ["compare", "one", "two", "--format", "latex", "-o", "table.tex"])
    assert (tmp_path / "table.tex").read_text().startswith("% rule: best-gap")
    for wrong in (
        ["one"],
        ["one", "two", "--format", "pdf"],
        ["one", "two", "--rule", "oracle"],
        ["one", "two", "one"],
    ):
        assert isinstance(cli.invoke(app, ["compare", *wrong]).exception, UnfedError)


def test_the_page_leads_with_its_table() -> None:
    page = render([fake("a"), fake("b")])
    assert page.index('aria-label="Results under the rule') < page.index('<h3 class="request">a</h3>')
    assert page.index('aria-label="Results under the rule') < page.index('id="differences-title"')
