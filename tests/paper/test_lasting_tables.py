"""The tables of lasting forgetting count rounds as they say, and the CSV holds what the records hold."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).parents[2]


def benchmark(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables() -> Any:
    return benchmark("lasting_tables")


LEFT = {"retain": 99.0, "forget": 25.0, "test": 95.0, "mia": 60.0, "backdoor": 1.0}


def line(variant: str, curve: list[tuple[int, float]], **more: Any) -> dict[str, Any]:
    about = {"data": "cifar10", "model": "cnn", "scope": "client", "seed": 0, "k": 1, "rounds": 100, "lr": 0.1}
    return {"variant": variant, **about, "before": {**LEFT, "test": 78.0}, "after": LEFT, "curve": curve, **more}


def test_rounds_to_an_accuracy_stand_beside_both_controls() -> None:
    made = tables()
    lines = [
        line("retrain", [(0, 75.0), (40, 69.0), (80, 71.0)]),  # what stands there before the first round counts not
        line("reinit", [(0, 10.0), (40, 70.0), (80, 71.0)]),
        line("sealed", [(0, 10.0), (20, 70.0), (50, 76.0)]),
        line("ft", [(0, 10.0), (20, 70.0), (51, 76.0)]),
    ]
    names = ("rounds to 70 %", "rounds to 72 %", "rounds to θ* − 2", "at most half")
    told = [tuple(row[name] for name in names) for row in made.table(lines, "r")[1:]]
    assert told == [
        ("80", "> 100", "> 100", ""),
        ("40", "> 100", "> 100", ""),
        ("20", "50", "50", "yes"),  # a control that never came counts with its 100 rounds
        ("20", "51", "51", "no"),
    ]
    alone = made.table([one for one in lines if one["variant"] != "reinit"], "r")
    assert {row.get("at most half", "") for row in alone} == {""}, "half of one control alone says nothing"


def test_the_csv_is_what_the_records_hold() -> None:
    """`python benchmarks/lasting_tables.py` writes it again."""
    made = tables()
    assert made.FILE.read_text(encoding="utf-8") == made.text(made.records())
    rows = list(csv.DictReader(made.FILE.open(encoding="utf-8")))
    lines = sum(len(record.read_text(encoding="utf-8").splitlines()) for record in made.records())
    assert len([row for row in rows if row["variant"] != "before"]) == lines > 200


def test_the_page_of_findings_says_what_the_csv_says() -> None:
    page = (ROOT / "docs/explanation/findings.md").read_text(encoding="utf-8")
    rows = list(csv.DictReader(tables().FILE.open(encoding="utf-8")))

    def told(column: str, variant: str, digits: int = 1) -> str:
        where = {"data": "cifar10", "model": "cnn", "requests": "1", "rounds": "250", "variant": variant}
        found = sorted((row for row in rows if where.items() <= row.items()), key=lambda row: row["seed"])
        assert [row["seed"] for row in found] == ["0", "1", "2"]
        return " / ".join(f"{float(row[column]):.{digits}f}" for row in found)

    for variant, title in {"retrain": "Retrain", "sealed": "Sealed", "not": "NoT"}.items():
        cells = [told("rounds to θ* − 2", variant, 0), *(told(c, variant) for c in ("backdoor", "undone: backdoor"))]
        assert f"| {title} | {' | '.join(cells)} |" in page


def test_beside_what_was_left_stands_what_the_model_before_held() -> None:
    """A leaver that θ* never learnt is forgotten by every method, which says nothing of a method."""
    (theta, _) = tables().table([line("sealed", [(5, 77.0)])], "r")
    assert (theta["variant"], theta["test"], theta["forget"], theta["rounds"]) == ("before", 78.0, 25.0, "")


def test_the_gap_is_that_to_the_reference_where_there_is_one() -> None:
    far = {**LEFT, "forget": 29.0}
    lines = [line("retrain", [(5, 77.0)]), line("sealed", [(5, 77.0)], after=far)]
    assert [row.get("avg. gap") for row in tables().table(lines, "r")] == [None, 0.0, 1.0]
    reference = {name: value for name, value in lines[1].items() if name not in ("curve", "before")}
    reference["variant"] = "reference"
    assert [row.get("avg. gap") for row in tables().table([*lines, reference], "r")] == [None, 1.0, 0.0, 0.0]


def test_what_came_back_further_below_the_published_model_is_shown_too() -> None:
    """A fit that had too few steps is not usable yet, and still shows the leaver: 66 at ten points below, by hand."""
    tries = [["flip conv1", 0, 0, 0.0, 69.0, 43.0, 76.5], ["flip conv1", 9, 600, 0.002, 64.0, 70.0, 66.0]]
    tries.append(["unmix", 9, 100, 0.002, 60.0, 79.0, 52.0])
    found = line("not", [(5, 79.6)], after={**LEFT, "test": 79.6}, undo={"tries": tries})
    made = tables()
    assert made.worst(found, 5) == 52.0 and made.worst(found, 100) == 76.5
    assert [made.table([found], "r")[1][f"within {w}: backdoor"] for w in (5, 10, 15)] == [52.0, 66.0, 66.0]
    assert "within 5: backdoor" not in made.table([{**found, "undo": {}}], "r")[1]


def test_the_model_that_is_paid_for_is_that_of_the_first_round_near_enough() -> None:
    """Test accuracies 90, 95, 96, 94 and 97 by round; θ* has 97. Looked at every round, round 2 is paid for."""
    made = benchmark("lasting")
    tests = [90.0, 94.0, 96.0, 94.0, 97.0]

    class Server:
        def recover(self, state: Any) -> Any:
            return made.State({"round": state.round + 1}, round=state.round + 1)

    class Sight:
        before: ClassVar[dict[str, float]] = {"test": 97.0}

        def test(self, params: Any) -> float:
            return tests[int(params["round"])]

    def told(every: int, within: float) -> Any:
        return made.Told("cpu", "float32", 1, (1,), 4, 4, every, within)

    found = made.recovered(Server(), {"round": 0}, Sight(), told(1, 2.0))
    assert found.paid == (2, {"round": 2}) and found.params == {"round": 4}
    assert found.curve == list(enumerate(tests))
    assert made.recovered(Server(), {"round": 0}, Sight(), told(3, 2.0)).paid == (4, {"round": 4}), "what was looked at"
    assert made.recovered(Server(), {"round": 0}, Sight(), told(1, -1.0)).paid is None


def test_what_came_back_of_the_model_that_is_paid_for_stands_beside_the_end() -> None:
    end = {"forget": 26.0, "backdoor": 2.0, "triggers": {"own": 20.0, "known": 30.0}}
    then = {"forget": 31.0, "backdoor": "not measured: no result", "triggers": {"own": 21.0, "known": 40.0}}
    paid = {"round": 5, "after": {**LEFT, "forget": 27.0, "backdoor": 3.6}, "undo": then}
    theta = {**LEFT, "test": 78.0, "undo": {"triggers": {"own": 50.0, "known": 90.0}}}
    whole = line("sealed", [(5, 77.0)], before=theta, undo=end, paid=paid)
    before, row = tables().table([whole], "r")
    assert (row["undone: forget"], row["undone: backdoor"], row["planted trigger taught"]) == (26.0, 2.0, 30.0)
    assert (row["paid: forget"], row["paid: backdoor"], row["paid, undone: forget"]) == (27.0, 3.6, 31.0)
    assert (row["paid, undone: backdoor"], row["paid, own trigger taught"]) == ("", 21.0)
    assert (before["own trigger taught"], before["planted trigger taught"]) == (50.0, 90.0)
    never = tables().table([{**whole, "paid": {"round": None}}], "r")[1]
    assert never["paid: forget"] == "", "a goal that was not reached pays for no model"


def test_a_run_of_a_large_network_gives_the_lines_of_the_benchmark(tmp_path: Path) -> None:
    """The control went further in the second folder; Retrain's undoing is in Sealed's file."""
    seen = {"retain": 48.0, "forget": 20.0, "mia": 60.0, "backdoor": 4.0}
    rows = {
        "first": [
            ("before", 0, 39.5),
            ("sealed", 0, 8.8),
            ("sealed", 60, 38.8),
            ("retrain", 150, 42.6),
            ("anew", 0, 5.2),
        ],
        "second": [("before", 0, 9.3), ("anew", 0, 5.2), ("anew", 90, 38.3)],
    }
    config: dict[str, Any] = {
        "data": {"name": "caltech101"},
        "model": {"name": "vit-b-16"},
        "engine": {"precision": "bf16"},
    }
    config["training"] = {"rounds": 150, "lr": 0.001}
    for name, own in rows.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(
            json.dumps({"config": config, "hardware": "NVIDIA H200, 12 CPU threads"})
        )
        lines = [{"seed": 0, "request": "r", "method": m, "round": r, "test": t, **seen} for m, r, t in own]
        (tmp_path / name / "trajectory.jsonl").write_text("\n".join(map(json.dumps, lines)))
    tried = {"start": "flip", "layers": ["conv_proj.weight"], "n": 100, "steps": 20, "rate": 0.02}
    best: dict[str, Any] = {
        "usable": 1,
        "tried": 1,
        "forget": 20.7,
        "backdoor": 7.5,
        "forget_at": None,
        "backdoor_at": None,
    }
    best["tries"] = [{**tried, "forget": 20.7, "test": 38.0, "backdoor": 7.5}]
    way = {"before": {"relative_l2": 1.0, "cosine": 0.5, "peak": 1.7}}
    measured: dict[str, Any] = {
        "realign": best,
        "flip": {},
        "resurface": {"forget_rise": 5.0},
        "relearn": {"area": 23.4},
        "path": way,
    }
    measured["difference"] = {"cosine": 0.0}
    measured["triggers"] = {"own": 20.0, "known": 30.0, "lr": 0.001}
    told = {"unlearned": measured, "retrain": {**measured, "resurface": {"forget_rise": 1.8}}}
    effort = {"grid": {"rows": [100], "rates": [0.02], "budget": {"batch": 32, "stops": [20]}}}
    (tmp_path / "first" / "undo" / "0" / "r").mkdir(parents=True)
    there = tmp_path / "first" / "undo" / "0" / "r" / "sealed.json"
    there.write_text(json.dumps({"method": "sealed", "measured": told, "effort": effort}))
    labels = {"sealed": "sealed", "retrain": "retrain", "anew": "reinit"}
    sealed, retrain, anew = benchmark("lasting_of_run").lines_of([tmp_path / "first", tmp_path / "second"], labels)
    assert (sealed["curve"], sealed["rounds"], sealed["trained"]) == ([[0, 8.8], [60, 38.8]], 60, 150)
    assert sealed["undo"]["tries"] == [["flip conv_proj", 100, 20, 0.02, 20.7, 38.0, 7.5]]
    assert (sealed["undo"]["resurface"]["forget_rise"], retrain["undo"]["resurface"]["forget_rise"]) == (5.0, 1.8)
    assert sealed["undo"]["triggers"] == {"own": 20.0, "known": 30.0} and "lift" not in sealed["undo"]
    assert anew["variant"] == "reinit" and anew["curve"][-1] == [90, 38.3] and "undo" not in anew
    assert {line["before"]["test"] for line in (sealed, retrain, anew)} == {39.5}, "the θ* of the first folder"
