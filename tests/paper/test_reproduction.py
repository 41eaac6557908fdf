"""Results that were kept: what is in them, what may be set side by side, and the page that is made of them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
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
from unfed.model.digest import digests, fingerprint
from unfed.model.params import Params
from unfed.paper import analyses, record
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import reproduction

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


def item_of(text: str, heading: str) -> str:
    return text.partition(f"## {heading}:")[2].partition("\n## ")[0]


def test_of_a_method_that_was_revised_the_rows_are_left_out_and_no_others(
    first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = as_the_papers(first, "table-1", "fcu", "sealed")
    record.write(found, tmp_path)
    before = reproduction.page(tmp_path)[0]
    assert record.outdated(found) == [] and record.current(found) == found
    monkeypatch.setitem(revisions.METHODS, "ft", 99)
    assert record.outdated(found) == [] and reproduction.page(tmp_path)[0] == before, "it is not in there"
    monkeypatch.setitem(revisions.METHODS, "not", 99)
    monkeypatch.setitem(revisions.METHODS, "sealed", 99)
    (sentence,) = record.outdated(found)
    when = found.made[0]["created"]
    assert sentence == (
        f"cifar10-cnn (client-0-leaves, 2000 + 2000 rounds): `not`, `sealed` revised since {when}; the rows of `not`,"
        " `sealed` are left out until it is run again."
    )
    text = reproduction.page(tmp_path)[0]
    assert f"- {sentence}\n" in text
    table, then = item_of(text, "Table 1"), item_of(before, "Table 1")
    of_fcu = [line for line in then.splitlines() if line.startswith("| CIFAR-10, CNN | FCU |")]
    unmarked = table.replace("**", "")  # alone it is the nearest
    assert len(of_fcu) == 3 and all(line in unmarked for line in of_fcu), "its row, its verdicts, its gaps"
    assert "| CIFAR-10, CNN | NoT | 91.69 | 83.86 |" in table.partition("where we have nothing yet")[2]
    assert "| CIFAR-10, CNN | NoT |" not in table.partition("where we have nothing yet")[0]
    assert "| Sealed |" in then and "| Sealed |" not in table
    # θ*, NoT and Sealed of 2,000 rounds of 0.05 s
    assert " Outdated, to be run again: not, sealed (seed 0, about 5 GPU minutes); θ* included." in table
    assert "outdated" not in before.lower()


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
    then = item_of(reproduction.page(tmp_path / "table-1")[0], "Table 1")
    drawn = reproduction.page(tmp_path / "figure-4")[1]
    assert "~ |" in then and "figure-4-1.svg" in drawn
    monkeypatch.setitem(revisions.METHODS, "retrain", 99)
    text = reproduction.page(tmp_path / "table-1")[0]
    assert "the rows of `retrain` and all gaps to Retrain are left out until it is run again." in text
    table = item_of(text, "Table 1")
    (row,) = (line for line in table.splitlines() if line.startswith("| CIFAR-10, CNN | NoT |") and "Δ" in line)
    own = next(line for line in then.splitlines() if line.startswith("| CIFAR-10, CNN | NoT |"))
    assert row.split(" | ")[2].split()[0] == own.split(" | ")[2].split()[0] and row.count("(Δ not measured)") == 4
    (beside,) = (line for line in table.splitlines() if line.startswith("| CIFAR-10, CNN | NoT | 91.69 ± 0.02 "))
    assert "~ |" not in beside and "≠ |" not in beside, "which side of Retrain it stands on is not known"
    assert "| 0.53 \\| — |" in beside, "the paper's own share of Retrain's bytes is"
    assert "Outdated, to be run again: retrain (seed 0, about 3 GPU minutes); θ* included." in table
    text, drawn = reproduction.page(tmp_path / "figure-4")
    assert "- CIFAR-10, CNN: not shown." in (said := item_of(text, "Figure 4"))
    assert "Outdated, to be run again: retrain (seed 0, about 3 GPU minutes)" in said and "Not run: CIFAR" not in said
    assert not any(name.startswith("figure-4") for name in drawn)


def test_a_curve_stays_where_another_was_revised(first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the labels that stand for a method are outdated with it."""
    record.write(as_the_papers(first, "figure-4", "ft", "conv2", "head"), tmp_path)
    monkeypatch.setitem(revisions.METHODS, "not", 99)
    text, drawn = reproduction.page(tmp_path)
    said = item_of(text, "Figure 4")
    assert "figure-4-1.svg" in drawn and "| CIFAR-10, CNN | FT |" in said and "| NoT |" not in said
    assert "Outdated, to be run again: not, conv2, head (seed 0, about 7 GPU minutes); θ* included." in said


def test_a_revised_engine_or_evaluator_outdates_everything_that_was_made_before(
    first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = as_the_papers(first, "table-1", "ft")
    record.write(old, tmp_path)
    for name in ("ENGINE", "EVALUATOR"):
        with monkeypatch.context() as patched:
            patched.setattr(revisions, name, 99)
            assert record.current(old).jobs == {} and record.current(old).made == ()
            text = reproduction.page(tmp_path)[0]
            since = f"`{name.lower()}` revised since {old.made[0]['created']}"
            assert f"{since}; everything that was made before is left out until it is run again." in text
            table = item_of(text, "Table 1")
            assert "| CIFAR-10, CNN | Retrain | 9" not in table.partition("What the paper reports")[0]
            assert "- CIFAR-10, CNN: not shown. Not run: federaser, fukd, pgd, mode, fcu (seed 0," in table
            assert "Outdated, to be run again: retrain, ft, not (seed 0, about 7 GPU minutes)" in table
    monkeypatch.setattr(revisions, "ENGINE", 99)
    again = {job: columns for job, columns in old.jobs.items() if not job.endswith("/ft")}
    made = {**old.made[0], "jobs": sorted(again), "revisions": {**old.made[0]["revisions"], "engine": 99}}
    record.write(replace(old, made=(made,), jobs=again), tmp_path)
    table = item_of(reproduction.page(tmp_path)[0], "Table 1")
    assert "| CIFAR-10, CNN | NoT |" in table and "Outdated, to be run again: ft (seed 0," in table, "one after another"


def test_a_gap_is_taken_in_the_seeds_whose_retrain_counts(
    first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = as_the_papers(first, "figure-4", "ft", "conv2", "head")
    other = {f"1{job[1:]}": columns for job, columns in kept.jobs.items()}
    revised = {**kept.made[0]["revisions"], "retrain": 99}
    made = (*kept.made, {**kept.made[0], "jobs": sorted(other), "revisions": revised})
    record.write(replace(kept, made=made, jobs={**kept.jobs, **other}), tmp_path)
    monkeypatch.setitem(revisions.METHODS, "retrain", 99)
    said = item_of(reproduction.page(tmp_path)[0], "Figure 4")
    assert "CIFAR-10, CNN: seeds 0, 1 (retrain: 1);" in said and "retrain (seed 0, about" in said
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
    with pytest.raises(UnfedError, match="cannot be used for a folder"):
        list(reproduction.added(theirs, ours, "abc"))
    assert not list(tmp_path.glob("a/*.json"))


def test_the_page_has_every_item_and_the_price_of_what_was_not_run(tmp_path: Path) -> None:
    text, _ = reproduction.page(tmp_path)
    assert text.count("\n## Table ") == 8 and text.count("\n## Figure ") == 7
    # θ*, Retrain and seven methods of 2,000 rounds, three seeds, 0.05 s each
    assert "CIFAR-10, CNN (about 45 GPU minutes)" in text
    # θ*, Retrain, FT and NoT of 2,000, a Retrain of 4,000, one seed
    table_7 = text[text.index("## Table 7") : text.index("## Table 8")]
    assert "Not run: CIFAR-10, CNN (about 10 GPU minutes)" in table_7


def test_a_price_grows_with_the_data_and_the_network_and_belongs_to_the_command_beside_it(tmp_path: Path) -> None:
    configs = [Config.preset(name) for name in ("caltech101-vit", "cifar100-vit", "cifar10-cnn", "cifar100-cnn")]
    price = {one.name: reproduction.priced(one, ["not"]) / one.training.rounds for one in configs}
    assert price["cifar100-vit"] >= 5 * price["caltech101-vit"], "40,000 images a round instead of 5,600"
    assert price["cifar100-cnn"] > 3 * price["cifar10-cnn"], "3.7 times the FLOPs"
    text, _ = reproduction.page(tmp_path)
    for line in text.splitlines():
        if line.startswith("Not run: "):
            assert "--scale paper --set engine.precision=bf16` does it." in line, "float32 takes three times as long"


def test_the_price_of_a_block_is_about_what_the_slowest_one_took() -> None:
    """Those that shared their GPU took up to 1.4 times their price; others had fewer clients, or were stacked."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for kept in record.all_in(reproduction.RESULTS):
        config = Config.parse(kept.config)
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
    record.write(replace(record.kept(first, "abc"), preset="cifar10-cnn", config=cut), tmp_path)
    text, _ = reproduction.page(tmp_path)
    assert "| CIFAR-10, CNN | NoT | " in text and "CIFAR-10, CNN: partial, so no verdict." in text
    assert " ≠ |" not in text and " = |" not in text, "two rounds say nothing about the paper's 2,000"
    assert "Differs from the item: training.rounds 2 instead of 2000." in text
    # θ* and Retrain of two rounds as here, every other method 2,000 rounds of 0.05 s: 6 · 1.67, and 2 · 7 · 1.67
    missing = "ft, federaser, fukd, pgd, mode, fcu (seed 0, about 10 GPU minutes); everything of seeds 1, 2 (about 23"
    whole = "θ* included. All of it in the item's own rounds: about 45 GPU minutes."
    assert f"Not run: {missing} GPU minutes); {whole}" in text
    assert re.search(r"beside whatever else the machine did: seed 0 \d+\.\d minutes \(3 jobs\)", text)


def test_rows_of_fewer_rounds_than_the_papers_say_so_before_their_first_number(first: Run, tmp_path: Path) -> None:
    spec = next(s for s in paper_items()["table-1"].runs["paper"] if s.preset == "cifar10-cnn")
    whole = spec.config().to_json()
    for name, rounds in (("whole", 2000), ("cut", 60)):
        config = whole | {"unlearning": whole["unlearning"] | {"rounds": rounds}}
        record.write(replace(record.kept(first, "abc"), preset="cifar10-cnn", config=config), tmp_path / name)
    text = reproduction.page(tmp_path / "cut")[0]
    heading, said, table = text.partition("## Table 1")[2].split("\n\n")[:3]
    assert said.startswith("**Partial: CIFAR-10, CNN was cut short (unlearning.rounds 60 instead of 2000). "), heading
    assert table == "Rule: `best-gap`. Δ = gap to Retrain."
    entire = reproduction.page(tmp_path / "whole")[0]
    assert "cut short" not in entire and " ≠ |" in entire, "digits are not CIFAR-10, and a whole run is judged"


def test_a_picture_that_results_no_longer_give_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reproduction.page(reproduction.RESULTS)
    monkeypatch.setattr(reproduction, "page", lambda folder: made)  # the same every time, and drawn once
    monkeypatch.setattr(reproduction, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(reproduction, "DRAWN", tmp_path / "reproduction")
    assert reproduction.main(["page"]) == 0 and reproduction.main(["page", "--check"]) == 0
    assert len(made[1]) > 10
    for name in made[1]:
        kept = (tmp_path / "reproduction" / name).read_text()
        (tmp_path / "reproduction" / name).write_text(kept.replace("</svg>", "<g/></svg>"))
        assert reproduction.main(["page", "--check"]) == 1, name
        (tmp_path / "reproduction" / name).write_text(kept)


def test_a_folder_without_results_costs_nobody_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("what was made before\n")
    (tmp_path / "figure-6-1.svg").write_text("<svg/>")
    monkeypatch.setattr(reproduction, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(reproduction, "DRAWN", tmp_path)
    with pytest.raises(UnfedError, match="Nothing was kept in .*; the page stays as it is"):
        reproduction.main(["page", "--results", str(tmp_path / "reslts")])
    assert (tmp_path / "page.md").read_text() == "what was made before\n" and (tmp_path / "figure-6-1.svg").exists()


def test_bars_are_drawn_without_the_one_that_was_not_run_and_a_curve_is_not(first: Run, tmp_path: Path) -> None:
    for item in ("figure-1", "figure-4"):
        spec = next(s for s in paper_items()[item].runs["paper"] if s.preset == "caltech101-vit")
        record.write(replace(record.kept(first, "abc"), preset=spec.preset, config=spec.config().to_json()), tmp_path)
    text, drawn = reproduction.page(tmp_path)
    bars = text.partition("## Figure 1")[2].partition("## Figure 3")[0]
    assert "figure-1-1.svg" in drawn and "Not run: ft, pgd, mode, fcu (seed 0, " in bars
    assert not any(name.startswith("figure-4") for name in drawn)


def test_a_table_whose_own_method_was_not_run_is_not_run(first: Run, tmp_path: Path) -> None:
    spec = next(s for s in paper_items()["table-8"].runs["paper"] if s.preset == "cifar10-cnn")
    record.write(replace(record.kept(first, "abc"), preset="cifar10-cnn", config=spec.config().to_json()), tmp_path)
    text = reproduction.page(tmp_path)[0]
    table = text[text.index("## Table 8") : text.index("## Figure 1")]
    assert "| Retrain |" not in table and "Not run: CIFAR-10, CNN (about" in table, "Retrain alone measures nothing"
    assert "CIFAR-10, CNN: seed 0;" in text[: text.index("## Table 8")]


def test_a_result_stays_on_the_page_when_a_later_version_adds_a_key(first: Run, tmp_path: Path) -> None:
    spec = next(s for s in paper_items()["table-1"].runs["paper"] if s.preset == "cifar10-cnn")
    earlier = json.loads(json.dumps(spec.config().to_json()))
    del earlier["model"]["fresh_head"], earlier["request"][0]["population"]  # as if both had come later
    record.write(replace(record.kept(first, "abc"), preset="cifar10-cnn", config=earlier), tmp_path)
    assert "| CIFAR-10, CNN | NoT | " in reproduction.page(tmp_path)[0]


def test_every_kept_result_stands_on_the_page() -> None:
    text = reproduction.PAGE.read_text(encoding="utf-8")
    for found in map(record.current, record.all_in(reproduction.RESULTS)):
        assert all(about["commit"][:7] in text for about in found.made), f"{found.preset} is not shown"


@pytest.mark.figures
def test_the_page_in_the_docs_is_what_the_results_give() -> None:
    assert reproduction.main(["page", "--check"]) == 0, "run `python tools/reproduction.py page`"


def test_the_table_of_the_readme_is_that_of_the_page() -> None:
    """The paper's value and ours in every cell, of the same results."""
    item, kept = paper_items()["table-1"], record.all_in(reproduction.RESULTS)
    made = reproduction.of_results(item, kept).made
    assert made is not None
    ours = {row.method: row for row in made.rows if row.request == "CIFAR-10, CNN"}
    theirs = {row["method"]: row for row in published("T1") if (row["dataset"], row["model"]) == ("CIFAR-10", "CNN")}
    text = (reproduction.ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("| | Retain: paper · ours |")[2].partition("\n\n")[0].splitlines()[2:]
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


def test_every_result_that_the_page_names_is_there() -> None:
    named = re.findall(r"results/([\w-]+\.json)", reproduction.PAGE.read_text(encoding="utf-8"))
    assert named and [name for name in named if not (reproduction.RESULTS / name).exists()] == []


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


def test_the_page_shows_a_kept_analysis_with_its_figure_and_says_what_differs(
    figure_3: analyses.KeptAnalysis, tmp_path: Path
) -> None:
    """Kept under the name of the paper's own run, for which no test has the time."""
    kept = figure_3
    wanted = paper_items()["figure-3"].runs["paper"][0].config(["training.rounds=7"]).to_json()
    analyses.write(replace(kept, preset="cifar10-cnn", config=wanted), tmp_path)
    text, drawn = reproduction.page(tmp_path)
    assert "| NoT, last round |" in text and "training.rounds 7 instead of 2000" in text and "commit abcdef1" in text
    assert "(reproduction/figure-3-1.svg)" in text and drawn["figure-3-1.svg"].startswith("<svg")
    revised = {**kept.made["revisions"], "not": 0}
    analyses.write(
        replace(kept, preset="cifar10-cnn", config=wanted, made={**kept.made, "revisions": revised}), tmp_path
    )
    text, drawn = reproduction.page(tmp_path)
    assert "figure-3 of cifar10-cnn: `not` revised since" in text and not drawn
    # θ* of 7 rounds, the run's seven methods of 2,000 of 0.05 s
    assert "- CIFAR-10, CNN: outdated, to be run again (about 12 GPU minutes)." in item_of(text, "Figure 3")


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
    assert "at most 0.25 points of accuracy apart" in reproduction._trained_again(both)
    assert "(not and pgd began at different ones" in reproduction._trained_again(both)
    ft = {"0/client-0-leaves/ft": kept.jobs["0/client-0-leaves/not"]}
    third = record.merged(
        both, replace(new, made=({**about, "jobs": sorted({**others, **ft})},), jobs={**others, **ft})
    )
    assert "(not and ft, pgd began at different ones" in reproduction._trained_again(third), "kept after each other"
    whole = {**kept.jobs, **others, **ft}
    last = record.merged(third, replace(new, made=({**about, "jobs": sorted(whole)},), jobs=whole))
    assert reproduction._trained_again(last) == "", "everything was run again from one θ*"


def test_a_model_that_another_item_trained_too_is_compared_with_it(first: Run) -> None:
    """A client leaves in one result, a class in the other: one θ*, if the settings of training are the same."""
    kept = record.kept(first, "abc")
    (about,) = kept.made
    train = kept.jobs["0/None/train"]
    jobs = {"0/None/train": {**train, "test": [value - 0.5 for value in train["test"]]}}
    made = {**about, "created": "2099-01-01T00:00:00Z", "jobs": sorted(jobs), "trained": {"0": "other"}}
    config = {**kept.config, "request": [{"id": "class-0", "classes": [0]}]}
    later = replace(kept, config=config, made=(made,), jobs=jobs)
    said = reproduction._trained_elsewhere(later, [kept, later])
    assert f"as for `results/{kept.preset}-{kept.key}.json` and is not the same, at most 0.50 points" in said
    assert reproduction._trained_elsewhere(kept, [kept, later]) == "", "it is said of the later one"
    same = replace(later, made=({**made, "trained": about["trained"]},))
    untold = replace(later, made=({name: value for name, value in made.items() if name != "trained"},))
    otherwise = replace(later, config={**config, "training": {**config["training"], "lr": 0.5}})
    assert [reproduction._trained_elsewhere(one, [kept]) for one in (same, untold, otherwise)] == ["", "", ""]


def test_shares_of_clients_are_compared_after_equally_many_rounds(first: Run, tmp_path: Path) -> None:
    """Ten percent was run at two lengths, fifty and ninety at the shorter one: that is the one that is shown."""
    item, kept = paper_items()["figure-6"], record.kept(first, "abc")
    jobs = {f"0/r/{label}": next(iter(kept.jobs.values())) for label in ("retrain", "ft", "mode", "fcu", "not")}
    found = []
    for spec in (spec for spec in item.runs["paper"] if spec.preset == "cifar10-cnn"):
        for rounds in (7, 2000) if spec.name == "CNN, 10 %" else (7,):
            config = spec.config([f"training.rounds={rounds}"]).to_json()
            found.append(replace(kept, preset="cifar10-cnn", config=config, jobs=jobs))
    said = reproduction.of_results(item, found)[1]
    assert len(said) == 3 and all("training.rounds 7 instead of 2000" in sentence for sentence in said)
    (told,) = reproduction.of_results(item, found).cut
    assert told.startswith(
        "**Partial: CNN, 10 %; CNN, 50 %; CNN, 90 % were cut short (training.rounds 7 instead of 2000). Their "
    )


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
    told = reproduction.took(record.KeptResults("p", {}, (alone, *stacked), jobs), ["ft", "not", "pgd", "mode"])
    assert told == (
        "Rounds alone, beside whatever else the machine did: seed 1 3.0 minutes (5 jobs, of which ft, not, pgd in one"
        " stack)."
    )


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
