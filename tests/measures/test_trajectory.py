"""A line of the trajectory has one reader and one writer, and every column stands in one list."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, cast, get_type_hints

import pytest

from unfed.errors import UnfedError
from unfed.federation.state import Ledger
from unfed.measures import trajectory
from unfed.measures.metrics import COLUMNS, COSTS, METRICS
from unfed.measures.trajectory import Line, Point

AT = Point(0, "r1", "not", 3, done=False)


def test_what_is_written_is_read() -> None:
    made = trajectory.line(
        AT, {"retain": 97.1, "mia": "not measured: no test data"}, 96.0, {"flops": 12}, asked={"3": ["a"]}
    )
    assert trajectory.read(trajectory.write(made), "here") == made
    assert list(made) == [*vars(AT), "retain", "mia", "validation_before", "flops", "asked"]


def test_what_says_nothing_is_left_out() -> None:
    made = trajectory.line(AT, {}, 1.0, {}, earlier={}, start=1, refused=[])
    assert "earlier" not in made and "start" not in made and made["refused"] == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"round": -1}, "round"),
        ({"round": "3"}, "round"),
        ({"seed": True}, "seed"),
        ({"request": 5}, "request"),
        ({"test": [1]}, "test"),
        ({"flops": None}, "flops"),
        ({"asked": [["3"]]}, "asked"),
        ({"asked": {"²": ["a"]}}, "asked"),
        ({"asked": {"3": [7]}}, "asked"),
        ({"refused": [{"round": 1, "client": 7, "reason": "late"}]}, "refused"),
        ({"earlier": {"r0": {}}}, "earlier"),
        ({"start": 0}, "start"),
    ],
)
def test_a_wrong_field_is_one_sentence_with_the_place_and_its_name(change: Any, field: Any) -> None:
    raw = {**vars(AT), "test": 90.0, **change}
    with pytest.raises(UnfedError, match=rf"^Line 7 of t.jsonl has .* as its {field}.* \(.*\); restore the file.$"):
        trajectory.read(json.dumps(raw), "Line 7 of t.jsonl")


@pytest.mark.parametrize("text", ["5", "[]", "{}", "{", "[" * 100_000, '{"seed": 1' + "0" * 5000 + "}"])
def test_what_is_no_line_at_all_is_one_sentence(text: Any) -> None:
    with pytest.raises(UnfedError, match="^here (is damaged|has no seed).*; restore the file.$"):
        trajectory.read(text, "here")


def test_a_key_of_a_later_version_is_kept() -> None:
    assert cast(Any, trajectory.read(json.dumps({**vars(AT), "undo": 3}), "here"))["undo"] == 3


def test_the_columns_are_those_of_the_line_the_ledger_and_the_page() -> None:
    hints = get_type_hints(Line)
    assert set(COLUMNS) <= set(hints)
    assert [column.name for column in COSTS] == [column.name for column in fields(Ledger)]
    docs = Path(__file__).parents[2] / "docs/reference"
    with open(docs / "columns.csv", encoding="utf-8", newline="") as file:
        shown = list(csv.reader(file))
    assert shown == [["column", "unit", "good", "meaning"]] + [
        [column.name, column.unit, column.good.replace("-", "–"), column.text] for column in (*METRICS, *COSTS)
    ]
    named = {*re.findall(r"`(\w+)`", (docs / "run-folder.md").read_text(encoding="utf-8"))}
    assert {*hints} <= named | {row[0] for row in shown}
