"""`unfed theory`: verdicts follow from what is seen, are written at once, and nothing is tried twice."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unfed.analysis.bound import squared_gap_limit
from unfed.analysis.theory.jacobian import maximal_chains
from unfed.cli.main import main
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.paper.claims import distances, gradients, layers, times, trial
from unfed.paper.claims.claim import FAILS, HOLDS, UNDER, Claim, Drawing, Finding, holds_if
from unfed.paper.claims.scene import LEAVER, QUICK, ClaimScene, TrialSize
from unfed.paper.views.base import TextTable

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import theory

LEAST = TrialSize(rounds=1, recovery=1, draws=20, seeds=2, images=24, widths=(4,), batches=12, sets=2)
UNTRAINED = ["time-flow", "time-noise", "distance-lemmas", "steepness", "compensation"]
"""Claims about numbers, for which nothing is trained."""


def silent(text: str) -> None:
    pass


def test_claims_about_numbers_have_the_known_verdicts(tmp_path: Path) -> None:
    said: list[str] = []
    page, tried = trial.make(trial.chosen(UNTRAINED), tmp_path / "out", said.append, quick=True)
    found = {one.claim.id: one.finding for one in tried}
    assert {name: finding.verdict for name, finding in found.items()} == {
        "time-flow": HOLDS,
        "time-noise": UNDER,
        "distance-lemmas": UNDER,
        "steepness": UNDER,
        "compensation": UNDER,
    }
    assert found["time-noise"].data["violations"] > 0 == found["time-noise"].data["violations_corrected"]
    assert found["compensation"].data["exact"]["sigmoid"] == {
        "dense": True,
        "dense, bias negated too": True,
        "dense, bias kept": False,
        "convolution, no padding": True,
        "convolution, zero padding": False,  # at the border
    }
    assert found["compensation"].data["exact"]["tanh"]["convolution, zero padding"], "tanh(0) = 0, as the padding is"
    assert not any(found["compensation"].data["exact"]["ReLU"].values())
    assert len(said) == 5 and said[0].startswith("[1/5] ")
    text = page.read_text(encoding="utf-8")
    assert all(text.count(f'id="{name}"') == 1 for name in UNTRAINED) and "<svg" in text
    kept = json.loads((tmp_path / "out/theory.json").read_text())
    assert [one["id"] for one in kept["claims"]] == [c for c in trial.CLAIMS if c in UNTRAINED]
    assert kept["command"] == "unfed theory --quick"
    assert (tmp_path / "out/time-noise-1.svg").read_text().startswith("<svg")


def test_a_verdict_turns_when_what_is_seen_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ClaimScene(None, 0, LEAST)
    printed = squared_gap_limit
    monkeypatch.setattr(times, "squared_gap_limit", lambda *a, diffusion=None, **k: printed(*a, **k))
    assert times.with_noise(scene).verdict == FAILS
    monkeypatch.setattr(times, "squared_gap_limit", lambda *a, diffusion=None, **k: 1e9)
    assert times.with_noise(scene).verdict == HOLDS
    monkeypatch.setattr(distances, "farthest", lambda y: y.square().sum(1))
    assert distances.lemmas(scene).verdict == FAILS
    monkeypatch.setattr(gradients, "paths", maximal_chains)
    assert gradients.chains(scene).verdict == FAILS
    monkeypatch.setattr(layers, "compensated", lambda w, b, r: (w, torch.zeros(len(w), dtype=w.dtype)))
    assert layers.compensation(scene).verdict == FAILS


def test_what_was_tried_is_not_tried_again_and_a_finding_survives_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(scene: ClaimScene) -> Finding:
        lines = {"a": [(1.0, 2.0), (2.0, float("nan"))], "b": [(1.0, 0.5), (2.0, 1.0)]}
        return Finding(
            UNDER, "seen.", "a condition", (TextTable(("x", "y"), (("1", "2"),)),), (Drawing("t", "u", "v", lines),)
        )

    def never(scene: ClaimScene) -> Finding:
        raise AssertionError("tried again")

    claim = Claim("one", "Somewhere", "something", found)
    monkeypatch.setattr(trial, "CLAIMS", {"one": claim})
    _, (first,) = trial.make([claim], tmp_path / "out", silent, quick=True)
    said: list[str] = []
    _, (again,) = trial.make([replace(claim, attempt=never)], tmp_path / "out", said.append, quick=True)
    assert "tried before" in said[0] and again.finding.told == first.finding.told == "holds under a condition"
    assert again.finding.grids == first.finding.grids and again.when == first.when
    assert again.finding.drawings[0].lines["b"] == first.finding.drawings[0].lines["b"]
    for changed in ({"seed": 1}, {"quick": False}):
        with pytest.raises(UnfedError, match="another seed or effort"):
            trial.make([claim], tmp_path / "out", silent, **{"quick": True, **changed})  # type: ignore[arg-type]
    (tmp_path / "out/one.json").write_text('{"seconds": 1}')
    with pytest.raises(UnfedError, match="delete it"):
        trial.make([claim], tmp_path / "out", silent, quick=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("mine")
    with pytest.raises(UnfedError, match="not empty"):
        trial.make([claim], tmp_path / "full", silent)
    with pytest.raises(UnfedError, match="is a file"):
        trial.make([claim], tmp_path / "full/letter.txt", silent)


def test_a_claim_that_nobody_makes_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["unfed", "theory", "--only", "time-nose"])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 2 and "no claim 'time-nose'" in said and "time-noise" in said
    assert list(tmp_path.iterdir()) == []


def test_models_are_trained_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = ClaimScene(tmp_path, 0, LEAST).trained
    assert len(list((tmp_path / "models").iterdir())) == 1

    def never(*args: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(ClaimScene, "server", never)
    again = ClaimScene(tmp_path, 0, LEAST).trained
    assert all(torch.equal(one[name], again[name]) for name in one)
    with pytest.raises(AssertionError, match="again"):
        assert ClaimScene(tmp_path, 0, replace(LEAST, rounds=2)).trained, "other rounds are another model"


def test_a_scene_can_be_asked_to_forget_others_than_the_first_client(tmp_path: Path) -> None:
    usual = ClaimScene(tmp_path, effort=LEAST)
    other = replace(usual, request=Request("two-leave", clients=("1", "2")))
    both = torch.cat([c.rows[c.view("all")] for name, c in usual.world.scoped([]).items() if name in ("1", "2")])
    assert sorted(other.sets.forget.tolist()) == sorted(both.tolist())
    assert usual._key("retrained", 1) != other._key("retrained", 1), "models of one request are not taken for another's"


def test_a_frozen_layer_stays_to_the_bit() -> None:
    scene = ClaimScene(None, 0, LEAST)
    start = layers._frozen(scene, "conv2.weight", "negated", 0)
    assert torch.equal(start["conv2.weight"], -scene.trained["conv2.weight"])
    assert not torch.equal(start["conv1.weight"], scene.trained["conv1.weight"])
    after = scene.train("x", [LEAVER], rounds=1, start=lambda: start, held=("conv2.weight",))
    assert torch.equal(after["conv2.weight"], start["conv2.weight"])
    assert not torch.equal(after["conv1.weight"], start["conv1.weight"])


@pytest.mark.slow
def test_every_claim_can_be_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "QUICK", LEAST)
    page, tried = trial.make(trial.chosen([]), tmp_path, silent, quick=True)
    assert [one.claim.id for one in tried] == list(trial.CLAIMS)
    for one in tried:
        assert one.finding.verdict in (HOLDS, UNDER, FAILS) and one.finding.seen.endswith(".")
        assert bool(one.finding.under) >= (one.finding.verdict == UNDER), one.claim.id
    assert page.stat().st_size > 10_000 and QUICK.rounds > LEAST.rounds


def test_a_verdict_has_a_condition_or_none() -> None:
    assert (holds_if(True), holds_if(True, "x"), holds_if(False, "x")) == (HOLDS, UNDER, FAILS)


def test_the_page_shows_what_the_record_holds() -> None:
    """`python tools/theory.py page` writes it anew."""
    kept = json.loads(theory.RECORD.read_text(encoding="utf-8"))
    assert [one["id"] for one in kept["claims"]] == list(trial.CLAIMS), "a claim was added: run unfed theory again"
    assert theory.main(["page", "--check"]) == 0
    page = theory.PAGE.read_text(encoding="utf-8")
    other = {**kept, "claims": [{**kept["claims"][0], "verdict": "unknown"}]}
    assert theory.filled(page, other) != page
