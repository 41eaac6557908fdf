"""The tables of lasting forgetting count rounds as they say, and the page shows what the records hold."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def tables() -> Any:
    spec = importlib.util.spec_from_file_location("lasting_tables", ROOT / "benchmarks" / "lasting_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(variant: str, seed: int, curve: list[tuple[int, float]]) -> dict[str, Any]:
    return {"variant": variant, "seed": seed, "k": 1, "rounds": 100, "before": {"test": 78.0}, "curve": curve}


def test_rounds_to_a_stated_accuracy_stand_beside_both_controls() -> None:
    made = tables()
    lines = [
        line("retrain", 0, [(0, 75.0), (40, 69.0), (80, 71.0)]),  # what stands there before the first round counts not
        line("reinit", 0, [(0, 10.0), (40, 70.0), (80, 71.0)]),
        line("sealed", 0, [(0, 10.0), (20, 70.0), (80, 73.0)]),
    ]
    rows = made.stated_table(lines, (70.0, 72.0))[2:]
    assert rows == [
        "| 1 | Retrain | 80 | control | > 100 | control |",
        "| 1 | everything drawn anew | 40 | control | > 100 | control |",
        "| 1 | **Sealed** | 20 | 1 of 1 | 80 | 0 of 1 |",  # a control that never came counts with its 100 rounds
    ]
    assert made.rounds(lines[2:], made.near(5.0)) == "80"
    alone = made.stated_table([line for line in lines if line["variant"] != "reinit"], (70.0,))
    assert alone[-1] == "| 1 | **Sealed** | 20 | — |", "half of one control alone says nothing"


def test_only_seeds_that_every_variant_has_are_counted() -> None:
    lines = [line(v, s, [(5, 70.0)]) for v, s in (("retrain", 1), ("retrain", 0), ("sealed", 1))]
    found = tables().by_requests(lines)[1]
    assert {variant: [x["seed"] for x in own] for variant, own in found.items()} == {"retrain": [1], "sealed": [1]}
    later = [{**one, "k": 2} for one in lines[:1] + lines[2:]]
    assert tables()._seeds([*lines, *later]) == "1" and tables()._seeds(lines[1:2]) == "0"


def test_the_page_shows_what_the_records_hold() -> None:
    """`python benchmarks/lasting_tables.py` writes it anew."""
    made = tables()
    records = (ROOT / "benchmarks" / "records").glob("*lasting*.jsonl")
    text = made.PAGE.read_text(encoding="utf-8")
    for record in records:
        shown = made.page([json.loads(row) for row in record.read_text().splitlines()], 2.0)
        assert shown.strip() in text, record.name


def test_beside_what_was_left_stands_what_the_model_before_held() -> None:
    """A leaver that θ* never learnt is forgotten by everybody, which says nothing of a method."""
    held = {"retain": 99.0, "forget": 28.6, "test": 78.0, "mia": 60.0, "backdoor": 7.6}
    lines = [{**line("sealed", 0, [(5, 77.0)]), "before": held, "after": held, "scope": "client"}]
    assert tables().table(lines, 2.0)[2] == "| 1 | θ*, before | 99.0 | 28.6 | 78.0 | 60.0 | — | 7.6 | — | — | — | — |"
    assert tables().table([{**lines[0], "scope": "class"}], 2.0)[2].count("—") == 4


def test_what_came_back_further_below_the_published_model_is_shown_too() -> None:
    """A fit that had too few steps is not usable yet, and still shows the leaver: 66 at ten points below, by hand."""
    tries = [["flip conv1", 0, 0, 0.0, 69.0, 43.0, 76.5], ["flip conv1", 9, 600, 0.002, 64.0, 70.0, 66.0]]
    tries.append(["unmix", 9, 100, 0.002, 60.0, 79.0, 52.0])
    found = {**line("not", 0, [(5, 79.6)]), "scope": "client", "after": {"test": 79.6, "backdoor": 50.2}}
    found["undo"] = {"tries": tries}
    made = tables()
    assert made.worst(found, 5) == (60.0, 52.0) and made.worst(found, 100) == (69.0, 76.5)
    assert made.further_table([found])[2] == "| 1 | NoT | 50.2 | 52.0 | 66.0 | 66.0 |"
    assert made.further_table([{**found, "undo": {}}]) == []
