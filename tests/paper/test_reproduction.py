"""Results that were kept: what is in them, what may be set side by side, and the page that is made of them."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paper_analyses as analyses
import paper_record as record
import pytest
import reproduction
import torch

from unfed.analysis.bound import noisy_time, unlearning_time
from unfed.analysis.gradient_noise import Noise
from unfed.config import revisions
from unfed.config.config import Config
from unfed.engines.base import Block, Visit
from unfed.engines.batched import Batched
from unfed.errors import UnfedError
from unfed.measures.metrics import GAP_METRICS
from unfed.methods import MoDE, NoT, Retrain, State
from unfed.model.params import Params, digests, fingerprint
from unfed.paper.build import markdown
from unfed.paper.items import items as paper_items
from unfed.paper.items import published
from unfed.paper.views import VIEWS
from unfed.paper.views.models import NEGATED, models_of, retraced
from unfed.report import rows
from unfed.report.tables import name_of
from unfed.requests.entry import Job
from unfed.runs.job import JobRunner
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from worlds import saved

SMALL = ["training.rounds=2", "unlearning.rounds=2", "evaluation.every=1", "data.train_size=300", "data.test_size=200"]


def made(folder: Path, *sets: str) -> Run:
    run = Run.create(Config.preset("digits-cnn", [*SMALL, *sets]), folder)
    run.execute()
    return run


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made(tmp_path_factory.mktemp("runs") / "a", "seed=0", 'methods.run=["retrain","not"]')


def test_what_was_kept_gives_the_same_rows_as_the_run(first: Run, tmp_path: Path) -> None:
    path = record.write(record.kept(first, "abc"), tmp_path)
    again = record.read(path)
    assert path.name == f"digits-cnn-{again.key}.json" and path.stat().st_size < 20_000
    for rule in ("best-gap", "last"):
        for one, other in zip(rows(first.lines(), rule), rows(again.lines(), rule), strict=True):
            assert (one.method, one.rounds, one.finished) == (other.method, other.rounds, other.finished)
            for metric in ("retain", "forget", "test", "mia"):
                assert one.metrics[metric].mean == pytest.approx(other.metrics[metric].mean, rel=1e-5)
            assert one.costs["flops"].mean == pytest.approx(other.costs["flops"].mean, rel=1e-5)
    (about,) = again.made
    assert about["commit"] == "abc" and about["revisions"]["not"] == revisions.METHODS["not"] and about["hardware"]


def test_seeds_and_methods_that_were_run_apart_come_together(first: Run, tmp_path: Path) -> None:
    other = made(tmp_path / "b", "seed=1", 'methods.run=["retrain","ft"]')
    record.write(record.kept(first, "abc"), tmp_path / "results")
    path = record.write(record.kept(other, "def"), tmp_path / "results")
    both = record.read(path)
    assert both.seeds == (0, 1) and len(both.made) == 2
    assert {job.rpartition("/")[2] for job in both.jobs} == {"train", "before", "retrain", "not", "ft"}
    assert record.write(record.kept(first, "xyz"), tmp_path / "results") == path
    (old, new) = record.read(path).made
    assert (old["commit"], new["commit"]) == ("def", "xyz"), "the same job again replaces what was there"


def test_another_config_is_another_file_and_is_not_mixed_in(first: Run, tmp_path: Path) -> None:
    longer = made(tmp_path / "c", "seed=0", "training.rounds=3", 'methods.run=["retrain"]')
    one, other = record.kept(first, "abc"), record.kept(longer, "abc")
    assert record.write(one, tmp_path) != record.write(other, tmp_path)
    with pytest.raises(UnfedError, match="different configs"):
        record.merged(one, other)
    wanted = longer.config.to_json()
    (near, nothing), (far, different) = record.fitting([one, other], "digits-cnn", wanted)
    assert near.key == other.key and nothing == []
    assert far.key == one.key and different == ["training.rounds 2 instead of 3"]
    assert record.fitting([one], "digits-cnn", wanted | {"request": []}) == [], "another request is another experiment"


def test_a_method_of_ours_with_other_hyperparameters_is_another_config(first: Run, tmp_path: Path) -> None:
    """A label of one's own says what it is; `not` without a table of its own is the paper's."""
    found = record.kept(first, "abc")

    def told(**tables: object) -> record.KeptResults:
        return replace(found, config={**found.config, "methods": {"run": ["not"], **tables}})

    other, more = told(**{"not": {"layers": ["conv2"]}}), told(conv2={"use": "not", "layers": ["conv2"]})
    assert record.write(found, tmp_path) != record.write(other, tmp_path)
    with pytest.raises(UnfedError, match=r"different configs \(methods\.not null instead of"):
        record.merged(found, other)
    (_, different) = record.fitting([other], "digits-cnn", first.config.to_json())[0]
    assert different == ['methods.not {"layers": ["conv2"]} instead of null']
    assert record.merged(found, more).config["methods"]["conv2"]["use"] == "not", "a label that was added is told"


def as_the_papers(run: Run, item: str, *more: str) -> record.KeptResults:
    """A run under the name of the paper's own on CIFAR-10, with further methods that are copies of its NoT."""
    spec = next(s for s in paper_items()[item].runs["paper"] if s.preset == "cifar10-cnn")
    kept = record.kept(run, "abc")
    own = kept.jobs["0/client-0-leaves/not"]
    jobs = {**kept.jobs, **{f"0/client-0-leaves/{label}": own for label in more}}
    made = ({**kept.made[0], "jobs": sorted(jobs), "revisions": kept.made[0]["revisions"] | revisions.of(more)},)
    return replace(kept, preset=spec.preset, config=spec.config().to_json(), made=made, jobs=jobs)


def mapped(folder: Path, item: str, block: str = "CIFAR-10, CNN") -> dict[str, str]:
    """A row of the map that the results of a folder give."""
    rows = csv.DictReader(reproduction.page(folder)[1]["map.csv"].splitlines())
    (row,) = (row for row in rows if (row["item"], row["block"]) == (item, block))
    return row


def numbers_of(folder: Path, item: str) -> dict[str, Any]:
    """An item's file of numbers and tables."""
    found: dict[str, Any] = json.loads(reproduction.page(folder)[1][f"tables/{item}.json"])
    return found


def test_of_a_method_that_was_revised_the_rows_are_left_out_and_no_others(
    first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = as_the_papers(first, "table-1", "fcu", "sealed")
    record.write(found, tmp_path)
    before, then = reproduction.page(tmp_path), numbers_of(tmp_path, "table-1")
    assert record.outdated(found) == [] and record.current(found) == found
    monkeypatch.setitem(revisions.METHODS, "ft", 99)
    assert record.outdated(found) == [] and reproduction.page(tmp_path) == before, "it is not in there"
    monkeypatch.setitem(revisions.METHODS, "not", 99)
    monkeypatch.setitem(revisions.METHODS, "sealed", 99)
    (sentence,) = record.outdated(found)
    when = found.made[0]["created"]
    assert sentence == (
        f"cifar10-cnn (client-0-leaves, 2000 + 2000 rounds): `not`, `sealed` revised since {when}; the rows of `not`,"
        " `sealed` are left out until it is run again."
    )
    row, now = mapped(tmp_path, "table-1"), numbers_of(tmp_path, "table-1")
    assert row["outdated"] == "0: not sealed" and "0: ft federaser fukd pgd mode not;" in row["absent"]
    block = "CIFAR-10, CNN"
    assert then["numbers"][block].keys() - now["numbers"][block].keys() == {"NoT", "Sealed"}
    assert now["numbers"][block]["FCU"] == then["numbers"][block]["FCU"]
    assert f"{block}, NoT" in then["numbers"]["verdicts"] and f"{block}, NoT" not in now["numbers"]["verdicts"]
    printed = now["tables"]["What the paper reports, where we have nothing yet"]
    assert [block, "NoT", "91.69", "83.86"] in [line[:4] for line in printed]


def test_where_a_class_leaves_a_revision_for_classes_counts_and_nowhere_else(first: Run) -> None:
    found = as_the_papers(first, "table-1", "sealed")
    (made,) = found.made
    assert "sealed for a class" not in made["revisions"] and record.outdated(found) == []
    asked = [{**one, "clients": [], "classes": [3]} for one in found.config["request"]]
    then = replace(found, config={**found.config, "request": asked})
    (sentence,) = record.outdated(then)
    assert "`sealed for a class` revised since" in sentence and "the rows of `sealed` are left out" in sentence
    assert {job.rpartition("/")[2] for job in found.jobs} - {
        job.rpartition("/")[2] for job in record.current(then).jobs
    } == {"sealed"}
    now = replace(then, made=({**made, "revisions": revisions.of(["sealed", "retrain", "not"], then.config)},))
    assert record.outdated(now) == []


def test_with_a_retrain_that_was_revised_go_the_gaps_and_what_is_read_from_them(
    first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for item, more in (("table-1", ("ft",)), ("figure-4", ("ft", "conv2", "head"))):
        record.write(as_the_papers(first, item, *more), tmp_path / item)
    then = numbers_of(tmp_path / "table-1", "table-1")["numbers"]
    assert "tables/figure-4.json" in reproduction.page(tmp_path / "figure-4")[1]
    monkeypatch.setitem(revisions.METHODS, "retrain", 99)
    now = numbers_of(tmp_path / "table-1", "table-1")
    (own, before) = (found["CIFAR-10, CNN"]["NoT"] for found in (now["numbers"], then))
    assert own["retain"] == before["retain"] and "not measured" in own["average_gap"]
    words = {cell["verdict"] for cell in now["numbers"]["verdicts"]["CIFAR-10, CNN, NoT"].values()}
    assert words <= {"within", "not compared"}, "which side of Retrain it stands on is not known"
    (beside,) = (row for row in now["tables"]["The paper | ours (difference) verdict"] if row[1] == "NoT")
    assert "0.53 | —" in beside, "the paper's own share of Retrain's bytes is"
    assert mapped(tmp_path / "table-1", "table-1")["outdated"] == "0: retrain"
    row = mapped(tmp_path / "figure-4", "figure-4")
    assert (row["status"], row["outdated"]) == ("outdated", "0: retrain")
    assert "tables/figure-4.json" not in reproduction.page(tmp_path / "figure-4")[1]


def test_a_curve_stays_where_another_was_revised(first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the labels that stand for a method are outdated with it."""
    record.write(as_the_papers(first, "figure-4", "ft", "conv2", "head"), tmp_path)
    monkeypatch.setitem(revisions.METHODS, "not", 99)
    (table,) = numbers_of(tmp_path, "figure-4")["tables"].values()
    assert [row[1] for row in table[1:]] == ["FT"]
    assert mapped(tmp_path, "figure-4")["outdated"] == "0: not conv2 head"


def test_a_revised_engine_or_evaluator_outdates_everything_that_was_made_before(
    first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = as_the_papers(first, "table-1", "ft")
    record.write(old, tmp_path)
    for name in ("ENGINE", "EVALUATOR"):
        with monkeypatch.context() as patched:
            patched.setattr(revisions, name, 99)
            assert record.current(old).jobs == {} and record.current(old).made == ()
            (sentence,) = record.outdated(old)
            since = f"`{name.lower()}` revised since {old.made[0]['created']}"
            assert f"{since}; everything that was made before is left out until it is run again." in sentence
            row = mapped(tmp_path, "table-1")
            assert (row["status"], row["outdated"], row["seeds"]) == ("outdated", "0: retrain ft not", "")
            assert row["minutes"] == "45", "all of it"
            assert "tables/table-1.json" not in reproduction.page(tmp_path)[1]
    monkeypatch.setattr(revisions, "ENGINE", 99)
    again = {job: columns for job, columns in old.jobs.items() if not job.endswith("/ft")}
    made = {**old.made[0], "jobs": sorted(again), "revisions": {**old.made[0]["revisions"], "engine": 99}}
    record.write(replace(old, made=(made,), jobs=again), tmp_path)
    row = mapped(tmp_path, "table-1")
    assert (row["status"], row["outdated"]) == ("partial", "0: ft"), "one after another"
    assert "NoT" in numbers_of(tmp_path, "table-1")["numbers"]["CIFAR-10, CNN"]


def test_a_gap_is_taken_in_the_seeds_whose_retrain_counts(
    first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = as_the_papers(first, "figure-4", "ft", "conv2", "head")
    other = {f"1{job[1:]}": columns for job, columns in kept.jobs.items()}
    revised = {**kept.made[0]["revisions"], "retrain": 99}
    made = (*kept.made, {**kept.made[0], "jobs": sorted(other), "revisions": revised})
    record.write(replace(kept, made=made, jobs={**kept.jobs, **other}), tmp_path)
    monkeypatch.setitem(revisions.METHODS, "retrain", 99)
    row = mapped(tmp_path, "figure-4")
    assert row["seeds"] == "0 1" and row["outdated"] == "0: retrain" and row["absent"].startswith("0: retrain; 2: ")
    assert "<svg" in reproduction.figure(record.current(record.all_in(tmp_path)[0]))
    with pytest.raises(UnfedError, match="no Retrain that counts"):
        reproduction.figure(record.current(kept))


def test_what_had_no_revision_yet_was_the_first_one(first: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed got a number after results of it had been kept."""
    found = record.kept(first, "abc")
    before = {name: number for name, number in found.made[0]["revisions"].items() if name != "not"}
    earlier = replace(found, made=({**found.made[0], "revisions": before},))
    assert record.outdated(earlier) == []
    monkeypatch.setitem(revisions.METHODS, "not", 2)
    assert "`not` revised since" in " ".join(record.outdated(earlier))


def test_a_label_is_outdated_with_the_method_that_it_stands_for(first: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = record.kept(first, "abc")
    jobs = {job.replace("/not", "/conv2"): columns for job, columns in found.jobs.items()}
    config = {**found.config, "methods": {"run": ["conv2"], "conv2": {"use": "not", "layers": ["conv2"]}}}
    renamed = replace(found, jobs=jobs, config=config, made=({**found.made[0], "jobs": sorted(jobs)},))
    assert record.outdated(renamed) == []
    monkeypatch.setitem(revisions.METHODS, "not", 99)
    assert "`not` revised since" in " ".join(record.outdated(renamed))
    assert {job.rpartition("/")[2] for job in record.current(renamed).jobs} == {"train", "before", "retrain"}


def test_what_was_recovered_to_the_last_row_is_recovered_when_it_was_kept(first: Run, tmp_path: Path) -> None:
    """7,337 of 9,000 rows against 7,382 is half a point less, exactly; six digits of one of the two would be more."""
    found = record.kept(first, "abc")
    now, before = 100 * 7337 / 9000, 100 * 7382 / 9000
    jobs = {name: dict(columns) for name, columns in found.jobs.items()}
    own = jobs["0/client-0-leaves/not"]
    own |= {"validation": [record._short(0.0), *[record._short(now)] * (len(own["round"]) - 1)]}
    own |= {"validation_before": before}
    record.write(replace(found, jobs=jobs), tmp_path)
    (again,) = record.all_in(tmp_path)
    (row,) = (row for row in rows(again.lines(), "recovered", recovered_within=0.5) if row.method == "not")
    assert (row.verdict, row.rounds) == ("", (1,))


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(UnfedError, match=r"x\.json holds no kept results"):
        record.all_in(tmp_path)
    (tmp_path / "x.json").write_text(json.dumps({"schema": 9, "preset": "", "config": {}, "made": [], "jobs": {}}))
    with pytest.raises(UnfedError, match="schema 9"):
        record.all_in(tmp_path)


@pytest.mark.parametrize("name", ["preset", "config", "made", "jobs"])
def test_a_kept_result_that_is_damaged_is_one_sentence(first: Run, tmp_path: Path, name: str) -> None:
    whole = json.loads(record.write(record.kept(first, "abc"), tmp_path / "good").read_text())
    for wrong in ([1, {"a": None}], {"a": 1}, None, 3):
        (tmp_path / "x.json").write_text(json.dumps({**whole, name: wrong}))
        with pytest.raises(UnfedError, match=r"x\.json (has|is damaged) .*; make it again"):
            reproduction.page(tmp_path)


@pytest.mark.parametrize("name", ["commit", "hardware", "revisions", "trained", "apart", "beside", "round", "seconds"])
def test_a_value_of_a_kept_result_that_is_damaged_is_one_sentence(first: Run, tmp_path: Path, name: str) -> None:
    path = record.write(record.kept(first, "abc"), tmp_path)
    raw = json.loads(path.read_text())
    columns = raw["jobs"]["0/client-0-leaves/not"]
    for wrong in ({"a": [None]}, [["ninety"]]):
        if name in columns:
            columns[name][-1] = "ninety" if isinstance(wrong, dict) else wrong
        else:
            raw["made"][0][name] = wrong
        path.write_text(json.dumps(raw))
        with pytest.raises(UnfedError, match=r"has .* as its .*; make it again"):
            reproduction.page(tmp_path)


def test_a_kept_result_of_others_is_written_nowhere_else(first: Run, tmp_path: Path) -> None:
    """Its preset becomes a file's name: one that leads out of the folder had been followed."""
    whole = json.loads(record.write(record.kept(first, "abc"), tmp_path / "good").read_text())
    theirs, ours = tmp_path / "theirs", tmp_path / "a" / "results"
    theirs.mkdir()
    ours.mkdir(parents=True)
    (theirs / "x.json").write_text(json.dumps({**whole, "preset": "../elsewhere"}))
    with pytest.raises(UnfedError, match="is no folder name"):
        list(reproduction.added(theirs, ours, "abc"))
    assert not list(tmp_path.glob("a/*.json"))


def test_the_map_has_every_item_and_block_and_the_price_of_what_was_not_run(tmp_path: Path) -> None:
    text, files = reproduction.page(tmp_path)
    rows = [*csv.DictReader(files["map.csv"].splitlines())]
    blocks = [(item.id, spec.name) for item in paper_items().values() for spec in item.runs["paper"]]
    assert [(row["item"], row["block"]) for row in rows] == blocks and len(blocks) > 30
    assert {row["status"] for row in rows} == {"not run"} and files.keys() == {"map.csv"}
    # θ*, Retrain and seven methods of 2,000 rounds, three seeds, 0.05 s each
    assert mapped(tmp_path, "table-1")["minutes"] == "45"
    # θ*, Retrain, FT and NoT of 2,000, a Retrain of 4,000, one seed
    assert mapped(tmp_path, "table-7")["minutes"] == "10"
    shown = [*csv.reader(reproduction.map_table(files["map.csv"]).splitlines())]
    title = "Client-wise federated unlearning, IID"
    assert shown[1] == ["Table 1", title, "CIFAR-10, CNN", "not run", "0/2000+2000", "0/3", "45"]
    assert len(shown) == len(blocks) + 1 and f"Of {len(blocks)} blocks of its tables and figures" in text


def test_a_price_grows_with_the_data_and_the_network() -> None:
    configs = [Config.preset(name) for name in ("caltech101-vit", "cifar100-vit", "cifar10-cnn", "cifar100-cnn")]
    price = {one.name: reproduction.priced(one, ["not"]) / one.training.rounds for one in configs}
    assert price["cifar100-vit"] >= 5 * price["caltech101-vit"], "40,000 images a round instead of 5,600"
    assert price["cifar100-cnn"] > 3 * price["cifar10-cnn"], "3.7 times the FLOPs"


def test_the_price_of_a_block_is_about_what_the_slowest_one_took() -> None:
    """Those that shared their GPU took up to 1.4 times their price; others had fewer clients, or were stacked.

    A run of a few rounds spends most of its time compiling, which no price of a round can say.
    """
    ratios: dict[tuple[str, str], list[float]] = {}
    for kept in record.all_in(reproduction.RESULTS):
        config = Config.parse(kept.config)
        if config.training.rounds < 50:
            continue
        for seed in map(str, kept.seeds):
            own = {job: told["seconds"][-1] or 0.0 for job, told in kept.jobs.items() if job.startswith(f"{seed}/")}
            took = reproduction.spent(own, reproduction.stacks_of(kept))[0] / 60
            price = reproduction.priced(config, {job.rpartition("/")[2] for job in own} - {"train", "before"})
            ratios.setdefault((config.data.name, config.model.name), []).append(price / took)
    assert all(0.7 < min(own) < 1.3 for own in ratios.values()), ratios


def test_a_run_of_the_papers_own_config_stands_beside_it(first: Run, tmp_path: Path) -> None:
    spec = next(s for s in paper_items()["table-1"].runs["paper"] if s.preset == "cifar10-cnn")
    wanted = spec.config().to_json()
    cut = wanted | {"training": wanted["training"] | {"rounds": 2}}
    path = record.write(replace(record.kept(first, "abc"), preset="cifar10-cnn", config=cut), tmp_path)
    row, found = mapped(tmp_path, "table-1"), numbers_of(tmp_path, "table-1")
    assert (row["status"], row["rounds"], row["seeds"], row["result"]) == ("partial", "2+2000", "0", path.name)
    assert row["differs"] == "training.rounds 2 instead of 2000" and "commit abc" in row["made"]
    assert row["absent"].startswith("0: ft federaser fukd pgd mode fcu; 1: retrain ft ")
    assert row["minutes"] == "45", "in the paper's rounds nothing is there"
    words = {cell["verdict"] for cells in found["numbers"]["verdicts"].values() for cell in cells.values()}
    assert words == {"partial"}, "two rounds say nothing about the paper's 2,000"


def test_verdicts_stand_only_where_the_rounds_are_the_papers(first: Run, tmp_path: Path) -> None:
    spec = next(s for s in paper_items()["table-1"].runs["paper"] if s.preset == "cifar10-cnn")
    whole = spec.config().to_json()
    for name, rounds in (("whole", 2000), ("cut", 60)):
        config = whole | {"unlearning": whole["unlearning"] | {"rounds": rounds}}
        record.write(replace(record.kept(first, "abc"), preset="cifar10-cnn", config=config), tmp_path / name)
    text, files = reproduction.page(tmp_path / "cut")
    assert "partial,2000+60/2000+2000,1/3,45" in reproduction.map_table(files["map.csv"]) and "\n## " not in text
    entire = reproduction.page(tmp_path / "whole")[0]
    assert "## Table 1, CIFAR-10, CNN\n" in entire, "digits are not CIFAR-10, and a whole run is judged"
    (row,) = (line for line in entire.splitlines() if line.startswith("| NoT | 91.69 · "))
    assert row.count("≠") + row.count("~") + row.count(" = ") == 4
    # Retrain and NoT of seed 0 are there: six methods of it, and θ* with eight for two seeds more
    assert mapped(tmp_path / "whole", "table-1")["minutes"] == "42"
    said = entire.partition("Shifts that most rows share (median): ")[2]
    found = numbers_of(tmp_path / "whole", "table-1")["numbers"]["verdicts"]
    apart = [cells["retain"]["difference"] for cells in found.values()]
    assert said.startswith(f"Retain {sum(apart) / 2:+.1f} (2 of 2 rows), ") and len(apart) == 2


def test_a_file_that_results_no_longer_give_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reproduction.page(reproduction.RESULTS)
    monkeypatch.setattr(reproduction, "page", lambda folder: made)  # the same every time, and made once
    monkeypatch.setattr(reproduction, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(reproduction, "TABLE", tmp_path / "page.csv")
    shutil.copytree(reproduction.RESULTS, tmp_path / "results")
    (tmp_path / "results" / "tables" / "old.json").touch()
    check = ["page", "--check", "--results", str(tmp_path / "results")]
    assert reproduction.main(check) == 1
    assert reproduction.main(["page", "--results", str(tmp_path / "results")]) == 0 and reproduction.main(check) == 0
    assert len(made[1]) > 10 and not (tmp_path / "results" / "tables" / "old.json").exists()
    for name in made[1]:
        path = tmp_path / "results" / name
        path.write_text((kept := path.read_text()).replace("0", "1"))
        assert reproduction.main(check) == 1, name
        path.write_text(kept)


def test_a_folder_without_results_leaves_the_page_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("what was made before\n")
    monkeypatch.setattr(reproduction, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(reproduction, "TABLE", tmp_path / "page.csv")
    with pytest.raises(UnfedError, match="Nothing was kept in .*; the page stays as it is"):
        reproduction.main(["page", "--results", str(tmp_path / "reslts")])
    assert (tmp_path / "page.md").read_text() == "what was made before\n"


def test_bars_are_shown_without_the_one_that_was_not_run_and_a_curve_is_not(first: Run, tmp_path: Path) -> None:
    for item in ("figure-1", "figure-4"):
        spec = next(s for s in paper_items()[item].runs["paper"] if s.preset == "caltech101-vit")
        record.write(replace(record.kept(first, "abc"), preset=spec.preset, config=spec.config().to_json()), tmp_path)
    bars, curves = (mapped(tmp_path, item, "Caltech-101, ViT") for item in ("figure-1", "figure-4"))
    assert bars["status"] == "partial" and bars["absent"].startswith("0: ft pgd mode fcu;")
    assert curves["status"] == "not run"
    files = reproduction.page(tmp_path)[1]
    assert "tables/figure-1.json" in files and "tables/figure-4.json" not in files


def test_a_table_whose_own_method_was_not_run_is_not_run(first: Run, tmp_path: Path) -> None:
    spec = next(s for s in paper_items()["table-8"].runs["paper"] if s.preset == "cifar10-cnn")
    record.write(replace(record.kept(first, "abc"), preset="cifar10-cnn", config=spec.config().to_json()), tmp_path)
    assert mapped(tmp_path, "table-8")["status"] == "not run", "Retrain alone measures nothing"
    assert mapped(tmp_path, "table-1")["status"] == "partial"


def test_a_result_stays_on_the_page_when_a_later_version_adds_a_key(first: Run, tmp_path: Path) -> None:
    spec = next(s for s in paper_items()["table-1"].runs["paper"] if s.preset == "cifar10-cnn")
    earlier = json.loads(json.dumps(spec.config().to_json()))
    del earlier["model"]["fresh_head"], earlier["request"][0]["population"]  # as if both had come later
    record.write(replace(record.kept(first, "abc"), preset="cifar10-cnn", config=earlier), tmp_path)
    assert mapped(tmp_path, "table-1")["status"] == "partial"


def test_every_kept_result_stands_in_the_map_and_every_file_that_it_names_is_there() -> None:
    rows = [*csv.DictReader((reproduction.RESULTS / "map.csv").read_text(encoding="utf-8").splitlines())]
    named = {row["result"] for row in rows} - {""}
    there = [*reproduction.RESULTS.glob("*.json"), *(reproduction.RESULTS / "analyses").glob("*.json")]
    assert named == {path.relative_to(reproduction.RESULTS).as_posix() for path in there}
    told = "\n".join(row["made"] for row in rows)
    for found in map(record.current, record.all_in(reproduction.RESULTS)):
        assert all(about["commit"][:7] in told for about in found.made), f"{found.preset} is not shown"


@pytest.mark.figures
def test_the_page_in_the_docs_is_what_the_results_give() -> None:
    assert reproduction.main(["page", "--check"]) == 0, "run `python tools/reproduction.py page`"


def test_the_table_of_the_readme_is_that_of_the_page() -> None:
    """The paper's value and ours in every cell, of the same results."""
    kept = {str(number): one for number, one in enumerate(record.all_in(reproduction.RESULTS))}
    made = reproduction.of_results(paper_items()["table-1"], kept)[0]
    assert made is not None
    ours = {row.method: row for row in made.rows if row.request == "CIFAR-10, CNN"}
    theirs = {row["method"]: row for row in published("T1") if (row["dataset"], row["model"]) == ("CIFAR-10", "CNN")}
    text = (reproduction.ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("| paper · ours |")[2].partition("\n\n")[0].splitlines()[2:]
    found = {cells[0].strip("* ").partition(" (")[0]: cells[1:] for cells in (row[2:-2].split(" | ") for row in table)}
    shown = {method: row for method, row in ours.items() if name_of(method) in found}
    assert {"retrain", "ft", "not"} <= {*shown} and len(shown) == len(found)
    for method, row in shown.items():
        name = name_of(method)
        wanted = []
        for metric in GAP_METRICS:
            digits = 1 if metric == "mia" else 2
            there = f"{float(theirs[name][metric]):.{digits}f}" if name in theirs else "–"
            wanted.append(f"{there} · {row.metrics[metric].mean:.{digits}f}")
        gap = theirs[name]["avg_gap"] if name in theirs else "–"
        wanted.append("–" if method == "retrain" else f"{gap} · {row.average_gap.mean:.2f}")
        assert [cell.replace("**", "") for cell in found[name]] == wanted, name


def test_a_key_that_a_later_version_adds_makes_no_other_experiment(first: Run, tmp_path: Path) -> None:
    found = record.kept(first, "abc")
    earlier = json.loads(json.dumps(found.config))
    del earlier["training"]["patience"], earlier["gate"]  # as if both had come later
    path = record.write(replace(found, config=earlier), tmp_path)
    assert record.differences(earlier, found.config) == []
    assert record.write(found, tmp_path) == path, "it goes on in the same file"
    changed = {**earlier, "training": {**earlier["training"], "decay": 0.5}}
    assert record.differences(changed, found.config) == ["training.decay 0.5 instead of 0.0005"]
    assert record.write(replace(found, config=changed), tmp_path) != path


# --- analyses ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with everything that table 7 asks for."""
    sets = ["seed=0", "training.rounds=2", "unlearning.rounds=4", "evaluation.every=4", "evaluation.attack=false"]
    sets += ['methods.retrain-long={use="retrain", unlearning={rounds=4}}']
    labels = 'methods.run=["retrain","ft","not","retrain-long"]'
    run = Run.create(Config.preset("digits-cnn", [*sets, labels]), tmp_path_factory.mktemp("runs") / "c")
    run.execute()
    return run


@pytest.fixture(scope="module")
def table_7(analysed: Run) -> analyses.KeptAnalysis:
    return analyses.measured(paper_items()["table-7"], analysed, "abcdef1234")


@pytest.fixture(scope="module")
def figure_3(analysed: Run) -> analyses.KeptAnalysis:
    return analyses.measured(paper_items()["figure-3"], analysed, "abcdef1234")


def test_a_kept_analysis_shows_what_the_run_would(
    analysed: Run, table_7: analyses.KeptAnalysis, tmp_path: Path
) -> None:
    item = paper_items()["table-7"]
    spec = item.runs["digits"][0]
    path = analyses.write(table_7, tmp_path)
    again = analyses.read(path)
    assert path.parent.name == "analyses" and path.stat().st_size < 20_000
    assert again.made["commit"] == "abcdef1234" and again.made["hardware"] and again.made["revisions"]["engine"]
    assert again.made["revisions"]["bound"] == revisions.ANALYSES["bound"] and analyses.outdated(again) == ""
    later = {**again.made, "revisions": {**again.made["revisions"], "bound": 99}}
    assert "`bound` revised since" in analyses.outdated(replace(again, made=later)), "another estimator, other numbers"
    shown = analyses.shown(item, {spec.name: again})
    assert markdown(shown) == markdown(VIEWS["bound"].make(item, {spec: analysed}))
    assert analyses.all_in(tmp_path) == [again] and record.all_in(tmp_path) == []


def test_table_7_takes_lip_along_the_run_and_says_what_noise_does(table_7: analyses.KeptAnalysis) -> None:
    for method in ("ft", "not"):
        own = table_7.numbers["methods"][method]
        assert list(own["lipschitz_at"]) == ["start", "round 1", "round 3", "last round"]
        assert own["lipschitz"] == pytest.approx(max(own["lipschitz_at"].values()))
        assert 0 < own["time_corrected"] <= own["time_with_noise"] < own["time"]
        assert own["noise"]["stochasticity"] > 0 and own["noise"]["diffusion"] > 0


def test_the_way_that_is_retraced_is_the_one_that_was_gone(analysed: Run) -> None:
    """After its last round NoT stands where the run left it."""
    start = models_of(analysed, ("not",))[NEGATED]
    way = retraced(replace_rounds(analysed, 5), "not", start, places=(4,))
    last = analysed.model(seed=0, request=analysed.config.requests()[0].id, method="not")
    assert all(torch.equal(way[4][name], last[name]) for name in last)


def replace_rounds(run: Run, rounds: int) -> Run:
    """The same run as if its methods had more rounds: a round before the last can be asked for."""
    other = Run.open(run.folder.path)
    world = run.world(0)
    raw = {**run.config.to_json(), "unlearning": {**run.config.to_json()["unlearning"], "rounds": rounds}}
    other.use(replace(world, config=Config.parse(raw)))
    return other


def test_the_map_has_a_kept_analysis_and_says_what_differs(figure_3: analyses.KeptAnalysis, tmp_path: Path) -> None:
    """Kept under the name of the paper's own run, for which no test has the time."""
    kept = figure_3
    wanted = paper_items()["figure-3"].runs["paper"][0].config(["training.rounds=7"]).to_json()
    path = analyses.write(replace(kept, preset="cifar10-cnn", config=wanted), tmp_path)
    row = mapped(tmp_path, "figure-3")
    assert (row["status"], row["rounds"], row["seeds"], row["paper_seeds"]) == ("partial", "7+2000", "0", "1")
    assert row["differs"] == "training.rounds 7 instead of 2000" and "commit abcdef1" in row["made"]
    assert row["result"] == f"analyses/{path.name}" and row["minutes"] == "45"
    shown = [line[0] for table in numbers_of(tmp_path, "figure-3")["tables"].values() for line in table]
    assert "NoT, last round" in shown
    revised = {**kept.made["revisions"], "not": 0}
    analyses.write(
        replace(kept, preset="cifar10-cnn", config=wanted, made={**kept.made, "revisions": revised}), tmp_path
    )
    row = mapped(tmp_path, "figure-3")
    assert row["status"] == "outdated" and "figure-3 of cifar10-cnn: `not` revised since" in row["outdated"]
    assert "tables/figure-3.json" not in reproduction.page(tmp_path)[1]
    whole = paper_items()["figure-3"].runs["paper"][0].config().to_json()
    analyses.write(replace(kept, preset="cifar10-cnn", config=whole), tmp_path)
    row = mapped(tmp_path, "figure-3")
    assert (row["status"], row["minutes"]) == ("done", "0")


def test_what_cannot_be_analysed_is_said(first: Run, tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="needs ft in"):
        analyses.measured(paper_items()["figure-3"], first, "abc")
    with pytest.raises(UnfedError, match="lines alone"):
        analyses.measured(paper_items()["figure-4"], first, "abc")
    (tmp_path / "analyses").mkdir()
    (tmp_path / "analyses" / "x.json").write_text("{}")
    with pytest.raises(UnfedError, match="holds no kept analysis"):
        analyses.all_in(tmp_path)


def test_numbers_of_a_kept_analysis_that_are_damaged_are_said() -> None:
    item = paper_items()["figure-3"]
    damaged = analyses.KeptAnalysis("figure-3", "cifar10-cnn", {}, {}, {"layers": None})
    with pytest.raises(UnfedError, match="What was kept of Figure 3.* is damaged .*; analyse its run again"):
        analyses.shown(item, {"CIFAR-10": damaged})


def test_the_bound_with_noise_solves_its_own_equation() -> None:
    printed = unlearning_time(0.9, 0.1, 2.0, 1.5, 3.0)
    found = noisy_time(printed, Noise(diffusion=0.0, stochasticity=0.7))
    assert 9.0 * found.time * (0.5 + 0.7 * found.time) == pytest.approx(0.64) and found.noise == 0.7 * found.time
    assert noisy_time(printed, Noise(0.0, 0.0)) == printed


def test_what_was_kept_on_another_machine_comes_together_with_what_is_here(
    first: Run, figure_3: analyses.KeptAnalysis, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    record.write(record.kept(first, "abc"), there)
    analyses.write(figure_3, there)
    (there / "records").mkdir()
    (there / "records" / "day-tried.jsonl").write_text('{"variant": 1}\n{"variant": 2}\n')
    (there / "records" / "day-read.md").write_text("| read |\n")
    (here / "records").mkdir(parents=True)
    (here / "records" / "day-tried.jsonl").write_text('{"variant": 0}\n{"variant": 1}\n')
    for _ in range(2):  # the second time there is nothing new
        reproduction.main(["add", str(there), "--results", str(here)])
        assert record.all_in(here) == record.all_in(there) and analyses.all_in(here) == analyses.all_in(there)
        tried = (here / "records" / "day-tried.jsonl").read_text().splitlines()
        assert tried == ['{"variant": 0}', '{"variant": 1}', '{"variant": 2}']
        assert (here / "records" / "day-read.md").read_text() == "| read |\n"
    with pytest.raises(UnfedError, match="no run folder"):
        reproduction.main(["add", str(tmp_path / "nothing")])


def test_a_model_that_was_trained_again_is_compared_by_its_fingerprint(first: Run) -> None:
    kept = record.kept(first, "abc")
    (about,) = kept.made
    params = first.model(seed=0, method="train")
    assert about["trained"] == {"0": fingerprint(digests(params))}
    assert record.retrained_otherwise(replace(kept, made=(about, about))) == {}
    assert record.retrained_otherwise(replace(kept, made=(about, {**about, "trained": {"0": "other"}}))) == {"0": None}


def test_two_trainings_of_one_seed_are_said_with_the_points_between_them(first: Run) -> None:
    """Also where the first was kept without a fingerprint; Retrain begins at neither."""
    kept = record.kept(first, "abc")
    (about,) = kept.made
    old = replace(kept, made=({name: value for name, value in about.items() if name != "trained"},))
    train = kept.jobs["0/None/train"]
    again = {**train, "test": [value + 0.25 for value in train["test"]]}
    others = {"0/None/train": again, "0/client-0-leaves/pgd": kept.jobs["0/client-0-leaves/not"]}
    new = replace(kept, made=({**about, "jobs": sorted(others)},), jobs=others)
    assert record.retrained_otherwise(record.merged(old, kept)) == {}  # the same numbers: nothing to say
    both = record.merged(old, new)
    assert record.retrained_otherwise(both) == {"0": pytest.approx(0.25)}
    said = "θ* of seed 0 was trained more than once and differs by at most 0.25 points of accuracy"
    assert reproduction.notes(both, {"a.json": both}) == said
    ft = {"0/client-0-leaves/ft": kept.jobs["0/client-0-leaves/not"]}
    third = record.merged(
        both, replace(new, made=({**about, "jobs": sorted({**others, **ft})},), jobs={**others, **ft})
    )
    assert reproduction.notes(third, {"a.json": third}) == said, "kept after each other"
    whole = {**kept.jobs, **others, **ft}
    last = record.merged(third, replace(new, made=({**about, "jobs": sorted(whole)},), jobs=whole))
    assert reproduction.notes(last, {"a.json": last}) == "", "everything was run again from one θ*"


def test_a_model_that_another_item_trained_too_is_compared_with_it(first: Run) -> None:
    """A client leaves in one result, a class in the other: one θ*, if the settings of training are the same."""
    kept = record.kept(first, "abc")
    (about,) = kept.made
    train = kept.jobs["0/None/train"]
    jobs = {"0/None/train": {**train, "test": [value - 0.5 for value in train["test"]]}}
    made = {**about, "created": "2099-01-01T00:00:00Z", "jobs": sorted(jobs), "trained": {"0": "other"}}
    config = {**kept.config, "request": [{"id": "class-0", "classes": [0]}]}
    later = replace(kept, config=config, made=(made,), jobs=jobs)
    both = {"a.json": kept, "b.json": later}
    said = "θ* of seed 0 was trained again as for a.json and differs by at most 0.50 points of accuracy"
    assert reproduction.notes(later, both) == said
    assert reproduction.notes(kept, both) == "", "it is said of the later one"
    same = replace(later, made=({**made, "trained": about["trained"]},))
    untold = replace(later, made=({name: value for name, value in made.items() if name != "trained"},))
    otherwise = replace(later, config={**config, "training": {**config["training"], "lr": 0.5}})
    assert [reproduction.notes(one, {"a.json": kept}) for one in (same, untold, otherwise)] == ["", "", ""]


def test_shares_of_clients_are_compared_after_equally_many_rounds(first: Run, tmp_path: Path) -> None:
    """Ten percent was run at two lengths, fifty and ninety at the shorter one: that is the one that is shown."""
    item, kept = paper_items()["figure-6"], record.kept(first, "abc")
    jobs = {f"0/r/{label}": next(iter(kept.jobs.values())) for label in ("retrain", "ft", "mode", "fcu", "not")}
    found = []
    for spec in (spec for spec in item.runs["paper"] if spec.preset == "cifar10-cnn"):
        for rounds in (7, 2000) if spec.name == "CNN, 10 %" else (7,):
            config = spec.config([f"training.rounds={rounds}"]).to_json()
            found.append(replace(kept, preset="cifar10-cnn", config=config, jobs=jobs))
    rows = reproduction.of_results(item, {str(number): one for number, one in enumerate(found)})[1]
    own = [row["rounds"] for row in rows if row["block"].startswith("CNN")]
    assert own == ["7+2000"] * 3


def run_block(out: Path, results: Path, *more: str) -> int:
    sets = [part for one in (*SMALL, "seed=0") for part in ("--set", one)]
    where = ["--out", str(out), "--results", str(results), "--commit", "abc"]
    code: int = reproduction.main(["block", "digits-cnn", *sets, *where, *more])
    return code


def test_a_block_keeps_every_method_that_ends_and_says_which_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: MoDE, server: object) -> State:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(MoDE, "begin", broken)
        assert run_block(tmp_path / "run", tmp_path, "--methods", "retrain,mode,ft") == 1
    assert "mode: failed: RuntimeError: out of memory" in capsys.readouterr().out
    (kept,) = record.all_in(tmp_path)
    assert {job.rpartition("/")[2] for job in kept.jobs} == {"train", "before", "retrain", "ft"}
    assert run_block(tmp_path / "run", tmp_path, "--methods", "retrain,mode,ft") == 0, "given again, it mends"
    (kept,) = record.all_in(tmp_path)
    assert "0/client-0-leaves/mode" in kept.jobs and len(kept.made) == 1
    with pytest.raises(UnfedError, match="another config"):
        run_block(tmp_path / "run", tmp_path, "--methods", "retrain")


def test_a_block_whose_budget_is_spent_goes_on_when_it_is_given_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_block(tmp_path / "run", tmp_path, "--methods", "retrain,ft", "--budget", "0s") == 130
    assert "the budget is spent; the same command goes on" in capsys.readouterr().out
    assert record.all_in(tmp_path) == [], "nothing has ended yet"
    assert run_block(tmp_path / "run", tmp_path, "--methods", "retrain,ft") == 0
    (kept,) = record.all_in(tmp_path)
    whole = made(tmp_path / "whole", "seed=0", 'methods.run=["retrain","ft"]')
    assert kept.jobs.keys() == record.kept(whole, "abc").jobs.keys()
    same = [c["retain"] == record.kept(whole, "abc").jobs[job]["retain"] for job, c in kept.jobs.items()]
    assert all(same), "and nobody can tell that it was interrupted"


def test_a_block_takes_a_trained_model_over_where_it_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_block(tmp_path / "first", tmp_path, "--methods", "retrain") == 0
    other = ["--methods", "retrain", "--set", 'request={id="class-0", classes=[0]}']
    assert run_block(tmp_path / "second", tmp_path, *other, "--trained-in", str(tmp_path / "first")) == 0
    assert "first: taken over" in capsys.readouterr().out
    one, two = (record._trained(Run.open(tmp_path / name)) for name in ("first", "second"))
    assert one == two and list(one) == ["0"]
    assert run_block(tmp_path / "third", tmp_path, *other, "--trained-in", str(tmp_path / "nowhere")) == 0


def test_methods_side_by_side_give_what_they_give_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []
    stacked = Batched.train_together

    def seen(self: Batched, visits: Sequence[Visit]) -> list[list[Block]]:
        widths.append(sum(len(visit.clients) for visit in visits))
        return stacked(self, visits)

    methods = ["--methods", "retrain,pgd,ft", "--set", "engine.precision=float64"]
    assert run_block(tmp_path / "one", tmp_path / "a", *methods) == 0
    monkeypatch.setattr(Batched, "train_together", seen)
    assert run_block(tmp_path / "many", tmp_path / "b", *methods, "--together", "--alone", "ft") == 0
    assert widths == [2 * 9] * 2, "both rounds of two methods of nine clients each, however they begin"
    (one,), (many,) = record.all_in(tmp_path / "a"), record.all_in(tmp_path / "b")
    assert one.jobs.keys() == many.jobs.keys() and one.key == many.key
    for job, columns in one.jobs.items():
        for metric in ("round", "retain", "forget", "test", "mia", "comm_bytes", "flops"):
            assert many.jobs[job][metric] == columns[metric], (job, metric)
    assert "ft: done" in capsys.readouterr().out


@pytest.mark.slow
def test_side_by_side_a_method_with_rounds_of_its_own_comes_into_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MoDE's guidance goes first and alone; then its rounds, the others' and FedEraser's replay are one stack."""
    shared: list[int] = []
    stacked = Batched.visit

    def seen(self: Batched, visits: Sequence[Visit]) -> list[Block]:
        shared.append(len(visits))
        return stacked(self, visits)

    methods = ["--methods", "retrain,mode,federaser", "--set", "engine.precision=float64", "--set", "training.rounds=3"]
    assert run_block(tmp_path / "one", tmp_path / "a", *methods) == 0
    monkeypatch.setattr(Batched, "visit", seen)
    assert run_block(tmp_path / "many", tmp_path / "b", *methods, "--together") == 0
    assert [count for count in shared if count > 1] == [3, 3], "both rounds of each, whatever came before"
    (one,), (many,) = record.all_in(tmp_path / "a"), record.all_in(tmp_path / "b")
    assert one.jobs.keys() == many.jobs.keys()
    for job, columns in one.jobs.items():
        for metric in ("round", "retain", "forget", "test", "mia", "comm_bytes", "flops"):
            assert many.jobs[job][metric] == columns[metric], (job, metric)


def test_side_by_side_the_model_is_trained_once_however_many_threads_the_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small step takes one thread; the process around it has two."""
    trained: list[Path] = []
    begun = Run._train

    def counted(self: Run, seed: int, watch: Watch) -> Params:
        if not self.trained(seed):
            trained.append(self.folder.path)
        return begun(self, seed, watch)

    monkeypatch.setattr(Run, "_train", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        methods = ["--methods", "retrain,ft,not", "--together", "--alone", "not"]
        assert run_block(tmp_path / "many", tmp_path, *methods) == 0
    finally:
        torch.set_num_threads(before)
    assert trained == [tmp_path / "many" / "train"]


def test_side_by_side_a_stack_that_fails_is_said_and_its_methods_go_on_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Batched, visits: Sequence[Visit]) -> list[list[Block]]:
        raise torch.OutOfMemoryError("the stack is too wide")

    monkeypatch.setattr(Batched, "train_together", full)
    assert run_block(tmp_path / "run", tmp_path, "--methods", "retrain,not,ft", "--together", "--alone", "ft") == 0
    assert "the stack: failed: OutOfMemoryError: the stack is too wide; one by one" in capsys.readouterr().out
    (kept,) = record.all_in(tmp_path)
    assert {job.rpartition("/")[2] for job in kept.jobs} == {"train", "before", "retrain", "not", "ft"}


def test_the_seconds_of_a_stack_are_counted_once() -> None:
    """Three methods of 60 s in one stack, θ* and one alone: three minutes, not five."""
    jobs = {f"1/{r}": {"seconds": [0.0, 60.0]} for r in ("None/train", "r/ft", "r/not", "r/pgd", "r/mode")}
    alone = {"jobs": ["1/None/train", "1/r/mode"]}
    stacked = [{"jobs": ["1/None/train", f"1/r/{m}"], "beside": ["ft", "not", "pgd"]} for m in ("ft", "not", "pgd")]
    beside = reproduction.stacks_of(record.KeptResults("p", {}, (alone, *stacked), jobs))
    seconds, together = reproduction.spent({job: one["seconds"][-1] for job, one in jobs.items()}, beside)
    assert seconds == 180.0 and together == ["ft", "not", "pgd"]


def test_side_by_side_a_method_that_fails_or_runs_out_of_time_costs_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: NoT, server: object) -> State:
        raise RuntimeError("out of memory")

    methods = ["--methods", "retrain,not", "--together"]
    assert run_block(tmp_path / "run", tmp_path, *methods, "--budget", "0s") == 130
    with monkeypatch.context() as patched:
        patched.setattr(NoT, "begin", broken)
        assert run_block(tmp_path / "run", tmp_path, *methods) == 1
    assert "not: failed: RuntimeError: out of memory" in capsys.readouterr().out
    assert run_block(tmp_path / "run", tmp_path, *methods) == 0, "given again, it goes on"
    (kept,) = record.all_in(tmp_path)
    assert {job.rpartition("/")[2] for job in kept.jobs} == {"train", "before", "retrain", "not"}
    with pytest.raises(UnfedError, match="one seed"):
        run_block(tmp_path / "two", tmp_path, *methods, "--set", "seed=[0,1]")


def test_side_by_side_all_stop_after_the_same_round_and_go_on_to_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time is up between the first method's end of a round and the second's: all take one round more."""
    widths, minutes = list[int](), [0]
    stacked, evaluated = Batched.train_together, JobRunner._evaluate

    def seen(self: Batched, visits: Sequence[Visit]) -> list[list[Block]]:
        widths.append(len(visits))
        return stacked(self, visits)

    def slowly(self: JobRunner, *asked: Any) -> Any:
        minutes[0] += 10
        return evaluated(self, *asked)

    rare = ["--set", "checkpoint.rounds=1000", "--set", "checkpoint.seconds=1000000"]
    methods = ["--methods", "retrain,not,ft", "--together", "--set", "unlearning.rounds=3", *rare]
    assert run_block(tmp_path / "whole", tmp_path / "a", *methods) == 0
    with monkeypatch.context() as patched:
        patched.setattr(Batched, "train_together", seen)
        patched.setattr(JobRunner, "_evaluate", slowly)
        for module in ("unfed.cli.options", "paper_together"):
            patched.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: 60 * minutes[0]))
        # 30 minutes for θ* with rounds 0, 1 and 2, then 30 for three beginnings, then 10 for every end of a round
        assert run_block(tmp_path / "run", tmp_path / "b", *methods, "--budget", "75m") == 130
        assert widths == [3, 3], "nobody is left to take a round in a stack that must be compiled for it"
        for label in ("retrain", "not", "ft"):
            folder = Run.open(tmp_path / "run" / label).folder
            assert saved(folder, Job(0, "client-0-leaves", label)).round == 2
        minutes[0] = 0
        assert run_block(tmp_path / "early", tmp_path / "c", *methods, "--budget", "45m") == 130
        assert "the budget is spent; the same command goes on" in capsys.readouterr().out.splitlines()[-1]
        assert widths == [3, 3], "no stack is begun for a budget that the beginnings have spent"
        assert not list((tmp_path / "early" / "ft" / "state").glob("*/*/ft*")), "nor is another beginning"
    for place, results in (("run", "b"), ("early", "c")):
        assert run_block(tmp_path / place, tmp_path / results, *methods) == 0
        (one,), (other,) = record.all_in(tmp_path / "a"), record.all_in(tmp_path / results)
        for job, columns in one.jobs.items():
            for metric in ("round", "retain", "forget", "test", "mia", "comm_bytes", "flops"):
                assert other.jobs[job][metric] == columns[metric], (job, metric)


def test_a_block_without_a_trained_model_is_no_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retrain, "begin", lambda self, server: (_ for _ in ()).throw(RuntimeError("no kernel")))
    with pytest.raises(RuntimeError, match="no kernel"):
        run_block(tmp_path / "run", tmp_path, "--methods", "retrain,ft")


def test_a_number_or_a_label_that_nobody_has_is_refused(analysed: Run, tmp_path: Path) -> None:
    run = str(analysed.folder.path)
    with pytest.raises(UnfedError, match="such as sets=20, not 'sets=many'"):
        reproduction.main(["analyse", run, "figure-8", "--number", "sets=many", "--results", str(tmp_path)])
    with pytest.raises(UnfedError, match="Table 7 takes no number 'sets'; it has none"):
        reproduction.main(["analyse", run, "table-7", "--number", "sets=2", "--results", str(tmp_path)])
    with pytest.raises(UnfedError, match=r"--alone names 'mod', which is none of the methods\. Did you mean 'mode'\?"):
        run_block(tmp_path / "run", tmp_path, "--methods", "ft,mode", "--together", "--alone", "mod")
    assert not (tmp_path / "run").exists()


def test_what_is_refused_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduction.told(["add", str(tmp_path)]) == 2
    assert reproduction.told(["block", "digits-cn", "--out", str(tmp_path / "run"), "--methods", "ft"]) == 2
    assert reproduction.told(["block", "digits-cnn", "--out", str(tmp_path / "run"), "--methods", "nott"]) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == f"error: {tmp_path} is no run folder, and nothing was kept in it; give one that `unfed run` made."
    assert "Did you mean 'digits-cnn'?" in second and "Did you mean 'not'?" in third
    assert not (tmp_path / "run").exists()
