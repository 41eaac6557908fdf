"""The attack of an evaluated round runs beside the next one, and nobody can tell from what is written or told."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unfed.client.scores import Scores, columns, moved, score
from unfed.config.config import Config
from unfed.engines.choice import as_trained
from unfed.engines.compiled.fused import fused_block
from unfed.folder.folder import RunFolder
from unfed.measures import attacks, evaluator
from unfed.model.calling import computed_by
from unfed.requests.entry import Job
from unfed.runs.job import LineWriter
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from worlds import Small

SETS = ("training.rounds=4", "unlearning.rounds=1", "evaluation.every=2", "checkpoint.seconds=1000")


class Told(Watch):
    """Writes down what it is told, and how many lines lay in the folder then."""

    def __init__(self, folder: Path) -> None:
        self.trajectory, self.events = folder / "trajectory.jsonl", list[tuple[Any, ...]]()

    def reached(self, job: Job, state: Any, asked: Any) -> None:
        self._note("reached", job.label, state.round)

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        self._note("goes on", job.label, round, None if line is None else dict(line))

    def saved(self, job: Job, state: Any, histories: Any) -> None:
        self._note("saved", job.label, state.round)

    def _note(self, *event: Any) -> None:
        self.events.append((*event, self.trajectory.read_bytes().count(b"\n") if self.trajectory.exists() else 0))


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the threads in which attacks were computed."""
    seen, attack = list[str](), attacks.try_membership_inference

    def noted(*args: Any, **named: Any) -> Any:
        seen.append(threading.current_thread().name)
        return attack(*args, **named)

    monkeypatch.setattr(evaluator, "try_membership_inference", noted)
    yield seen


def executed(config: Config, folder: Path) -> Told:
    told = Told(folder)
    Run.create(config, folder).execute(told)
    return told


def without_seconds(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if "seconds" not in name}


def test_lines_and_what_is_told_are_those_of_an_attack_that_is_waited_for(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: list[str]
) -> None:
    late = executed(small(*SETS), tmp_path / "late")
    assert any(name.startswith("unfed-attack") for name in threads), "no attack ran beside a round"
    begun = evaluator.Evaluator.begun
    monkeypatch.setattr(evaluator.Evaluator, "begun", lambda self, params: begun(self, params).complete())
    waited = executed(small(*SETS), tmp_path / "waited")
    lines = [[without_seconds(line) for line in Run.open(tmp_path / name).lines()] for name in ("late", "waited")]
    assert lines[0] == lines[1] and all(not isinstance(line.get("mia"), type(None)) for line in lines[0])
    kept = [
        [(*e[:3], without_seconds(e[3]) if len(e) == 5 and e[3] else None) for e in told.events]
        for told in (late, waited)
    ]
    assert kept[0] == kept[1]


def test_a_line_is_written_before_it_is_told_and_before_the_save_that_follows_it(small: Small, tmp_path: Path) -> None:
    told = executed(small(*SETS), tmp_path / "run")
    training = told.events[0][1]
    lines = {(what, round): written for what, label, round, *_, written in told.events if label == training}
    assert [lines["saved", 0], lines["goes on", 2], lines["reached", 4], lines["saved", 4]] == [1, 2, 2, 3]
    assert [event[2] for event in told.events if event[:2] == ("goes on", training)] == [1, 2, 3, 4]


def test_nobody_waits_for_the_news_of_a_round_that_is_not_evaluated(tmp_path: Path) -> None:
    heard, late = list[str](), LineWriter(RunFolder(tmp_path))
    late.then(lambda: heard.append("round 1"))
    assert heard == ["round 1"]
    late.close()
    assert heard == ["round 1"], "told twice"


def test_the_line_of_a_round_is_kept_where_the_next_round_is_interrupted(small: Small, tmp_path: Path) -> None:
    class Impatient(Watch):
        def reached(self, job: Job, state: Any, asked: Any) -> None:
            if state.round == 3:
                raise KeyboardInterrupt

    run = Run.create(small(*SETS), tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        run.execute(Impatient())
    assert [line["round"] for line in run.lines()] == [0, 2]


def test_what_goes_wrong_in_the_attack_ends_the_job(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **named: Any) -> float:
        raise RuntimeError("no attack today")

    monkeypatch.setattr(evaluator, "try_membership_inference", broken)
    with pytest.raises(RuntimeError, match="no attack today"):
        Run.create(small(*SETS), tmp_path / "run").execute()
    assert not [t for t in threading.enumerate() if t.name.startswith("unfed-attack")]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_move_from_the_device_changes_no_score(dtype: torch.dtype) -> None:
    """300 classes: a half cannot count to 299, so it must not be asked to."""
    logits, y = torch.randn(20, 300).to(dtype), torch.arange(280, 300)
    logits[torch.arange(10), y[:10]] += 10
    parts = [columns(logits[:13], y[:13]), columns(logits[13:], y[13:])]
    together = moved(parts)
    for name in Scores.__dataclass_fields__:
        plain = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(getattr(together, name), plain) and getattr(together, name).dtype == plain.dtype
    assert together.correct[:10].all() and together.predicted.max() == 289


def test_the_kernels_of_training_give_evaluations_logits(small: Small) -> None:
    world = simulated(small("engine.precision=float64", "model.name=cnn-small"), 0)
    rows, params = torch.arange(40), world.fresh(1)
    plain = score(world.template, params, world.dataset.test, rows)
    with computed_by(block=fused_block):
        fused = score(world.template, params, world.dataset.test, rows)
    assert torch.equal(plain.predicted, fused.predicted)
    torch.testing.assert_close(fused.loss, plain.loss, rtol=1e-9, atol=1e-9)


def test_only_halves_have_a_way_of_their_own(small: Small) -> None:
    world = simulated(small("evaluation.precision=params"), 0)
    params, request = world.fresh(1), world.config.requests()
    plain = replace(world, config=small())
    assert world.evaluator(request)(params).numbers == plain.evaluator(request)(params).numbers


@pytest.mark.own_process
def test_in_the_engines_precision_scores_are_those_of_halves(small: Small) -> None:
    world = simulated(small("engine.precision=bf16"), 0)
    rows, params = torch.arange(60), world.fresh(1)
    plain = score(world.template, params, world.dataset.test, rows)
    halved = score(world.template, params, world.dataset.test, rows, way=as_trained)
    assert halved.loss.dtype == torch.float32 and not torch.equal(plain.loss, halved.loss)
    torch.testing.assert_close(halved.loss, plain.loss, rtol=0.05, atol=0.05)
