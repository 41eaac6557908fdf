"""The paper's claims on a run's own models: verdicts in its folder, in its report, and gone when the models are."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from commands import called
from unfed.analysis.activations import activations, called_layers
from unfed.analysis.theory.jacobian import Asymmetry
from unfed.api import write_report
from unfed.claims import of_run
from unfed.config.config import Config
from unfed.data import TensorSource
from unfed.errors import UnfedError
from unfed.folder.findings import THEORY
from unfed.model.functional import Template
from unfed.model.params import params_of
from unfed.runs.run import Run

RAW: dict[str, Any] = {
    "name": "tiny",
    "partition": {"clients": 3},
    "model": {"name": "cnn-tiny"},
    "training": {"rounds": 2, "batch": 64, "lr": 0.05},
    "unlearning": {"rounds": 2},
    "request": {"id": "leaves", "clients": ["0"]},
    "methods": {"run": ["retrain", "not"]},
    "evaluation": {"attack": False, "samples": False},
    "device": "cpu",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "run"
    run = Run.create(Config.parse(RAW), folder)
    run.execute()
    of_run.try_on(run, of_run.CLAIMS)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(finished, tmp_path / "run"))


def test_verdicts_are_kept_with_the_models_they_speak_of_and_shown_in_the_report(run: Run) -> None:
    kept = json.loads((run.folder.path / "theory/0/leaves.json").read_text())
    verdicts = {one["id"]: one["verdict"] for one in kept["claims"]}
    assert set(verdicts) == {claim.id for claim in of_run.CLAIMS} and set(kept["models"]) == {
        "before",
        "retrain",
        "not",
    }
    assert verdicts["distance"] == "holds", "a theorem that is right is right here too"
    assert verdicts["compensation"] == "fails", "a ReLU has no such relation"
    assert verdicts["cka-retrain"] == "not tried"
    seen = {one["id"]: one["seen"] for one in kept["claims"]}
    assert seen["cka-retrain"] == "This run has no model of ft for the request."
    page = html.unescape(write_report(run).read_text())
    assert "Does the theory hold here?" in page and seen["distance"] in page
    again = (run.folder.path / "theory/0/leaves.json").read_bytes()
    of_run.try_on(run, of_run.CLAIMS)
    assert (run.folder.path / "theory/0/leaves.json").read_bytes() == again, "the same run gives the same bytes"


def test_a_verdict_on_models_that_are_gone_is_not_shown_and_a_purge_takes_it_along(run: Run) -> None:
    assert run.info()[THEORY]
    listed = [one["file"] for one in run.info()["influence"]]
    assert "theory/0/leaves.json" in listed, "it was computed from the model that knew the leaver"
    run.folder.model_file(run.training_job(0)).unlink()
    assert run.info()[THEORY] == [] and "Does the theory hold here?" not in write_report(run).read_text()
    (run.folder.path / "theory/0/leaves.json").write_text('{"schema": 1}')
    with pytest.raises(UnfedError, match="delete it, and ask again"):
        run.info()


def test_the_bound_and_the_broken_layer_by_hand(run: Run) -> None:
    kept = {one["id"]: one["data"] for one in run.info()[THEORY][0]["claims"]}
    # 1,437 training digits at three clients, a fifth of them for validation: 383 rows or 6 batches each, two rounds
    assert kept["time-flow"]["taken"] == pytest.approx(2 * 6 * 0.05 / (1 - run.config.training.momentum))
    assert 0 < kept["time-flow"]["bound"] <= kept["time-flow"]["taken"]
    test = kept["grafting"]["test"]
    assert set(test) == {"whole", "of Retrain", "negated", "drawn anew"}


def test_the_time_of_a_recovery_is_counted_at_its_own_rates(tmp_path: Path) -> None:
    """Recovery may have another rate than training, and a schedule; Adam has no time of this kind."""
    own = {"rounds": 2, "lr": 0.01, "schedule": {"kind": "step", "factor": 0.5}}
    raw = {**RAW, "unlearning": own, "methods": {"run": ["not"]}}
    run = Run.create(Config.parse(raw), tmp_path / "sgd")
    run.execute()
    (found,) = of_run.try_on(run, of_run.chosen(["time-flow"]))[0]["claims"]
    assert found["data"]["taken"] == pytest.approx(6 * (0.01 + 0.005) / (1 - run.config.training.momentum))
    raw = {**RAW, "training": {**RAW["training"], "optimiser": "adam", "lr": 0.001}, "methods": {"run": ["not"]}}
    run = Run.create(Config.parse(raw), tmp_path / "adam")
    run.execute()
    (found,) = of_run.try_on(run, of_run.chosen(["time-flow"]))[0]["claims"]
    assert found["verdict"] == "not tried" and "run by adam, and the theorem counts the time" in found["seen"]


def test_the_layer_whose_answers_a_relu_takes() -> None:
    normed = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    assert of_run.into_relu(normed, "1.weight") == "2" and of_run.into_relu(normed, "4.weight") is None
    assert of_run.into_relu(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.ReLU()), "0.weight") is None
    assert of_run.into_relu(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "0.weight") == "0"
    assert of_run.into_relu(nn.Linear(2, 2), "class_token") is None


def test_few_held_out_rows_give_no_verdict_on_a_distribution(tmp_path: Path) -> None:
    raw = {**RAW, "data": {"name": "digits", "test_size": 20}, "methods": {"run": ["retrain", "ft", "not"]}}
    run = Run.create(Config.parse(raw), tmp_path / "run")
    run.execute()
    found = {one["id"]: one for one in of_run.try_on(run, of_run.CLAIMS)[0]["claims"]}
    assert found["distance"]["verdict"] == "holds", "an inequality between rows needs no more of them"
    for name in ("symmetry", "grafting", "cka-retrain"):
        assert found[name]["verdict"] == "not tried", name
        assert found[name]["seen"] == "The run holds out 20 rows, too few to tell; it takes 60."


def test_a_layer_whose_symmetry_is_refused_does_not_count_as_symmetric(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-space may see little where all directions together see much."""
    monkeypatch.setattr(of_run, "asymmetry", lambda y: Asymmetry(0.3, 0.1))
    monkeypatch.setattr(of_run, "symmetry_test", lambda y, draws: 0.01)
    found = of_run.try_on(run, of_run.chosen(["symmetry"]))[0]["claims"][0]
    assert found["verdict"] == "fails" and "symmetry is refused at 5 of them" in found["seen"]
    refused = iter([0.01, 0.5, 0.01, 0.01, 0.01])
    monkeypatch.setattr(of_run, "symmetry_test", lambda y, draws: next(refused))
    found = of_run.try_on(run, of_run.chosen(["symmetry"]))[0]["claims"][0]
    assert found["verdict"].endswith("symmetry is not refused: norm1")


def test_layers_that_are_only_read_and_layers_with_two_answers_can_be_watched() -> None:
    class Reader(nn.Module):
        """Its table is read, never called; attention answers with a pair."""

        def __init__(self) -> None:
            super().__init__()
            self.places, self.attend = nn.Embedding(3, 4), nn.MultiheadAttention(4, 1, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.places.weight
            return self.head(self.attend(x, x, x)[0].mean(1))  # type: ignore[no-any-return]

    module = Reader().eval()
    template, source = Template(module, (3, 4)), TensorSource(torch.randn(8, 3, 4), torch.zeros(8, dtype=torch.int64))
    layers = called_layers(template, params_of(module), source)
    assert layers == ("attend", "head")
    (answers,) = activations(template, params_of(module), source, torch.arange(8), layers)
    assert answers["attend"].shape == (8, 12) and answers["head"].shape == (8, 2)
    with pytest.raises(UnfedError, match="'places' was not called in a forward pass; choose another"):
        list(activations(template, params_of(module), source, torch.arange(8), ("places",)))


def test_an_even_network_is_told_apart_by_its_activations() -> None:
    class Case:
        class world:
            class template:
                module = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.ReLU())

    found = of_run.compensation(Case())  # type: ignore[arg-type]
    assert found.told == "holds under Tanh, with the bias negated too" and "ReLU does not" in found.seen
    Case.world.template.module = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(of_run.Lacking, match="module of its own"):
        of_run.compensation(Case())  # type: ignore[arg-type]


def test_the_command_tries_a_run_and_says_in_one_sentence_what_cannot_be(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    code, out, said = called(["theory", "run", "--only", "compensation", "--json"], monkeypatch, capsys)
    found = json.loads(out)
    assert code == 0 and [one["id"] for one in found[0]["claims"]] == ["compensation"], said
    code, out, _ = called(["theory", "run", "--only", "compensation"], monkeypatch, capsys)
    assert code == 0 and "Theorem 4" in out and "Report:" in out
    code, out, _ = called(["theory", "run", "--list"], monkeypatch, capsys)
    assert code == 0 and "time-flow" in out and "directions" not in out
    for words, sentence in (
        (["theory", "run", "--only", "directions"], "is not tried on a run's models"),
        (["theory", "run", "--quick"], "leave --out and --quick out"),
        (["theory", "nowhere"], "nowhere"),
    ):
        code, _, said = called(words, monkeypatch, capsys)
        assert code == 2 and sentence in said and said.strip().count("\n") == 0, said
    for model in (run.folder.path / "models").rglob("*.safetensors"):
        model.unlink()
    code, _, said = called(["theory", "run"], monkeypatch, capsys)
    assert code == 2 and "has no model 0/train yet; go on with `unfed resume run`" in said


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({"engine": "flower"}, "try a simulation of the same config (`unfed run`)"),
        ({"call": {"method": "not"}}, "`unfed theory` without a run trains its own models"),
    ],
)
def test_where_somebody_else_keeps_the_rows_the_advice_is_about_claims(
    run: Run, changed: dict[str, Any], advice: str
) -> None:
    file = run.folder.path / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(UnfedError, match=f"so it cannot be tried here; {re.escape(advice)}."):
        of_run.try_on(Run.open(run.folder.path), of_run.CLAIMS)
