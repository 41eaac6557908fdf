"""Nodes come and go while a run is at work: who joins takes part, who comes back is asked again, who left is not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from worlds import Small

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import Message

from flower_grid import EVERYTHING, InProcessGrid, flower_world, grid_of, lost
from test_flower_app import nodes, values
from unfed import storage
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.federation.server import JobServer, Members, Setup
from unfed.flower.server import run as serve
from unfed.folder.deny import on_list
from unfed.methods import FineTune, Retrain
from unfed.remote.options import Options
from unfed.remote.server import nodes_of
from unfed.requests.entry import Job
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.world import Residents
from worlds import assert_same
from worlds import serve as server_of

Change = Callable[["Changing"], None]


class Changing(InProcessGrid):
    """A grid on which something happens after its n-th round of training."""

    def __init__(self, configs: Iterable[dict[str, Any]], changes: dict[int, Change]) -> None:
        super().__init__(configs)
        self.rounds, self._changes = 0, changes

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        all_of_them = list(messages)
        found = super().send_and_receive(all_of_them, timeout=timeout)
        if all_of_them[0].metadata.message_type == "train":
            self.rounds += 1
            if self.rounds in self._changes:
                self._changes[self.rounds](self)
        return found


def node(partition: int, **more: Any) -> dict[str, Any]:
    return {"partition-id": partition, "device": "cpu", "allow": EVERYTHING, **more}


def joins(partition: int, number: int, name: str = "", **more: Any) -> Change:
    def change(grid: Changing) -> None:
        grid.nodes[number] = node(partition, **more)
        grid.names |= {number: name} if name else {}

    return change


def breaks(grid: Changing) -> None:
    raise ConnectionError("the SuperLink is gone")


def both(*changes: Change) -> Change:
    def change(grid: Changing) -> None:
        for one in changes:
            one(grid)

    return change


def here(folder: Path, order: list[str], rounds: list[list[str]]) -> dict[str, torch.Tensor]:
    """The training as the sequential engine does it, with these clients in these rounds."""
    world = simulated(Options.of(values(folder)).config(), 0)
    clients = {name: world.scoped([])[name] for name in order}
    settings = world.training_settings()
    server = JobServer(
        Setup(world.template, world.fresh, world.forward_flops),
        Members(clients, world.engine(clients)),
        world.template.like,
        settings,
        world.seeds.training,
    )
    state = Retrain().begin(server)
    for names in rounds:
        state = server.advance(state, names)
    return state.params


def three(**more: Any) -> dict[str, Any]:
    return {"mode": "train", "min_nodes": 3, "experiment.training.rounds": 3, **more}


def asked(run: Run) -> dict[str, list[str]]:
    """Who was asked in which round of the training."""
    lines = [line for line in run.lines() if line["method"] == "train"]
    return {number: names for line in lines for number, names in line["asked"].items()}


def test_a_node_is_called_by_the_first_name_that_its_config_gives(tmp_path: Path) -> None:
    """`client` before `client-name`, which NVFlare's bridge writes, before `partition-id`."""
    grid = Changing([node(1, client="north"), node(2, **{"client-name": "site-2"}), node(3)], {})
    run = serve(grid, values(tmp_path / "run", **three()))
    assert set(asked(run)["1"]) == {"north", "site-2", "3"}


@pytest.mark.parametrize("name", ["", "0"])
def test_a_node_that_joins_takes_part_from_the_next_round_on(name: str, tmp_path: Path) -> None:
    grid = Changing([node(k) for k in (1, 2, 3)], {1: joins(0, 7, name)})
    run = serve(grid, values(tmp_path / "run", **three()))
    # Who joins stands last, whatever its name: the order of those who were there before does not change.
    order = ["1", "2", "3", "0"]
    assert asked(run) == {"1": order[:3], "2": order, "3": order}
    assert json.loads((tmp_path / "run" / "clients.json").read_text())["order"] == order
    assert_same(run.model(method="train"), here(tmp_path / "run", order, [order[:3], order, order]))
    # What is measured after it joined counts its rows too.
    found, local = dict(run.lines()[-1]), simulated(run.config, 0)
    for column, value in local.evaluator([])(run.model(method="train")).numbers.items():
        if column in ("retain", "validation", "test", "retain_loss"):
            assert found[column] == pytest.approx(value, abs=1e-9), column


def test_a_run_that_somebody_joined_is_resumed_to_the_very_same_end(tmp_path: Path) -> None:
    late = {1: joins(3, 7), 2: joins(0, 8)}
    whole = serve(Changing([node(k) for k in (1, 2)], late), values(tmp_path / "whole", **three(min_nodes=2)))
    broken = Changing([node(k) for k in (1, 2)], {**late, 3: breaks})
    with pytest.raises(ConnectionError):
        serve(broken, values(tmp_path / "run", **three(min_nodes=2)))
    again = {"resume-from": str(tmp_path / "run"), "min-nodes": 4, "wait-seconds": 0.01}
    resumed = serve(nodes(), again)
    assert asked(resumed) == asked(whole) == {"1": ["1", "2"], "2": ["1", "2", "3"], "3": ["1", "2", "3", "0"]}
    assert_same(whole.model(method="train"), resumed.model(method="train"))


def test_who_joins_a_recovery_is_counted_in_what_it_must_reach(tmp_path: Path) -> None:
    grid = Changing([node(k) for k in (0, 1, 2)], {3: joins(3, 7)})
    run = serve(grid, values(tmp_path / "run", min_nodes=3))
    lines = [line for line in run.lines() if line["method"] == "not"]
    assert [line["asked"] for line in lines] == [{}, {"1": ["1", "2"]}, {"2": ["1", "2", "3"]}]
    world, request = simulated(run.config, 0), Request("client-0", clients=("0",))
    expected = world.evaluator([request]).validation(run.model(method="train"))
    assert lines[-1]["validation_before"] == pytest.approx(expected) and lines[0]["validation_before"] != expected


@pytest.mark.parametrize("name", ["", "0"])
def test_a_forgotten_client_that_joins_again_is_not_asked(name: str, tmp_path: Path) -> None:
    serve(nodes(), values(tmp_path / "run", mode="train"))
    grid = Changing([node(k) for k in (1, 2, 3)], {1: joins(0, 7, name)})
    run = serve(grid, values(tmp_path / "run", mode="unlearn", min_nodes=3))
    assert 7 in grid.nodes and not grid.asked(7, "train", "evaluate")
    assert run.lines()[-1]["asked"] == {"2": ["1", "2", "3"]}
    again = serve(grid, values(tmp_path / "run", mode="unlearn", methods="ft", forget_clients="1"))
    assert not grid.asked(7, "train", "evaluate"), "nor by a later request"
    assert again.lines()[-1]["asked"] == {"2": ["2", "3"]}


def under_its_key(config: dict[str, Any]) -> Change:
    """A node that proves to hold the key of client 0, under another id and config."""

    def change(grid: Changing) -> None:
        grid.nodes[7], grid.keys[7] = config, b"the key of client 0"

    return change


BACK: dict[str, tuple[dict[str, Any], str, Change]] = {
    "another name, the same partition": (node(0), "0", joins(0, 7, client="north")),
    "another name of its own": (node(0, client="south"), "south", joins(0, 7, client="north")),
    "its partition alone": (node(0, client="south"), "south", joins(0, 7)),
    "another registered name": (node(0, client="south"), "south", joins(0, 7, "north")),
    "its key": (node(0), "0", under_its_key({**node(2), "client": "north"})),
    "the name of one who stays": (node(0), "0", joins(0, 7, client="3")),
}


@pytest.mark.parametrize("how", list(BACK))
def test_a_leaver_that_comes_back_under_another_name_is_not_trained_on_in_the_same_run(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leaver, name, comes_back = BACK[how]
    grid = Changing([leaver, *(node(k) for k in (1, 2, 3))], {})
    grid.keys[1000] = b"the key of client 0"
    serve(grid, values(tmp_path / "run", mode="train"))
    later = Changing([node(k) for k in (1, 2, 3)], {1: comes_back})
    with caplog.at_level("WARNING", "flwr"):
        run = serve(later, values(tmp_path / "run", mode="unlearn", min_nodes=3, forget_clients=name))
    assert 7 in later.nodes and not later.asked(7, "train", "evaluate")
    assert [line["asked"] for line in run.lines() if line["method"] == "not"][-1] == {"2": ["1", "2", "3"]}
    assert "node 7 goes by" in caplog.text and "which was forgotten, so it is not asked" in caplog.text
    deny = on_list(tmp_path / "run").clients
    assert {"0", name} <= {*deny} and not {"1", "2", "3"} & {*deny}, "and so in every later run"


def test_a_leaver_that_claimed_the_name_of_another_does_not_take_it_along(tmp_path: Path) -> None:
    grid = Changing([node(0, client="south", **{"client-name": "2"}), *(node(k) for k in (1, 2, 3))], {})
    serve(grid, values(tmp_path / "run", mode="train"))
    run = serve(grid, values(tmp_path / "run", mode="unlearn", forget_clients="south"))
    assert run.lines()[-1]["asked"] == {"2": ["1", "2", "3"]}
    assert set(on_list(tmp_path / "run").clients) == {"south", "0"}


def test_one_that_left_with_its_data_is_not_even_asked_who_it_is(tmp_path: Path) -> None:
    serve(nodes(), values(tmp_path / "run", mode="train"))
    grid = Changing([node(k) for k in range(4)], {1: joins(0, 7, "9")})
    serve(grid, values(tmp_path / "run", mode="unlearn", forget_clients="9", deleted=True))
    assert not grid.asked(7)


@pytest.mark.parametrize("name", ["", "0"])
def test_who_joins_with_other_images_is_named_and_may_come_back_mended(name: str, tmp_path: Path) -> None:
    def other(grid: Changing) -> None:
        grid.nodes[7] = {"client": "0", "loader": "test_flower_engine:three_images", "side": 12}
        grid.names |= {7: name, 8: name}

    def mended(grid: Changing) -> None:
        del grid.nodes[7]
        grid.nodes[8] = node(0)

    grid = Changing([node(k) for k in (1, 2, 3)], {1: other, 3: mended})
    run = serve(grid, values(tmp_path / "run", **three(**{"experiment.training.rounds": 4})))
    assert not grid.asked(7, "train", "evaluate") and len(grid.asked(7, "query")) == 1
    assert [names[-1] for names in asked(run).values()] == ["3", "3", "3", "0"]


def test_a_newcomer_that_does_not_answer_is_asked_again_once_it_gives_a_sign_of_life(tmp_path: Path) -> None:
    def silent(grid: Changing) -> None:
        joins(0, 7, "0")(grid)
        grid.lives = {number: 60.0 for number in grid.nodes}
        grid.tamper[7] = lost

    def wakes(grid: Changing) -> None:
        del grid.tamper[7]
        grid.lives[7] = 90.0

    grid = Changing([node(k) for k in (1, 2, 3)], {1: silent, 3: wakes})
    run = serve(grid, values(tmp_path / "run", **three(**{"experiment.training.rounds": 4})))
    assert len(grid.asked(7, "query")) == 2
    assert [names[-1] for names in asked(run).values()] == ["3", "3", "3", "0"]


def test_who_was_away_when_classes_were_asked_for_leaves_them_out_when_it_is_back(small: Small) -> None:
    config = small('engine.precision="float64"', 'engine.name="sequential"')
    local, request = simulated(config, 0), Request("r1", classes=(3,))
    grid = grid_of(config)
    world = flower_world(config, grid)
    away = grid.nodes.pop(1002)
    nodes_of(world).directory.look(nodes_of(world).shard)
    server = server_of(world, (request,), local.fresh(1))
    grid.nodes[1002] = away
    state = server.recover(FineTune().begin(server))
    expected = server_of(local, (request,), local.fresh(1))
    assert not server.refusals
    assert_same(expected.recover(FineTune().begin(expected)).params, state.params)


def test_nobody_is_asked_twice_what_he_holds(tmp_path: Path) -> None:
    grid = nodes()
    serve(grid, values(tmp_path / "run"))
    assert [len(grid.asked(1000 + k, "query")) for k in range(4)] == [1, 1, 1, 1]


LEAN = """
import sys
from unfed.flower import introduce, negate_arrays
negate_arrays("0")
assert "torch" not in sys.modules, "an app that names arrays pays for PyTorch"
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from flower_grid import InProcessGrid
import unfed.flower.client
started = set(sys.modules)
from unfed.flower.transport import GridTransport
from unfed.remote.options import Options
from unfed.remote.transport import Messenger
from unfed.remote.client import describe
from unfed.remote.messages import CENSUS, MEASURE, TRAIN, Ask
from unfed.model.networks import build
from unfed.model.params import cast, params_of
from unfed.client.plan import Phase, Plan
import torch
config = Options.of({"run-folder": "/x", "set": "model.name=cnn-small; partition.clients=4"}).config()
shard = describe(config, 0, (1, 8, 8), 10, 1)
messenger = Messenger(GridTransport(InProcessGrid([{"partition-id": 0, "device": "cpu"}])), 5.0)
params = cast(params_of(build("cnn-small", shape=(1, 8, 8), classes=10, seed=0)), torch.float32, torch.device("cpu"))
tensors = {"params": params}
plan, measures = Plan(1, 1, (Phase(),)).to_json(), '[{"what": "correct", "view": "val", "batch": 64}]'
for ask in (Ask(CENSUS, "0", shard), Ask(TRAIN, "0", shard, body=plan, tensors=tensors),
            Ask(MEASURE, "0", shard, body=measures, tensors=tensors)):
    (found,) = messenger.send({1000: ask}).answers.values()
    assert hasattr(found, "numbers"), found
from unfed.model.functional import forward_flops
from unfed.model.functional import Template
assert forward_flops(Template(build("cnn-small", shape=(1, 8, 8), classes=10, seed=0), (1, 8, 8))) > 0
print(*sorted({name.partition(".")[0] for name in sys.modules} | {n for n in sys.modules if n.count(".") == 1}))
"""


def test_a_client_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    """Its process starts anew for every message: a compiler or a plotting library costs a second each time.

    Nor does counting a model's FLOPs, as every server does, import more.
    """
    command = [sys.executable, "-c", LEAN, str(Path(__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "unfed.client" in loaded
    heavy = {"torch._dynamo", "torch._inductor", "sympy", "sklearn", "scipy", "matplotlib", "jinja2", "pandas"}
    assert sorted(loaded & heavy) == []


def test_who_joined_late_leaves_by_rewinding_to_before_it_came(tmp_path: Path) -> None:
    """Bit for bit what the sequential engine makes of the kept model at nodes among whom the leaver never was."""
    own = {"set": "training.keep_every=1; methods.back={use='retrain', start='rewind'}"}
    grid = Changing([node(k) for k in (1, 2, 3)], {2: joins(0, 7)})
    run = serve(grid, values(tmp_path / "run", **three(**own)))
    assert asked(run)["2"] == ["1", "2", "3"] and "0" in asked(run)["3"]
    gone = {"mode": "unlearn", "forget_clients": "0", "methods": "back", "until": "2"}
    run = serve(grid, values(tmp_path / "run", **three(**own) | gone))
    kept = run.folder.kept_states(run.folder.state_file(Job(0, None, "train")))[2]
    params = storage.part(storage.load(kept, "kept")[0])["params"]
    assert_same(here(tmp_path / "other", ["1", "2", "3"], [["1", "2", "3"]] * 2), params)
    world = simulated(run.config, 0)
    others = replace(world, holders=Residents(world.clients[1:], world.seeds.partition))
    server = server_of(others, (), params=params, seed=world.seeds.request("client-0"))
    for round in (1, 2):
        params = server.fedavg(params, server.plan(round), server.retained)
    assert_same(params, run.current(0))
    said = (
        'No kept model is from before those who leave took part: client 1 took part in round 1; use methods="retrain"'
    )
    with pytest.raises(UnfedError, match=said):
        serve(grid, values(tmp_path / "run", **three(**own) | gone | {"forget_clients": "1"}))
