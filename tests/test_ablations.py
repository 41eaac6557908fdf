"""Ablations go on where they were stopped, and the page shows what the records hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import ablations
import ablations_page


def test_a_cell_that_is_known_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def cells(bench: Any, hows: tuple[str, ...]) -> Iterator[Any]:
        def work(how: str) -> dict[str, Any]:
            done.append(how)
            return {"gap": 1.0, "back": 2}

        for how in hows:
            yield {"layer": "conv1.weight", "how": how}, partial(work, how)

    monkeypatch.setitem(ablations.PARTS, "layers", cells)
    monkeypatch.setattr(ablations.Bench, "before", {"test": 90.0})
    monkeypatch.setattr(ablations.Bench, "reference", {"test": 91.0})
    record = tmp_path / "record.jsonl"
    words = ["--networks", "cnn", "--record", str(record), "--hows"]
    assert ablations.main([*words, "negate,zero"]) == 0
    with record.open("a") as file:
        file.write('{"network": "cnn", "seed"')  # a writer that was killed
    assert ablations.main([*words, "negate"]) == 0
    assert done == ["negate", "zero"] and len(ablations.read(record)) == 2
    for wrong in (["--networks", "lenet"], [*words, "negat"]):
        with pytest.raises(SystemExit) as end:
            ablations.main(wrong)
        assert end.value.code == 2


def test_a_convolution_and_its_norm_are_the_identity_and_the_page_says_what_the_records_say() -> None:
    lines = ablations.read(ablations.RECORD)
    found = {(r["network"], r["part"], r["layer"], r["how"]): r for r in lines}
    both, plain = found["cnn", "sets", "convolution and its norm", "negate"], found["cnn", "sets", "-", "none"]
    assert both["gap"] == pytest.approx(plain["gap"], abs=0.05) and both["curve"] == plain["curve"]
    assert ablations_page.main(["--check"]) == 0
    kept = json.loads(ablations_page.ADVICE.read_text(encoding="utf-8"))
    page = ablations_page.PAGE.read_text(encoding="utf-8")
    assert ablations_page.filled(page, lines, kept[:1]) != page
    for network in {r["network"] for r in lines if r["part"] == "layers"}:
        assert (ablations_page.PAGE.parent / f"ablations-{network}.svg").exists(), network


def test_a_pick_is_right_within_half_a_point() -> None:
    def row(gap: float, best: float) -> dict[str, Any]:
        pick = ["a.weight", "zero", gap]
        picks = {"score": pick, "rules": pick, "paper": ["a.weight", "negate", 9.0]}
        return {"network": "x", "tuned_on": False, "best": ["b.weight", "zero", best], "picks": picks, "doubts": []}

    text = "\n".join(ablations_page.advice_section([row(1.5, 1.0), row(1.6, 1.0)]))
    assert "networks it was not tuned on: score 1 of 2, rules 1 of 2, the paper's choice 0 of 2" in text
    assert text.count("**`a` zero, 1.5**") == 2 and "**`a` zero, 1.6" not in text
