"""Every table and figure of the paper from one command: what belongs to it, and that it comes out."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from torch import nn
from typer.testing import CliRunner

from unfed.cli.main import app
from unfed.config import revisions
from unfed.errors import UnfedError
from unfed.model.networks import build
from unfed.paper import pictures
from unfed.paper.items import SCALES, Item, Spec, chosen, items, published, shared
from unfed.paper.pictures import Curve
from unfed.paper.views import VIEWS, times
from unfed.paper.views.base import ItemView, Section
from unfed.paper.views.layers import show as show_layers
from unfed.paper.views.models import fresh_with_head
from unfed.paper.views.results import gaps, gaps_by_round, ratios
from unfed.report.rules import Row, rows
from unfed.requests.entry import Job
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from worlds import Small, rounds_take

TABLES = [f"table-{n}" for n in range(1, 9)]
FIGURES = [f"figure-{n}" for n in (1, 3, 4, 5, 6, 7, 8)]  # figure 2 is a drawing of the method
EXTRAS = ["extra-1", "extra-2"]  # ViT on CIFAR-100 and EfficientNet: described, not printed


def test_every_table_and_every_figure_with_data_is_there() -> None:
    assert list(items()) == TABLES + FIGURES + EXTRAS
    assert {item.view for item in items().values()} == set(VIEWS)


@pytest.mark.parametrize("name", TABLES + FIGURES + EXTRAS)
@pytest.mark.parametrize("scale", SCALES)
def test_the_runs_of_an_item_are_configs_that_compare_with_retrain(name: str, scale: str) -> None:
    specs = items()[name].runs[scale]
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        assert "retrain" in spec.config().methods.run
        assert spec.config().requests()


@cache
def network(name: str, data: str) -> nn.Module:
    side = {"digits": 8, "caltech101": 224}.get(data, 224 if name in ("resnet18", "vit-b-16") else 32)
    shape = (1 if data == "digits" else 3, side, side)
    return build(name, shape=shape, classes={"cifar100": 100, "caltech101": 101}.get(data, 10), seed=0)


@pytest.mark.parametrize("name", [*TABLES, *FIGURES, pytest.param(EXTRAS[0], marks=pytest.mark.slow), EXTRAS[1]])
@pytest.mark.parametrize("scale", SCALES)
def test_every_layer_that_a_method_names_is_there(name: str, scale: str) -> None:
    for spec in items()[name].runs[scale]:
        config = spec.config()
        for label in config.methods.run:
            config.method(label).check(network(config.model.name, config.data.name))


def test_items_whose_runs_differ_in_their_methods_alone_share_one() -> None:
    found, longer = shared("digits"), shared("digits", ["training.rounds=3"])
    first, layers, classes = (items()[name].runs["digits"][0] for name in ("table-1", "figure-3", "table-3"))
    negating, perturbing = (items()[name].runs["digits"][0] for name in ("figure-4", "figure-5"))
    assert found[first].folder == found[layers].folder != found[classes].folder
    assert found[first].folder != longer[first].folder
    assert found[negating].folder == found[perturbing].folder, "other layers and other perturbations, one θ*"
    assert "zero" in found[negating].config.methods.run and "zero" not in found[negating].methods
    assert found[perturbing].methods == perturbing.config().methods.run


def test_a_name_that_means_two_methods_is_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [
        Spec(str(i), "digits-cnn", ('methods.run=["mine"]', f'methods.mine={{use="not", layers=["{layer}"]}}'))
        for i, layer in enumerate(("conv1", "conv2", "conv1"))
    ]
    item = Item("table-1", "", "results", {"digits": tuple(specs)})
    monkeypatch.setattr("unfed.paper.items.items", lambda: {"table-1": item})
    one, two, three = (shared("digits")[spec] for spec in specs)
    assert one.folder == three.folder != two.folder


def test_a_second_item_trains_nothing_again_and_each_shows_its_own_methods(tmp_path: Path) -> None:
    few = ["training.rounds=2", "unlearning.rounds=1", "evaluation.every=1", "seed=0"]
    for name in ("figure-4", "figure-5"):
        done = paper(name, "--out", str(tmp_path), "-q", *(part for change in few for part in ("--set", change)))
        assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "runs").iterdir()
    lines = Run.open(folder).lines()
    assert [line["round"] for line in lines if line["method"] == "train"] == [0, 1, 2]
    assert [line["round"] for line in lines if line["method"] == "retrain"] == [0, 1, 2]
    for name, own, other in (("figure-4", "conv2", "zero"), ("figure-5", "zero", "conv2")):
        text = (tmp_path / f"{name}.json").read_text(encoding="utf-8")
        assert f'"{own}"' in text and f'"{other}"' not in text


def test_items_that_differ_in_who_leaves_train_once(tmp_path: Path) -> None:
    few = ["training.rounds=2", "unlearning.rounds=1", "evaluation.every=1", "seed=0", 'methods.run=["retrain"]']
    sets = [part for change in few for part in ("--set", change)]
    done = paper("table-3", "table-4", "--out", str(tmp_path), *sets)
    assert done.exit_code == 0, done.output
    one, other = (Run.open(folder) for folder in sorted((tmp_path / "runs").iterdir()))
    assert f"θ* of {other.folder.path.name} is that of {one.folder.path.name}" in done.output.replace("\n", " ") or (
        f"θ* of {one.folder.path.name} is that of {other.folder.path.name}" in done.output.replace("\n", " ")
    )
    trained = [[line for line in run.lines() if line["method"] == "train"] for run in (one, other)]
    assert trained[0] == trained[1] and len(trained[0]) == 3, "the same seconds, too: it was taken over"


def test_an_item_is_made_though_the_run_of_another_is_damaged(tmp_path: Path) -> None:
    """Every item had been refused while one run of any other could not be read."""
    few = ["training.rounds=1", "unlearning.rounds=1", "evaluation.attack=false", "seed=0", 'methods.run=["retrain"]']
    sets = [part for change in few for part in ("--set", change)]
    assert paper("table-3", "--out", str(tmp_path), "-q", *sets).exit_code == 0
    (other,) = (tmp_path / "runs").iterdir()
    (other / "run.json").write_text("{")
    done = paper("table-4", "--out", str(tmp_path), *sets)
    assert done.exit_code == 0, done.output
    assert f"θ* is not taken from {other.name}" in done.output.replace("\n", " ")
    page = (tmp_path / "paper.html").read_text(encoding="utf-8")
    assert "not measured: The run description at" in page and "Instance-wise" in page


def test_a_run_of_another_config_or_edition_in_the_place_of_the_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers had stood on the page as this item's."""
    few = ["training.rounds=1", "unlearning.rounds=1", "evaluation.attack=false", "seed=0", 'methods.run=["retrain"]']
    sets = [part for change in few for part in ("--set", change)]
    assert paper("table-3", "table-4", "--out", str(tmp_path), "-q", *sets).exit_code == 0
    one, other = sorted((tmp_path / "runs").iterdir())
    page = (tmp_path / "paper.html").read_bytes()
    monkeypatch.setitem(revisions.METHODS, "retrain", 99)
    with pytest.raises(UnfedError, match="`retrain` revised since .* was made; move it away"):
        paper("table-3", "--out", str(tmp_path), "-q", *sets)
    monkeypatch.undo()
    shutil.rmtree(one)
    shutil.copytree(other, one)
    with pytest.raises(UnfedError, match="holds a run of another config; move it away"):
        paper("table-3", "table-4", "table-5", "--out", str(tmp_path), "-q", *sets)
    assert (tmp_path / "paper.html").read_bytes() == page and {*(tmp_path / "runs").iterdir()} == {one, other}


def test_the_papers_own_methods_and_models_are_run_at_its_scale() -> None:
    """Each published row has a run of that data, model and method."""
    from unfed.report.tables import name_of

    names = {"l1-sparse": "ℓ1-sparse"}
    for item in items().values():
        runs = {spec.name: {name_of(m) for m in spec.config().methods.run} for spec in item.runs["paper"]}
        for row in published(item.published) if item.published else ():
            own = runs[f"{row['dataset']}, {row['model']}"]
            assert names.get(row["method"], row["method"]) in own, (item.id, row["method"])


def test_published_numbers_are_the_papers() -> None:
    (ft,) = [r for r in published("T1") if (r["dataset"], r["model"], r["method"]) == ("CIFAR-10", "CNN", "FT")]
    assert (ft["forget"], ft["avg_gap"]) == ("85.56", "1.01")
    assert [r["t_unlearn"] for r in published("T7") if r["method"] == "NoT"] == ["0.04", "0.0017", "0.0006"]


def test_an_unknown_item_is_named_with_its_neighbour() -> None:
    assert [item.id for item in chosen(["figure-4", "table-2"])] == ["table-2", "figure-4"]
    with pytest.raises(UnfedError, match="table-1"):
        chosen(["tabel-1"])


def line(method: str, t: int, seed: int = 0, **metrics: Any) -> Any:
    return {"seed": seed, "request": "r", "method": method, "round": t, **metrics}


def test_the_gap_after_each_round_is_the_mean_distance_to_the_last_retrain_of_that_seed() -> None:
    goal: dict[str, Any] = {"retain": 90.0, "forget": 50.0, "test": 80.0, "mia": 50.0}
    lines = [
        line("retrain", 1, retain=0.0, forget=0.0, test=0.0, mia=0.0),
        line("retrain", 2, **goal),
        line("retrain", 2, seed=1, **{**goal, "retain": 92.0}),
        line("not", 0, **{**goal, "forget": 58.0}),  # 8 / 4
        line("not", 1, **goal),
        line("not", 0, seed=1, **{**goal, "forget": 58.0}),  # (2 + 8) / 4
        line("not", 1, seed=1, **{**goal, "mia": "not measured: no test data"}),
    ]
    after_0, after_1 = cast(Any, gaps_by_round(cast(Any, lines))["not"])
    assert after_0 == (0, pytest.approx(2.25), pytest.approx(math.sqrt(0.125)))
    assert after_1 == (1, pytest.approx(0.0), None), "one repetition has no spread"


def test_the_smallest_gap_of_a_figure_is_that_of_a_result_as_in_the_tables() -> None:
    """At round 0 FT is the old model: no round of it has that gap."""
    goal: dict[str, Any] = {"retain": 90.0, "forget": 50.0, "test": 80.0, "mia": 50.0}
    lines = [line("retrain", 2, **goal), line("ft", 0, **goal)]
    lines += [line("ft", t, **{**goal, "forget": 50.0 + 4 * t}) for t in (1, 2)]
    (grid,) = gaps(items()["figure-5"], {"digits": cast(Any, lines)}).grids
    assert grid.body == (("digits", "FT", "1.00", "1", "2.00"),)


def test_without_retrain_there_is_no_gap() -> None:
    with pytest.raises(UnfedError, match="Retrain"):
        gaps_by_round(cast(Any, [line("not", 0, retain=1.0)]))


# --- through the command line -----------------------------------------------------------------------------------------

SMALL = ["seed=0", "training.rounds=2", "unlearning.rounds=2", "evaluation.every=1"]
SMALL += ["data.train_size=300", "data.test_size=200"]


def paper(*arguments: str) -> Any:
    sets = [part for change in SMALL for part in ("--set", change)]
    return CliRunner().invoke(app, ["paper", *arguments, *sets], catch_exceptions=False)


@pytest.mark.slow
def test_one_command_makes_files_and_a_page_and_does_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "_noise", lambda *_: "not measured: it takes long, and a kept analysis has it")
    wanted = ["table-3", "table-7", "figure-1", "figure-3", "figure-4", "figure-5", "figure-6"]
    arguments = [*wanted, "-o", str(tmp_path), "--quiet", "--json", "--set", 'methods.run=["retrain","ft","not"]']
    done = paper(*arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"page": str(tmp_path / "paper.html"), "items": wanted}
    made = {p.name for p in tmp_path.iterdir()}
    assert {"table-3.md", "table-3.tex", "table-3.json", "table-7.md", "figure-1.svg", "figure-4.json"} <= made
    assert {"figure-3-1.svg", "figure-3-2.svg", "figure-6-1.svg", "figure-6-2.svg"} <= made
    page = (tmp_path / "paper.html").read_text()
    for name in wanted:
        assert f'id="{name}"' in page and f'href="#{name}"' in page
    assert "What the paper reports" in page
    assert "costs have their own units" in page
    assert "costs have their own units" in (tmp_path / "table-3.md").read_text()
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for picture in tmp_path.glob("*.svg"):
        root = ElementTree.fromstring(picture.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "--series-0:" in picture.read_text(), "a file has no page to take its colours from"
    layers = json.loads((tmp_path / "figure-3.json").read_text())["digits, CNN"]
    assert layers["CKA"]["NoT, round 0"]["conv1"] == pytest.approx(1.0, abs=1e-3), "it answers with the other sign"
    assert layers["normalised"]["NoT, round 0"]["conv1"] == pytest.approx(1.0, abs=1e-2)
    fresh, ours = (layers["CKA"][model]["head"] for model in ("Retrain, round 0", "NoT, last round"))
    assert layers["normalised"]["NoT, last round"]["head"] == pytest.approx((ours - fresh) / (1 - fresh))
    assert layers["twin"]["negated"]["conv1"] == pytest.approx(1.0, abs=1e-3)
    assert layers["twin"]["random layer (control)"]["conv1"] < 0.999, "the control is another layer"
    assert "NoT, last round" in layers["with Retrain"]
    assert "makes FT's time too long" in (tmp_path / "table-7.md").read_text(), "what stands in for θ*_long is said"
    runs = sorted((tmp_path / "runs").iterdir())
    before = {run: (run / "trajectory.jsonl").read_bytes() for run in runs}
    assert paper("table-7", "figure-5", *arguments[len(wanted) :]).exit_code == 0
    assert sorted((tmp_path / "runs").iterdir()) == runs
    assert {run: (run / "trajectory.jsonl").read_bytes() for run in runs} == before
    assert 'id="table-3"' in (tmp_path / "paper.html").read_text(), "what was made before stays on the page"


@pytest.mark.slow
def test_the_spectrum_is_drawn_with_the_numbers_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = items()["figure-8"]
    fewer = tuple(replace(spec, numbers=(*spec.numbers, ("batches", 48), ("sets", 2))) for spec in item.runs["digits"])
    assert {"size": 300, "sets": 10}.items() <= dict(item.runs["digits"][0].numbers).items()
    monkeypatch.setitem(items(), "figure-8", replace(item, runs={**item.runs, "digits": fewer}))
    sets = ["--set", 'methods.run=["retrain","ft","not"]', "--set", "training.rounds=3", "--set", "unlearning.rounds=1"]
    assert paper("figure-8", "-o", str(tmp_path), "--quiet", *sets).exit_code == 0
    found = json.loads((tmp_path / "figure-8.json").read_text())["digits, CNN"]
    assert found["numbers"] == {"batch": 16, "batches": 48, "size": 300, "sets": 2}
    for name in ("FT", "NoT", "Retrain"):
        shares = [psi for _, psi in found[name]]
        assert shares == sorted(shares) and shares[-1] <= 1.0 + 1e-9, "Ψ rises to 1"
    told = (tmp_path / "figure-8.md").read_text()
    assert "batches 48" in told and "digits, CNN: made of seed 0 alone." in told


def test_what_an_earlier_command_made_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An analysis takes minutes, and the page is written after every item."""
    seen, view = list[str](), VIEWS["bars"]

    def counted(item: Item, runs: Any) -> Section:
        seen.append(item.id)
        return view.make(item, runs)

    few = ["-o", str(tmp_path), "--quiet", "--set", 'methods.run=["retrain","not"]']
    assert paper("figure-1", *few).exit_code == 0
    monkeypatch.setitem(VIEWS, "bars", replace(view, make=counted))
    assert paper("table-1", "table-8", *few).exit_code == 0
    assert seen == ["figure-1"]


def test_where_nothing_was_attacked_there_is_no_gap_and_the_page_says_so(tmp_path: Path) -> None:
    sets = ["--set", "evaluation.attack=false", "--set", 'methods.run=["retrain","ft"]']
    assert paper("figure-4", "-o", str(tmp_path), "--quiet", *sets).exit_code == 0
    assert "not measured: average gap to Retrain at no round" in (tmp_path / "paper.html").read_text()
    assert not list(tmp_path.glob("*.svg"))


@pytest.mark.slow
def test_the_analyses_start_where_the_configured_not_starts(tmp_path: Path) -> None:
    sets = ["--set", 'methods.not.layers=["conv2"]', "--set", 'methods.run=["retrain","ft","not"]']
    assert paper("figure-3", "-o", str(tmp_path), "--quiet", *sets).exit_code == 0
    found = json.loads((tmp_path / "figure-3.json").read_text())["digits, CNN"]["CKA"]["NoT, round 0"]
    assert found["conv2"] == pytest.approx(1.0, abs=1e-3) and found["head"] < 0.999
    assert 'id="table-7"' not in (tmp_path / "paper.html").read_text(), "it shares this run, but nobody asked for it"


def test_the_list_says_what_would_run() -> None:
    done = CliRunner().invoke(app, ["paper", "table-2", "--scale", "paper", "--list", "--json"])
    assert json.loads(done.stdout)["table-2"]["runs"][0]["preset"] == "caltech101-vit"
    assert "table-2" in CliRunner().invoke(app, ["paper", "--list"]).stdout


def test_a_missing_data_set_is_found_before_any_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNFED_DATA", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnfedError, match="cifar10"):
        paper("table-6", "--scale", "paper", "-o", str(tmp_path / "out"))
    assert not list(tmp_path.glob("out/runs/*/trajectory.jsonl"))


def test_an_item_that_cannot_be_made_is_named_and_the_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(item: object, runs: object) -> Section:
        raise UnfedError("The gradients vanish.")

    monkeypatch.setitem(VIEWS, "gaps", replace(VIEWS["gaps"], make=fails))
    with pytest.raises(UnfedError, match=r"Figure 4: The gradients vanish\."):
        paper("figure-4", "table-3", "-o", str(tmp_path), "--quiet", "--set", 'methods.run=["retrain","not"]')
    page = (tmp_path / "paper.html").read_text()
    assert "not measured: The gradients vanish." in page and 'id="table-3"' in page


def test_an_analysis_that_fails_on_a_fresh_model_is_found_before_any_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(item: object, runs: object) -> None:
        raise UnfedError("The gradients vanish.")

    analysis = VIEWS["spectrum"].analysis
    assert analysis is not None
    monkeypatch.setitem(VIEWS, "spectrum", ItemView(analysis.make, replace(analysis, rehearse=fails)))
    with pytest.raises(UnfedError, match="vanish"):
        paper("figure-8", "-o", str(tmp_path), "--quiet", "--set", 'methods.run=["retrain","ft","not"]')
    assert not list(tmp_path.glob("runs/*/trajectory.jsonl"))


def test_a_head_that_is_zero_is_drawn_and_any_other_is_left(small: Small) -> None:
    for name, drawn in (("vit-tiny", True), ("cnn-tiny", False)):
        world = simulated(small(f"model.name={name}"), 0)
        params, was = fresh_with_head(world, 7)
        fresh = world.fresh(7)
        changed = {name for name, tensor in fresh.items() if not bool((params[name] == tensor).all())}
        assert was is drawn and len(changed) == int(drawn), "the head's weight, and nothing else"
        assert all(bool(params[name].any()) and "head" in name for name in changed)


@pytest.mark.slow
def test_a_fresh_transformer_has_a_zero_head_and_is_analysed_all_the_same(tmp_path: Path) -> None:
    sets = ["--set", 'model.name="vit-tiny"', "--set", 'methods.run=["retrain","ft","not"]']
    assert paper("figure-3", "-o", str(tmp_path), "--quiet", *sets).exit_code == 0
    found = json.loads((tmp_path / "figure-3.json").read_text())["digits, CNN"]
    for layers in (found["CKA"]["Retrain, round 0"], *found["twin"].values()):
        assert all(isinstance(value, float) for value in layers.values()), "the head's too"
    assert "for Retrain's start and the twins it is drawn by nn.Linear" in (tmp_path / "figure-3.md").read_text()


def test_a_spent_budget_stops_after_its_round_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["table-3", "-o", str(tmp_path), "--quiet", "--set", 'methods.run=["retrain","not"]']
    arguments += ["--set", "checkpoint.rounds=1000", "--set", "checkpoint.seconds=1000000"]
    with monkeypatch.context() as patched:
        rounds_take(40, patched)
        stopped = paper(*arguments, "--budget", "30m")
    assert stopped.exit_code == 130 and "The budget is spent." in stopped.stderr
    assert not (tmp_path / "paper.html").exists()
    stood = [Run.open(path).folder.saved(Job(0, None, "train")) for path in tmp_path.glob("runs/*")]
    assert [state.round for state in stood if state] == [1], "half an hour is up in the first of two rounds"
    assert paper(*arguments).exit_code == 0
    assert (tmp_path / "paper.html").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["table-1", "--budget", "9 minutes"], "90s, 9m or 1.5h"),
        (["table-9"], "choose"),
        (["--scale", "digit"], "digits"),
        (["table-1", "--set", "training.round=2"], "rounds"),
        (["figure-3", "--set", 'methods.run=["retrain","not"]'], "ft"),
        (["table-1", "--set", 'request=[{id="a",clients=["0"]},{id="b",clients=["1"]}]'], "one request"),
        (["table-7", "--set", 'methods.not.perturbation="zero"'], "plain negation"),
        (["table-8", "figure-4", "--set", 'methods.conv2={use="not",layers=["conv9"]}'], "conv9"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(arguments: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match=says):
        CliRunner().invoke(app, ["paper", *arguments, "-o", str(tmp_path / "out")], catch_exceptions=False)
    assert not list(tmp_path.glob("out/*.*")) and not list(tmp_path.glob("out/runs/*"))


@pytest.mark.figures
def test_every_curve_is_drawn_and_named_and_not_has_the_first_colour() -> None:
    points = [(0.0, 4.0), (1.0, 1.0)]
    both = pictures.curves([Curve("FT", points), Curve("NoT", points)], "t", "round", "gap", item="f").svg
    alone = pictures.curves([Curve("FT", points)], "t", "round", "gap", item="f").svg
    assert both is not None and alone is not None
    assert ">FT<" in both and ">NoT<" in both and "var(--series-1)" in both
    assert ">FT<" in alone and "var(--series-1)" not in alone
    # Drawn in this order, so the first colour comes with the first name of the legend.
    assert both.index(">NoT<") < both.index(">FT<")


@pytest.mark.figures
def test_no_two_models_have_one_colour_in_a_picture() -> None:
    """The original is the yardstick of the first picture, and a curve of the third."""
    names = ("NoT, round 0", "Retrain, round 0", "FT, last round", "NoT, last round", "Retrain, last round")
    found = {"CKA": names, "normalised": names[:1] + names[2:], "with Retrain": ("original", *names[:1], *names[2:4])}
    layers = {key: {name: {"conv1": 0.5, "head": 0.4} for name in own} for key, own in found.items()}
    layers["twin"] = {name: {"conv1": 0.5} for name in ("negated", "random layer (control)")}
    shown = show_layers(items()["figure-3"], {"run": {"layers": layers, "preset": "p", "said": []}})
    for picture, own in zip(shown.pictures, layers.values(), strict=True):
        assert picture.svg is not None
        assert len({*re.findall(r"var\(--series-\d\)", picture.svg)}) == len(own), picture.title


def test_a_small_networks_costs_are_seen_beside_a_large_ones_as_shares_of_retrains() -> None:
    scores = {"retain": 90.0, "forget": 80.0, "test": 80.0, "mia": 50.0}

    def shared(whole: float) -> list[Row]:
        told = {"retrain": whole, "not": whole / 2, "ft": whole / 4}
        ends: dict[str, Any] = {
            label: {"seed": 0, "request": "r", "method": label, "round": 1, "comm_bytes": cost, "flops": 2 * cost}
            for label, cost in told.items()
        }
        lines: list[Any] = [end | scores | {"model": True} for end in ends.values()]
        return rows(lines, "best-gap")

    shown = ratios(items()["figure-6"], {"ViT": shared(4e12), "CNN": shared(4e9)})
    grid, (gaps, *costs) = shown.grids[0], shown.pictures
    assert gaps.svg is not None and "average gap to Retrain (root scale)" in gaps.svg
    assert {row[:2]: row[3:] for row in grid.body} == {
        (name, label): (share, share) for name in ("ViT", "CNN") for label, share in (("NoT", "0.50"), ("FT", "0.25"))
    }
    for picture in costs:
        assert picture.svg is not None and "NoT ViT 0.5, CNN 0.5; FT ViT 0.25, CNN 0.25." in picture.svg


@pytest.mark.figures
def test_a_spread_is_a_whisker_that_does_not_go_below_nothing() -> None:
    series = {"NoT": [("10 %", 1.0), ("50 %", 2.0)]}
    plain, spread = (
        pictures.groups(series, "gap", "share", item="f", spreads=own).svg for own in (None, {"NoT": [3.0, None]})
    )
    assert plain is not None and spread is not None and len(spread) > len(plain)
    assert "LineCollection" not in plain and spread.count("LineCollection_") == 1


@pytest.mark.figures
def test_groups_of_bars_name_every_method_and_leave_out_what_was_not_measured() -> None:
    series = {"FT": [("10 %", 1.0), ("50 %", math.nan)], "NoT": [("10 %", 2.0), ("50 %", 3.0)]}
    svg = pictures.groups(series, "gap", "share", item="f").svg
    assert svg is not None and all(f">{text}<" in svg for text in ("FT", "NoT", "10 %", "50 %"))
    assert svg.count("var(--series-0)") >= 3 and svg.count("var(--series-1)") >= 2
