"""The matrix of runs that a GPU is checked by: which rows there are, that one can fail, that none is run twice."""

from __future__ import annotations

import json
import sys
from itertools import combinations, product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import covering
import matrix
import workers
from matrix import Row
from unfed import methods
from unfed.methods.base import Central


@pytest.fixture(autouse=True)
def own_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNFED_TRUTH", str(tmp_path / "truth"))


# --- which rows -------------------------------------------------------------------------------------------------------


def test_in_a_covering_set_every_two_values_meet_that_can() -> None:
    columns = {"a": (1, 2, 3), "b": ("x", "y"), "c": (False, True), "d": ("p", "q", "r")}

    def allowed(row: Any) -> bool:
        return not (row["a"] == 1 and row["c"]) and not (row["b"] == "x" and row["d"] == "r")

    chosen = covering.rows(columns, allowed)
    everything = [dict(zip(columns, values, strict=True)) for values in product(*columns.values())]
    possible = {pair for row in everything if allowed(row) for pair in combinations(row.items(), 2)}
    met = {pair for row in chosen for pair in combinations(row.items(), 2)}
    assert met == possible
    assert all(allowed(row) for row in chosen)
    assert 9 <= len(chosen) <= 12 < sum(map(allowed, everything)), "three by three values need nine rows"
    assert chosen == covering.rows(columns, allowed)


def test_every_two_settings_of_the_matrix_meet_in_some_row() -> None:
    rows = [{n: getattr(row, n) for n in matrix.COLUMNS} for row in matrix.all_rows()]
    met = {pair for row in rows for pair in combinations(row.items(), 2)}
    possible = {
        pair for row in covering.feasible(matrix.COLUMNS, matrix.sensible) for pair in combinations(row.items(), 2)
    }
    assert possible <= met
    models = {("poison", True), ("model", "resnet18")}, {("partition", "dirichlet"), ("model", "vit-tiny")}
    assert all(any(pair <= set(row.items()) for row in rows) for pair in models)
    assert len({row.name for row in matrix.all_rows()}) == len(rows)


def test_every_method_and_scope_is_run_on_every_engine_in_every_precision() -> None:
    """A method that is registered and not in the matrix would never be checked on a GPU."""
    rows = set(matrix.full())
    served = {(name, scope, "uneven") for name, kind in methods.METHODS.items() for scope in kind.scopes
              if not issubclass(kind, Central)}  # fmt: skip
    served |= {(name, scope, "one") for name, kind in methods.METHODS.items() for scope in kind.scopes - {"client"}
               if not kind.federation_only}  # fmt: skip
    for (name, scope, where), way, precision in product(served, matrix.UNCOMPILED, ("float64", "float32", "bf16")):
        assert Row(name, scope, way, precision, partition=where) in rows
    compiled = {(row.method, row.partition, row.precision) for row in rows if row.way == "batched compiled"}
    assert compiled >= {(n, where, p) for (n, _, where), p in product(served, ("float64", "float32", "bf16"))}


# --- one row ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        Row("not", "client", "batched graph", "float64", model="cnn-tiny", poison=True),
        Row("salun", "class", "batched eager", "float64", model="cnn-tiny", poison=True, partition="one"),
        Row("mode", "instance", "batched eager", "float32", model="cnn-tiny", partition="dirichlet"),
    ],
    ids=lambda row: row.name,
)
def test_a_row_holds(row: Row) -> None:
    found = matrix.compared(row, "cpu")
    assert found["ok"] and found["worst"] <= found["allowed"] < 1e-3 < found["moved"]


def test_the_clients_are_of_10_and_30_images_and_a_third_leaves() -> None:
    for scope, sizes in (("class", [10, 30]), ("client", [10, 30, 20])):
        row = Row("ft", scope, "sequential eager", "float64", model="cnn-tiny")
        with matrix.prepared(row):
            world = matrix.world(row, "cpu")
        assert [len(client.rows) for client in world.clients] == sizes


def test_the_truth_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("ft", "class", "batched graph", "float32", model="cnn-tiny")
    first = matrix.truth(row)
    monkeypatch.setattr(matrix, "models", None)
    again = matrix.truth(Row("ft", "class", "batched eager", "bf16", model="cnn-tiny"))
    assert first.keys() == again.keys() and all(torch.equal(t, again[n]) for n, t in first.items())
    assert all(t.dtype in (torch.float64, torch.int64) for t in first.values())


def test_a_row_that_is_off_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("ft", "class", "batched eager", "float64", model="cnn-tiny")
    right = matrix.truth(row)
    wrong = {n: t + (1e-8 if n == "θ/head.weight" or n == list(right)[-1] else 0) for n, t in right.items()}
    monkeypatch.setattr(matrix, "models", lambda row, device: wrong)
    found = matrix.compared(row, "cpu")
    assert not found["ok"] and found["worst"] == pytest.approx(1e-8, rel=1e-3)


def test_a_row_that_fell_back_to_uncompiled_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setitem(matrix.WAYS, "batched compiled", ("batched", True, refuse))
    found = matrix.compared(Row("ft", "class", "batched compiled", "float64", model="cnn-tiny"), "cpu")
    assert found["worst"] < 1e-9 and not found["ok"]
    assert "no compiler here" in found["said"][0]


def test_a_row_that_raises_is_a_failed_row_with_its_sentence() -> None:
    found = workers.attempted(Row("fcu", "class", "batched eager", "float64", model="cnn-tiny"), "cpu")
    assert not found["ok"] and found["failed"].startswith("UnfedError: FCU does not serve class-wise requests")


# --- many rows --------------------------------------------------------------------------------------------------------


class Told:
    """A worker that says what it was told to."""

    answers: ClassVar[dict[str, dict[str, Any]]] = {}
    asked: ClassVar[list[str]] = []

    def __init__(self, device: str, seconds: float) -> None:
        pass

    def __call__(self, row: Row) -> dict[str, Any]:
        Told.asked.append(row.name)
        return {"worst": 0.0, "allowed": 1e-9, "seconds": 1.0, "ok": True} | Told.answers.get(row.name, {})

    def close(self) -> None:
        pass


def test_rows_are_written_when_done_and_only_those_that_held_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = matrix.full()[:5]
    Told.answers, Told.asked = {rows[1].name: {"ok": False, "failed": "RuntimeError: CUDA error"}}, []
    monkeypatch.setattr(workers, "Worker", Told)
    monkeypatch.setattr("workload.RECORDS", tmp_path)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    found = workers.run(rows, "cpu", 2, None)
    assert sorted(Told.asked) == sorted(row.name for row in rows) == sorted(row["name"] for row in found)
    (record,) = tmp_path.glob("*-matrix-cpu.jsonl")
    assert (tmp_path / "out" / record.name).read_text() == record.read_text()
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(lines) == 5 and {"method", "scope", "way", "precision", "model", "poison", "partition"} <= set(lines[0])
    assert workers.done("cpu", tmp_path) == {row.name for row in rows} - {rows[1].name}
    assert workers.done("cuda", tmp_path) == set()
    assert "CUDA error" in workers.summary(found)


def test_after_the_limit_no_row_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Told.answers, Told.asked = {}, []
    monkeypatch.setattr(workers, "Worker", Told)
    monkeypatch.setattr("workload.RECORDS", tmp_path)
    monkeypatch.delenv("OUT", raising=False)
    assert workers.run(matrix.full()[:5], "cpu", 2, -1.0) == [] == Told.asked


SERVER = """
import json, sys
for line in sys.stdin:
    while line.startswith("mode"):
        pass
    assert not line.startswith("pgd"), "out of order"
    print(json.dumps({"ok": True, "asked": line.strip()}), flush=True)
"""


def test_a_worker_that_dies_or_takes_too_long_costs_its_row_and_not_the_next() -> None:
    fine, deadly, endless = (Row(name, "client", "batched eager", "float64") for name in ("ft", "pgd", "mode"))
    command = [sys.executable, "-c", SERVER]
    patient, hasty = workers.Worker("cpu", command=command), workers.Worker("cpu", 0.01, command)
    try:
        died = patient(deadly)
        assert not died["ok"] and died["failed"] == "the process ended with 1: AssertionError: out of order"
        assert patient(fine) == {"ok": True, "asked": fine.name}
        late = hasty(endless)
        assert not late["ok"] and late["failed"] == "took longer than 0 s"
        hasty.seconds = 300.0
        assert hasty(fine)["ok"]
    finally:
        patient.close()
        hasty.close()
