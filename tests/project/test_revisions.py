"""A change of numbers must raise a revision: small runs are held to what they gave when the numbers were set.

Digests are of rounded numbers in float64, so that they are the same on every machine. To set them anew, raise the
revision in `unfed.config.revisions` and write what the failing test says into `revisions.json` beside this file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import paper_analyses as analyses
import pytest

from unfed.config import revisions
from unfed.config.config import Config
from unfed.methods import METHODS
from unfed.methods.sealed import drawn_from
from unfed.model.sealing import DRAW_BYTES
from unfed.paper.items import items
from unfed.paper.views import VIEWS, layers, times
from unfed.runs.run import Run
from worlds import slow

HELD = json.loads(Path(__file__).with_name("revisions.json").read_text())
SCOPES = {"client": 'poison={client="0", target_class=0, share=0.8}', "class": 'request={id="class-0", classes=[0]}'}
LOOKED_AT = (("CKA", "NoT, last round"), ("with Retrain", "original"), ("twin", "negated"))
NR_FREEZE = "unfed.methods.nr_freeze:NRFreeze"
FEW = ("data.train_size=160", "data.test_size=100")
CENTRAL = ("randl", "ga", "badt", "l1-sparse", "ssd", "salun")


def run_of(method: str, folder: Path, *more: str) -> Run:
    preset = "central-digits" if method in CENTRAL else "digits-cnn"
    sets = ["seed=0", "training.rounds=2", "unlearning.rounds=2", "engine.precision=float64", *FEW]
    sets += ["engine.name=sequential", "evaluation.every=1", f'methods.run=["{method}"]', *more]
    sets += ["partition.clients=4"] if preset == "digits-cnn" else []
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
            for name in ("retain", "retain_loss", "comm_bytes", "flops")
        ]
        for line in run.folder.lines()
        if line["method"] == label
    ]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


def test_every_method_has_a_revision() -> None:
    assert set(METHODS) <= set(revisions.METHODS) and set(HELD["methods"]) == set(revisions.METHODS)
    assert {name for name, view in VIEWS.items() if view.analysis} == set(revisions.ANALYSES)


@pytest.mark.parametrize("method", sorted(revisions.METHODS))
def test_a_method_gives_what_it_gave_at_its_revision(method: str, tmp_path: Path) -> None:
    # Sealed draws from the operating system, never twice the same; here it always gets these bytes.
    with drawn_from(lambda seed: bytes(range(DRAW_BYTES))):
        run = run_of(method, tmp_path / "run")
    given = [revisions.METHODS[method], digest(run, method)]
    assert given == HELD["methods"][method], f"if this was meant, raise the revision and write {json.dumps(given)}"
    if method == "ft":
        given = [revisions.ENGINE, digest(run, "train")]
        assert given == HELD["engine"], f"if this was meant, raise the revision and write {json.dumps(given)}"


def test_sealed_gives_for_a_class_what_it_gave_when_its_head_was_first_drawn(tmp_path: Path) -> None:
    """Clients and samples leave as before, at the method's own revision."""
    with drawn_from(lambda seed: bytes(range(DRAW_BYTES))):
        run = run_of("sealed", tmp_path / "run", SCOPES["class"])
    given = [run.info().revisions["sealed for a class"], digest(run, "sealed")]
    assert given == HELD["sealed for a class"], f"if this was meant, raise the revision and write {json.dumps(given)}"


@pytest.mark.parametrize("scope", sorted(HELD["evaluator"]))
def test_a_model_is_evaluated_as_it_was_at_the_evaluators_revision(scope: str, tmp_path: Path) -> None:
    """Every number of one line: a client with a backdoor leaves, or a class."""
    sets = ["seed=0", "training.rounds=4", "data.test_size=1397", "engine.precision=float64"]
    sets += ["engine.name=sequential", "methods.run=[]", SCOPES[scope]]
    run = Run.create(Config.preset("digits-cnn", sets), tmp_path / "run")
    run.execute()
    (line,) = [dict(line) for line in run.folder.lines() if line["method"] == "before"]
    names = ("retain", "forget", "test", "validation", "mia", "backdoor", "retain_loss", "forget_loss", "test_loss")
    given = [revisions.EVALUATOR, {n: round(value, 5) for n in names if isinstance(value := line[n], float)}]
    assert given == HELD["evaluator"][scope], f"if this was meant, raise the revision and write {json.dumps(given)}"


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    sets = ["seed=0", "training.rounds=1", "unlearning.rounds=1", "engine.precision=float64"]
    sets += ["engine.name=sequential", "evaluation.attack=false", 'methods.run=["retrain","ft","not"]']
    run = Run.create(Config.preset("digits-cnn", sets), tmp_path_factory.mktemp("runs") / "run")
    run.execute()
    return run


@pytest.mark.parametrize("view", ["bound", *slow("cka", "spectrum")])
def test_an_analysis_finds_what_it_found_at_its_revision(
    view: str, analysed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "_noise", lambda *_: "not measured: not held here")
    monkeypatch.setattr(layers, "MOST", 256)
    few = {"batches": 64, "size": 60, "sets": 1} if view == "spectrum" else None
    item = next(item for item in items().values() if item.view == view)
    found = analyses.measured(item, analysed, "abc", few).numbers
    given: dict[str, float] = {}
    if view == "bound":
        given = {f"{m} {k}": own[k] for m, own in found["methods"].items() for k in ("time", "lipschitz")}
    elif view == "cka":
        given = {f"{part} {model}": found["layers"][part][model]["head"] for part, model in LOOKED_AT}
    else:
        given = {m: float(own[0].partition(" ")[0]) for m, own in found["alphas"].items()}
    revision, held = HELD["analyses"][view]
    told = f"if this was meant, raise the revision and write {json.dumps([revisions.ANALYSES[view], given])}"
    # A linear programme ends in another corner on another machine.
    near = pytest.approx(held, abs=0.03) if view == "spectrum" else pytest.approx(held, rel=1e-3)
    assert revision == revisions.ANALYSES[view] and given == near, told
