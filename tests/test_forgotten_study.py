"""Retrain passes the forgotten check and the trained model fails it, or the check says that it was not measured."""

from __future__ import annotations

import importlib.util
from itertools import product
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parent.parent / "benchmarks" / "forgotten.py"


def study() -> Any:
    spec = importlib.util.spec_from_file_location("forgotten_study", FILE)
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
    """Eight rounds: enough to know a class, too few to plant a backdoor or to fit single rows."""
    assert held(study().case("few", "iid", True, 0, tmp_path, rounds=8)) == {("class", "forgotten")}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_over_ten_seeds_with_and_without_poison(seed: int, tmp_path: Path) -> None:
    cases = product(("iid", "dirichlet"), (False, True))
    found: set[tuple[str, str]] = set()
    for scheme, poison in cases:
        found |= held(study().case("few", scheme, poison, seed, tmp_path / f"{scheme}-{poison}"))
    assert {("class", "forgotten"), ("client", "backdoor")} <= found
