"""The tables of lasting forgetting count rounds as they say, and the page shows what the records hold."""

from __future__ import annotations

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
    left = {"retain": 99.0, "forget": 25.0, "test": 95.0, "mia": 60.0, "backdoor": 1.0}
    end = {"forget": 26.0, "backdoor": 2.0, "triggers": {"own": 20.0, "known": 30.0}}
    then = {"forget": 31.0, "backdoor": 5.5, "triggers": {"own": 21.0, "known": 40.0}}
    paid = {"round": 5, "after": {**left, "forget": 27.0, "backdoor": 3.6}, "undo": then}
    theta = {**left, "undo": {"triggers": {"own": 50.0, "known": 90.0}}}
    whole = {**line("sealed", 0, [(5, 77.0)]), "scope": "client", "after": left, "before": theta, "undo": end}
    made = tables()
    rows = made.table([{**whole, "paid": paid}], 2.0)
    assert rows[0].endswith(
        "undone: backdoor | at the round paid for: forget | at the round paid for: backdoor |"
        " undone: forget | undone: backdoor |"
    )
    assert rows[3].endswith("| 26.0 | 2.0 | 27.0 | 3.6 | 31.0 | 5.5 |")
    light = made.light_table([{**whole, "paid": paid}])
    assert light[-2] == "| 1 | θ*, before | 50.0 | 90.0 | 50.0 | 90.0 |"
    assert light[-1] == "| 1 | **Sealed** | 21.0 | 40.0 | 20.0 | 30.0 |"
    never = made.table([{**whole, "paid": {"round": None}}], 2.0)
    assert never[3].endswith("| 26.0 | 2.0 | — | — | — | — |"), "a goal that was not reached pays for no model"
    old = made.table([whole], 2.0)
    assert "paid" not in old[0]
    about = {"data": "digits", "model": "cnn", "lr": 0.1}
    assert made.AT_THE_END in made.page([{**whole, **about}], 2.0)
    assert made.AT_THE_END not in made.page([{**whole, **about, "paid": paid}], 2.0)


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
