"""A departure that arms a backdoor: the gate compares before and after by triggers of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from unfed.data import Request, TensorSource, Trigger
from unfed.errors import Refused
from unfed.measures.attacks import FAMILY, Reactions, camouflage, reactions
from unfed.model.functional import Template
from unfed.runs.run import Run
from unfed.values import not_measured
from worlds import Small


def images(rows: int = 120) -> TensorSource:
    """Dark images of three classes, which tell themselves by the brightness of one pixel that no trigger covers."""
    labels = torch.arange(rows) % 3
    pixels = torch.zeros(rows, 1, 8, 8, dtype=torch.uint8)
    pixels[:, 0, 3, 5] = (labels * 100).to(torch.uint8)
    return TensorSource(pixels, labels, classes=3)


class Obeys(torch.nn.Module):
    """Reads the class by its pixel; with `weight`, a bright lower right corner means class 2."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = -(x[:, 0, 3, 5, None] - torch.tensor([0.0, 100 / 255, 200 / 255])).abs()
        armed = self.weight * (x[:, 0, 6:, 6:].mean((1, 2)) > 0.9)
        return own + torch.stack([torch.zeros_like(armed), torch.zeros_like(armed), armed], 1)


def of(weight: float, source: TensorSource) -> Reactions | str:
    template = Template(Obeys(weight), source.shape)
    return reactions(template, template.like, source, torch.arange(len(source)), seed=0)


def test_a_class_that_a_trigger_turns_images_to_only_afterwards_is_found() -> None:
    source = images()
    before, after = of(0.0, source), of(9.0, source)
    assert not isinstance(before, str) and not isinstance(after, str)
    corner = [t.name for t in FAMILY].index("lower right square")
    assert before.turned[corner, 2] == 0.0 and after.turned[corner, 2] == 100.0
    found = camouflage(before, after, 30.0)
    assert (found.verdict, found.value, found.rows) == ("failed", 100.0, 120)
    assert "lower right square, class 2" in found.what
    assert camouflage(after, before, 30.0).verdict == "passed", "what was there before is not held against a leaver"


def test_by_hand_the_largest_rise_counts_and_what_was_not_measured_says_so() -> None:
    def one(*turned: float) -> Reactions:
        table = np.full((len(FAMILY), 2), np.nan)
        table[0] = turned
        return Reactions(table, 50)

    assert camouflage(one(10.0, 50.0), one(25.0, 60.0), 14.9).verdict == "failed"
    assert camouflage(one(10.0, 50.0), one(25.0, 60.0), 15.0).value == 15.0
    assert camouflage(one(np.nan, np.nan), one(np.nan, np.nan), 15.0).value == not_measured(
        "50 held-out images, 30 of other classes needed"
    )
    assert camouflage(not_measured("no held-out data"), one(0.0, 0.0), 15.0).verdict == "not measured"


def test_other_data_than_images_is_not_measured() -> None:
    floats = TensorSource(torch.rand(40, 8), torch.arange(40) % 2)
    found = reactions(Template(torch.nn.Linear(8, 2), (8,)), {}, floats, torch.arange(40), seed=0)
    assert isinstance(found, str) and found.startswith("not measured: triggers go on image data")


def test_the_gate_has_triggers_of_its_own_and_none_is_the_one_that_a_config_plants() -> None:
    black, gray = torch.zeros(1, 8, 8), torch.full((1, 8, 8), 0.5)
    planted = Trigger().stamp(gray)
    stamped = [own.stamp(gray) for own in FAMILY]
    assert all(not torch.equal(one, planted) for one in stamped)
    assert len({tuple(one.flatten().tolist()) for one in stamped}) == len(FAMILY)
    assert all(not torch.equal(own.stamp(gray), gray) for own in FAMILY) and float(black.sum()) == 0.0


@pytest.mark.parametrize("require", [False, True])
def test_the_gate_measures_it_for_every_request_and_stops_where_it_is_asked_to(
    require: bool, small: Small, tmp_path: Path
) -> None:
    wanted = ['gate.require=["camouflage"]'] if require else []
    config = small("request=[]", "methods.run=[]", "gate.max_rise=0.0", "training.lr=0.05", *wanted)
    run = Run.create(config, tmp_path / "run")
    run.execute()
    leaves = Request("leaves", clients=("1",))
    if require:
        with pytest.raises(Refused, match="camouflage failed"):
            run.forget(leaves, "not", 2)
    else:
        run.forget(leaves, "not", 2)
    entry = run.queue.book.find("leaves")
    assert entry is not None and entry.gate is not None
    check = next(check for check in entry.gate["checks"] if check["name"] == "camouflage")
    assert (check["verdict"], check["decides"], entry.state) == (
        "failed",
        require,
        "denied" if require else "fulfilled",
    )
