"""One spine under every setting: what is written, read and reported is the same, whoever holds the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unfed
from unfed import rng, storage
from unfed.api import write_report
from unfed.config.config import Config, Seeds
from unfed.data import ClientData, Request, TensorSource
from unfed.errors import UnfedError
from unfed.folder.folder import RunFolder
from unfed.model.functional import forward_flops
from unfed.model.params import params_of
from unfed.runs.run import Run
from unfed.runs.simulated import template_of
from unfed.runs.status import status
from unfed.runs.world import Residents, World
from unfed.values import is_measured
from worlds import Small


def called(folder: Path) -> Path:
    """The folder of a call of `unlearn` on a model and data of one's own."""
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    torch.manual_seed(0)
    unfed.unlearn(
        nn.Linear(4, 3), retain=(x[9:], y[9:]), forget=(x[:9], y[:9]), method="ft", epochs=1, checkpoint=folder
    )
    return folder


def test_run_json_has_the_same_keys_in_every_setting(small: Small, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs unfed[flower]")
    from flower_grid import flower_world, grid_of

    config = small("training.rounds=1")
    simulated = Run.create(config, tmp_path / "simulated").description
    remote = Run.create(config, tmp_path / "flower", flower_world(config, grid_of(config))).description
    alone = storage.read_json(called(tmp_path / "call") / "run.json", "run")
    assert [*simulated.to_json()] == [*remote.to_json()] and {*simulated.to_json()} == {*alone}
    assert simulated.methods.keys() == remote.methods.keys()
    assert simulated.rounds.keys() == remote.rounds.keys() == alone["rounds"].keys()


def test_a_call_that_has_ended_is_finished_for_whoever_reads_its_folder(tmp_path: Path) -> None:
    """Nobody trains in a call: no training is waited for."""
    found = status(Run.open(called(tmp_path / "call")))
    assert found.state == "finished"
    assert [job.job for job in found.jobs] == ["0/forget/ft"]


def test_the_folder_of_a_call_is_gone_on_with_by_the_call(tmp_path: Path) -> None:
    """Its model and its rows lie with the caller, so nobody else can build its world."""
    with pytest.raises(UnfedError, match="make it again, with checkpoint="):
        Run.open(called(tmp_path / "call")).world(0)


# --- a fourth setting is one builder ----------------------------------------------------------------------------------


def hospitals(folder: RunFolder, config: Config, seed: int) -> World:
    """Three hospitals whose rows are tensors in memory: no data set, no partition, no network by its name."""
    draw, seeds = torch.Generator().manual_seed(seed), Seeds.of(config, seed)
    y = torch.arange(60) % 3
    x = torch.randn(60, 4, generator=draw, dtype=torch.float64) + 2 * torch.eye(3, 4, dtype=torch.float64)[y]
    source = TensorSource(x, y, classes=3, dtype=torch.float64)
    test = TensorSource(x[:15].flip(0) + 0.1, y[:15].flip(0), classes=3, dtype=torch.float64)
    places = torch.arange(20)
    names = ("north", "south", "west")
    clients = tuple(ClientData(n, source, 20 * k + places, places[:16], places[16:]) for k, n in enumerate(names))

    def module(seed: int) -> nn.Module:
        with rng.seeded(seed):
            return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()

    template = template_of(config, module(0), (4,), torch.device("cpu"))
    return World(
        config=config,
        seed=seed,
        holders=Residents(clients, seeds.partition),
        template=template,
        device=torch.device("cpu"),
        forward_flops=forward_flops(template),
        fresh=lambda seed: params_of(module(seed)),
        held_out=test,
        threads=1,
    )


HOSPITALS: dict[str, Any] = {
    "name": "hospitals",
    "device": "cpu",
    "data": {"name": "theirs"},
    "model": {"name": "two layers"},
    "training": {"rounds": 3, "lr": 0.1, "batch": 8},
    "unlearning": {"rounds": 2},
    "methods": {"run": ["retrain", "not"]},
    "request": [{"id": "leaves", "clients": ["south"]}],
    "engine": {"precision": "float64"},
}


def test_a_fourth_setting_is_one_builder(tmp_path: Path) -> None:
    """Train, compare, resume, serve a request and report, all by the ordinary run."""
    config = Config.parse(HOSPITALS)
    folder = RunFolder(tmp_path / "run")
    run = Run.create(config, folder.path, hospitals(folder, config, 0), hospitals)
    run.execute()
    assert run.description.clients == ("north", "south", "west") and run.description.engine == "sequential"
    last = {line["method"]: line for line in run.lines() if line["request"] == "leaves"}
    assert last["not"]["done"] and all(is_measured(last["not"][name]) for name in ("retain", "forget", "test", "mia"))

    again = Run(folder, hospitals)
    outcome = again.forget(Request("another", clients=("west",)), "ft", until=2)
    assert outcome.status == "done" and again.current_job(0).request == "another"
    rounds = [line["asked"] for line in again.lines() if line["method"] == "ft"]
    asked = [name for told in rounds for names in told.values() for name in names]
    assert set(asked) == {"north", "south"}
    page = write_report(again).read_text()
    assert "another" in page and status(again).state == "finished"
