"""A change of numbers must raise a revision: small runs are held to what they gave when the numbers were set.

Digests are of rounded numbers in float64, so that they are the same on every machine. To set them anew, raise the
revision in `unfed.runs.revisions` and write what the failing test says into `revisions.json` beside this file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from unfed.methods import METHODS
from unfed.runs import revisions
from unfed.runs.config import Config
from unfed.runs.run import Run

HELD = json.loads(Path(__file__).with_name("revisions.json").read_text())
NR_FREEZE = "unfed.methods.nr_freeze:NRFreeze"
SEALED = {"sealed"}  # its draw comes from the operating system and is never the same
CENTRAL = ("randl", "ga", "badt", "l1-sparse", "ssd", "salun")


def run_of(method: str, folder: Path) -> Run:
    preset = "central-digits" if method in CENTRAL else "digits-cnn"
    sets = ["seed=0", "training.rounds=2", "unlearning.rounds=2", "data.test_size=1397", "engine.precision=float64"]
    sets += ["engine.name=sequential", "evaluation.every=1", f'methods.run=["{method}"]']
    if method == "nr-freeze":
        sets.append(f'methods.nr-freeze={{use="{NR_FREEZE}"}}')
    run = Run.create(Config.preset(preset, sets), folder)
    run.execute()
    return run


def digest(run: Run, label: str) -> str:
    """Of the losses and accuracies of a job, to six digits: further ones differ between machines."""
    seen = [
        [
            f"{line[name]:.5g}" if isinstance(line[name], float) else str(line[name])
            for name in ("retain", "retain_loss")
        ]
        for line in run.folder.lines()
        if line["method"] == label
    ]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


def test_every_method_has_a_revision() -> None:
    assert set(METHODS) <= set(revisions.METHODS) | SEALED and set(HELD["methods"]) == set(revisions.METHODS)


@pytest.mark.parametrize("method", sorted(revisions.METHODS))
def test_a_method_gives_what_it_gave_at_its_revision(method: str, tmp_path: Path) -> None:
    run = run_of(method, tmp_path / "run")
    given = [revisions.METHODS[method], digest(run, method)]
    assert given == HELD["methods"][method], f"if this was meant, raise the revision and write {json.dumps(given)}"
    if method == "ft":
        given = [revisions.ENGINE, digest(run, "train")]
        assert given == HELD["engine"], f"if this was meant, raise the revision and write {json.dumps(given)}"
        attacked = [line["mia"] for line in run.folder.lines() if line["method"] == "before"]
        given = [revisions.EVALUATOR, *attacked]
        assert given == HELD["evaluator"], f"if this was meant, raise the revision and write {json.dumps(given)}"
