"""The benchmark: one frozen protocol, one scorecard per method, interrupted and gone on with, ranked on one page."""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from typer.testing import CliRunner

from unfed import storage
from unfed.cli.main import app
from unfed.config import revisions
from unfed.errors import UnfedError
from unfed.federation.state import Ledger
from unfed.measures.undo.flip import Knowledge
from unfed.methods import METHODS, State
from unfed.report import figures, scorecards
from unfed.report.drawing import Picture
from unfed.report.scorecards import BenchResult, NotServed, Scorecard, cells, front, read_results
from unfed.runs.simulated import simulated
from unfed.studies.bench import Benchmark, Scenario, UtilityLooks, bench, mean, probes, read_protocol, worst
from unfed.studies.grid import on_ray, quiet

ROOT = Path(__file__).parents[2]
TINY: dict[str, Any] = {
    "bench": "unfed-bench 1.0",
    "suite": "tiny",
    "about": ["seconds, for tests"],
    "models": 10,
    "within": 5.0,
    "look": 1,
    "rounds": 2,
    "peaks": [0.1, 0.05],
    "rows": 60,
    "probed": 4,
    "probe_rate": 0.01,
    "config": {
        "data": {"name": "digits", "train_size": 200, "test_size": 60},
        "partition": {"clients": 3},
        "poison": {"client": "0", "target_class": 0, "share": 0.5},
        "model": {"name": "cnn-tiny"},
        "training": {"rounds": 2, "batch": 32, "lr": 0.1, "schedule": {"kind": "one-cycle"}},
    },
    "federations": {"iid": {}},
    "requests": {"client": {"clients": ["0"]}},
}


def written(folder: Path, **changes: Any) -> Path:
    file = folder / "tiny.json"
    file.write_text(json.dumps(TINY | changes))
    return file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished benchmark of NoT and SSD, and its protocol beside it."""
    folder = tmp_path_factory.mktemp("bench")
    work = Benchmark.of(str(written(folder)), ["not", "ssd"], folder / "out", device="cpu", command="unfed bench")
    found = bench(work)
    assert [one.title for one in found] == ["Retrain", "NoT", "SSD"]
    return folder


def cli(*words: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, words)])


# --- the protocol -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suite", "sha256"),
    [
        ("small", "f3cbd7b828bd42eef8f14e18a5409cada40aef80661ec91299b4857811202f1d"),
        ("cifar10", "23d2ef81ed72fafb8ca75e2cec8c9bbad1f9c6a6d9eadd613bf982426a0a8c2d"),
    ],
)
def test_the_protocols_of_version_1_are_frozen(suite: str, sha256: str) -> None:
    protocol, found = read_protocol(suite)
    assert (protocol.bench, found) == ("unfed-bench 1.0", sha256), "a change is another version of the benchmark"


def test_a_method_of_one_place_runs_at_the_owners_and_every_method_has_the_same_recipe(tmp_path: Path) -> None:
    work = Benchmark.of(str(written(tmp_path)), ["ssd", "not"], tmp_path / "out")
    config = work.config("iid", "client", {"not": 0.05})
    assert config.methods.said("ssd", "federated", False) is True
    recipes = {label: config.methods.recovery(label) for label in work.methods}
    assert {label: one.lr for label, one in recipes.items()} == {"retrain": 0.1, "ssd": 0.1, "not": 0.05}
    assert {(one.rounds, one.schedule and one.schedule.kind) for one in recipes.values()} == {(2, "one-cycle")}


# --- matched utility, tuning, by hand ---------------------------------------------------------------------------------


class FakeScenario:
    """Two seeds whose goals are 90; a model's validation accuracy is its only number."""

    protocol = SimpleNamespace(look=2)
    goals: ClassVar = {0: 90.0, 1: 90.0}

    def validation(self, params: dict[str, torch.Tensor]) -> float:
        return float(params["v"])


def states(round: int, *values: float, model: bool = True) -> list[State]:
    return [State({"v": torch.tensor(value)}, round=round, model=model) for value in values]


def looks(rounds: int, on_way: Any = None) -> UtilityLooks:
    servers = [SimpleNamespace(ledger=Ledger(comm_bytes=0)) for _ in range(2)]
    return UtilityLooks(FakeScenario(), SimpleNamespace(servers=servers), (0, 1), rounds, on_way)  # type: ignore[arg-type]


def test_a_model_is_judged_at_the_first_look_at_its_goal_from_the_peak_of_the_cycle_on() -> None:
    seen = looks(10)
    assert not seen(1, states(1, 99.0, 99.0)), "before the peak (round 2 of 10) no look counts"
    assert not seen(2, states(2, 89.9, 90.0))
    assert not seen(3, states(3, 95.0, 95.0)), "between two looks"
    assert not seen(4, states(4, 80.0, 99.0)), "the second model stays as it was judged"
    assert seen(6, states(6, 90.0, 50.0))
    first, second = seen.whole([{}, {}])
    assert (first.round, first.reached, first.validation) == (6, True, 90.0)
    assert (second.round, second.reached, second.validation) == (2, True, 90.0)


def test_a_model_that_never_reaches_its_goal_is_judged_at_its_last_round() -> None:
    seen = looks(5)
    seen(1, states(1, 10.0, 95.0))
    seen(5, states(5, 70.0, 95.0))
    first, second = seen.whole([{}, {}])
    assert (first.round, first.reached, first.validation) == (5, False, 70.0)
    assert (second.round, second.reached) == (1, True)


def test_what_is_no_model_yet_is_not_judged_and_what_takes_no_round_is_judged_at_the_end() -> None:
    seen = looks(5)
    seen(3, states(3, 99.0, 99.0, model=False))
    assert not seen.found
    done = seen.whole([{"v": torch.tensor(91.0)}, {"v": torch.tensor(3.0)}])
    assert [(one.round, one.reached) for one in done] == [(0, True), (0, False)]


def test_the_highest_peak_that_reaches_the_goal_is_taken_else_the_best_on_validation_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Benchmark.of(str(written(tmp_path, peaks=[0.1, 0.2, 0.05])), ["not"], tmp_path / "out")
    asked: list[float] = []
    outcomes: dict[float, Any] = {}

    def run(self: Scenario, label: str, peak: float, seeds: list[int]) -> list[Any]:
        assert seeds == [work.models], "tuning meets the extra seed alone"
        asked.append(peak)
        if isinstance(outcomes[peak], str):
            raise UnfedError(outcomes[peak])
        validation, reached = outcomes[peak]
        return [SimpleNamespace(round=2, validation=validation, reached=reached)]

    monkeypatch.setattr(Scenario, "_run", run)
    scenario = Scenario.__new__(Scenario)
    scenario.work, scenario.protocol = work, work.protocol
    outcomes |= {0.2: "diverged", 0.1: (92.0, True), 0.05: (95.0, True)}
    peak, trials = scenario._tuned("not")
    assert (peak, asked) == (0.1, [0.2, 0.1]), "the lower rate is not tried any more"
    assert [trial["round"] for trial in trials] == [None, 2]
    outcomes |= {0.1: (60.0, False), 0.05: (70.0, False)}
    assert scenario._tuned("not")[0] == 0.05
    outcomes |= {0.1: "diverged", 0.05: "diverged"}
    with pytest.raises(UnfedError, match="No peak rate left a usable model: diverged"):
        scenario._tuned("not")


def test_the_models_before_are_made_where_python_leaves_asserts_out() -> None:
    source = Path(inspect.getfile(Scenario)).read_text()
    optimised: dict[str, Any] = {"__name__": bench.__module__}
    exec(compile(source, "bench.py", "exec", optimize=1), optimised)
    made: list[str] = []
    optimised["Scenario"]._theta = property(lambda self: made.append("θ*"))
    optimised["Scenario"].train(optimised["Scenario"].__new__(optimised["Scenario"]))
    assert made == ["θ*"]


# --- scorecards by hand -----------------------------------------------------------------------------------------------


def test_the_worst_probe_is_the_one_that_brings_back_most_above_retrain() -> None:
    found = worst({"as it is": ([2.0, 4.0], [1.0, 1.0]), "stitched": ([9.0, 11.0], [3.0, 5.0])})
    assert found["worst"] == "stitched"  # 10 − 4 = 6, against 3 − 1 = 2
    assert found["difference"]["value"] == 6.0
    # Welch: s² = 2 on both sides, s²/n = 1 each, so 2 degrees of freedom and t = 4.3027
    assert found["difference"]["low"] == pytest.approx(6 - 4.30265 * 2**0.5, abs=1e-4)


def test_a_mean_says_why_it_was_not_measured() -> None:
    assert mean([1.0, 2.0]) == 1.5
    assert mean([1.0, "not measured: no data was poisoned"]) == "not measured: no data was poisoned"


def test_a_front_holds_those_that_no_other_beats_in_both_numbers() -> None:
    points = {"retrain": (20.0, 0.0), "not": (10.0, 4.0), "ft": (10.0, 9.0), "twin": (10.0, 4.0), "led": (21.0, 0.0)}
    assert front(points) == ["not", "twin", "retrain"]


def test_a_row_says_who_did_not_come_to_the_goal_and_what_is_needed(made: Path) -> None:
    (result,) = (one for one in read_results([made / "out"]) if one.method == "not")
    card = result.scenarios["iid, client"]
    assert isinstance(card, Scorecard)
    measured = {"lira": card.lasts.difference.model_copy(update={"value": 0.1, "low": -0.05, "high": 0.25})}
    remembers = card.remembers.model_copy(update={"kind": "none", "measured": measured})
    lasts = card.lasts.model_copy(update={"worst": "stitched", "difference": measured["lira"]})
    cost = card.cost.model_copy(update={"rounds": 12.5, "comm_bytes": 2.5e6, "flops": 3e12, "seconds": 1.0})
    told = {"remembers": remembers, "lasts": lasts, "cost": cost, "accuracy": {"test": 97.25}, "reached": 9}
    row = cells(result.model_copy(update={"needs": ("history", "retain")}), card.model_copy(update=told))
    assert row == [
        "97.2", "no", "+0.100 (-0.050 to +0.250)", scorecards.ANSWERS[card.unfinished.kind],
        "+0.1 (-0.1 to +0.2) stitched", "12.5 (9 of 10 reached it)", "2.5", "3.000", "1.00", "history",
    ]  # fmt: skip


# --- a benchmark ------------------------------------------------------------------------------------------------------


def test_every_result_names_its_protocol_and_holds_a_card_per_scenario(made: Path) -> None:
    results = {one.method: one for one in read_results([made / "out"])}
    sha256 = hashlib.sha256((made / "tiny.json").read_bytes()).hexdigest()
    assert list(results) == ["retrain", "not", "ssd"]
    for one in results.values():
        assert (one.protocol, one.bench, one.suite, one.models) == (sha256, "unfed-bench 1.0", "tiny", 10)
        assert one.seeds == tuple(range(10))
        assert list(one.scenarios) == ["iid, client"]
    card = results["not"].scenarios["iid, client"]
    assert isinstance(card, Scorecard)
    assert len(card.each["round"]) == 10
    assert card.cost.rounds == sum(map(float, card.each["round"])) / 10
    assert list(card.lasts.probes) == ["as it is", "stitched", "taught again", "turned back"]
    assert {*card.remembers.measured} == {"lira", "rmia"}
    retrain = results["retrain"].scenarios["iid, client"]
    assert isinstance(retrain, Scorecard) and retrain.remembers.kind == "reference"
    ssd = results["ssd"].scenarios["iid, client"]
    assert isinstance(ssd, Scorecard) and set(ssd.each["round"]) == {0}, "it takes no round, and is judged all the same"
    assert card.before == ssd.before


def test_an_interrupted_benchmark_does_only_what_is_missing_and_comes_to_the_same(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(made, tmp_path / "copy")
    card, result = folder / "out/work/iid/client/not.json", folder / "out/not.json"
    before = storage.read_json(card, "card")
    for file in (card, result):
        file.unlink()
    measured, asked = Scenario.measured, []

    def watched(self: Scenario, label: str) -> dict[str, Any]:
        asked.append(label)
        return measured(self, label)

    monkeypatch.setattr(Scenario, "measured", watched)
    work = Benchmark.of(str(folder / "tiny.json"), ["not", "ssd"], folder / "out", device="cpu")
    assert len(bench(work)) == 3
    assert asked == ["not"]
    after = storage.read_json(card, "card")
    before["cost"].pop("seconds"), after["cost"].pop("seconds")
    assert after == before
    assert len(bench(work)) == 3 and asked == ["not"]


def test_a_card_of_an_earlier_edition_of_a_method_is_made_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Benchmark.of(str(made / "tiny.json"), ["not"], made / "out", device="cpu")
    assert work.card("iid", "client", "not") is not None
    monkeypatch.setitem(revisions.METHODS, "not", 99)
    assert work.card("iid", "client", "not") is None


def test_a_request_that_a_method_does_not_serve_is_a_reason_and_no_number(made: Path, tmp_path: Path) -> None:
    protocol = written(tmp_path, requests={"class": {"classes": [9]}})
    work = Benchmark.of(str(protocol), ["federaser"], tmp_path / "out", device="cpu")
    scenario = Scenario(work, ("iid", "class"), simulated(work.config("iid", "class"), 0), quiet)
    card = scenario.measured("federaser")
    assert card["reason"].startswith("FedEraser does not serve class-wise requests.")


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_ranking_is_one_page_with_every_method_the_protocol_and_a_front(made: Path, tmp_path: Path) -> None:
    page = tmp_path / "ranking.html"
    assert cli(made / "out", "--page", page).exit_code == 0
    text = page.read_text()
    for word in ("unfed-bench 1.0: tiny", hashlib.sha256((made / "tiny.json").read_bytes()).hexdigest(), "NoT", "SSD"):
        assert word in text
    assert text.count('scope="row"') == 3 and "SSD: 0.0 rounds" in text
    assert "http" not in text.replace("http-equiv", ""), "it loads nothing"


def test_a_method_whose_models_did_not_recover_is_not_on_the_front(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSD takes no round: cheaper than all others, and not comparable with them."""
    drawn: list[Any] = []
    pareto = figures.pareto

    def watched(*args: Any) -> Picture:
        drawn.append(args)
        return pareto(*args)

    monkeypatch.setattr(figures, "pareto", watched)
    results = read_results([made / "out"])
    for i, reached in enumerate((10, 5, 4)):
        card = results[i].scenarios["iid, client"].model_copy(update={"reached": reached})
        results[i] = results[i].model_copy(update={"scenarios": {"iid, client": card}})
    scorecards.page(results)
    points, best, behind, _ = drawn[0]
    assert [*points] == ["Retrain", "NoT", "SSD"] and behind == ["SSD"] and best and "SSD" not in best


def test_what_a_method_does_not_serve_stands_below_the_table(made: Path) -> None:
    results = read_results([made / "out"])
    no = NotServed(edition="1", reason="FCU serves clients only.")
    results[-1] = results[-1].model_copy(update={"scenarios": {"iid, client": no}})
    text = scorecards.page(results)
    assert "SSD: not measured. FCU serves clients only." in text and text.count('scope="row"') == 2


def test_the_name_of_a_method_cannot_write_into_the_page(made: Path) -> None:
    results = [one.model_copy(update={"title": "<script>alert(1)</script>"}) for one in read_results([made / "out"])]
    assert "<script>alert" not in scorecards.page(results)


CIFAR10 = ("retrain", "federaser", "ft", "led", "mode", "not", "sealed")


@pytest.mark.parametrize(("suite", "methods"), [("small", METHODS), ("cifar10", CIFAR10)], ids=["small", "cifar10"])
def test_the_published_ranking_shows_the_published_results(suite: str, methods: Iterable[str]) -> None:
    results = read_results([ROOT / f"results/bench/{suite}"])
    text = unescape((ROOT / f"docs/bench/{suite}.html").read_text())
    assert {one.method for one in results} == {*methods} and results[0].protocol == read_protocol(suite)[1]
    for scenario in scorecards.scenarios(results):
        for one, card in scorecards.served(results, scenario):
            row = "".join(f"<td>{cell}</td>" for cell in cells(one, card))
            assert row in text, f"make it again: unfed bench results/bench/{suite} --page ({one.title}, {scenario})"


def test_the_page_on_the_benchmark_quotes_the_published_results() -> None:
    results = read_results([ROOT / "results/bench/cifar10"])
    text = (ROOT / "docs/how-to/bench.md").read_text().replace("−", "-")
    for one, card in scorecards.served(results, "iid, client"):
        assert f"| {one.title} | {card.cost.rounds:.1f} | {card.lasts.difference.value:.1f} " in text, one.title


# --- bad input --------------------------------------------------------------------------------------------------------


def refused(*words: object) -> str:
    found = cli(*words)
    assert isinstance(found.exception, UnfedError), found.output
    return str(found.exception)


def test_bad_input_is_one_sentence_that_says_what_to_do(made: Path, tmp_path: Path) -> None:
    tiny, out = made / "tiny.json", tmp_path / "out"
    few = "A claim takes at least 10 models of each kind, and 4 were asked for; the protocol has 10."
    assert refused("not", "--suite", tiny, "--models", 4, "--out", out) == few
    assert refused("not", "--suite", "large", "--out", out) == (
        "There is no suite 'large'; use small or cifar10, or a protocol file that ends in .json."
    )
    torn = tmp_path / "torn.json"
    torn.write_text("{")
    assert refused("not", "--suite", torn, "--out", out).startswith(f"The protocol {torn} is no JSON (")
    other = written(tmp_path, within=4.0)
    assert "holds another benchmark (protocol" in refused("not", "--suite", other, "--out", made / "out")
    assert "holds another benchmark (models 10)" in refused(
        "not", "--suite", tiny, "--models", 12, "--out", made / "out"
    )
    assert refused(tmp_path / "nothing", "--page", tmp_path / "p.html")
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty", "--page", tmp_path / "p.html").startswith("There is no result in")
    assert not out.exists()


def changed(made: Path, folder: Path, **values: Any) -> Path:
    """NoT's result with other values, in a folder of its own."""
    folder.mkdir()
    raw = storage.read_json(made / "out/not.json", "result")
    storage.write_json(folder / "not.json", raw | values)
    return folder


def test_a_page_of_two_protocols_or_of_too_few_models_is_refused(made: Path, tmp_path: Path) -> None:
    foreign = changed(made, tmp_path / "foreign", protocol="f" * 64, bench="unfed-bench 0.9")
    said = refused(made / "out", foreign, "--page", tmp_path / "p.html")
    assert "is of another protocol (unfed-bench 0.9 tiny, ffffffffffff)" in said and said.endswith(
        "make one page of each."
    )
    fewer = changed(made, tmp_path / "fewer", models=10, wanted=32)
    said = refused(fewer, "--page", tmp_path / "p.html")
    assert "has 10 models of each kind where unfed-bench 1.0 tiny takes 32; run it again without --models." in said
    torn = changed(made, tmp_path / "torn", scenarios={"iid, client": {"edition": 3}})
    assert "delete it and run `unfed bench` again" in refused(torn, "--page", tmp_path / "p.html")


METHOD = '''
from dataclasses import dataclass, replace
from typing import ClassVar
from unfed.methods import State
from unfed.methods.base import Method

@dataclass(frozen=True)
class Mine(Method):
    """It begins at the old model."""
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"
    cite: ClassVar[str] = "{cite}"
    needs: ClassVar[frozenset[str]] = frozenset({{"retain"}})

    def begin(self, server):
        return State(server.params)
'''


def test_a_file_that_breaks_the_contract_is_refused_before_any_work(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "out"
    file.write_text(METHOD.format(cite=""))
    said = refused(file, "--suite", written(tmp_path), "--allow-code", "--out", out)
    assert said.startswith(
        f"{file} breaks the contract of methods (declares what it is: it has no cite); mend it until"
    )
    assert "--allow-code" in refused(file, "--suite", written(tmp_path), "--out", out)
    assert not out.exists()


def test_a_file_of_ones_own_is_measured_under_its_own_name(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(made, made.parent / f"{made.name}-own")
    file = folder / "mine.py"
    file.write_text(METHOD.format(cite="ours"))
    monkeypatch.setattr("unfed.testing.conformance.check", lambda kind: iter(()))  # its own tests hold it
    try:
        found = cli(file, "--suite", folder / "tiny.json", "--allow-code", "--out", folder / "out", "--device", "cpu")
        assert found.exit_code == 0, found.output
        (mine,) = (one for one in read_results([folder / "out"]) if one.method == "mine")
        assert isinstance(mine, BenchResult) and mine.title == "Mine" and mine.command.startswith("unfed bench ")
        card = mine.scenarios["iid, client"]
        assert card.edition == hashlib.sha256(file.read_bytes()).hexdigest()
        assert "Mine" in found.output and "remembers?" in found.output
    finally:
        METHODS.pop("mine", None)


def test_a_probe_looks_at_what_left(made: Path, tmp_path: Path) -> None:
    work = Benchmark.of(
        str(written(tmp_path, requests={"class": {"classes": [9]}})), [], tmp_path / "out", device="cpu"
    )
    scenario = Scenario(work, ("iid", "class"), simulated(work.config("iid", "class"), 0), quiet)
    params, known = scenario.world.fresh(0), Knowledge("Retrain")
    found = probes(scenario._scene, params, params, known, 0.01)
    assert scenario._scene.backdoor is None, "who planted it stays, and so does it"
    assert list(found) == ["as it is", "stitched", "lifted", "read from 20 rows", "relearnt"]
    rows = replace(scenario._scene, classes=())
    assert list(probes(rows, params, params, known, 0.01)) == ["as it is", "stitched", "relearnt"]


@pytest.mark.parametrize("workers", ["processes", pytest.param("ray", marks=pytest.mark.slow)])
def test_several_processes_make_the_same_cards(
    made: Path, tmp_path: Path, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = tmp_path / "out", ["bench iid", "bench iid client retrain", "bench iid client ssd"]
    work = Benchmark.of(str(made / "tiny.json"), ["ssd"], folder, device="cpu")
    if workers == "ray":  # two cells in place of three, on the models before that are there
        pytest.importorskip("ray", reason="needs unfed[simulation]")
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        shutil.copytree(made / "out/work", folder / "work", ignore=shutil.ignore_patterns("cells.jsonl", "ssd.json"))
        del expected[1]
    with on_ray(2) if workers == "ray" else nullcontext(2) as jobs:
        assert [one.method for one in bench(work, jobs=jobs)] == ["retrain", "ssd"]
    for name in ("retrain", "ssd"):
        ours, theirs = (
            storage.read_json(out / "work/iid/client" / f"{name}.json", "card") for out in (folder, made / "out")
        )
        ours["cost"].pop("seconds"), theirs["cost"].pop("seconds")
        assert ours == theirs
    lines = [json.loads(line)["cell"] for line in (folder / "work/cells.jsonl").read_text().splitlines()]
    assert lines == expected
