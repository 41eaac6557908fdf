"""A run in a team's own tracker: TensorBoard as it is, W&B and MLflow by stand-ins that take the same calls."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from unfed.errors import UnfedError, UnfedWarning
from unfed.requests.entry import Job
from unfed.runs.run import Run
from unfed.runs.tracking import TRACKERS, tracked
from worlds import Small


@pytest.fixture
def run(small: Small, tmp_path: Path) -> Run:
    return Run.create(small("training.rounds=2", "unlearning.rounds=2"), tmp_path / "run")


def module(name: str, monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    made = ModuleType(name)
    vars(made).update(functions)
    monkeypatch.setitem(sys.modules, name, made)


def test_tensorboard_gets_the_numbers_of_every_evaluated_round(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed; pip install '.[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    watch = tracked(run, ["tensorboard"], folder=tmp_path / "tracking")
    run.execute(watch)
    watch.close()
    events = EventAccumulator(str(tmp_path / "tracking/tensorboard/run"))
    events.Reload()
    seen = {event.step: event.value for event in events.Scalars("r1/not/forget")}
    told = {int(line["round"]): line["forget"] for line in run.lines() if line["method"] == "not"}
    assert seen == pytest.approx({t: v for t, v in told.items() if t in seen}) and {1, 2} <= seen.keys()
    assert "train/test" in events.Tags()["scalars"]


def test_wandb_is_offline_and_each_job_has_its_own_axis(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    logged: list[Any] = []
    over = SimpleNamespace(define_metric=lambda *a, **k: begun.append((a, k)), log=logged.append, finish=lambda: 0)

    def init(**named: Any) -> Any:
        begun.append(named)
        return over

    module("wandb", monkeypatch, init=init)
    watch = tracked(run, ["wandb"], folder=tmp_path)
    watch.goes_on(Job(0, "r1", "not"), 1, 2, {"test": 90.0, "forget": "not measured: x"})
    watch.goes_on(Job(0, None, "train"), 1, 2, None)
    watch.close()
    assert begun[0]["mode"] == "offline" and begun[0]["config"]["name"] == "small"
    assert begun[1] == (("r1/not/*",), {"step_metric": "r1/not/round"})
    assert logged == [{"r1/not/test": 90.0, "r1/not/round": 1}]


def test_mlflow_gets_parameters_and_metrics(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def note(name: str) -> Any:
        return lambda *a, **k: calls.append((name, a, k))

    names = ("set_tracking_uri", "set_experiment", "start_run", "log_params", "log_metric", "end_run")
    module("mlflow", monkeypatch, **{name: note(name) for name in names})
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    watch = tracked(run, ["mlflow"], folder=tmp_path)
    watch.goes_on(Job(0, None, "train"), 2, 2, {"test": 90.0})
    watch.close()
    assert [name for name, *_ in calls] == list(names)
    assert calls[0][1][0].startswith("sqlite:///") and calls[3][1][0]["training.rounds"] == "2"
    assert calls[4] == ("log_metric", ("train/test", 90.0), {"step": 2})


def test_a_tracker_that_fails_warns_once_and_the_run_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **named: Any) -> None:
        raise OSError("the disk is full")

    module("wandb", monkeypatch, init=lambda **named: SimpleNamespace(define_metric=full, log=full, finish=full))
    watch = tracked(run, ["wandb"], folder=tmp_path)
    with pytest.warns(UnfedWarning, match="Tracking to wandb stopped .*the disk is full.*; the run goes on") as seen:
        run.execute(watch)
        watch.close()
    assert len(seen) == 1 and run.lines()


def test_a_missing_package_or_a_wrong_name_is_one_sentence(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UnfedError, match=r"needs the package wandb; install it with `pip install '\.\[wandb\]'`"):
        tracked(run, ["wandb"], folder=tmp_path)
    with pytest.raises(
        UnfedError, match=r"--track takes tensorboard, wandb or mlflow, not 'tensorbord'.*'tensorboard'"
    ):
        tracked(run, ["tensorbord"], folder=tmp_path)
    assert set(TRACKERS) == {"tensorboard", "wandb", "mlflow"}
