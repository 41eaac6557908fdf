"""Ablations go on where they were stopped, and the CSV and the page hold what the records hold."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import ablation_tables as tables
import ablations
from unfed import plugins

PERTURBED = {
    "set to zero": "zero",
    "outputs in a random order": "sealed permute",
    "drawn again": "reinit",
    "mixed at random": "orthogonal",
    "faded (as in Sealed)": "sealed fade",
    "negated (NoT)": "negate",
    "noise added": "noise",
    "nothing (FT)": "none",
}
"""A line of the page's table → the perturbation of the first layer."""


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


def test_every_part_of_the_first_perturbations_comes_before_the_others_and_a_broken_cell_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is cut short has what matters."""

    def found() -> dict[str, Any]:
        return {"gap": 1.0, "back": 2}

    def breaks() -> dict[str, Any]:
        raise RuntimeError("no kernel image")

    def cells(bench: Any, hows: tuple[str, ...]) -> Iterator[Any]:
        yield {"layer": "-", "how": "none"}, found
        for how in hows:
            yield {"layer": "conv1.weight", "how": how}, breaks if how == "zero" else found

    for part in ("layers", "undo"):
        monkeypatch.setitem(ablations.PARTS, part, cells)
    monkeypatch.setattr(ablations.Bench, "before", {"test": 90.0})
    monkeypatch.setattr(ablations.Bench, "reference", {"test": 91.0})
    record = tmp_path / "record.jsonl"
    words = ["--networks", "cnn", "--record", str(record), "--part", "layers,undo", "--hows", "negate;zero,reinit"]
    assert ablations.main(words) == 1
    assert [(row["part"], row["how"]) for row in ablations.read(record)] == [
        ("layers", "none"), ("layers", "negate"), ("undo", "none"), ("undo", "negate"), ("layers", "reinit"),
        ("undo", "reinit"),
    ]  # fmt: skip
    assert "broken: cnn 0 layers conv1.weight zero" in (told := capsys.readouterr().err) and "no kernel image" in told


def test_every_layer_has_one_perturbation_before_any_has_the_next() -> None:
    bench = ablations.Bench("mlp", 0)
    with plugins.allow_code():
        told = [(about["layer"], about["how"]) for about, _ in ablations.layers(bench, ("negate", "reinit"))]
    assert told == [("-", "none"), *(((f"{i}.weight"), how) for how in ("negate", "reinit") for i in (1, 3, 5))]


def test_a_convolution_and_its_norm_are_the_identity() -> None:
    lines = ablations.read(ablations.RECORD)
    found = {(r["network"], r["seed"], r["part"], r["layer"], r["how"]): r for r in lines}
    pairs = [key for key in found if key[3] == "convolution and its norm"]
    assert {network for network, *_ in pairs} == {"cnn", "resnet-tiny"} and len({seed for _, seed, *_ in pairs}) > 1
    for network, seed, *_ in pairs:
        both = found[network, seed, "sets", "convolution and its norm", "negate"]
        plain = found[network, seed, "sets", "-", "none"]
        assert both["gap"] == pytest.approx(plain["gap"], abs=0.05) and both["curve"] == plain["curve"]


def test_the_csv_is_what_the_records_say_and_the_page_says_what_the_csv_says() -> None:
    """`python benchmarks/ablation_tables.py` writes it again."""
    assert tables.FILE.read_text(encoding="utf-8") == tables.text()
    rows = list(csv.DictReader(tables.FILE.open(encoding="utf-8")))
    page = (tables.PICTURES / "findings.md").read_text(encoding="utf-8")

    def of(column: str, data: str, part: str, layer: str, how: str, network: str = "cnn") -> float:
        where = {"data": data, "network": network, "part": part, "layer": layer, "perturbation": how}
        (found,) = (row for row in rows if where.items() <= row.items())
        return float(found[column])

    for name, how in PERTURBED.items():
        layer = "-" if how == "none" else "first"
        gap, left, fitted = (of(c, "cifar10", "undo", layer, how) for c in ("gap", "backdoor", "realigned: backdoor"))
        assert f"| {name} | {gap:.1f} | {left:.0f} | {fitted:.0f} |" in page
    alone = [row for row in rows if row["data"] == "digits" and row["part"] == "layers"]
    networks = dict.fromkeys(row["network"] for row in alone)
    assert len(networks) == 8
    for how, words in {"reinit": "drawn again", "negate": "negated"}.items():
        first = [next(r for r in alone if r["network"] == n and r["perturbation"] == how) for n in networks]
        assert f"{mean(float(row['gap']) for row in first):.1f} points {words}" in page
    flipped = [of("flipped: backdoor", "digits", "undo", "first", "negate", n) for n in ("cnn", "mlp")]
    assert f"on {flipped[0]:.0f} % (CNN) and {flipped[1]:.0f} % (MLP)" in page
    for picture in re.findall(r"\((ablations-\S+\.svg)\)", page):
        assert (tables.PICTURES / picture).exists(), picture


def test_several_seeds_are_a_mean_and_a_spread_and_the_median_of_the_rounds() -> None:
    def row(gap: float | None, back: int | None, **more: Any) -> dict[str, Any]:
        return {"gap": gap, "back": back, **more}

    def told(*rows: dict[str, Any]) -> tuple[Any, ...]:
        found = tables.cell(rows)
        return tuple(found[name] for name in ("gap", "± gap", "back", "survived", "seeds"))

    assert told(row(1.0, 4)) == (1.0, "", "4", 1, 1)
    assert told(row(1.0, 4), row(2.0, 6), row(3.0, None)) == (2.0, 1.0, "6", 3, 3)
    assert told(row(1.0, None), row(3.0, None), row(None, None)) == (2.0, 1.414, "", 2, 3), "one did not survive"
    assert told(row(None, None)) == ("", "", "", 0, 1)
    undo = {"flip": {"backdoor": 70.0, "test": 71.0}, "realign": {"backdoor": 60.0}}
    found = tables.cell([row(1.0, 4, numbers={"backdoor": 5.0}, undo=undo)])
    assert (found["backdoor"], found["realigned: backdoor"]) == (5.0, 60.0)
    assert (found["flipped: backdoor"], found["flipped: test"]) == (70.0, 71.0)


def test_theta_and_retrain_of_every_network_stand_among_the_cells() -> None:
    seen = {"before": {"test": 97.0}, "retrain": {"test": 96.0}, "gap": 1.0, "back": 2, "numbers": {"test": 95.0}}
    lines = [{"network": "cnn", "part": "layers", "layer": "-", "how": "none", "seed": seed, **seen} for seed in (0, 1)]
    rows = tables.table(lines, "digits")
    assert [(r["perturbation"], r["test"], r["gap"], r["survived"]) for r in rows] == [
        ("none", 95.0, 1.0, 2), ("before", 97.0, "", 2), ("retrain", 96.0, "", 2)
    ]  # fmt: skip


def test_the_same_cells_are_made_of_cifar_10_on_a_gpu_in_half_precision() -> None:
    bench = ablations.Bench("cnn", 3, setting=ablations.SETTINGS["cifar10"])
    config = bench.scene.config
    assert (config.data.name, config.model.name, config.device, config.engine.precision) == (
        "cifar10", "cnn", "cuda", "bf16"
    )  # fmt: skip
    assert (config.training.rounds, config.unlearning.rounds, config.seed) == (300, 60, 3)
    assert config.poison is not None and config.poison.client == "0"
