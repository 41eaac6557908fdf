"""`setting = "central"` in a config: one holder of all data, epochs for rounds, the paper's recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.methods import NoT
from unfed.report.rules import rows
from unfed.requests.entry import Job
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.world import World

NINE = ("retrain", "ft", "randl", "ga", "badt", "l1-sparse", "ssd", "salun", "not")


def config(**changes: Any) -> Config:
    raw: dict[str, Any] = {
        "name": "small",
        "setting": "central",
        "device": "cpu",
        "data": {"train_size": 200, "test_size": 200},
        "model": {"name": "cnn-tiny"},
        "training": {"rounds": 3, "batch": 32, "lr": 0.05, "keep_model": "best-test"},
        "unlearning": {"rounds": 2},
        "request": {"id": "some", "fraction": 0.2},
        "methods": {"run": ["retrain", "ft"]},
    }
    return Config.parse({**raw, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run.create(config(methods={"run": list(NINE)}), tmp_path_factory.mktemp("central") / "run")
    run.execute()
    return run


def test_nine_methods_run_and_no_byte_is_counted(done: Run) -> None:
    found = {row.method: row for row in rows(done.lines())}
    assert set(found) == {"before", *NINE}
    assert all(row.costs["comm_bytes"].mean == row.costs["wire_bytes"].mean == 0 for row in found.values())
    assert found["ssd"].rounds == (0,)
    assert all(isinstance(found[name].average_gap.mean, float) for name in NINE)


def test_one_client_holds_every_training_row(done: Run) -> None:
    (client,) = done.world(0).clients
    assert len(client.train) == 200 and len(client.val) == 0
    assert done.description.clients == ("0",)


def test_retrain_and_the_base_model_are_those_of_their_best_epoch(done: Run) -> None:
    for label, request in (("train", None), ("retrain", "some")):
        lines = [li for li in done.lines() if li["method"] == label and li["request"] == request and li["round"] >= 1]
        best = max(lines, key=lambda line: (line["test"], -line["round"]))
        model = done.folder.load_model(Job(0, request, label))
        world = done.world(0)
        requests = done.config.requests() if request else ()
        seen = world.evaluator(requests)(model)
        assert seen.numbers["test"] == best["test"]
    row = next(row for row in rows(done.lines()) if row.method == "retrain")
    assert row.metrics["test"].mean == best["test"] and "highest test accuracy" in row.note


@pytest.mark.parametrize("label", ["retrain", "salun"])
def test_a_run_that_was_killed_in_the_middle_ends_bit_equal(done: Run, tmp_path: Path, label: str) -> None:
    class Killed(Exception):
        pass

    class Kill(Watch):
        def goes_on(self, job: Job, round: int, *rest: Any) -> None:
            if job.label == label and round == 2:
                raise Killed

    changes = {"methods": {"run": list(NINE)}, "checkpoint": {"rounds": 1}}
    run = Run.create(config(**changes), tmp_path / "run")
    with pytest.raises(Killed):
        run.execute(Kill())
    again = Run.open(tmp_path / "run")
    again.execute()
    for name in NINE:
        a, b = (r.folder.load_model(Job(0, "some", name)) for r in (again, done))
        assert all(torch.equal(a[n], b[n]) for n in b), name


# --- recipes ----------------------------------------------------------------------------------------------------------


def rates(world: World, label: str, retrain: bool = False) -> list[float]:
    settings = world.unlearning_settings(retrain, label)
    base = settings.phase.optimiser.lr
    return [settings.schedule.rate(base, r, settings.rounds) for r in range(1, settings.rounds + 1)]


def test_every_method_brings_the_papers_learning_rates() -> None:
    world = simulated(config(unlearning={"rounds": 50}), 0)
    assert world.unlearning_settings(False, "ft").keep
    ft, negated = rates(world, "ft"), rates(world, "not")
    assert ft[0] == pytest.approx(0.01) and 1e-4 < ft[-1] < 1.1e-4 and ft[24] > 1e-3
    assert negated[0] == pytest.approx(0.1) and negated[9] > 1e-3 and negated[10:] == [pytest.approx(1e-5)] * 40
    assert rates(world, "retrain", retrain=True) == [0.05] * 3  # the base schedule, whatever it is


def test_the_config_comes_before_the_recipe_and_a_methods_own_table_before_both() -> None:
    own = {"run": ["ft", "not"], "not": {"unlearning": {"lr": 0.5, "rounds": 7, "schedule": {"kind": "constant"}}}}
    world = simulated(config(unlearning={"rounds": 4, "lr": 0.2}, methods=own), 0)
    assert rates(world, "ft")[0] == pytest.approx(0.2) and len(rates(world, "ft")) == 4
    assert rates(world, "not") == [0.5] * 7
    federated = simulated(config(setting="federated", partition={"clients": 2}), 0)
    assert rates(federated, "not") == [0.05] * 2


def test_a_short_budget_goes_through_the_whole_cosine() -> None:
    world = simulated(config(unlearning={"rounds": 4}), 0)
    least, most = NoT.recipe.minimum, NoT.recipe.lr
    assert rates(world, "not")[::2] == pytest.approx([most, (most + least) / 2])


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"partition": {"clients": 4}}, "setting = 'central' has one holder of all data; leave partition.clients out"),
        ({"training": {"participation": 0.5}}, "setting = 'central' has no absent clients"),
        ({"setting": "centre"}, "setting = 'centre' is not allowed"),
        ({"methods": {"run": ["ft"], "ft": {"unlearning": {"rate": 1}}}}, r"methods\.ft\.unlearning\.rate: .*lr"),
        ({"methods": {"run": ["salun"], "salun": {"ratio": 2.0}}}, "SalUn's ratio is a share of the weights"),
        ({"methods": {"run": ["ssd"], "ssd": {"alpha": -1.0}}}, "SSD takes an alpha and a lam"),
    ],
)
def test_a_wrong_config_is_one_sentence(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnfedError, match=says):
        config(**changes)


def test_no_client_can_leave(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="no client can leave it; ask for classes, samples or a fraction"):
        Run.create(config(request={"clients": ["0"]}), tmp_path / "run")


def test_centralised_methods_are_off_inside_a_federation_until_switched_on(tmp_path: Path) -> None:
    inside: dict[str, Any] = {"setting": "federated", "partition": {"clients": 2}}
    names = ["randl", "ga", "badt", "l1-sparse", "ssd", "salun"]
    with pytest.raises(UnfedError, match=r"randl is a centralised method.*methods\.randl\.federated = true"):
        Run.create(config(**inside, methods={"run": names}), tmp_path / "no")
    on: dict[str, Any] = {name: {"federated": True} for name in names}
    for kind, asked in {"clients": ["0"], "classes": [3]}.items():
        raw = {"request": {"id": "gone", kind: asked}, "methods": {"run": names, **on}}
        run = Run.create(config(**inside, **raw), tmp_path / kind)
        run.execute()
        found = {row.method: row for row in rows(run.lines(), "last")}
        assert all(float(found[name].costs["comm_bytes"].mean) > 0 for name in names)


@pytest.mark.parametrize("request_", [{"id": "class", "classes": [3]}, {"id": "rows", "samples": "rows.csv"}])
def test_classes_and_given_samples_can_leave(tmp_path: Path, request_: dict[str, Any]) -> None:
    if "samples" in request_:
        (holder,) = simulated(config(), 0).clients
        assert holder.numbers is not None
        (tmp_path / "rows.csv").write_text("row\n" + "".join(f"{row}\n" for row in holder.numbers[:15].tolist()))
        request_ = {**request_, "samples": str(tmp_path / "rows.csv")}
    run = Run.create(config(request=request_, methods={"run": ["not", "salun"]}), tmp_path / "run")
    run.execute()
    assert (run.info().requests[0].forgotten_rows or 0) >= 15


# --- presets ----------------------------------------------------------------------------------------------------------


def test_the_presets_name_the_nine_methods_of_the_papers_table() -> None:
    for name in ("central-digits", "central-cifar10"):
        preset = Config.preset(name)
        assert preset.setting == "central" and tuple(preset.methods.run) == NINE
        assert preset.training.keep_model == "best-test"
    paper = Config.preset("central-cifar10")
    assert (paper.training.rounds, paper.unlearning.rounds, paper.training.batch) == (200, 50, 64)
    assert paper.model.name == "resnet18" and paper.requests()[0].fraction == 0.1
