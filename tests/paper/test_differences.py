"""Where we differ from the paper: the tables that are made of what was tried."""

import argparse
import json
import runpy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import paper_analyses as analyses
import paper_record as record

import block_seconds
import differences
import differences_kept
from unfed.config import revisions
from unfed.paper.items import items, published
from unfed.paper.views import printed, results
from unfed.paper.views.printed import where
from unfed.report import rules

METHODS = ("before", "retrain", "not", "ft", "mode", "fcu")


def test_variants_that_learn_at_other_speeds_are_compared_at_the_same_retain() -> None:
    curve = [{"retain": 60.0, "test": 58.0}, {"retain": 75.0, "test": 70.0}, {"retain": 85.0, "test": 76.0}]
    assert differences.test_at(curve, 80.0) == pytest.approx(73.0)
    assert differences.test_at(curve, 90.0) is None


def test_the_record_becomes_a_table_and_what_was_not_measured_a_dash(tmp_path: Path) -> None:
    last = {"retain": 90.0, "forget": 81.0, "test": 80.0, "mia": "not measured: off"}
    row = {"variant": "no flip", "rounds": 600, "curve": [last], "retain_all_rows": 88.0, "retain_augmented": 89.5}
    (tmp_path / "record.jsonl").write_text(json.dumps(row) + "\n")
    made = differences.table([tmp_path / "record.jsonl"])
    assert "| no flip | 600 | 90.00 | 81.00 | 80.00 | – | 88.00 | 89.50 | – |" in made


def test_records_of_several_days_are_one_table_the_short_runs_first(tmp_path: Path) -> None:
    last = {"retain": 90.0, "forget": 81.0, "test": 80.0, "mia": 50.0}
    told = [("a", "no flip", 600), ("b", "as the preset", 4000), ("c", "as the preset", 600)]
    for name, variant, rounds in told:
        row = {"variant": variant, "rounds": rounds, "curve": [last], "retain_all_rows": 88.0, "retain_augmented": 1.0}
        (tmp_path / name).write_text(json.dumps(row) + "\n")
    rows = differences.table([tmp_path / name for name, *_ in told]).splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| as the preset", "600"], ["| no flip", "600"], ["| as the preset", "4,000"]
    ]  # fmt: skip


def test_retain_over_all_rows_counts_the_fifth_that_nobody_trained_on() -> None:
    root = Path(differences.__file__).resolve().parent.parent
    (path,) = (root / "results").glob("cifar10-cnn-434b*.json")
    rows = {row.split(" | ")[0]: row.split(" | ")[1:] for row in differences.rows_table(path).splitlines()[2:]}
    assert len(rows) == 8
    ends = [columns for job, columns in record.read(path).jobs.items() if job.endswith("/retrain")]
    train, val = (sum(end[name][-1] for end in ends) / len(ends) for name in ("retain", "validation"))
    assert rows["| Retrain"][:2] == [f"{train:.2f}", f"{0.8 * train + 0.2 * val:.2f}"]
    said = after("Where we differ from the paper, and why")
    for name, start in (("Retrain", "Retrain has "), ("FT", "FT "), ("NoT", "NoT ")):
        own, paper = rows[f"| {name}"][1:3]
        assert f"{start}{own} ({'paper ' if name == 'Retrain' else ''}{paper})" in said
    for name, start in (("FedEraser", "FedEraser stays "), ("FUKD", "FUKD ")):
        own, paper = (float(value) for value in rows[f"| {name}"][1:3])
        assert f"{start}{own - paper:.1f}" in said


def test_read_over_all_rows_retain_gets_the_verdicts_that_the_page_says() -> None:
    """The fifth that nobody trained on makes three of them kinder, and hardly moves a gap."""
    (path,) = (differences_kept.PAGE.parents[2] / "results").glob("cifar10-cnn-434b*.json")
    lines = [line for line in record.read(path).lines() if not line["method"].endswith("-cycle")]
    every = list[Any]()
    for line in lines:
        own, held = float(line["retain"]), float(line["validation"])
        every.append({**line, "retain": 0.8 * own + 0.2 * held})

    def judged(lines: list[Any]) -> tuple[dict[str, Any], dict[str, float]]:
        found = [replace(row, request="CIFAR-10, CNN") for row in rules.rows(lines, "best-gap")]
        merged = printed.merged(items()["table-1"], found)
        assert merged is not None
        gaps = {
            row.method: float(str(row.average_gap.mean)) for row in found if not (row.is_before or row.is_reference)
        }
        return {key.rpartition(", ")[2]: cells["retain"]["verdict"] for key, cells in merged[1].items()}, gaps

    (words, gaps), (kinder, near) = judged(lines), judged(every)
    changed = {name: (words[name], kinder[name]) for name in words if words[name] != kinder[name]}
    assert changed == dict.fromkeys(("FT", "PGD", "FCU"), ("direction", "within")) and kinder["Retrain"] == "disagrees"
    assert sorted(gaps, key=lambda name: gaps[name]) == sorted(near, key=lambda name: near[name])
    moved = {name: abs(gaps[name] - near[name]) for name in gaps}
    assert moved.pop("fukd") == pytest.approx(0.28, abs=0.01) and max(moved.values()) < 0.1


def test_what_the_page_says_of_vit_is_what_was_kept() -> None:
    said, folder = after("ViT on Caltech-101"), differences_kept.PAGE.parents[2] / "results"
    jobs = record.read(folder / "caltech101-vit-86392d2baa10.json").jobs
    end = {
        name: {m: jobs[f"0/client-0-leaves/{name}"][m][-1] for m in ("retain", "forget", "test")} for name in METHODS
    }
    assert f"Retrain's Retain\nis {end['retrain']['retain']:.1f} (paper" in said
    assert f"it is right on {end['before']['forget']:.1f} % of the leaver's rows" in said
    fcu, fresh = (jobs[f"0/client-0-leaves/{name}"] for name in ("fcu", "retrain"))
    assert f"right on {fcu['retain'][0]:.1f} % of the retained rows" in said
    reached = fresh["test"][fresh["round"].index(60)]
    assert f"60 rounds bring Test to {fcu['test'][-1]:.1f} (a fresh model: {reached:.1f})." in said
    for name in ("86392d2baa10", "7f79d99d33a5", "6326c8c55c55"):
        rows = {
            row.method: row
            for row in rules.rows(record.read(folder / f"caltech101-vit-{name}.json").lines(), "best-gap")
        }
        assert rows["not"].rounds == (60,), "its best round is its last"


def test_what_the_page_says_of_resnet_18_is_what_was_kept() -> None:
    (path,) = (differences_kept.PAGE.parents[2] / "results").glob("cifar10-resnet18-*.json")
    said, kept = after("ResNet-18 on CIFAR-10"), record.read(path)

    def at(method: str, metric: str, *rounds: int) -> list[float]:
        own = kept.jobs[f"0/client-0-leaves/{method}"]
        return [own[metric][own["round"].index(number)] for number in rounds]

    rows = {row.method: row for row in rules.rows(kept.lines(), "best-gap")}
    gaps = {name: f"{float(str(row.average_gap.mean)):.2f}" for name, row in rows.items()}
    ours = (
        f"NoT {gaps['not']}, FT {gaps['ft']}, Sealed {gaps['sealed']}, FCU {gaps['fcu']}, θ\\* itself {gaps['before']}"
    )
    assert ours in said
    theirs = {row["method"]: row["avg_gap"] for row in published("T1") if where(row) == "CIFAR-10, ResNet-18"}
    assert f"(paper: NoT {theirs['NoT']}, FT {theirs['FT']}, FCU {theirs['FCU']})" in said
    share = float(str(rows["not"].costs["comm_bytes"].mean)) / float(str(rows["retrain"].costs["comm_bytes"].mean))
    assert f"in {share:.2f} of Retrain's bytes" in said
    (low, high), (reached,) = at("retrain", "retain", 40, 50), at("sealed", "retain", 35)
    assert f"where Retrain stands after about {40 + 10 * (reached - low) / (high - low):.0f}." in said
    assert f"after 35 rounds Test is {at('fcu', 'test', 35)[0]:.1f}, where a fresh model has" in said
    assert f"{at('retrain', 'test', 10)[0]:.1f} after ten" in said
    sealed = (differences_kept.PAGE.parents[2] / "benchmarks/records/2026-11-17-lasting.md").read_text(encoding="utf-8")
    reached, late = at("sealed", "test", 30, 35)
    assert f"Sealed has {reached:.1f} in round 30 and {late:.1f} in its last, 35" in sealed
    (start,) = at("before", "test", 0)
    assert f"in round 60 (Test {at('retrain', 'test', 60)[0]:.1f}, θ* {start:.1f})" in sealed
    assert at("retrain", "test", 50)[0] < start - 2 < at("retrain", "test", 60)[0] and reached < start - 2


SCORES = ("retain", "forget", "test")
PAGES = Path(differences.__file__).parent / "records"


def test_what_the_page_says_of_table_6_is_what_was_kept() -> None:
    (path,) = (differences_kept.PAGE.parents[2] / "results").glob("central-cifar10-*.json")
    said, kept = after("ResNet-18 on CIFAR-10"), record.read(path)
    names = {"randl": "RandL", "ft": "FT", "not": "NoT", "salun": "SalUn", "badt": "BadT"}
    names |= {"l1-sparse": "ℓ1-sparse", "ga": "GA", "ssd": "SSD"}
    gaps = {row.method: float(str(row.average_gap.mean)) for row in rules.rows(kept.lines(), "best-gap")}
    theirs = {row["method"].replace("l1", "ℓ1"): row["avg_gap"] for row in published("T6")}
    ours = ", ".join(f"{shown} {gaps[name]:.2f}" for name, shown in names.items())
    assert f"`best-gap`: {ours} (paper: {', '.join(theirs[shown] for shown in names.values())})" in said
    ends = {name: kept.jobs[f"0/random-tenth/{name}"]["retain"][-1] for name in names}
    assert f"NoT, which ends at Retain {ends.pop('not'):.1f}, and for ℓ1-sparse ({ends.pop('l1-sparse'):.1f})" in said
    assert f"GA ends at Retain {ends.pop('ga'):.1f}" in said
    assert f"at chance, Retain {ends.pop('ssd'):.1f}" in said and min(ends.values()) > 95
    limits = (PAGES / "2026-11-19-ga-limit-cpu.md").read_text("utf-8")
    tested = [line.strip(" |").split(" | ")[-1] for line in limits.splitlines() if line.startswith("| ")][1:]
    assert f"Test is {tested[0]} before, {tested[4]} after ascent" in said and f"and {tested[6]} if the" in said
    small = (PAGES / "2026-11-19-ssd-alpha-cpu.md").read_text("utf-8")
    rows = {line.split(" | ")[0].strip("| "): line.strip(" |").split(" | ") for line in small.splitlines()}
    test = {name: float(row[3]) for name, row in rows.items() if len(row) == 4 and name.startswith(("before", "α"))}
    before, chance, still = test.values()
    assert f"(Test {before:.1f} before, {chance:.1f} after)" in said and f"and Test stays {still:.1f}" in said
    assert "30.8 % for α = 0.5" in small and "weakens 31 % of its weights" in said and still == before
    starts = [kept.jobs[f"0/random-tenth/{name}"] for name in ("ft", "randl", "badt")]  # one of each θ*
    apart = [max(one[name][0] for one in starts) - min(one[name][0] for one in starts) for name in SCORES]
    assert 0.2 < max(apart) < 0.4 and "end within 0.4 points" in said


def test_fcus_rates_on_the_page_are_those_of_the_readings() -> None:
    text = (Path(differences.__file__).parent / "records" / "2026-11-16-fcu-vit-readings.md").read_text("utf-8")
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in text.splitlines() if line.startswith("| ")}
    test = {name: float(rows[name][2].split(" / ")[2]) for name in ("lr-0.08", "lr-1e-3")}
    assert f"is {test['lr-0.08']:.1f} at rate 0.08, {test['lr-1e-3']:.1f} at 0.001" in after("ViT on Caltech-101")


def test_how_much_of_a_model_is_left_counts_its_parameters_and_not_how_many_batches_it_saw(tmp_path: Path) -> None:
    found = runpy.run_path(str(Path(differences.__file__).parent / "readings" / "table.py"))
    for name, weight, batches in (("train", [3.0, 4.0], 630), ("c/ft", [4.0, 3.0], 945)):
        path = tmp_path / "models" / "0" / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        told = {"w": torch.tensor(weight), "bn.num_batches_tracked": torch.tensor(batches)}
        save_file(told, path)
    assert found["_left"](tmp_path, 0, "c", "ft") == "0.960 | 0.283"


SHORT = ["--preset", "digits-cnn", "--rounds", "1", "--every", "1"]


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("workload.RECORDS", tmp_path / "records")
    monkeypatch.setenv("OUT", str(tmp_path / "records" / "out"))
    (tmp_path / "records" / "out").mkdir(parents=True)
    return tmp_path / "records"


def lines(folder: Path, record: str = "differences") -> list[dict[str, Any]]:
    (path,) = folder.glob(f"*-{record}-cpu.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_variants_side_by_side_leave_the_lines_of_one_after_another_and_one_that_fails_costs_no_other(
    records: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {name: differences.VARIANTS[name] for name in ("as the preset", differences.KEPT)}
    given = argparse.Namespace(preset="digits-cnn", device="cpu", precision="float32", root=None, rounds=1, every=1)
    truth = {name: differences.row_of(given, name) for name in chosen}
    short, kept = chosen
    monkeypatch.setattr(differences, "VARIANTS", {short: (), "made up": (), kept: ()})
    assert differences.main([*SHORT, "--beside", "3", "--long", f"{short}=2"]) == 1
    assert "made up, 1 rounds: failed: its process ended with 2" in capsys.readouterr().out
    made = lines(records)
    assert [row["variant"] for row in made] == [short, kept], "whoever was done first"
    assert made == lines(records / "out")
    for row in made:
        assert {name: row[name] for name in truth[short] if name != "seconds"} == {
            name: value for name, value in truth[row["variant"]].items() if name != "seconds"
        }
    ((long,),) = [lines(records, "differences-long")]
    assert (long["rounds"], long["curve"][-1]["round"]) == (2, 2) and long["curve"][0] == made[0]["curve"][0]


def test_what_a_record_has_is_not_tried_again_and_what_comes_late_takes_its_place_in_it(
    records: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = [*differences.VARIANTS][:3]
    asked: list[str] = []

    def answered(wanted: Sequence[differences.Asked], *rest: object) -> Iterator[tuple[Any, Any, str]]:
        asked.extend(one.variant for one in wanted)
        for one in wanted:
            row = {"variant": one.variant, "preset": "digits-cnn", "rounds": one.rounds, "curve": [{}]}
            yield (one, None, "not tried, the budget is spent") if one.variant == spent else (one, row, "")

    monkeypatch.setattr(differences, "side_by_side", answered)
    command = [*SHORT, "--variants", "3", "--after", str(records)]
    spent = first
    assert differences.main(command) == 0, "a budget that is spent is no failure"
    assert "the budget is spent" in capsys.readouterr().out
    assert [row["variant"] for row in lines(records)] == [second, third]
    spent = ""
    assert differences.main(command) == 0 and asked == [first, second, third, first]
    assert [row["variant"] for row in lines(records)] == [first, second, third]
    assert differences.main(command) == 0 and len(asked) == 4
    assert differences.main([*command, "--rounds", "3"]) == 0 and len(asked) == 7, "of other rounds it has none"


def test_no_variant_begins_once_the_budget_is_spent_and_a_sentence_of_a_process_is_passed_on(
    capfd: pytest.CaptureFixture[str], records: Path
) -> None:
    assert differences.main([*SHORT, "--variants", "2", "--budget", "-1"]) == 0
    said = capfd.readouterr().out
    assert said.count("not tried, the budget is spent") == 2 and not [*records.glob("*.jsonl")]
    assert differences.main([*SHORT, "--variants", "1", "--precision", "half"]) == 1
    assert "as the preset, 1 rounds: failed: UnfedError: " in capfd.readouterr().out
    with pytest.raises(SystemExit):
        differences.main([*SHORT, "--beside", "0"])
    assert "at least 1" in capfd.readouterr().err
    for told in ("no flap=3", "no flip", "no flip=0"):
        with pytest.raises(SystemExit):
            differences.main([*SHORT, "--long", told])
        assert f"'{told}' is no variant and its rounds" in capfd.readouterr().err


def test_a_reading_stands_above_what_was_kept_of_other_methods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = (differences_kept.PAGE.parents[2] / "results").glob("cifar10-cnn-434b*.json")
    made = {"seed": 0, "request": "client-0-leaves", "method": "half", "mia": 50.0}
    rows = [made | {"round": r, "retain": 80.0 + r / 100, "forget": 70.0, "test": 71.0} for r in (0, 500, 999)]
    (tmp_path / "trajectory.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["table.py", str(tmp_path), "--at", "500,1500", "--kept", str(path), "--of", "retrain"]
    monkeypatch.setattr(sys, "argv", command)
    runpy.run_path(str(Path(differences.__file__).parent / "readings" / "table.py"), run_name="__main__")
    own, earlier = capsys.readouterr().out.splitlines()[2:]
    assert own == "| half | 85.00 / 70.00 / 71.00 | — | 999: 89.99 / 70.00 / 71.00 | 50.00 | — | — |"
    column = record.read(path).jobs["0/client-0-leaves/retrain"]

    def scores(round: int) -> str:
        return " / ".join(f"{column[name][column['round'].index(round)]:.2f}" for name in ("retain", "forget", "test"))

    assert earlier == (
        f"| retrain | {scores(500)} | {scores(1500)} | 2000: {scores(2000)} | {column['mia'][-1]:.2f} | — | — |"
    )


def kept() -> differences_kept.Kept:
    (path,) = (differences_kept.PAGE.parents[2] / "results").glob("cifar10-cnn-434b*.json")
    return differences_kept.Kept(path)


def test_the_table_of_the_page_is_what_the_kept_results_give() -> None:
    page = differences_kept.PAGE.read_text(encoding="utf-8")
    assert differences_kept.parts_table(kept()) in page, "run `benchmarks/differences_kept.py … --write`"
    assert differences_kept.filled(page, kept()) == page


def test_a_page_without_a_place_for_a_table_is_said() -> None:
    with pytest.raises(SystemExit, match="no place for a table; put .*: parts -->"):
        differences_kept.filled("# Page\n", kept())


def test_federaser_stands_where_retrain_stands_after_as_many_rounds() -> None:
    found = kept()
    line = next(row for row in differences_kept.disguise_table(found).splitlines() if row.startswith("| FedEraser |"))
    ours, theirs = found.methods["federaser"], found.methods["retrain"]
    at = [(differences_kept.at(ours, r), differences_kept.at(theirs, r)) for r in differences_kept.ALONG]
    by_hand = [sum(abs(a[m] - b[m]) for m in ("retain", "forget", "test", "mia")) / 4 for a, b in at]
    assert line == "| FedEraser | " + " | ".join(f"{value:.2f}" for value in by_hand) + " |"
    assert max(by_hand) < 0.2, "a Retrain by another way"
    assert f"after as many rounds never exceeds {max(by_hand):.2f}." in differences_kept.PAGE.read_text(
        encoding="utf-8"
    )


def test_the_papers_price_is_a_round_of_ours() -> None:
    found = kept()
    assert found.share("not") == pytest.approx(7.09e9 / 1.35e10)
    assert "| NoT | 0.29 | 0.53 | " in differences_kept.price_table(found)
    assert found.equals("not", 0.29) is None and found.equals("federaser", 1.58) == 840


def test_the_seconds_of_a_block_are_those_of_its_jobs() -> None:
    root = differences_kept.PAGE.parents[2]
    (path,) = (root / "results").glob("cifar10-cnn-434b*.json")
    made = block_seconds.table(path, 2)
    by_hand = sum(
        c["seconds"][-1] for job, c in record.read(path).jobs.items() if job.startswith("2/") and len(c["round"]) > 1
    )
    assert f"| together | {by_hand:.0f} |" in made


@pytest.mark.parametrize("table, kept", [("1", "86392d2baa10"), ("3", "7f79d99d33a5"), ("5", "6326c8c55c55")])
def test_the_gaps_of_vit_on_the_page_are_the_papers_and_those_that_were_kept(table: str, kept: str) -> None:
    results = differences_kept.PAGE.parents[2] / "results"
    found = record.read(results / f"caltech101-vit-{kept}.json")
    ours = {row.method: row.average_gap.mean for row in rules.rows(record.current(found).lines(), "best-gap")}
    old = {job.rpartition("/")[2]: "outdated" for job in found.jobs.keys() - record.current(found).jobs.keys()}
    assert old == ({"sealed": "outdated"} if table == "3" else {}), "it was run before the head was drawn for a class"
    paper = {row["method"]: row["avg_gap"] for row in published(f"T{table}") if row["model"] == "ViT"}
    page = after("ViT on Caltech-101")
    printed = [paper["NoT"], paper["FT"], "", paper["MoDE"], paper.get("FCU", "")]
    assert "| ".join([f"| Table {table}, paper ", *(f"{gap} " if gap else "" for gap in printed), ""]).strip() in page
    absent = "not run" if "FCU" in paper else ""
    told = [
        f"{ours[name]:.2f}" if name in ours else old.get(name, absent)
        for name in ("not", "ft", "sealed", "mode", "fcu")
    ]
    assert "| ".join([f"| Table {table}, ours ", *(f"{gap} " if gap else "" for gap in told), ""]).strip() in page


def test_what_the_page_says_of_vit_and_a_class_is_what_was_kept() -> None:
    page, folder = after("ViT on Caltech-101"), differences_kept.PAGE.parents[2] / "results"
    kept = record.read(folder / "caltech101-vit-7f79d99d33a5.json")
    own = {row.method: row for row in rules.rows(kept.lines(), "best-gap")}["not"]
    assert f"comes from MIA, which is {own.gaps['mia'].mean:.1f} points off." in page
    (paper,) = (row["forget"] for row in published("T3") if row["method"] == "NoT")
    assert f"({float(str(own.metrics['forget'].mean)):.1f} % right, paper {paper})" in page


def after(heading: str) -> str:
    """A section of the page."""
    page: str = differences_kept.PAGE.read_text(encoding="utf-8")
    return page.partition(f"# {heading}\n")[2].partition("\n## ")[0]


def runs_of(*keys: str) -> list[record.KeptResults]:
    folder = differences_kept.PAGE.parents[2] / "results"
    return [record.read(folder / f"cifar10-cnn-{key}.json") for key in keys]


def test_what_the_page_says_of_the_analysed_models_is_what_was_kept() -> None:
    said, folder = after("What the figures say"), differences_kept.PAGE.parents[2] / "results"
    looked = {kept.item: kept.numbers for kept in analyses.all_in(folder)}
    ft, own = (looked["table-7"]["methods"][label] for label in ("ft", "not"))
    assert f"{ft['time'] / own['time']:.0f} times ({ft['time']:.2f} and {own['time']:.4f})" in said
    layers = looked["figure-3"]["layers"]
    old, near = layers["CKA"], layers["with Retrain"]
    head = {name: f"{old[f'{name}, last round']['head']:.3f}" for name in ("NoT", "Retrain", "FT")}
    assert f"with the original: NoT {head['NoT']}, Retrain {head['Retrain']}, FT {head['FT']}" in said
    beside = [f"{name} {near[f'{name}, last round']['head']:.3f}" for name in ("NoT", "FT")]
    assert f"with Retrain: {', '.join(beside)}" in said
    alpha = {name: values[0].split()[0] for name, values in looked["figure-8"]["alphas"].items()}
    assert f"{alpha['NoT']} for NoT, {alpha['FT']} for FT, {alpha['Retrain']} for Retrain" in said


def test_what_the_page_says_of_layers_and_perturbations_is_what_was_kept() -> None:
    said, (kept,) = after("What the figures say"), runs_of("4c6bda3c0ef2")
    gaps = {
        label: [(t, gap) for t, gap, _ in points if t] for label, points in results.gaps_by_round(kept.lines()).items()
    }
    best = {label: min(points, key=lambda point: point[1]) for label, points in gaps.items()}
    at = {label: dict(points)[100] for label, points in gaps.items()}
    assert f"{at['not']:.2f} after 100 rounds (conv2 {at['conv2']:.2f}, head {at['head']:.2f})" in said
    low = {label: f"{best[label][1]:.2f}" for label in ("not", "conv2", "head")}
    assert f"at best {low['not']} (conv2 {low['conv2']}, head {low['head']})" in said
    words = {"rotate": "rotate", "reinit": "reinit", "flip": "flip", "not": "negate", "zero": "zero", "noise": "noise"}
    assert sorted(words, key=lambda label: best[label][1]) == [*words], "nearest first"
    told = ", ".join(f"{word} {best[label][1]:.2f}" for label, word in words.items())
    assert f"at best {told}; FT {best['ft'][1]:.2f}" in said


def test_what_the_page_says_of_table_8_and_of_the_cost_ratio_is_what_was_kept() -> None:
    said, (kept,) = after("What the figures say"), runs_of("434b74396a95")
    row = {row.method: row for row in rules.rows(kept.lines(), "best-gap")}["nr-freeze"]
    told = {(where(one), one["method"]): one["avg_gap"] for one in published("T8")}
    paper = told["CIFAR-10, CNN", "NR-Freeze"]
    assert f"average gap {row.average_gap.mean:.2f} ± {row.average_gap.std:.2f} (paper {paper})" in said
    gaps = results.gaps_by_round(kept.lines())
    nearest = {label: min(gaps[label][1:], key=lambda point: point[1])[0] for label in ("ft", "not")}
    first, second = nearest["ft"], nearest["not"]
    assert f"{first / second:.1f} ({first} rounds and {second})" in said


def test_what_the_page_says_of_shares_is_what_was_kept() -> None:
    said, kept = after("What the figures say"), runs_of("434b74396a95", "4770cae06786", "3412eb604bc8")
    rows = [{row.method: row for row in rules.rows(one.lines(), "best-gap")} for one in kept]

    def told(method: str, cost: str = "", joined: str = ", ") -> str:
        shares = [f"{by[method].average_gap.mean:.2f}" for by in rows]
        if cost:
            shares = [f"{by[method].costs[cost].mean / by['retrain'].costs[cost].mean:.2f}" for by in rows]  # type: ignore[operator]
        return ", ".join(shares[:2]) + joined + shares[2]

    assert f"MoDE is nearer ({told('mode')}; NoT {told('not')})" in said
    assert f"at {told('mode', 'comm_bytes', ' and ')} of Retrain's bytes (NoT {told('not', 'comm_bytes')})" in said
    assert all(by["not"].average_gap.mean < by[m].average_gap.mean for by in rows for m in ("ft", "fcu"))  # type: ignore[operator]


def test_what_the_page_says_of_single_changes_is_what_was_tried() -> None:
    said = after("The training regime")
    found = sorted((differences_kept.PAGE.parents[2] / "benchmarks" / "records").glob("*-differences-*cuda.jsonl"))
    rows = [json.loads(line) for path in found for line in path.read_text().splitlines()]
    short = {row["variant"]: row for row in rows if row["rounds"] == 600}
    passed = {name: differences.test_at(row["curve"], 80.0) or 0.0 for name, row in short.items()}
    same = {name: value - passed["as the preset"] for name, value in passed.items()}
    assert f"Padded crops\nraise it by {same['pad-crop 4']:.1f}, but" in said
    assert f"Training on the validation rows\nraises it by {same['no validation rows']:.1f}." in said
    lower = ("no dropout", "no flip")
    assert all(-2.5 < same[name] < -1.5 for name in lower)
    assert all(abs(own) < 0.2 for name, own in same.items() if name not in (*lower, "pad-crop 4", "no validation rows"))
    assert set(same) == set(differences.VARIANTS) and len(same) == 12, "eleven changes, and none"


def test_what_the_page_says_of_long_retrains_is_what_was_tried() -> None:
    page = differences_kept.PAGE.read_text(encoding="utf-8")
    (path,) = (differences_kept.PAGE.parents[2] / "benchmarks" / "records").glob("*-differences-long-cuda.jsonl")
    long = {row["variant"]: {one["round"]: one for one in row["curve"]} for row in map(json.loads, path.open())}
    crops, all_rows, half = long["pad-crop 4"][2000], long["no validation rows"][2000], long["as the preset"][2000]
    below = differences.PAPER["retain"] - crops["retain"]
    assert f"end at Retain {crops['retain']:.2f} after 2,000 rounds, {below:.2f} below the paper's" in page
    assert f"Test {all_rows['test']:.2f} instead of {half['test']:.2f} (paper {differences.PAPER['test']})" in page
    assert f"4,000 instead of 2,000 rounds give {long['as the preset'][4000]['test']:.2f}" in page
    (kept,) = (differences_kept.PAGE.parents[2] / "results").glob("cifar10-cnn-434b*.json")
    end = fmean(own["test"][-1] for job, own in record.read(kept).jobs.items() if job.endswith("/not"))
    assert f"{end:.2f} after its last round" in page


def test_the_table_of_regimes_is_what_was_tried() -> None:
    root = differences_kept.PAGE.parents[2]
    folder = root / "benchmarks" / "records"
    lines = [line for path in folder.glob("*-regimes-long-cuda.jsonl") for line in path.read_text("utf-8").splitlines()]
    (kept,) = (root / "results").glob("cifar10-cnn-434b*.json")
    preset, expected = record.read(kept).jobs, dict[tuple[str, str], list[str]]()

    def three(values: Sequence[float], sign: str = "") -> str:
        return " / ".join(f"{value:{sign}.2f}" for value in values)

    def whole(ends: Sequence[Sequence[float]]) -> list[str]:
        return [
            three(ends[0]),
            *(three([a - b for a, b in zip(own, ends[0], strict=True)], "+") for own in ends[1:]),
        ]

    for row in map(json.loads, lines):
        last = row["curve"][-1]
        expected[row["variant"], f"{row['rounds']:,}"] = [
            three([last[n] for n in ("retain", "forget", "test")]),
            "",
            "",
        ]
    ends = [
        [preset[f"0/client-0-leaves/{method}"][n][-1] for n in ("retain", "forget", "test")]
        for method in ("retrain", "ft", "not")
    ]
    expected["the preset: rate 1e-3, dropout 0.5", "2,000"] = whole(ends)
    pooled = (folder / "2026-11-19-regimes-average-cuda.md").read_text("utf-8").partition("## Rate 1e-2")[0]
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in pooled.splitlines() if " | " in line}
    ends = [[float(value) for value in cells[method][9].split(" / ")] for method in ("retrain", "ft", "not")]
    expected["average pooling, rate 5e-3", "2,000"] = whole(ends)
    for line in (folder / "2026-11-17-regimes-full-cuda.md").read_text("utf-8").partition("## Means")[2].splitlines():
        own = [cell.rpartition(" / ")[0] for cell in line.split(" | ")[1:]]
        expected[line.split(" | ")[0].strip("| "), "1,200"] = own
    expected["the paper", "2,000"] = expected.pop(("the paper", "1,200"))
    said = [line.strip("| ").split(" | ") for line in after("The training regime").splitlines() if line[:2] == "| "]
    found = {(row[0], row[1]): [cell.strip(" |") for cell in [*row[2:], "", ""][:3]] for row in said[1:]}
    assert len(found) == 11 and {name: expected[name] for name in found} == found
    (near, far), paper = (
        (
            [[float(value) for value in found[name][place].split(" / ")] for place in (1, 2)]
            for name in (("average pooling, rate 5e-3", "2,000"), ("the paper", "2,000"))
        ),
        found["the paper", "2,000"],
    )
    assert paper[0] == "91.66 / 83.05 / 82.32"
    off = [abs(a - b) for ours, theirs in zip(near, far, strict=True) for a, b in zip(ours, theirs, strict=True)]
    assert [value > 1 for value in off] == [False, True, False, True, False, False]


def test_what_the_page_says_of_float32_is_what_was_run() -> None:
    folder = differences_kept.PAGE.parents[2] / "benchmarks" / "records"
    curves = [
        [{name: one[name] for name in ("round", "retain", "forget", "test")} for one in json.loads(line)["curve"]]
        for path in ("2026-11-17-differences-cuda.jsonl", "2026-11-19-float32-cuda.jsonl")
        for line in (folder / path).read_text(encoding="utf-8").splitlines()[:1]
    ]
    most = max(abs(one[name] - other[name]) for one, other in zip(*curves, strict=True) for name in one)
    assert f"never lie further than {most:.2f} points from" in after("The training regime")


def test_the_reading_of_federaser_that_was_run_is_what_the_page_says() -> None:
    page = differences_kept.PAGE.read_text(encoding="utf-8")
    (path,) = (differences_kept.PAGE.parents[2] / "benchmarks" / "records").glob("*-readings-federaser.md")
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[4:6] for row in path.read_text().splitlines()[2:]}

    def four(method: str) -> list[float]:
        return [float(value) for value in [*rows[method][0].partition(": ")[2].split(" / "), rows[method][1]]]

    half, whole = four("half"), four("retrain")
    gap = sum(abs(a - b) for a, b in zip(half, whole, strict=True)) / 4
    assert f"every second round gives {gap:.2f} with Retain {whole[0] - half[0]:.2f} below Retrain's" in page


def test_rows_that_a_revision_of_their_method_outdated_are_in_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = (differences_kept.PAGE.parents[2] / "results").glob("cifar10-cnn-434b*.json")
    monkeypatch.setitem(revisions.METHODS, "not", 99)
    assert "not" not in kept().methods and "| NoT |" not in differences_kept.price_table(kept())
    made = differences.rows_table(path)
    assert "| NoT |" not in made and "| FT |" in made
    found = runpy.run_path(str(Path(differences.__file__).parent / "readings" / "table.py"))
    assert {line["method"] for line in found["kept_lines"](path, ["ft"])} == {"ft"}
    with pytest.raises(SystemExit, match="no row of not that still counts; leave it out.*`not` revised since"):
        found["kept_lines"](path, ["ft", "not"])


def test_without_a_row_that_still_counts_and_that_others_are_compared_with_nothing_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (path,) = (differences_kept.PAGE.parents[2] / "results").glob("cifar10-cnn-434b*.json")
    monkeypatch.setitem(revisions.METHODS, "retrain", 99)
    for reads in (kept, lambda: differences.rows_table(path)):
        with pytest.raises(SystemExit, match="no row of Retrain that still counts.*`retrain` revised since"):
            reads()
    monkeypatch.undo()
    monkeypatch.setitem(revisions.METHODS, "ft", 99)
    with pytest.raises(SystemExit, match="no row of FT that still counts"):
        kept()
