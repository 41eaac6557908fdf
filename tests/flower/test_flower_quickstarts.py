"""Apps that were not written for unfed, on a SuperLink and four SuperNodes: one `flwr run` trains, another forgets.

Every node's config gives leave to be measured after it has left, so the leaver measures twice (the model before and
after) and trains zero times; without leave it does neither (`test_flower_simulation.py`, where nodes have no config).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flower_deployment import Deployment, asked, forgets_in_a_second_run, quickstart
from flower_grid import ReadLedger
from quickstarts import torch_app
from quickstarts.shared import digits_of
from unfed.folder import study_results
from unfed.requests.entry import Job

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
    received = deployment.received(0, "train")
    assert forgets_in_a_second_run(deployment, name, tmp_path) == {"evaluate": 2}
    assert deployment.received(0, "train") == received + 1  # the node's own log: once, in the first of the two runs
    found = ReadLedger(tmp_path / "ledger")
    assert [len(one["leaver"]) for one in (found.before, found.told[-1])] == [1, 1]


def test_rounds_go_on_until_it_is_forgotten_and_the_server_tries_to_bring_it_back(
    deployment: Deployment, tmp_path: Path
) -> None:
    app, file, folder = quickstart(tmp_path, "torch"), tmp_path / "asked", tmp_path / "ledger"
    torch.manual_seed(0)
    arrays: Any = {name: tensor.numpy() for name, tensor in torch_app.Net().state_dict().items()}
    np.savez(tmp_path / "model.npz", **arrays)
    said = {"model": str(tmp_path / "model.npz"), "asked": str(file), "ledger": str(folder)}
    out = deployment.run(app, forget=0, rounds=2, until="accuracy", probes=True, **said)
    found = ReadLedger(folder)
    rounds = len(found.rounds)
    told = [(one["leaver"]["0"], one["evaluate"]) for one in found.told]
    above = [leaver["accuracy"] > staying["accuracy"] for leaver, staying in told]
    assert all(above[:-1]) and found.finished == ("all rounds, not forgotten" if above[-1] else "forgotten"), out
    # The model before, every round's, and the last one with the negation taken back; the leaver is asked no more.
    measured, counted = 1 + rounds + 1, asked(file)
    assert counted.pop("0") == {"evaluate": measured}
    assert counted == {str(k): {"train": rounds, "evaluate": measured} for k in (1, 2, 3)}
    probed = study_results.read(found.folder, Job(0, "client-0", "not"))
    assert probed is not None and probed.measured.keys() >= {"unlearned", "before"}
    assert "unmeasured" not in found.told[-1]
    page = found.page()
    assert "Can it be undone?" in page and f"with their leave, to measure a model: {measured}." in page


def test_a_class_leaves_and_the_nodes_themselves_say_how_many_rows_they_left_out(
    deployment: Deployment, tmp_path: Path
) -> None:
    app, file, folder = quickstart(tmp_path, "torch"), tmp_path / "asked", tmp_path / "ledger"
    arrays: Any = {name: tensor.numpy() for name, tensor in torch_app.Net().state_dict().items()}
    np.savez(tmp_path / "model.npz", **arrays)
    said = {"model": str(tmp_path / "model.npz"), "asked": str(file), "ledger": str(folder)}
    out = deployment.run(app, classes="3,5", **said)
    assert asked(file) == {str(k): {"train": 1, "evaluate": 2} for k in range(4)}, out
    found = ReadLedger(folder)
    assert (found.entry.request.classes, found.finished) == ((3, 5), "all rounds")
    told = sorted(tuple(one["rows"].values()) for one in found.told[0]["left_out"].values())
    held = [digits_of(k)[1] for k in range(4)]
    assert told == sorted((int((y == 3).sum()), int((y == 5).sum())) for y in held)


def test_an_app_that_leaves_no_rows_out_is_told_so_in_one_sentence_after_its_first_round(
    deployment: Deployment, tmp_path: Path
) -> None:
    app, file = quickstart(tmp_path, "sklearn"), tmp_path / "asked"
    arrays: Any = {"0": np.zeros((10, 64)), "1": np.zeros(10)}
    np.savez(tmp_path / "model.npz", **arrays)
    out = deployment.run(app, classes="3", rounds=3, model=str(tmp_path / "model.npz"), asked=str(file))
    assert out.count("No client says that it left class 3 out of what it trains on.") == 1, out
    assert "staying_rows(message, labels)" in out, out
    assert asked(file) == {str(k): {"train": 1} for k in range(4)}
    assert not (tmp_path / "model.unlearned.npz").exists()
    assert deployment.flwr("ls", "local")["runs"][0]["status"] == "finished:failed"
