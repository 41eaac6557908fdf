"""Nothing that a node sends is believed: what is malformed, too large or forged is that node's refusal, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from unfed.federation.server import Members
from worlds import Small

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

from flower_grid import InProcessGrid, Reply, flower_world, grid_of
from test_flower_engine import DOUBLE, waiting
from unfed.config.config import Config
from unfed.errors import Refused
from unfed.flower.transport import GridTransport
from unfed.flower.wire import from_arrays
from unfed.methods.finetune import FineTune
from unfed.remote import client
from unfed.remote.client import describe
from unfed.remote.directory import Directory
from unfed.remote.messages import Failure, attempt, said
from unfed.remote.server import nodes_of
from unfed.remote.transport import Messenger
from unfed.runs.simulated import simulated
from unfed.runs.world import World
from worlds import LEAVES, serve


@pytest.fixture
def config(small: Small) -> Config:
    return small(*DOUBLE)


@pytest.fixture
def local(config: Config) -> World:
    return simulated(config, 0)


def npy(header: str, data: bytes = b"") -> bytes:
    """An array in numpy's format whose header says what it likes."""
    padded = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode() + data


def first_array(change: Callable[[Array], Array]) -> Reply:
    """A reply whose first tensor is something else."""

    def changed(question: Message, reply: Message) -> Message:
        if "params" in reply.content.array_records:
            arrays = dict(reply.content.array_records["params"])
            name = next(iter(arrays))
            reply.content["params"] = ArrayRecord({**arrays, name: change(arrays[name])})
        return reply

    return changed


def typed(kind: str) -> Reply:
    return first_array(lambda a: Array(kind, tuple(a.shape), a.stype, a.data))


def with_data(data: bytes) -> Reply:
    return first_array(lambda a: Array(a.dtype, tuple(a.shape), a.stype, data))


def beginning(start: bytes) -> Reply:
    return first_array(lambda a: Array(a.dtype, tuple(a.shape), a.stype, start + a.data[len(start) :]))


def counts(**values: Any) -> Reply:
    def changed(question: Message, reply: Message) -> Message:
        for name in ("counts", "sums.0", "sums.1"):
            if name in reply.content.metric_records and question.metadata.message_type != "query":
                old = reply.content.metric_records[name]
                reply.content[name] = MetricRecord({**old, **{k: v for k, v in values.items() if k in old}})
        return reply

    return changed


HUGE = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**50},), }}"
MALFORMED: dict[str, tuple[Reply, str]] = {
    "a type nobody knows": (typed("float31"), "is float31, not"),
    "a type with a dot": (typed("nn.Module"), "nn.Module"),
    "a shape of 2^50": (first_array(lambda a: Array(a.dtype, (2**50,), a.stype, a.data)), "has shape"),
    "a header of 2^50": (with_data(npy(HUGE, bytes(16))), "bytes, which"),
    "an archive": (beginning(b"PK\x03\x04"), "cannot be read"),
    "a pickle": (beginning(b"\x80\x04."), "cannot be read"),
    "nothing": (with_data(b""), "has 0 bytes"),
    "a megabyte too many": (first_array(lambda a: Array(a.dtype, a.shape, a.stype, a.data + bytes(2**20))), "bytes"),
    "another way to pack": (first_array(lambda a: Array(a.dtype, a.shape, "torch.pickle", a.data)), "not read here"),
    "a weight of 10^12": (counts(samples=10**12), "counts 1000000000000 rows as 'samples', where by its census"),
    "work that was not done": (counts(trained=10**12), "as 'trained'"),
    "passes that were not made": (counts(forwarded=10**12), "as 'forwarded'"),
    "a negative count": (counts(trained=-5), "is no count"),
}


@pytest.mark.parametrize("how", list(MALFORMED))
def test_a_malformed_answer_is_its_senders_refusal(how: str, config: Config, local: World) -> None:
    grid = grid_of(config)
    world = flower_world(config, grid)
    grid.tamper[1002] = MALFORMED[how][0]
    server = serve(world, (), local.fresh(1))
    state = server.recover(FineTune().begin(server))
    (refusal,) = server.refusals
    assert refusal.client == "2" and MALFORMED[how][1] in refusal.reason
    others = serve(local, (), local.fresh(1))
    wanted = others.fedavg(others.params, others.plan(1), ["0", "1", "3"])
    for name, value in wanted.items():
        torch.testing.assert_close(state.params[name], value, rtol=0, atol=1e-12)
    assert 0 <= float(server.ledger.flops) <= 4 * float(others.ledger.flops) and server.ledger.wire_bytes < 2**30


def census(**values: Any) -> Reply:
    def changed(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "query":
            reply.content["counts"] = MetricRecord({**reply.content.metric_records["counts"], **values})
        return reply

    return changed


@pytest.mark.parametrize(
    "values",
    [
        {"all": 10**10, "retain": 10**10},
        {"classes": 10**9},
        {"shape": [2**40]},
        {"shape": []},
        {"shape": [-8, 8]},
        {"val": -1},
        {"all": 0.5},
    ],
)
def test_a_census_that_cannot_be_is_its_senders_refusal(values: dict[str, Any], config: Config) -> None:
    grid = grid_of(config)
    grid.tamper[1002] = census(**values)
    directory = waiting(config, grid, 3)
    assert directory.names == ("0", "1", "3") and list(directory.failures) == [1002]


def test_a_census_of_nine_million_rows_is_refused_by_name_unless_the_operator_allows_as_many(config: Config) -> None:
    grid = grid_of(config)
    grid.tamper[1002] = census(all=9_000_000, retain=9_000_000, val=0)
    directory = waiting(config, grid, 3)
    assert directory.names == ("0", "1", "3")
    reason = "as client '2', it states 9000000 rows of the shape (1, 8, 8) in 10 classes; the most are 1000000 rows"
    assert directory.failures[1002].startswith(reason)
    allowed = Directory(Messenger(GridTransport(grid), 5.0), most_rows=9_000_000)
    allowed.look(describe(config, 0))
    assert allowed.names == ("0", "1", "2", "3")


def test_one_client_cannot_say_of_how_many_classes_the_model_is(config: Config) -> None:
    grid = grid_of(config)
    grid.tamper[1002] = census(classes=90_000)
    world = flower_world(config, grid)
    assert nodes_of(world).classes == 10
    assert nodes_of(world).refused == {"2": "it holds 90000 classes, the federation's model tells 10 apart"}
    grid.tamper = dict.fromkeys(grid.nodes, census(classes=90_000))
    assert nodes_of(flower_world(config, grid)).classes == 90_000, "all of them can"


def test_a_client_that_states_more_than_half_of_all_rows_is_named(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    grid, heard = grid_of(config), "client 2 states 5000 of all"
    with caplog.at_level("WARNING", "flwr"):
        flower_world(config, grid)
    assert "of the weight" not in caplog.text
    grid.tamper[1002] = census(all=5000, retain=5000)
    with caplog.at_level("WARNING", "flwr"):
        flower_world(config, grid)
    assert heard in caplog.text and "rows, so it has more than half of the weight" in caplog.text


def test_a_name_that_would_write_on_the_terminal_is_no_name(config: Config) -> None:
    def renamed(question: Message, reply: Message) -> Message:
        reply.content["answer"] = ConfigRecord({**reply.content.config_records["answer"], "name": "\x1b[2J"})
        return reply

    grid = grid_of(config)
    grid.tamper[1002] = renamed
    assert "cannot be printed" in waiting(config, grid, 3).failures[1002]
    assert said("\x1b[2Jall\nis " + "w" * 999).startswith("?[2Jall is www") and len(said("w" * 999)) == 501


def test_forged_counts_enter_no_metric(config: Config, local: World) -> None:
    grid = grid_of(config)
    world = flower_world(config, grid, local=local)
    grid.tamper[1002] = counts(count=1e9, correct=1e9)
    found = world.evaluator([LEAVES])(local.fresh(1)).numbers
    assert "client 2: it counts 1000000000 rows of 'retain', where by its census" in str(found["unheard"])


def test_scores_of_rows_that_nobody_holds_are_refused(config: Config, local: World) -> None:
    def longer(question: Message, reply: Message) -> Message:
        if "scores" in reply.content.array_records:
            old = reply.content.array_records["scores"]
            more = {name: np.repeat(array.numpy(), 3) for name, array in old.items()}
            reply.content["scores"] = ArrayRecord({name: Array(values) for name, values in more.items()})
        return reply

    grid = grid_of(config)
    world = flower_world(config, grid, local=local)
    grid.tamper[1000] = longer
    found = world.evaluator([LEAVES])(local.fresh(1)).numbers
    assert "rows of 'forget', where by its census there are" in str(found["mia"])


ROWS = 20


def growing(node: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    count = ROWS if node["client"] == "west" else 20
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 10


def test_a_client_whose_data_grew_is_counted_again_and_takes_part_in_the_next_round(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = "test_flower_replies:growing"
    grid = InProcessGrid([{"loader": loader, "client": name} for name in ("east", "west", "north")])
    world = flower_world(config, grid)
    server = serve(world, ())
    monkeypatch.setitem(globals(), "ROWS", 40)
    client._node_data.cache_clear()  # as in a new process
    state = server.recover(FineTune().begin(server))
    assert [r.client for r in server.refusals] == ["west"] and "by its census" in server.refusals[0].reason
    assert world.admit([])
    clients = world.scoped([])
    server.look_at(Members(clients, world.engine(clients)))
    server.recover(state)
    assert len(server.refusals) == 1 and not world.admit([])
    assert len(clients["west"].train) == 2 * len(clients["east"].train)


def test_whatever_goes_wrong_while_reading_is_a_refusal() -> None:
    def full() -> None:
        raise MemoryError

    assert attempt(full) == Failure("its answer cannot be read (MemoryError())")
    assert attempt(lambda: 3) == 3


@pytest.mark.parametrize("order", ["C", "F"])
def test_what_is_whole_is_read_as_numpy_reads_it(order: Any) -> None:
    for values in (np.arange(6.0).reshape(2, 3), np.array(7), np.zeros((0, 3), np.float32), np.array([True, False])):
        stored = Array(np.asarray(values, order=order))
        assert np.array_equal(from_arrays(ArrayRecord({"x": stored}))["x"].numpy(), values)


def test_a_federation_of_liars_is_an_error_in_one_sentence(config: Config) -> None:
    grid = grid_of(config)
    server = serve(flower_world(config, grid), ())
    grid.tamper |= dict.fromkeys(grid.nodes, with_data(b"PK\x03\x04"))
    with pytest.raises(Refused, match="got 0 usable updates of 4 asked, the quorum is 2 .client 0: its 'conv1.weight'"):
        server.recover(FineTune().begin(server))


@pytest.mark.parametrize("rule", ["norm", "median", "trimmed"])
def test_a_robust_rule_over_flower_is_that_of_a_simulation(rule: str, small: Small) -> None:
    config = small(*DOUBLE, f'training.robust.rule="{rule}"')
    ends = []
    for world in (simulated(config, 0), flower_world(config, grid_of(config))):
        server = serve(world, (LEAVES,), simulated(config, 0).fresh(1))
        ends.append(server.recover(FineTune().begin(server)).params)
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=0, atol=1e-12)
