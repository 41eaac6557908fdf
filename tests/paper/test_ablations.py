"""Ablations go on where they were stopped, and the page shows what the records hold."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import ablation_tables as tables
import ablations
import ablations_page
from unfed import plugins


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


def test_a_convolution_and_its_norm_are_the_identity_and_the_page_says_what_the_records_say() -> None:
    lines = ablations.read(ablations.RECORD)
    found = {(r["network"], r["seed"], r["part"], r["layer"], r["how"]): r for r in lines}
    pairs = [key for key in found if key[3] == "convolution and its norm"]
    assert {network for network, *_ in pairs} == {"cnn", "resnet-tiny"} and len({seed for _, seed, *_ in pairs}) > 1
    for network, seed, *_ in pairs:
        both = found[network, seed, "sets", "convolution and its norm", "negate"]
        plain = found[network, seed, "sets", "-", "none"]
        assert both["gap"] == pytest.approx(plain["gap"], abs=0.05) and both["curve"] == plain["curve"]
    assert ablations_page.main(["--check"]) == 0
    page = ablations_page.PAGE.read_text(encoding="utf-8")
    assert ablations_page.filled(page, lines[:200], []) != page
    for picture in re.findall(r"\((ablations-\S+\.svg)\)", page):
        assert (ablations_page.PAGE.parent / picture).exists(), picture


def test_several_seeds_are_a_mean_and_a_spread_and_the_median_of_the_rounds() -> None:
    def row(gap: float | None, back: int | None) -> dict[str, Any]:
        return {"gap": gap, "back": back}

    assert tables.cell([row(1.0, 4)]) == "1.0 (4)"
    assert tables.cell([row(1.0, 4), row(2.0, 6), row(3.0, None)]) == "2.0 ± 1.0 (6)"
    assert tables.cell([row(1.0, None), row(3.0, None), row(None, None)]) == "2.0 ± 1.4 (–), 1 of 3 did not survive"
    assert tables.cell([row(None, None)]) == "did not survive" and tables.cell(None) == ""
    assert tables.cell([row(1.0, 4), row(2.0, 6)], seeds=3) == "1.5 ± 0.7 (5), n = 2", "it says how many there are"
    assert tables.cell([row(None, None)], seeds=3) == "did not survive, n = 1"


def test_every_table_says_of_how_many_seeds_it_is_and_which_rows_have_fewer() -> None:
    def line(part: str, layer: str, how: str, seed: int, backdoor: float) -> dict[str, Any]:
        undo = {"flip": {"backdoor": backdoor, "test": 71.0}, "realign": {"backdoor": backdoor}}
        numbers = {"test": 90.0, "backdoor": backdoor}
        whole = {"gap": 1.0, "back": 2, "numbers": numbers, "undo": undo}
        return {"network": "cnn", "part": part, "layer": layer, "how": how, "seed": seed, **whole}

    lines = [line("undo", "first", "negate", 0, 60.0), line("undo", "first", "negate", 1, 80.0)]
    lines += [line("undo", "first", "zero", 0, 5.0), line("little", "5% of the rows", "ft", 0, 5.0)]
    undo = "\n".join(tables.undo_section(lines))
    assert "cnn, 2 seeds:" in undo and "| first, negate | 1.0 ± 0.0 (2) | 70 ± 14 | 70 ± 14 (71) | 70 ± 14 |" in undo
    assert "| first, zero, n = 1 | 1.0 (2) | 5 | 5 (71) | 5 |" in undo
    little = "\n".join(tables.little_section(lines))
    assert "cnn, 1 seed:" in little and "1.0 · 90.0 · 5 |" in little


def test_the_same_cells_are_made_of_cifar_10_on_a_gpu_in_half_precision() -> None:
    bench = ablations.Bench("cnn", 3, setting=ablations.SETTINGS["cifar10"])
    config = bench.scene.config
    assert (config.data.name, config.model.name, config.device, config.engine.precision) == (
        "cifar10", "cnn", "cuda", "bf16"
    )  # fmt: skip
    assert (config.training.rounds, config.unlearning.rounds, config.seed) == (300, 60, 3)
    assert config.poison is not None and config.poison.client == "0"
