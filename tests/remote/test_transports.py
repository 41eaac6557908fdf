"""Whatever carries the messages, a federation trains, forgets, measures, loses a client and goes on alike.

The same claims over three transports: clients in this process (the example of the docs), Flower's grid and NVFlare's
tasks. What they are held equal to is the sequential engine, in float64.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from command_line import Started, script
from unfed.api import write_report
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.methods import FineTune
from unfed.remote.client import describe
from unfed.remote.directory import Directory
from unfed.remote.messages import CENSUS, FORMAT, MEASURE, TRAIN, Ask
from unfed.remote.server import Holdings, remote_world, run
from unfed.remote.transport import Connected, Messenger, Replies, Speech, Transport
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.world import World
from worlds import as_sets, assert_same, experiment, run_config, serve

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "transport"))
from direct import Direct

EXPERIMENT = experiment(3)
ASKED = ['request.id="client-1"', 'request.clients=["1"]', 'methods.run=["not"]', "checkpoint.rounds=1"]
NODES = [
    {"partition-id": 0, "device": "cpu"},
    {"partition-id": 1, "device": "cpu", "allow": "forget,samples"},
    {"partition-id": 2, "device": "cpu", "allow": "forget,samples"},
]
"""Client 0 gives no leave to measure what is to be forgotten, the others do."""


class Noted:
    """A transport that notes what is asked, and breaks down at a round of training if it is told to."""

    def __init__(self, transport: Transport, breaks_at: int = 0) -> None:
        self._transport, self._left, self.asked = transport, breaks_at, list[Ask]()

    def nodes(self) -> Sequence[Connected]:
        return self._transport.nodes()

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        self.asked += asks.values()
        if any(ask.kind == TRAIN for ask in asks.values()):
            self._left -= 1
            if self._left == 0:
                raise ConnectionError("the network is gone")
        return self._transport.send(asks, timeout)

    def count(self, kind: str) -> Counter[str]:
        """How often each client was asked for something."""
        return Counter(ask.client for ask in self.asked if ask.kind == kind)


@dataclass
class Over:
    """A transport with three nodes, and what makes a node go for good and come back as another."""

    transport: Transport
    lose: Callable[[int], object]
    back: Callable[[int], object]
    speech: Speech


@contextmanager
def in_process() -> Iterator[Over]:
    direct = Direct(NODES)
    yield Over(direct, lambda k: direct.configs.pop(k + 1), lambda k: direct.configs.update({9: NODES[k]}), Speech())


@contextmanager
def grid() -> Iterator[Over]:
    pytest.importorskip("flwr", reason="needs unfed[flower]")
    from flower_grid import InProcessGrid
    from unfed.flower.transport import SPEECH, GridTransport

    nodes = InProcessGrid(NODES)
    transport, configs = GridTransport(nodes), nodes.nodes
    yield Over(transport, lambda k: configs.pop(1000 + k), lambda k: configs.update({9: dict(NODES[k])}), SPEECH)


@contextmanager
def sites() -> Iterator[Over]:
    pytest.importorskip("nvflare.apis", reason="needs unfed[nvflare]")
    from nvflare_sites import Board
    from unfed.nvflare.transport import SPEECH, Server, Site, SiteTransport

    with TemporaryDirectory() as where:
        board = Board(Path(where), Server({"run-folder": "/nowhere"}), {str(k): node for k, node in enumerate(NODES)})
        board.executor = Site()
        transport = SiteTransport(board.controller, board.new_context(), board.abort)
        yield Over(transport, lambda k: board.leave(str(k)), lambda k: board.join(str(k), NODES[k]), SPEECH)
        board.close()


TRANSPORTS = {"in process": in_process, "flower": grid, "nvflare": sites}
MARKED = ["in process", "flower", pytest.param("nvflare", marks=pytest.mark.nvflare)]


@pytest.fixture(scope="module", params=MARKED)
def over(request: pytest.FixtureRequest) -> Iterator[Over]:
    with TRANSPORTS[request.param]() as found:
        yield found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same experiment by the sequential engine."""
    found = Run.create(Config.parse({}, [*as_sets(EXPERIMENT), *ASKED]), tmp_path_factory.mktemp("here") / "run")
    found.execute()
    return found


@pytest.fixture(scope="module")
def local(here: Run) -> World:
    return simulated(here.config, 0)


def values(folder: Path) -> dict[str, Any]:
    """The run config of a server that compares NoT on client 1."""
    base = {"run_folder": str(folder), "forget_clients": "1", "min_nodes": 3, "wait_seconds": 120.0}
    return run_config(EXPERIMENT, **base, round_timeout=120.0)


def world_over(over: Over, transport: Transport, local: World) -> tuple[World, Directory]:
    """The world over a transport, whose server holds the test data; and who is who in it."""
    directory = Directory(Messenger(transport, 120.0), speech=over.speech)
    directory.wait(3, describe(local.config, 0), 120.0)
    return remote_world(local.config, 0, directory, Holdings(local.dataset)), directory


def test_models_and_numbers_are_those_of_the_sequential_engine(over: Over, here: Run, tmp_path: Path) -> None:
    there = run(Noted(over.transport), values(tmp_path / "run"), over.speech)
    for label in ("train", "not"):
        assert_same(here.model(method=label), there.model(method=label))
    for one, other in zip(here.lines(), there.lines(), strict=True):
        told, meant = dict(other), dict(one)
        assert told.keys() == meant.keys()
        for column in meant.keys() - {"seconds", "serialised_bytes"}:
            value = meant[column]
            assert told[column] == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), column
    assert "Which nodes were asked" in write_report(Run.open(tmp_path / "run")).read_text(encoding="utf-8")
    last: Any = there.lines()[-1]
    assert last["serialised_bytes"] > last["wire_bytes"] > 0


def test_who_leaves_is_asked_to_train_no_more_and_to_measure_only_with_its_leave(over: Over, tmp_path: Path) -> None:
    noted = Noted(over.transport)
    run(noted, values(tmp_path / "run"), over.speech)
    assert noted.count(TRAIN) == {"0": 4, "1": 2, "2": 4}  # two rounds to θ*, two of recovery without client 1
    assert noted.count(MEASURE)["1"] > 0  # it allows that what it held is counted
    refusing = Noted(over.transport)
    run(refusing, {**values(tmp_path / "other"), "forget-clients": "0"}, over.speech)
    after = [ask for ask in refusing.asked if ask.client == "0" and ask.scope]
    assert refusing.count(TRAIN)["0"] == 2 and after == []


def test_a_request_is_measured_by_its_own_owners_only(over: Over, local: World) -> None:
    noted, params = Noted(over.transport), local.fresh(1)
    world, _ = world_over(over, noted, local)
    first, second = Request("r1", clients=("0",)), Request("r2", clients=("2",))
    noted.asked.clear()
    seen = world.evaluator([first, second])(params)
    assert seen.numbers["forget"] == pytest.approx(local.evaluator([second])(params).numbers["forget"], abs=1e-9)
    assert seen.earlier == {"r1": "not measured: client 0 does not allow it"}
    assert set(noted.count(MEASURE)) == {"1", "2"} and not noted.count(TRAIN) and not noted.count(CENSUS)


def test_a_run_that_broke_down_is_resumed_to_the_same_end(over: Over, here: Run, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        run(Noted(over.transport, breaks_at=4), values(tmp_path / "run"), over.speech)
    with pytest.raises(UnfedError, match="clients of this run are .*; go on with"):
        Run.open(tmp_path / "run").execute()
    again = {"resume-from": str(tmp_path / "run"), "min-nodes": 3, "wait-seconds": 120.0}
    resumed = run(over.transport, again, over.speech)
    assert_same(here.model(method="not"), resumed.model(method="not"))
    assert [line["round"] for line in resumed.lines() if line["method"] == "not"].count(0) == 1  # negated once


def test_a_client_that_is_lost_is_named_and_the_round_goes_on_without_it(over: Over, local: World) -> None:
    world, directory = world_over(over, over.transport, local)
    server = serve(world, (), local.fresh(1))
    state = FineTune().begin(server)
    over.lose(2)
    state = server.recover(state)
    (refusal,) = server.refusals
    assert refusal.client == "2"
    assert refusal.reason == "it is not connected"
    others = serve(local, (), local.fresh(1))
    assert_same(others.fedavg(others.params, others.plan(1), ["0", "1"]), state.params)
    over.back(2)
    directory.wait(3, describe(local.config, 0), 120.0)
    server.recover(state)
    assert len(server.refusals) == 1


def test_a_server_of_another_version_is_told_to_install_the_same(
    over: Over, local: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world_over(over, over.transport, local)  # all three are there
    own: Any = Ask.words
    newer = property(lambda ask: {**own.fget(ask), "format": FORMAT + 1})
    monkeypatch.setattr(Ask, "words", newer)
    sentence = f"The server speaks format {FORMAT + 1}, this client format {FORMAT}; install the same version of unfed"
    found = (
        "Only 0 of 3 clients are there|No client takes part. The first of 3"  # the second where names are vouched for
    )
    with pytest.raises(UnfedError, match=f"({found}).*: {sentence} on both"):
        run(over.transport, {**values(tmp_path / "run"), "wait-seconds": 0.01}, over.speech)
    assert not (tmp_path / "run").exists()


class Vouched(Direct):
    """A transport that vouches for its nodes' names."""

    def nodes(self) -> Sequence[Connected]:
        return [Connected(node, f"site-{node}") for node in self.configs]


def test_where_every_client_refuses_the_reason_of_the_first_is_said(tmp_path: Path) -> None:
    wrong = [{"partition-id": 8, "device": "cpu"}, {"partition-id": 9, "device": "cpu"}]
    said = (
        "No client takes part. The first of 2, client 'site-1': The node config has partition-id=8; it must be one of"
    )
    with pytest.raises(UnfedError, match=said):
        run(Vouched(wrong), {**values(tmp_path / "run"), "forget-clients": "site-1", "min-nodes": 2})
    assert not (tmp_path / "run").exists()


# --- the page ---------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def test_the_example_that_the_page_names_runs(tmp_path: Path) -> None:
    file = ROOT / "examples" / "transport" / "direct.py"
    assert "`examples/transport/direct.py`" in (ROOT / "docs" / "nvflare.md").read_text(encoding="utf-8")
    code, said = Started(tmp_path, tmp_path / "run", run=script(file)).ended()
    assert code == 0, said
    assert "asked in the last round: {'2': ['0', '2']}; forget accuracy" in said
