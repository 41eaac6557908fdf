"""Retrain passes the forgotten check and the trained model fails it, or the check says that it was not measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECORD = BENCHMARKS / "records" / "2026-11-16-forgotten-cpu.jsonl"
CLASS, BACKDOOR = ("class", "forgotten"), ("client", "backdoor")


def study() -> Any:
    spec = importlib.util.spec_from_file_location("forgotten_study", BENCHMARKS / "forgotten.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def held(lines: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """(kind, check) of everything that was measured, once it is seen that nothing measured is wrong."""
    for line in lines:
        right = {"θ*": "failed", "Retrain": "passed"}[line["model"]]
        assert line["verdict"] in (right, "not measured"), line
        if line["verdict"] == "not measured":
            assert str(line["value"]).startswith("not measured: ")
    return {(line["kind"], line["check"]) for line in lines if line["verdict"] != "not measured"}


@pytest.mark.slow
def test_retrain_passes_and_the_trained_model_fails_in_one_small_federation(tmp_path: Path) -> None:
    """One federation, a fifth of the study's rounds; `benchmarks/forgotten.py` runs and records ten seeds of all."""
    small = study()
    del small.REQUESTS["samples"]  # so few rounds show nothing of them
    assert held(small.case("few", "iid", True, 0, tmp_path, rounds=12)) == {CLASS, BACKDOOR}


def test_over_ten_recorded_seeds_with_and_without_poison_retrain_failed_nowhere() -> None:
    lines = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    assert len({(line["seed"], line["scheme"], line["poison"]) for line in lines}) == 10 * 2 * 2
    for seed in {line["seed"] for line in lines}:
        assert held([line for line in lines if line["seed"] == seed]) >= {CLASS, BACKDOOR}, seed
