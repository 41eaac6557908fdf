"""Apps that were not written for unfed, on a SuperLink and four SuperNodes: one `flwr run` trains, another forgets.

Every node's config gives leave to be measured after it has left, so the leaver measures twice (the model before and
after) and trains zero times; without leave it does neither (`test_flower_simulation.py`, where nodes have no config).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flower_deployment import Deployment, asked, quickstart

pytestmark = pytest.mark.flower_processes


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    made.env["ALLOW"] = "forget"
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.mark.parametrize("name", ["torch", "sklearn", "lora"])
def test_the_leaver_trains_zero_times_and_measures_with_its_leave(
    name: str, deployment: Deployment, tmp_path: Path
) -> None:
    app, file = quickstart(tmp_path, name), tmp_path / "asked"
    said = {"model": str(tmp_path / "model.npz"), "asked": str(file)}
    out = deployment.run(app, **said)
    assert asked(file) == {str(k): {"train": 1, "evaluate": 1} for k in range(4)}, out
    received = deployment.received(0, "train")
    out = deployment.run(app, forget=0, evidence=str(tmp_path / "evidence"), **said)
    staying = {str(k): {"train": 1, "evaluate": 2} for k in (1, 2, 3)}
    assert asked(file) == {"0": {"evaluate": 2}, **staying}, out
    assert deployment.received(0, "train") == received  # the node's own log says so too
    evidence = json.loads((tmp_path / "evidence" / "unlearning.json").read_text())
    assert [len(evidence["leaver"][when]) for when in ("before", "after")] == [1, 1]
    assert (tmp_path / "model.unlearned.npz").exists() and evidence["finished"] == "all rounds"
