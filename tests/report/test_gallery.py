"""Pictures and numbers out of a run: what a file, a link or a notebook holds is what the page shows."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import unfed
from pages import known, render
from test_report import fake_run
from unfed.errors import UnfedError
from unfed.report import drawing, figures, tables
from unfed.report.drawing import Picture
from unfed.report.rules import rows, trajectories
from unfed.report.tables import safe
from unfed.runs.run import Run
from worlds import Small

pytestmark = pytest.mark.figures


def pictures(run: Any, lines: Any) -> dict[str, Picture]:
    return figures.pictures(known(run), lines)


@pytest.fixture(scope="module")
def drawn() -> dict[str, Picture]:
    return pictures(*fake_run())


def test_everything_that_was_measured_is_drawn(drawn: dict[str, Picture]) -> None:
    assert set(drawn) == set(figures.NAMES) - {"training"}  # the made-up run has no line of its training
    (metric,) = {"forget"} & set(drawn)
    assert drawn[metric].header == ("method", "round", "forget", "std")


def test_the_numbers_are_those_of_the_trajectory(drawn: dict[str, Picture]) -> None:
    _, lines = fake_run()
    found = list(csv.DictReader(io.StringIO(drawn["test"].csv())))
    measured = {(str(line["round"]), line["test"]) for line in lines if line["method"] == "not"}
    assert {(line["round"], float(line["test"])) for line in found if line["method"] == "NoT"} == measured


def test_each_value_is_said_where_it_is_drawn() -> None:
    _, lines = fake_run(methods=("not",))
    one = figures.curves(trajectories(lines)["r1"], "forget", name="f")
    assert one is not None
    spots = re.findall(r'<circle class="spot" cx="([\d.]+)" cy="([\d.]+)" r="5"><title>([^<]*)</title>', one.inline)
    assert len(spots) == len(one.rows) == 21
    value = next(row[2] for row in one.rows if row[1] == 0)
    assert spots[0][2] == f"NoT, round 0: {value:.2f}"
    curve = next(path for path in re.findall(r'd="(M [^"]+)"', one.inline) if path.count("L") > 15)
    corners = [tuple(map(float, pair.split())) for pair in re.split(r"\s*[ML]\s+", curve.strip())[1:]]
    for (x, y, _), corner in zip(spots, corners, strict=True):
        assert (float(x), float(y)) == pytest.approx(corner, abs=0.11)


def test_a_file_stands_alone_with_its_own_colours_a_title_and_a_legend(drawn: dict[str, Picture]) -> None:
    for name, one in drawn.items():
        text = one.svg
        ElementTree.fromstring(text)
        assert "var(--" not in text and "currentColor" not in text, f"{name}: a colour that only a page can fill in"
        assert not {*re.findall("#[0-9a-f]{6}", one.inline)} & {*drawing._PAGE}, name
        assert one.title.lower() in text.lower()
        assert one.pdf().startswith(b"%PDF")
    assert ">Average gap against computation<" in drawn["gap-by-flops"].svg, "a file says what it shows"
    assert ">NoT<" in drawn["forget"].svg and ">Retrain, last round<" in drawn["forget"].svg
    once_more = figures.curves(trajectories(fake_run()[1])["r1"], "forget", name="forget")
    assert once_more is not None and drawn["forget"].svg == once_more.svg


def test_a_figure_is_drawn_once_for_the_page_and_for_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    drawings: list[str] = []
    draw = drawing.drawn

    def counted(figure: Any, name: str) -> str:
        drawings.append(name)
        return draw(figure, name)

    monkeypatch.setattr(drawing, "drawn", counted)
    page = render(*fake_run(), again=True)
    assert len(drawings) == len(set(drawings)) == page.count(".svg" + '"') > 5


def test_the_page_shows_a_figure_without_the_heading_and_the_legend_of_its_file(drawn: dict[str, Picture]) -> None:
    for one in drawn.values():
        assert 'id="heading"' in one.svg and "-heading" not in one.inline and "-key" not in one.inline
        _, top, width, height = map(float, re.findall(r'viewBox="([^"]+)"', one.inline)[0].split())
        assert top > 8 and 200 < width < 330 and height > 20
        for y in re.findall(r'class="spot" cx="[^"]+" cy="([^"]+)"', one.inline):
            assert top <= float(y) <= top + height, "what can be pointed at is inside the cut"


def test_beside_each_figure_of_the_page_are_links_that_hold_the_files(drawn: dict[str, Picture]) -> None:
    page = render(*fake_run())
    links = re.findall(r'<a download="([^"]+)" href="data:([\w/+]+);base64,([^"]+)"', page)
    assert len(links) == 2 * page.count('role="img" stroke-linejoin') > 10
    held = {name: base64.b64decode(data).decode() for name, _, data in links}
    assert held["curve-0-forget.csv"] == drawn["forget"].csv()
    ElementTree.fromstring(held["curve-0-forget.svg"])
    assert len({name for name, *_ in links}) == len(links)


def test_columns_of_numbers_hold_numbers_only_and_why_there_is_none_stands_beside_them() -> None:
    _, lines = fake_run(methods=("not", "ft"))
    (first, *_) = [record for record in tables.records(rows(lines, "last")) if record["method"] == "not"]
    assert first["average_gap"] is None and isinstance(first["test"], float)
    assert first["not_measured"]["average_gap"] == "no Retrain of this request"
    (line,) = csv.DictReader(io.StringIO(tables.csv_text([first])))
    assert line["average_gap"] == "" and float(line["test"]) == first["test"]
    assert json.loads(line["not_measured"]) == first["not_measured"], "CSV and JSON say the same"


def test_a_method_has_one_title_in_every_format() -> None:
    _, lines = fake_run(methods=("not", "shrink.py"))
    found = rows(lines, "last")
    shown = [record["title"] for record in tables.records(found)]
    assert shown == [cells[0].text for cells in tables.table(found).body] and "shrink" in shown
    assert all(tables.numbers_only(line)["title"] in {*shown, "Training"} for line in lines)


def test_who_was_asked_is_json_in_a_csv() -> None:
    (line,) = csv.DictReader(io.StringIO(tables.csv_text([{"asked": {"1": ["0", "ä"]}}])))
    assert json.loads(line["asked"]) == {"1": ["0", "ä"]}


def test_a_name_that_looks_like_a_formula_is_text_in_a_spreadsheet() -> None:
    assert safe(["=1+1", "NoT", -3.0, ""]) == ["'=1+1", "NoT", -3.0, ""]


def test_a_notebook_shows_a_run(small: Small, tmp_path: Path) -> None:
    run = Run.create(small("training.rounds=1", "unlearning.rounds=1"), tmp_path / "run")
    run.execute()
    shown = unfed.plot(run, "forget")
    assert shown._repr_svg_().startswith("<?xml") and shown.rows
    assert unfed.plot(tmp_path / "run", "training").save(tmp_path / "t.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(UnfedError, match=r"no picture 'forgot'; it has forget, .* Did you mean 'forget'\?"):
        unfed.plot(run, "forgot")
    with pytest.raises(UnfedError, match="A picture is written as svg, pdf or csv, not as 'png'"):
        shown.save(tmp_path / "x.png")
