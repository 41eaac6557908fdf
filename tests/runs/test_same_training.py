"""θ* that two runs would both train is trained once, and nobody can tell the difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from paper_together import take_results

from unfed.config.config import Config
from unfed.model.params import digests
from unfed.runs.run import Run
from unfed.studies.same_training import take_training

SMALL = ["seed=[0]", "training.rounds=2", "unlearning.rounds=1", "data.train_size=300", "data.test_size=200"]
CLASS = 'request={id="class-0", classes=[0]}'


def created(folder: Path, *sets: str, methods: str = '["ft"]') -> Run:
    return Run.create(Config.preset("digits-cnn", [*SMALL, f"methods.run={methods}", *sets]), folder)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = created(tmp_path_factory.mktemp("runs") / "source", methods='["pgd"]')
    run.execute()
    return run


def seen(run: Run) -> list[dict[str, object]]:
    """The trajectory without what a clock says."""
    return [{name: value for name, value in line.items() if name != "seconds"} for line in run.lines()]


def test_another_request_begins_at_the_same_model(source: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, taking = created(tmp_path / "alone", CLASS), created(tmp_path / "taking", CLASS)
    alone.execute()
    assert take_training(taking, source) == [0] and taking.trained(0)
    assert take_training(taking, source) == [], "once"
    with monkeypatch.context() as patched:
        patched.setattr(Run, "_train", lambda self, seed, watch: self._model(self.training_job(seed)))
        taking.execute()
    for method in ("train", "ft"):
        assert digests(taking.saved(0, None, method)) == digests(alone.saved(0, None, method))
    stored = {"stored_server_bytes", "stored_original_bytes"}  # the source recorded for PGD
    assert [{k: v for k, v in line.items() if k not in stored} for line in seen(taking)] == [
        {k: v for k, v in line.items() if k not in stored} for line in seen(alone)
    ]
    assert Run.open(tmp_path / "taking").lines() == taking.lines(), "and the folder is whole"


def test_a_method_that_needs_history_finds_it(source: Run, tmp_path: Path) -> None:
    alone, taking = created(tmp_path / "alone", methods='["pgd"]'), created(tmp_path / "taking", methods='["pgd"]')
    assert take_training(taking, source) == [0]
    taking.execute()
    alone.execute()
    assert digests(taking.saved(0, None, "pgd")) == digests(alone.saved(0, None, "pgd"))


@pytest.mark.parametrize(
    ("why", "sets", "methods"),
    [
        ("another number of rounds", ["training.rounds=3"], '["ft"]'),
        ("another seed", ["seed=[1]"], '["ft"]'),
        ("poisoned data", ['poison={client="0", target_class=0, share=0.8}'], '["ft"]'),
        ("evaluated otherwise", ["evaluation.every=1"], '["ft"]'),
        ("a history that was not kept", [], '["fukd"]'),
    ],
)
def test_what_would_be_trained_otherwise_is_not_taken(
    source: Run, tmp_path: Path, why: str, sets: list[str], methods: str
) -> None:
    run = created(tmp_path / "run", *sets, methods=methods)
    assert take_training(run, source) == [] and not run.trained(0), why
    assert not run.folder.trajectory.exists()


@pytest.mark.parametrize("what", ["hardware", "initial"])
def test_what_was_trained_on_another_machine_or_from_another_checkpoint_is_not_taken(
    source: Run, tmp_path: Path, what: str
) -> None:
    run = created(tmp_path / "run")
    run.description = run.description.model_copy(update={what: "another"})
    assert take_training(run, source) == []


def test_a_run_that_has_not_trained_gives_nothing(tmp_path: Path) -> None:
    assert take_training(created(tmp_path / "run"), created(tmp_path / "source", methods='["retrain"]')) == []


def test_what_a_method_left_beside_is_taken_where_both_began_at_the_same_model(source: Run, tmp_path: Path) -> None:
    """Methods that ran in folders of their own come together in one."""
    both = created(tmp_path / "both", methods='["pgd","ft"]')
    assert take_results(both, source) == [], "nobody can tell yet whether its θ* is the same"
    take_training(both, source)
    assert take_results(both, source) == ["pgd"] and take_results(both, source) == []
    both.execute()
    assert digests(both.saved(0, None, "pgd")) == digests(source.saved(0, None, "pgd"))
    assert [line for line in seen(both) if line["method"] == "pgd"] == [
        line for line in seen(source) if line["method"] == "pgd"
    ]
    other = created(tmp_path / "other", "training.lr=0.01", methods='["pgd"]')
    other.only = frozenset()
    other.execute()
    assert take_results(other, source) == [], "another θ*"
