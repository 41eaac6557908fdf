"""`benchmarks/population.py` measures pairs once, goes on where it was, and says ratios."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "population.py"


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("population_benchmark", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pairs_are_measured_once_and_the_ratio_is_one_by_one_over_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    population, out = benchmark(), tmp_path / "record.jsonl"
    words = ["population.py", "--models", "2", "--rounds", "1", "--pairs", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*words, "--set", "model.name=cnn-tiny", "--set", "training.batch=256"])
    population.main()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["way"] for line in lines] == ["side by side", "one by one"]
    assert all(line["federations"] == 2 and line["images_per_s"] > 0 for line in lines)
    monkeypatch.setattr(population, "trained", None)  # what stands there is not measured again
    population.main()
    (ratio,) = population.ratios(out)
    assert ratio["ratio_cpu"] == round(lines[1]["cpu_s"] / lines[0]["cpu_s"], 3)
